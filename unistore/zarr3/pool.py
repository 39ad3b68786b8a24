"""Decoded chunks of one array side by side in memory, so that rows of many chunks are taken at once."""

from __future__ import annotations

import math
import threading
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.zarr3.cache import CHUNKS
from unistore.zarr3.checked import CheckedRows
from unistore.zarr3.chunks import ChunkReader
from unistore.zarr3.forks import renew_after_fork
from unistore.zarr3.sharding import EMPTY

__all__ = ["ChunkPool"]

LEAST_ROWS = 16
"""Rows of a chunk from which on a pool pays."""
LEAST_CHUNKS = 64
"""Chunks that must fit into the memory of all pools, and that each pool has room for at least."""

FEW_ROWS = 4
"""Rows of a missing chunk up to which they are read alone, where chunks are stored as they are."""

_used: weakref.WeakSet[ChunkPool] = weakref.WeakSet()


class ChunkPool:
    """A cache of chunks of whole rows; the first that came go first. Safe with threads and forks.

    All pools together take as much memory as `CHUNKS`, each in proportion to its array.

    Parameters
    ----------
    reader
        Of an array whose chunks are whole rows and stored in C order.
    """

    def __init__(self, reader: ChunkReader) -> None:
        shape, chunk = reader.metadata.shape, reader.metadata.chunk_shape
        self._reader = reader
        self._step, self._chunks = chunk[0], -(-shape[0] // chunk[0])
        self._columns = math.prod(chunk[1:])
        self._chunk_bytes = reader.metadata.chunk_bytes
        self._array_bytes = self._chunks * self._chunk_bytes
        large = self._array_bytes > CHUNKS.limit
        self._alone = CheckedRows(reader) if large and CheckedRows.suits(reader) else None
        self.renew()
        renew_after_fork(self)

    @staticmethod
    def suits(reader: ChunkReader) -> bool:
        """Whether the chunks of an array are many small rows each."""
        metadata = reader.metadata
        return (
            len(metadata.shape) > 0
            and metadata.chunk_shape[0] >= LEAST_ROWS
            and metadata.chunk_shape[1:] == metadata.shape[1:]
            and metadata.codecs.direct
            and metadata.chunk_bytes > 0
        )

    def renew(self) -> None:
        """Drop everything and take a fresh lock."""
        self._lock = threading.Lock()
        self._memory = np.empty((0, 0))
        self._next = 0

    def take(self, rows: NDArray[np.int64], out: NDArray[Any]) -> bool:
        """Read rows (n,) into `out` (n, …), unless another thread does or chunks are too large to keep.

        Returns
        -------
        Whether the rows were read.
        """
        fits = LEAST_CHUNKS * self._chunk_bytes <= CHUNKS.limit
        if not fits or not self._lock.acquire(blocking=False):
            return False
        try:
            if not len(self._memory):
                self._begin()
            room = self._room()
            flat = out.reshape(len(rows), self._columns)
            chunks, inside = np.divmod(rows, self._step)
            if self._read_alone(chunks, inside, flat):
                return True
            together = len(rows) if room >= self._chunks else room
            for start in range(0, len(rows), together):
                part = slice(start, start + together)
                places = self._slots(chunks[part], room) * self._step + inside[part]
                np.take(self._rows, places, axis=0, out=flat[part], mode="clip")  # "raise" copies `out`
        finally:
            self._lock.release()
        return True

    def _read_alone(self, chunks: NDArray[np.int64], inside: NDArray[np.int64], out: NDArray[Any]) -> bool:
        """Read rows without their chunks, if most chunks are missing and few rows of each are wanted."""
        if self._alone is None or self._reader.shared is not None:  # what is shared is kept as chunks
            return False
        missing = chunks[self._slot_of[chunks] < 0]
        if 2 * len(missing) < len(chunks) or len(missing) > FEW_ROWS * len(np.unique(missing)):
            return False
        order = np.argsort(chunks)
        rows = np.empty_like(out)
        if not self._alone.read(chunks[order], inside[order], rows):
            return False
        out[order] = rows
        return True

    def _begin(self) -> None:
        slots = min(self._chunks, CHUNKS.limit // self._chunk_bytes)
        self._memory = np.empty((slots, self._step * self._columns), self._reader.metadata.dtype)
        self._rows = self._memory.reshape(-1, self._columns)
        self._slot_of = np.full(self._chunks, -1, np.int32)
        self._chunk_in = np.full(slots, -1, np.int64)
        self._wanted = np.zeros(slots, np.bool_)
        _used.add(self)

    def _room(self) -> int:
        """Chunks that may be kept now."""
        share = CHUNKS.limit * self._array_bytes // sum(pool._array_bytes for pool in _used)
        return min(len(self._memory), max(LEAST_CHUNKS, share // self._chunk_bytes))

    def _slots(self, chunks: NDArray[np.int64], room: int) -> NDArray[np.int64]:
        """Where chunks (n,) lie, at most `room` different ones; those that are missing are read."""
        slots = self._slot_of[chunks]
        missing = slots < 0
        if missing.any():
            self._read(np.unique(chunks[missing]), slots[~missing], room)
            slots = self._slot_of[chunks]
        return slots.astype(np.int64)

    def _read(self, chunks: NDArray[np.int64], wanted: NDArray[np.int32], room: int) -> None:
        """Read chunks into the slots that were filled longest ago, but for those that are wanted now."""
        self._wanted[wanted] = True
        turn = (self._next + np.arange(min(room, len(chunks) + len(wanted)))) % room
        free = turn[~self._wanted[turn]][: len(chunks)]
        self._wanted[wanted] = False
        self._next = (int(free[-1]) + 1) % room
        left = self._chunk_in[free]
        self._slot_of[left[left >= 0]] = -1
        self._chunk_in[free] = -1
        located = self._reader.locate((chunks * self._reader.row_stride).tolist())
        targets = [self._memory[slot] for slot in free.tolist()]
        if EMPTY in located.offsets:
            present = [at for at, offset in enumerate(located.offsets) if offset != EMPTY]
            for at in set(range(len(targets))).difference(present):
                targets[at][...] = self._reader.metadata.fill_value
            located, targets = located.pick(present), [targets[at] for at in present]
        self._reader.fill(located, targets)
        self._chunk_in[free] = chunks
        self._slot_of[chunks] = free
