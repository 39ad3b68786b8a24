"""Give back the files of a point cloud store: for export, and for comparison with the files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from unistore.converters.formats.hdf5 import Hdf5
from unistore.converters.point_cloud.layouts import Batches
from unistore.converters.point_cloud.names import ColumnPlace, PointOrigin, is_label
from unistore.converters.point_cloud.options import PointCloudOptions
from unistore.converters.point_cloud.pointsuite import COUNT, Indices, InSegments
from unistore.converters.point_cloud.segment_arrays import SegmentArrays, described_rows
from unistore.converters.point_cloud.timed_sweeps import TIMES, TimedSweeps, times_of_layout
from unistore.plugin import (
    ExportedArray,
    File,
    OpenedByLibrary,
    Restore,
    RestoredArray,
    RestoredFile,
    RestoredFiles,
    Scan,
    Source,
    StoreView,
    array_values,
    kept_attributes,
    offsets_of,
)
from unistore.schemas.point_cloud.clouds import Cloud, clouds
from unistore.schemas.point_cloud.fields import SEGMENTS
from unistore.system.types import AnyArray, JsonObject, Shape

# Formats that write a file as it was, by ending
_WRITTEN = {".las": "las", ".laz": "laz"}
_SEGMENT = re.compile(r"segments/segment_([0-9]+)(?=/|$)", re.IGNORECASE)


def files(store: StoreView) -> Iterator[File]:
    """Yield the file of every source: NPZ, LAS and LAZ as it was, all others as HDF5."""
    for cloud in clouds(store):
        values = own_arrays(cloud)
        name = cloud.name
        ending = Path(name).suffix.lower()
        if ending == ".npz":
            yield File(name=name, form="npz", source=cloud.number, values=values)
        elif ending in _WRITTEN:
            kind = _WRITTEN[ending]
            yield File(
                name=name,
                form="format",
                format=kind,
                source=cloud.number,
                values=values,
                metadata=cloud.header,
                notes=(f"{kind}: values, order and header are the same as in the source",),
            )
        else:
            yield File(
                name=name if name.lower().endswith(Hdf5.suffixes) else f"{name}.h5",
                form="hdf5",
                source=cloud.number,
                values={**values, **_segment_arrays(cloud)},
                attributes=_attributes(cloud),
                compressed=True,
            )


def _segment_arrays(cloud: Cloud) -> dict[str, ExportedArray]:
    """Return the rows of segments that arrays described, as ``indices`` and ``offsets`` in every case."""
    if cloud.layout["layout"] != SegmentArrays.name:
        return {}
    rows = [cloud.indices(position) for position in cloud.real_segments()]
    offsets = offsets_of(np.array(list(map(len, rows)), np.int64))
    return {
        "segments/indices": array_values(np.concatenate(rows)),
        "segments/offsets": array_values(offsets),
    }


def _attributes(cloud: Cloud) -> dict[str, JsonObject]:
    """Return the attributes of an exported HDF5 file by path, with the number of points of each segment."""
    attributes: dict[str, JsonObject] = {}
    if cloud.layout["layout"] in (Indices.name, InSegments.name):
        lengths = np.diff(cloud.bounds)
        for position, number in cloud.real_segments().items():
            attributes[_segment_path(number)] = {COUNT: lengths[position]}
    if times := _times(cloud):
        attributes[""] = {name: np.int64(time) for name, time in times.items()}
    for path, kept in kept_attributes(cloud.store, cloud.number).items():
        attributes.setdefault(_numbered(path), {}).update(kept)
    return attributes


def restore(store: StoreView, scan: Scan) -> Restore:
    """Restore coordinates, columns, the rows of segments, and attributes."""
    by_number = {cloud.number: cloud for cloud in clouds(store)}
    maps = PointCloudOptions.recorded_labels(scan.options)

    def source(number: int) -> RestoredFiles:
        own = scan.sources[number]
        renumber = None
        if maps is not None:
            renumber = partial(maps.numbering(own.path, own.name).stored, location=own.name)
        return RestoredFiles(list(_restored_files(by_number[number], own, renumber)))

    return source


def _restored_files(
    cloud: Cloud, source: Source, renumber: Callable[[AnyArray], AnyArray] | None
) -> Iterator[RestoredFile]:
    """Yield the files of a source. `renumber` makes stored labels of its own. None: they are the same."""
    origin: PointOrigin = source.detail
    # Of several files, each holds one array.
    owners = dict(zip(origin.arrays, source.files, strict=False))
    arrays: dict[Path, list[RestoredArray]] = {}
    labels = {
        place.array.rpartition("/")[2] for name, place in origin.layout.places.items() if is_label(name)
    }
    for path, values in own_arrays(cloud).items():
        is_renumbered = path.rpartition("/")[2] in labels
        restored = RestoredArray(path, values, of_file=renumber if is_renumbered else None)
        arrays.setdefault(owners.get(path, source.path), []).append(restored)
    described = dict(origin.segment_arrays)
    if described:
        arrays[source.path] += _described_segments(cloud, described)
    adapt = partial(_with_described_segments, described, cloud.rows)
    for file, restored_arrays in arrays.items():
        yield RestoredFile(
            file,
            restored_arrays,
            naming=_segments_by_number,
            is_rewritten=_is_recounted,
            metadata={**cloud.header, TIMES: _times(cloud)} if _times(cloud) else cloud.header,
            format=origin.formats[0],
            adapt=adapt if described and file == source.path else _as_it_is,
        )


def _times(cloud: Cloud) -> dict[str, int]:
    """Return what texts beside a sweep said of its time."""
    if cloud.layout["layout"] != TimedSweeps.name:
        return {}
    places = {name: ColumnPlace(*place) for name, place in cloud.layout["segment_columns"].items()}
    columns = times_of_layout(places)
    return {time: int(cloud.segment_column(name)[0]) for name, time in columns.items()}


def _as_it_is(opened: OpenedByLibrary) -> OpenedByLibrary:
    return opened


def _names_of_described(described: Mapping[str, str]) -> tuple[str, str]:
    """Return what messages call the lengths, and the rows, that these arrays give the segments."""
    paths = " and ".join(described.values())
    return f"{paths} (points of each segment)", f"{paths} (rows of segments)"


def _described_segments(cloud: Cloud, described: Mapping[str, str]) -> list[RestoredArray]:
    """Return the length and the rows of each segment that arrays of the file describe."""
    positions = list(cloud.real_segments())
    lengths = np.diff(cloud.bounds)[positions]

    def read_rows() -> AnyArray:
        return np.concatenate([np.zeros(0, np.int64), *map(cloud.indices, positions)])

    rows = ExportedArray.of_read(read_rows, (int(lengths.sum()),), np.dtype(np.int64))
    name_of_lengths, name_of_rows = _names_of_described(described)
    return [RestoredArray(name_of_lengths, array_values(lengths)), RestoredArray(name_of_rows, rows)]


def _with_described_segments(
    described: Mapping[str, str], points: int, opened: OpenedByLibrary
) -> OpenedByLibrary:
    """Replace arrays that describe segments by the lengths and rows that they describe."""
    names = _names_of_described(described)
    others = [name for name in opened.names if name not in described.values()]

    def array(name: str) -> Any:
        if name not in names:
            return opened.array(name)
        values = {role: opened.array(path)[:] for role, path in described.items()}
        return described_rows(values, points)[names.index(name)]

    return opened._replace(names=[*others, *names], array=array)


def _segments_by_number(opened: Any) -> Callable[[str], str]:
    """Name segments as a file that h5py opened does: ``segments/segment_7/x``."""
    segments = opened.hdf5["segments"] if opened.hdf5 is not None and "segments" in opened.hdf5 else ()
    groups = {_numbered(f"segments/{key}"): f"segments/{key}" for key in segments}

    def actual(path: str) -> str:
        match = _SEGMENT.match(path)
        return path if match is None else groups.get(match[0], match[0]) + path[match.end() :]

    return actual


def _numbered(path: str) -> str:
    """Return a path with the name that exports give its segment: ``segments/segment_0007/x``."""
    match = _SEGMENT.match(path)
    return path if match is None else _segment_path(int(match[1])) + path[match.end() :]


def _segment_path(number: int) -> str:
    return f"segments/segment_{number:04d}"


def _is_recounted(path: str, item: Any, name: Any) -> bool:
    """Return whether an attribute counts the points of a segment, as an export does anyway."""
    if name != COUNT or not path.startswith("segments/") or item.attrs.get_id(name).dtype != "<i8":
        return False
    first = next(iter(item.values()), None)
    return getattr(first, "shape", ())[:1] == (item.attrs[name],)


def own_arrays(cloud: Cloud) -> dict[str, ExportedArray]:
    """Return the arrays of a cloud by their paths in its file."""
    columns = _columns(cloud)
    layout = cloud.layout["layout"]
    if layout == Batches.name:
        return _batches(cloud, columns)
    if layout == InSegments.name:
        return _in_segments(cloud, columns)
    if layout == Indices.name:
        for position, number in cloud.real_segments().items():
            columns[f"{_segment_path(number)}/indices"] = array_values(cloud.indices(position))
    return columns


def _columns(cloud: Cloud) -> dict[str, ExportedArray]:
    """Return coordinates and columns by path. What follows x, y, z in one array is part of it."""
    coordinates = cloud.layout["xyz"]
    dtypes = list(map(np.dtype, cloud.layout["xyz_stored"]))
    columns: dict[str, ExportedArray] = {}
    features: list[str] = []
    for name, (path, dtype, _) in cloud.layout["columns"].items():
        if path in coordinates:
            features.append(name)
        else:
            shape = (cloud.rows, *cloud.row_shape(name))
            columns[path] = ExportedArray.of_read(partial(cloud.column, name), shape, np.dtype(dtype))
    if len(coordinates) == 3:
        for axis, path in enumerate(coordinates):
            read = partial(cloud.coordinates, axis)
            columns[path] = ExportedArray.of_read(read, (cloud.rows,), dtypes[axis])
        return columns

    def read_together() -> AnyArray:
        axes = [cloud.coordinates(axis)[:, None] for axis in range(3)]
        return np.concatenate([*axes, *map(cloud.column, features)], axis=1)

    width = 3 + sum(cloud.row_shape(name)[0] for name in features)
    together = ExportedArray.of_read(read_together, (cloud.rows, width), dtypes[0])
    return {coordinates[0]: together, **columns}


def _batches(cloud: Cloud, columns: Mapping[str, ExportedArray]) -> dict[str, ExportedArray]:
    """Return arrays (B, P, …) of points and (B, …) of segments."""
    count = len(cloud.numbers)
    points = cloud.points_of_batch()
    arrays: dict[str, ExportedArray] = {}
    for path, column in columns.items():
        shape = (count, points, *column.shape[1:])
        arrays[path] = ExportedArray.of_read(partial(_reshaped, column, shape), shape, column.dtype)
    for name, (path, dtype, _) in cloud.layout["segment_columns"].items():
        shape = (count, *cloud.store.array(f"{SEGMENTS}/{name}").shape[1:])
        arrays[path] = ExportedArray.of_read(partial(cloud.segment_column, name), shape, np.dtype(dtype))
    return arrays


def _reshaped(values: ExportedArray, shape: Shape) -> AnyArray:
    return values.whole().reshape(shape)


def _in_segments(cloud: Cloud, columns: Mapping[str, ExportedArray]) -> dict[str, ExportedArray]:
    """Return the columns of every segment in arrays of its own."""

    @lru_cache(maxsize=1)
    def whole_column(path: str) -> AnyArray:
        return columns[path].whole()

    def rows_of(path: str, position: int) -> AnyArray:
        return whole_column(path)[cloud.indices(position)]

    arrays: dict[str, ExportedArray] = {}
    for path, column in columns.items():
        for position, number in cloud.real_segments().items():
            shape = (len(cloud.indices(position)), *column.shape[1:])
            read = partial(rows_of, path, position)
            arrays[f"{_segment_path(number)}/{path}"] = ExportedArray.of_read(read, shape, column.dtype)
    return arrays
