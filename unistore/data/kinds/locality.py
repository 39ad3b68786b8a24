"""Which samples share chunks, for block shuffle."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from unistore.order.shuffles import uniform_blocks
from unistore.schemas.indices import contradiction
from unistore.store.reader import Store
from unistore.zarr3.array import StoredArray
from unistore.zarr3.cache import CHUNKS
from unistore.zarr3.gather import POOL_BYTES

CACHE_SHARE = 0.95
"""Share of the memory for decoded chunks that the open blocks may take."""
UNALIGNED_CHUNKS = 4
"""Chunks per block if block edges fall inside chunks: each block then decodes one more."""
MAX_BLOCKS = 1 << 18
"""Stores with more get larger blocks, so that shuffling the blocks takes hundredths of a second."""
MAX_DECODED = 8
"""Samples that a full shuffle may decode per delivered sample."""


def block_offsets(store: Store, samples: int) -> NDArray[np.int64]:
    """Blocks of consecutive samples that share chunks of the largest array.

    A block is one chunk if samples are rows, and a few chunks if samples differ in length, as its edges then
    fall inside chunks.

    Parameters
    ----------
    store
        The store.
    samples
        Number of samples: all of the store, or those of some splits.

    Returns
    -------
    (blocks + 1,) int64 offsets, see `unistore.order.shuffles.BlockShuffle`.
    """
    return uniform_blocks(samples, _block(store, samples)[0])


def open_blocks(store: Store, samples: int) -> int:
    """Number of these blocks whose decoded chunks are kept together; at least 1.

    Parameters
    ----------
    store, samples
        As for `block_offsets`.
    """
    return max(1, int(_room(store, samples) // _block(store, samples)[1]))


def shuffles_in_blocks(store: Store, samples: int) -> bool:
    """Whether a full shuffle would decode many samples per delivered sample.

    That is so if a chunk has many samples, and not all decoded chunks can be kept.

    Parameters
    ----------
    store, samples
        As for `block_offsets`.
    """
    if not samples:
        return False
    per_chunk, chunk_bytes = samples_per_chunk(store, samples)
    return per_chunk > MAX_DECODED and samples / per_chunk * chunk_bytes > _room(store, samples)


def _room(store: Store, samples: int) -> float:
    """Bytes for the decoded chunks of the largest array in open blocks."""
    largest = _largest(store)
    if not (largest.pooled and len(largest) == samples):
        return CACHE_SHARE * CHUNKS.limit
    beside = (store.array(path) for path in store.paths())
    pooled = sum(_decoded_bytes(each) for each in beside if each.pooled and len(each) == samples)
    return CACHE_SHARE * POOL_BYTES * _decoded_bytes(largest) / max(1, pooled)


def _block(store: Store, samples: int) -> tuple[int, float]:
    """Samples of a block, and the decoded bytes of its chunks."""
    if not samples:
        return 1, 1.0
    per_chunk, chunk_bytes = samples_per_chunk(store, samples)
    chunks = 1 if per_chunk == int(per_chunk) else UNALIGNED_CHUNKS
    size = max(1, round(chunks * per_chunk), -(-samples // MAX_BLOCKS))
    return size, max(float(chunk_bytes), size / per_chunk * chunk_bytes)


def samples_per_chunk(store: Store, samples: int) -> tuple[float, int]:
    """Samples per chunk of the largest array, and bytes of a decoded chunk.

    Parameters
    ----------
    store, samples
        As for `block_offsets`.

    Returns
    -------
    Samples per chunk, an average if they differ in length, and below 1 if a sample takes several chunks;
    bytes.
    """
    largest = _largest(store)
    chunk_bytes = math.prod(largest.chunk_shape) * largest.dtype.itemsize
    whole_rows = largest.chunk_shape[1:] == largest.shape[1:]
    if whole_rows and largest.shape[0] == samples:
        return float(largest.chunk_shape[0]), chunk_bytes
    return chunk_bytes * samples / max(1, _decoded_bytes(largest)), chunk_bytes


def _largest(store: Store) -> StoredArray:
    if not store.paths():
        raise contradiction(store, "zarr.json", "lists no array")
    return max((store.array(path) for path in store.paths()), key=_decoded_bytes)


def _decoded_bytes(array: StoredArray) -> int:
    return math.prod(array.shape) * array.dtype.itemsize
