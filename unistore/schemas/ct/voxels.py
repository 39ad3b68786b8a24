"""Voxels of a window, values limited to it, and the extent of points, for conversion, reading and checks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.schemas.ct.windows import Window
from unistore.system.types import AnyArray, Dtype

# Indices of the points that are compared at a time
_TILE = 3 * 1024


def largest_point(points: NDArray[np.int32]) -> NDArray[np.uint32]:
    """Largest index on each axis of points (n, 3), (3,). A negative one counts as larger than any volume."""
    flat = np.ascontiguousarray(points).view(np.uint32).reshape(-1)
    whole = len(flat) // _TILE * _TILE  # numpy finds the maxima of long rows several times faster
    largest = np.zeros(3, np.uint32)
    for part in (flat[:whole].reshape(-1, _TILE), flat[whole:].reshape(-1, 3)):
        if len(part):
            np.maximum(largest, part.max(axis=0).reshape(-1, 3).max(axis=0), out=largest)
    return largest


def limit(
    values: AnyArray, low: float, high: float, *, scale: bool, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Values below and above become the ends. With `scale`, (value - low) / (high - low). NaN stays."""
    scaled: NDArray[np.float32] = np.clip(values, low, high, out=out, dtype=np.float32, casting="unsafe")
    if scale:
        scaled -= np.float32(low)
        scaled /= np.float32(high - low)
    return scaled


class ValueRange:
    """The smallest and largest finite value of voxels, as long as they do not look like HU.

    Nearly every CT volume has air, about -1,000 HU, or bone. Masks, label maps, volumes in eight bits and
    those scaled to 0…1 or -1…1 have neither.
    """

    LOW = -200
    HIGH = 255

    def __init__(self) -> None:
        self._low = math.inf
        self._high = -math.inf
        self._is_like_hu = False

    def add(self, values: AnyArray) -> None:
        """Look at further voxels, an array of any shape. NaN and infinite ones do not count."""
        if self._is_like_hu or not values.size:
            return
        low, high = _ends(values)
        if values.dtype.kind == "f" and not (math.isfinite(low) and math.isfinite(high)):
            finite = values[np.isfinite(values)]
            low, high = _ends(finite) if finite.size else (math.inf, -math.inf)
        self._low = min(self._low, low)
        self._high = max(self._high, high)
        self._is_like_hu = self._low < self.LOW or self._high > self.HIGH

    def contradiction(self) -> str | None:
        """Say why the voxels do not look like HU, or return None if they do, or if there are none."""
        if self._is_like_hu or self._low > self._high:
            return None
        low, high = f"{self._low:.6g}", f"{self._high:.6g}"
        found = f"only values from {low} to {high}" if self._low < self._high else f"only the value {low}"
        return f"has {found}, which do not look like HU: air is about -1,000"


def _ends(values: AnyArray) -> tuple[float, float]:
    return float(values.min()), float(values.max())


# Maps a block of voxels to booleans: whether each is in a window or mask.
VoxelTest = Callable[[AnyArray], NDArray[np.bool_]]


def bounds(window: Window, dtype: Dtype) -> tuple[Any, Any] | None:
    """Return the smallest and largest value of a dtype inside a window, or None if there is none."""
    # `low <= v <= high` in exact arithmetic is `first <= v <= last` for every v of the dtype, so integers are
    # compared as integers and halves as halves.
    low = window.low
    high = window.high
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            first = dtype.type(low)
            last = dtype.type(high)
        if float(first) < low:
            first = np.nextafter(first, dtype.type(np.inf))
        if float(last) > high:
            last = np.nextafter(last, dtype.type(-np.inf))
        return (first, last) if first <= last else None
    kind = np.dtype(np.uint8) if dtype.kind == "b" else dtype
    limits = np.iinfo(kind)
    smallest = max(math.ceil(low), int(limits.min))
    largest = min(math.floor(high), 1 if dtype.kind == "b" else int(limits.max))
    return (kind.type(smallest), kind.type(largest)) if smallest <= largest else None


def inside(window: Window | None, dtype: Dtype) -> VoxelTest:
    """Make the test of a window for a dtype. None: that of a mask, 1 (in floats above 0)."""
    if window is None:
        return (lambda values: values > 0) if dtype.kind == "f" else (lambda values: values == 1)
    ends = bounds(window, dtype.newbyteorder("="))
    if ends is None:
        return lambda values: np.zeros_like(values, np.bool_)
    first, last = ends

    def in_range(values: AnyArray) -> NDArray[np.bool_]:
        values = values.view(np.uint8) if values.dtype.kind == "b" else values
        result: NDArray[np.bool_] = values >= first
        result &= values <= last
        return result

    return in_range
