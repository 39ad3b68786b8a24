"""``batches`` of the PointNet family: ``data`` (B, P, 3 | 6 | 9), B segments of P points each.

Datasets (B, P, …) such as ``label`` describe points; (B,), (B, 1) or (B, k) describe segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import Column
from unistore.converters.common.originals import open_with_h5py
from unistore.converters.files.hdf5 import file as hdf5
from unistore.converters.files.hdf5.file import SUFFIXES, location_of
from unistore.converters.files.hdf5.tree import Tree
from unistore.converters.parts import Candidate
from unistore.converters.point_cloud.column_problems import column_problems, lengths_problems, name_problems
from unistore.converters.point_cloud.columns import FEATURES, case_note
from unistore.converters.point_cloud.datasets import (
    Datasets,
    datasets_left_out,
    make_layout,
    open_checked,
    open_file,
    opener,
)
from unistore.converters.point_cloud.names import distinct_names
from unistore.converters.point_cloud.source import Layout, Match, Original, Ranges, column_paths
from unistore.converters.scan import Source
from unistore.errors import InputError, Problem
from unistore.schemas.indices import contradiction
from unistore.schemas.point_cloud.fields import SEGMENTS, segment_fields

if TYPE_CHECKING:
    from unistore.converters.common.exported import File
    from unistore.converters.point_cloud.cloud import Cloud


__all__ = ["NAME", "SUFFIXES", "describe", "exported", "match", "open_original", "open_points"]

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


@contextmanager
def open_original(source: Source) -> Iterator[Original]:
    """Read the datasets with h5py alone, one row per point."""
    paths = column_paths(source.detail)
    with open_with_h5py(source.path) as file:

        def column(key: str) -> NDArray[Any]:
            rows: NDArray[Any] = file[paths[key]][()]
            rows = rows.reshape(rows.shape[0] * rows.shape[1], *rows.shape[2:])
            if paths[key] != "data":
                return rows
            return rows[:, :3] if key == "xyz" else rows[:, 3:]

        yield Original(
            column,
            lambda key: file[source.detail["segment_columns"][key][0]][()],
            left_out=datasets_left_out(file, source.detail),
        )


def exported(cloud: Cloud) -> File:
    """``data`` (B, P, 3 | 6 | 9) and every other column."""
    from unistore.converters.point_cloud.cloud import hdf5_file, kept_attributes, lazy_values

    count, points, columns = len(cloud.numbers), cloud.source.hi - cloud.source.lo, cloud.layout["columns"]
    if (np.diff(cloud.bounds) * max(1, count) != points).any():
        message = f"segments of {cloud.source.name} differ in length, expected batches of one length"
        raise contradiction(cloud.store, f"{SEGMENTS}/offsets", message)
    batches = (count, points // max(1, count))
    others = [name for name, (path, _, _) in columns.items() if path != "data"]
    width = 3 + sum(cloud.row_shape(name)[0] for name in columns if name not in others)

    def data() -> NDArray[Any]:
        parts = [cloud.coordinates(axis)[:, None] for axis in range(3)]
        parts += [cloud.column(name) for name in columns if name not in others]
        return np.concatenate(parts, axis=1).reshape(*batches, width)

    def column(name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        return cloud.column(name).reshape(shape)

    values = {"data": lazy_values(data, (*batches, width), cloud.coordinate_dtype(0))}
    for name in others:
        shape = (*batches, *cloud.row_shape(name))
        values[columns[name][0]] = lazy_values(partial(column, name, shape), shape, cloud.own_dtype(name))
    for name, (path, stored, _) in cloud.layout["segment_columns"].items():
        shape = (count, *cloud.store.array(f"{SEGMENTS}/{name}").shape[1:])
        values[path] = lazy_values(partial(cloud.segment_column, name), shape, np.dtype(stored))
    return hdf5_file(cloud, values, kept_attributes(cloud))
