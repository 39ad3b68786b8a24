"""Cutting a point cloud into square windows, and these into parts of a bounded number of points."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.point_cloud.buckets import Buckets, Read, Rows, Split, key_ranges, position, reader
from unistore.converters.point_cloud.coordinates import ends_of
from unistore.converters.point_cloud.segments import Partition, by_indices
from unistore.converters.point_cloud.tuples import sort_tuples
from unistore.converters.point_cloud.workspace import Form, Workspace
from unistore.errors import InputError

__all__ = ["by_windows"]

_DIGIT = 16
"""Bits of a coordinate that are told apart at a time."""


def by_windows(
    read: Read, rows: int, size: float, min_points: int, max_points: int | None, work: Workspace
) -> Partition:
    """Cut a cloud into square XY windows, counted from the smallest x and y.

    Windows come in order of x, then y, points of a window in the order of their rows. A window with more
    than `max_points` is halved at the median of its longer side until no part has more; points of windows
    and parts with fewer than `min_points` belong to no segment. A step of points is held at a time.

    Parameters
    ----------
    read
        Reads rows of the coordinates, (n, 3).
    rows
        How many there are.

    Raises
    ------
    InputError
        If the windows are so small that they cannot be counted.
    """
    read = lru_cache(1)(read)  # column after column is asked for
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

    forms: dict[str, Form] = {"row": (position(rows), ()), "xy": (low.dtype.str, (2,))}
    columns |= {"x": window(0), "y": window(1)}
    ends = {"x": (0, int(last[0])), "y": (0, int(last[1]))}
    ranges = key_ranges(Rows(columns, 0, rows), ends, forms | dict.fromkeys("xy", ("<i4", ())), work)
    parts = (
        part
        for points in ranges
        for each in _windows(points, work.step)
        for part in _halved(each, max_points, forms, work)
    )
    pieces = (
        (step.read("row") for step in part.steps(work.step)) for part in parts if len(part) >= min_points
    )
    return by_indices(pieces, None, rows, work)


def _windows(points: Rows, step: int) -> Iterator[Rows]:
    """Points of each window of a range of them, in the order of their rows."""
    if len(points) > step:
        yield points
        return
    order, begins = sort_tuples([points.read(key).astype(np.int64, copy=False) for key in ("x", "y")])
    columns = {key: reader(points.read(key).take(order, axis=0)) for key in ("row", "xy")}
    for lo, hi in pairwise([*np.flatnonzero(begins).tolist(), len(order)]):
        yield Rows(columns, lo, hi)


def _halved(window: Rows, max_points: int | None, forms: dict[str, Form], work: Workspace) -> Iterator[Rows]:
    """Parts of at most `max_points`, cut at the median of the longer side of each."""
    if max_points is None or len(window) <= max_points:
        yield window
        return
    low, high = _ends(window, work.step)
    axis = 0 if high[0] - low[0] >= high[1] - low[1] else 1

    def keys() -> Iterator[NDArray[np.uint64]]:
        return (_sortable(part.read("xy")[:, axis]) for part in window.steps(work.step))

    half = len(window) // 2
    middle, equal = _smallest(keys, len(window), half, work.step)
    with work.inner() as inner:
        sides = Buckets(inner, np.array([half, len(window) - half]), forms)
        for part, key in zip(window.steps(work.step), keys(), strict=True):
            second = (key >= middle).astype(np.uint16)
            ties = np.flatnonzero(key == middle)[:equal]
            second[ties] = 0
            equal -= len(ties)
            sides.put(Split(second), {name: part.read(name) for name in forms})
        for side in sides:
            yield from _halved(side, max_points, forms, inner)


def _ends(points: Rows, step: int) -> NDArray[Any]:
    """Minimum and maximum of x and y, (2, 2)."""
    ends = np.array([ends_of(part.read("xy")) for part in points.steps(step)])
    return np.array([ends[:, 0].min(axis=0), ends[:, 1].max(axis=0)])


def _smallest(
    keys: Callable[[], Iterator[NDArray[np.uint64]]], count: int, rank: int, step: int
) -> tuple[int, int]:
    """The largest of the `rank` smallest of `count` keys, and how many of these are equal to it."""
    found, shift = 0, 64
    while count > step and shift:
        shift -= _DIGIT
        counts = np.zeros(1 << _DIGIT, np.int64)
        for key in keys():
            digits = key >> shift
            digits = digits[digits >> _DIGIT == found] & ((1 << _DIGIT) - 1)
            counts += np.bincount(digits.astype(np.int64), minlength=len(counts))
        upto = np.cumsum(counts)
        digit = int(np.searchsorted(upto, rank))
        count = int(counts[digit])
        rank -= int(upto[digit]) - count
        found = found << _DIGIT | digit
    if not shift:
        return found, rank
    among = np.concatenate([key if shift == 64 else key[key >> shift == found] for key in keys()])
    middle = int(np.partition(among, rank - 1)[rank - 1])
    return middle, rank - int(np.count_nonzero(among < middle))


def _sortable(values: NDArray[Any]) -> NDArray[np.uint64]:
    """Integers in the order of finite floats, equal where those are."""
    bits = (values.astype(np.float64) + 0.0).view(np.uint64)  # -0.0 becomes 0.0
    return np.where(bits >> 63, ~bits, bits | (1 << 63))
