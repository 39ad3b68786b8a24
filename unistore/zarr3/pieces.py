"""Split boxes, rows and ranges of rows into selections of chunks and of the output."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

AxisIndices = slice | NDArray[np.int64]
"""Positions along one axis."""

Selection = tuple[tuple[AxisIndices, ...], tuple[AxisIndices, ...]]
"""Indices into a chunk, and into the output; one item per axis."""

AxisPieces = list[tuple[int, slice, slice]]
"""Along one axis: number of the chunk, positions in the chunk, positions in the output."""

Group = tuple[int, list[Selection]]
"""Along axis 0: number of the chunk, and what is read of it."""


def axis_pieces(lo: int, hi: int, step: int) -> AxisPieces:
    """Cut ``lo:hi`` of one axis at multiples of `step`; the output starts at `lo`."""
    pieces = []
    for chunk in range(lo // step, -(-hi // step)):
        start = chunk * step
        low, high = max(lo, start), min(hi, start + step)
        pieces.append((chunk, slice(low - start, high - start), slice(low - lo, high - lo)))
    return pieces


def group_rows(rows: NDArray[np.int64], step: int) -> list[Group]:
    """Group rows (n,), output in the order given, by chunks of `step` rows; chunks come in rising order."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    chunk, inside = np.divmod(ordered, step)
    starts = _starts(chunk)
    numbers = chunk[starts[:-1]].tolist()
    return [
        (number, [((_part(inside[a:b]),), (_part(order[a:b]),))])
        for number, (a, b) in zip(numbers, pairwise(starts.tolist()), strict=True)
    ]


def group_ranges(ranges: Iterable[tuple[int, int, int]], step: int) -> list[Group]:
    """Group ranges (first row, the one behind the last, place in the output) by chunks of `step` rows."""
    pieces = []
    for low, high, start in ranges:
        row, place = low, start
        while row < high:
            chunk, inside = divmod(row, step)
            count = min(high - row, step - inside)
            pieces.append((chunk, inside, place, count))
            row, place = row + count, place + count
    pieces.sort()
    groups: list[Group] = []
    for chunk, inside, place, count in pieces:
        if not groups or groups[-1][0] != chunk:
            groups.append((chunk, []))
        groups[-1][1].append(((slice(inside, inside + count),), (slice(place, place + count),)))
    return groups


def _starts(ordered: NDArray[np.int64]) -> NDArray[Any]:
    """Start of each run of equal values in sorted values, then their count."""
    return np.concatenate([[0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1, [len(ordered)]])


def _part(positions: NDArray[np.int64]) -> AxisIndices:
    """Positions as a slice where they are consecutive."""
    first, last = int(positions[0]), int(positions[-1])
    count = len(positions)
    if last - first == count - 1 and (count < 3 or bool((positions[1:] - positions[:-1] == 1).all())):
        return slice(first, last + 1)
    return positions
