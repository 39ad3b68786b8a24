"""The source formats of point clouds, one module each; see `unistore.converters.point_cloud.source`."""

from __future__ import annotations

from unistore.converters.point_cloud.layouts import (
    arrays,
    batches,
    columns,
    pointsuite_columns,
    pointsuite_indices,
)
from unistore.converters.point_cloud.source import Format

__all__ = ["FORMATS"]

FORMATS: tuple[Format, ...] = (pointsuite_indices, pointsuite_columns, batches, columns, arrays)
"""In the order in which they are tried."""
