"""Bounded caches of one process: decoded chunks, and shard indexes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.zarr3.forks import renew_after_fork

__all__ = ["CHUNKS", "ChunkCache", "IndexCache"]


class ChunkCache:
    """Decoded chunks by key; the least recently used go first. Safe with threads and forks.

    Parameters
    ----------
    limit
        Bytes; chunks of more than an eighth of it are not kept.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Drop everything and take a fresh lock."""
        self._lock = threading.Lock()
        self._chunks: OrderedDict[Hashable, NDArray[Any]] = OrderedDict()
        self._bytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes held now."""
        return self._bytes

    def keeps(self, nbytes: int) -> bool:
        """Whether chunks of `nbytes` are kept at all."""
        return nbytes * 8 <= self.limit

    def get(self, key: Hashable) -> NDArray[Any] | None:
        """A chunk that must not be written to, or None."""
        with self._lock:
            chunk = self._chunks.get(key)
            if chunk is not None:
                self._chunks.move_to_end(key)
            return chunk

    def put(self, key: Hashable, chunk: NDArray[Any]) -> None:
        """Keep a chunk that nobody will write to."""
        with self._lock:
            old = self._chunks.pop(key, None)
            self._bytes += chunk.nbytes - (0 if old is None else old.nbytes)
            self._chunks[key] = chunk
            while self._bytes > self.limit:
                _, dropped = self._chunks.popitem(last=False)
                self._bytes -= dropped.nbytes


CHUNKS = ChunkCache(64 << 20)
"""The decoded chunks of this process."""


class IndexCache:
    """Indexes of an array's shards in one table, looked up for whole batches. Safe with threads and forks.

    Parameters
    ----------
    shards, chunks
        Shards of the array; chunks of a shard.
    load
        Reads the (chunks, 2) index of one shard.
    limit
        Bytes of the table; it holds one shard at least.
    """

    def __init__(
        self, shards: int, chunks: int, load: Callable[[int], NDArray[np.int64]], limit: int = 64 << 20
    ) -> None:
        self._shards = shards
        self._chunks = chunks
        self._load = load
        self._capacity = max(1, min(shards, limit // (16 * chunks)))
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Drop everything and take a fresh lock."""
        self._lock = threading.Lock()
        self._slot_of = np.full(self._shards, -1, np.int32)
        self._shard_in = np.full(self._capacity, -1, np.int64)
        self._table = np.empty((self._capacity, self._chunks, 2), np.int64)  # pages appear as they are filled
        self._next = 0

    def entries(self, shard: NDArray[np.int64], chunk: NDArray[np.int64]) -> NDArray[np.int64]:
        """Offsets and sizes, (n, 2), of chunks given by the number of their shard and their number in it."""
        with self._lock:
            slots = self._slot_of[shard]
            if not len(slots) or slots.min() >= 0:
                return self._table[slots, chunk]
        needed = np.unique(shard)
        if len(needed) > self._capacity:
            half = len(shard) // 2
            return np.concatenate(
                [self.entries(shard[:half], chunk[:half]), self.entries(shard[half:], chunk[half:])]
            )
        missing = needed[self._slot_of[needed] < 0]
        loaded = {number: self._load(number) for number in missing.tolist()}
        with self._lock:  # whatever was missing is inserted and all of it looked up in one go
            for number in needed[self._slot_of[needed] < 0].tolist():
                if number not in loaded:  # evicted by another thread meanwhile
                    loaded[number] = self._load(number)
                self._insert(number, loaded[number], needed)
            return self._table[self._slot_of[shard], chunk]

    def _insert(self, number: int, index: NDArray[np.int64], needed: NDArray[np.int64]) -> None:
        slot = self._next
        while self._shard_in[slot] >= 0 and self._shard_in[slot] in needed:
            slot = (slot + 1) % self._capacity
        if self._shard_in[slot] >= 0:
            self._slot_of[self._shard_in[slot]] = -1
        self._shard_in[slot] = number
        self._slot_of[number] = slot
        self._table[slot] = index
        self._next = (slot + 1) % self._capacity
