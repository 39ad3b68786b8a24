"""``batches`` of the PointNet family: ``data`` (B, P, 3 | 6 | 9), B segments of P points each.

Arrays (B, P, …) such as ``label`` describe points; (B,), (B, 1) or (B, k) describe segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.plugin import Array, Opened
from unistore.converters.point_cloud.columns import (
    FEATURES,
    case_note,
    column_problems,
    lengths_problems,
    name_problems,
)
from unistore.converters.point_cloud.datasets import Columns, described, native
from unistore.converters.point_cloud.names import distinct_names
from unistore.converters.point_cloud.source import Described, Layout, Match, Place, Ranges
from unistore.errors import InputError, Problem, location_of
from unistore.schemas.point_cloud.fields import segment_fields

__all__ = ["NAME", "describe", "match", "points"]

NAME = "batches"

# Largest number of bytes per point of ``data``
_LARGEST_ROW = 9 * 8
# Arrays (B, P, …) or (B,); of any other shape they are wrong
_POINTWISE = ("label", "normal", "pid", "mask")


def match(opened: Opened, mapping: Mapping[str, str]) -> Match:
    """``data`` has the right shape; certain if there is a ``label`` of integers."""
    data = opened.all_arrays.get("data")
    label = opened.all_arrays.get("label")
    if data is None or len(data.shape) != 3 or data.shape[2] not in (3, 6, 9) or {"x", "xyz"} & set(mapping):
        return Match.NO
    return Match.CERTAIN if label is not None and label.dtype.kind in "iu" else Match.POSSIBLE


def describe(opened: Opened, mapping: Mapping[str, str]) -> Described:
    """Choose the columns: (B, P, …) of points; (B,), (B, 1) and (B, k) of segments."""
    name = opened.name
    arrays = opened.all_arrays
    stored, problems = _stored_names(arrays, name, mapping)
    for path in ("data", *stored):
        problems += arrays[path].problems()
    if problems:
        raise InputError(problems)
    data = arrays["data"]
    count, per_segment, width = data.shape
    problems = lengths_problems({path: arrays[path].shape for path in ("data", *stored)}, name)
    problems += column_problems(Place("data", data.dtype.str), name, coordinate=True)
    columns: dict[str, Place] = {}
    whole: dict[str, Place] = {}
    if width > 3:
        columns[FEATURES] = Place("data", data.dtype.str, (width - 3,))
    for path, key in stored.items():
        shape = arrays[path].shape
        by_point = shape[1:2] == (per_segment,) and per_segment != 1
        if not by_point and shape[1:2] not in ((), (1,)) and key in _POINTWISE:
            message = f"has shape {shape}, expected ({count},), ({count}, 1) or ({count}, {per_segment}, …)"
            problems.append(Problem.at(location_of(name, path), message, "write the file again", "length"))
        row_shape = shape[2:] if by_point else shape[1:]
        place = Place(path, arrays[path].dtype.str, () if row_shape == (1,) else row_shape)
        problems += column_problems(place, name)
        (columns if by_point else whole)[key] = place
    problems += name_problems({key: place.array for key, place in (columns | whole).items()}, (), name)
    problems += _index_problems(whole, name)
    if problems:
        raise InputError(problems)
    mapped = [source.strip("/") for source in mapping.values()]
    renamed = [case_note(path, key) for path, key in stored.items() if path != key and path not in mapped]
    layout = Layout(NAME, ("data",), (data.dtype.str,), columns, whole)
    chosen = Described(
        layout=layout,
        points=count * per_segment,
        segments=count,
        segmented="ranges",
        segments_are_rooms=True,
        memory=2 * per_segment * _LARGEST_ROW,
        notes=tuple(renamed),
    )
    return described(opened, chosen)


def _stored_names(
    arrays: Mapping[str, Array], name: str, mapping: Mapping[str, str]
) -> tuple[dict[str, str], list[Problem]]:
    """Stored names by array, of the arrays at the root except ``data``, and of mapped ones."""
    stored_names = {source.strip("/"): key for key, source in mapping.items() if source}
    problems = []
    for source, key in stored_names.items():
        if source not in arrays:
            message = f"is not there, but --map {key}={source} names it"
            problems.append(Problem.at(location_of(name, source), message, kind="missing"))
    gone = {"data", *(key for key, source in mapping.items() if not source)}
    own = [path for path, array in arrays.items() if "/" not in path and array.shape]
    stored = {path: stored_names.get(path, path) for path in own if path not in gone}
    stored |= {source: key for source, key in stored_names.items() if source in arrays and source != "data"}
    renamed = distinct_names(stored.values(), mapping)
    return {path: renamed.get(key, key) for path, key in stored.items()}, problems


def _index_problems(columns: Mapping[str, Place], name: str) -> Iterable[Problem]:
    """Problems of columns of segments that have the name of an index array."""
    kept = {*segment_fields(None), "name"}
    for key in kept.intersection(columns):
        location = location_of(name, columns[key].array)
        message = f"{key!r} is kept for the index"
        cure = "rename it with --map NEW=OLD"
        yield Problem.at(location, message, cure, "name")


class Batches(Columns):
    """Reads arrays (B, P, …), one row per segment."""

    def count(self) -> int:
        """See `Columns`."""
        count, self._per_segment = self.array("data").shape[:2]
        return int(count * self._per_segment)

    def read(self, column: str, lo: int, hi: int) -> NDArray[Any]:
        """Points ``lo:hi`` of the concatenated batches."""
        per_segment = self._per_segment
        first = lo // per_segment
        last = -(-hi // per_segment)
        if column == "xyz":
            return self._points("data", first, last)[lo - first * per_segment : hi - first * per_segment, :3]
        path, _, row_shape = self.layout.columns[column]
        points = self._points(path, first, last)[lo - first * per_segment : hi - first * per_segment]
        if path == "data":
            points = points[:, 3:]
        return points.reshape(hi - lo, *row_shape)

    def _points(self, path: str, first: int, last: int) -> NDArray[Any]:
        """All points of some batches."""
        rows = self.read_rows(path, first, last)
        return rows.reshape(-1, *rows.shape[2:])

    def segment_column(self, key: str) -> NDArray[Any]:
        """See `PointSource`."""
        path, _, row_shape = self.layout.segment_columns[key]
        array = self.array(path)
        rows = native(array.read(0, len(array)))
        return rows.reshape(len(rows), *row_shape)

    def segments(self) -> Ranges:
        """See `PointSource`."""
        numbers = np.arange(self.rows // max(1, self._per_segment), dtype=np.int64)
        return Ranges(numbers, np.full(len(numbers), self._per_segment, np.int64))


points = Batches
