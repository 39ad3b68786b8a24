"""Divide a point cloud into square windows, and large windows into parts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.point_cloud.coordinates import minimum_maximum
from unistore.converters.point_cloud.order import Partition, by_indices
from unistore.converters.point_cloud.sorting import (
    BucketOrder,
    Buckets,
    Read,
    Rows,
    index_dtype,
    key_ranges,
    reader,
    sort_tuples,
)
from unistore.converters.point_cloud.workspace import ColumnType, Workspace
from unistore.errors import InputError


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
    columns: dict[str, Read] = {"row": np.arange, "xy": lambda lo, hi: read(lo, hi)[:, :2]}
    low, high = _ends(Rows(columns, 0, rows), work.step)
    last = np.floor((high.astype(np.float64) - low) / size)
    if last.max() >= 1 << 31:
        msg = f"segment=window:{size:g}: the cloud is more than 2^31 windows wide"
        raise InputError(msg)

    def window(axis: int) -> Read:
        return lambda lo, hi: np.floor((read(lo, hi)[:, axis].astype(np.float64) - low[axis]) / size).astype(
            np.int64
        )

    types: dict[str, ColumnType] = {"row": (index_dtype(rows), ()), "xy": (low.dtype.str, (2,))}
    columns |= {"x": window(0), "y": window(1)}
    ends = {"x": (0, int(last[0])), "y": (0, int(last[1]))}
    ranges = key_ranges(Rows(columns, 0, rows), ends, types | dict.fromkeys("xy", ("<i4", ())), work)
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


def _windows(points: Rows, step: int) -> Iterator[Rows]:
    """Points of each window in a range of windows, in the order of their rows."""
    if len(points) > step:
        yield points
        return
    order, begins = sort_tuples([points.read(key).astype(np.int64, copy=False) for key in ("x", "y")])
    columns = {key: reader(points.read(key).take(order, axis=0)) for key in ("row", "xy")}
    for lo, hi in pairwise([*np.flatnonzero(begins).tolist(), len(order)]):
        yield Rows(columns, lo, hi)


def _halve(
    window: Rows, max_points: int | None, types: dict[str, ColumnType], work: Workspace
) -> Iterator[Rows]:
    """Parts of at most `max_points`: halves at the median of the longer side, recursively."""
    if max_points is None or len(window) <= max_points:
        yield window
        return
    low, high = _ends(window, work.step)
    axis = 0 if high[0] - low[0] >= high[1] - low[1] else 1

    def key(lo: int, hi: int) -> NDArray[np.uint64]:
        return _sortable(window.columns["xy"](lo, hi)[:, axis])

    half = len(window) // 2
    with work.nested() as nested:
        lowest, highest = _sortable(np.array([low[axis], high[axis]])).tolist()
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


def _ends(points: Rows, step: int) -> NDArray[Any]:
    """Minimum and maximum of x and y, (2, 2)."""
    ends = np.array([minimum_maximum(part.read("xy")) for part in points.steps(step)])
    return np.array([ends[:, 0].min(axis=0), ends[:, 1].max(axis=0)])


def _smallest(keys: Rows, ends: tuple[int, int], rank: int, work: Workspace) -> tuple[int, int]:
    """The largest of the `rank` smallest keys between `ends`, and how many of these are equal to it."""
    smaller = 0
    for part in key_ranges(keys, {"key": ends}, {"key": ("<u8", ())}, work):
        if smaller + len(part) >= rank:
            among = next(part.steps(work.step)).read("key")  # of a larger part all are equal
            at = min(rank - smaller, len(among)) - 1
            middle = int(np.partition(among, at)[at])
            return middle, rank - smaller - int(np.count_nonzero(among < middle))
        smaller += len(part)
    raise AssertionError


def _sortable(values: NDArray[Any]) -> NDArray[np.uint64]:
    """Integers that sort as finite floats do, and are equal if these are."""
    bits = (values.astype(np.float64) + 0.0).view(np.uint64)  # -0.0 becomes 0.0
    return np.where(bits >> 63, ~bits, bits | (1 << 63))
