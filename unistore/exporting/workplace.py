"""A folder beside a destination to work in: one process at a time, and nothing left when it is done."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from unistore.conversion.lock import Lock
from unistore.conversion.own_folder import check_own, check_plain

__all__ = ["beside", "workplace"]


def beside(target: Path, purpose: str) -> Path:
    """Folder that `workplace` makes beside a target, and that a killed process leaves there."""
    return target.with_name(f"{target.name}.{purpose}")


@contextmanager
def workplace(target: Path, purpose: str) -> Iterator[Path]:
    """Make an empty folder on the target's file system, and remove it at the end, however that comes.

    What a killed process left there is removed first.

    Parameters
    ----------
    target
        Path beside which to work.
    purpose
        Ending of the folder's name: ``"unistore-export"``.

    Raises
    ------
    ConversionError
        If another process is at work there, or the folder is a link or another user's.
    """
    folder = beside(target, purpose)
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
        with suppress(OSError):  # not empty while another process is at work there
            if not (folder / "lock").exists():
                for left in folder.glob("lock.*"):  # of processes that were killed while they took the lock
                    left.unlink(missing_ok=True)
                folder.rmdir()
