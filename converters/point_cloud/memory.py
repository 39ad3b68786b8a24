"""Peak memory of deriving one point cloud file, from its layout.

The constants are bytes per point of the arrays that exist at the same time during `derive_points`: for a step
of points, and for all points if they are one block. Tests compare them with allocations,
``benchmarks/memory.py`` with the peak of real conversions.
"""

from __future__ import annotations

import numpy as np

from unistore.converters.point_cloud.source import Layout
from unistore.converters.point_cloud.workspace import STEP

_FIXED = 16 << 20
_POINT = 90
"""Coordinates, their cells or positions, order, a column."""
_VOXELS = 80
"""Points whose voxels are counted: cells, keys, order, inverse, voxels of another."""
_WINDOWS = 50
"""Points that are cut into windows: x, y, window, order, of up to two steps."""
_ORDER = 6
"""Rows in storage order: row, masks."""
_CELLS = 24
"""Points of a segment of more than a step: cells, positions, voxel."""


def derive_memory(layout: Layout, *, voxels: bool, windows: bool, parts: bool, in_core: bool) -> int:
    """Bytes that `derive_points` holds at its peak.

    Parameters
    ----------
    layout
        Layout of the file.
    voxels
        Whether there are voxel grids.
    windows, parts
        Whether files without segments are divided into windows, and whether `max_points` halves these.
    in_core
        Whether all points are one block in memory; if not, the result is the same for larger files.
    """
    forms = [form for _, form in layout.columns.values()]
    widest = max((np.dtype(form.dtype).itemsize * int(np.prod(form.row_shape)) for form in forms), default=0)
    axis = np.dtype(layout.xyz_dtype).itemsize
    in_windows = windows and layout.segmented is None
    step = _POINT + 3 * widest + (_VOXELS if voxels else 0) + (_WINDOWS if in_windows else 0)
    block = 3 * axis + _CELLS if voxels and layout.points > STEP else 0
    if in_windows:  # coordinates; row, window, x and y of each point, and of both halves of large windows
        row = 4 + 2 * axis
        block = 3 * axis + _ORDER + max(row + 8 + (2 * row if parts else 0), block, widest)
    elif layout.segmented == "indices":  # one column after the other
        block = _ORDER + max(3 * axis + block, widest)
    points = min(layout.points, STEP) * step + (layout.points * block if in_core else 0)
    return _FIXED + points + layout.memory
