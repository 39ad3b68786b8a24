"""Shared memory as the loader uses it: a mapped segment, and the lease that keeps it from being reused.

A segment is a memfd (an unlinked temporary file where there is none): no name, no ``/dev/shm`` limit, gone
with the last process that maps it. Its pages are reserved when it is made, so that running out of memory is
an error here and not a SIGBUS in the middle of a decode, and mapped at once, so that no batch pays for
page faults. Memory of one process is mapped as it is used, in large pages where the kernel has them.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from unistore.errors import LoaderError

__all__ = ["Segment", "open_shared_memory", "reserve", "round_up"]

GRANULE = 64 * 1024
"""Segment sizes are multiples of this many bytes: few distinct sizes, whole pages on every platform."""

_POPULATE = getattr(mmap, "MAP_POPULATE", 0)


def round_up(size: int, multiple: int = GRANULE) -> int:
    """Return ``size`` rounded up to a positive multiple of ``multiple``."""
    return max(1, -(-size // multiple)) * multiple


def open_shared_memory(size: int) -> int:
    """Return the descriptor of ``size`` bytes of zeroed shared memory, all of them reserved.

    Raises
    ------
    LoaderError
        The machine, or the container, has no such memory left.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("unistore", os.MFD_CLOEXEC)
    else:
        descriptor, name = tempfile.mkstemp(prefix="unistore-")
        Path(name).unlink()
    try:
        reserve(descriptor, size, size)
    except OSError as error:
        os.close(descriptor)
        message = (
            f"no shared memory for a batch of {size:,} bytes ({error.strerror}): "
            "lower prefetch_factor, num_workers or batch_size, or let go of batches that are held"
        )
        raise LoaderError(message) from error
    return descriptor


def reserve(descriptor: int, head: int, size: int) -> None:
    """Give a new file its size, and its head a place on the disk.

    Where there is none, reading a hole through a map ends in SIGBUS on file systems in memory.
    """
    os.ftruncate(descriptor, size)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, head)


class Segment:
    """Mapped memory that batches lie in.

    Attributes
    ----------
    size
        Bytes, a multiple of `GRANULE`.
    map
        The mapping. It is never closed by hand: it ends with the last object that points into it.
    address
        Of its first byte, in this process.
    """

    __slots__ = ("__weakref__", "address", "map", "size")

    def __init__(self, mapping: mmap.mmap, size: int) -> None:
        self.map = mapping
        self.size = size
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))

    @classmethod
    def private(cls, size: int) -> Segment:
        """Anonymous memory of this process, for reading on a thread."""
        if not hasattr(mmap, "MAP_PRIVATE"):
            return cls(mmap.mmap(-1, size), size)
        mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without large pages
                mapping.madvise(mmap.MADV_HUGEPAGE)
        return cls(mapping, size)

    @classmethod
    def shared(cls, descriptor: int, size: int) -> Segment:
        """Map the shared memory behind a descriptor. The descriptor stays the caller's."""
        return cls(mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | _POPULATE), size)

    def lease(self, release: Callable[[], object] | None = None) -> ctypes.Array[Any]:
        """Return a buffer over the whole segment, and call ``release`` when nothing uses it any more.

        Every array of a batch is built over this one object. The finalizer belongs on it and on nothing
        else: numpy collapses chains of ``.base``, so an array between the views and the buffer dies while
        the views live, whereas all of them hold the buffer itself.
        """
        buffer = (ctypes.c_char * self.size).from_buffer(self.map)
        if release is not None:
            weakref.finalize(buffer, release).atexit = False
        return buffer
