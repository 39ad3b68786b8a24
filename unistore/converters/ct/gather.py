"""The scan of all volumes: their sources, the tables that headers tell or may follow from counts, notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from math import prod
from pathlib import Path

import numpy as np

from unistore.converters.ct.agreement import (
    CLASSES,
    Agreement,
    Volumes,
    agree,
    arrays_of,
    roles_of,
)
from unistore.converters.ct.names import is_plain
from unistore.converters.ct.options import CtOptions
from unistore.converters.ct.scan import ScannedVolume
from unistore.converters.ct.slabs import BLOCK, VolumeArray
from unistore.converters.ct.voxels import MOST_CLASSES, bit_shape, list_bytes
from unistore.errors import printable
from unistore.plugin import Field, Scan, Source, Sources, Table, count_of, promotion_note, split_of
from unistore.schemas.ct import fields as schema
from unistore.system.types import JsonObject

# Bytes in memory besides the voxels while files are read: counts, headers, allocator
_BUFFERS = 2 << 20
# Bytes in memory for a point: of windows, which may have to be sorted, and of distance fields
_SORTED_POINT = 40
_FIELD_POINT = 64
# Bytes in memory for a voxel that may become a location, and besides these
_LOCATION = 64
_LOCATION_BUFFERS = 1 << 24

Tile = tuple[int, int, int]


def gather_volumes(volumes: Volumes, options: CtOptions) -> Scan:
    """Return the scan of all volumes.

    Raises
    ------
    InputError
        With every contradiction between volumes.
    """
    agreement = agree(volumes, options)
    _check_label_map(volumes, options)
    is_series = any(volume.detail.series for volume in volumes)
    units: list[str] = []
    if is_series:
        units = [volume.detail.patient or volume.name for volume in volumes]
    return Scan(
        family=schema.FAMILY_NAME,
        sources=Sources(_source(volume, options.foreground_locations) for volume in volumes),
        tables=tuple(_tables_of_headers(volumes, agreement, options.tile)),
        sample_table=schema.VOLUMES,
        main_table=schema.VOLUMES,
        options={**options.recorded(), "found": _decisions(agreement)},
        notes=tuple(_notes(volumes, agreement, options.sparse)),
        possible=tuple(_possible_tables(volumes, agreement, options)),
        needs_prepare=True,
        units=units,
        numbered=is_series,
        unnamed=is_series and not options.keep_names,
        shared={"agreement": agreement},
    )


def _check_label_map(volumes: Volumes, options: CtOptions) -> None:
    """Refuse a label map that names a dataset of which no labels are there."""
    if options.labels is None:
        return
    paths = []
    for volume in volumes:
        paths += [Path(label.path) for label in volume.detail.named(schema.LABELS).values()]
    options.labels.check_used(paths)


def _decisions(agreement: Agreement) -> JsonObject:
    """Return what the sources decide where options leave it open, for the root of the store."""
    windows = [
        {"name": window.name, "width": float(window.width), "level": float(window.level)}
        for window in agreement.windows.values()
    ]
    start = f"{schema.LABELS}/"
    labels = {role: dtype for role, dtype in agreement.classes.items() if role.startswith(start)}
    decisions: JsonObject = {"windows": windows, "values": agreement.values}
    if agreement.scaled:
        decisions["scaled"] = agreement.scaled
    if agreement.class_names:
        decisions["classes"] = agreement.class_names
    if labels:
        decisions["labels"] = {role.removeprefix(start): dtype for role, dtype in labels.items()}
    return decisions


def _source(volume: ScannedVolume, locations: int | None) -> Source:
    """Return the source of a volume, of which each class has at most so many locations (None: none)."""
    arrays = volume.detail.arrays
    points = {array.role: array.shape[0] for array in arrays if array.is_points}
    fields = {role: count for role, count in points.items() if role.startswith(schema.SDF)}
    windows = [count for role, count in points.items() if role not in fields]
    dense = [array for array in arrays if not array.is_points]
    held = _voxel_bytes(dense, len(volume.windows))
    held += _SORTED_POINT * max(windows, default=0)
    held += _FIELD_POINT * min(max(fields.values(), default=0), BLOCK)
    if locations is not None and volume.detail.extent is not None:
        kept = 2 * locations * MOST_CLASSES
        held += _LOCATION * min(prod(volume.detail.extent), kept) + _LOCATION_BUFFERS
    return Source(
        path=volume.path,
        name=volume.name,
        files=tuple(map(Path, volume.files)),
        rows={schema.VOLUMES: 1, schema.MASKS: 1, **fields},
        split=split_of(volume.name),
        detail=volume.detail,
        memory=held,
        reading=held + max(map(list_bytes, dense), default=0),
    )


def _voxel_bytes(arrays: list[VolumeArray], windows: int) -> int:
    """Return the bytes in memory while voxels of a volume with so many windows are read."""
    slab = max([array.slab_bytes for array in arrays], default=0)
    held = _BUFFERS + (windows + 4) * slab + sum(array.memory for array in arrays)
    if any(array.fortran_order for array in arrays):
        held += 2 * max(array.band_bytes for array in arrays)
    return held


def _tables_of_headers(volumes: Volumes, agreement: Agreement, tile: Tile) -> Iterator[Table]:
    """Yield the tables whose rows headers tell: volumes, masks (unless they hold classes), fields."""
    main: Field = schema.EXTENT
    if agreement.image:
        main = schema.image_field(agreement.image, agreement.shape, tile)
    yield Table(name=schema.VOLUMES, fields=(main,))
    masks = [schema.mask_field(role, agreement.shape, tile) for role in roles_of(volumes, (schema.MASKS,))]
    if masks:
        yield Table(name=schema.MASKS, fields=tuple(masks))
    for role in roles_of(volumes, (schema.SDF,)):
        counts = []
        edges = [*agreement.shape]
        for volume, array in arrays_of(volumes, role):
            counts.append(array.shape[0])
            edges.append(array.resolution or max(volume.detail.extent or (1 << 31,)))
        description = "signed distance at each point, as in the source"
        run = int(np.median(counts))
        yield schema.points_table(role, max(edges), agreement.values[role], run, description)


def _possible_tables(
    volumes: Volumes, agreement: Agreement, options: CtOptions
) -> Iterator[tuple[Table, int]]:
    """Yield the tables that may follow once voxels are counted, each with its most rows."""
    labels = []
    for role, dtype in agreement.classes.items():
        if role.startswith(schema.LABELS):
            labels.append(schema.label_field(role, dtype, agreement.shape, options.tile))
    if labels:
        yield Table(name=schema.LABELS, fields=tuple(labels)), len(volumes)
    if options.sparse != "mask":
        yield from _tables_of_points(volumes, agreement, options.sparse)
    groups = [f"{schema.WINDOWS}/{name}" for name in agreement.windows]
    if groups and options.sparse != "coords":
        masks = [schema.mask_field(group, agreement.shape, options.tile) for group in groups]
        yield Table(name=schema.WINDOWS, fields=tuple(masks)), len(volumes)
    if options.foreground_locations is not None:
        located = options.foreground_locations * MOST_CLASSES * len(volumes)
        most = min(_voxel_count(volumes), located)
        for group in [*groups, *agreement.classes]:
            yield schema.location_table(group, max(agreement.shape)), most


def _tables_of_points(volumes: Volumes, agreement: Agreement, sparse: str) -> Iterator[tuple[Table, int]]:
    """Yield the table of the points of each window, with its most rows."""
    extents = [volume.detail.extent for volume in volumes if volume.detail.extent]
    mask_bytes = sum(prod(bit_shape(extent)) for extent in extents)
    for name in agreement.windows:
        dtype = agreement.scaled.get(name, agreement.values[name])
        table = schema.points_table(f"{schema.WINDOWS}/{name}", max(agreement.shape), dtype, 1, "")
        count = sum(array.shape[0] for _, array in arrays_of(volumes, f"sparse/{name}"))
        most = _voxel_count(volumes) + count
        if sparse == "auto" and not count and name not in agreement.scaled:
            # More points would be stored as bits.
            most = mask_bytes // sum(field.row_bytes for field in table.fields)
        yield table, most


def _voxel_count(volumes: Volumes) -> int:
    return sum(prod(volume.detail.extent) for volume in volumes if volume.detail.extent)


def _notes(volumes: Volumes, agreement: Agreement, sparse: str) -> Iterator[str]:
    """Yield remarks of one line: how files were interpreted, and what volumes lack."""
    yield from _promotion_notes(volumes, agreement)
    if agreement.windows:
        form = "points or bits, whichever is smaller" if sparse == "auto" else sparse
        yield f"windows {', '.join(map(str, agreement.windows.values()))}: stored as {form}"
    for role in roles_of(volumes, (schema.WINDOWS, *CLASSES, schema.SDF)):
        having = list(arrays_of(volumes, role))
        if role.startswith(schema.LABELS) and agreement.image:
            image, label = having[0]
            paired = f"{printable(Path(label.path).name)} with {printable(image.path.name)}"
            hint = "; if these are plain arrays: unistore convert rows" if is_plain(image.path) else ""
            yield f"{role}: {count_of(len(having), 'volume')} paired by name, such as {paired}{hint}"
        lacking = len(volumes) - len(having)
        is_computed = agreement.image and role.startswith(schema.WINDOWS)
        if lacking and not is_computed:
            yield f"{role}: {lacking:,} of {len(volumes):,} volumes do not have it"
    remarks = Counter(chain.from_iterable(volume.notes for volume in volumes))
    for remark, count in remarks.items():
        yield f"{count_of(count, 'file')}: {remark}"


def _promotion_notes(volumes: Volumes, agreement: Agreement) -> Iterator[str]:
    """Yield remarks on images, labels and distances whose files have several dtypes."""
    stored = {"image": agreement.image, **agreement.values, **agreement.classes}
    for role in ("image", *roles_of(volumes, (schema.LABELS, schema.SDF))):
        names: dict[str, list[str]] = {}
        for _, array in arrays_of(volumes, role):
            names.setdefault(array.kind.name, []).append(array.name)
        note = promotion_note(role, stored[role], names)
        if note:
            yield note
