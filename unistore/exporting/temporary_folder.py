"""A temporary folder beside a destination, for one process at a time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from unistore.conversion.lock import Lock
from unistore.conversion.own_folder import check_own, check_plain


def temporary_folder_path(target: Path, purpose: str) -> Path:
    """Folder beside a target in which `temporary_folder` works; a killed process leaves it behind."""
    return target.with_name(f"{target.name}.{purpose}")


@contextmanager
def temporary_folder(target: Path, purpose: str) -> Iterator[Path]:
    """Yield an empty folder ``work`` in `temporary_folder_path`; it is removed at the end, also after errors.

    What a killed process left is removed first. `purpose` is the suffix of the outer folder's name, as in
    ``"unistore-export"``.

    Raises `ConversionError` if another process uses it, or it is a link or belongs to another user.
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
