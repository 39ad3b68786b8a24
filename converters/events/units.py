"""Times of files in microseconds, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.events.options import Unit

_MICROSECONDS = {"auto": 1, "us": 1, "ms": 1_000, "s": 1_000_000}


def to_microseconds(times: NDArray[Any], unit: Unit) -> NDArray[np.int64]:
    """Return times as whole microseconds, the nearest ones."""
    if unit == "ns":
        microseconds: NDArray[Any] = np.rint(times / 1000) if times.dtype.kind == "f" else times // 1000
    elif times.dtype.kind == "f":
        microseconds = np.rint(times.astype(np.float64) * _MICROSECONDS[unit])
    else:
        microseconds = times.astype(np.int64) * _MICROSECONDS[unit]
    return microseconds.astype(np.int64)


def from_microseconds(times: NDArray[np.int64], unit: Unit, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return times in a file's unit and dtype."""
    if unit == "ns":
        return (times * 1000).astype(dtype)
    if dtype.kind == "f":
        return (times / _MICROSECONDS[unit]).astype(dtype)
    return (times // _MICROSECONDS[unit]).astype(dtype)
