"""What deriving one point cloud file holds at its peak, from its layout alone.

Bytes a point of the arrays that live at the same time while `derive_points` is at work on a block; measured
against the peak of real conversions by ``benchmarks/memory.py``.
"""

from __future__ import annotations

import numpy as np

from unistore.converters.point_cloud_layout import BATCHES, COLUMNS, Layout
from unistore.converters.point_cloud_scratch import BLOCK

__all__ = ["derive_memory"]

_FIXED = 16 << 20
_POINT = 100
"""Bytes a point of a block: coordinates, their cells or positions, order, a column."""
_VOXELISE = 200
"""Bytes a point of the block whose voxels are counted: cells, keys, order, inverse, voxels of another."""
_WINDOWS = 100
"""Bytes a point of the block that is cut into windows: x, y, window, order, further by the largest window."""


def derive_memory(layout: Layout, *, voxels: bool, windows: bool) -> int:
    """Bytes that `derive_points` holds at its peak: no more for larger files, unless they are cut.

    Parameters
    ----------
    layout
        Of the file.
    voxels
        Whether a voxel grid is asked for.
    windows
        Whether files without segments are cut into windows.
    """
    widths = [
        np.dtype(form.dtype).itemsize * int(np.prod(form.row_shape)) for _, form in layout.columns.values()
    ]
    each = _POINT + (_VOXELISE if voxels else 0) + 3 * max(widths, default=0)
    each += _WINDOWS if windows and layout.kind == COLUMNS else 0
    total = min(layout.points, BLOCK) * each
    if layout.kind == BATCHES:
        total += 2 * layout.points // max(1, layout.segments) * 9 * 8
    return _FIXED + total + layout.reading
