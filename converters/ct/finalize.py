"""Index arrays and tables once voxels are counted: windows as points or bits, offsets, extents, geometry."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import promote
from unistore.converters.ct.agreement import sorted_names
from unistore.converters.ct.locations import MOST_CLASSES
from unistore.converters.ct.names import without_suffix
from unistore.converters.ct.tables import Detail, location_table, points_table, windows_of
from unistore.converters.ct.voxels import bit_shape
from unistore.converters.files.paths import relative_names
from unistore.converters.protocol import Facts, Finalized, Scan
from unistore.errors import InputError, Problem
from unistore.schemas.ct import fields as schema
from unistore.schemas.ct.geometry import LENGTHS, geometry_attribute, geometry_field
from unistore.schemas.ct.windows import OWN_VALUES, VALUE_SENTENCES, ValueSource
from unistore.schemas.tables import SOURCE_FILES, Field, Table, offsets_of, text_arrays

_CLASSES = "classes/"
_NO_CLASS = np.empty(0, np.uint16)
_GROUPS = {"image": schema.IMAGE, "info": schema.INFO}

Arrays = list[tuple[Field, NDArray[Any]]]


def finalize(scan: Scan, facts: Sequence[Facts]) -> Finalized:
    """Everything that depends on counts (see `unistore.converters.protocol.Converter.finalize`)."""
    sources, options = scan.sources, scan.options
    extents = np.array([fact["extent"] for fact in facts], np.int32).reshape(-1, 3)
    depth, height, width = extents.max(axis=0).tolist()
    shape, tile = (depth, height, width), tuple(options["tile"])
    arrays = _volume_arrays(scan, facts, extents)
    details: list[Detail] = list(sources.details)
    groups: dict[str, Mapping[str, Any]] = {}
    masks: list[Field] = []
    direct: list[Table] = []
    rows: dict[str, tuple[int, ...]] = {}
    notes: list[str] = []
    for name, window in windows_of(scan).items():
        group = f"{schema.WINDOWS}/{name}"
        counts = np.array([fact[f"points/{name}"] for fact in facts], np.int64)
        scaled = any(f"scaled/{name}" in fact for fact in facts)
        source = _value_source(scan, name, scaled=scaled)
        dtype = options["found"]["values"][name]
        if source in OWN_VALUES:
            dtype = options["found"].get("scaled", {}).get(name, dtype)
        run = int(np.median(counts[counts > 0])) if counts.any() else 1
        description = f"value of each point: {VALUE_SENTENCES[source]}"
        points = points_table(group, int(extents.max(initial=0)), dtype, run, description)
        encoding = _encoding(options["sparse"], name, int(counts.sum()), extents, points, source)
        if encoding == "coords":
            direct.append(points)
            rows[group] = tuple(counts.tolist())
        else:
            description = f"voxels inside window {name!r}, as bits"
            masks.append(schema.mask_field(group, shape, tile, description))
        arrays.append((schema.offsets_field(group), offsets_of(counts)))
        having = {"image", group, f"sparse/{name}"}
        arrays += _present(group, [not having.isdisjoint(detail.arrays) for detail in details])
        groups[group] = {
            "width": window.width,
            "level": window.level,
            "low": window.low,
            "high": window.high,
            "rule": "low <= value <= high",
            "encoding": encoding,
            "values": VALUE_SENTENCES[source],
            "value_source": source,
        }
        if scaled and source in OWN_VALUES:
            notes.append(
                f"{group}: floats scaled to 0…1: the voxels above 0 are its points, with these values"
            )
        elif scaled:
            usage = f'Volumes(window="{name}", scale=True) gives them'
            notes.append(f"{group}: files of floats scaled to 0…1, as the volumes say; {usage}")
    if masks:
        direct.append(Table(name=schema.WINDOWS, fields=tuple(masks)))
        rows[schema.WINDOWS] = (1,) * len(sources)
    classes = {
        family: _class_fields(scan, family, facts, shape, tile) for family in (schema.LABELS, schema.MASKS)
    }
    for family, fields in classes.items():
        if fields:
            direct.append(Table(name=family, fields=fields))
            rows[family] = (1,) * len(sources)
        for field in fields:
            group = field.path.rpartition("/")[0]
            arrays += _present(group, [group in detail.arrays for detail in details])
            if family == schema.MASKS and field.name == "label":
                notes.append(f"{group}: holds more than 0 and 1, so classes, stored as {field.dtype}")
    arrays += _sdf_arrays(scan)
    located = _locations(facts, int(extents.max(initial=0)))
    arrays += located.arrays
    notes += located.notes
    volumes_attributes: dict[str, Any] = {}
    stated = [name for name in LENGTHS if any(name in detail.geometry for detail in details)]
    if stated:
        volumes_attributes["geometry"] = geometry_attribute(stated)
    nan = sum(int(fact["nan"]) for fact in facts)
    if nan:
        volumes_attributes["nan_voxels"] = nan
        volumes = sum(bool(fact["nan"]) for fact in facts)
        notes.append(f"{nan:,} voxels in {volumes} volumes are NaN: kept as they are, in no window")
    if volumes_attributes:
        groups[schema.VOLUMES] = volumes_attributes
    return Finalized(
        arrays=arrays,
        direct=tuple(direct),
        spilled=tuple(located.tables),
        rows=rows,
        samples=len(sources),
        sample_source=np.arange(len(sources), dtype=np.int64),
        groups=groups,
        notes=tuple(notes),
    )


class _Located(NamedTuple):
    """Locations of all volumes: their offsets, the tables of voxels, remarks."""

    arrays: Arrays
    tables: list[Table]
    notes: list[str]


def _locations(facts: Sequence[Facts], edge: int) -> _Located:
    located = _Located([], [], [])
    names = {name for fact in facts for name in fact if name.startswith(_CLASSES)}
    for name in sorted(names):
        group = name.removeprefix(_CLASSES)
        numbers = [fact.get(name, _NO_CLASS) for fact in facts]
        classes = np.unique(np.concatenate(numbers))
        if max(map(len, numbers)) > MOST_CLASSES:
            note = f"{group}: more than {MOST_CLASSES} classes in a volume, so instances: no locations of it"
            located.notes.append(note)
        elif len(classes):
            lengths = np.concatenate([_lengths_of(fact, group, classes) for fact in facts])
            field = schema.location_offsets_field(group, classes.tolist())
            located.arrays.append((field, offsets_of(lengths)))
            located.tables.append(location_table(group, edge))
    return located


def _lengths_of(facts: Facts, group: str, classes: NDArray[np.uint16]) -> NDArray[np.int64]:
    """Return the number of locations of each of `classes` in a volume."""
    lengths = np.zeros(len(classes), np.int64)
    if _CLASSES + group in facts:
        lengths[np.searchsorted(classes, facts[_CLASSES + group])] = facts[f"locations/{group}"]
    return lengths


def _encoding(
    sparse: str, name: str, count: int, extents: NDArray[np.int32], points: Table, source: ValueSource
) -> str:
    """``"coords"`` or ``"mask"``: the option, or the one with fewer bytes before compression."""
    if source in OWN_VALUES:
        if sparse == "mask":
            message = "has values of its own, which a mask would lose"
            raise InputError(Problem(f"window {name!r}", message, "--sparse auto or coords", "option"))
        return "coords"
    point_bytes = count * sum(field.row_bytes for field in points.fields)
    mask_bytes = sum(prod(bit_shape(extent)) for extent in extents.tolist())
    return sparse if sparse != "auto" else "coords" if point_bytes < mask_bytes else "mask"


def _value_source(scan: Scan, name: str, *, scaled: bool) -> ValueSource:
    arrays = {array for detail in scan.sources.details for array in detail.arrays}
    if "image" in arrays:
        return "volume"
    if f"sparse/{name}" in arrays:
        return "sparse"
    return "scaled" if scaled else "mask"


def _volume_arrays(scan: Scan, facts: Sequence[Facts], extents: NDArray[np.int32]) -> Arrays:
    details: list[Detail] = list(scan.sources.details)
    direct = {field.path for table in scan.tables for field in table.fields}
    extent = schema.EXTENT
    arrays: Arrays = [] if extent.path in direct else [(extent, extents)]

    def add_text(name: str, strings: Sequence[str], description: str) -> None:
        if any(strings):
            arrays.extend(text_arrays(f"volumes/{name}", strings, axis="volume", description=description))

    add_text("name", _names(scan), "name of each volume")
    dtypes = [detail.dtype("image") for detail in details]
    add_text("source_dtype", dtypes, "dtype of each source, as numpy writes it")
    if any(np.dtype(dtype).kind == "f" for dtype in dtypes if dtype):
        nan = np.array([int(fact["nan"]) for fact in facts], np.int64)
        description = "voxels that are not a number"
        column = Field(path=schema.NAN, dtype="int64", axes=("volume",), description=description)
        arrays.append((column, nan))
    for name, count in LENGTHS.items():
        stated_by = {detail.stated_by[name] for detail in details if name in detail.geometry}
        if stated_by:
            unknown = [float("nan")] * count
            values = np.array([detail.geometry.get(name, unknown) for detail in details], np.float64)
            arrays.append((geometry_field(name, sorted(stated_by)), values))
    add_text("info", [detail.info for detail in details], "info.json of each volume")
    add_text("header", [detail.header for detail in details], "header of the file of each volume, as JSON")
    add_text("patient", [detail.patient for detail in details], "digest of the patient of each DICOM series")
    add_text("series", [detail.series for detail in details], "digest of the UID of each DICOM series")
    add_text(
        "metadata", [detail.metadata for detail in details], "row of metadata.csv, as JSON, of each volume"
    )
    description = "file of each group of a volume, as JSON"
    arrays += text_arrays(SOURCE_FILES, _file_names(scan), axis="source", description=description)
    return arrays


def _file_names(scan: Scan) -> list[str]:
    """Return for each source, as JSON, the name of the file that each group of arrays came from.

    Names are relative to the folder that has all files, and the folders of all cases.
    """
    paths: dict[Path, None] = {}
    for source in scan.sources:
        paths |= dict.fromkeys((source.path, *source.files))
    names = dict(zip(paths, relative_names(list(paths)), strict=True))
    texts = []
    for source in scan.sources:
        files = zip(source.detail.arrays, source.files, strict=True)
        by_group = {_group_of(array): names[file] for array, file in files if _group_of(array)}
        if scan.unnamed and source.detail.series:
            by_group = {schema.IMAGE: source.name}
        texts.append(json.dumps(by_group, ensure_ascii=False))
    return texts


def _group_of(array: str) -> str:
    """Group that a file's arrays are stored in; empty: they are in none."""
    kind, _, name = array.partition("/")
    if kind == "sparse":
        return f"{schema.WINDOWS}/{name}"
    return array if name else _GROUPS.get(kind, "")


def _names(scan: Scan) -> list[str]:
    """Names of the volumes, without suffixes unless two files would have the same name."""
    named = [(source.name, without_suffix(source.name)) for source in scan.sources]
    files = Counter(bare for name, bare in named if bare != name)
    return [name if files[bare] > 1 else bare for name, bare in named]


def _class_fields(
    scan: Scan, family: str, facts: Sequence[Facts], shape: tuple[int, int, int], tile: tuple[int, int, int]
) -> tuple[Field, ...]:
    """Masks or labels: stored as bits if all voxels are 0 or 1, else as integers."""
    fields = []
    details: list[Detail] = list(scan.sources.details)
    for name in sorted_names(name for detail in details for name in detail.named(family)):
        group = f"{family}/{name}"
        given = [detail.dtype(group) for detail in details]
        about: dict[str, Any] = {"source_dtype": _by_dtype(given)}
        is_named = name == "label" or "label_map" in scan.options
        if family == schema.LABELS and is_named and "classes" in scan.options["found"]:
            about["classes"] = scan.options["found"]["classes"]
        if any(int(fact.get(f"others/{group}", 0)) for fact in facts):
            dtype = promote([np.dtype(each if np.dtype(each).kind != "f" else "?") for each in given if each])
            if dtype is None:
                listed = ", ".join(filter(None, given))
                message = f"no dtype holds the classes of all of them exactly: {listed}"
                raise InputError(Problem(group, message, "save them in one dtype", "dtype"))
            fields.append(schema.label_field(group, dtype.name, shape, tile, about))
        elif family == schema.LABELS:
            field = schema.mask_field(group, shape, tile, f"label {name!r} of the sources, 0 and 1, as bits")
            fields.append(replace(field, attributes={**field.attributes, **about}))
        else:
            fields.append(schema.mask_field(group, shape, tile, f"mask {name!r} of the sources, as bits"))
    return tuple(fields)


def _by_dtype(dtypes: Sequence[str]) -> str | dict[str, list[int]]:
    """The dtype if all sources have the same one, else indices of sources by dtype."""
    kinds = list(filter(None, dict.fromkeys(dtypes)))
    if len(kinds) == 1:
        return kinds[0]
    return {kind: [at for at, dtype in enumerate(dtypes) if dtype == kind] for kind in kinds}


def _sdf_arrays(scan: Scan) -> Arrays:
    arrays: Arrays = []
    for table in scan.tables:
        family, _, name = table.name.partition("/")
        if family != schema.SDF:
            continue
        counts = np.array([source.rows.get(table.name, 0) for source in scan.sources], np.int64)
        details: list[Detail] = list(scan.sources.details)
        resolution = [detail.resolutions.get(name, 0) for detail in details]
        field = Field(
            path=f"{table.name}/resolution",
            dtype="int32",
            axes=("volume",),
            unit="voxel",
            description="edge of the cube that the points lie in, as the source states it; 0: unsaid",
        )
        arrays += [
            (schema.offsets_field(table.name), offsets_of(counts)),
            (field, np.array(resolution, np.int32)),
            *_present(table.name, [table.name in detail.arrays for detail in details]),
        ]
    return arrays


def _present(group: str, present: Sequence[bool]) -> Arrays:
    """Array ``present`` of a group; no array if all volumes have it."""
    if all(present):
        return []
    field = Field(
        path=f"{group}/present",
        dtype="bool",
        axes=("volume",),
        description="whether the volume has it; where not, it has no points and its mask is zero",
        fill=False,
    )
    return [(field, np.array(present, np.bool_))]
