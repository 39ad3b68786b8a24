"""Freed memory that stays with the process: fresh pages cost as much as what is written into them."""

from __future__ import annotations

import contextlib
import ctypes

__all__ = ["keep_freed_memory"]

KEPT = 32 << 20
"""Bytes of the largest block that is kept (glibc allows no more), and of what is kept at the heap's end."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def keep_freed_memory() -> None:
    """Have glibc keep freed blocks of up to 32 MiB for the next ones; no other C library is changed.

    By default it maps blocks of 128 KiB and more anew each time, until the first such block has been freed.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, KEPT)
        mallopt(M_MMAP_THRESHOLD, KEPT)
