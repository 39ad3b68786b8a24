"""Sources of a CT scan, and the tables that are known from headers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from unistore.converters.ct.agreement import Agreement, sorted_names
from unistore.converters.ct.counting import max_threads
from unistore.converters.ct.headers import ScannedVolume
from unistore.converters.ct.layouts.npz import BLOCK
from unistore.converters.ct.slabs import band_bytes, slab_bytes
from unistore.converters.ct.voxels import bit_shape, list_bytes
from unistore.converters.files.paths import split_of
from unistore.converters.protocol import Scan, Source
from unistore.schemas.ct import fields as schema
from unistore.schemas.ct.windows import Window
from unistore.schemas.tables import Field, Table

_BUFFERS = 2 << 20
"""Bytes in memory besides the voxels while files are read: counts, headers, allocator."""


def windows_of(scan: Scan) -> dict[str, Window]:
    """Windows of a scan, by name."""
    return {each["name"]: Window(**each) for each in scan.options["found"]["windows"]}


def make_source(volume: ScannedVolume, name: str, roots: Sequence[Path], agreement: Agreement) -> Source:
    """Source of one volume, with all that is needed to read it.

    ``detail`` holds places in ``files`` instead of paths: ``image``, ``windows`` (name → file), ``sparse``,
    ``masks``, ``labels`` and ``sdf`` likewise; ``extent``; ``dtype`` of the image as in its file,
    ``mask_dtypes`` and ``label_dtypes``; ``geometry``, and what states it (``stated_by``); ``info``,
    ``info_file``, ``metadata``.
    """
    files: list[Path] = []

    def at(path: Path) -> int:
        files.append(path)
        return len(files) - 1

    wanted = {window.name for window in agreement.windows}
    image = volume.image
    sparse = {} if image else {n: p for n, p in volume.sparse.items() if n not in volume.windows}
    detail: dict[str, Any] = {
        "image": at(image.path) if image else None,
        "dtype": image.dtype.str if image else None,
        "extent": list(volume.extent) if volume.extent else None,
        "windows": {n: at(window.path) for n, window in volume.windows.items() if n in wanted},
        "sparse": {n: at(points.path) for n, points in sparse.items()},
        "masks": {n: at(mask.path) for n, mask in volume.masks.items()},
        "mask_dtypes": {n: mask.dtype.str for n, mask in volume.masks.items()},
        "labels": {n: at(label.path) for n, label in volume.labels.items()},
        "label_dtypes": {n: label.dtype.str for n, label in volume.labels.items()},
        "sdf": {n: at(points.path) for n, points in volume.sdf.items()},
        "resolution": {n: points.resolution for n, points in (*sparse.items(), *volume.sdf.items())},
        "geometry": volume.geometry,
        "stated_by": volume.stated_by,
        "info": volume.info,
        "info_file": at(volume.files.info) if volume.files.info else None,
        "metadata": volume.metadata,
    }
    if volume.files.geometry is not None:
        at(volume.files.geometry)
    if volume.files.metadata is not None:
        at(volume.files.metadata)
    rows = {schema.VOLUMES: 1, schema.MASKS: 1}
    rows |= {f"{schema.SDF}/{n}": points.count for n, points in volume.sdf.items()}
    held, lists = _reading_memory(volume)
    listed = 40 * max((points.count for points in sparse.values()), default=0)  # these may have to be sorted
    listed += 64 * max((min(points.count, BLOCK) for points in volume.sdf.values()), default=0)
    return Source(
        path=volume.files.path,
        name=name,
        files=tuple(files),
        rows=rows,
        split=_split_of(volume.files.path, roots),
        detail=detail,
        memory=held + listed,
        reading=held + lists + listed,
    )


def _reading_memory(volume: ScannedVolume) -> tuple[int, int]:
    """Bytes in memory while a volume is read (slabs, or bands if orders differ), and of its points."""
    dense = [*volume.windows.values(), *volume.masks.values(), *volume.labels.values()]
    dense += [volume.image] if volume.image else []
    slab = max(map(slab_bytes, dense), default=0)
    bands = any(each.fortran_order for each in dense)
    band = max(map(band_bytes, dense)) if bands else 0
    shares = max_threads(dense)
    held = _BUFFERS + shares * (len(volume.windows) + 4) * slab + 2 * band
    held += shares * sum(each.memory for each in dense)
    return held, max(map(list_bytes, dense), default=0)


def _split_of(path: Path, roots: Sequence[Path]) -> str | None:
    """Split named by a folder inside the given paths."""
    for root in (root.resolve() for root in roots):
        if root.is_dir() and path.is_relative_to(root):
            return split_of("/".join((root.name, *path.relative_to(root).parts[:-1], "")))
    return None


def make_tables(
    volumes: Sequence[ScannedVolume], agreement: Agreement, tile: tuple[int, int, int]
) -> tuple[Table, ...]:
    """Tables with rows known from headers: volumes, distance fields, masks (unless they hold classes)."""
    fields: tuple[Field, ...] = (schema.EXTENT,)
    if agreement.image is not None:
        fields = (schema.image_field(agreement.image, agreement.shape, tile),)
    tables = [Table(name=schema.VOLUMES, fields=fields)]
    masks = [
        schema.mask_field(
            f"{schema.MASKS}/{name}", agreement.shape, tile, f"mask {name!r} of the sources, as bits"
        )
        for name in sorted_names(name for volume in volumes for name in volume.masks)
    ]
    if masks:
        tables.append(Table(name=schema.MASKS, fields=tuple(masks)))
    for name in sorted_names(name for volume in volumes for name in volume.sdf):
        group = f"{schema.SDF}/{name}"
        having = [volume for volume in volumes if name in volume.sdf]
        run = int(np.median([volume.sdf[name].count for volume in having]))
        known = all(volume.extent or volume.sdf[name].resolution for volume in having)
        longest = max(*agreement.shape, *(volume.sdf[name].resolution for volume in having))
        edge, description = longest if known else 1 << 31, "signed distance at each point, as in the source"
        tables.append(points_table(group, edge, agreement.values[group], run, description))
    return tuple(tables)


def points_table(group: str, edge: int, dtype: str, run: int, description: str) -> Table:
    """Table of points with values, in a box of at most `edge` voxels per axis."""
    return Table(
        name=group,
        fields=(schema.coords_field(group, edge, run), schema.values_field(group, dtype, run, description)),
    )


def possible_tables(
    volumes: Sequence[ScannedVolume], agreement: Agreement, tile: tuple[int, int, int], sparse: str
) -> tuple[tuple[Table, int], ...]:
    """Possible tables of windows and labels, with their maximum of rows; `finalize` chooses among them."""
    names = [window.name for window in agreement.windows]
    extents = [volume.extent for volume in volumes if volume.extent is not None]
    found: list[tuple[Table, int]] = []
    labels = tuple(
        schema.label_field(f"{schema.LABELS}/{name}", dtype, agreement.shape, tile)
        for name, dtype in agreement.labels.items()
    )
    if labels:
        found.append((Table(name=schema.LABELS, fields=labels), len(volumes)))
    for name in names:
        listed = sum(volume.sparse[name].count for volume in volumes if name in volume.sparse)
        points = sum(map(prod, extents))
        group = f"{schema.WINDOWS}/{name}"
        dtype = agreement.scaled.get(name, agreement.values[name])
        table = points_table(group, max(agreement.shape), dtype, 1, "")
        if sparse == "auto" and not listed and name not in agreement.scaled:  # more would be stored as bits
            points = sum(map(prod, map(bit_shape, extents))) // sum(field.row_bytes for field in table.fields)
        if sparse != "mask" or listed:
            found.append((table, points + listed))
    if names and sparse != "coords":
        masks = [schema.mask_field(f"{schema.WINDOWS}/{name}", agreement.shape, tile, "") for name in names]
        found.append((Table(name=schema.WINDOWS, fields=tuple(masks)), len(volumes)))
    return tuple(found)
