"""Check of free disk space, before values are read."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterable
from math import prod
from pathlib import Path

from unistore.conversion.plan import TablePlan
from unistore.errors import InputError, Problem
from unistore.system.progress import NO_PROGRESS, Progress
from unistore.system.sizes import size

_ENTRY = 16
"""Bytes of a chunk in its shard's index, which exists even if all chunks are empty."""


def predicted_bytes(tables: Iterable[TablePlan]) -> int:
    """Upper bound: uncompressed bytes of all tables; spilled ones twice, as they are written twice."""
    return sum(table.rows * table.row_bytes * (1 + table.spilled) for table in tables)


def least_bytes(tables: Iterable[TablePlan]) -> int:
    """Lower bound for any codec and any values: the bytes of the shard indexes."""
    return sum(
        prod(-(-extent // step) for extent, step in zip(array.shape, array.shard, strict=True))
        * prod(-(-extent // step) for extent, step in zip(array.shard, array.chunk, strict=True))
        * _ENTRY
        for table in tables
        if not table.spilled
        for array in table.arrays
    )


def check_space(
    destination: Path, build: Path, tables: Iterable[TablePlan], progress: Progress = NO_PROGRESS
) -> None:
    """Warn if the free space may not suffice, and refuse if it cannot.

    Parameters
    ----------
    destination
        Folder of the future store.
    build
        Build folder; the files of an earlier run in it count as free space.
    tables
        Tables to write.
    progress
        Receives the warning; without one, it is a `UserWarning`.

    Raises
    ------
    InputError
        If the free space is below `least_bytes`.
    """
    tables = tuple(tables)
    existing = next(
        each for each in (destination.absolute(), *destination.absolute().parents) if each.exists()
    )
    room = shutil.disk_usage(existing).free + _folder_bytes(build)
    cure = "free space there, or choose another destination"
    if room < (least := least_bytes(tables)):
        message = f"the disk has room for {size(room)}, and any store of these sources takes {size(least)}"
        raise InputError(Problem(str(destination), message, cure, "space"))
    if room < (most := predicted_bytes(tables)):
        line = (
            f"warning: {destination}: the disk has room for {size(room)}; uncompressed, this takes up to "
            f"{size(most)} ({cure}; if it fills up, the same command continues once there is room)"
        )
        if progress is NO_PROGRESS:
            warnings.warn(line.removeprefix("warning: "), stacklevel=2)
        else:
            progress.tell(line)


def _folder_bytes(folder: Path) -> int:
    """Bytes of the files in a folder."""
    found = 0
    for above, _, names in os.walk(folder):
        for name in names:
            path = Path(above) / name
            found += path.lstat().st_size if path.exists() else 0
    return found
