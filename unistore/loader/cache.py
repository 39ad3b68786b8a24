"""A cache of decoded samples: one memory-mapped file that all processes of a machine share.

The file is sparse. It begins with the number of allocated bytes and an index: the offset of each sample.
A process allocates a region for itself under a lock and appends samples to it. It writes the offset of a
sample into the index, without a lock, after the sample itself, so that samples in the index are complete
even if a process is killed. A sample that two processes add at the same time is stored twice and found once.
Samples are added until the file is full and never removed.

Loaders of one user on a machine share the file by its name, see `unistore.loader.cache`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from unistore.errors import InputError, Problem
from unistore.memory import reserve
from unistore.system import own_files as file_locks
from unistore.system.hints import AnyArray, Int64s, Shape
from unistore.system.own_files import NotOwnError, open_own_file, open_own_folder
from unistore.system.sizes import parse_bytes

# Named files that processes of one user share; a file is removed with its last user.
#
# They are in a private folder below the one for temporary files, and are opened and removed under the lock
# of that folder. A process that uses a file holds a shared lock on it, which ends with the process, even if
# it is killed. So a file that can be locked exclusively is unused, and the next process that comes removes
# it.

_LOCK = "lock"


def join(
    name: str,  # digest of the contents: equal names share a file
    size: int,  # bytes of the file, sparse and zero at first
    header: int,  # bytes at its beginning that are allocated on the disk at once
) -> int:
    """Open the file of a name, or create it. `leave` closes the returned descriptor."""
    with lock_folder() as folder:
        for other in os.listdir(folder):  # noqa: PTH208 - a descriptor; what killed processes left behind
            if other != _LOCK:
                with suppress(NotOwnError, FileNotFoundError):
                    _remove_unused(other, folder)
        try:
            descriptor = open_own_file(name, folder)
        except FileNotFoundError:
            descriptor = open_own_file(name, folder, os.O_CREAT | os.O_EXCL)
            try:
                reserve(descriptor, header, size)
            except OSError:
                os.unlink(name, dir_fd=folder)
                os.close(descriptor)
                raise
        if os.fstat(descriptor).st_size != size:
            os.close(descriptor)
            raise NotOwnError(name, f"is not a cache of {size:,} bytes")
        file_locks.lock(descriptor, shared=True)
    return descriptor


def leave(name: str, descriptor: int) -> None:
    """Close a file of `join`, and remove it if it is unused."""
    with suppress(InputError, NotOwnError, OSError), lock_folder() as folder:
        file_locks.unlock(descriptor)
        _remove_unused(name, folder)
    os.close(descriptor)


@contextmanager
def lock_folder() -> Iterator[int]:
    """Hold the folder's lock, exclusive among processes and threads; yields the folder's descriptor."""
    path = Path(tempfile.gettempdir()) / f"unistore-cache-{os.geteuid()}"
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    try:
        folder = open_own_folder(path, 0o077)
        try:
            lock = open_own_file(_LOCK, folder, os.O_CREAT)
            try:
                file_locks.lock(lock)
                yield folder
            finally:
                file_locks.close(lock)
        finally:
            os.close(folder)
    except NotOwnError as error:
        cure = "remove it, or set TMPDIR to a folder of your own"
        raise InputError(Problem("cache", f"{path / error.path} {error}", cure, "option")) from error


def _remove_unused(name: str, folder: int) -> None:
    descriptor = open_own_file(name, folder)
    try:
        if file_locks.lock(descriptor, wait=False):
            os.unlink(name, dir_fd=folder)
    finally:
        os.close(descriptor)


ALIGNMENT = 64
_NUMBER = struct.Struct("=q")
UNLIMITED = 1 << 42
"""Bytes of the sparse file under ``cache="all"``: more than any disk that samples would be cached on."""
REGIONS = 256
MAX_REGION = 64 << 20
"""A process allocates 1/256 of the capacity at a time, at most 64 MiB; more for a larger sample."""


def parse_size(size: str | int) -> int:
    """Parse bytes from ``"4GB"``, ``"512 MiB"``, ``"all"`` or a number of bytes."""
    return UNLIMITED if size == "all" else parse_bytes(size, "cache")


class CacheFile:
    """The cache file in the process of the loader. It is pickled without its descriptor."""

    def __init__(
        self,
        samples: int,  # samples of the dataset: length of the index
        capacity: int,  # bytes of decoded samples
        name: str,  # name under which loaders share it
    ) -> None:
        self.samples = samples
        self.capacity = capacity
        try:
            self.descriptor = join(name, self.start + capacity, self.start)
        except OSError as error:
            message = f"cannot be made in {tempfile.gettempdir()} ({error.strerror})"
            cure = "free space there, set TMPDIR to a folder with room, or leave cache out"
            raise InputError(Problem("cache", message, cure, "option")) from error
        self._end = weakref.finalize(self, _leave, name, self.descriptor, os.getpid())

    def close(self) -> None:
        """Close the file. Also done when this object is deleted, and at exit."""
        self._end()

    def __getstate__(self) -> dict[str, int]:
        return {"samples": self.samples, "capacity": self.capacity}

    @property
    def start(self) -> int:
        """Offset of the samples: the header, number of allocated bytes and index, in whole pages."""
        return aligned(8 * (1 + self.samples), mmap.ALLOCATIONGRANULARITY)

    def region(self, descriptor: int) -> CacheRegion:
        """The mapped file, for a process that reads and adds samples; the caller closes `descriptor`."""
        return CacheRegion(os.dup(descriptor), self.samples, self.start, self.capacity)


def _leave(name: str, descriptor: int, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked child
        leave(name, descriptor)


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
        self._map = mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED)
        header: Int64s = np.frombuffer(self._map, np.int64, 1 + samples)
        self._allocated = header[:1]
        self._index = header[1:]
        self.start = start
        self._capacity = capacity
        self._next = self._end = 0
        self.full = False

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self._descriptor)

    def find(self, samples: Any) -> Any:
        """Return offsets of samples (n,) or of one sample in the file, int64; 0: not cached."""
        return self._index[samples]

    def add(self, sample: int, parts: Sequence[bytes]) -> None:
        """Add a sample, its buffers aligned one after the other; does nothing if it does not fit."""
        padded = b"".join(data.ljust(aligned(len(data)), b"\0") for data in parts)
        fits = not self.full and self._has_room(len(padded))
        # the number after the data: what is in the index is complete
        if fits and self._write(padded, self._next) and self._write_number(1 + sample, self._next):
            self._next += len(padded)
        else:
            self.full = True

    def _has_room(self, size: int) -> bool:
        """Return whether `size` bytes fit; allocates a new region if necessary."""
        if self._next + size <= self._end:
            return True
        try:
            with lock_folder():
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
        except (InputError, OSError):  # the folder for temporary files was removed
            return False

    def _write_number(self, number: int, value: int) -> bool:
        """Write a number of the header; not through the map, where a full disk would raise SIGBUS."""
        return self._write(_NUMBER.pack(value), number * _NUMBER.size)

    def _write(self, data: bytes, offset: int) -> bool:
        """Write data; returns whether the disk had room."""
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
        return memoryview(self._map)[offset : offset + size].toreadonly()


def aligned(size: int, unit: int = ALIGNMENT) -> int:
    """Return the size rounded up to a multiple of a unit."""
    return -(-size // unit) * unit
