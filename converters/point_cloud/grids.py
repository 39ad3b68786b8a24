"""Cells of points: square windows, which become segments, and the voxels of segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.point_cloud.sorting import (
    Buckets,
    Integers,
    Ints,
    PlacedTable,
    Table,
    Workspace,
    extremes,
    index_dtype,
    part_of,
    rows_in,
    sorted_groups,
)
from unistore.errors import InputError

_AXES = ("x", "y", "z")
_WINDOW = ("window_x", "window_y")
# Cells along an axis, which int32 can count
_MOST_CELLS = 1 << 31


class Windows(NamedTuple):
    """Square XY windows."""

    size: float
    min_points: int  # windows and parts with fewer points are none
    max_points: int | None  # windows with more points are halved


def window_rows(xyz: NDArray[Any], windows: Windows, work: Workspace) -> Iterator[Integers]:
    """Divide a cloud into square XY windows, counted from the smallest x and y, and yield their rows.

    Windows are ordered by x, then y; points of a window by their rows. A window with more than `max_points`
    is halved at the median of its longer side until no part has more.

    Parameters
    ----------
    xyz
        Finite coordinates, (n, 3).

    Raises
    ------
    InputError
        If the cloud is more than 2^31 windows wide.
    """
    points = len(xyz)
    table = {"row": counted(points, work)}
    if windows.max_points is not None:
        table |= {"x": xyz[:, 0], "y": xyz[:, 1]}
    for axis, key in enumerate(_WINDOW):
        low, high = map(np.float64, extremes(xyz[:, axis], work))
        if np.floor((high - low) / windows.size) >= _MOST_CELLS:
            wide = "the cloud is more than 2^31 windows wide: give a larger window"
            msg = f"segment=window:{windows.size:g}: {wide}"
            raise InputError(msg)
        table[key] = _cells(xyz[:, axis], np.broadcast_to(low, points), windows.size, work)
    for group in sorted_groups(table, _WINDOW, work):
        ordered = {name: group.column(name) for name in table if name not in _WINDOW}
        for lo, hi in pairwise([*group.starts.tolist(), rows_in(ordered)]):
            for part in _halve(part_of(ordered, lo, hi), windows.max_points, work):
                if rows_in(part) >= windows.min_points:
                    yield part["row"]


def _halve(window: Table, most: int | None, work: Workspace) -> Iterator[Table]:
    """Divide a window into parts of at most `most` points: halves at the median of the longer side.

    The half with the smaller coordinates is that of the points that are smallest by coordinate, then by row.
    """
    points = rows_in(window)
    if most is None or points <= most:
        yield window
        return
    (west, east), (south, north) = (extremes(window[axis], work) for axis in ("x", "y"))
    values = window["x" if east - west >= north - south else "y"]
    half = points // 2
    middle, equal = _median(values, half, work)
    sides = Buckets(np.array([half, points - half]), window, work)
    for lo, hi in work.steps(0, points):
        some = values[lo:hi]
        is_second = some >= middle
        ties = np.flatnonzero(some == middle)[:equal]
        is_second[ties] = False
        equal -= len(ties)
        sides.put(is_second.astype(np.uint16), part_of(window, lo, hi).items())
    for side in sides:
        yield from _halve(side, most, work)


def _median(values: NDArray[Any], rank: int, work: Workspace) -> tuple[Any, int]:
    """Return the largest of the `rank` smallest values, and how many of these are equal to it."""
    ordered = work.column(values.dtype.str, len(values))
    for lo, hi in work.steps(0, len(values)):
        ordered[lo:hi] = values[lo:hi]
    ordered.partition(rank - 1)
    middle = ordered[rank - 1]
    equal = rank
    for lo, hi in work.steps(0, rank):
        equal -= int(np.count_nonzero(ordered[lo:hi] < middle))
    return middle, equal


def voxelise(
    xyz: NDArray[Any],
    points: Ints,
    bounds: NDArray[np.float64],
    size: float,
    work: Workspace,
    emit: Callable[[NDArray[np.int32], NDArray[np.uint32]], None],
) -> tuple[Ints, Iterator[NDArray[np.int32]]]:
    """Find the voxels of segments, ``floor((xyz - origin) / size)`` in float64, in lexicographic order.

    Parameters
    ----------
    xyz
        Coordinates, (n, 3), segment by segment.
    points
        Points of each segment, (S,): one segment, or several with at most a step of points together.
    bounds
        Minimum and maximum of each segment, (S, 2, 3). The minimum is its origin.
    emit
        Takes some voxels: cells counted from the segment's origin, (V, 3), and the points in each, (V,).

    Returns
    -------
    lengths, point_voxel
        Voxels of each segment, (S,), and the voxel of each point, counted inside its segment, in steps.

    Raises
    ------
    InputError
        If a segment is 2^31 voxels wide or more.
    """
    widest = np.floor((bounds[:, 1] - bounds[:, 0]).max(initial=0) / size)
    if widest >= _MOST_CELLS:
        wide = f"{widest:.3g} voxels of {size:g} wide"
        msg = f"a segment is {wide}, more than int32 can count: give a larger voxel_size"
        raise InputError(msg)
    several = len(points) > 1
    segment = np.repeat(np.arange(len(points)), points) if several else np.empty(0, np.int64)
    origin = bounds[segment, 0] if several else np.broadcast_to(bounds[0, 0], xyz.shape)
    table: dict[str, NDArray[Any]] = {"segment": segment} if several else {}
    for axis, key in enumerate(_AXES):
        table[key] = _cells(xyz[:, axis], origin[:, axis], size, work)
    keys = tuple(table)
    table["place"] = counted(len(xyz), work)
    starts = [lo for lo, _ in work.steps(0, len(xyz))]
    point_voxel = PlacedTable(np.array([*starts, len(xyz)]), {"voxel": np.empty(0, np.int32)}, work)
    lengths = np.zeros(len(points), np.int64)
    voxels = 0
    for group in sorted_groups(table, keys, work):
        places = group.column("place")
        counts = np.diff(group.starts, append=len(places))
        first = group.first()
        cells = np.stack([group.table[axis][first] for axis in _AXES], axis=1)
        emit(cells, counts.astype(np.uint32))
        numbers = np.arange(voxels, voxels + len(counts))
        voxels += len(counts)
        if several:
            of_segment = segment[first]
            lengths += np.bincount(of_segment, minlength=len(points))
            numbers -= (np.cumsum(lengths) - lengths)[of_segment]
        # The points of one voxel may be more than a step: their numbers must take no memory.
        if len(counts) > 1:
            voxel_of_point = np.repeat(numbers, counts)
        else:
            voxel_of_point = np.broadcast_to(numbers, len(places))
        for lo, hi in work.steps(0, len(places)):
            point_voxel.put(places[lo:hi], [("voxel", voxel_of_point[lo:hi])])
    return lengths if several else np.array([voxels]), point_voxel.column("voxel")


def counted(rows: int, work: Workspace) -> Integers:
    """Return the column 0, 1, …."""
    numbers = work.column(index_dtype(rows), rows)
    for lo, hi in work.steps(0, rows):
        numbers[lo:hi] = np.arange(lo, hi)
    return numbers


def _cells(
    values: NDArray[Any], origin: NDArray[np.float64], size: float, work: Workspace
) -> NDArray[np.int32]:
    """Return the cell of each value along one axis, (n,)."""
    cells = work.column("<i4", len(values))
    for lo, hi in work.steps(0, len(values)):
        cells[lo:hi] = np.floor((values[lo:hi].astype(np.float64) - origin[lo:hi]) / size)
    return cells
