"""Cutting windows of a point cloud into parts of a bounded number of points, whatever the windows hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.point_cloud.coordinates import ends_of
from unistore.converters.point_cloud.scratch import BLOCK, Buckets, Form, Scratch, cut

__all__ = ["parts_of"]

Ints = NDArray[np.int64]
_DIGIT = 16
"""Bits of a coordinate that are told apart at a time."""


def parts_of(
    points: Buckets, min_points: int, max_points: int | None, scratch: Scratch
) -> Iterator[Iterable[Ints]]:
    """Rows of each window, or part of one, that is a segment; those of large windows in several pieces.

    Parameters
    ----------
    points
        ``row``, ``window`` and ``xy`` of the points, in the order of their rows in each bucket. A bucket
        holds whole windows, one of more than a block of points alone.
    min_points, max_points
        As of `by_windows`.
    scratch
        Where halves of large windows are kept.
    """
    for lo, hi in pairwise(points.bounds.tolist()):
        if hi - lo > BLOCK:
            yield from _large(points, lo, hi, min_points, max_points, scratch)
            continue
        row, window, xy = (points.columns[key].read(lo, hi) for key in ("row", "window", "xy"))
        order, cuts = cut(window)
        order = np.arange(hi - lo) if order is None else order
        for _, first, last in cuts:
            for part in _halved(order[first:last], xy[:, 0], xy[:, 1], max_points):
                if len(part) >= min_points:
                    yield [row[part]]


def _halved(window: Ints, x: NDArray[Any], y: NDArray[Any], max_points: int | None) -> list[Ints]:
    if max_points is None or len(window) <= max_points:
        return [window]
    along = x[window] if np.ptp(x[window]) >= np.ptp(y[window]) else y[window]
    sides = np.argsort(along, kind="stable")
    half = len(window) // 2
    return [
        part
        for side in (sides[:half], sides[half:])
        for part in _halved(window[np.sort(side)], x, y, max_points)
    ]


def _large(
    points: Buckets, lo: int, hi: int, min_points: int, max_points: int | None, scratch: Scratch
) -> Iterator[Iterable[Ints]]:
    """What `_halved` gives of the window of rows ``lo:hi``, a block at a time."""
    row, column = points.columns["row"], points.columns["xy"]
    steps = [(first, min(first + BLOCK, hi)) for first in range(lo, hi, BLOCK)]
    if max_points is None or hi - lo <= max_points:
        if hi - lo >= min_points:
            yield (row.read(*step) for step in steps)
        return
    if hi - lo <= BLOCK:
        xy = column.read(lo, hi)
        for part in _halved(np.arange(hi - lo), xy[:, 0], xy[:, 1], max_points):
            if len(part) >= min_points:
                yield [row.read(lo, hi)[part]]
        return
    half = (hi - lo) // 2
    ends = [ends_of(column.read(*step)) for step in steps]
    low, high = np.min([low for low, _ in ends], axis=0), np.max([high for _, high in ends], axis=0)
    axis = 0 if high[0] - low[0] >= high[1] - low[1] else 1

    def keys() -> Iterator[NDArray[np.uint64]]:
        return (_key(column.read(*step)[:, axis]) for step in steps)

    middle, ties = _ranked(keys, half)
    with scratch.another() as own:
        forms: dict[str, Form] = {"row": ("<i8", ()), "xy": (low.dtype.str, (2,))}
        sides = Buckets(own, np.array([half, hi - lo - half]), forms)
        for step, key in zip(steps, keys(), strict=True):
            equal = np.flatnonzero(key == middle)
            second = key >= middle
            second[equal[:ties]] = False
            ties -= min(ties, len(equal))
            order, cuts = cut(second.astype(np.int64))
            for name, values in (("row", row.read(*step)), ("xy", column.read(*step))):
                sides.put(name, values if order is None else values[order], cuts)
        for first, last in pairwise(sides.bounds.tolist()):
            yield from _large(sides, first, last, min_points, max_points, own)


def _ranked(keys: Callable[[], Iterator[NDArray[np.uint64]]], rank: int) -> tuple[int, int]:
    """The key that comes as number `rank`, counted from 1, and how many equal to it come no later."""
    found = 0
    for shift in range(64 - _DIGIT, -1, -_DIGIT):
        counts = np.zeros(1 << _DIGIT, np.int64)
        for key in keys():
            among = key if shift == 64 - _DIGIT else key[key >> (shift + _DIGIT) == found]
            digits = (among >> shift & ((1 << _DIGIT) - 1)).astype(np.int64)
            counts += np.bincount(digits, minlength=len(counts))
        upto = np.cumsum(counts)
        digit = int(np.searchsorted(upto, rank))
        rank -= int(upto[digit] - counts[digit])
        found = found << _DIGIT | digit
    return found, rank


def _key(values: NDArray[Any]) -> NDArray[np.uint64]:
    """Integers in the order of finite floats, equal where those are."""
    bits = (values.astype(np.float64) + 0.0).view(np.uint64)  # -0.0 becomes 0.0
    return np.where(bits >> 63, ~bits, bits | (1 << 63))
