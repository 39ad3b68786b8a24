"""``batches`` of the PointNet family: ``data`` (B, P, 3 | 6 | 9), B segments of P points each.

Datasets (B, P, …) such as ``label`` describe points; (B,), (B, 1) or (B, k) describe segments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import Column
from unistore.converters.files.hdf5 import file as hdf5
from unistore.converters.files.hdf5.file import SUFFIXES, location_of
from unistore.converters.files.hdf5.tree import Tree
from unistore.converters.point_cloud.columns import (
    FEATURES,
    case_note,
    column_problems,
    lengths_problems,
    name_problems,
)
from unistore.converters.point_cloud.datasets import (
    Datasets,
    make_layout,
    open_checked,
    open_file,
    opener,
)
from unistore.converters.point_cloud.names import distinct_names
from unistore.converters.point_cloud.source import Layout, Match, Ranges
from unistore.converters.scan import Candidate
from unistore.errors import InputError, Problem
from unistore.schemas.point_cloud.fields import segment_fields

if TYPE_CHECKING:
    pass


__all__ = ["NAME", "SUFFIXES", "describe", "match", "open_points"]

NAME = "batches"

_LARGEST_ROW = 9 * 8
"""Largest number of bytes per point of ``data``."""
_POINTWISE = ("label", "normal", "pid", "mask")
"""Datasets (B, P, …) or (B,); of any other shape they are wrong."""


def match(file: Candidate, mapping: Mapping[str, str]) -> Match:
    """``data`` has the right shape; certain if there is a ``label`` of integers."""
    datasets = open_file(file).tree.datasets
    data, label = datasets.get("data"), datasets.get("label")
    if data is None or data.ndim != 3 or data.shape[2] not in (3, 6, 9) or {"x", "xyz"} & set(mapping):
        return Match.NO
    return Match.CERTAIN if label is not None and label.dtype.kind in "iu" else Match.POSSIBLE


def describe(file: Candidate, mapping: Mapping[str, str]) -> Layout:
    """Choose the columns: (B, P, …) of points; (B,), (B, 1) and (B, k) of segments."""
    found, name = open_checked(file), file.name
    datasets = found.tree.datasets
    stored, problems = _stored_names(found.tree, name, mapping)
    for path in ("data", *stored):
        problems += hdf5.check_dataset(datasets[path], location_of(name, path))
    if problems:
        raise InputError(problems)
    data = datasets["data"]
    count, per_segment, width = data.shape
    problems = lengths_problems({path: datasets[path].shape for path in ("data", *stored)}, name)
    problems += column_problems(Column(data.dtype.str), name, "data", coordinate=True)
    columns: dict[str, tuple[str, Column]] = {}
    whole: dict[str, tuple[str, Column]] = {}
    if width > 3:
        columns[FEATURES] = ("data", Column(data.dtype.str, (width - 3,)))
    for path, key in stored.items():
        shape = datasets[path].shape
        by_point = shape[1:2] == (per_segment,) and per_segment != 1
        if not by_point and shape[1:2] not in ((), (1,)) and key in _POINTWISE:
            message = f"has shape {shape}, expected ({count},), ({count}, 1) or ({count}, {per_segment}, …)"
            problems.append(Problem.at(location_of(name, path), message, "write the file again", "length"))
        row_shape = shape[2:] if by_point else shape[1:]
        form = Column(datasets[path].dtype.str, () if row_shape == (1,) else row_shape)
        problems += column_problems(form, name, path)
        (columns if by_point else whole)[key] = (path, form)
    problems += name_problems({key: path for key, (path, _) in (columns | whole).items()}, (), name)
    for key in whole:
        if key in (*segment_fields(None), "name"):
            message, cure = f"{key!r} is kept for the index", "rename it with --map NEW=OLD"
            problems.append(Problem.at(location_of(name, whole[key][0]), message, cure, "name"))
    if problems:
        raise InputError(problems)
    mapped = [source.strip("/") for source in mapping.values()]
    renamed = [case_note(path, key) for path, key in stored.items() if path != key and path not in mapped]
    chosen = Layout(
        format=NAME,
        points=count * per_segment,
        xyz=("data",),
        xyz_stored=(data.dtype.str,),
        columns=columns,
        notes=tuple(renamed),
    )
    return make_layout(
        found,
        chosen,
        segments=count,
        segmented="ranges",
        segment_columns=whole,
        segments_are_rooms=True,
        memory=2 * per_segment * _LARGEST_ROW,
    )


def _stored_names(tree: Tree, name: str, mapping: Mapping[str, str]) -> tuple[dict[str, str], list[Problem]]:
    """Stored names by dataset, of the datasets at the root except ``data``, and of mapped ones."""
    wanted = {source.strip("/"): key for key, source in mapping.items() if source}
    problems = [
        Problem.at(
            location_of(name, source), f"is not there, but --map {key}={source} names it", kind="missing"
        )
        for source, key in wanted.items()
        if source not in tree.datasets
    ]
    gone = {"data", *(key for key, source in mapping.items() if not source)}
    own = [path for path, dataset in tree.datasets.items() if "/" not in path and dataset.shape]
    stored = {path: wanted.get(path, path) for path in own if path not in gone}
    stored |= {source: key for source, key in wanted.items() if source in tree.datasets and source != "data"}
    renamed = distinct_names(stored.values(), mapping)
    return {path: renamed.get(key, key) for path, key in stored.items()}, problems


class _Batches(Datasets):
    """Reads datasets (B, P, …), one row per segment."""

    def _count(self) -> int:
        count, self._each = self._file["data"].shape[:2]
        return int(count * self._each)

    def block(self, columns: Sequence[str], lo: int, hi: int) -> list[NDArray[Any]]:
        return [self._column(column, lo, hi) for column in columns]

    def _column(self, key: str, lo: int, hi: int) -> NDArray[Any]:
        """Points ``lo:hi`` of the concatenated batches."""
        first, last = lo // self._each, -(-hi // self._each)
        path = self._paths[key]
        rows = self._read(path, first, last)
        rows = rows.reshape(-1, *rows.shape[2:])[lo - first * self._each : hi - first * self._each]
        if key == "xyz":
            return rows[:, :3]
        row_shape = self._detail["columns"][key][2]
        return (rows[:, 3:] if path == "data" else rows).reshape(hi - lo, *row_shape)

    def segment_column(self, key: str) -> NDArray[Any]:
        path, _, row_shape = self._detail["segment_columns"][key]
        rows = hdf5.read_rows(self._file[path], location_of(self._name, path))
        return rows.reshape(len(rows), *row_shape)

    def segments(self) -> Ranges:
        count = np.arange(self.rows // max(1, self._each), dtype=np.int64)
        return Ranges(count, np.full(len(count), self._each, np.int64))


open_points = opener(_Batches)
