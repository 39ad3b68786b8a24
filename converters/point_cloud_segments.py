"""Which points belong to which segment: as stored, by XY window, or all in one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.point_cloud_order import Order
from unistore.converters.point_cloud_scratch import Scratch
from unistore.errors import InputError
from unistore.schemas.point_cloud import NO_SEGMENT

__all__ = ["Partition", "blocks", "by_indices", "by_windows", "consecutive", "parse_window"]

Ints = NDArray[np.int64]


class Partition(NamedTuple):
    """Segments of one source in storage order, the one of number -1 last if there is one.

    Attributes
    ----------
    order
        Rows of the source, segment after segment, (M,) or in scratch; None: all rows in their own order.
    lengths
        (S,) points of each segment.
    numbers
        (S,) number of each segment.
    """

    order: Ints | Order | None
    lengths: Ints
    numbers: Ints

    @property
    def offsets(self) -> Ints:
        """(S + 1,) bounds of the segments in the storage order."""
        return np.concatenate(([0], np.cumsum(self.lengths)))


def parse_window(text: str) -> float:
    """Edge of the windows in ``"window:50"``.

    Raises
    ------
    InputError
        If the text has another form or the edge is not above 0.
    """
    match = re.fullmatch(r"window:([0-9.eE+-]+)", text)
    try:
        size = float(match[1]) if match else 0.0
    except ValueError:
        size = 0.0
    if not 0 < size < float("inf"):
        msg = f"segment={text!r}: expected window:SIZE with a size above 0, as in window:50"
        raise InputError(msg)
    return size


def consecutive(lengths: Ints, numbers: Ints) -> Partition:
    """Segments that stand one after the other in the source already."""
    return Partition(None, lengths, numbers)


def by_indices(indices: Iterable[Ints], numbers: Ints, rows: int, scratch: Scratch) -> Partition:
    """Segments given as sorted row indices; rows in none come last, as one segment of number -1."""
    order = Order(rows, indices, scratch, rest=True)
    if not order.rest:
        return Partition(order, order.lengths, numbers)
    return Partition(order, np.append(order.lengths, order.rest), np.append(numbers, NO_SEGMENT))


def by_windows(
    x: NDArray[Any], y: NDArray[Any], size: float, min_points: int, max_points: int | None
) -> Partition:
    """Cut a cloud into square XY windows, counted from the smallest x and y.

    Windows come in order of x, then y, points of a window in the order of their rows. A window with more
    than `max_points` is halved at the median of its longer side until no part has more; points of windows
    and parts with fewer than `min_points` belong to no segment.

    Raises
    ------
    InputError
        If the windows are so small that they cannot be counted.
    """
    columns, rows = (np.floor((axis.astype(np.float64) - axis.min()) / size) for axis in (x, y))
    if max(columns.max(), rows.max()) >= 1 << 31:
        msg = f"segment=window:{size:g}: the cloud is more than 2^31 windows wide"
        raise InputError(msg)
    key = columns.astype(np.int64) * (int(rows.max()) + 1) + rows.astype(np.int64)
    order = np.argsort(key, kind="stable")
    in_order = key[order]
    starts = np.flatnonzero(np.concatenate(([True], in_order[1:] != in_order[:-1])))
    parts: list[Ints] = []
    for window in np.split(order, starts[1:]):
        parts += _halved(window, x, y, max_points)
    kept = [part for part in parts if len(part) >= min_points]
    assigned = np.zeros(len(x), bool)
    whole = np.concatenate([np.empty(0, np.int64), *kept])
    assigned[whole] = True
    lengths = np.array([len(part) for part in kept], np.int64)
    return _with_rest(whole, lengths, np.arange(len(kept), dtype=np.int64), ~assigned)


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


def _with_rest(order: Ints, lengths: Ints, numbers: Ints, unassigned: NDArray[np.bool_]) -> Partition:
    rest = np.flatnonzero(unassigned)
    if not len(rest):
        return Partition(order, lengths, numbers)
    return Partition(
        np.concatenate((order, rest)), np.append(lengths, len(rest)), np.append(numbers, NO_SEGMENT)
    )


def blocks(lengths: Ints, limit: int) -> Iterator[tuple[int, int]]:
    """Cut segments into ranges of whole segments: at most `limit` points, or one segment that has more."""
    first, held = 0, 0
    for segment, length in enumerate(lengths.tolist()):
        if held and held + length > limit:
            yield first, segment
            first, held = segment, 0
        held += length
    if first < len(lengths):
        yield first, len(lengths)
