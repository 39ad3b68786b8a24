"""Files and folders of this user alone: what another user planted is neither followed nor written to."""

from __future__ import annotations

import errno
import os
import stat

__all__ = ["NotOwnError", "open_own_file", "open_own_folder"]

_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


class NotOwnError(Exception):
    """A file or folder is not this user's own; ``str(error)`` says why: ``"is a link"``."""


def open_own_folder(path: str | os.PathLike[str], forbidden: int, *, inside: int | None = None) -> int:
    """Descriptor of a folder that belongs to this user.

    Parameters
    ----------
    path
        The folder; its last part may not be a link.
    forbidden
        Bits of its mode that must not be set: 0o022 where others must not write, 0o077 where they must not
        read either.
    inside
        Descriptor of the folder that `path` is relative to.

    Raises
    ------
    NotOwnError
        If it is a link, not a folder, of another user, or open to others.
    FileNotFoundError
        If there is none.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _SAFE, dir_fd=inside)
    except FileNotFoundError:
        raise
    except OSError as error:
        mode = os.stat(path, dir_fd=inside, follow_symlinks=False).st_mode
        reason = "is a link" if stat.S_ISLNK(mode) else f"cannot be opened as a folder ({error.strerror})"
        raise NotOwnError(reason) from error
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or found.st_mode & forbidden:
        os.close(descriptor)
        whose = (
            "belongs to another user" if found.st_uid != os.geteuid() else "is open to others than this user"
        )
        raise NotOwnError(whose)
    return descriptor


def open_own_file(name: str, folder: int, flags: int = 0) -> int:
    """Descriptor, to read and write, of a plain file of this user that has no other name.

    Parameters
    ----------
    name
        Its name in the folder.
    folder
        Descriptor of the folder.
    flags
        Further ones, as of ``os.open``; a file that is made can be read by this user only.

    Raises
    ------
    NotOwnError
        If it is a link, not a regular file, of another user, or has a second name.
    FileNotFoundError
        If there is none.
    """
    try:
        descriptor = os.open(name, os.O_RDWR | _SAFE | flags, 0o600, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = "is a link" if error.errno == errno.ELOOP else f"cannot be opened ({error.strerror})"
        raise NotOwnError(reason) from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink > 1:
        os.close(descriptor)
        raise NotOwnError("is not a file of this user alone")
    return descriptor
