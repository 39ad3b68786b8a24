"""Files inside a store: regular ones. No link is followed, no pipe waited for, no device read."""

from __future__ import annotations

import errno
import os
import stat

from unistore.errors import StoreError

_FLAGS = os.O_RDONLY
for _name in ("O_BINARY", "O_CLOEXEC", "O_NOCTTY", "O_NOFOLLOW", "O_NONBLOCK"):
    _FLAGS |= getattr(os, _name, 0)

_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotRegularError(StoreError):
    """Where a store should have a regular file, or a folder, something else stands."""

    def __init__(self, path: str | os.PathLike[str], mode: int) -> None:
        kind = _KINDS.get(stat.S_IFMT(mode), "not a file")
        cure = "; copy the store with its links followed (cp -rL), and open the copy"
        msg = f"{os.fspath(path)}: is {kind}, and a store consists of regular files and folders"
        super().__init__(msg + (cure if kind == "a link" else ""))


def open_regular(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Open a regular file for reading: its descriptor, and its size in bytes.

    Raises `OSError`, or `NotRegularError` if something else stands there.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EOPNOTSUPP):  # a link; a socket
            raise NotRegularError(path, os.lstat(path).st_mode) from error
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise NotRegularError(path, status.st_mode)
    return descriptor, status.st_size


def read_regular(path: str | os.PathLike[str], limit: int) -> bytes:
    """Read a whole regular file of at most `limit` bytes; raises as `open_regular`, or `StoreError`."""
    descriptor, size = open_regular(path)
    with os.fdopen(descriptor, "rb") as file:
        if size > limit:
            raise _too_large(path, size, limit)
        return file.read(size)


def check_tree(root: str | os.PathLike[str], documents: frozenset[str], limit: int) -> None:
    """Look at everything below a folder, for readers that open files by themselves.

    Raises
    ------
    OSError
        If a folder cannot be listed.
    StoreError
        If something is not a regular file or folder, or a file named in `documents`, which is read whole, has
        more than `limit` bytes.
    """
    folders = [os.fspath(root)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    raise NotRegularError(entry.path, entry.stat(follow_symlinks=False).st_mode)
                elif entry.name in documents and (size := entry.stat().st_size) > limit:
                    raise _too_large(entry.path, size, limit)


def _too_large(path: str | os.PathLike[str], size: int, limit: int) -> StoreError:
    return StoreError(f"{os.fspath(path)}: {size:,} bytes, expected at most {limit:,}")
