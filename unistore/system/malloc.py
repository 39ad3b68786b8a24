"""Settings of malloc: freed memory is kept for reuse, as fresh pages cost as much as writing to them."""

from __future__ import annotations

import contextlib
import ctypes

THRESHOLD = 32 << 20
"""Bytes of the largest block that is kept (the most that glibc allows), and of the free top of the heap."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def keep_freed_memory() -> None:
    """Make glibc keep freed blocks of up to 32 MiB for reuse; does nothing with other C libraries.

    By default, glibc maps blocks of 128 KiB and more anew until the first such block has been freed.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, THRESHOLD)
        mallopt(M_MMAP_THRESHOLD, THRESHOLD)
