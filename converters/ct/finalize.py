"""Index arrays and tables once voxels are counted: windows as points or bits, offsets, extents, geometry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import promote
from unistore.converters.ct.agreement import sorted_names
from unistore.converters.ct.layouts import without_suffix
from unistore.converters.ct.tables import points_table, windows_of
from unistore.converters.ct.voxels import bit_shape
from unistore.converters.protocol import Facts, Finalized, Scan
from unistore.errors import InputError, Problem
from unistore.schemas.ct import fields as schema
from unistore.schemas.ct.windows import Window
from unistore.schemas.tables import Field, Table, offsets_of, own_axes, text_arrays

_GEOMETRY = {
    "spacing": (3, "mm", "voxel size as {} states it; NaN where unknown"),
    "origin": (3, "mm", "position of the first voxel as {} states it; NaN where unknown"),
    "direction": (9, None, "direction cosines as {} states them, row by row; NaN where unknown"),
}


def finalize(scan: Scan, facts: Sequence[Facts]) -> Finalized:
    """Everything that depends on counts (see `unistore.converters.protocol.Converter.finalize`)."""
    extents = np.array([fact["extent"] for fact in facts], np.int32).reshape(-1, 3)
    arrays = _volume_arrays(scan, facts, extents)
    groups: dict[str, Mapping[str, Any]] = {}
    masks: list[Field] = []
    direct: list[Table] = []
    rows: dict[str, tuple[int, ...]] = {}
    for window in windows_of(scan).values():
        group = f"{schema.WINDOWS}/{window.name}"
        counts = np.array([fact[f"points/{window.name}"] for fact in facts], np.int64)
        scaled = any(f"scaled/{window.name}" in fact for fact in facts)
        values = _value_rule(scan, window, scaled=scaled)
        points = _points_table(scan, group, counts, extents, values)
        encoding = _encoding(scan, window, counts, extents, points, values)
        if encoding == "coords":
            direct.append(points)
            rows[group] = tuple(counts.tolist())
        else:
            masks.append(_mask_field(scan, group, extents))
        arrays.append((schema.offsets_field(group), offsets_of(counts)))
        arrays += _present(group, [_has_window(source.detail, window.name) for source in scan.sources])
        groups[group] = {
            "width": window.width,
            "level": window.level,
            "low": window.low,
            "high": window.high,
            "rule": "low <= value <= high",
            "encoding": encoding,
            "values": values,
        }
    if masks:
        direct.append(Table(name=schema.WINDOWS, fields=tuple(masks)))
        rows[schema.WINDOWS] = (1,) * len(scan.sources)
    classes = [_class_table(scan, family, facts, extents) for family in (schema.MASKS, schema.LABELS)]
    direct += [table for table in classes if table.fields]
    rows[schema.LABELS] = (1,) * len(scan.sources)
    arrays += _class_arrays(scan, schema.LABELS) + _class_arrays(scan, schema.MASKS) + _sdf_arrays(scan)
    notes = [_scaled_note(name, groups[f"{schema.WINDOWS}/{name}"]) for name in _scaled_names(facts)]
    notes += [
        f"{field.path.removesuffix('/label')}: holds more than 0 and 1, so classes, stored as {field.dtype}"
        for field in classes[0].fields
        if field.path.endswith("/label")
    ]
    nan = int(sum(int(fact["nan"]) for fact in facts))
    if nan:
        groups[schema.VOLUMES] = {"nan_voxels": nan}
        volumes = sum(bool(fact["nan"]) for fact in facts)
        notes.append(f"{nan:,} voxels in {volumes} volumes are NaN: kept as they are, in no window")
    return Finalized(
        arrays=arrays,
        direct=tuple(direct),
        rows=rows,
        samples=len(scan.sources),
        sample_source=np.arange(len(scan.sources), dtype=np.int64),
        groups=groups,
        notes=tuple(notes),
    )


def _encoding(
    scan: Scan,
    window: Window,
    counts: NDArray[np.int64],
    extents: NDArray[np.int32],
    points: Table,
    values: str,
) -> str:
    """``"coords"`` or ``"mask"``: the option, or the one with fewer bytes before compression."""
    if values.startswith("as in"):
        if scan.options["sparse"] == "mask":
            message = "has values of its own, which a mask would lose"
            raise InputError(Problem(f"window {window.name!r}", message, "--sparse auto or coords", "option"))
        return "coords"
    if scan.options["sparse"] != "auto":
        return str(scan.options["sparse"])
    point_bytes = int(counts.sum()) * sum(field.row_bytes for field in points.fields)
    mask_bytes = sum(int(np.prod(bit_shape(extent), dtype=np.int64)) for extent in extents.tolist())
    return "coords" if point_bytes < mask_bytes else "mask"


def _value_rule(scan: Scan, window: Window, *, scaled: bool) -> str:
    if any(source.detail["image"] is not None for source in scan.sources):
        return "volumes/image at the point"
    if any(window.name in source.detail["sparse"] for source in scan.sources):
        return "as in the sparse file; 1 where the source is a mask"
    return "as in the scaled window" if scaled else "1"


def _scaled_names(facts: Sequence[Facts]) -> list[str]:
    """Windows that some volumes have as floats scaled to 0…1."""
    names = (name for fact in facts for name in fact if name.startswith("scaled/"))
    return sorted_names(name.removeprefix("scaled/") for name in names)


def _scaled_note(name: str, group: Mapping[str, Any]) -> str:
    if group["values"].startswith("as in"):
        return f"windows/{name}: floats scaled to 0…1: the voxels above 0 are its points, with these values"
    usage = f'Volumes(window="{name}", scale=True) gives them'
    return f"windows/{name}: files of floats scaled to 0…1, as the volumes say; {usage}"


def _points_table(
    scan: Scan, group: str, counts: NDArray[np.int64], extents: NDArray[np.int32], values: str
) -> Table:
    run = int(np.median(counts[counts > 0])) if counts.any() else 1
    name, found = group.rpartition("/")[2], scan.options["found"]
    dtype = found["scaled" if values.startswith("as in") and name in found.get("scaled", {}) else "values"][
        name
    ]
    return points_table(group, int(extents.max(initial=0)), dtype, run, f"value of each point: {values}")


def _mask_field(scan: Scan, group: str, extents: NDArray[np.int32]) -> Field:
    depth, height, width = extents.max(axis=0).tolist()
    tile = scan.options["tile"]
    description = f"voxels inside window {group.rpartition('/')[2]!r}, as bits"
    return schema.mask_field(group, (depth, height, width), (tile[0], tile[1], tile[2]), description)


def _volume_arrays(
    scan: Scan, facts: Sequence[Facts], extents: NDArray[np.int32]
) -> list[tuple[Field, NDArray[Any]]]:
    details = [source.detail for source in scan.sources]
    direct = {field.path for table in scan.tables for field in table.fields}
    extent = schema.extent_field()
    arrays: list[tuple[Field, NDArray[Any]]] = [] if extent.path in direct else [(extent, extents)]
    names = _names(scan)
    arrays += text_arrays("volumes/name", names, axis="volume", description="name of each volume")
    if any(detail["dtype"] for detail in details):
        dtypes = [detail["dtype"] or "" for detail in details]
        description = "dtype of each source, as numpy writes it"
        arrays += text_arrays("volumes/source_dtype", dtypes, axis="volume", description=description)
    if any(detail["dtype"] and np.dtype(detail["dtype"]).kind == "f" for detail in details):
        nan = np.array([int(fact["nan"]) for fact in facts], np.int64)
        arrays.append((_column("nan", (), "voxels that are not a number", "int64"), nan))
    for name, (count, unit, description) in _GEOMETRY.items():
        if any(name in detail["geometry"] for detail in details):
            unknown = [float("nan")] * count
            values = np.array([detail["geometry"].get(name, unknown) for detail in details], np.float64)
            stated = " or ".join(sorted({d["stated_by"][name] for d in details if name in d["geometry"]}))
            column = _column(name, (count,), description.format(stated), "float64", unit)
            arrays.append((column, values))
    for name, what in (("info", "info.json"), ("metadata", "row of metadata.csv, as JSON,")):
        texts = [detail[name] for detail in details]
        if any(texts):
            arrays += text_arrays(
                f"volumes/{name}", texts, axis="volume", description=f"{what} of each volume"
            )
    return arrays


def _names(scan: Scan) -> list[str]:
    """Names of the volumes, without suffixes unless two files would have the same name."""
    named = [(source.name, without_suffix(source.name)) for source in scan.sources]
    files = Counter(bare for name, bare in named if bare != name)
    return [name if files[bare] > 1 else bare for name, bare in named]


def _column(
    name: str, row_shape: tuple[int, ...], description: str, dtype: str, unit: str | None = None
) -> Field:
    return Field(
        path=f"{schema.VOLUMES}/{name}",
        dtype=dtype,
        row_shape=row_shape,
        axes=("volume", *own_axes(name, "component", len(row_shape))),
        unit=unit,
        description=description,
    )


def _class_table(scan: Scan, family: str, facts: Sequence[Facts], extents: NDArray[np.int32]) -> Table:
    """Masks or labels: stored as bits if all voxels are 0 or 1, else as integers."""
    fields = []
    depth, height, width = extents.max(axis=0).tolist()
    tile = tuple(scan.options["tile"])
    for name in _class_names(scan, family):
        group = f"{family}/{name}"
        given = [source.detail[f"{family[:-1]}_dtypes"].get(name) for source in scan.sources]
        dtypes = {"source_dtype": _by_dtype(given)}
        if any(int(fact.get(f"others/{group}", 0)) for fact in facts):
            dtype = promote([np.dtype(each if np.dtype(each).kind != "f" else "?") for each in given if each])
            if dtype is None:
                message = (
                    f"no dtype holds the classes of all of them exactly: {', '.join(filter(None, given))}"
                )
                raise InputError(Problem(group, message, "save them in one dtype", "dtype"))
            fields.append(schema.label_field(group, dtype.name, (depth, height, width), tile, dtypes))
            continue
        what = (
            f"label {name!r} of the sources, 0 and 1"
            if family == schema.LABELS
            else f"mask {name!r} of the sources"
        )
        field = schema.mask_field(group, (depth, height, width), tile, f"{what}, as bits")
        if family == schema.LABELS:
            field = replace(field, attributes={**field.attributes, **dtypes})
        fields.append(field)
    return Table(name=family, fields=tuple(fields))


def _class_names(scan: Scan, family: str) -> list[str]:
    """Masks or labels of all volumes."""
    return sorted_names(name for source in scan.sources for name in source.detail[family])


def _by_dtype(dtypes: Sequence[str | None]) -> str | dict[str, list[int]]:
    """The dtype if all sources have the same one, else indices of sources by dtype."""
    kinds = [dtype for dtype in dict.fromkeys(dtypes) if dtype is not None]
    if len(kinds) == 1:
        return kinds[0]
    return {kind: [at for at, dtype in enumerate(dtypes) if dtype == kind] for kind in kinds}


def _class_arrays(scan: Scan, family: str) -> list[tuple[Field, NDArray[Any]]]:
    return [
        array
        for name in _class_names(scan, family)
        for array in _present(f"{family}/{name}", [name in s.detail[family] for s in scan.sources])
    ]


def _sdf_arrays(scan: Scan) -> list[tuple[Field, NDArray[Any]]]:
    arrays: list[tuple[Field, NDArray[Any]]] = []
    for table in scan.tables:
        family, _, name = table.name.partition("/")
        if family != schema.SDF:
            continue
        counts = np.array([source.rows.get(table.name, 0) for source in scan.sources], np.int64)
        resolution = [source.detail["resolution"].get(name, 0) for source in scan.sources]
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
            *_present(table.name, [name in source.detail["sdf"] for source in scan.sources]),
        ]
    return arrays


def _has_window(detail: Mapping[str, Any], name: str) -> bool:
    return detail["image"] is not None or name in detail["windows"] or name in detail["sparse"]


def _present(group: str, present: Sequence[bool]) -> list[tuple[Field, NDArray[Any]]]:
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
