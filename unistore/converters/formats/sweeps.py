"""Open sweeps of KITTI, SemanticKITTI and nuScenes: float32 values of points, one after the other."""

# Nothing in such a file says what it is. Its name or its folder does, or the user.

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from unistore.converters.array import Array
from unistore.converters.claims import Claim, maybe, no, sure
from unistore.converters.common.faults import COPY_AGAIN
from unistore.converters.formats.sweep_times import SweepTimes, times_of
from unistore.converters.opened import Format, OpenFile, SourceFile
from unistore.errors import first_few

_KITTI = ("x", "y", "z", "intensity")
_NUSCENES = (*_KITTI, "ring")
_LABELS = "labels"
_TELL = "move files with 4 values per point to a folder velodyne, files with 5 to a folder LIDAR_TOP"


class Sweep(Format):
    """``x``, ``y``, ``z``, ``intensity``, nuScenes' ``ring``, SemanticKITTI's ``label`` and ``instance``."""

    name = "sweep"
    suffixes = (".bin",)

    def recognise(self, file: SourceFile) -> Claim:
        """Take what a name says to be a sweep. What may be one by its size, if the user says so."""
        fitting = _fitting(file.size)
        if is_sweep(file.path):
            return sure("has the name of a lidar sweep")
        if len(fitting) > 1:
            return no(f"has {file.size:,} bytes, which fit points of 4 values and of 5; {_TELL}")
        if fitting:
            return maybe("may be a lidar sweep, by its size")
        return no("is not a lidar sweep, by its size")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        file.check_whole()
        (columns,) = _named(file.path) or _fitting(file.size)
        if file.size % (4 * len(columns)):
            raise file.problem(
                f"has {file.size:,} bytes, which is not a whole number of points: each has "
                f"{4 * len(columns)} bytes, for {len(columns)} values",
                COPY_AGAIN,
                "truncated",
            )
        points = np.memmap(file.path, "<f4", "r").reshape(-1, len(columns))
        arrays = {name: Array(points[:, number]) for number, name in enumerate(columns)}
        labels = _labels(file, len(points))
        if labels is not None:
            packed = np.memmap(labels.path, "<u4", "r").view("<u2").reshape(-1, 2)  # the low half first
            arrays["label"] = Array(packed[:, 0])
            arrays["instance"] = Array(packed[:, 1])
        times = times_of(file) if _is_raw(file.path) else SweepTimes()
        notes = {}
        if times.unread:
            fix = f"give the folder {file.path.parent.parent.name} to store the times of the sweeps"
            notes["x"] = f"{first_few(times.unread)}: not read, because it is outside the given paths; {fix}"
        further = times.files if labels is None else (labels, *times.files)
        metadata = {"times": times.times} if times.times else {}
        yield OpenFile(arrays, metadata=metadata, further=further, notes=notes)


def is_sweep(path: Path) -> bool:
    """Return whether a file is a sweep by its name or folder."""
    return bool(_named(path))


def _named(path: Path) -> list[tuple[str, ...]]:
    """Columns, if a name or folder tells them."""
    parent = path.parent
    folder = (parent.parent if _is_raw(path) else parent).name.lower()
    if path.name.lower().endswith(".pcd.bin") or folder == "lidar_top":
        return [_NUSCENES]
    return [_KITTI] if folder.startswith("velodyne") else []


def _is_raw(path: Path) -> bool:
    """Return whether a sweep is one of KITTI's raw recordings: velodyne_points/data/0000000000.bin."""
    return path.parent.name.lower() == "data" and path.parent.parent.name.lower() == "velodyne_points"


def _fitting(size: int) -> list[tuple[str, ...]]:
    return [columns for columns in (_KITTI, _NUSCENES) if size and size % (4 * len(columns)) == 0]


def _labels(file: SourceFile, points: int) -> SourceFile | None:
    """Return the file of labels, if there is a folder of them beside that of the sweeps."""
    if not (file.path.parent.parent / _LABELS).is_dir():
        return None
    labels = file.beside(f"../{_LABELS}/{file.path.stem}.label")
    if labels.size != 4 * points:
        raise labels.problem(
            f"has {labels.size:,} bytes, but {points:,} points need {4 * points:,}", COPY_AGAIN, "length"
        )
    return labels
