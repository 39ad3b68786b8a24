"""Writing a report where somebody wants it: whole or not at all, and over nothing but reports."""

from __future__ import annotations

import os
from pathlib import Path

from unistore.errors import InputError, Problem
from unistore.pictures.draw import MARK

__all__ = ["check_target", "write_report"]

_HEAD = 1024
"""Bytes at the beginning of a report that hold its mark."""


def check_target(path: str, *, overwrite: bool = False) -> None:
    """Refuse a place that a report must not be written to.

    Raises
    ------
    InputError
        If a folder, or a file that is no report, stands there, or it is inside a store.
    """
    target = Path(path)
    if any((folder / "zarr.json").exists() for folder in target.absolute().parents):
        raise _refused(path, "is inside a store, which is sealed", "name a place outside")
    if not os.path.lexists(target):
        return
    if not target.is_file():
        raise _refused(path, "is not a plain file", "name another place")
    with target.open("rb") as file:
        ours = MARK.encode() in file.read(_HEAD)
    if not ours and not overwrite:
        raise _refused(path, "is there, and is not a report", "name another place, or --overwrite")


def write_report(path: str, data: bytes, *, overwrite: bool = False) -> None:
    """Write a report, in place of an older one.

    Raises
    ------
    InputError
        As `check_target`; or if it cannot be written.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        check_target(path, overwrite=overwrite)
        with part.open("xb") as file:
            file.write(data)
        part.replace(target)
    except OSError as error:
        raise _refused(
            path, f"cannot be written ({error.strerror})", "check the folder and its rights"
        ) from error
    finally:
        part.unlink(missing_ok=True)


def _refused(path: str, message: str, cure: str) -> InputError:
    return InputError(Problem(path, message, cure, "target"))
