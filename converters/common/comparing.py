"""Comparison of values bit for bit: NaN equals NaN, and 0 differs from -0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import is_lossless
from unistore.converters.common.exported import Values


def difference(stored: NDArray[Any], other: NDArray[Any], first: int = 0) -> str | None:
    """Describe the first difference of two arrays with rows on axis 0; None if they are equal.

    Values of different dtypes are compared in a dtype that represents all values of both exactly. The message
    counts rows from `first`.
    """
    if stored.shape != other.shape:
        return f"shapes {stored.shape} and {other.shape}"
    common = np.promote_types(stored.dtype, other.dtype)
    if not (is_lossless(stored.dtype, common) and is_lossless(other.dtype, common)):
        return f"dtypes {stored.dtype} and {other.dtype}, which no dtype holds both"
    if not stored.size:
        return None
    one, two = _bits(stored, common), _bits(other, common)
    if np.array_equal(one, two):
        return None
    wrong = (one != two).reshape(len(stored), -1)
    row = int(np.flatnonzero(wrong.any(axis=1))[0])
    at = int(np.flatnonzero(wrong[row])[0])
    here, there = (values.reshape(len(values), -1)[row, at] for values in (stored, other))
    return f"row {first + row}: {here} and {there}, {np.count_nonzero(wrong)} of {wrong.size} values differ"


def blocks_difference(values: Values, read: Callable[[int, int], NDArray[Any]]) -> str | None:
    """Describe the first difference of values and those that ``read(lo, hi)`` returns; None if equal.

    Stops at the first block with a difference.
    """
    at = 0
    for block in values.blocks():
        found = difference(block, read(at, at + len(block)), at)
        if found is not None:
            return found
        at += len(block)
    return None


def _bits(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Values in a dtype, viewed as unsigned integers of native byte order."""
    plain = np.ascontiguousarray(values, dtype.newbyteorder("="))
    return plain.view(f"u{plain.itemsize}")
