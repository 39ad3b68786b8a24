"""The decoded chunks of a process, bounded in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict

from unistore.system.types import AnyArray

# A chunk: token of its reader, and its number.
Key = tuple[int, int]

# Misses that are remembered, in addition to as many as there are cached chunks.
MIN_TRACKED_MISSES = 4096


class ChunkCache:
    """Decoded chunks, `limit` bytes of them, of which the least recently used go first.

    A chunk is kept at its second miss. Chunks of more than an eighth of the limit are not kept.
    """

    # Writing every chunk to memory outside the CPU caches would cost about half as much as decoding it

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.renew()

    def renew(self) -> None:
        """Drop everything and take a fresh lock, as one held at a fork is never released in the child."""
        self._lock = threading.Lock()
        self._chunks: OrderedDict[Key, AnyArray] = OrderedDict()
        self.nbytes = 0
        self._missed: tuple[set[Key], set[Key]] = set(), set()

    def keeps(self, nbytes: int) -> bool:
        """Return whether chunks of `nbytes` are kept at all."""
        return nbytes * 8 <= self.limit

    def get(self, key: Key) -> AnyArray | None:
        """Return a chunk that must not be written to, or None."""
        with self._lock:
            chunk = self._chunks.get(key)
            if chunk is not None:
                self._chunks.move_to_end(key)
            return chunk

    def missed_recently(self, key: Key) -> bool:
        """Record a miss. True if this chunk was missed before not long ago, and should be kept now."""
        new, old = self._missed
        if key in new or key in old:
            return True
        new.add(key)
        if len(new) >= MIN_TRACKED_MISSES + len(self._chunks):
            self._missed = set(), new
        return False

    def put(self, key: Key, chunk: AnyArray) -> None:
        """Keep a chunk that nobody will write to, and drop the first ones."""
        with self._lock:
            old = self._chunks.pop(key, None)
            self.nbytes += chunk.nbytes - (0 if old is None else old.nbytes)
            self._chunks[key] = chunk
            while self.nbytes > self.limit:
                self.nbytes -= self._chunks.popitem(last=False)[1].nbytes


# The decoded chunks of this process.
CHUNKS = ChunkCache(64 << 20)
