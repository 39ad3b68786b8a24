"""Layouts of PointSuite files, whose groups ``segments/segment_0000, …`` have a number each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from unistore.converters.formats.hdf5 import HDF5Dataset
from unistore.converters.formats.hdf5_groups import LargeGroup, rows_of_first
from unistore.converters.point_cloud.layouts import (
    NO_COLUMN,
    ColumnPoints,
    Points,
    choose,
    columns_of,
    described,
    left_out_of,
)
from unistore.converters.point_cloud.names import ColumnPlace, Described, FileLayout, Match, Segmented
from unistore.errors import InputError, Location
from unistore.plugin import OpenFile, offsets_of
from unistore.system.types import AnyArray, Int64s, JsonObject

SEGMENTS = "segments"
COUNT = "num_points"  # attribute of every segment of a PointSuite file
_FIX = "write the segments again"
_SEGMENT_MEMORY = 1 << 10  # bytes in memory per segment with a group of its own: name, number, bounds
_SEGMENT = re.compile(r"segment_[0-9]+", re.IGNORECASE)
_LARGEST = (1 << 63) - 1
# Datasets of a segment that are not columns
_SUMMARIES = ("unique_labels", "indices")


class SegmentGroups:
    """Groups of the segments of an open file, by number.

    Every method raises an `InputError` with the first problem.
    """

    def __init__(self, opened: OpenFile) -> None:
        self.members = LargeGroup(opened, SEGMENTS, _FIX)
        keys = [name for name in self.members.names if _SEGMENT.fullmatch(name)]
        self.keys = sorted(keys, key=_segment_number)

    @property
    def numbers(self) -> Int64s:
        """Number of each segment, (S,)."""
        return np.array([_segment_number(key) for key in self.keys], np.int64)

    def location(self, segment: int) -> Location:
        """Place of a segment in the file."""
        return self.members.location(self.keys[segment])

    def check_names(self) -> None:
        """Check that every group has a number of its own."""
        first: dict[int, str] = {}
        keys = set(self.keys)
        for key in self.members.names:
            if key not in keys:
                if not self.members.is_array(key):
                    message = "its name is not segment_ and a number, so its points would not be in a segment"
                    fix = "rename it", "move it out of segments/"
                    raise InputError.at(self.members.location(key), message, fix, "name")
                continue
            other = first.setdefault(_segment_number(key), key)
            if other != key:
                message = f"has the same number as {other}"
                raise InputError.at(self.members.location(key), message, "rename it", "twice")
            if _segment_number(key) > _LARGEST:
                message = f"has a number above {_LARGEST:,}"
                raise InputError.at(self.members.location(key), message, "rename it", "name")

    def dataset(self, segment: int, name: str) -> HDF5Dataset:
        """Return a dataset of a segment, whose values can be read."""
        return self.members.array(self.keys[segment], name)


def _segment_number(key: str) -> int:
    return int(key.rsplit("_", 1)[1])


def _has_segments(opened: OpenFile) -> bool:
    return LargeGroup.is_in(opened, SEGMENTS) and bool(SegmentGroups(opened).keys)


def check_names(opened: OpenFile) -> None:
    """Check that no link leads out of the given paths, and that every group of segments has a number."""
    if opened.unreachable:
        raise InputError(opened.unreachable)
    if LargeGroup.is_in(opened, SEGMENTS):
        SegmentGroups(opened).check_names()


class Indices(ColumnPoints):
    """``pointsuite_indices``: ``data/{x, y, z, …}`` and sorted rows, ``segments/segment_0000/indices``."""

    name: ClassVar[str] = "pointsuite_indices"

    @classmethod
    def match(cls, opened: OpenFile, mapping: Mapping[str, str]) -> Match:
        """Be certain of segments beside ``data``."""
        del mapping
        return Match.CERTAIN if "data" in opened.groups and _has_segments(opened) else Match.NO

    @classmethod
    def describe(cls, opened: OpenFile, mapping: Mapping[str, str]) -> Described:
        """Choose the columns among the arrays of ``data``."""
        chosen = choose(cls.name, columns_of(opened), "data", mapping, opened.name)
        chosen = replace(chosen, segmented="indices")
        return _described(opened, chosen, ["indices"])

    def segments(self) -> Segmented:
        """Read the rows of each segment when they are gone through."""
        groups = SegmentGroups(self.opened)
        lengths = np.zeros(len(groups.keys), np.int64)
        for segment in range(len(lengths)):
            lengths[segment] = len(_indices(groups, segment, self.rows))
        return Segmented(groups.numbers, lengths, self._rows(groups))

    def _rows(self, groups: SegmentGroups) -> Iterator[Int64s]:
        # Read row numbers, a step at a time: strictly ascending in a segment, inside ``0:rows``
        from unistore.converters.point_cloud.grids import STEP

        for segment in range(len(groups.keys)):
            dataset = _indices(groups, segment, self.rows)
            last = np.array([-1])
            for lo in range(0, len(dataset), STEP):
                rows = dataset.read(lo, min(lo + STEP, len(dataset))).astype(np.int64, copy=False)
                step = np.diff(rows, prepend=last)
                message = ""
                if (step < 0).any():
                    message = "is not sorted"
                if (step == 0).any():
                    message = "contains a row twice"
                if rows.min() < 0 or rows.max() >= self.rows:
                    message = f"contains rows outside of the {self.rows:,} rows of the file"
                if message:
                    raise InputError.at(dataset.location, message, _FIX, "range")
                last = rows[-1:]
                yield rows


def _indices(groups: SegmentGroups, segment: int, rows: int) -> HDF5Dataset:
    # The row numbers of a segment, of which there may be `rows`
    dataset = groups.dataset(segment, "indices")
    if dataset.dtype.kind not in "iu" or len(dataset.shape) != 1:
        message = f"is {dataset.dtype} {dataset.shape}, expected integers (n,)"
        raise InputError.at(dataset.location, message, _FIX, "dtype")
    if len(dataset) > rows:
        message = f"has {len(dataset):,} rows, but the file has only {rows:,}"
        raise InputError.at(dataset.location, message, _FIX, "range")
    return dataset


class InSegments(Points):
    """``pointsuite_columns``: ``segments/segment_0000/{x, y, z, …}``, each segment holds its own columns.

    The rows of the segments follow each other by number.
    """

    name: ClassVar[str] = "pointsuite_columns"

    @classmethod
    def match(cls, opened: OpenFile, mapping: Mapping[str, str]) -> Match:
        """Be certain of segments without ``data``."""
        del mapping
        return Match.CERTAIN if "data" not in opened.groups and _has_segments(opened) else Match.NO

    @classmethod
    def describe(cls, opened: OpenFile, mapping: Mapping[str, str]) -> Described:
        """Choose the columns of the first segment."""
        segments = SegmentGroups(opened)
        location = segments.location(0)
        arrays = segments.members.arrays(segments.keys[0])
        columns = {key: array for key, array in arrays.items() if key not in _SUMMARIES}
        chosen = choose(cls.name, columns, "", mapping, location)
        chosen = replace(
            chosen,
            points=int(_lengths(segments, chosen.layout.paths[0]).sum()),
            segmented="ranges",
            left_out=tuple(left_out_of(columns_of(opened), ())),
        )
        return _described(opened, chosen, chosen.layout.paths)

    def __init__(self, opened: OpenFile, layout: FileLayout) -> None:
        super().__init__(opened, layout)
        self._groups = SegmentGroups(opened)
        self._lengths = _lengths(self._groups, layout.paths[0])
        self._offsets = offsets_of(self._lengths)
        self.rows = int(self._offsets[-1])
        for segment in np.flatnonzero(self._lengths == 0).tolist():
            for place in (*layout.columns.values(), *layout.coordinates.values()):
                self._dataset(segment, place)

    def read(self, column: str, lo: int, hi: int) -> AnyArray:
        """Read rows of the concatenated segments."""
        place = self.layout.points[column]
        rows = np.empty((hi - lo, *place.row_shape), np.dtype(place.dtype).newbyteorder("="))
        first = int(np.searchsorted(self._offsets, lo, side="right")) - 1
        last = int(np.searchsorted(self._offsets, hi, side="left"))
        for segment in range(first, last):
            start, end = self._offsets[segment : segment + 2].tolist()
            begin = max(lo, start)
            stop = min(hi, end)
            dataset = self._dataset(segment, place)
            rows[begin - lo : stop - lo] = dataset.read(
                begin - start, stop - start, rows[begin - lo : stop - lo]
            )
        return rows

    def segments(self) -> Segmented:
        """Return numbers and lengths of the groups."""
        return Segmented(self._groups.numbers, self._lengths)

    def _dataset(self, segment: int, place: ColumnPlace) -> HDF5Dataset:
        # Return a dataset of a segment, which must be as that of the first one
        dataset = self._groups.dataset(segment, place.array)
        shape = (int(self._lengths[segment]), *place.row_shape)
        dtype = np.dtype(place.dtype)
        if dataset.shape != shape or dataset.dtype.newbyteorder("=") != dtype.newbyteorder("="):
            message = f"is {dataset.dtype} {dataset.shape}, expected {dtype} {shape}"
            raise InputError.at(dataset.location, message, _FIX, "length")
        return dataset


def _lengths(groups: SegmentGroups, column: str) -> Int64s:
    # The points of each segment (S,), from a column. Check that all have the same columns
    lengths = np.zeros(len(groups.keys), np.int64)
    expected: set[str] = set()
    for segment, key in enumerate(groups.keys):
        names = set(groups.members.inner_names(key))
        expected = expected or names
        if names != expected:
            columns, of_first = (", ".join(sorted(each)) for each in (names, expected))
            message = f"has the columns {columns}, but the first segment has {of_first}"
            raise InputError.at(groups.location(segment), message, _FIX, "columns")
        shape = groups.dataset(segment, column).shape
        lengths[segment] = shape[0] if shape else 0
    return lengths


def _described(opened: OpenFile, chosen: Described, members: Sequence[str]) -> Described:
    # Complete what is said of a file of segments. `members` are the datasets of each that are read
    segments = SegmentGroups(opened)
    paths = chosen.layout.paths if chosen.segmented == "indices" else []

    def is_recounted(path: str, item: Any, name: str, entry: JsonObject) -> bool:
        if name != COUNT or not path.startswith(f"{SEGMENTS}/"):
            return False
        return entry == {"dtype": "<i8", "value": rows_of_first(item, members)}

    attributes = segments.members.attributes(paths.__contains__, segments.keys, members, is_recounted)
    chosen = replace(chosen, memory=len(segments.keys) * _SEGMENT_MEMORY, attributes=attributes)
    whole = described(opened, chosen, paths)
    other_names = segments.members.other_names
    left_out = [(f"{SEGMENTS}/segment_N/{name}", NO_COLUMN) for name in other_names]
    return replace(
        whole,
        layout=whole.layout._replace(unit="m"),
        segments=len(segments.keys),
        left_out=(*whole.left_out, *left_out),
    )
