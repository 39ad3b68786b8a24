"""Voxels limited to a window, and the extent of points, for conversion, reading and checks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_TILE = 3 * 1024
"""Indices of the points that are compared at a time."""


def largest_point(points: NDArray[np.int32]) -> NDArray[np.uint32]:
    """Largest index on each axis of points (n, 3), (3,); a negative one counts as larger than any volume."""
    flat = np.ascontiguousarray(points).view(np.uint32).reshape(-1)
    whole = len(flat) // _TILE * _TILE  # numpy finds the maxima of long rows several times faster
    largest = np.zeros(3, np.uint32)
    for part in (flat[:whole].reshape(-1, _TILE), flat[whole:].reshape(-1, 3)):
        if len(part):
            np.maximum(largest, part.max(axis=0).reshape(-1, 3).max(axis=0), out=largest)
    return largest


def limit(
    values: NDArray[Any], low: float, high: float, *, scale: bool, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Values below and above become the ends; with `scale`, (value - low) / (high - low). NaN stays."""
    scaled: NDArray[np.float32] = np.clip(values, low, high, out=out, dtype=np.float32, casting="unsafe")
    if scale:
        scaled -= np.float32(low)
        scaled /= np.float32(high - low)
    return scaled
