"""Which samples share chunks: what block shuffle keeps together."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from unistore.order_blocks import GROUP, LANES, uniform_blocks
from unistore.store.reader import Store
from unistore.zarr3.array import Array
from unistore.zarr3.cache import CHUNKS

__all__ = ["block_offsets", "samples_of_a_chunk"]

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
    if not samples:
        return uniform_blocks(samples, 1)
    together, chunk = samples_of_a_chunk(store, samples)
    chunks = max(1, int(CHUNKS.limit * ROOM / (GROUP * LANES)) // chunk)
    return uniform_blocks(samples, max(1, round(chunks * together)))


def samples_of_a_chunk(store: Store, samples: int) -> tuple[float, int]:
    """How many samples a chunk of the largest array holds, and its bytes.

    Parameters
    ----------
    store
        Where samples are read from.
    samples
        Number of samples of the dataset.

    Returns
    -------
    Samples, on average where they differ in length, and below 1 where a sample takes several chunks; bytes of
    a decoded chunk.
    """
    largest = max((store.array(path) for path in store.paths()), key=_decoded_bytes)
    chunk = math.prod(largest.chunk_shape) * largest.dtype.itemsize
    whole_rows = largest.chunk_shape[1:] == largest.shape[1:]
    if whole_rows and largest.shape[0] == samples:
        return float(largest.chunk_shape[0]), chunk
    return chunk * samples / max(1, _decoded_bytes(largest)), chunk


def _decoded_bytes(array: Array) -> int:
    return math.prod(array.shape) * array.dtype.itemsize
