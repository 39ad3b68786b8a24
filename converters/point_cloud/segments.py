"""Which points belong to which segment: as stored, by XY window, or all in one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.point_cloud.coordinates import ends_of
from unistore.converters.point_cloud.order import Order, Read
from unistore.converters.point_cloud.scratch import BLOCK, Buckets, Form, Scratch, cut, grouped
from unistore.converters.point_cloud.windows import parts_of
from unistore.errors import InputError
from unistore.schemas.point_cloud.fields import NO_SEGMENT

__all__ = ["Partition", "blocks", "by_indices", "by_windows", "consecutive"]

Ints = NDArray[np.int64]


class Partition(NamedTuple):
    """Segments of one source in storage order, the one of number -1 last if there is one.

    Attributes
    ----------
    order
        Rows of the source, segment after segment; None: all rows in their own order.
    lengths
        (S,) points of each segment.
    numbers
        (S,) number of each segment.
    """

    order: Order | None
    lengths: Ints
    numbers: Ints

    @property
    def offsets(self) -> Ints:
        """(S + 1,) bounds of the segments in the storage order."""
        return np.concatenate(([0], np.cumsum(self.lengths)))


def consecutive(lengths: Ints, numbers: Ints) -> Partition:
    """Segments that stand one after the other in the source already."""
    return Partition(None, lengths, numbers)


def by_indices(indices: Iterable[Iterable[Ints]], numbers: Ints, rows: int, scratch: Scratch) -> Partition:
    """Segments given as sorted row indices, in parts; rows in none come last, as one segment of number -1."""
    return _with_rest(Order(rows, indices, scratch, rest=True), numbers)


def by_windows(
    read: Read, rows: int, size: float, min_points: int, max_points: int | None, scratch: Scratch
) -> Partition:
    """Cut a cloud into square XY windows, counted from the smallest x and y.

    Windows come in order of x, then y, points of a window in the order of their rows. A window with more
    than `max_points` is halved at the median of its longer side until no part has more; points of windows
    and parts with fewer than `min_points` belong to no segment. A block of points is held at a time.

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
    steps = [(lo, min(lo + BLOCK, rows)) for lo in range(0, rows, BLOCK)]
    low, high = np.full(2, np.inf), np.full(2, -np.inf)
    for lo, hi in steps:
        least, largest = ends_of(read(lo, hi)[:, :2])
        low, high = np.minimum(low, least), np.maximum(high, largest)
    last = np.floor((high - low) / size)
    if last.max() >= 1 << 31:
        msg = f"segment=window:{size:g}: the cloud is more than 2^31 windows wide"
        raise InputError(msg)

    def windows(xy: NDArray[Any]) -> Ints:
        columns, lines = np.floor((xy.astype(np.float64) - low) / size).astype(np.int64).T
        return np.asarray(columns * (int(last[1]) + 1) + lines)

    keys, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for lo, hi in steps:
        found, number = np.unique(windows(read(lo, hi)[:, :2]), return_counts=True)
        keys, at = np.unique(np.concatenate((keys, found)), return_inverse=True)
        counts = np.bincount(at, np.concatenate((counts, number))).astype(np.int64)
    bucket_of = grouped(counts, BLOCK)
    dtype = read(0, 1).dtype.str
    forms: dict[str, Form] = {"row": ("<i8", ()), "window": ("<i8", ()), "xy": (dtype, (2,))}
    points = Buckets(scratch, np.bincount(bucket_of, counts).astype(np.int64), forms)
    for lo, hi in steps:
        xy = read(lo, hi)[:, :2]
        window = np.searchsorted(keys, windows(xy))
        order, cuts = cut(bucket_of[window])
        for key, values in (("row", np.arange(lo, hi)), ("window", window), ("xy", xy)):
            points.put(key, values if order is None else values[order], cuts)
    parts = parts_of(points, min_points, max_points, scratch)
    found_order = Order(rows, parts, scratch, rest=True)
    return _with_rest(found_order, np.arange(len(found_order.lengths), dtype=np.int64))


def _with_rest(order: Order, numbers: Ints) -> Partition:
    if not order.rest:
        return Partition(order, order.lengths, numbers)
    return Partition(order, np.append(order.lengths, order.rest), np.append(numbers, NO_SEGMENT))


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
