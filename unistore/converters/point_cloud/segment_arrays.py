"""Segments that arrays of a group describe: starts and ends, counts, offsets, lists of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

import numpy as np

from unistore.converters.formats.hdf5 import OpenedHdf5
from unistore.converters.formats.hdf5_groups import LargeGroup
from unistore.converters.point_cloud.layouts import ColumnPoints
from unistore.converters.point_cloud.names import Described, Match, Segmented
from unistore.converters.point_cloud.pointsuite import SEGMENTS
from unistore.errors import InputError, Location, location_of
from unistore.plugin import Array, OpenFile
from unistore.system.types import AnyArray, Int64s

# Names of arrays, in any case, by what they say of each segment. "" is a dataset that is called ``segments``.
_NAMES: Mapping[str, tuple[str, ...]] = {
    "start": ("start", "starts", "begin", "first"),
    "end": ("end", "ends", "stop"),
    "count": ("count", "counts", "num_points", "length", "lengths"),
    "offsets": ("offsets", "offset"),
    "start_end": ("start_end",),
    "start_count": ("start_count",),
    "pair": ("", "pairs", "ranges"),
    "indices": ("indices", "index"),
}
_UNKNOWN = "because segments need start and end, start and count, offsets, num_points, or ranges (S, 2)"
_FIX = "write the segments again, with segments/start and segments/count"
_MOST_TIMES = 64  # segments may overlap, so that together they hold each point as often as this


class _Ranges(NamedTuple):
    # Rows ``starts:ends`` of each segment, (S,)
    starts: Int64s
    ends: Int64s
    note: str = ""

    def problem(self, total: int) -> str:
        """Say why these are no ranges of `total` rows (empty: they are)."""
        wrong = np.flatnonzero((self.starts > self.ends) | (self.ends > total))
        if len(wrong):
            segment = wrong[0]
            rows = f"{self.starts[segment]}:{self.ends[segment]}"
            return f"segment {segment} has the rows {rows}, but there are {total:,}"
        gaps = self.starts[1:] - self.ends[:-1]
        is_one_short = len(gaps) == 0 and self.starts.tolist() == [0] and self.ends.tolist() == [total - 1]
        if is_one_short or (len(gaps) and (gaps == 1).all()):
            return "one row after each segment is in none; ends that include the last row are not supported"
        return ""

    def covers(self, total: int) -> bool:
        """Return whether each of `total` rows is in one segment, in their order."""
        edges = [0, *self.ends.tolist()]
        return bool(edges[-1] == total and self.starts.tolist() == edges[:-1])


def _of_ends(values: Sequence[Int64s], total: int) -> _Ranges:
    starts, ends = values
    is_short = len(ends) > 0 and ends.max() == total - 1 and not np.isin(ends, starts).any()
    note = (
        "the last end is the number of the last row, so no segment has that row; write end + 1 to include it"
    )
    return _Ranges(starts, ends, note if is_short else "")


def _of_counts(values: Sequence[Int64s], _total: int) -> _Ranges:
    starts, counts = values
    return _Ranges(starts, starts + counts)


def _of_ends_and_counts(values: Sequence[Int64s], _total: int) -> _Ranges:
    ends, counts = values
    return _Ranges(ends - counts, ends)


def _of_all_three(values: Sequence[Int64s], total: int) -> _Ranges:
    """Return ranges of starts and ends, with which counts must agree."""
    starts, ends, counts = values
    wrong = np.flatnonzero(ends - starts != counts)
    if len(wrong):
        segment = wrong[0]
        message = (
            f"is {counts[segment]} for segment {segment}, whose rows are {starts[segment]}:{ends[segment]}"
        )
        raise ValueError(message)
    return _of_ends((starts, ends), total)


def _of_lengths(values: Sequence[Int64s], total: int) -> _Ranges:
    ends = np.cumsum(values[0])
    if len(ends) and ends[-1] != total:
        message = f"adds up to {ends[-1]:,} rows, but there are {total:,}"
        raise ValueError(message)
    return _Ranges(ends - values[0], ends)


def _of_offsets(values: Sequence[Int64s], total: int) -> _Ranges:
    """Return ranges between offsets (S + 1,) that begin with 0, or ends (S,) of segments in a row."""
    offsets = values[0]
    if len(offsets) == 0 or offsets[-1] != total:
        message = f"ends with {offsets[-1] if len(offsets) else 'nothing'}, but there are {total:,} rows"
        raise ValueError(message)
    if offsets[0] != 0:
        note = "segments/offsets does not begin with 0, so its numbers are read as the ends of segments"
        return _Ranges(np.append(0, offsets[:-1]), offsets, note)
    return _Ranges(offsets[:-1], offsets[1:])


def _of_pairs(values: Sequence[Int64s], total: int) -> _Ranges:
    """Return ranges of start and end, or of start and count: whichever fits. Refuse if both do."""
    first, second = values[0].T
    as_ends = _Ranges(
        first, second, "pairs of segments are read as start and end, because start and count do not fit"
    )
    as_counts = _Ranges(
        first,
        first + second,
        "pairs of segments are read as start and count, because start and end do not fit",
    )
    readings = [reading for reading in (as_ends, as_counts) if not reading.problem(total)]
    if len(readings) > 1:  # both are ranges, and one of them has all rows
        readings = [
            reading._replace(note=reading.note.replace("fit", "cover all rows")) for reading in readings
        ]
    if not readings:
        message = f"is neither start and end nor start and count: {as_ends.problem(total)}"
        raise ValueError(message)
    is_same = np.array_equal(as_ends.ends, as_counts.ends)
    covering = [reading for reading in readings if reading.covers(total)]
    if len(readings) > 1 and not is_same and len(covering) != 1:
        message = "may be start and end of each segment, or start and count: both fit"
        raise ValueError(message)
    return (covering or readings)[0]


class _SegmentForm(NamedTuple):
    # How some arrays describe segments
    names: tuple[str, ...]  # of `_NAMES`
    ranges: Callable[[Sequence[Int64s], int], _Ranges]  # of their values and the number of rows
    row_shape: tuple[int, ...] = ()


# The first form whose arrays are all in a file is taken. With ``indices``, ranges are those of its values.
_FORMS = (
    _SegmentForm(("start", "end", "count"), _of_all_three),
    _SegmentForm(("start", "end"), _of_ends),
    _SegmentForm(("start", "count"), _of_counts),
    _SegmentForm(("end", "count"), _of_ends_and_counts),
    _SegmentForm(("start_end",), lambda values, total: _of_ends([*values[0].T], total), (2,)),
    _SegmentForm(("start_count",), lambda values, total: _of_counts([*values[0].T], total), (2,)),
    _SegmentForm(("offsets",), _of_offsets),
    _SegmentForm(("count",), _of_lengths),
    _SegmentForm(("pair",), _of_pairs, (2,)),
)


class _SegmentDatasets:
    # The arrays of a file that describe segments

    def __init__(self, opened: OpenFile) -> None:
        self.paths: dict[str, str] = {}  # of all arrays, by name in lower case
        self._arrays: dict[str, Array] = {}  # by path
        self._name = opened.name
        dataset = opened.all_arrays.get(SEGMENTS)
        if LargeGroup.is_in(opened, SEGMENTS):
            group = LargeGroup(opened, SEGMENTS, _FIX)
            for name, array in group.own_arrays().items():
                path = f"{SEGMENTS}/{name}"
                self.paths.setdefault(name.lower(), path)
                self._arrays[path] = array
        elif isinstance(opened, OpenedHdf5) and dataset is not None and _may_be_pairs(opened, dataset):
            self.paths[""] = SEGMENTS
            self._arrays[SEGMENTS] = dataset
        self.known: dict[str, str] = {}  # paths of the arrays of `_NAMES`
        for key, names in _NAMES.items():
            paths = [self.paths[name] for name in names if name in self.paths]
            # Numbers of another kind, such as lengths in metres, are no counts of rows.
            if paths and (key != "count" or self._arrays[paths[0]].dtype.kind in "iu"):
                self.known[key] = paths[0]
        fitting = [form for form in _FORMS if self.known.keys() >= set(form.names)]
        self.form = fitting[0] if fitting else None

    @property
    def roles(self) -> dict[str, str]:
        """Path of each array that is read, by its name in `_NAMES`."""
        names = (*self.form.names, "indices") if self.form is not None else ()
        return {name: self.known[name] for name in names if name in self.known}

    @property
    def used(self) -> set[str]:
        """Paths of the arrays that are read."""
        return set(self.roles.values())

    def indices(self) -> Array | None:
        """Return the array of row numbers, or None if ranges are those of the points."""
        path = self.known.get("indices")
        return None if path is None else self._checked(path, ())

    def ranges(self, total: int) -> _Ranges:
        """Read the ranges of each segment among `total` rows, or raise what is wrong with them."""
        assert self.form is not None
        paths = [self.known[name] for name in self.form.names]
        values = [self._values(path, total, self.form.row_shape) for path in paths]
        location = location_of(self._name, paths[-1])
        if len(set(map(len, values))) > 1:
            lengths = " and ".join(f"{path} {len(rows)}" for path, rows in zip(paths, values, strict=True))
            raise InputError.at(
                location, f"the arrays of segments differ in length: {lengths} rows", _FIX, "length"
            )
        try:
            ranges = self.form.ranges(values, total)
        except ValueError as error:
            raise InputError.at(location, str(error), _FIX, "range") from None
        message = ranges.problem(total)
        held = int((ranges.ends - ranges.starts).sum())
        if not message and held > _MOST_TIMES * total:
            allowed = f"more than {_MOST_TIMES} times the {total:,} of the file"
            message = f"the segments have {held:,} points in total, {allowed}"
        if message:
            raise InputError.at(location, message, _FIX, "range")
        return ranges

    def location(self, name: str) -> Location:
        """Place of a known array."""
        return location_of(self._name, self.known[name])

    def _checked(self, path: str, row_shape: tuple[int, ...]) -> Array:
        array = self._arrays[path]
        location = location_of(self._name, path)
        if problems := array.problems():
            raise InputError(problems)
        if (
            array.dtype.kind not in "iu"
            or len(array.shape) != 1 + len(row_shape)
            or array.shape[1:] != row_shape
        ):
            expected = ", ".join(map(str, row_shape))
            message = f"is {array.dtype} {array.shape}, expected integers (S,{expected and ' '}{expected})"
            raise InputError.at(location, message, _FIX, "dtype")
        return array

    def _values(self, path: str, total: int, row_shape: tuple[int, ...]) -> Int64s:
        # Values of one array, which are all rows or numbers of rows
        array = self._checked(path, row_shape)
        values: AnyArray = array.read(0, len(array))
        wrong = np.argwhere((values < 0) | (values > total))
        if len(wrong):
            place = tuple(wrong[0])
            message = f"is {values[place]} for segment {place[0]}, which is not between 0 and {total:,}"
            raise InputError.at(location_of(self._name, path), message, _FIX, "range")
        return values.astype(np.int64)


def described_rows(values: Mapping[str, AnyArray], points: int) -> tuple[Int64s, Int64s]:
    """Return the length of each segment, (S,), and the rows of all segments one after another.

    `values`: the arrays that describe the segments of a file of so many points, by their roles as
    `Described.segment_arrays` has them.

    Raises
    ------
    ValueError
        If the arrays contradict each other or the number of points.
    """
    indices = values.get("indices")
    form = next(form for form in _FORMS if {*form.names} == values.keys() - {"indices"})
    whole = np.arange(points) if indices is None else indices
    ranges = form.ranges([values[name].astype(np.int64) for name in form.names], len(whole))
    if message := ranges.problem(len(whole)):
        raise ValueError(message)
    bounds = zip(ranges.starts.tolist(), ranges.ends.tolist(), strict=True)
    rows = [np.zeros(0, np.int64), *(whole[start:end].astype(np.int64) for start, end in bounds)]
    return ranges.ends - ranges.starts, np.concatenate(rows)


def _may_be_pairs(opened: OpenFile, dataset: Array) -> bool:
    # A column of two numbers a point is as long as the other columns
    others = {array.shape[0] for name, array in opened.all_arrays.items() if name != SEGMENTS and array.shape}
    return dataset.shape[1:] == (2,) and dataset.dtype.kind in "iu" and dataset.shape[0] not in others


class SegmentArrays(ColumnPoints):
    """``segment_arrays``: columns in any group, and arrays of ``segments`` with a row a segment."""

    name: ClassVar[str] = "segment_arrays"

    @classmethod
    def match(cls, opened: OpenFile, mapping: Mapping[str, str]) -> Match:
        """Be as sure as of columns if there are arrays of segments."""
        return super().match(opened, mapping) if _SegmentDatasets(opened).paths else Match.NO

    @classmethod
    def describe(cls, opened: OpenFile, mapping: Mapping[str, str]) -> Described:
        """Choose the columns, and read where segments begin and end."""
        arrays = _SegmentDatasets(opened)
        # A dataset ``segments`` (S, 2) is no column.
        without_segments = {SEGMENTS: ""} if arrays.used == {SEGMENTS} else {}
        chosen = super().describe(opened, {**without_segments, **mapping})
        left_out = [item for item in chosen.left_out if item[0] not in arrays.used]
        unread = [path for path in arrays.paths.values() if path not in arrays.used and path != SEGMENTS]
        if arrays.form is None:
            left_out += [(path, _UNKNOWN) for path in unread]
            layout = chosen.layout._replace(name=ColumnPoints.name)
            return replace(chosen, layout=layout, left_out=tuple(left_out))
        left_out += [
            (path, f"because {' and '.join(sorted(arrays.used))} give the segments") for path in unread
        ]
        ranges = arrays.ranges(_total(arrays, chosen.points))
        is_in_order = "indices" not in arrays.known and ranges.covers(chosen.points)
        return replace(
            chosen,
            segments=len(ranges.starts),
            segmented="ranges" if is_in_order else "indices",
            segment_arrays=tuple(arrays.roles.items()),
            left_out=tuple(left_out),
            notes=(*chosen.notes, *filter(None, [ranges.note])),
        )

    def segments(self) -> Segmented:
        """Return the rows of each segment, in the order of the arrays."""
        arrays = _SegmentDatasets(self.opened)
        ranges = arrays.ranges(_total(arrays, self.rows))
        lengths = ranges.ends - ranges.starts
        numbers = np.arange(len(lengths), dtype=np.int64)
        if "indices" not in arrays.known and ranges.covers(self.rows):
            return Segmented(numbers, lengths)
        return Segmented(numbers, lengths, self._rows(arrays, ranges))

    def _rows(self, arrays: _SegmentDatasets, ranges: _Ranges) -> Iterator[Int64s]:
        # Row numbers, a step at a time
        from unistore.converters.point_cloud.grids import STEP

        indices = arrays.indices()
        for start, end in zip(ranges.starts.tolist(), ranges.ends.tolist(), strict=True):
            for lo in range(start, end, STEP):
                hi = min(lo + STEP, end)
                if indices is None:
                    yield np.arange(lo, hi)
                    continue
                rows: AnyArray = indices.read(lo, hi)
                if rows.min() < 0 or rows.max() >= self.rows:
                    message = f"contains rows outside of the {self.rows:,} rows of the file"
                    raise InputError.at(arrays.location("indices"), message, _FIX, "range")
                yield rows.astype(np.int64)


def _total(arrays: _SegmentDatasets, points: int) -> int:
    # Rows that ranges divide
    indices = arrays.indices()
    return points if indices is None else len(indices)
