"""What deriving one point cloud file holds at its peak, from its layout alone.

Bytes a point of the arrays that live at the same time while `derive_points` is at work on a block; measured
against the peak of real conversions by ``benchmarks/memory.py``.
"""

from __future__ import annotations

import numpy as np

from unistore.converters.point_cloud.source import Layout
from unistore.converters.point_cloud.workspace import STEP

__all__ = ["derive_memory", "held_memory"]

_FIXED = 16 << 20
_POINT = 150
"""Bytes a point of a block: coordinates, their cells or positions, order, a column."""
_VOXELISE = 120
"""Bytes a point of the block whose voxels are counted: cells, keys, order, inverse, voxels of another."""
_WINDOWS = 60
"""Bytes a point of the block that is cut into windows: x, y, window, order, of up to two blocks."""
_ORDER = 6
"""Bytes a point that is brought into order and held: its row, masks."""
_GRID = 24
"""Bytes a point of a segment of more than a block and held, beside coordinates: cells, positions, voxel."""


def derive_memory(layout: Layout, *, voxels: bool, windows: bool) -> int:
    """Bytes that `derive_points` holds at its peak with a folder: no more for larger files.

    Parameters
    ----------
    layout
        Of the file.
    voxels
        Whether a voxel grid is asked for.
    windows
        Whether files without segments are cut into windows.
    """
    each = _POINT + (_VOXELISE if voxels else 0) + 3 * max(_widths(layout), default=0)
    each += _WINDOWS if windows and layout.segmented is None else 0
    return _FIXED + min(layout.points, STEP) * each + layout.memory


def held_memory(layout: Layout, *, voxels: bool, windows: bool) -> int:
    """Bytes that `derive_points` holds at its peak without a folder; see `derive_memory`."""
    axis = np.dtype(layout.xyz_dtype).itemsize
    grid = 3 * axis + _GRID if voxels and layout.points > STEP else 0
    if windows and layout.segmented is None:  # beside coordinates: row, window, x and y
        each = _ORDER + 3 * axis + max(16 + 2 * axis, grid, *_widths(layout), 0)
    elif layout.segmented == "indices":  # one column after the other is held, and coordinates are looked at
        each = _ORDER + max(3 * axis + 3 + grid, *_widths(layout), 0)
    else:
        each = grid
    return derive_memory(layout, voxels=voxels, windows=windows) + layout.points * each


def _widths(layout: Layout) -> list[int]:
    """Bytes a point of each column."""
    forms = [form for _, form in layout.columns.values()]
    return [np.dtype(form.dtype).itemsize * int(np.prod(form.row_shape)) for form in forms]
