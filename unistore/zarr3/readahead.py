"""Prefetch ranges of files: the disk reads a whole batch while its first chunks are decoded."""

from __future__ import annotations

import os

try:
    import resource
except ImportError:  # Windows
    _supported = False
else:
    _supported = hasattr(os, "posix_fadvise")

PREFETCH_BYTES = 256 << 20
"""Most bytes that are prefetched for one batch."""


class DiskReadMonitor:
    """Whether reads reach the disk; prefetching is a waste if all of it is in the page cache."""

    def __init__(self) -> None:
        self._blocks_read = -1

    def has_read(self) -> bool:
        """Whether this process has read from a disk since the last call; True for the first call."""
        if not _supported:
            return False
        before, self._blocks_read = self._blocks_read, resource.getrusage(resource.RUSAGE_SELF).ru_inblock
        return before != self._blocks_read


def prefetch(descriptor: int, offset: int, size: int) -> None:
    """Have the kernel read a part of a file, without waiting for it.

    Without it, the kernel's own readahead reads more than twice the bytes for random chunks, one chunk after
    the other.

    Parameters
    ----------
    descriptor
        Of the open file.
    offset, size
        Bytes.
    """
    os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_WILLNEED)
