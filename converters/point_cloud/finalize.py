"""Tables and index arrays of a point cloud store, from the facts of all files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import Merged
from unistore.converters.files.hdf5.attributes import attribute_arrays
from unistore.converters.point_cloud.coordinates import decimal_of
from unistore.converters.point_cloud.names import is_label
from unistore.converters.point_cloud.source import LABEL, Origin
from unistore.converters.protocol import Facts, Finalized, Scan, Sources
from unistore.errors import InputError, Problem
from unistore.schemas.point_cloud.fields import (
    NO_SEGMENT,
    POINTS,
    SEGMENTS,
    Decimal,
    column_field,
    scale_fields,
    segment_fields,
    source_row_field,
    voxel_fields,
    voxel_group,
    voxel_offsets_field,
    xyz_field,
)
from unistore.schemas.tables import Field, IndexValues, Table, lazy_text_arrays, offsets_of, text_arrays
from unistore.system.packed import view
from unistore.system.sizes import count_of

_AT_ONCE = 256
"""Sources whose facts are joined at a time."""

Arrays = list[tuple[Field, IndexValues]]


def column_fields(merged: Mapping[str, Merged], run: int, classes: Mapping[str, str]) -> list[Field]:
    """Fields of the points' own columns; `classes` are the names of labels by number."""
    fields = []
    for key, form in merged.items():
        named = {"classes": dict(classes)} if classes and is_label(key) else {}
        attributes = {**form.attributes, **named}
        fields.append(column_field(POINTS, key, form.dtype, form.row_shape, attributes, run))
    return fields


def tables(
    columns: Sequence[Field],
    sizes: Sequence[float],
    *,
    xyz_dtype: str,
    unit: str | None,
    run: int,
    voxel_runs: Sequence[int],
    decimal: Decimal | None = None,
) -> tuple[Table, ...]:
    """``points`` and one table per voxel grid, all spilled.

    Parameters
    ----------
    run, voxel_runs
        Points of a typical segment, and its voxels in each grid.
    """
    grids = [
        voxel_fields(size, voxel_run, run, unit) for size, voxel_run in zip(sizes, voxel_runs, strict=True)
    ]
    points = (
        xyz_field(xyz_dtype, run, unit, decimal),
        *(replace(field, run=run) for field in columns),
        source_row_field(run),
        *(point_voxel for _, _, point_voxel in grids),
    )
    return (
        Table(name=POINTS, fields=points, spilled=True),
        *(
            Table(name=voxel_group(size), fields=(coords, counts), spilled=True)
            for size, (coords, counts, _) in zip(sizes, grids, strict=True)
        ),
    )


def point_columns(scan: Scan) -> dict[str, Field]:
    """Fields of the points' own columns, by name."""
    points = next(table for table in scan.tables if table.name == POINTS)
    return {
        key: field
        for key, field in points.columns().items()
        if key not in ("xyz", "source_row") and not key.startswith("voxels/")
    }


def segment_columns(merged: Mapping[str, Merged], classes: Mapping[int, str]) -> dict[str, Field]:
    """Fields of the segments' own columns, by name; `classes` are the names of labels by number."""
    named = {LABEL: {"classes": {str(number): name for number, name in classes.items()}}} if classes else {}
    return {
        key: column_field(
            SEGMENTS, key, form.dtype, form.row_shape, {**form.attributes, **named.get(key, {})}
        )
        for key, form in merged.items()
    }


def finalize_points(
    scan: Scan, facts: Sequence[Facts], sizes: Sequence[float], unit: str | None
) -> Finalized:
    """Index arrays and the final tables of all sources.

    Raises
    ------
    InputError
        If no segment is left.
    """
    found = _joined(facts, scan)
    lengths, numbers = found["lengths"], found["numbers"]
    of_source = np.repeat(np.arange(len(facts)), found["counts"])
    real = numbers != NO_SEGMENT
    if not real.any():
        message = "no point belongs to a segment, so there would be no sample"
        raise InputError(Problem(count_of(len(facts), "file"), message, "lower min_points", "empty"))
    run = _typical(lengths[real])
    voxels = [found[voxel_group(size)] for size in sizes]
    kinds = {
        "int32" if quantised else origin.layout.xyz_dtype
        for origin, quantised in zip(scan.sources.details, found["quantised"], strict=True)
    }
    dtype, decimal = kinds.pop() if len(kinds) == 1 else "float64", None
    if dtype == "float64":
        bounds = found["bounds"][lengths > 0]
        decimal = decimal_of(found["places"].tolist(), bounds[:, 0].min(axis=0), bounds[:, 1].max(axis=0))
        dtype = dtype if decimal is None else "int32"
    columns = [
        replace(field, attributes={**field.attributes, "unlabelled": "every value is 0"})
        if is_label(key) and not found[f"labelled/{key}"].any()
        else field
        for key, field in point_columns(scan).items()
    ]
    arrays = _segment_arrays(scan, found, of_source, unit)
    arrays += [
        (voxel_offsets_field(size), offsets_of(counts)) for size, counts in zip(sizes, voxels, strict=True)
    ]
    arrays += _source_arrays(scan.sources)
    if dtype == "int32":
        arrays += _quantum_arrays(scan.sources, decimal)
    return Finalized(
        arrays=arrays,
        spilled=tables(
            columns,
            sizes,
            xyz_dtype=dtype,
            unit=unit,
            run=run,
            voxel_runs=[_typical(counts[real]) for counts in voxels],
            decimal=decimal,
        ),
        samples=int(np.count_nonzero(real)),
        sample_source=of_source[real].astype(np.int64),
    )


def _joined(facts: Sequence[Facts], scan: Scan) -> Facts:
    """Each fact of all sources, one after the other, and their ``counts`` of segments, (sources,)."""
    dtypes = {f"{SEGMENTS}/{key}": field.dtype for key, field in scan.shared["segment_columns"].items()}
    found: dict[str, list[NDArray[Any]]] = {}
    for lo in range(0, len(facts), _AT_ONCE):
        some = facts[lo : lo + _AT_ONCE]
        for name, first in some[0].items():
            values = [each[name].astype(dtypes.get(name, first.dtype), copy=False) for each in some]
            found.setdefault(name, []).append(np.concatenate(values) if first.ndim else np.array(values))
        found.setdefault("counts", []).append(np.array([len(each["numbers"]) for each in some]))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def _segment_arrays(scan: Scan, found: Facts, of_source: NDArray[np.int64], unit: str | None) -> Arrays:
    fields = segment_fields(unit)
    bounds = found["bounds"]
    values = {
        "offsets": offsets_of(found["lengths"]),
        "origin": bounds[:, 0],
        "bounds": bounds,
        "source": of_source.astype(np.int32),
        "number": found["numbers"],
    }
    arrays: Arrays = [(fields[name], values[name]) for name in fields]
    columns = scan.shared["segment_columns"].items()
    arrays += [(field, found[f"{SEGMENTS}/{key}"]) for key, field in columns]
    origins: Sequence[Origin] = scan.sources.details
    if any(origin.rooms for origin in origins):
        names: list[str] = []
        for origin, count in zip(origins, found["counts"].tolist(), strict=True):
            names += origin.rooms or [""] * count
        arrays += text_arrays(f"{SEGMENTS}/name", names, axis="segment", description="room of the segment")
    return arrays


def _quantum_arrays(sources: Sources, decimal: Decimal | None) -> Arrays:
    """Scale and offset of each file's quantised coordinates."""
    if decimal is None:
        layouts = [origin.layout for origin in sources.details]
        own = [[layout.scale for layout in layouts], [layout.offset for layout in layouts]]
    else:
        own = [[[decimal.scale] * 3] * len(sources), [list(decimal.offset)] * len(sources)]
    return [(field, np.array(values, np.float64)) for field, values in zip(scale_fields(), own, strict=True)]


def _source_arrays(sources: Sources) -> Arrays:
    """Layout, header and attributes of each file."""
    origins: Sequence[Origin] = sources.details
    arrays: Arrays = []
    layouts = view(origins, _layout_text)
    arrays += lazy_text_arrays(
        "sources/layout", layouts, axis="source", description="layout of the file, JSON"
    )
    if any(origin.layout.header for origin in origins):
        headers = view(origins, lambda origin: json.dumps(origin.layout.header, sort_keys=True))
        arrays += lazy_text_arrays(
            "sources/header", headers, axis="source", description="header of the file, JSON"
        )
    return [*arrays, *attribute_arrays(view(origins, lambda origin: origin.attributes))]


def _layout_text(origin: Origin) -> str:
    layout = origin.layout
    return json.dumps(
        {
            "layout": layout.name,
            "xyz": layout.xyz,
            "xyz_stored": layout.xyz_stored,
            "columns": layout.columns,
            "segment_columns": layout.segment_columns,
        }
    )


def _typical(lengths: NDArray[np.int64]) -> int:
    return max(1, int(np.median(lengths))) if len(lengths) else 1
