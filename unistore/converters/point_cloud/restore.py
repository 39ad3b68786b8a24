"""Sources of a point cloud store as their files hold them, and voxel grids made from its own points."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from unistore.converters.common.exported import (
    ExportedArray,
    File,
    SourceRows,
    array_values,
    cast_exactly,
    sources_of,
)
from unistore.converters.common.label_map import recorded_map
from unistore.converters.files.comparison import Restore, RestoredArray, RestoredFile, RestoredFiles
from unistore.converters.files.hdf5.attributes import attribute_texts, parse_attributes
from unistore.converters.files.hdf5.file import SUFFIXES
from unistore.converters.files.libraries import OpenedByLibrary
from unistore.converters.formats.lazy import LazyRows
from unistore.converters.point_cloud.derive import blocks_of
from unistore.converters.point_cloud.grids import Workspace, begin_voxels, emit_outside, voxelise
from unistore.converters.point_cloud.layouts import Batches
from unistore.converters.point_cloud.names import PointOrigin, is_label
from unistore.converters.point_cloud.pointsuite import COUNT, Indices, InSegments
from unistore.converters.point_cloud.tables import typical_length
from unistore.converters.protocol import Emit, Finalized
from unistore.converters.scan import Scan
from unistore.converters.seam.formats import format_by_ending, formats_for, formats_of
from unistore.converters.seam.stored import file_of_format, open_arrays
from unistore.errors import StoreError
from unistore.plugin import Array, Family, Format
from unistore.schemas.indices import StoreView, contradiction, whole
from unistore.schemas.point_cloud.fields import (
    NO_SEGMENT,
    POINTS,
    SEGMENTS,
    Quantum,
    quantum,
    voxel_fields,
    voxel_group,
    voxel_offsets_field,
)
from unistore.schemas.point_cloud.specs import segments, source_rows
from unistore.schemas.rules import RuleView
from unistore.schemas.tables import Table, offsets_of
from unistore.system.hints import AnyArray, Int64s, JsonObject, Shape
from unistore.system.progress import Progress

# Formats that are exported as they were
_WRITTEN = ("las", "laz")
_SEGMENT = re.compile(r"segments/segment_([0-9]+)(?=/|$)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """One source of a point cloud store, rows ``source.lo:source.hi`` of ``points``, in its own row order."""

    store: StoreView
    source: SourceRows
    layout: Mapping[str, Any]
    header: Mapping[str, Any]
    segments: range  # its own, including the one of number -1
    bounds: Int64s  # of its segments in ``points``, (S + 1,)
    numbers: Int64s  # of its segments, (S,)
    quantum: Quantum | None  # scale and offset of quantised coordinates; None: they are floats

    @cached_property
    def order(self) -> Int64s:
        """Row in the source of each stored point, (points,) i8."""
        return self._stored("source_row")

    @cached_property
    def rows(self) -> int:
        """Rows of the source."""
        return int(self.order.max(initial=-1)) + 1

    def column(self, name: str) -> AnyArray:
        """Return a column of the points in the source's order, (N, …)."""
        return self._in_order(self._stored(name))

    def coordinates(self, axis: int) -> AnyArray:
        """Return x, y or z in the source's order, (N,) f8 or f4."""
        values = np.ascontiguousarray(self._stored("xyz")[:, axis])
        if self.quantum is not None:
            values = self.quantum.restored(values, self.source.number, axis)
        return self._in_order(values)

    def indices(self, segment: int) -> Int64s:
        """Return rows of one of its segments (counted from 0), (n,)."""
        lo, hi = (self.bounds[segment : segment + 2] - self.source.lo).tolist()
        return self.order[lo:hi]

    def real_segments(self) -> dict[int, str]:
        """Path of each segment in an exported file, by position, without the points of no segment."""
        numbers = enumerate(self.numbers.tolist())
        return {position: _segment_path(number) for position, number in numbers if number != NO_SEGMENT}

    def segment_column(self, name: str) -> AnyArray:
        """Return a column of its segments, (S, …)."""
        return self.store.array(f"{SEGMENTS}/{name}").read(self.segments.start, self.segments.stop)

    def row_shape(self, name: str) -> Shape:
        """Row shape of a column of the points."""
        return self.store.array(f"{POINTS}/{name}").shape[1:]

    def _stored(self, name: str) -> AnyArray:
        return self.store.array(f"{POINTS}/{name}").read(self.source.lo, self.source.hi)

    def _in_order(self, stored: AnyArray) -> AnyArray:
        values = np.empty((self.rows, *stored.shape[1:]), stored.dtype)
        values[self.order] = stored
        return values


def clouds(store: StoreView) -> Iterator[Cloud]:
    """Return every source, or raise a `StoreError` if the segments do not hold all of its rows."""
    view = RuleView(store)
    for problem in (*segments(view), *source_rows(view)):
        msg = f"{store.path}: {problem}"
        raise StoreError(msg)
    sources = sources_of(store)
    layouts = store.text("sources/layout")
    headers = store.text("sources/header") if store.has("sources/header/data") else ["{}"] * len(sources)
    owner, numbers, offsets = (whole(store, f"{SEGMENTS}/{name}") for name in ("source", "number", "offsets"))
    restoring = quantum(store)
    for source in sources:
        first, last = (int(np.searchsorted(owner, source.number, side)) for side in ("left", "right"))
        yield Cloud(
            store=store,
            source=source,
            layout=json.loads(layouts[source.number]),
            header=json.loads(headers[source.number]),
            segments=range(first, last),
            bounds=offsets[first : last + 1],
            numbers=numbers[first:last],
            quantum=restoring,
        )


def files(formats_of_family: Sequence[type[Format] | str], store: StoreView) -> Iterator[File]:
    """The exported file of every source: ``.npz`` and what a format writes as it was, all others as HDF5."""
    formats = formats_of(formats_of_family)
    texts = attribute_texts(store, len(store.array("sources/rows")))
    for cloud in clouds(store):
        values = own_arrays(cloud)
        name = cloud.source.name
        number = cloud.source.number
        opening = format_by_ending(formats, name)
        if opening.name == "npz":
            yield File(name=name, form="npz", source=number, values=values)
            continue
        if opening.name in _WRITTEN:
            notes = (f"{opening.name}: values, order and header are those of the source",)
            yield replace(file_of_format(opening, cloud.source, _arrays(values), cloud.header), notes=notes)
            continue
        attributes: dict[str, JsonObject] = {}
        if cloud.layout["layout"] in (Indices.name, InSegments.name):
            lengths = np.diff(cloud.bounds)
            attributes = {path: {COUNT: lengths[at]} for at, path in cloud.real_segments().items()}
        for path, own in parse_attributes(texts[number]).items():
            attributes.setdefault(_numbered(path), {}).update(own)
        yield File(
            name=name if name.lower().endswith(SUFFIXES) else f"{name}.h5",
            form="hdf5",
            source=number,
            values=values,
            attributes=attributes,
            compressed=True,
        )


def _arrays(values: Mapping[str, ExportedArray]) -> dict[str, Array]:
    # Columns by name, of which one is in memory at a time: their rows stand elsewhere in the store
    @lru_cache(maxsize=1)
    def whole_column(name: str) -> AnyArray:
        return values[name].whole()

    def rows_of(name: str, lo: int, hi: int) -> AnyArray:
        return whole_column(name)[lo:hi]

    return {
        name: Array(LazyRows(column.shape, column.dtype, partial(rows_of, name)))
        for name, column in values.items()
    }


def restore(family: type[Family], store: StoreView, scan: Scan) -> Restore:
    """Restore coordinates, columns, the rows of segments, and attributes."""
    maps = recorded_map(scan.options)
    by_number = {cloud.source.number: cloud for cloud in clouds(store)}
    texts = attribute_texts(store, len(by_number))
    formats = {kind.name: kind for kind in formats_for(family)}

    def source(number: int) -> RestoredFiles:
        scanned = scan.sources[number]
        origin: PointOrigin = scanned.detail
        # Of several files, each holds one array.
        owners = dict(zip(origin.arrays, scanned.files, strict=False))
        places = origin.layout.places
        labels = {place.array.rpartition("/")[2] for key, place in places.items() if is_label(key)}
        arrays: dict[Path, list[RestoredArray]] = {}
        for path, values in own_arrays(by_number[number]).items():
            restored = RestoredArray(path, values)
            if maps is not None and path.rpartition("/")[2] in labels:
                numbering = maps.numbering(scanned.path, scanned.name)
                restored = restored._replace(of_file=partial(numbering.stored, location=scanned.name))
            arrays.setdefault(owners.get(path, scanned.path), []).append(restored)
        return RestoredFiles(
            [
                RestoredFile(
                    path,
                    restored,
                    partial(open_arrays, formats[origin.formats[0]], scanned.name),
                    naming=_segments_by_number,
                    attributes=texts[number],
                    is_rewritten=_is_recounted,
                    facts=by_number[number].header,
                )
                for path, restored in arrays.items()
            ]
        )

    return source


def _segments_by_number(opened: OpenedByLibrary) -> Callable[[str], str]:
    # Name segments as the file does: ``segments/segment_7/x``
    segments = opened.hdf5["segments"] if opened.hdf5 is not None and "segments" in opened.hdf5 else ()
    groups = {_numbered(f"segments/{key}"): f"segments/{key}" for key in segments}

    def actual(path: str) -> str:
        match = _SEGMENT.match(path)
        return path if match is None else groups.get(match[0], match[0]) + path[match.end() :]

    return actual


def _numbered(path: str) -> str:
    # Return a path with the name that exports give its segment: ``segments/segment_0007/x``
    match = _SEGMENT.match(path)
    return path if match is None else _segment_path(int(match[1])) + path[match.end() :]


def _segment_path(number: int) -> str:
    return f"segments/segment_{number:04d}"


def _is_recounted(path: str, item: Any, name: Any) -> bool:
    # Return whether an attribute counts the points of a segment, as an export does anyway
    if name != COUNT or not path.startswith("segments/") or item.attrs.get_id(name).dtype != "<i8":
        return False
    first = next(iter(item.values()), None)
    return getattr(first, "shape", ())[:1] == (item.attrs[name],)


def own_arrays(cloud: Cloud) -> dict[str, ExportedArray]:
    """Return arrays of a cloud by their paths in its file."""
    columns = _columns(cloud)
    layout = cloud.layout["layout"]
    if layout == Batches.name:
        return _batches(cloud, columns)
    if layout == InSegments.name:
        return _in_segments(cloud, columns)
    if layout == Indices.name:
        for segment, path in cloud.real_segments().items():
            columns[f"{path}/indices"] = array_values(cloud.indices(segment))
    return columns


def _lazy(read: Callable[[], AnyArray], shape: Shape, dtype: np.dtype[Any]) -> ExportedArray:
    # Values that are read on demand, all at once, and fit the dtype exactly
    return ExportedArray(shape, dtype, lambda: iter([cast_exactly(read(), dtype)]))


def _columns(cloud: Cloud) -> dict[str, ExportedArray]:
    # Coordinates and columns by path. What stands beside coordinates in one array is part of it
    coordinates = cloud.layout["xyz"]
    dtypes = list(map(np.dtype, cloud.layout["xyz_stored"]))
    columns: dict[str, ExportedArray] = {}
    beside: list[str] = []
    for name, (path, dtype, _) in cloud.layout["columns"].items():
        if path in coordinates:
            beside.append(name)
        else:
            shape = (cloud.rows, *cloud.row_shape(name))
            columns[path] = _lazy(partial(cloud.column, name), shape, np.dtype(dtype))
    if len(coordinates) == 3:
        for axis, path in enumerate(coordinates):
            columns[path] = _lazy(partial(cloud.coordinates, axis), (cloud.rows,), dtypes[axis])
        return columns

    def together() -> AnyArray:
        parts = [cloud.coordinates(axis)[:, None] for axis in range(3)]
        return np.concatenate([*parts, *map(cloud.column, beside)], axis=1)

    width = 3 + sum(cloud.row_shape(name)[0] for name in beside)
    return {coordinates[0]: _lazy(together, (cloud.rows, width), dtypes[0]), **columns}


def _batches(cloud: Cloud, columns: Mapping[str, ExportedArray]) -> dict[str, ExportedArray]:
    # Arrays (B, P, …) of points and (B, …) of segments
    count = len(cloud.numbers)
    points = cloud.source.hi - cloud.source.lo
    if (np.diff(cloud.bounds) * count != points).any():
        message = f"segments of {cloud.source.name} differ in length, expected batches of one length"
        raise contradiction(cloud.store, f"{SEGMENTS}/offsets", message)
    own: dict[str, ExportedArray] = {}
    for path, column in columns.items():
        shape = (count, points // max(1, count), *column.shape[1:])
        own[path] = _lazy(partial(_reshaped, column, shape), shape, column.dtype)
    for name, (path, dtype, _) in cloud.layout["segment_columns"].items():
        shape = (count, *cloud.store.array(f"{SEGMENTS}/{name}").shape[1:])
        own[path] = _lazy(partial(cloud.segment_column, name), shape, np.dtype(dtype))
    return own


def _reshaped(values: ExportedArray, shape: Shape) -> AnyArray:
    return values.whole().reshape(shape)


def _in_segments(cloud: Cloud, columns: Mapping[str, ExportedArray]) -> dict[str, ExportedArray]:
    # The columns of every segment in arrays of its own
    @lru_cache(maxsize=1)
    def whole_column(path: str) -> AnyArray:
        return columns[path].whole()

    def rows_of(path: str, segment: int) -> AnyArray:
        return whole_column(path)[cloud.indices(segment)]

    own: dict[str, ExportedArray] = {}
    for path, column in columns.items():
        for segment, group in cloud.real_segments().items():
            shape = (len(cloud.indices(segment)), *column.shape[1:])
            own[f"{group}/{path}"] = _lazy(partial(rows_of, path, segment), shape, column.dtype)
    return own


# Voxel grids made from a store's own points, as a conversion with ``--voxel-size`` makes them.


def voxels(
    store: StoreView,
    size: float,
    emit: Emit,
    folder: Path,
    progress: Progress,
) -> Finalized:
    """Emit the voxels of all segments, and return tables and offsets."""
    group = voxel_group(size)
    numbers = whole(store, f"{SEGMENTS}/number")
    offsets = whole(store, f"{SEGMENTS}/offsets")
    bounds = whole(store, f"{SEGMENTS}/bounds")
    source = whole(store, f"{SEGMENTS}/source")
    lengths = np.diff(offsets)
    xyz = store.array(f"{POINTS}/xyz")
    restoring = quantum(store)
    dtype = xyz.dtype.str if restoring is None else "<f8"
    work = Workspace(folder)
    counts = np.zeros(len(numbers), np.int64)
    real = numbers != NO_SEGMENT
    points_inside = int(lengths[real].sum())
    progress.begin("deriving", points_inside * 3 * np.dtype(dtype).itemsize)
    begin_voxels(size, emit)
    emit(POINTS, f"{group}/point_voxel", np.empty(0, np.int32))

    def read(number: int, begin: int, lo: int, hi: int) -> AnyArray:
        stored = xyz.read(begin + lo, begin + hi)
        return stored if restoring is None else restoring.restored(stored, number)

    # Segments of one source at a time: those of no sample stand behind the others
    starts = np.flatnonzero(np.diff(source)) + 1
    for run in np.split(np.arange(len(numbers)), starts):
        segments = run[real[run]]
        for first, last in blocks_of(lengths[segments], work.step):
            block = segments[first:last]
            points = int(lengths[block].sum())
            if points:
                own = partial(read, int(source[run[0]]), int(offsets[block[0]]))
                coordinates = work.fill(dtype, points, own, row_shape=(3,))
                counts[block] = voxelise(coordinates, lengths[block], bounds[block], size, work, emit)
                progress.advance(coordinates.nbytes)
        for outside in run[~real[run]]:
            emit_outside(int(lengths[outside]), size, work, emit)
    unit = store.attributes["fields"][f"{POINTS}/xyz"].get("unit")
    coords, point_counts, point_voxel = voxel_fields(
        size, typical_length(counts[real]), typical_length(lengths[real]), unit
    )
    return Finalized(
        arrays=[(voxel_offsets_field(size), offsets_of(counts))],
        spilled=(
            Table(name=group, fields=(coords, point_counts), spilled=True),
            Table(name=POINTS, fields=(point_voxel,), spilled=True),
        ),
        samples=store.sample_count,
        sample_source=np.empty(0, np.int64),
    )
