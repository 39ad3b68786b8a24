"""Locks of open files among the processes of a machine: flock(2)."""

from __future__ import annotations

import os

__all__ = ["available", "close", "lock", "unlock"]

try:
    import fcntl
except ImportError:  # Windows
    available = False
else:
    available = True
"""Whether this system has such locks; without them, `lock` raises."""


def lock(descriptor: int, *, shared: bool = False, wait: bool = True) -> bool:
    """Lock an open file, exclusively or shared with others that lock it so; False if another one has it.

    The lock ends with `unlock`, or when the file is closed in every process that has it open.
    """
    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    """Give the lock back."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def close(descriptor: int) -> None:
    """Unlock and close: a child forked meanwhile has the file open, too, and would keep the lock."""
    if available:
        unlock(descriptor)
    os.close(descriptor)
