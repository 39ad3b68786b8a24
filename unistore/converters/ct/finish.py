"""Index arrays and tables once voxels are counted: windows as points or bits, offsets, extents, geometry."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.ct.agreement import Agreement, lost_values
from unistore.converters.ct.names import without_suffix
from unistore.converters.ct.scan import Detail
from unistore.converters.ct.voxels import MOST_CLASSES, bit_shape
from unistore.errors import InputError
from unistore.plugin import (
    Field,
    Finalized,
    Scan,
    SourceArrays,
    SourceFile,
    Table,
    count_of,
    offsets_of,
    text_arrays,
)
from unistore.schemas.ct import fields as schema
from unistore.schemas.ct.fields import LENGTHS
from unistore.schemas.ct.geometry import geometry_attribute, geometry_field
from unistore.schemas.ct.windows import OWN_VALUES, VALUE_SENTENCES, ValueSource, Window
from unistore.system.types import AnyArray, Int64s, JsonObject

_CLASSES = "classes/"
_NO_CLASS = np.empty(0, np.uint16)

Arrays = list[tuple[Field, AnyArray]]


def finish_volumes(scan: Scan, prepared: Sequence[SourceArrays]) -> Finalized:
    """Return index arrays, tables and attributes of a store, everything that depends on counts.

    Parameters
    ----------
    prepared
        What `VolumeReader.prepared` and `VolumeReader.locations` counted of each volume, in order.

    Raises
    ------
    InputError
        If a window has values of its own that bits would lose.
    """
    return _Finishing(scan, prepared).run()


class _Finishing:
    """Collects the arrays, tables and attributes of a store."""

    def __init__(self, scan: Scan, prepared: Sequence[SourceArrays]) -> None:
        self._scan = scan
        self._prepared = prepared
        self._agreement: Agreement = scan.shared["agreement"]
        self._details: list[Detail] = list(scan.sources.details)
        self._roles = [{array.role: array for array in detail.arrays} for detail in self._details]
        self._extents = np.array([arrays["extent"] for arrays in prepared], np.int32).reshape(-1, 3)
        self._shape = tuple(self._extents.max(axis=0).tolist())
        self._tile = tuple(scan.options["tile"])
        self._arrays: Arrays = []
        self._direct: list[Table] = []
        self._spilled: list[Table] = []
        self._rows: dict[str, tuple[int, ...]] = {}
        self._groups: dict[str, Mapping[str, Any]] = {}
        self._notes: list[str] = []

    def run(self) -> Finalized:
        """Collect everything. Each volume is a sample."""
        self._add_volumes()
        self._add_windows()
        for kind in (schema.LABELS, schema.MASKS):
            roles = [role for role in self._agreement.classes if role.startswith(f"{kind}/")]
            self._add_table_of_volumes(kind, [self._class_field(kind, role) for role in roles])
        for table in self._scan.tables:
            if table.name.startswith(f"{schema.SDF}/"):
                self._add_distances(table.name)
        self._add_locations()
        count = len(self._details)
        return Finalized(
            arrays=self._arrays,
            direct=tuple(self._direct),
            spilled=tuple(self._spilled),
            rows=self._rows,
            samples=count,
            sample_source=np.arange(count, dtype=np.int64),
            groups=self._groups,
            notes=tuple(self._notes),
        )

    def _add_volumes(self) -> None:
        """Add what is said of each volume."""
        if self._agreement.image:
            self._arrays.append((schema.EXTENT, self._extents))
        names = _volume_names(self._scan.sources.names)
        self._arrays += _text("name", names, "name of each volume")
        dtypes = self._dtypes("image")
        self._arrays += _text("source_dtype", dtypes, "dtype of each source, as numpy writes it")
        stated = [name for name in LENGTHS if any(name in detail.geometry for detail in self._details)]
        attributes: JsonObject = {"geometry": geometry_attribute(stated)}
        nan = np.array([int(arrays["nan"]) for arrays in self._prepared], np.int64)
        if any(np.dtype(dtype).kind == "f" for dtype in dtypes if dtype):
            self._arrays.append((schema.NAN_FIELD, nan))
        for name in stated:
            self._arrays.append(_geometry(name, self._details))
        for name, description in schema.TEXTS.items():
            texts = [getattr(detail, name) for detail in self._details]
            self._arrays += _text(name, texts, description)
        description = "file of each group of a volume, as JSON"
        files = _file_names(self._scan, self._details)
        self._arrays += text_arrays(schema.SOURCE_FILES, files, axis="source", description=description)
        if nan.any():
            attributes["nan_voxels"] = int(nan.sum())
            where = f"{count_of(int(nan.sum()), 'voxel')} in {count_of(int(np.count_nonzero(nan)), 'volume')}"
            self._notes.append(f"NaN in {where}: kept as they are, but not in windows")
        self._groups[schema.VOLUMES] = attributes

    def _add_windows(self) -> None:
        """Add every window, as points or as a column of bits."""
        masks = []
        for name, window in self._agreement.windows.items():
            encoding, points = self._window(name, window)
            group = points.name
            if encoding == "mask":
                masks.append(schema.mask_field(group, self._shape, self._tile))
            else:
                self._direct.append(points)
                self._rows[group] = tuple(self._point_counts(name).tolist())
        self._add_table_of_volumes(schema.WINDOWS, masks)

    def _window(self, name: str, window: Window) -> tuple[str, Table]:
        """Add the offsets and attributes of a window. Return its encoding, and the table of its points."""
        group = f"{schema.WINDOWS}/{name}"
        counts = self._point_counts(name)
        is_scaled = any(f"scaled/{name}" in arrays for arrays in self._prepared)
        source = self._value_source(name, is_scaled=is_scaled)
        dtype = self._agreement.values[name]
        encoding: str = self._scan.options["sparse"]
        if source in OWN_VALUES:
            if encoding == "mask":
                raise InputError(lost_values(name))
            dtype = self._agreement.scaled.get(name, dtype)
            encoding = "coords"
        points = window_points(group, counts, self._extents, dtype, source)
        if encoding == "auto":
            encoding = smaller_encoding(int(counts.sum()), points, self._extents)
        self._arrays.append((schema.offsets_field(group), offsets_of(counts)))
        self._add_present(group, {"image", group, f"sparse/{name}"})
        self._groups[group] = window_attributes(window, encoding, source)
        if is_scaled:
            usage = f'computed from the volume by Volumes(window="{name}", scale=True)'
            if source in OWN_VALUES:
                usage = "the voxels above 0 are stored as points with these values"
            self._notes.append(f"{group}: the files contain floats scaled to 0…1; {usage}")
        return encoding, points

    def _point_counts(self, window: str) -> Int64s:
        """Return how many points of a window each volume has, (volumes,)."""
        return np.array([arrays[f"points/{window}"] for arrays in self._prepared], np.int64)

    def _value_source(self, window: str, *, is_scaled: bool) -> ValueSource:
        if self._agreement.image:
            return "volume"
        if any(f"sparse/{window}" in roles for roles in self._roles):
            return "sparse"
        return "scaled" if is_scaled else "mask"

    def _class_field(self, kind: str, group: str) -> Field:
        """Return the column of a mask or label: bits if all voxels are 0 or 1, else integers."""
        about: JsonObject = {"source_dtype": _by_dtype(self._dtypes(group))}
        is_named = group == f"{schema.LABELS}/label" or "label_map" in self._scan.options
        if kind == schema.LABELS and is_named and self._agreement.class_names:
            about["classes"] = self._agreement.class_names
        self._add_present(group, {group})
        if any(int(arrays.get(f"others/{group}", 0)) for arrays in self._prepared):
            dtype = self._agreement.classes[group]
            if kind == schema.MASKS:
                self._notes.append(
                    f"{group}: contains other values than 0 and 1, so they are classes, stored as {dtype}"
                )
            return schema.label_field(group, dtype, self._shape, self._tile, about)
        field = schema.mask_field(group, self._shape, self._tile)
        if kind == schema.MASKS:
            return field
        return replace(field, attributes={**field.attributes, **about})

    def _add_distances(self, group: str) -> None:
        """Add what belongs to the points of a distance field."""
        counts = np.zeros(len(self._roles), np.int64)
        resolution = np.zeros(len(self._roles), np.int32)
        for volume, roles in enumerate(self._roles):
            if group in roles:
                counts[volume] = roles[group].shape[0]
                resolution[volume] = roles[group].resolution
        self._arrays.append((schema.offsets_field(group), offsets_of(counts)))
        self._arrays.append((schema.resolution_field(group), resolution))
        self._add_present(group, {group})

    def _add_locations(self) -> None:
        """Add the locations of every group that has voxels, unless its numbers count instances."""
        keys = set(chain.from_iterable(self._prepared))
        for key in sorted(key for key in keys if key.startswith(_CLASSES)):
            group = key.removeprefix(_CLASSES)
            numbers = [arrays.get(key, _NO_CLASS) for arrays in self._prepared]
            classes = np.unique(np.concatenate(numbers))
            if max(map(len, numbers)) > MOST_CLASSES:
                self._notes.append(
                    f"{group}: a volume has more than {MOST_CLASSES} numbers, so they are instances; "
                    "their locations are not stored"
                )
            elif len(classes):
                lengths = np.zeros((len(numbers), len(classes)), np.int64)
                for row, present, arrays in zip(lengths, numbers, self._prepared, strict=True):
                    row[np.searchsorted(classes, present)] = arrays.get(f"locations/{group}", 0)
                field = schema.location_offsets_field(group, classes.tolist())
                self._arrays.append((field, offsets_of(lengths.ravel())))
                self._spilled.append(schema.location_table(group, int(self._extents.max(initial=0))))

    def _add_table_of_volumes(self, table: str, fields: Sequence[Field]) -> None:
        """Add a table with one row a volume, unless it has no column."""
        if fields:
            self._direct.append(Table(name=table, fields=tuple(fields)))
            self._rows[table] = (1,) * len(self._details)

    def _add_present(self, group: str, sources: Collection[str]) -> None:
        """Add an array ``present`` of a group, unless all volumes have an array of one of these roles."""
        present = [not roles.keys().isdisjoint(sources) for roles in self._roles]
        if not all(present):
            self._arrays.append((schema.present_field(group), np.array(present, np.bool_)))

    def _dtypes(self, role: str) -> list[str]:
        """Return the dtype of an array in each source, empty if a source lacks it."""
        return [roles[role].dtype if role in roles else "" for roles in self._roles]


def window_points(
    group: str, counts: Int64s, extents: NDArray[np.int32], dtype: str, source: ValueSource
) -> Table:
    """Return the table of the points of a window, of which each volume has so many."""
    run = int(np.median(counts[counts > 0])) if counts.any() else 1
    description = f"value of each point: {VALUE_SENTENCES[source]}"
    return schema.points_table(group, int(extents.max(initial=0)), dtype, run, description)


def smaller_encoding(count: int, points: Table, extents: NDArray[np.int32]) -> str:
    """Return ``"coords"`` or ``"mask"``, whichever has fewer bytes before compression."""
    point_bytes = count * sum(field.row_bytes for field in points.fields)
    mask_bytes = sum(prod(bit_shape(extent)) for extent in extents.tolist())
    return "coords" if point_bytes < mask_bytes else "mask"


def window_attributes(window: Window, encoding: str, source: ValueSource) -> JsonObject:
    """Return the attributes of the group of a window."""
    return {
        "width": window.width,
        "level": window.level,
        "low": window.low,
        "high": window.high,
        "rule": "low <= value <= high",
        "encoding": encoding,
        "values": VALUE_SENTENCES[source],
        "value_source": source,
    }


def _text(name: str, texts: Sequence[str], description: str) -> Arrays:
    """Return the arrays of a text of each volume, none if all are empty."""
    if not any(texts):
        return []
    return text_arrays(f"{schema.VOLUMES}/{name}", texts, axis="volume", description=description)


def _geometry(name: str, details: Sequence[Detail]) -> tuple[Field, AnyArray]:
    """Return the array of the spacing, origin or direction of each volume, NaN if it is not known."""
    unknown = [float("nan")] * LENGTHS[name]
    values = np.array([detail.geometry.get(name, unknown) for detail in details], np.float64)
    stated_by = {detail.stated_by[name] for detail in details if name in detail.geometry}
    return geometry_field(name, sorted(stated_by)), values


def _volume_names(sources: Sequence[str]) -> list[str]:
    """Return the names of volumes, without the suffixes of files unless two would have the same name."""
    bare = [without_suffix(name) for name in sources]
    files = Counter(short for name, short in zip(sources, bare, strict=True) if short != name)
    names = []
    for name, short in zip(sources, bare, strict=True):
        names.append(name if files[short] > 1 else short)
    return names


def _file_names(scan: Scan, details: Sequence[Detail]) -> list[str]:
    """Return, of each source, the names of its files by group, relative to their folder, as JSON."""
    paths: dict[Path, None] = {}
    for source in scan.sources:
        paths |= dict.fromkeys((source.path, *source.files))
    names = dict(zip(map(str, paths), SourceFile.names_of(list(paths)), strict=True))
    texts = []
    for name, detail in zip(scan.sources.names, details, strict=True):
        by_group = {_group_of(array.role): names[array.path] for array in detail.arrays}
        if detail.info_path:
            by_group[schema.INFO] = names[detail.info_path]
        if scan.unnamed and detail.series:
            by_group = {schema.IMAGE: name}
        texts.append(json.dumps(by_group, ensure_ascii=False))
    return texts


def _group_of(role: str) -> str:
    """Return the group that an array is stored in."""
    kind, _, name = role.partition("/")
    if kind == "image":
        return schema.IMAGE
    return f"{schema.WINDOWS}/{name}" if kind == "sparse" else role


def _by_dtype(dtypes: Sequence[str]) -> str | dict[str, list[int]]:
    """Return the dtype of all sources, or the numbers of sources by dtype if they have several."""
    kinds = list(filter(None, dict.fromkeys(dtypes)))
    if len(kinds) == 1:
        return kinds[0]
    by_dtype = {}
    for kind in kinds:
        by_dtype[kind] = [number for number, dtype in enumerate(dtypes) if dtype == kind]
    return by_dtype
