"""Derive one point cloud file: points in storage order, exact coordinates, voxel grids, index facts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.point_cloud import grids
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
from unistore.converters.point_cloud.options import PointCloudOptions, parse_window
from unistore.errors import AddOptions, InputError, Problem
from unistore.plugin import (
    Emit,
    Field,
    OwnForm,
    Source,
    SourceFacts,
    little_endian,
    missing_value,
    offsets_of,
)
from unistore.schemas.point_cloud.fields import (
    DECIMAL,
    MAX_PLACES,
    NO_SEGMENT,
    POINTS,
    Decimal,
    Quantum,
    voxel_group,
)
from unistore.system.hints import AnyArray, Float64s, Int64s

# Quantise coordinates to int32 without loss, or not at all.
#
# The scale and offset are those of the source, or coordinates are decimals: integers divided by a power of
# ten.

_INT32 = np.iinfo(np.int32)
# Below it, ``rint(value * scale)`` is the integer of every decimal, despite rounding errors
_MAX_INTEGER = 2.0**50
# Rows that are processed at a time, so that they stay in the CPU cache
_STEP = 1 << 14
_XYZ = "xyz"


def quantise(xyz: AnyArray, scale: Sequence[float], offset: Sequence[float]) -> NDArray[np.int32] | None:
    """Return integers q with ``float64(q) * scale + offset`` equal to each coordinate, or None."""
    # The rounding is that of LAS readers (ASPRS LAS 1.4 R15, 2.4: "coordinate = record × scale + offset").
    # Bits are compared, so the sign of a zero counts and NaN never passes. Only f8 can be quantised.
    if xyz.dtype != np.float64 or 0 in scale or not np.isfinite((*scale, *offset)).all():
        return None
    out = np.empty(xyz.shape, np.int32)
    with np.errstate(all="ignore"):
        for lo in range(0, len(xyz), _STEP):
            for axis in range(3):
                values = np.ascontiguousarray(xyz[lo : lo + _STEP, axis])
                steps = values - offset[axis]
                steps /= scale[axis]
                np.rint(steps, out=steps)
                if not (steps.min() >= _INT32.min and steps.max() <= _INT32.max):
                    return None
                integers = steps.astype(np.int32)
                restored = dequantise(integers, scale[axis], offset[axis])
                if not np.array_equal(restored.view(np.int64), values.view(np.int64)):
                    return None
                out[lo : lo + _STEP, axis] = integers
    return out


class DecimalPlaces:
    """Finds the fewest decimal places that represent every coordinate."""

    # A float64 that is nearest to a decimal with k places is also nearest to that with more places, below
    # `_MAX_INTEGER`. So the result is the maximum over all coordinates, and does not depend on the blocks.

    def __init__(self) -> None:
        self.places = 0  # decimal places so far; -1 if a coordinate is not a decimal

    def update(self, xyz: AnyArray) -> None:
        """Add coordinates, (n, 3)."""
        if xyz.dtype != np.float64:
            self.places = -1
        for lo in range(0, len(xyz), _STEP):
            part = np.ascontiguousarray(xyz[lo : lo + _STEP])
            while self.places >= 0 and not _is_decimal(part, 10.0**self.places):
                self.places = self.places + 1 if self.places < MAX_PLACES else -1


def _is_decimal(values: Float64s, scale: float) -> bool:
    with np.errstate(all="ignore"):
        whole = np.rint(values * scale)
    if not (np.abs(whole) < _MAX_INTEGER).all():
        return False
    restored = whole.astype(np.int64) / scale
    return np.array_equal(restored.view(np.int64), values.view(np.int64))


def decimal_of(places: Sequence[int], least: Float64s, most: Float64s) -> Decimal | None:
    """Return scale and offset for decimals, or None if a source has none (-1) or int32 cannot hold them."""
    scale = 10.0 ** max(places)
    low = np.rint(least * scale)
    high = np.rint(most * scale)
    if min(places) < 0 or max(abs(low).max(), abs(high).max()) >= _MAX_INTEGER:
        return None
    near = (low >= _INT32.min) & (high <= _INT32.max)
    offset = np.where(near, 0.0, np.floor((low + high) / 2))
    if ((low - offset < _INT32.min) | (high - offset > _INT32.max)).any():
        return None
    x, y, z = offset.tolist()
    return Decimal(scale, (x, y, z))


def quantise_decimals(xyz: Float64s, decimal: Mapping[str, Any], out: NDArray[np.int32]) -> None:
    """Write ``rint(xyz * scale) - offset`` to ``out``, (n, 3) as ``xyz``."""
    for lo in range(0, len(xyz), _STEP):
        whole = np.rint(xyz[lo : lo + _STEP] * decimal["scale"])
        out[lo : lo + _STEP] = whole - np.array(decimal["offset"])


def dequantise(integers: NDArray[np.int32], scale: float | Float64s, offset: float | Float64s) -> Float64s:
    """``float64(q) * scale + offset``, rounded after each operation."""
    product = integers.astype(np.float64)
    product *= scale
    product += offset
    return product


def pack_rows(layout: FileLayout, field: Field, column: str, rows: AnyArray, out: AnyArray) -> None:
    """Copy rows of a source into `out`. Coordinates become floats or decimals if these are stored."""
    decimal = field.attributes.get(DECIMAL) if column == _XYZ else None
    if column == _XYZ and rows.dtype.kind == "i" and (decimal is not None or out.dtype.kind == "f"):
        assert layout.quantum is not None  # by which `DerivedCloud` made integers of them
        scale, offset = layout.quantum
        rows = dequantise(rows, np.array(scale), np.array(offset))
    if isinstance(decimal, Mapping):
        quantise_decimals(rows, decimal, out)
    else:
        np.copyto(out, rows, casting="same_kind")


def own_forms(layout: FileLayout, table: str, source: int, fields: Mapping[str, Field]) -> dict[str, OwnForm]:
    """Return the form that a source has of each column of the points, without voxels."""
    forms: dict[str, OwnForm] = {}
    if table != POINTS:
        return forms
    for column, field in fields.items():
        form = field.own_form(source)
        if form is not None and not column.startswith("voxels/"):
            forms[column] = form
    # Coordinates are floats, however the store has them.
    restore = None
    if fields[_XYZ].dtype == "int32":
        restore = partial(_quantum_of(layout, fields[_XYZ]).restored, source=0)
    forms[_XYZ] = OwnForm(little_endian(layout.xyz_dtype), (3,), restore)
    return forms


def _quantum_of(layout: FileLayout, xyz: Field) -> Quantum:
    """Return scale and offset of the quantised coordinates of one source."""
    decimal: Any = xyz.attributes.get(DECIMAL)
    if decimal is not None:
        return Quantum(np.full((1, 3), decimal["scale"]), np.array([decimal["offset"]]), decimal=True)
    assert layout.quantum is not None  # or the store had floats
    scale, offset = layout.quantum
    return Quantum(np.array([scale]), np.array([offset]), decimal=False)


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
    """Return segments given by their rows, those of no segment last, as number -1, in the source's order."""
    # `pieces` are the rows of all segments, one behind the other. A row may be in several segments.
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
            raise InputError.at(source.name, "holds no points", "leave the file out", "empty")
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

    def derive(self, columns: Mapping[str, Field], segment_columns: Mapping[str, Field]) -> SourceFacts:
        """Emit points and voxels, and return what the index needs. Columns that the file lacks are filled."""
        # Facts: `lengths`, `numbers` (S,), `bounds` (S, 2, 3), `quantised` (), `places` () as of
        # `DecimalPlaces`, `voxels/<size>` (S,) voxels per segment, `segments/<column>` (S, …),
        # `labelled/<column>` ()
        facts = self._emit_coordinates(columns)
        facts |= self._emit_columns(columns)
        return facts | self._segment_facts(segment_columns)

    def _cut(self, options: PointCloudOptions) -> Partition:
        # Divide a file without segments into windows. Points that are not finite are in none
        dtype = self._origin.layout.xyz_dtype
        xyz = self._work.fill(dtype, self._points.rows, partial(self._read, _XYZ), row_shape=(3,))
        self._held[_XYZ] = xyz
        rows = self._work.where(len(xyz), lambda lo, hi: np.all(np.isfinite(xyz[lo:hi]), axis=1))
        parts = [rows]
        if options.segment is not None and len(rows):
            windows = GridWindows(parse_window(options.segment), options.min_points, options.max_points)
            parts = list(window_rows(xyz, rows, windows, self._work))
        lengths = np.array([len(part) for part in parts], np.int64)
        return partition_of(parts, lengths, np.arange(len(parts)), len(xyz), self._work)

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
        message = f"{count} of {self._points.rows} points have coordinates that are not finite, first {first}"
        fix = AddOptions(("--nan", "drop"), "to leave these points out of all segments")
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

    def _segment_facts(self, columns: Mapping[str, Field]) -> dict[str, AnyArray]:
        facts = {}
        for key, field in columns.items():
            values = _missing(field, len(self._lengths))
            if key == LABEL and self._origin.label is not None:
                values = np.array([self._origin.label[0]], np.int32)
            elif key in self._origin.layout.segment_columns:
                values = self._points.segment_column(key)
                if self._renumber is not None and is_label(key):
                    values = self._renumber(values, self._name)
            facts[f"segments/{key}"] = values
        return facts

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


# Bytes of a point that `derive_points` holds, beside its columns
_FIXED = 16 << 20
_STEP_POINT = 120  # in a step: coordinates, order, a column, and what numpy sorts with
_STEP_CELLS = 130  # in a step whose voxels or windows are found: cells, keys, order
_ORDER = 10  # in another order than the source's: row, mask
_CUT = 48  # cut into windows: cells, key, row, window, coordinates of halves
_VOXEL = 28  # of a large segment: cells, key, voxel


class Memory(NamedTuple):
    """Bytes that `derive_points` holds at its peak."""

    on_disk: int  # with a folder for temporary columns: the same for larger files
    in_core: int  # with all points in memory


def derive_memory(file: Described, options: PointCloudOptions) -> Memory:
    """Bound the memory of `derive_points`."""
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
    on_disk = _FIXED + file.memory + min(file.points, grids.STEP) * in_step
    return Memory(on_disk, on_disk + file.points * held)
