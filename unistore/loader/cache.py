"""A cache of decoded samples: one memory-mapped file that the workers of a Loader share."""

# The sparse file begins with the number of allocated bytes and an index: the offset of each sample. A
# process allocates a region for itself under a lock and appends samples to it. It writes an offset into the
# index, without a lock, after the sample itself, so that samples in the index are complete even if a
# process is killed. A sample that two processes add at the same time is stored twice and found once. The
# file has no name: it ends with the last process that uses it

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import tempfile
import weakref
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from unistore.errors import InputError, Problem
from unistore.memory import reserve
from unistore.system.hints import AnyArray, Int64s, Shape
from unistore.system.sizes import parse_bytes

ALIGNMENT = 64
SizeT = TypeVar("SizeT", int, Int64s)
_NUMBER = struct.Struct("=q")
# Bytes of the sparse file under ``cache="all"``: more than any disk that samples would be cached on.
UNLIMITED = 1 << 42
# A process allocates 1/256 of the capacity at a time, at most 64 MiB; more for a larger sample.
REGIONS = 256
MAX_REGION = 64 << 20


def parse_size(size: str | int) -> int:
    """Parse bytes from ``"4GB"``, ``"512 MiB"``, ``"all"`` or a number of bytes."""
    return UNLIMITED if size == "all" else parse_bytes(size, "cache")


class CacheFile:
    """The cache file in the process of the loader. It is pickled without its descriptor."""

    def __init__(
        self,
        samples: int,  # samples of the dataset: length of the index
        capacity: int,  # bytes of decoded samples, 0 of a complete file, to which none is added
        descriptor: int | None = None,  # of a complete file, closed with this object; None: a new file
    ) -> None:
        self.samples = samples
        self.capacity = capacity
        self.descriptor = self._new_file() if descriptor is None else descriptor
        self._end = weakref.finalize(self, os.close, self.descriptor)

    def _new_file(self) -> int:
        try:
            with tempfile.TemporaryFile(prefix="unistore-cache-") as file:
                reserve(file.fileno(), self.start, self.start + self.capacity)
                return os.dup(file.fileno())
        except OSError as error:
            message = f"cannot be made in {tempfile.gettempdir()} ({error.strerror})"
            cure = "free space there, set TMPDIR to a folder with room, or leave cache out"
            raise InputError(Problem("cache", message, cure, "option")) from error

    def close(self) -> None:
        """Close the file. Also done when this object is deleted, and at exit."""
        self._end()

    def __getstate__(self) -> dict[str, int]:
        return {"samples": self.samples, "capacity": self.capacity}

    @property
    def start(self) -> int:
        """Return offset of the samples: the header, number of allocated bytes and index, in whole pages."""
        return index_end(self.samples)

    def region(self, descriptor: int) -> CacheRegion:
        """Return mapped file, for a process that reads and adds samples. The caller closes `descriptor`."""
        return CacheRegion(os.dup(descriptor), self.samples, self.start, self.capacity)


class CacheRegion:
    """The mapped cache: finds and adds samples."""

    def __init__(
        self,
        descriptor: int,  # descriptor of the file; closed with this object
        samples: int,  # length of the index
        # offset and bytes of the samples
        start: int,
        capacity: int,
    ) -> None:
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        self._bytes = memoryview(self._map)
        self._numbers: Int64s = np.frombuffer(self._map, np.int64, len(self._map) // 8)
        self._allocated = self._numbers[:1]
        self._index = self._numbers[1 : 1 + samples]
        self.start = start
        self._capacity = capacity
        self._next = self._end = 0
        self.full = not capacity

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self._descriptor)

    def find(self, samples: Any) -> Any:
        """Return offsets of samples (n,) or of one sample in the file, int64. 0: not cached."""
        return self._index[samples]

    def add(self, sample: int, parts: Sequence[bytes]) -> None:
        """Add a sample, its buffers aligned one after the other. Does nothing if it does not fit."""
        padded = b"".join(data.ljust(aligned(len(data)), b"\0") for data in parts)
        fits = not self.full and self._has_room(len(padded))
        # the number after the data: what is in the index is complete
        if fits and self._write(padded, self._next) and self._write_number(1 + sample, self._next):
            self._next += len(padded)
        else:
            self.full = True

    def _has_room(self, size: int) -> bool:
        # A new region is allocated if necessary
        if self._next + size <= self._end:
            return True
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 8)
        try:
            end = self.start + int(self._allocated[0])
            if end != self._end:  # other processes have allocated what follows
                self._next = end
            left = self.start + self._capacity - end
            missing = size - (end - self._next)
            growth = min(left, max(missing, min(self._capacity // REGIONS, MAX_REGION)))
            if growth < missing:
                return False
            self._end = end + growth
            return self._write_number(0, self._end - self.start)
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 8)

    def _write_number(self, number: int, value: int) -> bool:
        # Not through the map, where a full disk would raise SIGBUS
        return self._write(_NUMBER.pack(value), number * _NUMBER.size)

    def _write(self, data: bytes, offset: int) -> bool:
        try:
            return os.pwrite(self._descriptor, data, offset) == len(data)
        except OSError:
            return False

    def array(self, offset: int, shape: Shape, dtype: np.dtype[Any]) -> AnyArray:
        """Return a read-only array at an offset."""
        view: AnyArray = np.ndarray(shape, dtype, buffer=self._map, offset=offset)
        view.flags.writeable = False
        return view

    def view(self, offset: int, size: int) -> memoryview:
        """Return a read-only view of `size` bytes at an offset."""
        return self._bytes[offset : offset + size]

    def numbers(self, offsets: Int64s, count: int) -> Int64s:
        """Return the int64 numbers (n, count) at aligned offsets (n,)."""
        numbers: Int64s = self._numbers[offsets[:, None] // 8 + np.arange(count)]
        return numbers

    def copy(self, offsets: Int64s, sizes: Int64s, out: AnyArray) -> None:
        """Copy bytes at each of some offsets, one behind the other, into C-contiguous `out`."""
        if not out.nbytes:
            return
        target = out.reshape(-1).view(np.uint8).data
        place = 0
        for offset, size in zip(offsets.tolist(), sizes.tolist(), strict=True):
            target[place : place + size] = self._bytes[offset : offset + size]
            place += size


def index_end(samples: int) -> int:
    """Return the offset behind header and index, in whole pages."""
    return aligned(8 * (1 + samples), mmap.ALLOCATIONGRANULARITY)


def aligned(size: SizeT, unit: int = ALIGNMENT) -> SizeT:
    """Return a size, or sizes (n,), rounded up to a multiple of a unit."""
    return -(-size // unit) * unit
