"""Exact coordinates: quantised to int32 only where the source's own scale and offset reproduce every bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.errors import Problem

__all__ = ["Finite", "bounds_of", "dequantise", "ends_of", "quantise"]

Floats = NDArray[np.float64]

_INT32 = np.iinfo(np.int32)
_STEP = 1 << 14
"""Values worked on at a time: they stay in the cache."""


def quantise(xyz: NDArray[Any], scale: Sequence[float], offset: Sequence[float]) -> NDArray[np.int32] | None:
    """Integers q with ``float64(q) * scale + offset`` equal to each coordinate, bit for bit, or None.

    The rounding is that of LAS readers (ASPRS LAS 1.4 R15, 2.4: "coordinate = record × scale + offset"). Bits
    are compared, so the sign of a zero counts and NaN never passes.

    Parameters
    ----------
    xyz
        (n, 3); only f8 can be quantised.
    scale, offset
        Of x, y and z.
    """
    if xyz.dtype != np.float64 or 0 in scale or not np.isfinite((*scale, *offset)).all():
        return None
    out = np.empty(xyz.shape, np.int32)
    with np.errstate(all="ignore"):
        for lo in range(0, len(xyz), _STEP):
            for axis in range(3):
                values = np.ascontiguousarray(xyz[lo : lo + _STEP, axis])
                wanted = values - offset[axis]
                wanted /= scale[axis]
                np.rint(wanted, out=wanted)
                if not (wanted.min() >= _INT32.min and wanted.max() <= _INT32.max):
                    return None
                integers = wanted.astype(np.int32)
                restored = dequantise(integers, scale[axis], offset[axis])
                if not np.array_equal(restored.view(np.int64), values.view(np.int64)):
                    return None
                out[lo : lo + _STEP, axis] = integers
    return out


def dequantise(integers: NDArray[np.int32], scale: float | Floats, offset: float | Floats) -> Floats:
    """``float64(q) * scale + offset``, rounded after each operation."""
    product = integers.astype(np.float64)
    product *= scale
    product += offset
    return product


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


def ends_of(rows: NDArray[Any]) -> NDArray[Any]:
    """Minimum and maximum of each column of rows (n, k), (2, k); several times faster than along axis 0."""
    axes = [rows[:, axis] for axis in range(rows.shape[1])]
    return np.array([[axis.min() for axis in axes], [axis.max() for axis in axes]], rows.dtype)


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
