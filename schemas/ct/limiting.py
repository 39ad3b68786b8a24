"""Voxels limited to an intensity window, and scaled to 0…1."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def limit(
    values: NDArray[Any], low: float, high: float, *, scale: bool, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Values below and above become the ends; with `scale`, (value - low) / (high - low). NaN stays."""
    found: NDArray[np.float32] = np.clip(values, low, high, out=out, dtype=np.float32, casting="unsafe")
    if scale:
        found -= np.float32(low)
        found /= np.float32(high - low)
    return found
