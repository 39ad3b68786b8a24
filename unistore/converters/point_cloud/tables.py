"""Tables of a point cloud store: points, and the voxels of each grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from unistore.converters.point_cloud.names import is_label
from unistore.plugin import Field, Merged, Scan, Sources, Table
from unistore.schemas.point_cloud.fields import (
    POINTS,
    Decimal,
    column_field,
    source_row_field,
    voxel_fields,
    voxel_group,
    xyz_field,
)
from unistore.system.types import Int64s


def tables_of(
    columns: Sequence[Field],
    voxel_runs: Mapping[float, int],
    xyz_dtype: str,
    unit: str | None,
    run: int,
    decimal: Decimal | None = None,
) -> tuple[Table, ...]:
    """Return the table of points and one table a voxel grid, all spilled.

    Parameters
    ----------
    columns
        Columns of the points without ``xyz`` and ``source_row``, which every store has.
    voxel_runs
        Voxels of a typical segment, by the size of the grid.
    xyz_dtype, decimal
        Form of the stored coordinates, see `xyz_field`.
    unit
        Unit of the coordinates. None: it is not known.
    run
        Points of a typical segment.
    """
    point_fields = [
        xyz_field(xyz_dtype, run, unit, decimal),
        *(replace(field, run=run) for field in columns),
        source_row_field(run),
    ]
    voxel_tables = []
    for size, voxel_run in voxel_runs.items():
        coords, counts, point_voxel = voxel_fields(size, voxel_run, run, unit)
        point_fields.append(point_voxel)
        voxel_tables.append(Table(name=voxel_group(size), fields=(coords, counts), spilled=True))
    return (Table(name=POINTS, fields=tuple(point_fields), spilled=True), *voxel_tables)


def field_of(table: str, name: str, form: Merged, classes: Mapping[str, str], run: int = 1) -> Field:
    """Return the field of a reconciled column. `classes` are the names of labels by number."""
    attributes = dict(form.attributes)
    if classes and is_label(name):
        attributes["classes"] = dict(classes)
    return column_field(table, name, form.dtype, form.row_shape, attributes, run)


def point_columns(scan: Scan) -> dict[str, Field]:
    """Return the fields of the columns that files have of their points, by name."""
    points = next(table for table in scan.tables if table.name == POINTS)
    columns = points.columns()
    return {
        name: field
        for name, field in columns.items()
        if name not in ("xyz", "source_row") and not name.startswith("voxels/")
    }


def unit_of(sources: Sources) -> str | None:
    """Return the unit of the coordinates, if it is the same for all files."""
    units = {origin.layout.unit for origin in sources.details}
    return units.pop() if len(units) == 1 else None


def typical_length(lengths: Int64s) -> int:
    """Return the median length, at least 1: the rows that one sample reads."""
    return max(1, int(np.median(lengths)))
