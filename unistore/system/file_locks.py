"""Locks on open files between the processes of a machine: flock(2)."""

from __future__ import annotations

import os

try:
    import fcntl
except ImportError:  # Windows
    available = False
else:
    available = True
"""Whether this system has such locks; without them, `lock` raises."""


def lock(descriptor: int, *, shared: bool = False, wait: bool = True) -> bool:
    """Lock an open file; returns False if `wait` is False and another process has the lock.

    The lock ends with `unlock`, or when every process that inherited the file has closed it.
    """
    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    """Release the lock."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def close(descriptor: int) -> None:
    """Unlock and close. Closing alone would leave the lock to a child that was forked meanwhile."""
    if available:
        unlock(descriptor)
    os.close(descriptor)
