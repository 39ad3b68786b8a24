"""What deriving one point cloud file holds at its peak, from its layout alone.

Bytes a point of the arrays that live at the same time, stage by stage as `derive_points` goes through them;
measured against the peak of real conversions by ``benchmarks/memory.py``.
"""

from __future__ import annotations

import numpy as np

from unistore.converters.point_cloud_layout import BATCHES, COLUMNS, FEATURES, INDICES, Layout

__all__ = ["derive_memory"]

_FIXED = 16 << 20
_VOXELISE = 160
"""Bytes a point of the block whose voxels are counted: cells, keys, order, inverse."""
_BLOCK = 1 << 20
_INDICES = 44
"""Bytes a point while segments' indices are checked and joined."""
_WINDOWS = 50
"""Bytes a point while windows are cut and sorted."""


def derive_memory(layout: Layout, *, voxels: bool, windows: bool) -> int:
    """Bytes that `derive_points` holds at its peak.

    Parameters
    ----------
    layout
        Of the file.
    voxels
        Whether a voxel grid is asked for.
    windows
        Whether files without segments are cut into windows.
    """
    points = layout.points
    axes = 3 * np.dtype(layout.xyz_dtype).itemsize
    cut = windows and layout.kind == COLUMNS
    ordered = cut or layout.kind == INDICES
    widths = [
        np.dtype(form.dtype).itemsize * int(np.prod(form.row_shape)) for _, form in layout.columns.values()
    ]
    widest = max([8, *widths])
    stages = [
        axes + _raw(layout) + 4,
        axes + (_INDICES if layout.kind == INDICES else _WINDOWS if cut else 0),
        2 * axes + 16 if ordered else axes,
        24 + widest * (1 if layout.kind == COLUMNS and not cut else 2),
    ]
    total = points * max(stages)
    if voxels:
        average = points // max(1, layout.segments)
        block = points if layout.kind == COLUMNS and not cut else min(points, max(_BLOCK, 4 * average))
        total = max(total, points * (axes + 16) + block * _VOXELISE)
    return _FIXED + total + layout.reading


def _raw(layout: Layout) -> int:
    """Bytes of a row that is read to get one or all of its coordinates."""
    stored = max(np.dtype(dtype).itemsize for dtype in layout.xyz_stored)
    if layout.kind == BATCHES:
        form = layout.columns.get(FEATURES)
        return stored * (3 + (form[1].row_shape[0] if form else 0))
    return stored * (3 if len(layout.xyz) == 1 else 1)
