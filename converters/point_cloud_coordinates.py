"""Exact coordinates: quantised to int32 only where the source's own scale and offset reproduce every bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.errors import Problem

__all__ = ["Finite", "bounds_of", "dequantise", "is_quantisable", "quantise", "quantise_into"]

Floats = NDArray[np.float64]

_INT32 = np.iinfo(np.int32)
_STEP = 1 << 14
"""Values worked on at a time: they stay in the cache."""


def quantise(values: Floats, scale: float, offset: float) -> NDArray[np.int32] | None:
    """Integers q with ``float64(q) * scale + offset`` equal to every value, bit for bit; None if none are.

    The rounding is that of LAS readers (ASPRS LAS 1.4 R15, 2.4: "coordinate = record × scale + offset"). Bits
    are compared, so the sign of a zero counts and NaN never passes.
    """
    if scale == 0 or not np.isfinite((scale, offset)).all():
        return None
    with np.errstate(all="ignore"):
        wanted = np.rint((values - offset) / scale)
        if not np.all((wanted >= _INT32.min) & (wanted <= _INT32.max)):
            return None
    integers = wanted.astype(np.int32)
    restored = dequantise(integers, scale, offset)
    if not np.array_equal(restored.view(np.int64), np.ascontiguousarray(values).view(np.int64)):
        return None
    return integers


def quantise_into(
    out: NDArray[np.int32], values: Floats, scale: Sequence[float], offset: Sequence[float]
) -> None:
    """Write the integers of coordinates (n, 3) that `is_quantisable` holds for to `out`."""
    for lo in range(0, len(values), _STEP):
        block = values[lo : lo + _STEP] - np.array(offset)
        block /= np.array(scale)
        out[lo : lo + _STEP] = np.rint(block, out=block)


def dequantise(integers: NDArray[np.int32], scale: float | Floats, offset: float | Floats) -> Floats:
    """``float64(q) * scale + offset``, rounded after each operation."""
    product = integers.astype(np.float64)
    product *= scale
    product += offset
    return product


def is_quantisable(axes: Sequence[NDArray[Any]], scale: Sequence[float], offset: Sequence[float]) -> bool:
    """Whether all three axes can be quantised; looks at a block at a time, so that memory stays bounded."""
    return all(
        axis.dtype == np.float64
        and all(
            quantise(axis[lo : lo + _STEP], scale[number], offset[number]) is not None
            for lo in range(0, len(axis), _STEP)
        )
        for number, axis in enumerate(axes)
    )


class Finite:
    """Counts coordinates that are NaN or infinite.

    Parameters
    ----------
    places
        Where x, y and z stand, for messages.
    rows
        Rows of the source.
    """

    def __init__(self, places: Sequence[str], rows: int) -> None:
        self._places, self._rows = places, rows
        self._wrong = [0, 0, 0]
        self._first: dict[int, tuple[int, Any]] = {}

    def look(self, lo: int, xyz: NDArray[Any]) -> None:
        """Look at rows of the source from `lo` on, (n, 3), which come in its order."""
        finite = np.isfinite(xyz)
        for axis in () if finite.all() else range(3):
            wrong = np.flatnonzero(~finite[:, axis])
            self._wrong[axis] += len(wrong)
            if len(wrong):
                self._first.setdefault(axis, (lo + int(wrong[0]), xyz[wrong[0], axis]))

    @property
    def problems(self) -> list[Problem]:
        """For each axis that has any: how many, and where the first stands."""
        return [
            Problem(
                self._places[axis],
                f"{self._wrong[axis]} of {self._rows} coordinates are not finite, "
                f"first at row {row}: {value}",
                "remove these points from every column",
                "nan",
            )
            for axis, (row, value) in sorted(self._first.items())
        ]


def bounds_of(axes: Sequence[NDArray[Any]], offsets: NDArray[np.int64]) -> Floats:
    """Minimum and maximum of each segment, (S, 2, 3) f8; zeros for segments without points.

    Parameters
    ----------
    axes
        x, y and z in storage order, (N,) each.
    offsets
        Points of segment s are ``offsets[s]:offsets[s + 1]``, (S + 1,) i8.
    """
    bounds = np.zeros((len(offsets) - 1, 2, 3))
    filled = np.flatnonzero(np.diff(offsets))
    if len(filled):
        for number, axis in enumerate(axes):
            bounds[filled, 0, number] = np.minimum.reduceat(axis, offsets[filled])
            bounds[filled, 1, number] = np.maximum.reduceat(axis, offsets[filled])
    return bounds
