"""Files that processes of one user share on a machine: found by name, gone with their last user.

They lie in a folder of the user's own below the one for temporary files. Everything that opens or removes one
holds the lock of the folder. Whoever uses a file holds a shared lock on it, which ends with the process,
whatever ended it: a file that can be locked exclusively has no user, and is removed by whoever comes by next.
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

__all__ = ["alone", "join", "leave"]

_LOCK = "lock"


def join(name: str, size: int, head: int) -> int:
    """Descriptor of the file of a name, made if nobody uses it; `leave` gives it back.

    Parameters
    ----------
    name
        Stands for what the file holds: equal names share.
    size
        Of the file in bytes, all zero at first, and sparse.
    head
        Bytes at its beginning that have their place on the disk at once.

    Raises
    ------
    InputError
        Folder or file are not this user's own, or not what they should be: names them, and the cure.
    OSError
        The disk has no room for the head.
    """
    with alone() as folder:
        _sweep(folder)
        try:
            descriptor = _open(name, folder)
        except FileNotFoundError:
            descriptor = _open(name, folder, os.O_CREAT | os.O_EXCL)
            try:
                reserve(descriptor, head, size)
            except OSError:
                os.unlink(name, dir_fd=folder)
                os.close(descriptor)
                raise
        if os.fstat(descriptor).st_size != size:
            os.close(descriptor)
            raise _refused(_path() / name, f"is not a cache of {size:,} bytes")
        file_locks.lock(descriptor, shared=True)
    return descriptor


def leave(name: str, descriptor: int) -> None:
    """Close a file of `join`, and remove it if nobody else uses it."""
    with suppress(InputError, OSError), alone() as folder:
        file_locks.unlock(descriptor)
        _remove_unused(name, folder)
    os.close(descriptor)


def _path() -> Path:
    return Path(tempfile.gettempdir()) / f"unistore-cache-{os.geteuid()}"


@contextmanager
def alone() -> Iterator[int]:
    """Hold the lock of the folder, alone among this user's processes and threads; gives its descriptor.

    Raises
    ------
    InputError
        The folder is not this user's own.
    """
    path = _path()
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    try:
        folder = open_own_folder(path, 0o077)
    except NotOwnError as error:
        raise _refused(path, str(error)) from error
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
        raise _refused(_path() / name, str(error)) from error


def _sweep(folder: int) -> None:
    """Remove what processes left behind that were killed."""
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


def _refused(path: Path, reason: str) -> InputError:
    cure = "remove it, or set TMPDIR to a folder of your own"
    return InputError(Problem("cache", f"{path} {reason}", cure, "option"))
