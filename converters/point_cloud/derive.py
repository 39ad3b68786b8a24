"""Derive one point cloud file: points in storage order, exact coordinates, voxel grids, index facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import missing_value
from unistore.converters.common.label_map import Numbering
from unistore.converters.point_cloud.coordinates import DecimalPlaces, FiniteCheck, bounds_of, quantise
from unistore.converters.point_cloud.grids import Windows, voxelise, window_rows
from unistore.converters.point_cloud.names import is_label
from unistore.converters.point_cloud.options import PointCloudOptions
from unistore.converters.point_cloud.sorting import (
    STEP,
    Buckets,
    Integers,
    Ints,
    PlacedTable,
    Workspace,
    index_dtype,
    part_of,
    rows_in,
)
from unistore.converters.point_cloud.source import LABEL, Described, Layout, Origin, PointSource, Ranges
from unistore.converters.protocol import Emit, Facts, Source
from unistore.errors import InputError, Problem, location_of
from unistore.schemas.point_cloud.fields import NO_SEGMENT, POINTS, voxel_group
from unistore.schemas.tables import Field, offsets_of

_XYZ = "xyz"


class Partition(NamedTuple):
    """Segments of one source in storage order; the segment of number -1 comes last."""

    rows: Integers | None  # rows of the source, segment by segment; None: all rows in the source's order
    lengths: Ints  # points of each segment, (S,)
    numbers: Ints  # number of each segment, (S,)


def partition_of(
    pieces: Iterable[Iterable[Integers]], numbers: Ints | None, points: int, work: Workspace
) -> Partition:
    """Return segments given by their rows; rows of no segment follow in the source's order, as number -1.

    Parameters
    ----------
    pieces
        Rows of each segment, in parts of any size. A row may be in several segments.
    numbers
        Number of each segment, (S,). None: 0, 1, ….
    """
    rows = work.column(index_dtype(points), points)
    total = 0
    lengths = []
    for piece in pieces:
        before = total
        for part in piece:
            rows, total = _append(rows, total, part, work)
        lengths.append(total - before)
    if numbers is None:
        numbers = np.arange(len(lengths), dtype=np.int64)
    unlisted = work.column("?", points)
    unlisted[:] = True
    for lo, hi in work.steps(0, total):
        unlisted[rows[lo:hi]] = False
    listed = total
    for lo, hi in work.steps(0, points):
        rows, total = _append(rows, total, np.flatnonzero(unlisted[lo:hi]) + lo, work)
    if total > listed:
        lengths.append(total - listed)
        numbers = np.append(numbers, NO_SEGMENT)
    return Partition(rows[:total], np.array(lengths, np.int64), numbers)


def _append(rows: Integers, total: int, part: Integers, work: Workspace) -> tuple[Integers, int]:
    """Write rows behind the first `total`; returns them and their new number."""
    end = total + len(part)
    if end > len(rows):
        longer = work.column(rows.dtype.str, 2 * end)
        longer[:total] = rows[:total]
        rows = longer
    rows[total:end] = part
    return rows, end


def blocks_of(lengths: Ints, limit: int) -> Iterator[tuple[int, int]]:
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


class StoredPoints:
    """The points of an open file in storage order.

    Parameters
    ----------
    columns
        Columns of the store; the file may lack some.
    windows
        Windows that a file without segments is divided into; None: it is one segment.
    drops
        Whether points of a file without segments are in none if they are not finite; else these are refused.

    Raises
    ------
    InputError
        Naming invalid segments and, if they are read, coordinates.
    """

    def __init__(
        self,
        points: PointSource,
        source: Source,
        columns: Iterable[str],
        windows: Windows | None,
        work: Workspace,
        *,
        drops: bool = False,
        numbering: Numbering | None = None,
    ) -> None:
        self._points, self._work, self._drops = points, work, drops
        self._numbering, self._name = numbering, source.name
        layout: Layout = source.detail.layout
        own = layout.columns
        self._forms = {key: (_native(own[key].dtype), own[key].row_shape) for key in columns if key in own}
        self._axes = tuple(layout.coordinates)
        self._xyz_dtype = layout.xyz_dtype
        paths = layout.xyz if len(layout.xyz) == 3 else layout.xyz * 3
        locations = [location_of(source.name, path) for path in paths]
        self._finite = FiniteCheck(locations, points.rows)
        self._xyz: NDArray[Any] | None = None
        self.partition = self._make_partition(windows)
        lengths, numbers = self.partition.lengths, self.partition.numbers
        self.offsets = offsets_of(lengths)
        real = int(np.count_nonzero(numbers != NO_SEGMENT))
        self.blocks = list(blocks_of(lengths[:real], work.step))
        if real < len(lengths):
            self.blocks.append((real, len(lengths)))

    def _make_partition(self, windows: Windows | None) -> Partition:
        count = self._points.rows
        own = self._points.segments()
        if isinstance(own, Ranges):
            self._drops = False
            return Partition(None, own.lengths, own.numbers)
        if own is not None:
            self._drops = False
            partition = partition_of(own.rows, own.numbers, count, self._work)
            self._hold_coordinates()
            return partition
        if windows is None and not self._drops:
            return Partition(None, np.array([count]), np.zeros(1, np.int64))
        parts = self._cut(self._hold_coordinates(), windows)
        return partition_of(([part] for part in parts), None, count, self._work)

    def _cut(self, xyz: NDArray[Any], windows: Windows | None) -> Iterator[Integers]:
        """Return the rows of each segment of a file without any: windows of the points that are kept."""
        if not self._drops and windows is not None:
            yield from window_rows(xyz, windows, self._work)
            return
        rows = self._finite_rows(xyz)
        if windows is None or not len(rows):
            yield rows
            return
        kept = self._work.column(xyz.dtype.str, len(rows), (3,))
        for lo, hi in self._work.steps(0, len(rows)):
            kept[lo:hi] = xyz.take(rows[lo:hi], axis=0)
        for part in window_rows(kept, windows, self._work):
            yield rows.take(part)

    def _finite_rows(self, xyz: NDArray[Any]) -> Integers:
        """Rows of the source whose coordinates are finite."""
        rows = self._work.column(index_dtype(len(xyz)), len(xyz))
        total = 0
        for lo, hi in self._work.steps(0, len(xyz)):
            finite = np.flatnonzero(np.isfinite(xyz[lo:hi]).all(axis=1)) + lo
            rows[total : total + len(finite)] = finite
            total += len(finite)
        return rows[:total]

    def check(self) -> None:
        """Raise `InputError` if rows read so far are invalid."""
        self._points.check()
        if self._finite.problems:
            raise InputError(self._finite.problems)

    @property
    def wrong(self) -> bool:
        """Whether a coordinate read so far is not finite."""
        return bool(self._finite.problems)

    def steps(self) -> Iterator[tuple[int, int]]:
        """Divide the points into ranges of at most a step that end with a block of segments."""
        for first, last in self.blocks:
            yield from self._work.steps(int(self.offsets[first]), int(self.offsets[last]))

    def coordinates(self) -> Iterator[NDArray[Any]]:
        """Read the coordinates in steps, (n, 3) each; only once."""
        if self.partition.rows is None:
            return (self._read(_XYZ, lo, hi) for lo, hi in self.steps())
        return self._placed.column(_XYZ)

    def columns(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """Read the columns of the file in steps, (n, …) each.

        All columns of a step are read together if they can: some formats decode all of them at a time.
        """
        if self.partition.rows is None:
            for lo, hi in self.steps():
                for key in self._forms:
                    yield key, self._read(key, lo, hi)
            return
        for key in self._forms:
            for values in self._placed.column(key):
                yield key, values

    def filled(self, field: Field) -> Iterator[NDArray[Any]]:
        """Fill a column that the file lacks, in steps."""
        fill = missing_value(field.dtype)
        for lo, hi in self.steps():
            yield np.full((hi - lo, *field.row_shape), fill, field.dtype)

    def source_rows(self) -> Iterator[Integers]:
        """Return the rows of the source in steps, (n,) each."""
        rows = self.partition.rows
        for lo, hi in self.steps():
            yield np.arange(lo, hi) if rows is None else rows[lo:hi]

    def _read(self, key: str, lo: int, hi: int) -> NDArray[Any]:
        """Read rows in the source's order; coordinates are checked."""
        if key != _XYZ:
            values = self._points.read(key, lo, hi)
            if self._numbering is None or not is_label(key):
                return values
            return self._numbering.stored(values, self._name)
        xyz = np.empty((hi - lo, 3), self._xyz_dtype)
        if self._axes == (_XYZ,):
            xyz[:] = self._points.read(_XYZ, lo, hi)
        else:
            for axis, name in enumerate(self._axes):
                xyz[:, axis] = self._points.read(name, lo, hi)
        if not self._drops:
            self._finite.update(lo, xyz)
        return xyz

    def _hold_coordinates(self) -> NDArray[Any]:
        """Read and check all coordinates, and keep them in the source's order."""
        count = self._points.rows
        xyz = self._work.column(self._xyz_dtype, count, (3,))
        for lo, hi in self._work.steps(0, count):
            xyz[lo:hi] = self._read(_XYZ, lo, hi)
        self.check()
        self._xyz = xyz
        return xyz

    @cached_property
    def _placed(self) -> PlacedTable:
        """All columns in storage order; every row of the source is read once."""
        held = self._xyz
        assert held is not None
        like = {key: np.empty((0, *row_shape), dtype) for key, (dtype, row_shape) in self._forms.items()}
        bounds = np.array([*(lo for lo, _ in self.steps()), self.offsets[-1]])
        placed = PlacedTable(bounds, {_XYZ: held[:0], **like}, self._work)
        for (lo, hi), block in zip(self._work.steps(0, len(held)), self._by_block(), strict=True):
            for first, last in self._work.steps(0, rows_in(block)):
                part = part_of(block, first, last)
                placed.put(part["place"], self._rows_of(lo, hi, part["row"]))
        self._xyz = None
        return placed

    def _rows_of(self, lo: int, hi: int, rows: Integers) -> Iterator[tuple[str, NDArray[Any]]]:
        """Read columns, one after the other: `rows`, counted from row `lo` of the source."""
        assert self._xyz is not None
        yield _XYZ, self._xyz[lo:hi].take(rows, axis=0)
        for key in self._forms:
            yield key, self._read(key, lo, hi).take(rows, axis=0)

    def _by_block(self) -> Buckets:
        """For each step of source rows: these, counted inside the step, and their places in storage order."""
        rows, step = self.partition.rows, self._work.step
        assert rows is not None
        sizes = np.zeros(-(-self._points.rows // step), np.int64)
        for lo, hi in self._work.steps(0, len(rows)):
            sizes += np.bincount(rows[lo:hi] // step, minlength=len(sizes))
        like = {"row": np.empty(0, np.uint32), "place": np.empty(0, index_dtype(len(rows)))}
        blocks = Buckets(sizes, like, self._work)
        for lo, hi in self._work.steps(0, len(rows)):
            some = rows[lo:hi]
            table = {"row": some % step, "place": np.arange(lo, hi)}
            blocks.put(some // step, table.items())
        return blocks


def _native(dtype: str) -> np.dtype[Any]:
    native: np.dtype[Any] = np.dtype(dtype).newbyteorder("=")
    return native


def derive_points(
    points: PointSource,
    source: Source,
    columns: Mapping[str, Field],
    segment_columns: Mapping[str, Field],
    voxel_sizes: Sequence[float],
    windows: Windows | None,
    emit: Emit,
    folder: Path | None,
    *,
    drops: bool = False,
    numbering: Numbering | None = None,
) -> Facts:
    """Read an open file, emit its points and voxels, and return what the index needs of it.

    Points are processed in steps. Coordinates are quantised if that is lossless.

    Parameters
    ----------
    points, source
        The open file, and its source.
    columns, segment_columns
        Columns of points and segments in the store; those that the file lacks are filled.
    windows
        Windows that a file without segments is divided into.
    drops
        See `StoredPoints`.
    folder
        For temporary columns of more than a step of points; None: all points are in memory.

    Returns
    -------
    Facts
        ``lengths`` (S,), ``numbers`` (S,), ``bounds`` (S, 2, 3), ``quantised`` (), ``places`` () as of
        `DecimalPlaces`, for each grid ``voxels/<size>`` (S,) voxels per segment, ``segments/<column>``
        (S, …), ``labelled/<column>`` ().

    Raises
    ------
    InputError
        Naming coordinates that are not finite, invalid indices, values that cannot be read.
    """
    if not points.rows:
        raise InputError(Problem(source.name, "holds no points", "leave the file out", "empty"))
    origin: Origin = source.detail
    work = Workspace(folder)
    stored = StoredPoints(points, source, columns, windows, work, drops=drops, numbering=numbering)
    facts = _Emitter(stored, source, voxel_sizes, emit, work).emit_all()
    for rows in stored.source_rows():
        emit(POINTS, "source_row", rows)
    labelled = dict.fromkeys(filter(is_label, columns), False)
    for key, values in stored.columns():
        if key in labelled:
            labelled[key] |= bool(values.any())
        emit(POINTS, key, values)
    for key, field in columns.items():
        if key not in origin.layout.columns:
            for values in stored.filled(field):
                emit(POINTS, key, values)
    facts |= {f"labelled/{key}": np.array(has_labels) for key, has_labels in labelled.items()}
    points.check()
    for key, field in segment_columns.items():
        if key == LABEL and origin.label is not None:
            values = np.array([origin.label[0]], np.int32)
        elif key in origin.layout.segment_columns:
            values = points.segment_column(key)
            if numbering is not None and is_label(key):
                values = numbering.stored(values, source.name)
        else:
            shape = (len(stored.partition.lengths), *field.row_shape)
            values = np.full(shape, missing_value(field.dtype), field.dtype)
        facts[f"segments/{key}"] = values
    return facts


class _Emitter:
    """Emits coordinates and voxels, some whole segments at a time, and collects facts."""

    def __init__(
        self, stored: StoredPoints, source: Source, sizes: Sequence[float], emit: Emit, work: Workspace
    ) -> None:
        self._stored, self._sizes, self._emit, self._work = stored, sizes, emit, work
        layout: Layout = source.detail.layout
        self._dtype = layout.xyz_dtype
        self._quantum = layout.quantum
        self._decimals = DecimalPlaces()
        segments = len(stored.partition.lengths)
        self._bounds = np.zeros((segments, 2, 3))
        self._voxels = {size: np.zeros(segments, np.int64) for size in sizes}

    def emit_all(self) -> dict[str, NDArray[Any]]:
        """Emit coordinates and voxels of all points.

        Returns
        -------
        dict
            ``lengths``, ``numbers``, ``bounds``, ``quantised``, ``places``, ``voxels/<size>``.
        """
        for size in self._sizes:
            self._emit_voxels(size, np.empty((0, 3), np.int32), np.empty(0, np.uint32))
        _, lengths, numbers = self._stored.partition
        coordinates = self._stored.coordinates()
        for first, last in self._stored.blocks:
            self._emit_segments(first, last, coordinates)
        self._stored.check()
        return {
            "lengths": lengths,
            "numbers": numbers,
            "bounds": self._bounds,
            "quantised": np.array(self._quantum is not None),
            "places": np.array(self._decimals.places),
            **{voxel_group(size): voxels for size, voxels in self._voxels.items()},
        }

    def _emit_segments(self, first: int, last: int, coordinates: Iterator[NDArray[Any]]) -> None:
        """Emit a block of segments: of at most a step of points together, or one segment."""
        _, lengths, numbers = self._stored.partition
        points = int(lengths[first:last].sum())
        if numbers[first] == NO_SEGMENT:
            self._emit_coordinates(first, last, coordinates, None)
            self._emit_no_voxels(points)
            return
        if not self._sizes or not points:
            self._emit_coordinates(first, last, coordinates, None)
            return
        xyz = self._work.column(self._dtype, points, (3,))
        self._emit_coordinates(first, last, coordinates, xyz)
        for size in () if self._stored.wrong else self._sizes:
            emit = partial(self._emit_voxels, size)
            self._voxels[size][first:last], point_voxel = voxelise(
                xyz, lengths[first:last], self._bounds[first:last], size, self._work, emit
            )
            for voxels in point_voxel:
                self._emit(POINTS, f"{voxel_group(size)}/point_voxel", voxels)

    def _emit_coordinates(
        self, first: int, last: int, coordinates: Iterator[NDArray[Any]], kept: NDArray[Any] | None
    ) -> None:
        """Emit the coordinates of segments, find their bounds, and copy them to `kept`."""
        offsets = self._stored.offsets[first : last + 1]
        begin, end = int(offsets[0]), int(offsets[-1])
        for lo, hi in self._work.steps(begin, end):
            xyz = next(coordinates)
            exact = quantise(xyz, *self._quantum) if self._quantum is not None else None
            if exact is None:
                self._quantum = None
            self._decimals.update(xyz)
            self._emit(POINTS, "xyz", xyz if exact is None else exact)
            if kept is not None:
                kept[lo - begin : hi - begin] = xyz
            if self._stored.wrong:
                continue
            bounds = bounds_of(list(xyz.T), np.clip(offsets, lo, hi) - lo)
            if lo > begin:  # a segment of several steps
                bounds[:, 0] = np.minimum(bounds[:, 0], self._bounds[first:last, 0])
                bounds[:, 1] = np.maximum(bounds[:, 1], self._bounds[first:last, 1])
            self._bounds[first:last] = bounds

    def _emit_voxels(self, size: float, cells: NDArray[np.int32], counts: NDArray[np.uint32]) -> None:
        self._emit(voxel_group(size), "coords", cells)
        self._emit(voxel_group(size), "counts", counts)

    def _emit_no_voxels(self, points: int) -> None:
        """Emit that points have no voxel."""
        for size in self._sizes:
            for lo, hi in self._work.steps(0, points):
                self._emit(POINTS, f"{voxel_group(size)}/point_voxel", np.full(hi - lo, -1, np.int32))


_FIXED = 16 << 20
_POINT = 120
"""A point of a step: coordinates, order, a column, and what numpy sorts with."""
_CELLS = 130
"""A point of a step whose voxels and windows are found: cells, keys, order, inverse."""
_CUT = 60
"""A point that is cut into windows: row, window, coordinates of both halves."""
_ORDER, _VOXEL = 14, 24
"""A point in another order: rows, mask, place. One of a large segment: cells, position, voxel."""


class Memory(NamedTuple):
    """Bytes that `derive_points` holds at its peak."""

    on_disk: int  # with a folder for temporary columns: the same for larger files
    in_core: int  # with all points in memory


def derive_memory(file: Described, options: PointCloudOptions) -> Memory:
    """Bound the memory of `derive_points`."""
    xyz = 3 * np.dtype(file.layout.xyz_dtype).itemsize
    columns = file.layout.columns.values()
    widths = [xyz, *(np.dtype(place.dtype).itemsize * prod(place.row_shape) for place in columns)]
    widest = max(widths)
    is_cut = (options.segment is not None or options.nan == "drop") and file.segmented is None
    is_large = bool(options.voxel_size) and file.points > STEP
    of_point = _POINT + 3 * widest
    if is_cut or options.voxel_size:
        of_point += _CELLS
    on_disk = _FIXED + file.memory + min(file.points, STEP) * of_point
    of_held = 0
    if is_cut or file.segmented == "indices":
        of_held = _ORDER + xyz + sum(widths)
    if is_cut:
        of_held += _CUT
    if is_large:
        of_held += _VOXEL + 2 * widest
    return Memory(on_disk, on_disk + file.points * of_held)
