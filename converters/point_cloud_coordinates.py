"""Exact coordinates: quantised to int32 only where the source's own scale and offset reproduce every bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.errors import Problem

__all__ = ["bounds_of", "dequantise", "finite_problem", "is_quantisable", "quantise"]

Floats = NDArray[np.float64]

_INT32 = np.iinfo(np.int32)


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


def dequantise(integers: NDArray[np.int32], scale: float | Floats, offset: float | Floats) -> Floats:
    """``float64(q) * scale + offset``, rounded after each operation."""
    product = integers.astype(np.float64)
    product *= scale
    product += offset
    return product


def is_quantisable(axes: Sequence[NDArray[Any]], scale: Sequence[float], offset: Sequence[float]) -> bool:
    """Whether all three axes can be quantised; looks at a block at a time, so that memory stays bounded."""
    step = 1 << 18
    return all(
        axis.dtype == np.float64
        and all(
            quantise(axis[lo : lo + step], scale[number], offset[number]) is not None
            for lo in range(0, len(axis), step)
        )
        for number, axis in enumerate(axes)
    )


def finite_problem(values: NDArray[Any], location: str) -> Problem | None:
    """Problem naming how many coordinates are NaN or infinite, and where the first stands."""
    if values.dtype.kind != "f":
        return None
    finite = np.isfinite(values)
    if finite.all():
        return None
    first = int(np.argmin(finite))
    wrong = len(values) - int(np.count_nonzero(finite))
    message = f"{wrong} of {len(values)} coordinates are not finite, first at row {first}: {values[first]}"
    return Problem(location, message, "remove these points from every column", "nan")


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
