"""Square windows of one cloud, which become segments, and voxels: its points sorted by cells."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.errors import ConversionError, InputError
from unistore.plugin import Emit
from unistore.schemas.point_cloud.fields import POINTS, voxel_group
from unistore.system.types import AnyArray, Float64s, Int64s, Shape

# Columns of one cloud while it is derived: arrays in memory or, of more than a step of rows, memory maps.

STEP = 1 << 19  # points that are processed at a time

Integers = NDArray[np.integer[Any]]


class Workspace:
    """Creates and sorts temporary columns, in memory if there is no folder."""

    def __init__(self, folder: Path | None) -> None:
        self.step = STEP
        # Folder for the files of columns of more than a step of rows. None: all columns are in memory.
        self._folder = folder

    def steps(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Divide rows ``start:stop`` into ranges of at most a step."""
        for lo in range(start, stop, self.step):
            yield lo, min(lo + self.step, stop)

    def column(self, dtype: str, rows: int, row_shape: Shape = ()) -> AnyArray:
        """Create a column of undefined values."""
        # Its file has no name and goes with the column, or with the process.
        shape = (rows, *row_shape)
        if self._folder is None or rows <= self.step:
            return np.empty(shape, dtype)
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                # Without room on the disk, writing to the map would end the process by a signal.
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, np.dtype(dtype).itemsize * prod(shape))
                return np.memmap(file, dtype, "r+", shape=shape).view(np.ndarray)
        except OSError as error:
            msg = (
                f"{self._folder}: points cannot be sorted here: {error.strerror or error}. Fix: free twice "
                "the size of the uncompressed file, or give more --memory, and run the same command"
            )
            raise ConversionError(msg) from error

    def fill(
        self,
        dtype: str,
        rows: int,
        values: Callable[[int, int], AnyArray],
        row_shape: Shape = (),
    ) -> AnyArray:
        """Create a column of what `values` gives for each range of rows."""
        column = self.column(dtype, rows, row_shape)
        for lo, hi in self.steps(0, rows):
            column[lo:hi] = values(lo, hi)
        return column

    def where(self, rows: int, is_wanted: Callable[[int, int], NDArray[np.bool_]]) -> Integers:
        """Return the rows for which a condition holds, ascending."""
        column = self.column(index_dtype(rows), rows)
        end = 0
        for lo, hi in self.steps(0, rows):
            wanted_rows = np.flatnonzero(is_wanted(lo, hi)) + lo
            column[end : end + len(wanted_rows)] = wanted_rows
            end += len(wanted_rows)
        return column[:end]

    def sort(self, keys: Sequence[Integers]) -> Iterator[tuple[Int64s, NDArray[np.bool_]]]:
        """Yield rows sorted by several keys, in steps, and which of them are the first of their keys.

        Keys count from 0, and rows of equal keys keep their order. More than 2^31 rows are an error.
        """
        # Their numbers would not fit next to their keys.
        rows = len(keys[0])
        if rows > 1 << 31:
            msg = f"{rows:,} points of one cloud or segment are too many to sort; divide the file"
            raise InputError(msg)
        bits = (rows - 1).bit_length()
        packed = self.column("<i8", rows)
        packed[:] = 0
        extent = 1
        for key in keys:
            key_extent = int(key.max(initial=0)) + 1
            if extent * key_extent >= 1 << 63:
                self._rank(packed)
                extent = rows
            packed *= key_extent
            packed += key
            extent *= key_extent
        if extent << bits >= 1 << 63:
            self._rank(packed)
        # With their rows in the low bits, keys are sorted in place, several times faster than by argsort.
        packed <<= bits
        for lo, hi in self.steps(0, rows):
            packed[lo:hi] |= np.arange(lo, hi)
        packed.sort()
        last = np.array([-1])
        for lo, hi in self.steps(0, rows):
            sorted_keys = packed[lo:hi] >> bits
            yield packed[lo:hi] & ((1 << bits) - 1), np.diff(sorted_keys, prepend=last) != 0
            last = sorted_keys[-1:]

    def _rank(self, values: Int64s) -> None:
        # Replace values by numbers of the same order below their count
        ordered = self.fill("<i8", len(values), lambda lo, hi: values[lo:hi])
        ordered.sort()
        for lo, hi in self.steps(0, len(values)):
            values[lo:hi] = np.searchsorted(ordered, values[lo:hi])


def index_dtype(rows: int) -> str:
    """Return the dtype for indices of `rows` rows."""
    return "<u4" if rows <= 1 << 32 else "<i8"


# Cells along an axis, which int32 can count
_MOST_CELLS = 1 << 31


class GridWindows(NamedTuple):
    """Square XY windows."""

    size: float
    min_points: int  # windows and parts with fewer points are none
    max_points: int | None  # windows with more points are halved


def window_rows(xyz: AnyArray, rows: Integers, windows: GridWindows, work: Workspace) -> Iterator[Integers]:
    """Divide the finite points of a cloud into square XY windows from the smallest x and y, by x, then y.

    A window with more than `max_points` is halved at the median of its longer side until no part has
    more. Rows in a window ascend.
    """
    inside = xyz
    if len(rows) < len(xyz):
        inside = work.fill(xyz.dtype.str, len(rows), lambda lo, hi: xyz[rows[lo:hi]], row_shape=(3,))
    cells = []
    for axis in (0, 1):
        values = inside[:, axis]
        low = np.float64(values.min())
        if np.floor((np.float64(values.max()) - low) / windows.size) >= _MOST_CELLS:
            wide = f"is more than 2^31 windows of {windows.size:g} wide"
            msg = f"the cloud {wide}; give a larger window with --segment window:SIZE"
            raise InputError(msg)
        cells.append(_cells(values, low, windows.size, work))
    table = {"row": work.column(index_dtype(len(xyz)), len(rows))}
    if windows.max_points is not None:
        table |= {name: work.column(xyz.dtype.str, len(rows)) for name in ("x", "y")}
    starts = []
    end = 0
    for order, begins in work.sort(cells):
        stop = end + len(order)
        table["row"][end:stop] = rows[order]
        if windows.max_points is not None:
            table["x"][end:stop] = inside[order, 0]
            table["y"][end:stop] = inside[order, 1]
        starts.append(end + np.flatnonzero(begins))
        end = stop
    for lo, hi in pairwise([*np.concatenate(starts).tolist(), end]):
        window = {name: column[lo:hi] for name, column in table.items()}
        for part in _halve(window, windows.max_points, work):
            if len(part) >= windows.min_points:
                yield part


def _halve(window: Mapping[str, AnyArray], most: int | None, work: Workspace) -> Iterator[Integers]:
    # Divide a window into parts of at most `most` points: halves at the median of the longer side
    points = len(window["row"])
    if most is None or points <= most:
        yield window["row"]
        return
    x, y = window["x"], window["y"]
    values = x if x.max() - x.min() >= y.max() - y.min() else y
    in_half = _first_half(values, work)
    halves = []
    for _ in range(2):
        rows = work.where(points, lambda lo, hi: in_half[lo:hi])
        halves.append({name: _taken(column, rows, work) for name, column in window.items()})
        np.logical_not(in_half, out=in_half)
    for half in halves:
        yield from _halve(half, most, work)


def _taken(column: AnyArray, rows: Integers, work: Workspace) -> AnyArray:
    return work.fill(column.dtype.str, len(rows), lambda lo, hi: column.take(rows[lo:hi]))


def _first_half(values: AnyArray, work: Workspace) -> NDArray[np.bool_]:
    # Which points are in the half with the smaller values: by value, then by row
    points = len(values)
    half = points // 2
    ordered = work.fill(values.dtype.str, points, lambda lo, hi: values[lo:hi])
    ordered.partition(half)
    middle = ordered[half]
    is_first = work.fill("?", points, lambda lo, hi: values[lo:hi] < middle)
    lacking = half - int(np.count_nonzero(is_first))
    if lacking:
        equal = work.where(points, lambda lo, hi: values[lo:hi] == middle)
        for lo, hi in work.steps(0, lacking):
            is_first[equal[lo:hi]] = True
    return is_first


def _cells(
    values: AnyArray, origin: np.float64 | Float64s, size: float, work: Workspace
) -> NDArray[np.int32]:
    # The cell of each value along one axis, (n,). `origin` is one of all values, or one of each
    origins = np.broadcast_to(origin, values.shape)

    def cells_of(lo: int, hi: int) -> AnyArray:
        local: Float64s = values[lo:hi].astype(np.float64) - origins[lo:hi]
        return np.floor(local / size)

    return work.fill("<i4", len(values), cells_of)


def voxelise(
    xyz: AnyArray,
    points: Int64s,
    bounds: Float64s,
    size: float,
    work: Workspace,
    emit: Emit,
) -> Int64s:
    """Emit the voxels of segments, ``floor((xyz - origin) / size)`` in float64, and return their numbers.

    They are in lexicographic order: `coords` (V, 3) from the minimum of the segment, `counts` (V,), and
    `point_voxel`, the voxel of each point, counted inside its segment. Several segments have at most a
    step of points together.
    """
    group = voxel_group(size)
    widest = np.floor((bounds[:, 1] - bounds[:, 0]).max(initial=0) / size)
    if widest >= _MOST_CELLS:
        wide = f"{widest:.3g} voxels of {size:g} wide"
        msg = f"a segment is {wide}, but at most 2^31 can be stored; give a larger --voxel-size"
        raise InputError(msg)
    several = len(points) > 1
    segment = np.empty(0, np.int64)
    origin = bounds[0, 0]
    if several:
        segment = np.repeat(np.arange(len(points)), points)
        origin = bounds[segment, 0].T
    cells = [_cells(xyz[:, axis], origin[axis], size, work) for axis in range(3)]
    point_voxel = work.column("<i4", len(xyz))
    voxels = np.zeros(len(points), np.int64)
    start = np.empty(0, np.int64)  # of the last voxel, which may have further points
    end = 0
    for rows, begins in work.sort([segment, *cells] if several else cells):
        point_voxel[rows] = np.cumsum(begins) + (voxels.sum() - 1)
        first = rows[begins]
        voxels += np.bincount(segment[first], minlength=len(points)) if several else len(first)
        starts = np.concatenate([start, end + np.flatnonzero(begins)])
        emit(group, "coords", np.stack([cell[first] for cell in cells], axis=1))
        emit(group, "counts", np.diff(starts).astype(np.uint32))
        start = starts[-1:]
        end += len(rows)
    emit(group, "counts", np.array([end - start[0]], np.uint32))
    if several:
        point_voxel -= (np.cumsum(voxels) - voxels)[segment].astype(np.int32)
    for lo, hi in work.steps(0, len(xyz)):
        emit(POINTS, f"{group}/point_voxel", point_voxel[lo:hi])
    return voxels


def begin_voxels(size: float, emit: Emit) -> None:
    """Emit no voxels, so that there are arrays of them."""
    emit(voxel_group(size), "coords", np.empty((0, 3), np.int32))
    emit(voxel_group(size), "counts", np.empty(0, np.uint32))


def emit_outside(points: int, size: float, work: Workspace, emit: Emit) -> None:
    """Emit that points of no segment are in no voxel."""
    for lo, hi in work.steps(0, points):
        emit(POINTS, f"{voxel_group(size)}/point_voxel", np.full(hi - lo, -1, np.int32))
