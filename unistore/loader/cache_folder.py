"""Named files that processes of one user share; a file is removed with its last user.

They are in a private folder below the one for temporary files, and are opened and removed under the lock of
that folder. A process that uses a file holds a shared lock on it, which ends with the process, even if it is
killed. So a file that can be locked exclusively is unused, and the next process that comes removes it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from unistore.errors import InputError, Problem
from unistore.memory.segments import reserve
from unistore.system import file_locks
from unistore.system.own_files import NotOwnError, open_own_file, open_own_folder

_LOCK = "lock"


def join(name: str, size: int, header: int) -> int:
    """Open the file of a name, or create it. `leave` closes the returned descriptor.

    Parameters
    ----------
    name
        Digest of the contents: equal names share a file.
    size
        Bytes of the file, sparse and zero at first.
    header
        Bytes at its beginning that are allocated on the disk at once.

    Raises
    ------
    InputError
        If the folder or file belongs to another user, or is not a cache of this size.
    OSError
        If the disk has no room for the header.
    """
    with lock_folder() as folder:
        _remove_stale(folder)
        try:
            descriptor = _open(name, folder)
        except FileNotFoundError:
            descriptor = _open(name, folder, os.O_CREAT | os.O_EXCL)
            try:
                reserve(descriptor, header, size)
            except OSError:
                os.unlink(name, dir_fd=folder)
                os.close(descriptor)
                raise
        if os.fstat(descriptor).st_size != size:
            os.close(descriptor)
            raise _cache_error(_path() / name, f"is not a cache of {size:,} bytes")
        file_locks.lock(descriptor, shared=True)
    return descriptor


def leave(name: str, descriptor: int) -> None:
    """Close a file of `join`, and remove it if it is unused."""
    with suppress(InputError, OSError), lock_folder() as folder:
        file_locks.unlock(descriptor)
        _remove_unused(name, folder)
    os.close(descriptor)


def _path() -> Path:
    return Path(tempfile.gettempdir()) / f"unistore-cache-{os.geteuid()}"


@contextmanager
def lock_folder() -> Iterator[int]:
    """Hold the folder's lock, exclusive among processes and threads; yields the folder's descriptor.

    Raises
    ------
    InputError
        If the folder belongs to another user.
    """
    path = _path()
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    try:
        folder = open_own_folder(path, 0o077)
    except NotOwnError as error:
        raise _cache_error(path, str(error)) from error
    try:
        lock = _open(_LOCK, folder, os.O_CREAT)
        try:
            file_locks.lock(lock)
            yield folder
        finally:
            file_locks.close(lock)
    finally:
        os.close(folder)


def _open(name: str, folder: int, flags: int = 0) -> int:
    try:
        return open_own_file(name, folder, flags)
    except NotOwnError as error:
        raise _cache_error(_path() / name, str(error)) from error


def _remove_stale(folder: int) -> None:
    """Remove files that killed processes left behind."""
    for name in os.listdir(folder):
        if name != _LOCK:
            with suppress(InputError, FileNotFoundError):
                _remove_unused(name, folder)


def _remove_unused(name: str, folder: int) -> None:
    descriptor = _open(name, folder)
    try:
        if file_locks.lock(descriptor, wait=False):
            os.unlink(name, dir_fd=folder)
    finally:
        os.close(descriptor)


def _cache_error(path: Path, reason: str) -> InputError:
    cure = "remove it, or set TMPDIR to a folder of your own"
    return InputError(Problem("cache", f"{path} {reason}", cure, "option"))
