"""Bounded caches of one process, for decoded chunks and shard indexes; renewed in forked children."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Protocol

from numpy.typing import NDArray

MIN_TRACKED_MISSES = 4096
"""Misses that are remembered, in addition to as many as there are cached chunks."""

OVERHEAD = 400
"""Bytes that a small index costs besides its numbers."""


class Renewable(Protocol):
    """Has locks and caches: a lock that another thread held at a fork is never released in the child."""

    def renew(self) -> None:
        """Replace every lock and drop every cache."""


_alive: weakref.WeakSet[Renewable] = weakref.WeakSet()


def renew_after_fork(renewable: Renewable) -> None:
    """Call ``renewable.renew()`` in every child forked while it lives."""
    _alive.add(renewable)


def _renew_all() -> None:
    for renewable in list(_alive):
        renewable.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)


class ChunkCache:
    """`limit` bytes of decoded chunks; the least recently used go first. Safe with threads and forks.

    A chunk is kept at its second miss: writing every chunk to memory outside the CPU caches would cost about
    half as much as decoding it. Chunks of more than an eighth of the limit are not kept.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Drop everything and take a fresh lock."""
        self._lock = threading.Lock()
        self._chunks: OrderedDict[Hashable, NDArray[Any]] = OrderedDict()
        self.nbytes = 0
        self._missed: tuple[set[Hashable], set[Hashable]] = set(), set()

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

    def missed_recently(self, key: Hashable) -> bool:
        """Record a miss; True if this chunk was missed before not long ago, and should be kept now."""
        new, old = self._missed
        if key in new or key in old:
            return True
        new.add(key)
        if len(new) >= MIN_TRACKED_MISSES + len(self._chunks):
            self._missed = set(), new
        return False

    def put(self, key: Hashable, chunk: NDArray[Any]) -> None:
        """Keep a chunk that nobody will write to."""
        with self._lock:
            old = self._chunks.pop(key, None)
            self.nbytes += chunk.nbytes - (0 if old is None else old.nbytes)
            self._chunks[key] = chunk
            while self.nbytes > self.limit:
                self.nbytes -= self._chunks.popitem(last=False)[1].nbytes


CHUNKS = ChunkCache(64 << 20)
"""The decoded chunks of this process."""


class IndexCache:
    """Indexes of an array's shards; the oldest go first. Safe with threads and forks.

    Parameters
    ----------
    load
        Reads the index of a shard: offset and size of every chunk, one behind the other, as 64-bit integers.
    limit
        Bytes, `OVERHEAD` included; one index is kept at least.
    """

    def __init__(self, load: Callable[[int], memoryview], limit: int = 64 << 20) -> None:
        self.limit = limit
        self._load = load
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Drop everything and take a fresh lock."""
        self._lock = threading.Lock()
        self._indexes: dict[int, memoryview] = {}
        self.nbytes = 0

    def get(self, shard: int) -> memoryview:
        """Index of a shard, read where it is not known."""
        index = self._indexes.get(shard)
        return self.put(shard, self._load(shard)) if index is None else index

    def missing(self, shards: Iterable[int]) -> list[int]:
        """Those of some shards whose indexes are not known."""
        return [shard for shard in shards if shard not in self._indexes]

    def put(self, shard: int, index: memoryview) -> memoryview:
        """Keep the index of a shard."""
        with self._lock:
            if self._indexes.setdefault(shard, index) is index:
                self.nbytes += index.nbytes + OVERHEAD
            while self.nbytes > self.limit and len(self._indexes) > 1:
                self.nbytes -= self._indexes.pop(next(iter(self._indexes))).nbytes + OVERHEAD
        return index
