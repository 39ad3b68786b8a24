"""Checks of a working folder: owned by this user, and without links."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from unistore.errors import ConversionError

_CURE = "remove it, or choose another destination"


def check_plain(folder: Path, *, ignore: tuple[str, ...] = ()) -> None:
    """Refuse a folder that is a link, or holds anything but files and folders; it may be absent.

    So nothing is written or removed outside of it.

    Parameters
    ----------
    folder
        The folder.
    ignore
        Folders in it that may hold links.

    Raises
    ------
    ConversionError
        Naming the link.
    """
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        msg = f"{folder}: is not a folder that unistore made, and will not be touched: {_CURE}"
        raise ConversionError(msg)
    ignored = {os.fspath(folder / name) for name in ignore}
    todo = [os.fspath(folder)]
    while todo:
        with suppress(FileNotFoundError), os.scandir(todo.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    todo += [] if entry.path in ignored else [entry.path]
                elif not entry.is_file(follow_symlinks=False) and os.path.lexists(entry.path):
                    msg = (
                        f"{entry.path}: is a link or a special file, which unistore does not make: remove it"
                    )
                    raise ConversionError(msg)


def check_own(folder: Path, made: Path) -> None:
    """Refuse a folder of another user, whose files would become part of the result.

    Parameters
    ----------
    folder
        The folder.
    made
        A file that was just made in it; its owner is this user as the file system maps it.

    Raises
    ------
    ConversionError
        Naming both users.
    """
    owner, user = folder.stat().st_uid, made.stat().st_uid
    if owner != user:
        msg = f"{folder}: belongs to another user (uid {owner}, not {user}): {_CURE}"
        raise ConversionError(msg)
