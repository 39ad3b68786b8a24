"""Which samples share chunks: what block shuffle keeps together."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from unistore.order_blocks import GROUP, LANES, uniform_blocks
from unistore.store.reader import Store
from unistore.zarr3.cache import CHUNKS

__all__ = ["block_offsets"]

ROOM = 0.8
"""Part of the cache of decoded chunks that the open groups of a block shuffle are planned to take."""


def block_offsets(store: Store, samples: int) -> NDArray[np.int64]:
    """Blocks of consecutive samples that fill whole chunks of the largest array.

    Samples lie in the order of their rows, so neighbours share chunks. A block is as many chunks as let all
    groups that are open at a time stay in the cache of decoded chunks, and at least one. Where samples have
    different lengths the edges of blocks fall inside chunks, which are then decoded twice.

    Parameters
    ----------
    store
        Where samples are read from.
    samples
        Number of samples of the dataset: all of the store's, or those of some splits.

    Returns
    -------
    (blocks + 1,) int64 offsets, see `unistore.order_blocks.BlockShuffle`.
    """
    if not samples or not store.sample_count:
        return uniform_blocks(samples, 1)
    largest = max(
        (store.array(path) for path in store.paths()),
        key=lambda array: math.prod(array.shape) * array.dtype.itemsize,
    )
    chunk = math.prod(largest.chunk_shape) * largest.dtype.itemsize
    chunks = max(1, int(CHUNKS.limit * ROOM / (GROUP * LANES)) // chunk)
    total = math.prod(largest.shape) * largest.dtype.itemsize
    in_a_chunk = chunk * samples / max(1, total)
    if largest.shape[0] == samples and math.prod(largest.chunk_shape[1:]) >= math.prod(largest.shape[1:]):
        in_a_chunk = float(largest.chunk_shape[0])
    return uniform_blocks(samples, max(1, round(chunks * in_a_chunk)))
