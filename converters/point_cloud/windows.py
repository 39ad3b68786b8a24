"""Divide a point cloud into square windows, and large windows into parts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.point_cloud.order import Partition, by_indices
from unistore.converters.point_cloud.sorting import (
    BucketOrder,
    Buckets,
    Read,
    Rows,
    extremes,
    index_dtype,
    key_ranges,
    reader,
    sort_tuples,
)
from unistore.converters.point_cloud.workspace import ColumnType, Workspace
from unistore.errors import InputError

_AXES, _WINDOW = ("x", "y"), ("window_x", "window_y")


def by_windows(
    read: Read, rows: int, size: float, min_points: int, max_points: int | None, work: Workspace
) -> Partition:
    """Divide a cloud into square XY windows, counted from the smallest x and y.

    Windows are ordered by x, then y; points of a window by their rows. A window with more than `max_points`
    is halved at the median of its longer side until no part has more. Points of windows and parts with fewer
    than `min_points` belong to no segment. A step of points is processed at a time.

    Parameters
    ----------
    read
        Reads rows of the coordinates, (n, 3).

    Raises
    ------
    InputError
        If the cloud is more than 2^31 windows wide.
    """
    read = lru_cache(1)(read)  # read once for each column
    columns: dict[str, Read] = {"row": np.arange}
    columns |= {key: partial(_coordinates, read, axis) for axis, key in enumerate(_AXES)}
    form = columns["x"](0, 0).dtype.str
    types: dict[str, ColumnType] = {"row": (index_dtype(rows), ()), "x": (form, ()), "y": (form, ())}
    ends: dict[str, tuple[int, int]] = {}
    for axis, key in zip(_AXES, _WINDOW, strict=True):
        low, high = map(np.float64, extremes(Rows(columns, 0, rows), axis, work.step))
        if (last := np.floor((high - low) / size)) >= 1 << 31:
            msg = f"segment=window:{size:g}: the cloud is more than 2^31 windows wide: give a larger window"
            raise InputError(msg)
        ends[key] = 0, int(last)
        columns[key] = partial(_windows_of, columns[axis], low, size)
    ranges = key_ranges(Rows(columns, 0, rows), ends, types | dict.fromkeys(_WINDOW, ("<i4", ())), work)
    parts = (
        part
        for points in ranges
        for each in _windows(points, work.step)
        for part in _halve(each, max_points, types, work)
    )
    pieces = (
        (step.read("row") for step in part.steps(work.step)) for part in parts if len(part) >= min_points
    )
    return by_indices(pieces, None, rows, work)


def _coordinates(read: Read, axis: int, lo: int, hi: int) -> NDArray[Any]:
    return read(lo, hi)[:, axis]


def _windows_of(coordinates: Read, low: float, size: float, lo: int, hi: int) -> NDArray[np.int64]:
    """Window of each point along one axis, (hi - lo,)."""
    return np.floor((coordinates(lo, hi).astype(np.float64) - low) / size).astype(np.int64)


def _windows(points: Rows, step: int) -> Iterator[Rows]:
    """Points of each window in a range of windows, in the order of their rows."""
    if len(points) > step:
        yield points
        return
    order, begins = sort_tuples([points.read(key).astype(np.int64, copy=False) for key in _WINDOW])
    columns = {key: reader(points.read(key).take(order)) for key in ("row", *_AXES)}
    for lo, hi in pairwise([*np.flatnonzero(begins).tolist(), len(order)]):
        yield Rows(columns, lo, hi)


def _halve(
    window: Rows, max_points: int | None, types: dict[str, ColumnType], work: Workspace
) -> Iterator[Rows]:
    """Parts of at most `max_points`: halves at the median of the longer side, recursively."""
    if max_points is None or len(window) <= max_points:
        yield window
        return
    ends = {axis: extremes(window, axis, work.step) for axis in _AXES}
    axis = max(_AXES, key=lambda axis: ends[axis][1] - ends[axis][0])

    def key(lo: int, hi: int) -> NDArray[np.uint64]:
        return _sortable(window.columns[axis](lo, hi))

    half = len(window) // 2
    with work.nested() as nested:
        lowest, highest = _sortable(np.array(ends[axis])).tolist()
        keys = Rows({"key": key}, window.lo, window.hi)
        middle, equal = _smallest(keys, (lowest, highest), half, nested)
        sides = Buckets(nested, np.array([half, len(window) - half]), types)
        for part in window.steps(work.step):
            keys_of_part = key(part.lo, part.hi)
            second = (keys_of_part >= middle).astype(np.uint16)
            ties = np.flatnonzero(keys_of_part == middle)[:equal]
            second[ties] = 0
            equal -= len(ties)
            sides.put(BucketOrder(second), {name: part.read(name) for name in types})
        for side in sides:
            yield from _halve(side, max_points, types, nested)


def _smallest(keys: Rows, ends: tuple[int, int], rank: int, work: Workspace) -> tuple[int, int]:
    """The largest of the `rank` smallest keys between `ends`, and how many of these are equal to it."""
    parts = key_ranges(keys, {"key": ends}, {"key": ("<u8", ())}, work)
    smaller, part = 0, next(parts)
    while smaller + len(part) < rank:
        smaller, part = smaller + len(part), next(parts)
    among = next(part.steps(work.step)).read("key")  # of more than a step all are equal
    at = min(rank - smaller, len(among)) - 1
    middle = int(np.partition(among, at)[at])
    return middle, rank - smaller - int(np.count_nonzero(among < middle))


def _sortable(values: NDArray[Any]) -> NDArray[np.uint64]:
    """Integers that sort as finite floats do, and are equal if these are."""
    bits = (values.astype(np.float64) + 0.0).view(np.uint64)  # -0.0 becomes 0.0
    return np.where(bits >> 63, ~bits, bits | (1 << 63))
