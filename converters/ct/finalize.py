"""Index arrays and tables once voxels are counted: windows as points or bits, offsets, extents, geometry."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.ct.gather import Agreement, lost_values
from unistore.converters.ct.locations import MOST_CLASSES
from unistore.converters.ct.names import without_suffix
from unistore.converters.ct.scan import Detail
from unistore.converters.ct.voxels import bit_shape
from unistore.converters.files.paths import relative_names
from unistore.converters.protocol import Facts, Finalized, Scan
from unistore.errors import InputError
from unistore.schemas.ct import fields as schema
from unistore.schemas.ct.geometry import LENGTHS, geometry_attribute, geometry_field
from unistore.schemas.ct.windows import OWN_VALUES, VALUE_SENTENCES, ValueSource, Window
from unistore.schemas.tables import SOURCE_FILES, Field, Table, offsets_of, text_arrays

_CLASSES = "classes/"
_NO_CLASS = np.empty(0, np.uint16)


def finalize(scan: Scan, facts: Sequence[Facts]) -> Finalized:
    """Return everything that depends on counts."""
    return _Finalizing(scan, facts).run()


class _Finalizing:
    """Collects the arrays, tables and attributes of a store."""

    def __init__(self, scan: Scan, facts: Sequence[Facts]) -> None:
        self._scan = scan
        self._facts = facts
        self._agreement: Agreement = scan.shared["agreement"]
        self._details: list[Detail] = list(scan.sources.details)
        self._roles = [{array.role: array for array in detail.arrays} for detail in self._details]
        self._extents = np.array([fact["extent"] for fact in facts], np.int32).reshape(-1, 3)
        depth, height, width = self._extents.max(axis=0).tolist()
        self._shape = (depth, height, width)
        self._tile = tuple(scan.options["tile"])
        self._arrays: list[tuple[Field, NDArray[Any]]] = []
        self._direct: list[Table] = []
        self._spilled: list[Table] = []
        self._rows: dict[str, tuple[int, ...]] = {}
        self._groups: dict[str, Mapping[str, Any]] = {}
        self._notes: list[str] = []

    def run(self) -> Finalized:
        """Collect everything."""
        count = len(self._details)
        self._add_volumes()
        windows = [self._add_window(name, window) for name, window in self._agreement.windows.items()]
        self._add_rows(schema.WINDOWS, [field for field in windows if field is not None])
        for family in (schema.LABELS, schema.MASKS):
            roles = [role for role in self._agreement.classes if role.startswith(f"{family}/")]
            self._add_rows(family, [self._class_field(family, role) for role in roles])
        for table in self._scan.tables:
            if table.name.startswith(f"{schema.SDF}/"):
                self._add_distances(table.name)
        self._add_locations()
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

    def _add_rows(self, table: str, fields: Sequence[Field]) -> None:
        """Add a table with one row a volume."""
        if fields:
            self._direct.append(Table(name=table, fields=tuple(fields)))
            self._rows[table] = (1,) * len(self._details)

    def _add_window(self, name: str, window: Window) -> Field | None:
        """Add a window, and return its column if it is stored as bits."""
        group = f"{schema.WINDOWS}/{name}"
        counts = np.array([fact[f"points/{name}"] for fact in self._facts], np.int64)
        scaled = any(f"scaled/{name}" in fact for fact in self._facts)
        source = self._value_source(name, scaled=scaled)
        has_own = source in OWN_VALUES
        dtype = self._agreement.values[name]
        if has_own:
            dtype = self._agreement.scaled.get(name, dtype)
        run = int(np.median(counts[counts > 0])) if counts.any() else 1
        description = f"value of each point: {VALUE_SENTENCES[source]}"
        points = schema.points_table(group, int(self._extents.max(initial=0)), dtype, run, description)
        encoding = self._encoding(name, int(counts.sum()), points, has_own=has_own)
        if encoding == "coords":
            self._direct.append(points)
            self._rows[group] = tuple(counts.tolist())
        self._arrays.append((schema.offsets_field(group), offsets_of(counts)))
        self._add_present(group, {"image", group, f"sparse/{name}"})
        self._groups[group] = window_attributes(window, encoding, source)
        if scaled:
            usage = f'as the volumes say; Volumes(window="{name}", scale=True) gives them'
            if has_own:
                usage = "the voxels above 0 are its points, with these values"
            self._notes.append(f"{group}: floats scaled to 0…1: {usage}")
        if encoding == "coords":
            return None
        return schema.mask_field(group, self._shape, self._tile)

    def _value_source(self, name: str, *, scaled: bool) -> ValueSource:
        if self._agreement.image:
            return "volume"
        if any(f"sparse/{name}" in roles for roles in self._roles):
            return "sparse"
        return "scaled" if scaled else "mask"

    def _encoding(self, name: str, count: int, points: Table, *, has_own: bool) -> str:
        """Return ``"coords"`` or ``"mask"``: the option, or the one with fewer bytes before compression."""
        sparse: str = self._scan.options["sparse"]
        if has_own and sparse == "mask":
            raise InputError(lost_values(name))
        if has_own or sparse != "auto":
            return "coords" if has_own else sparse
        return smaller_encoding(count, points, self._extents)

    def _class_field(self, family: str, group: str) -> Field:
        """Return the column of a mask or label: bits if all voxels are 0 or 1, else integers."""
        dtypes = [roles[group].dtype if group in roles else "" for roles in self._roles]
        about: dict[str, Any] = {"source_dtype": _by_dtype(dtypes)}
        is_named = group == f"{schema.LABELS}/label" or "label_map" in self._scan.options
        if family == schema.LABELS and is_named and self._agreement.class_names:
            about["classes"] = self._agreement.class_names
        self._add_present(group, {group})
        if any(int(fact.get(f"others/{group}", 0)) for fact in self._facts):
            dtype = self._agreement.classes[group]
            if family == schema.MASKS:
                self._notes.append(f"{group}: holds more than 0 and 1, so classes, stored as {dtype}")
            return schema.label_field(group, dtype, self._shape, self._tile, about)
        field = schema.mask_field(group, self._shape, self._tile)
        if family == schema.MASKS:
            return field
        return replace(field, attributes={**field.attributes, **about})

    def _add_distances(self, group: str) -> None:
        """Add what belongs to the points of a distance field."""
        arrays = [roles.get(group) for roles in self._roles]
        counts = np.array([array.shape[0] if array else 0 for array in arrays], np.int64)
        resolution = np.array([array.resolution if array else 0 for array in arrays], np.int32)
        self._arrays += [
            (schema.offsets_field(group), offsets_of(counts)),
            (schema.resolution_field(group), resolution),
        ]
        self._add_present(group, {group})

    def _add_present(self, group: str, roles: set[str]) -> None:
        """Add an array ``present`` of a group, unless all volumes have one of its roles."""
        present = [not roles.isdisjoint(known) for known in self._roles]
        if not all(present):
            self._arrays.append((schema.present_field(group), np.array(present, np.bool_)))

    def _add_locations(self) -> None:
        names = {name for name in chain.from_iterable(self._facts) if name.startswith(_CLASSES)}
        for name in sorted(names):
            group = name.removeprefix(_CLASSES)
            numbers = [fact.get(name, _NO_CLASS) for fact in self._facts]
            classes = np.unique(np.concatenate(numbers))
            if max(map(len, numbers)) > MOST_CLASSES:
                note = f"{group}: more than {MOST_CLASSES} classes in a volume, so instances: no locations"
                self._notes.append(f"{note} of it")
            elif len(classes):
                lengths = np.zeros((len(numbers), len(classes)), np.int64)
                for row, present, fact in zip(lengths, numbers, self._facts, strict=True):
                    row[np.searchsorted(classes, present)] = fact.get(f"locations/{group}", 0)
                field = schema.location_offsets_field(group, classes.tolist())
                self._arrays.append((field, offsets_of(lengths.ravel())))
                self._spilled.append(schema.location_table(group, int(self._extents.max(initial=0))))

    def _add_volumes(self) -> None:
        """Add what is said of each volume."""
        details = self._details
        if self._agreement.image:
            self._arrays.append((schema.EXTENT, self._extents))
        self._add_text("name", self._volume_names(), "name of each volume")
        dtypes = [roles["image"].dtype if "image" in roles else "" for roles in self._roles]
        self._add_text("source_dtype", dtypes, "dtype of each source, as numpy writes it")
        nan = np.array([int(fact["nan"]) for fact in self._facts], np.int64)
        if any(np.dtype(dtype).kind == "f" for dtype in dtypes if dtype):
            self._arrays.append((schema.NAN_FIELD, nan))
        attributes: dict[str, Any] = {}
        stated = [name for name in LENGTHS if any(name in detail.geometry for detail in details)]
        if stated:
            attributes["geometry"] = geometry_attribute(stated)
        for name in stated:
            stated_by = {detail.stated_by[name] for detail in details if name in detail.geometry}
            unknown = [float("nan")] * LENGTHS[name]
            values = np.array([detail.geometry.get(name, unknown) for detail in details], np.float64)
            self._arrays.append((geometry_field(name, sorted(stated_by)), values))
        for name, description in schema.TEXTS.items():
            self._add_text(name, [getattr(detail, name) for detail in details], description)
        description = "file of each group of a volume, as JSON"
        self._arrays += text_arrays(SOURCE_FILES, self._file_names(), axis="source", description=description)
        if nan.any():
            attributes["nan_voxels"] = int(nan.sum())
            where = f"{nan.sum():,} voxels in {np.count_nonzero(nan)} volumes"
            self._notes.append(f"{where} are NaN: kept as they are, in no window")
        if attributes:
            self._groups[schema.VOLUMES] = attributes

    def _add_text(self, name: str, strings: Sequence[str], description: str) -> None:
        if any(strings):
            path = f"{schema.VOLUMES}/{name}"
            self._arrays += text_arrays(path, strings, axis="volume", description=description)

    def _volume_names(self) -> list[str]:
        """Return the names of the volumes, without suffixes unless two files would have the same name."""
        named = [(name, without_suffix(name)) for name in self._scan.sources.names]
        files = Counter(bare for name, bare in named if bare != name)
        return [name if files[bare] > 1 else bare for name, bare in named]

    def _file_names(self) -> list[str]:
        """Return for each source the names of its files by group, relative to their folder, as JSON."""
        paths: dict[Path, None] = {}
        for source in self._scan.sources:
            paths |= dict.fromkeys((source.path, *source.files))
        names = dict(zip(map(str, paths), relative_names(list(paths)), strict=True))
        texts = []
        for source, detail in zip(self._scan.sources, self._details, strict=True):
            by_group = {_group_of(array.role): names[array.path] for array in detail.arrays}
            if detail.info_path:
                by_group[schema.INFO] = names[detail.info_path]
            if self._scan.unnamed and detail.series:
                by_group = {schema.IMAGE: source.name}
            texts.append(json.dumps(by_group, ensure_ascii=False))
        return texts


def smaller_encoding(count: int, points: Table, extents: NDArray[np.int32]) -> str:
    """Return ``"coords"`` or ``"mask"``, whichever has fewer bytes before compression."""
    point_bytes = count * sum(field.row_bytes for field in points.fields)
    mask_bytes = sum(prod(bit_shape(extent)) for extent in extents.tolist())
    return "coords" if point_bytes < mask_bytes else "mask"


def window_attributes(window: Window, encoding: str, source: ValueSource) -> dict[str, Any]:
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


def _group_of(role: str) -> str:
    """Return the group that an array is stored in."""
    kind, _, name = role.partition("/")
    if kind == "image":
        return schema.IMAGE
    return f"{schema.WINDOWS}/{name}" if kind == "sparse" else role


def _by_dtype(dtypes: Sequence[str]) -> str | dict[str, list[int]]:
    """Return the dtype if all sources have the same one, else indices of sources by dtype."""
    kinds = list(filter(None, dict.fromkeys(dtypes)))
    if len(kinds) == 1:
        return kinds[0]
    return {kind: [number for number, dtype in enumerate(dtypes) if dtype == kind] for kind in kinds}
