"""What deriving one point cloud file holds at its peak, from its layout alone.

Bytes a point of the arrays that live at the same time while `derive_points` is at work: of a step of points,
and of all points where they are one block. Compared with what is allocated by tests, and with the peak of
real conversions by ``benchmarks/memory.py``.
"""

from __future__ import annotations

import numpy as np

from unistore.converters.point_cloud.source import Layout
from unistore.converters.point_cloud.workspace import STEP

__all__ = ["derive_memory"]

_FIXED = 16 << 20
_POINT = 90
"""Coordinates, their cells or positions, order, a column."""
_VOXELS = 80
"""Points whose voxels are counted: cells, keys, order, inverse, voxels of another."""
_WINDOWS = 50
"""Points that are cut into windows: x, y, window, order, of up to two steps."""
_ORDER = 6
"""A row in storage order, masks."""
_CELLS = 24
"""Points of a segment of more than a step: cells, positions, voxel."""


def derive_memory(layout: Layout, *, voxels: bool, windows: bool, parts: bool, in_core: bool) -> int:
    """Bytes that `derive_points` holds at its peak.

    Parameters
    ----------
    layout
        Of the file.
    voxels
        Whether a voxel grid is asked for.
    windows, parts
        Whether files without segments are cut into windows, and whether these have a limit of points.
    in_core
        Whether all points are one block in memory; else no more is held for a larger file.
    """
    forms = [form for _, form in layout.columns.values()]
    widest = max((np.dtype(form.dtype).itemsize * int(np.prod(form.row_shape)) for form in forms), default=0)
    axis = np.dtype(layout.xyz_dtype).itemsize
    cut = windows and layout.segmented is None
    step = _POINT + 3 * widest + (_VOXELS if voxels else 0) + (_WINDOWS if cut else 0)
    block = 3 * axis + _CELLS if voxels and layout.points > STEP else 0
    if cut:  # coordinates; row, window, x and y of each point, and of both halves of large windows
        row = 4 + 2 * axis
        block = 3 * axis + _ORDER + max(row + 8 + (2 * row if parts else 0), block, widest)
    elif layout.segmented == "indices":  # one column after the other
        block = _ORDER + max(3 * axis + block, widest)
    points = min(layout.points, STEP) * step + (layout.points * block if in_core else 0)
    return _FIXED + points + layout.memory
