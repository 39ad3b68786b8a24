"""Derive a point cloud file: points in storage order, exact coordinates, voxel grids, index arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unistore.converters.point_cloud import grids
from unistore.converters.point_cloud.coordinates import DecimalPlaces, quantise
from unistore.converters.point_cloud.grids import (
    GridWindows,
    Integers,
    Workspace,
    begin_voxels,
    emit_outside,
    index_dtype,
    voxelise,
    window_rows,
)
from unistore.converters.point_cloud.layouts import Points
from unistore.converters.point_cloud.names import LABEL, Described, FileLayout, PointOrigin, is_label
from unistore.converters.point_cloud.options import PointCloudOptions, SegmentRule, parse_segment
from unistore.errors import AddOptions, InputError, Problem, first_few
from unistore.plugin import (
    Emit,
    Field,
    Source,
    SourceArrays,
    missing_value,
    offsets_of,
)
from unistore.schemas.point_cloud.fields import (
    NO_SEGMENT,
    POINTS,
    voxel_group,
)
from unistore.system.types import AnyArray, Float64s, Int64s

_XYZ = "xyz"


def bounds_of(axes: Sequence[AnyArray], offsets: Int64s) -> Float64s:
    """Return minimum and maximum of each segment, (S, 2, 3) f8, zeros where no point is finite."""
    bounds = np.zeros((len(offsets) - 1, 2, 3))
    filled = np.flatnonzero(np.diff(offsets))
    if len(filled):
        for number, axis in enumerate(axes):
            bounds[filled, 0, number] = np.fmin.reduceat(axis, offsets[filled])
            bounds[filled, 1, number] = np.fmax.reduceat(axis, offsets[filled])
    bounds[~np.isfinite(bounds).all(axis=(1, 2))] = 0
    return bounds


class Partition(NamedTuple):
    """Segments of one source in storage order. The segment of number -1 comes last."""

    rows: Integers | None  # rows of the source, segment by segment; None: all rows in the source's order
    lengths: Int64s  # points of each segment, (S,)
    numbers: Int64s  # number of each segment, (S,)


def partition_of(
    pieces: Iterable[Integers], lengths: Int64s, numbers: Int64s, points: int, work: Workspace
) -> Partition:
    """Return segments given by their rows, those of no segment last, as number -1, in the source's order.

    `pieces` are the rows of all segments, one after another. A row may be in several segments.
    """
    count = int(lengths.sum())
    rows = work.column(index_dtype(points), count + points)
    is_unlisted = work.column("?", points)
    is_unlisted[:] = True
    end = 0
    for piece in pieces:
        for lo, hi in work.steps(0, len(piece)):
            rows[end : end + hi - lo] = piece[lo:hi]
            is_unlisted[piece[lo:hi]] = False
            end += hi - lo
    for lo, hi in work.steps(0, points):
        unlisted = np.flatnonzero(is_unlisted[lo:hi]) + lo
        rows[end : end + len(unlisted)] = unlisted
        end += len(unlisted)
    if end > count:
        lengths = np.append(lengths, end - count)
        numbers = np.append(numbers, NO_SEGMENT)
    return Partition(rows[:end], lengths, numbers)


def blocks_of(lengths: Int64s, limit: int) -> Iterator[tuple[int, int]]:
    """Divide segments into ranges with at most `limit` points together, or one segment with more points."""
    first = 0
    points = 0
    for segment, length in enumerate(lengths.tolist()):
        if segment > first and points + length > limit:
            yield first, segment
            first = segment
            points = 0
        points += length
    if first < len(lengths):
        yield first, len(lengths)


def id_column(layout: FileLayout, name: str, location: str) -> str:
    """Return the stored name of the column of ids that a user names by that, or by its path in the file."""
    names = [key for key, place in layout.columns.items() if name in (key, place.array)]
    if not names:
        columns = first_few(list(layout.columns), 40) or "none"
        message = f"has no column {name!r} with ids of segments; columns: {columns}"
        raise InputError.at(location, message, "name one of them: --segment column:NAME", "missing")
    place = layout.columns[names[0]]
    if np.dtype(place.dtype).kind not in "iu" or place.row_shape:
        form = f"{np.dtype(place.dtype)} {('N', *place.row_shape)}".replace("'", "")
        message = f"its column {name!r} is {form}, but ids of segments are integers (N,)"
        raise InputError.at(location, message, "name another column: --segment column:NAME", "dtype")
    return names[0]


class DerivedCloud:
    """The points of an open file in storage order. Without a folder, all of them are in memory."""

    def __init__(
        self,
        points: Points,
        source: Source,
        options: PointCloudOptions,
        emit: Emit,
        folder: Path | None,
        renumber: Callable[[AnyArray, str], AnyArray] | None,
    ) -> None:
        if not points.rows:
            raise InputError.at(source.name, "contains no points", "skip it with --exclude", "empty")
        self._points = points
        self._name = source.name
        self._origin: PointOrigin = source.detail
        self._own = self._origin.layout.columns
        self._emit = emit
        self._work = Workspace(folder)
        self._renumber = renumber
        self._held: dict[str, AnyArray] = {}
        segments = points.segments()
        self._drops = segments is None and options.nan == "drop"
        if segments is None and (options.segment is not None or self._drops):
            partition = self._cut(options)
        elif segments is None:
            partition = Partition(None, np.array([points.rows]), np.zeros(1, np.int64))
        elif segments.rows is None:
            partition = Partition(None, segments.lengths, segments.numbers)
        else:
            numbers = segments.numbers
            partition = partition_of(segments.rows, segments.lengths, numbers, points.rows, self._work)
        self._rows, self._lengths, self._numbers = partition
        self._offsets = offsets_of(self._lengths)
        self._bounds = np.zeros((len(self._lengths), 2, 3))
        self._quantum = self._origin.layout.quantum
        self._decimals = DecimalPlaces()
        self._voxels = {size: np.zeros(len(self._lengths), np.int64) for size in options.voxel_size}

    def derive(self, columns: Mapping[str, Field], segment_columns: Mapping[str, Field]) -> SourceArrays:
        """Emit points and voxels, and return what the index needs. Columns that the file lacks are filled.

        The arrays are `lengths` and `numbers` (S,), `bounds` (S, 2, 3), `quantised` (), `places` () as of
        `DecimalPlaces`, `voxels/<size>` (S,) with the voxels of each segment, `segments/<column>` (S, …),
        and `labelled/<column>` ().
        """
        prepared = self._emit_coordinates(columns)
        prepared |= self._emit_columns(columns)
        return prepared | self._segment_arrays(segment_columns)

    def _cut(self, options: PointCloudOptions) -> Partition:
        # Divide a file without segments into windows. Points that are not finite are in none
        dtype = self._origin.layout.xyz_dtype
        xyz = self._work.fill(dtype, self._points.rows, partial(self._read, _XYZ), row_shape=(3,))
        self._held[_XYZ] = xyz
        rows = self._work.where(len(xyz), lambda lo, hi: np.all(np.isfinite(xyz[lo:hi]), axis=1))
        parts = [rows]
        rule = SegmentRule() if options.segment is None else parse_segment(options.segment)
        if rule.column:
            return self._cut_by_ids(id_column(self._origin.layout, rule.column, self._name), rows)
        if rule.window and len(rows):
            windows = GridWindows(rule.window, options.min_points, options.max_points)
            parts = list(window_rows(xyz, rows, windows, self._work))
        lengths = np.array([len(part) for part in parts], np.int64)
        return partition_of(parts, lengths, np.arange(len(parts)), len(xyz), self._work)

    def _cut_by_ids(self, column: str, rows: Integers) -> Partition:
        # Divide rows by a column of ids. Those with the id -1 are in no segment
        dtype = self._own[column].dtype
        ids = self._work.fill(dtype, self._points.rows, partial(self._points.read, column))[rows]
        outside = (
            (ids.astype(np.int64) < NO_SEGMENT) if ids.dtype.kind == "i" else ids > np.iinfo(np.int64).max
        )
        if outside.any():
            message = (
                f"the column {column!r} contains {ids[outside][0]}, but ids of segments are 0 or above, "
                "or -1 for points without a segment"
            )
            raise InputError.at(self._name, message, "number the segments from 0", "range")
        ids = ids.astype(np.int64)
        order = np.argsort(ids, kind="stable")[np.count_nonzero(ids == NO_SEGMENT) :]
        numbers, lengths = np.unique(ids[order], return_counts=True)
        return partition_of([rows[order]], lengths, numbers, self._points.rows, self._work)

    def _stored(self, key: str, lo: int, hi: int) -> AnyArray:
        # Read rows ``lo:hi`` of a column in storage order
        if self._rows is None:
            return self._read(key, lo, hi)
        values: AnyArray = self._held[key].take(self._rows[lo:hi], axis=0)
        return values

    def _hold(self, columns: Mapping[str, Field]) -> None:
        # Keep all columns in the source's order: some formats decode all of them at a time
        keys = [key for key in (_XYZ, *columns) if key == _XYZ or key in self._own]
        keys = [key for key in keys if key not in self._held]
        for lo, hi in self._work.steps(0, self._points.rows):
            for key in keys:
                values = self._read(key, lo, hi)
                if key not in self._held:
                    self._held[key] = self._work.column(values.dtype.str, self._points.rows, values.shape[1:])
                self._held[key][lo:hi] = values

    def _read(self, key: str, lo: int, hi: int) -> AnyArray:
        # Read rows in the source's order. Coordinates are checked
        if key == _XYZ:
            xyz = self._read_coordinates(lo, hi)
            if not self._drops and not np.isfinite(xyz).all():
                raise InputError(self._not_finite())
            return xyz
        values = self._points.read(key, lo, hi)
        if self._renumber is None or not is_label(key):
            return values
        return self._renumber(values, self._name)

    def _read_coordinates(self, lo: int, hi: int) -> AnyArray:
        layout = self._origin.layout
        columns = [self._points.read(axis, lo, hi) for axis in layout.coordinates]
        if len(columns) == 1:
            return columns[0].astype(layout.xyz_dtype)
        return np.stack(columns, axis=1, dtype=layout.xyz_dtype)

    def _not_finite(self) -> Problem:
        # The problem of coordinates that are NaN or infinite: how many, and the first
        count = 0
        first = ""
        for lo, hi in self._work.steps(0, self._points.rows):
            xyz = self._read_coordinates(lo, hi)
            wrong = np.flatnonzero(~np.isfinite(xyz).all(axis=1))
            count += len(wrong)
            if len(wrong) and not first:
                row = wrong[0]
                first = f"row {lo + row}: {', '.join(map(str, xyz[row]))}"
        points = f"{count:,} of {self._points.rows:,} points"
        message = f"{points} have coordinates that are not finite; the first is {first}"
        fix = AddOptions(("--nan", "drop"), "to keep these points out of all segments")
        return Problem(self._name, message, fix, "nan")

    def _emit_columns(self, columns: Mapping[str, Field]) -> dict[str, AnyArray]:
        # Emit all columns of the points, and their rows in the source
        labelled = dict.fromkeys(filter(is_label, columns), False)
        for lo, hi in self._work.steps(0, int(self._offsets[-1])):
            rows = np.arange(lo, hi) if self._rows is None else self._rows[lo:hi]
            self._emit(POINTS, "source_row", rows)
            for key, field in columns.items():
                values = self._stored(key, lo, hi) if key in self._own else _missing(field, hi - lo)
                if key in labelled and key in self._own:
                    labelled[key] |= bool(values.any())
                self._emit(POINTS, key, values)
        return {f"labelled/{key}": np.array(has_labels) for key, has_labels in labelled.items()}

    def _segment_arrays(self, columns: Mapping[str, Field]) -> dict[str, AnyArray]:
        prepared = {}
        for key, field in columns.items():
            values = _missing(field, len(self._lengths))
            if key == LABEL and self._origin.label is not None:
                values = np.array([self._origin.label[0]], np.int32)
            elif key in self._origin.layout.segment_columns:
                values = self._points.segment_column(key)
                if self._points.segments_alike:
                    values = np.repeat(values, len(self._lengths), axis=0)
                if self._renumber is not None and is_label(key):
                    values = self._renumber(values, self._name)
            prepared[f"segments/{key}"] = values
        return prepared

    def _emit_coordinates(self, columns: Mapping[str, Field]) -> dict[str, AnyArray]:
        # Emit coordinates and voxels, some whole segments at a time
        if self._rows is not None:
            self._hold(columns)
        for size in self._voxels:
            begin_voxels(size, self._emit)
        real = int(np.count_nonzero(self._numbers != NO_SEGMENT))
        for first, last in blocks_of(self._lengths[:real], self._work.step):
            self._emit_segments(first, last)
        if real < len(self._numbers):
            self._emit_block(real, real + 1, None)
            for size in self._voxels:
                emit_outside(int(self._lengths[real]), size, self._work, self._emit)
        return {
            "lengths": self._lengths,
            "numbers": self._numbers,
            "bounds": self._bounds,
            "quantised": np.array(self._quantum is not None),
            "places": np.array(self._decimals.places),
            **{voxel_group(size): voxels for size, voxels in self._voxels.items()},
        }

    def _emit_segments(self, first: int, last: int) -> None:
        # Emit a block of segments: of at most a step of points together, or one segment
        lengths = self._lengths[first:last]
        points = int(lengths.sum())
        if not self._voxels or not points:
            self._emit_block(first, last, None)
            return
        xyz = self._work.column(self._origin.layout.xyz_dtype, points, (3,))
        self._emit_block(first, last, xyz)
        for size, voxels in self._voxels.items():
            bounds = self._bounds[first:last]
            voxels[first:last] = voxelise(xyz, lengths, bounds, size, self._work, self._emit)

    def _emit_block(self, first: int, last: int, kept: AnyArray | None) -> None:
        # Emit the coordinates of segments, find their bounds, and copy them to `kept`
        offsets = self._offsets[first : last + 1]
        begin, end = offsets[[0, -1]].tolist()
        for lo, hi in self._work.steps(begin, end):
            xyz = self._stored(_XYZ, lo, hi)
            exact = quantise(xyz, *self._quantum) if self._quantum is not None else None
            if exact is None:
                self._quantum = None
            self._decimals.update(xyz)
            self._emit(POINTS, "xyz", xyz if exact is None else exact)
            if kept is not None:
                kept[lo - begin : hi - begin] = xyz
            bounds = bounds_of(list(xyz.T), np.clip(offsets, lo, hi) - lo)
            if lo > begin:  # a segment of several steps
                before = self._bounds[first:last]
                bounds[:, 0] = np.minimum(bounds[:, 0], before[:, 0])
                bounds[:, 1] = np.maximum(bounds[:, 1], before[:, 1])
            self._bounds[first:last] = bounds


def _missing(field: Field, rows: int) -> AnyArray:
    # Rows of a column that a file lacks
    return np.full((rows, *field.row_shape), missing_value(field.dtype), field.dtype)


# Bytes of a point that `DerivedCloud.derive` holds, beside its columns
_FIXED = 16 << 20
_STEP_POINT = 120  # in a step: coordinates, order, a column, and what numpy sorts with
_STEP_CELLS = 130  # in a step whose voxels or windows are found: cells, keys, order
_ORDER = 10  # in another order than the source's: row, mask
_CUT = 48  # cut into windows: cells, key, row, window, coordinates of halves
_IDS = 48  # cut by ids: ids, order, rows
_VOXEL = 28  # of a large segment: cells, key, voxel


class Memory(NamedTuple):
    """Bytes that `DerivedCloud.derive` holds at its peak."""

    on_disk: int  # with a folder for temporary columns: the same for larger files
    in_core: int  # with all points in memory


def derive_memory(file: Described, options: PointCloudOptions) -> Memory:
    """Bound the memory of `DerivedCloud.derive`."""
    xyz = 3 * np.dtype(file.layout.xyz_dtype).itemsize
    columns = file.layout.columns.values()
    widths = [xyz, *(np.dtype(place.dtype).itemsize * prod(place.row_shape) for place in columns)]
    is_cut = (options.segment is not None or options.nan == "drop") and file.segmented is None
    in_step = _STEP_POINT + 3 * max(widths) + _STEP_CELLS * (is_cut or bool(options.voxel_size))
    held = 0
    if is_cut or file.segmented == "indices":
        held = _ORDER + sum(widths) + _CUT * is_cut
    if options.voxel_size and file.points > grids.STEP:
        held += _VOXEL + 2 * xyz
    by_ids = is_cut and options.segment is not None and parse_segment(options.segment).column != ""
    on_disk = _FIXED + file.points * _IDS * by_ids + file.memory + min(file.points, grids.STEP) * in_step
    return Memory(on_disk, on_disk + file.points * held)
