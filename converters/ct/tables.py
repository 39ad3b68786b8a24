"""Sources of a CT scan, and the tables that are known from headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unistore.converters.ct.agreement import Agreement, names_of
from unistore.converters.ct.counting import max_threads
from unistore.converters.ct.locations import MOST_CLASSES, locations_bytes
from unistore.converters.ct.names import FURTHER, SLICES
from unistore.converters.ct.points import BLOCK, Points
from unistore.converters.ct.scan import ScannedVolume
from unistore.converters.ct.slabs import band_bytes, slab_bytes
from unistore.converters.ct.voxels import bit_shape, list_bytes
from unistore.converters.files.paths import split_of
from unistore.converters.formats.dicom_headers import Pixels
from unistore.converters.protocol import Scan, Source
from unistore.schemas.ct import fields as schema
from unistore.schemas.ct.windows import Window
from unistore.schemas.tables import Field, Table

_CLASSES = (schema.MASKS, schema.LABELS)
_BUFFERS = 2 << 20
"""Bytes in memory besides the voxels while files are read: counts, headers, allocator."""


class Detail(NamedTuple):
    """Where the values of a volume are: the ``detail`` of its source.

    Attributes
    ----------
    files, formats
        Names of its files, as messages call them, and their formats; texts have none.
    arrays
        What each file is: ``image``, ``windows/lung``, ``sparse/lung``, ``masks/3``, ``labels/seg``,
        ``sdf/far``, ``info``, ``geometry``, ``metadata``, ``dataset``.
    dtypes
        Of the values of each as in the file; texts have none.
    extent
        D, H, W; None if there are only points.
    resolutions
        Edge of the cube of the points of each name; 0: unsaid.
    geometry, stated_by, info, metadata, header, patient, series, pixels
        As in `unistore.converters.ct.scan.ScannedVolume`.
    """

    files: tuple[str, ...]
    formats: tuple[str, ...]
    arrays: tuple[str, ...]
    dtypes: tuple[str, ...]
    extent: tuple[int, int, int] | None
    resolutions: Mapping[str, int]
    geometry: Mapping[str, Sequence[float]]
    stated_by: Mapping[str, str]
    info: str
    metadata: str
    header: str
    patient: str
    series: str
    pixels: Sequence[Pixels]

    def number(self, array: str) -> int | None:
        """Number of a file; None if there is none."""
        return self.arrays.index(array) if array in self.arrays else None

    def dtype(self, array: str) -> str:
        """Dtype of a file of voxels; empty if there is none."""
        number = self.number(array)
        return "" if number is None else self.dtypes[number]

    def named(self, kind: str) -> dict[str, int]:
        """Numbers of the files of a kind, by name."""
        start = f"{kind}/"
        numbered = enumerate(self.arrays)
        return {array.removeprefix(start): n for n, array in numbered if array.startswith(start)}


def windows_of(scan: Scan) -> dict[str, Window]:
    """Windows of a scan, by name."""
    return {window["name"]: Window(**window) for window in scan.options["found"]["windows"]}


def make_source(
    volume: ScannedVolume, name: str, roots: Sequence[Path], agreement: Agreement, locations: int | None
) -> Source:
    """Source of one volume; `locations` are those of each class at most."""
    arrays = {array: item for array, item in volume.arrays.items() if _is_read(array, volume, agreement)}
    points = {array: item for array, item in arrays.items() if isinstance(item, Points)}
    files = [
        *(item.file for item in arrays.values()),
        *volume.texts.values(),
        *volume.slices,
        *volume.further,
    ]
    further = [*volume.texts, *[SLICES] * len(volume.slices), *[FURTHER] * len(volume.further)]
    no_texts = [""] * len(further)
    detail = Detail(
        files=tuple(file.name for file in files),
        formats=(*(item.format.name for item in arrays.values()), *no_texts),
        arrays=(*arrays, *further),
        dtypes=(*(item.dtype.str for item in arrays.values()), *no_texts),
        extent=volume.extent,
        resolutions={name.partition("/")[2]: item.resolution for name, item in points.items()},
        geometry=volume.geometry,
        stated_by=volume.stated_by,
        info=volume.info,
        metadata=volume.metadata,
        header=volume.header,
        patient=volume.patient,
        series=volume.series,
        pixels=volume.pixels,
    )
    fields = {array: item.length for array, item in points.items() if array.startswith(f"{schema.SDF}/")}
    sparse = [item.length for array, item in points.items() if array not in fields]
    held, lists = _reading_memory(volume)
    listed = 40 * max(sparse, default=0)  # these may have to be sorted
    listed += 64 * min(max(fields.values(), default=0), BLOCK)
    if locations is not None and volume.extent is not None:
        held += locations_bytes(prod(volume.extent), locations)
    return Source(
        path=volume.path,
        name=name,
        files=tuple(file.path for file in files),
        rows={schema.VOLUMES: 1, schema.MASKS: 1, **fields},
        split=_split_of(volume.path, roots),
        detail=detail,
        memory=held + listed,
        reading=held + lists + listed,
    )


def _is_read(array: str, volume: ScannedVolume, agreement: Agreement) -> bool:
    """Whether an array is read: sparse windows are only where there is nothing denser."""
    kind, _, name = array.partition("/")
    if kind == "sparse":
        return volume.image is None and f"windows/{name}" not in volume.arrays
    return kind != "windows" or name in {window.name for window in agreement.windows}


def _reading_memory(volume: ScannedVolume) -> tuple[int, int]:
    """Bytes in memory while a volume is read (slabs, or bands if orders differ), and of its points."""
    dense = volume.voxels
    slab = max(map(slab_bytes, dense), default=0)
    is_banded = any(voxels.fortran_order for voxels in dense)
    band = max(map(band_bytes, dense)) if is_banded else 0
    shares = max_threads(dense)
    held = _BUFFERS + shares * (len(volume.names("windows")) + 4) * slab + 2 * band
    held += shares * sum(voxels.memory for voxels in dense)
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
        for name in names_of(volumes, "masks")
    ]
    if masks:
        tables.append(Table(name=schema.MASKS, fields=tuple(masks)))
    for name in names_of(volumes, schema.SDF):
        group = f"{schema.SDF}/{name}"
        having = [(volume, points) for volume in volumes for points in volume.points_of(group)]
        run = int(np.median([points.length for _, points in having]))
        is_known = all(volume.extent or points.resolution for volume, points in having)
        longest = max(*agreement.shape, *(points.resolution for _, points in having))
        edge = longest if is_known else 1 << 31
        description = "signed distance at each point, as in the source"
        tables.append(points_table(group, edge, agreement.values[group], run, description))
    return tuple(tables)


def points_table(group: str, edge: int, dtype: str, run: int, description: str) -> Table:
    """Table of points with values, in a box of at most `edge` voxels per axis."""
    return Table(
        name=group,
        fields=(schema.coords_field(group, edge, run), schema.values_field(group, dtype, run, description)),
    )


def location_tables(
    volumes: Sequence[ScannedVolume], agreement: Agreement, most: int | None
) -> tuple[tuple[Table, int], ...]:
    """Tables of locations, with their maximum of rows."""
    if most is None:
        return ()
    groups = [f"{schema.WINDOWS}/{window.name}" for window in agreement.windows]
    groups += [f"{family}/{name}" for family in _CLASSES for name in names_of(volumes, family)]
    voxels = sum(prod(volume.extent) for volume in volumes if volume.extent is not None)
    rows = min(voxels, most * MOST_CLASSES * len(volumes))
    return tuple((location_table(group, max(agreement.shape)), rows) for group in groups)


def location_table(group: str, edge: int) -> Table:
    """Table of the locations of a label, mask or window."""
    name = f"{schema.FOREGROUND}/{group}"
    return Table(name=name, fields=(schema.coords_field(name, edge, 1),), spilled=True)


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
        listed = sum(points.length for volume in volumes for points in volume.points_of(f"sparse/{name}"))
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
