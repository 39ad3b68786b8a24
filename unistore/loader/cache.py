"""Decoded samples kept in one memory-mapped file that all processes of a machine share.

The file is sparse: how much of it is given away, and an index of one number a sample, come first. Every
process takes a stretch at a time for itself, under a lock, appends to it, and then writes a sample's number
into the index, for which no lock is needed: what is in the index is whole, whoever is killed meanwhile. A
sample that two processes add at once is stored twice and found once. Samples are admitted until the file is
full, and none is ever dropped.

Datasets that say which samples they hold share by name with all loaders of this user on the machine, see
`unistore.loader.cache_folder`. The file of any other one has no name, and is shared by its loader's workers.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import tempfile
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.errors import InputError, Problem
from unistore.memory.segments import reserve
from unistore.system.sizes import parse_bytes

__all__ = ["CacheFile", "CacheRegion", "parse_size"]

ALIGNMENT = 64
_NUMBER = struct.Struct("=q")
EVERYTHING = 1 << 42
"""Bytes of the sparse file under ``cache="all"``: more than any disk that samples would be cached on."""
STRETCHES, LARGEST = 256, 64 << 20
"""A process takes one part in so many of the capacity at a time, and not more than so many bytes."""


def parse_size(size: str | int) -> int:
    """Bytes from ``"4GB"``, ``"512 MiB"``, ``"all"`` or a number of bytes.

    Raises
    ------
    InputError
        It is none of these.
    """
    return EVERYTHING if size == "all" else parse_bytes(size, "cache")


class CacheFile:
    """The file, as the process has it that made the loader; travels to workers without its descriptor.

    Parameters
    ----------
    samples
        Samples of the dataset: length of the index.
    capacity
        Bytes of decoded samples.
    name
        Under which it is shared; None: it is this loader's alone.
    extent
        Bytes that samples lie in where each has a place of its own; None: they follow one another.

    Raises
    ------
    InputError
        The folder of shared files, or the file, is not this user's own, or there is no room for its index.
    """

    def __init__(
        self, samples: int, capacity: int, name: str | None = None, extent: int | None = None
    ) -> None:
        self.samples = samples
        self.capacity = capacity
        size = self.start + (capacity if extent is None else extent)
        try:
            if name is None:
                with tempfile.TemporaryFile(prefix="unistore-cache-") as file:
                    reserve(file.fileno(), self.start, size)
                    self.descriptor = os.dup(file.fileno())
                self._end: weakref.finalize[..., CacheFile] = weakref.finalize(
                    self, os.close, self.descriptor
                )
            else:
                from unistore.loader.cache_folder import join  # file locks are not on every platform

                self.descriptor = join(name, size, self.start)
                self._end = weakref.finalize(self, _leave, name, self.descriptor, os.getpid())
        except OSError as error:
            message = f"cannot be made in {tempfile.gettempdir()} ({error.strerror})"
            cure = "free space there, set TMPDIR to a folder with room, or leave cache out"
            raise InputError(Problem("cache", message, cure, "option")) from error

    def close(self) -> None:
        """Give the file up, which also happens when this object goes, and at the end of the process."""
        self._end()

    def __getstate__(self) -> dict[str, int]:
        return {"samples": self.samples, "capacity": self.capacity}

    @property
    def start(self) -> int:
        """Bytes before the samples: what is given away, and the index, on whole pages."""
        return _aligned(8 * (1 + self.samples), mmap.ALLOCATIONGRANULARITY)

    def create(self) -> int:
        """Return a descriptor of the file, which is the caller's to close."""
        return os.dup(self.descriptor)

    def region(self, descriptor: int) -> CacheRegion:
        """The file as a process sees it that reads and adds samples; the descriptor stays the caller's."""
        return CacheRegion(os.dup(descriptor), self.samples, self.start, self.capacity)


def _leave(name: str, descriptor: int, owner: int) -> None:
    if os.getpid() == owner:  # a forked child has a copy, and is no user of its own
        from unistore.loader.cache_folder import leave

        leave(name, descriptor)


class CacheRegion:
    """All cached samples, and room to add more.

    Parameters
    ----------
    descriptor
        Of the file; closed with this object.
    samples
        Length of the index.
    start, capacity
        Where samples lie.
    """

    def __init__(self, descriptor: int, samples: int, start: int, capacity: int) -> None:
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED)
        head: NDArray[np.int64] = np.frombuffer(self._map, np.int64, 1 + samples)
        self._given, self._index = head[:1], head[1:]
        self.start, self._capacity = start, capacity
        self._next = self._end = 0
        self.full = False

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self._descriptor)

    def find(self, samples: NDArray[np.int64] | slice) -> NDArray[np.int64]:
        """Where samples lie in the file, (n,) int64; 0: not there."""
        return self._index[samples]

    def add(self, sample: int, parts: Sequence[Any]) -> None:
        """Keep a sample: buffers one behind the other, each aligned; nothing happens when it does not fit."""
        padded = b"".join(data.ljust(_aligned(len(data)), b"\0") for data in map(bytes, parts))
        self._add(sample, padded, len(padded), None)

    def add_at(self, sample: int, data: Any, place: int) -> None:
        """Keep a sample at its own place; it takes whole pages."""
        self._add(sample, data, _aligned(len(data), mmap.PAGESIZE), self.start + place)

    def _add(self, sample: int, data: Any, size: int, place: int | None) -> None:
        if not self.full and self._has_room(size):
            place = self._next if place is None else place
            if self._write(data, place) and self._note(1 + sample, place):
                self._next += size
                return
        self.full = True

    def _has_room(self, size: int) -> bool:
        """Whether so many bytes fit, if need be into a new stretch."""
        if self._next + size <= self._end:
            return True
        from unistore.loader.cache_folder import alone

        try:
            with alone():
                given = self.start + int(self._given[0])
                if given != self._end:  # others have taken what follows
                    self._next = given
                left = self.start + self._capacity - given
                missing = size - (given - self._next)
                taken = min(left, max(missing, min(self._capacity // STRETCHES, LARGEST)))
                if taken < missing:
                    return False
                self._end = given + taken
                return self._note(0, self._end - self.start)
        except (InputError, OSError):  # the folder for temporary files is gone: what is cached stays
            return False

    def _note(self, number: int, value: int) -> bool:
        """Write a number of the head; not through the map, where a full disk would be a crash."""
        return self._write(_NUMBER.pack(value), number * _NUMBER.size)

    def _write(self, data: bytes, place: int) -> bool:
        """Whether there was room on the disk; if not, what is cached stays, and no more is added."""
        try:
            return os.pwrite(self._descriptor, data, place) == len(data)
        except OSError:
            return False

    def array(self, place: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Array at a place, not to be written to."""
        found: NDArray[Any] = np.ndarray(shape, dtype, buffer=self._map, offset=place)
        found.flags.writeable = False
        return found

    def view(self, place: int, size: int) -> memoryview:
        """``size`` bytes at a place."""
        return memoryview(self._map)[place : place + size].toreadonly()


def _aligned(size: int, unit: int = ALIGNMENT) -> int:
    return -(-size // unit) * unit
