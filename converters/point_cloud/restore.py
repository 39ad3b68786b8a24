"""Arrays of point clouds as their files hold them, from a store: for export, and for comparison."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import Values, array_values
from unistore.converters.common.label_map import recorded_map
from unistore.converters.files.comparison import Restore, Restored, RestoredArray, RestoredFile
from unistore.converters.files.hdf5.attributes import attribute_texts
from unistore.converters.files.libraries import Opened
from unistore.converters.point_cloud.cloud import Cloud, clouds, lazy_values
from unistore.converters.point_cloud.family import PointCloud
from unistore.converters.point_cloud.folders import arrays_of_labels
from unistore.converters.point_cloud.layouts import batches, pointsuite_columns, pointsuite_indices
from unistore.converters.point_cloud.pointsuite import COUNT
from unistore.converters.point_cloud.source import Origin
from unistore.converters.scan import Scan
from unistore.converters.seam.formats import formats_for
from unistore.converters.seam.stored import open_arrays
from unistore.schemas.indices import StoreView, contradiction
from unistore.schemas.point_cloud.fields import SEGMENTS

_SEGMENT = re.compile(r"segments/segment_([0-9]+)(?=/|$)", re.IGNORECASE)


def restore(store: StoreView, scan: Scan) -> Restore:
    """Restore coordinates, columns, the rows of segments, and attributes."""
    labels = recorded_map(scan.options)
    by_number = {cloud.source.number: cloud for cloud in clouds(store)}
    texts = attribute_texts(store, len(by_number))
    formats = {kind.name: kind for kind in formats_for(PointCloud)}

    def source(number: int) -> Restored:
        found = scan.sources[number]
        origin: Origin = found.detail
        # Of several files, each holds one array.
        owners = dict(zip(origin.arrays, found.files, strict=False))
        arrays: dict[Path, list[RestoredArray]] = {}
        for path, values in own_arrays(by_number[number]).items():
            restored = RestoredArray(path, values)
            if labels is not None and path.rpartition("/")[2] in arrays_of_labels(origin.layout):
                numbering = labels.numbering(found.path, found.name)
                restored = restored._replace(of_file=partial(numbering.stored, location=found.name))
            arrays.setdefault(owners.get(path, found.path), []).append(restored)
        return Restored(
            [
                RestoredFile(
                    path,
                    restored,
                    partial(open_arrays, formats[origin.formats[0]], found.name),
                    naming=_segments_by_number,
                    attributes=texts[number],
                    is_rewritten=_is_recounted,
                    facts=by_number[number].header,
                )
                for path, restored in arrays.items()
            ]
        )

    return source


def _segments_by_number(opened: Opened) -> Callable[[str], str]:
    """Name segments as the file does: ``segments/segment_7/x``."""
    segments = opened.hdf5["segments"] if opened.hdf5 is not None and "segments" in opened.hdf5 else ()
    groups = {numbered(f"segments/{key}"): f"segments/{key}" for key in segments}

    def actual(path: str) -> str:
        match = _SEGMENT.match(path)
        return path if match is None else groups.get(match[0], match[0]) + path[match.end() :]

    return actual


def numbered(path: str) -> str:
    """Return a path with the name that exports give its segment: ``segments/segment_0007/x``."""
    match = _SEGMENT.match(path)
    return path if match is None else segment_group(int(match[1])) + path[match.end() :]


def segment_group(number: int) -> str:
    """Return the path of a segment in an exported file."""
    return f"segments/segment_{number:04d}"


def _is_recounted(path: str, item: Any, name: Any) -> bool:
    """Whether an attribute counts the points of a segment, as an export does anyway."""
    if name != COUNT or not path.startswith("segments/") or item.attrs.get_id(name).dtype != "<i8":
        return False
    first = next(iter(item.values()), None)
    return getattr(first, "shape", ())[:1] == (item.attrs[name],)


def own_arrays(cloud: Cloud) -> dict[str, Values]:
    """Arrays of a cloud by their paths in its file."""
    columns = _columns(cloud)
    layout = cloud.layout["layout"]
    if layout == batches.NAME:
        return _batches(cloud, columns)
    if layout == pointsuite_columns.NAME:
        return _in_segments(cloud, columns)
    if layout == pointsuite_indices.NAME:
        for segment, number in cloud.real_segments():
            columns[f"{segment_group(number)}/indices"] = array_values(cloud.indices(segment))
    return columns


def _columns(cloud: Cloud) -> dict[str, Values]:
    """Coordinates and columns by path; what stands beside coordinates in one array is part of it."""
    coordinates = cloud.layout["xyz"]
    columns: dict[str, Values] = {}
    beside: list[str] = []
    for name, (path, dtype, _) in cloud.layout["columns"].items():
        if path in coordinates:
            beside.append(name)
        else:
            shape = (cloud.rows, *cloud.row_shape(name))
            columns[path] = lazy_values(partial(cloud.column, name), shape, np.dtype(dtype))
    if len(coordinates) == 3:
        for axis, path in enumerate(coordinates):
            read = partial(cloud.coordinates, axis)
            columns[path] = lazy_values(read, (cloud.rows,), cloud.coordinate_dtype(axis))
        return columns

    def together() -> NDArray[Any]:
        parts = [cloud.coordinates(axis)[:, None] for axis in range(3)]
        return np.concatenate([*parts, *map(cloud.column, beside)], axis=1)

    width = 3 + sum(cloud.row_shape(name)[0] for name in beside)
    return {coordinates[0]: lazy_values(together, (cloud.rows, width), cloud.coordinate_dtype(0)), **columns}


def _batches(cloud: Cloud, columns: Mapping[str, Values]) -> dict[str, Values]:
    """Arrays (B, P, …) of points and (B, …) of segments."""
    count = len(cloud.numbers)
    points = cloud.source.hi - cloud.source.lo
    if (np.diff(cloud.bounds) * max(1, count) != points).any():
        message = f"segments of {cloud.source.name} differ in length, expected batches of one length"
        raise contradiction(cloud.store, f"{SEGMENTS}/offsets", message)
    own: dict[str, Values] = {}
    for path, column in columns.items():
        shape = (count, points // max(1, count), *column.shape[1:])
        own[path] = lazy_values(partial(_reshaped, column, shape), shape, column.dtype)
    for name, (path, dtype, _) in cloud.layout["segment_columns"].items():
        shape = (count, *cloud.store.array(f"{SEGMENTS}/{name}").shape[1:])
        own[path] = lazy_values(partial(cloud.segment_column, name), shape, np.dtype(dtype))
    return own


def _reshaped(values: Values, shape: tuple[int, ...]) -> NDArray[Any]:
    return values.whole().reshape(shape)


def _in_segments(cloud: Cloud, columns: Mapping[str, Values]) -> dict[str, Values]:
    """Columns of every segment in arrays of its own."""

    @lru_cache(maxsize=1)
    def whole(path: str) -> NDArray[Any]:
        return columns[path].whole()

    def rows_of(path: str, segment: int) -> NDArray[Any]:
        return whole(path)[cloud.indices(segment)]

    own: dict[str, Values] = {}
    for path, column in columns.items():
        for segment, number in cloud.real_segments():
            shape = (cloud.length(segment), *column.shape[1:])
            read = partial(rows_of, path, segment)
            own[f"{segment_group(number)}/{path}"] = lazy_values(read, shape, column.dtype)
    return own
