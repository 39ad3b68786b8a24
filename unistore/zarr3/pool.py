"""Rows of many chunks at once: from a pool of decoded chunks, or from verified uncompressed ones."""

from __future__ import annotations

import math
import threading
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.zarr3.cache import CHUNKS, renew_after_fork
from unistore.zarr3.chunks import ChunkReader
from unistore.zarr3.gather import read_whole
from unistore.zarr3.sharding import EMPTY
from unistore.zarr3.storage import SupportsFileIdentity

MIN_CHUNK_ROWS = 16
"""Fewest rows of a chunk for which a pool is faster."""
MIN_CHUNKS = 64
"""Least capacity of a pool in chunks; arrays with larger chunks have no pool."""

POOL_BYTES = 320 << 20
"""Memory of all pools of a process: as much as a block shuffle of small rows needs to mix well."""
MAX_POOLED_PLAIN = 64 << 20
"""Rows of larger uncompressed arrays are read one by one, from the page cache that processes share."""
MAX_SINGLE_ROWS = 4
"""Where more rows of a missing chunk are wanted (on average), whole chunks are read."""


class VerifiedRows:
    """Reads single rows of uncompressed chunks once their checksum was verified. Not thread-safe.

    A chunk is verified again when its file has changed: its device, inode, size, mtime or ctime.
    """

    def __init__(self, reader: ChunkReader) -> None:
        self._reader = reader
        self._checked = np.zeros(reader.count, np.bool_)
        self._files: dict[str, tuple[int, ...]] = {}

    @staticmethod
    def supports(reader: ChunkReader) -> bool:
        """Return whether chunks are uncompressed whole rows, in a storage that can detect changed files."""
        return (
            reader.uncompressed
            and isinstance(reader.storage, SupportsFileIdentity)
            and reader.row_stride == 1
        )

    def read(self, chunks: NDArray[np.int64], inside: NDArray[np.int64], out: NDArray[Any]) -> bool:
        """Read rows `inside` of `chunks`, (n,) each and ascending, into `out` (n, columns).

        False, and nothing read, where a chunk is absent.
        """
        located = self._reader.locate(chunks.tolist())
        if EMPTY in located.offsets:
            return False
        self._check(chunks, located.keys)
        nbytes = out.shape[1] * out.itemsize
        offsets = (np.array(located.offsets) + inside * nbytes).tolist()
        raws = self._reader.storage.read_many(located.keys, offsets, [nbytes] * len(offsets))
        out.reshape(-1).view(np.uint8)[:] = np.frombuffer(b"".join(raws), np.uint8)
        return True

    def _check(self, chunks: NDArray[np.int64], keys: list[str]) -> None:
        reader = self._reader
        storage = reader.storage
        assert isinstance(storage, SupportsFileIdentity)
        chunk_of_key = dict(zip(keys, chunks.tolist(), strict=True))
        for key, chunk in chunk_of_key.items():
            identity = storage.identity(key)
            if self._files.get(key) != identity:
                first = chunk // reader.per_shard * reader.per_shard
                self._checked[first : first + reader.per_shard] = False
                self._files[key] = identity
        missing = np.unique(chunks[~self._checked[chunks]])
        # decoding a chunk checks it
        for _ in reader.decode(reader.locate(missing.tolist()), [None] * len(missing)):
            pass
        self._checked[missing] = True


_active_pools: weakref.WeakSet[ChunkPool] = weakref.WeakSet()


def forget_chunks() -> None:
    """Drop all decoded chunks of this process, for measurements; nothing may be reading."""
    CHUNKS.renew()
    for pool in list(_active_pools):
        pool.renew()


class ChunkPool:
    """A FIFO cache of decoded chunks of one array in one buffer: one ``np.take`` reads rows of many chunks.

    Safe with threads and forks. All pools of a process together take `POOL_BYTES`, each in proportion to its
    array.
    """

    def __init__(self, reader: ChunkReader) -> None:
        self._reader = reader
        self._step = reader.metadata.chunk_shape[0]
        self._chunks = -(-reader.metadata.shape[0] // self._step)
        self._columns = math.prod(reader.metadata.chunk_shape[1:])
        self._chunk_bytes = reader.metadata.chunk_bytes
        self._array_bytes = self._chunks * self._chunk_bytes
        large = self._array_bytes > min(MAX_POOLED_PLAIN, POOL_BYTES)
        self._single_rows = VerifiedRows(reader) if large and VerifiedRows.supports(reader) else None
        self.renew()
        renew_after_fork(self)

    @staticmethod
    def supports(reader: ChunkReader) -> bool:
        """Return whether the chunks of an array are many small rows each."""
        metadata = reader.metadata
        return metadata.chunk_shape[0] >= MIN_CHUNK_ROWS and metadata.chunk_shape[1:] == metadata.shape[1:]

    @property
    def fits(self) -> bool:
        """Whether enough chunks can be kept; otherwise `take` reads nothing."""
        return MIN_CHUNKS * self._chunk_bytes <= POOL_BYTES

    def renew(self) -> None:
        """Drop everything and take a fresh lock."""
        self._lock = threading.Lock()
        self._memory = np.empty((0, 0))
        self._next = 0

    def take(self, rows: NDArray[np.int64], out: NDArray[Any]) -> bool:
        """Read rows (n,) into `out` (n, …); False if another thread does or chunks are too large to keep."""
        if not self.fits or not self._lock.acquire(blocking=False):
            return False
        try:
            if not len(self._memory):
                self._allocate()
            capacity = self._capacity()
            flat = out.reshape(len(rows), self._columns)
            chunks, inside = np.divmod(rows, self._step)
            if self._read_alone(chunks, inside, flat):
                return True
            together = len(rows) if capacity >= self._chunks else capacity
            for start in range(0, len(rows), together):
                part = slice(start, start + together)
                places = self._slots(chunks[part], capacity) * self._step + inside[part]
                # mode "raise" would copy `out`
                np.take(self._rows, places, axis=0, out=flat[part], mode="clip")
        finally:
            self._lock.release()
        return True

    def _read_alone(self, chunks: NDArray[np.int64], inside: NDArray[np.int64], out: NDArray[Any]) -> bool:
        """Read rows without their chunks, if most chunks are missing and few rows of each are wanted."""
        # a shared cache keeps whole chunks
        if self._single_rows is None or self._reader.shared is not None:
            return False
        missing = chunks[self._slot_of[chunks] < 0]
        if 2 * len(missing) < len(chunks) or len(missing) > MAX_SINGLE_ROWS * len(np.unique(missing)):
            return False
        order = np.argsort(chunks)
        rows = np.empty_like(out)
        if not self._single_rows.read(chunks[order], inside[order], rows):
            return False
        out[order] = rows
        return True

    def _allocate(self) -> None:
        slots = min(self._chunks, POOL_BYTES // self._chunk_bytes)
        self._memory = np.empty((slots, self._step * self._columns), self._reader.metadata.dtype)
        self._rows = self._memory.reshape(-1, self._columns)
        self._slot_of = np.full(self._chunks, -1, np.int32)
        self._chunk_in = np.full(slots, -1, np.int64)
        self._in_use = np.zeros(slots, np.bool_)
        _active_pools.add(self)

    def _capacity(self) -> int:
        """Return how many chunks may be kept now."""
        share = POOL_BYTES * self._array_bytes // sum(pool._array_bytes for pool in _active_pools)
        return min(len(self._memory), max(MIN_CHUNKS, share // self._chunk_bytes))

    def _slots(self, chunks: NDArray[np.int64], capacity: int) -> NDArray[np.int64]:
        """Return the slots of chunks (n,), at most `capacity` different ones; missing chunks are read."""
        slots = self._slot_of[chunks]
        missing = slots < 0
        if missing.any():
            self._read(np.unique(chunks[missing]), slots[~missing], capacity)
            slots = self._slot_of[chunks]
        return slots.astype(np.int64)

    def _read(self, chunks: NDArray[np.int64], in_use: NDArray[np.int32], capacity: int) -> None:
        """Read chunks into the slots that were filled longest ago, except slots that this call reads from."""
        self._in_use[in_use] = True
        oldest = (self._next + np.arange(min(capacity, len(chunks) + len(in_use)))) % capacity
        free = oldest[~self._in_use[oldest]][: len(chunks)]
        self._in_use[in_use] = False
        self._next = (int(free[-1]) + 1) % capacity
        evicted = self._chunk_in[free]
        self._slot_of[evicted[evicted >= 0]] = -1
        # until the chunks are read, the slots hold nothing: reading may fail
        self._chunk_in[free] = -1
        numbers = (chunks * self._reader.row_stride).tolist()
        for _ in read_whole(self._reader, numbers, [self._memory[slot] for slot in free.tolist()]):
            pass
        self._chunk_in[free] = chunks
        self._slot_of[chunks] = free
