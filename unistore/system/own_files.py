"""Opens files and folders that belong to this user. Refuses what another user may have planted."""

from __future__ import annotations

import errno
import fcntl
import os
import stat

# Locks on open files between the processes of a machine: flock(2).


def lock(descriptor: int, *, wait: bool = True) -> bool:
    """Lock an open file, or return False if another process has the lock and `wait` is False.

    The lock ends with `unlock`, or when every process that inherited the file has closed it.
    """
    how = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
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
    unlock(descriptor)
    os.close(descriptor)


_SAFE_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class NotOwnError(Exception):
    """A file or folder does not belong to this user alone. ``str(error)`` says why: ``"is a link"``."""

    def __init__(self, path: str | os.PathLike[str], reason: str) -> None:
        super().__init__(reason)
        self.path = os.fspath(path)  # as it was given


def open_own_folder(path: str | os.PathLike[str], forbidden: int) -> int:
    """Return the descriptor of a folder of this user without `forbidden` mode bits: 0o022, 0o077."""
    descriptor = open_folder(path, forbidden)
    if not is_own(descriptor):
        os.close(descriptor)
        raise NotOwnError(path, "belongs to another user")
    return descriptor


def open_folder(path: str | os.PathLike[str], forbidden: int) -> int:
    """Return the descriptor of a folder, of any user, without `forbidden` mode bits."""
    descriptor = _open(path, os.O_RDONLY | os.O_DIRECTORY)
    if os.fstat(descriptor).st_mode & forbidden:
        os.close(descriptor)
        raise NotOwnError(path, "can be accessed by other users")
    return descriptor


def is_own(descriptor: int) -> bool:
    """Return whether an open file or folder belongs to this user."""
    return os.fstat(descriptor).st_uid == os.geteuid()


def open_file_of_owner(name: str, folder: int, forbidden: int) -> int:
    """Return the descriptor, to read, of a regular file that belongs to the owner of its folder."""
    descriptor = _open(name, os.O_RDONLY, folder)
    state = os.fstat(descriptor)
    is_of_owner = state.st_uid == os.fstat(folder).st_uid
    if not stat.S_ISREG(state.st_mode) or not is_of_owner or state.st_mode & forbidden:
        os.close(descriptor)
        raise NotOwnError(name, "is not a file that only the owner of the folder can change")
    return descriptor


def open_own_file(name: str, folder: int, flags: int = 0) -> int:
    """Return the descriptor, to read and write, of a regular file of this user without further hard links."""
    descriptor = _open(name, os.O_RDWR | flags, folder)
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode) or state.st_uid != os.geteuid() or state.st_nlink > 1:
        os.close(descriptor)
        raise NotOwnError(name, "is not a file that only this user can change")
    return descriptor


# What the system says where it refuses to open what others may have planted: links, pipes, rights. Any other
# error, such as a failing disk or too many open files, says nothing of whose the file is
_REFUSALS = frozenset(
    (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ENXIO, errno.EMLINK)
)


def _open(path: str | os.PathLike[str], flags: int, folder: int | None = None) -> int:
    try:
        return os.open(path, flags | _SAFE_FLAGS, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        mode = os.stat(path, dir_fd=folder, follow_symlinks=False).st_mode
        reason = "is a link" if stat.S_ISLNK(mode) else f"cannot be opened: {error.strerror}"
        raise NotOwnError(path, reason) from error
