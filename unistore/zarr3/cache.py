"""Bounded caches of one process, for decoded chunks and shard indexes; renewed in forked children."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from numpy.typing import NDArray

T = TypeVar("T", NDArray[Any], memoryview)

MIN_TRACKED_MISSES = 4096
"""Misses that are remembered, in addition to as many as there are cached chunks."""


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


os.register_at_fork(after_in_child=_renew_all)


class _BoundedCache(Generic[T]):
    """Arrays or memoryviews by key, `limit` bytes of them. Safe with threads and forks."""

    overhead = 0
    """Bytes that an item costs besides its own."""
    least = 0
    """Items that are kept whatever their bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Drop everything and take a fresh lock."""
        self._lock = threading.Lock()
        self._items: OrderedDict[Hashable, T] = OrderedDict()
        self.nbytes = 0

    def put(self, key: Hashable, item: T) -> T:
        """Keep an item that nobody will write to, and drop the first ones."""
        with self._lock:
            old = self._items.pop(key, None)
            self.nbytes += item.nbytes - old.nbytes if old is not None else item.nbytes + self.overhead
            self._items[key] = item
            while self.nbytes > self.limit and len(self._items) > self.least:
                self.nbytes -= self._items.popitem(last=False)[1].nbytes + self.overhead
        return item


class ChunkCache(_BoundedCache[NDArray[Any]]):
    """Decoded chunks by key; the least recently used go first.

    A chunk is kept at its second miss: writing every chunk to memory outside the CPU caches would cost about
    half as much as decoding it. Chunks of more than an eighth of the limit are not kept.
    """

    def renew(self) -> None:
        """Drop everything and take a fresh lock."""
        super().renew()
        self._missed: tuple[set[Hashable], set[Hashable]] = set(), set()

    def keeps(self, nbytes: int) -> bool:
        """Return whether chunks of `nbytes` are kept at all."""
        return nbytes * 8 <= self.limit

    def get(self, key: Hashable) -> NDArray[Any] | None:
        """Return a chunk that must not be written to, or None."""
        with self._lock:
            chunk = self._items.get(key)
            if chunk is not None:
                self._items.move_to_end(key)
            return chunk

    def missed_recently(self, key: Hashable) -> bool:
        """Record a miss; True if this chunk was missed before not long ago, and should be kept now."""
        new, old = self._missed
        if key in new or key in old:
            return True
        new.add(key)
        if len(new) >= MIN_TRACKED_MISSES + len(self._items):
            self._missed = set(), new
        return False


CHUNKS = ChunkCache(64 << 20)
"""The decoded chunks of this process."""


class IndexCache(_BoundedCache[memoryview]):
    """Indexes of an array's shards, at least one; the oldest go first.

    ``load(shard)`` reads an index: offset and size of every chunk, one behind the other, as 64-bit integers.
    """

    overhead = 400
    least = 1

    def __init__(self, load: Callable[[int], memoryview], limit: int = 64 << 20) -> None:
        self._load = load
        super().__init__(limit)

    def get(self, shard: int) -> memoryview:
        """Return the index of a shard, read where it is not cached."""
        index = self._items.get(shard)
        return self.put(shard, self._load(shard)) if index is None else index

    def missing(self, shards: Iterable[int]) -> list[int]:
        """Return those of some shards whose indexes are not cached."""
        return [shard for shard in shards if shard not in self._items]
