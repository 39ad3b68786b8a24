"""Reads that are announced: a disk works on all of a batch while its first chunks are decoded."""

from __future__ import annotations

import os

__all__ = ["ANNOUNCED", "DiskReads", "announce"]

try:
    import resource
except ImportError:  # Windows
    _known = False
else:
    _known = hasattr(os, "posix_fadvise")

ANNOUNCED = 256 << 20
"""Bytes announced together; what follows is read as it comes."""


class DiskReads:
    """Tells whether reads come from a disk: announcing is a waste where all is in the page cache."""

    def __init__(self) -> None:
        self._seen = -1

    def more(self) -> bool:
        """Whether this process has read from a disk since this was asked last, or was never asked."""
        if not _known:
            return False
        before, self._seen = self._seen, resource.getrusage(resource.RUSAGE_SELF).ru_inblock
        return before != self._seen


def announce(descriptor: int, offset: int, size: int) -> None:
    """Have the kernel read a part of a file, without waiting for it.

    Nothing else is read. A read that was not announced makes the kernel guess what follows: of random chunks
    it then reads more than twice the bytes, one chunk after the other.

    Parameters
    ----------
    descriptor
        Of the open file.
    offset, size
        Bytes.
    """
    os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_WILLNEED)
