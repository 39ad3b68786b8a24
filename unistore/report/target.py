"""Writes reports atomically, and overwrites nothing but reports."""

from __future__ import annotations

import os
from pathlib import Path

from unistore.errors import InputError, Problem
from unistore.pictures import MARK

_MARK_BYTES = 1024
"""The mark of a report is in its first bytes."""


def check_target(path: str, *, overwrite: bool = False) -> None:
    """Check that a report may be written to a path.

    Raises
    ------
    InputError
        If the path is a folder, a file that is not a report (unless `overwrite`), or inside a store.
    """
    target = Path(path)
    if any((folder / "zarr.json").exists() for folder in target.absolute().parents):
        raise _target_error(path, "is inside a store, which is sealed", "name a place outside")
    if not os.path.lexists(target):
        return
    if not target.is_file():
        raise _target_error(path, "is not a plain file", "name another place")
    with target.open("rb") as file:
        is_report = MARK.encode() in file.read(_MARK_BYTES)
    if not is_report and not overwrite:
        raise _target_error(path, "is there, and is not a report", "name another place, or --overwrite")


def write_report(path: str, data: bytes, *, overwrite: bool = False) -> None:
    """Write a report; an older one is replaced.

    Raises
    ------
    InputError
        As `check_target`, or if it cannot be written.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        check_target(path, overwrite=overwrite)
        with part.open("xb") as file:
            file.write(data)
        part.replace(target)
    except OSError as error:
        raise _target_error(
            path, f"cannot be written ({error.strerror})", "check the folder and its rights"
        ) from error
    finally:
        part.unlink(missing_ok=True)


def _target_error(path: str, message: str, cure: str) -> InputError:
    return InputError(Problem(path, message, cure, "target"))
