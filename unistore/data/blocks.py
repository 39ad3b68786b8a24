"""Blocks of samples that share chunks, for block shuffle."""

from __future__ import annotations

import math

from unistore.order.sequences import uniform_blocks
from unistore.schemas.indices import contradiction
from unistore.store.reader import Store
from unistore.system.types import Int64s
from unistore.zarr3.array import StoredArray
from unistore.zarr3.cache import CHUNKS
from unistore.zarr3.gather import POOL_BYTES

CACHE_SHARE = 0.95  # Share of the memory for decoded chunks that the open blocks may take
UNALIGNED_CHUNKS = 4  # Chunks per block if block edges fall inside chunks: each block then decodes one more
# Stores with more get larger blocks, so that shuffling the blocks takes hundredths of a second
MAX_BLOCKS = 1 << 18
MAX_DECODED = 8  # Samples that a full shuffle may decode per delivered sample


class Blocks:
    """Blocks of consecutive samples of a store that share chunks of the largest array.

    A block has one chunk if samples are rows, and a few chunks if samples differ in length, because edges
    of blocks then lie inside chunks.

    Parameters
    ----------
    store : Store
        The store.
    samples : int
        Number of samples.
    """

    def __init__(self, store: Store, samples: int) -> None:
        self._samples = samples
        self._room = _room(store, samples)
        self._per_chunk, self._chunk_bytes = samples_per_chunk(store, samples) if samples else (1.0, 1)
        chunks = 1 if self._per_chunk == int(self._per_chunk) else UNALIGNED_CHUNKS
        self._size = max(1, round(chunks * self._per_chunk), -(-samples // MAX_BLOCKS))

    @property
    def offsets(self) -> Int64s:
        """First sample of each block, and the number of samples: (blocks + 1,) int64."""
        return uniform_blocks(self._samples, self._size)

    @property
    def open(self) -> int:
        """Number of blocks whose decoded chunks fit into the cache together, at least 1."""
        block_bytes = max(self._chunk_bytes, self._size / self._per_chunk * self._chunk_bytes)
        return max(1, int(self._room // block_bytes))

    @property
    def are_needed(self) -> bool:
        """Whether a full shuffle would decode many samples for each sample that it delivers.

        That is so if a chunk has many samples and the decoded chunks do not all fit into the cache.
        """
        decoded = self._samples / self._per_chunk * self._chunk_bytes
        return self._per_chunk > MAX_DECODED and decoded > self._room


def _room(store: Store, samples: int) -> float:
    largest = largest_array(store)
    if not (largest.pooled and len(largest) == samples):
        return CACHE_SHARE * CHUNKS.limit
    first = store.example
    beside = (first.array(path) for path in first.paths())
    pooled = [array for array in beside if array.pooled and len(array) == first.sample_count]
    beside_bytes = sum(samples * _row_bytes(array) for array in pooled)
    return CACHE_SHARE * POOL_BYTES * samples * _row_bytes(largest) / max(1, beside_bytes)


def samples_per_chunk(store: Store, samples: int) -> tuple[float, int]:
    """Return the mean number of samples per chunk of the largest array, and the bytes of such a chunk."""
    largest = largest_array(store)
    chunk_bytes = math.prod(largest.chunk_shape) * largest.dtype.itemsize
    whole_rows = largest.chunk_shape[1:] == largest.shape[1:]
    if whole_rows and largest.shape[0] == samples:
        return float(largest.chunk_shape[0]), chunk_bytes
    decoded = len(largest) * _row_bytes(largest)
    return chunk_bytes * samples / max(1, decoded), chunk_bytes


def largest_array(store: Store) -> StoredArray:
    """Return the array of a store with the most bytes."""
    first = store.example
    if not first.paths():
        raise contradiction(store, "zarr.json", "lists no array")
    arrays = map(first.array, first.paths())
    largest = max(arrays, key=lambda array: len(array) * _row_bytes(array))
    return store.array(largest.path)


def _row_bytes(array: StoredArray) -> int:
    return math.prod(array.shape[1:]) * array.dtype.itemsize
