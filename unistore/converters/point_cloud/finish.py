"""Finish a store of point clouds: its index arrays, and the form of the coordinates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unistore.converters.point_cloud.coordinates import decimal_of
from unistore.converters.point_cloud.names import PointOrigin, is_label
from unistore.converters.point_cloud.tables import point_columns, tables_of, typical_length, unit_of
from unistore.errors import InputError
from unistore.plugin import (
    AttributeCollector,
    Field,
    Finalized,
    Scan,
    SourceArrays,
    Sources,
    count_of,
    offsets_of,
    text_arrays,
)
from unistore.schemas.point_cloud.fields import (
    NO_SEGMENT,
    SEGMENTS,
    Decimal,
    header_arrays,
    layout_arrays,
    scale_fields,
    segment_fields,
    voxel_group,
    voxel_offsets_field,
)
from unistore.system.types import AnyArray, Int64s

# Sources whose arrays are joined at a time
_SOURCES_AT_A_TIME = 256

Arrays = list[tuple[Field, Any]]


def finish_clouds(scan: Scan, prepared: Sequence[SourceArrays], voxel_sizes: Sequence[float]) -> Finalized:
    """Return index arrays and the final tables of all sources, which have at least one segment.

    Parameters
    ----------
    prepared
        What `DerivedCloud.derive` returned for each source.

    Raises
    ------
    InputError
        If all points are of no segment.
    """
    joined = _joined(prepared, scan)
    lengths = joined["lengths"]
    source = np.repeat(np.arange(len(prepared)), joined["segment_counts"])
    is_sample = joined["numbers"] != NO_SEGMENT
    if not is_sample.any():
        message = "no point is in a segment, so the store would have no samples"
        raise InputError.at(count_of(len(prepared), "file"), message, "lower --min-points", "empty")
    dtype, decimal = _coordinates(scan, joined)
    unit = unit_of(scan.sources)
    arrays = _segment_arrays(scan, joined, source, unit)
    arrays += [(voxel_offsets_field(size), offsets_of(joined[voxel_group(size)])) for size in voxel_sizes]
    arrays += _source_arrays(scan.sources)
    if dtype == "int32":
        arrays += _scale_arrays(scan.sources, decimal)
    voxel_runs = {size: typical_length(joined[voxel_group(size)][is_sample]) for size in voxel_sizes}
    run = typical_length(lengths[is_sample])
    return Finalized(
        arrays=arrays,
        spilled=tables_of(_columns(scan, joined), voxel_runs, dtype, unit, run, decimal),
        rows={SEGMENTS: joined["segment_counts"]},
        samples=int(np.count_nonzero(is_sample)),
        sample_source=source[is_sample].astype(np.int64),
    )


def _joined(prepared: Sequence[SourceArrays], scan: Scan) -> SourceArrays:
    """Return each array of all sources, one after the other, and their numbers of segments, (sources,)."""
    dtypes = {f"{SEGMENTS}/{name}": field.dtype for name, field in scan.shared["segment_columns"].items()}
    blocks: dict[str, list[AnyArray]] = {}
    for start in range(0, len(prepared), _SOURCES_AT_A_TIME):
        block = prepared[start : start + _SOURCES_AT_A_TIME]
        for name, first in block[0].items():
            dtype = dtypes.get(name, first.dtype)
            values = [source_arrays[name].astype(dtype, copy=False) for source_arrays in block]
            joined = np.concatenate(values) if first.ndim else np.array(values)
            blocks.setdefault(name, []).append(joined)
        counts = np.array([len(source_arrays["numbers"]) for source_arrays in block])
        blocks.setdefault("segment_counts", []).append(counts)
    return {name: np.concatenate(values) for name, values in blocks.items()}


def _coordinates(scan: Scan, joined: SourceArrays) -> tuple[str, Decimal | None]:
    """Return the dtype of the stored coordinates, and scale and offset if they are decimals."""
    dtypes = set()
    for origin, is_quantised in zip(scan.sources.details, joined["quantised"], strict=True):
        dtypes.add("int32" if is_quantised else origin.layout.xyz_dtype)
    dtype = dtypes.pop() if len(dtypes) == 1 else "float64"
    if dtype != "float64":
        return dtype, None
    bounds = joined["bounds"][joined["lengths"] > 0]
    least = bounds[:, 0].min(axis=0)
    most = bounds[:, 1].max(axis=0)
    decimal = decimal_of(joined["places"].tolist(), least, most)
    return ("float64" if decimal is None else "int32"), decimal


def _columns(scan: Scan, joined: SourceArrays) -> list[Field]:
    """Return the fields of the columns of points. Labels that are all 0 are named as such."""
    columns = []
    for name, field in point_columns(scan).items():
        attributes = dict(field.attributes)
        if is_label(name) and not joined[f"labelled/{name}"].any():
            attributes["unlabelled"] = "every value is 0"
        columns.append(replace(field, attributes=attributes))
    return columns


def _segment_arrays(scan: Scan, joined: SourceArrays, source: Int64s, unit: str | None) -> Arrays:
    values = {
        "offsets": offsets_of(joined["lengths"]),
        "origin": joined["bounds"][:, 0],
        "bounds": joined["bounds"],
        "source": source.astype(np.int32),
        "number": joined["numbers"],
    }
    arrays: Arrays = [(field, values[name]) for name, field in segment_fields(unit).items()]
    for name, field in scan.shared["segment_columns"].items():
        arrays.append((field, joined[f"{SEGMENTS}/{name}"]))
    origins: Sequence[PointOrigin] = scan.sources.details
    if any(origin.rooms for origin in origins):
        names: list[str] = []
        for origin, count in zip(origins, joined["segment_counts"].tolist(), strict=True):
            names += origin.rooms or [""] * count
        arrays += text_arrays(f"{SEGMENTS}/name", names, axis="segment", description="room of the segment")
    return arrays


def _scale_arrays(sources: Sources, decimal: Decimal | None) -> Arrays:
    """Return scale and offset of the quantised coordinates of each file."""
    if decimal is None:
        quanta = [origin.layout.quantum for origin in sources.details]
    else:
        quanta = [([decimal.scale] * 3, decimal.offset)] * len(sources)
    scales, offsets = zip(*quanta, strict=True)
    scale_field, offset_field = scale_fields()
    return [(scale_field, np.array(scales, np.float64)), (offset_field, np.array(offsets, np.float64))]


def _source_arrays(sources: Sources) -> Arrays:
    """Return layout, header and attributes of each file."""
    origins = sources.details
    arrays: Arrays = [*layout_arrays(origins.view(_layout_text))]
    if any(origin.layout.header for origin in origins):
        arrays += header_arrays(origins.view(_header_text))
    return [*arrays, *AttributeCollector.arrays(origins)]


def _layout_text(origin: PointOrigin) -> str:
    layout = origin.layout
    return json.dumps(
        {
            "layout": layout.name,
            "xyz": [place.array for place in layout.coordinates.values()],
            "xyz_stored": [place.dtype for place in layout.coordinates.values()],
            "columns": layout.columns,
            "segment_columns": layout.segment_columns,
        }
    )


def _header_text(origin: PointOrigin) -> str:
    return json.dumps(origin.layout.header, sort_keys=True)
