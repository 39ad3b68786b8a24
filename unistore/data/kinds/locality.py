"""Which samples share chunks: what block shuffle keeps together."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from unistore.order.blocks import uniform_blocks
from unistore.schemas.indices import contradiction
from unistore.store.reader import Store
from unistore.zarr3.array import Array
from unistore.zarr3.cache import CHUNKS

__all__ = ["block_offsets", "open_blocks", "samples_of_a_chunk", "shuffles_in_blocks"]

ROOM = 0.8
"""Part of the cache of decoded chunks that the open groups of a block shuffle are planned to take."""
EDGE = 4
"""Chunks of a block where its edges fall inside chunks: one more of so many is decoded."""
MOST_BLOCKS = 1 << 18
"""Larger stores get larger blocks: an epoch's order of blocks is then there in hundredths of a second."""

MOST_OPEN = 1 << 21
"""Samples whose order is drawn at once, which takes a tenth of a second and 16 MB."""

MOST_DECODED = 8
"""Samples decoded for each one delivered that a full shuffle may cost."""


def block_offsets(store: Store, samples: int) -> NDArray[np.int64]:
    """Blocks of consecutive samples that lie in the same chunks of the largest array.

    Samples lie in the order of their rows, so neighbours share chunks. A block is one chunk where samples are
    rows, and a few where they differ in length, because its edges then fall inside chunks.

    Parameters
    ----------
    store
        Where samples are read from.
    samples
        Number of samples of the dataset: all of the store's, or those of some splits.

    Returns
    -------
    (blocks + 1,) int64 offsets, see `unistore.order.blocks.BlockShuffle`.
    """
    return uniform_blocks(samples, _block(store, samples)[0])


def open_blocks(store: Store, samples: int) -> int:
    """How many of these blocks are shuffled together: they stay in the cache of decoded chunks; at least 1.

    Parameters
    ----------
    store, samples
        As for `block_offsets`.
    """
    size, nbytes = _block(store, samples)
    return max(1, min(int(CHUNKS.limit * ROOM // nbytes), MOST_OPEN // size))


def shuffles_in_blocks(store: Store, samples: int) -> bool:
    """Whether a full shuffle would decode many samples for each one that it delivers.

    So it is where a chunk holds many, and not all chunks stay in the cache of decoded ones.

    Parameters
    ----------
    store, samples
        As for `block_offsets`.
    """
    if not samples:
        return False
    together, chunk = samples_of_a_chunk(store, samples)
    return together > MOST_DECODED and samples / together * chunk > CHUNKS.limit * ROOM


def _block(store: Store, samples: int) -> tuple[int, float]:
    """Samples of a block, and its decoded bytes."""
    if not samples:
        return 1, 1.0
    together, chunk = samples_of_a_chunk(store, samples)
    chunks = 1 if together == int(together) else EDGE
    size = max(1, round(chunks * together), -(-samples // MOST_BLOCKS))
    return size, max(float(chunk), size / together * chunk)


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
    if not store.paths():
        raise contradiction(store, "zarr.json", "lists no array")
    largest = max((store.array(path) for path in store.paths()), key=_decoded_bytes)
    chunk = math.prod(largest.chunk_shape) * largest.dtype.itemsize
    whole_rows = largest.chunk_shape[1:] == largest.shape[1:]
    if whole_rows and largest.shape[0] == samples:
        return float(largest.chunk_shape[0]), chunk
    return chunk * samples / max(1, _decoded_bytes(largest)), chunk


def _decoded_bytes(array: Array) -> int:
    return math.prod(array.shape) * array.dtype.itemsize
