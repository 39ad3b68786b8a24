"""Points of windows and distance fields: indices of depth, height and width."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_TILE = 3 * 1024
"""Indices of the points that are compared at a time."""


def largest_point(points: NDArray[np.int32]) -> NDArray[np.uint32]:
    """Largest index on each axis of points (n, 3), (3,); a negative one counts as larger than any volume."""
    flat = np.ascontiguousarray(points).view(np.uint32).reshape(-1)
    whole = len(flat) // _TILE * _TILE  # numpy finds the maxima of long rows several times faster
    found = np.zeros(3, np.uint32)
    for part in (flat[:whole].reshape(-1, _TILE), flat[whole:].reshape(-1, 3)):
        if len(part):
            np.maximum(found, part.max(axis=0).reshape(-1, 3).max(axis=0), out=found)
    return found
