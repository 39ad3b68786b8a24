"""Cells of points: square windows, which become segments, and the voxels of segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.point_cloud.scratch import Integers, Ints, Workspace, index_dtype
from unistore.errors import InputError

# Cells along an axis, which int32 can count
_MOST_CELLS = 1 << 31


class GridWindows(NamedTuple):
    """Square XY windows."""

    size: float
    min_points: int  # windows and parts with fewer points are none
    max_points: int | None  # windows with more points are halved


def window_rows(
    xyz: NDArray[Any], rows: Integers, windows: GridWindows, work: Workspace
) -> Iterator[Integers]:
    """Divide the finite points of a cloud into square XY windows from the smallest x and y, by x, then y."""
    # A window with more than `max_points` is halved at the median of its longer side until no part has more.
    # Rows in a window ascend.
    inside = xyz
    if len(rows) < len(xyz):
        inside = work.fill(xyz.dtype.str, len(rows), lambda lo, hi: xyz[rows[lo:hi]], row_shape=(3,))
    cells = []
    for axis in (0, 1):
        values = inside[:, axis]
        low = np.float64(values.min())
        if np.floor((np.float64(values.max()) - low) / windows.size) >= _MOST_CELLS:
            wide = "the cloud is more than 2^31 windows wide: give a larger window"
            msg = f"segment=window:{windows.size:g}: {wide}"
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


def _halve(window: Mapping[str, NDArray[Any]], most: int | None, work: Workspace) -> Iterator[Integers]:
    """Divide a window into parts of at most `most` points: halves at the median of the longer side."""
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


def _taken(column: NDArray[Any], rows: Integers, work: Workspace) -> NDArray[Any]:
    return work.fill(column.dtype.str, len(rows), lambda lo, hi: column.take(rows[lo:hi]))


def _first_half(values: NDArray[Any], work: Workspace) -> NDArray[np.bool_]:
    """Return which points are in the half with the smaller values: by value, then by row."""
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
    values: NDArray[Any], origin: np.float64 | NDArray[np.float64], size: float, work: Workspace
) -> NDArray[np.int32]:
    """Return the cell of each value along one axis, (n,). `origin` is one of all values, or one of each."""
    origins = np.broadcast_to(origin, values.shape)

    def cells_of(lo: int, hi: int) -> NDArray[Any]:
        local: NDArray[np.float64] = values[lo:hi].astype(np.float64) - origins[lo:hi]
        return np.floor(local / size)

    return work.fill("<i4", len(values), cells_of)


def voxelise(
    xyz: NDArray[Any],
    points: Ints,
    bounds: NDArray[np.float64],
    size: float,
    work: Workspace,
    emit: Callable[[str, NDArray[Any]], None],
) -> Ints:
    """Emit the voxels of segments, ``floor((xyz - origin) / size)`` in float64, and return their numbers."""
    # In lexicographic order, as `coords` (V, 3) from the segment's minimum, `counts` (V,), and `point_voxel`,
    # the voxel of each point, counted inside its segment. Several segments have at most a step of points
    # together.
    widest = np.floor((bounds[:, 1] - bounds[:, 0]).max(initial=0) / size)
    if widest >= _MOST_CELLS:
        wide = f"{widest:.3g} voxels of {size:g} wide"
        msg = f"a segment is {wide}, more than int32 can count: give a larger voxel_size"
        raise InputError(msg)
    several = len(points) > 1
    segment = np.repeat(np.arange(len(points)), points) if several else np.empty(0, np.int64)
    origin = bounds[segment, 0].T if several else bounds[0, 0]
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
        emit("coords", np.stack([cell[first] for cell in cells], axis=1))
        emit("counts", np.diff(starts).astype(np.uint32))
        start = starts[-1:]
        end += len(rows)
    emit("counts", np.array([end - start[0]], np.uint32))
    if several:
        point_voxel -= (np.cumsum(voxels) - voxels)[segment].astype(np.int32)
    for lo, hi in work.steps(0, len(xyz)):
        emit("point_voxel", point_voxel[lo:hi])
    return voxels
