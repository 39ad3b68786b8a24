"""The layouts of point clouds in HDF5.

``pointsuite_indices``
    ``data/{x, y, z, …}`` and ``segments/segment_0000/indices``: row numbers of each segment, sorted.
``pointsuite_columns``
    ``segments/segment_0000/{x, y, z, …}``: every segment holds its own columns.
``batches``
    ``data`` (B, P, 3 | 6 | 9) and ``label`` (B,), (B, 1) or (B, P): one row is one segment of P points.
``columns``
    x, y and z in one group, in either case, or wherever ``--map`` says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from unistore.converters.common.columns import Column
from unistore.converters.files.hdf5.file import names_in, place
from unistore.errors import Problem

__all__ = [
    "BATCHES",
    "COLUMNS",
    "FEATURES",
    "INDICES",
    "IN_SEGMENTS",
    "Layout",
    "header_of",
    "plain",
    "segment_names",
    "segment_number",
    "segment_problems",
    "to_json",
]

INDICES = "pointsuite_indices"
IN_SEGMENTS = "pointsuite_columns"
BATCHES = "batches"
COLUMNS = "columns"

FEATURES = "features"
"""Stored name of what follows x, y, z in ``data`` (B, P, 6 | 9): colours, normals, … as the source has it."""

_SEGMENT = re.compile(r"segment_[0-9]+", re.IGNORECASE)
_LARGEST = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a file was recognised as, and all that reading it takes.

    Attributes
    ----------
    kind
        One of the four layouts.
    points, segments
        How many there are.
    xyz
        Datasets of x, y, z, or one dataset of coordinates (N, 3) or (B, P, 3 | 6 | 9).
    xyz_stored
        Their dtypes, byte order included.
    columns
        Dataset and form of each column of the points, by stored name.
    segment_columns
        The same for columns of whole segments.
    scale, offset
        From the file's header: x, y, z; None if it has none.
    header
        All attributes of the header (JSON).
    files
        Further files that are read.
    reading
        Bytes of large chunks that are held while columns are read, of all columns.
    notes
        Remarks about this file.
    """

    kind: str
    points: int
    segments: int
    xyz: tuple[str, ...]
    xyz_stored: tuple[str, ...]
    columns: Mapping[str, tuple[str, Column]]
    segment_columns: Mapping[str, tuple[str, Column]] = field(default_factory=dict)
    scale: tuple[float, ...] | None = None
    offset: tuple[float, ...] | None = None
    header: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    reading: int = 0
    notes: tuple[str, ...] = ()

    @property
    def xyz_dtype(self) -> str:
        """``"float32"`` where all three axes are floats of at most that size, else ``"float64"``."""
        dtypes = [np.dtype(dtype) for dtype in self.xyz_stored]
        return "float32" if all(dtype.kind == "f" and dtype.itemsize <= 4 for dtype in dtypes) else "float64"


def to_json(layout: Layout) -> dict[str, Any]:
    """What reading a file takes, as JSON."""
    return {
        "layout": layout.kind,
        "xyz": list(layout.xyz),
        "xyz_stored": list(layout.xyz_stored),
        "xyz_dtype": layout.xyz_dtype,
        "columns": _forms(layout.columns),
        "segment_columns": _forms(layout.segment_columns),
        "scale": None if layout.scale is None else list(layout.scale),
        "offset": None if layout.offset is None else list(layout.offset),
        "header": dict(layout.header),
    }


def _forms(columns: Mapping[str, tuple[str, Column]]) -> dict[str, Any]:
    return {key: [path, form.dtype, list(form.row_shape)] for key, (path, form) in columns.items()}


def segment_names(group: h5py.Group) -> list[str]:
    """Names of the segments in a group, by number: ``segment_9999`` before ``segment_10000``."""
    return sorted((key for key in names_in(group, "segments") if _SEGMENT.fullmatch(key)), key=segment_number)


def segment_problems(group: h5py.Group, name: str) -> list[Problem]:
    """Members of the group of segments whose names number no segment, or the same one twice.

    Parameters
    ----------
    group
        ``segments``.
    name
        How messages call the file.
    """
    problems = []
    first: dict[int, str] = {}
    for key in names_in(group, place(name, "segments")):
        location = place(name, f"segments/{key}")
        if _SEGMENT.fullmatch(key):
            number = segment_number(key)
            other = first.setdefault(number, key)
            if other != key:
                message = f"has the number of another segment, {other}"
                problems.append(Problem(location, message, "rename it", "twice"))
            elif number > _LARGEST:
                message = f"has a number above {_LARGEST}"
                problems.append(Problem(location, message, "rename it", "name"))
        elif not isinstance(group.get(key, getlink=True), h5py.HardLink) or isinstance(
            group[key], h5py.Group
        ):
            message = "is a group among segments whose name is not segment_ and a number, as in segment_0007"
            cure = "rename it, or move it out of segments/: its points would belong to no segment"
            problems.append(Problem(location, message, cure, "name"))
    return problems


def segment_number(key: str) -> int:
    """Number in a segment's name."""
    return int(key.rsplit("_", 1)[1])


def header_of(file: h5py.File, name: str) -> dict[str, Any]:
    """All attributes of the group ``header``, as JSON; empty if there is none."""
    group = file.get("header")
    if group is None:
        return {}
    return {key: plain(group.attrs[key]) for key in names_in(group.attrs, place(name, "header"))}


def plain(value: object) -> object:
    """An attribute as JSON."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool) else str(value)
