"""A temporary folder beside a destination, for one process at a time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from unistore.conversion.lock import Lock
from unistore.conversion.own_folder import check_own, check_plain


def temporary_folder_path(target: Path, purpose: str) -> Path:
    """Folder that `temporary_folder` makes beside a target; a killed process leaves it behind."""
    return target.with_name(f"{target.name}.{purpose}")


@contextmanager
def temporary_folder(target: Path, purpose: str) -> Iterator[Path]:
    """Make an empty folder on the target's file system, and remove it at the end, also after an error.

    What a killed process left there is removed first.

    Parameters
    ----------
    target
        Path beside which the folder is made.
    purpose
        Suffix of the folder's name: ``"unistore-export"``.

    Raises
    ------
    ConversionError
        If another process uses the folder, or it is a link or belongs to another user.
    """
    folder = temporary_folder_path(target, purpose)
    work = folder / "work"
    check_plain(folder)
    try:
        with Lock(folder / "lock"):
            check_own(folder, folder / "lock")
            if work.exists():
                shutil.rmtree(work)
            work.mkdir()
            try:
                yield work
            finally:
                shutil.rmtree(work, ignore_errors=True)
    finally:
        with suppress(OSError):  # not empty if another process uses it
            if not (folder / "lock").exists():
                for left in folder.glob("lock.*"):  # of processes that were killed while they took the lock
                    left.unlink(missing_ok=True)
                folder.rmdir()
