"""Folders to work in beside a destination: this user's own, and nothing in them leads out."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from unistore.errors import ConversionError

__all__ = ["check_own", "check_plain"]

_CURE = "remove it, or choose another destination"


def check_plain(folder: Path, *, apart: tuple[str, ...] = ()) -> None:
    """Refuse a folder that is a link, or holds anything but files and folders; one that is absent is fine.

    What is written and removed below it must lie there.

    Parameters
    ----------
    folder
        The folder.
    apart
        Folders in it whose content may be links.

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
    left_out = {os.fspath(folder / name) for name in apart}
    todo = [os.fspath(folder)]
    while todo:
        with suppress(FileNotFoundError), os.scandir(todo.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    todo += [] if entry.path in left_out else [entry.path]
                elif not entry.is_file(follow_symlinks=False) and os.path.lexists(entry.path):
                    msg = (
                        f"{entry.path}: is a link or a special file, which unistore does not make: remove it"
                    )
                    raise ConversionError(msg)


def check_own(folder: Path, made: Path) -> None:
    """Refuse a folder of another user: what it holds would become part of the result.

    Parameters
    ----------
    folder
        The folder.
    made
        A file that was made in it just now. It tells who this user is there: file systems may map users.

    Raises
    ------
    ConversionError
        Naming both users.
    """
    owner, user = folder.stat().st_uid, made.stat().st_uid
    if owner != user:
        msg = f"{folder}: belongs to another user (uid {owner}, not {user}): {_CURE}"
        raise ConversionError(msg)
