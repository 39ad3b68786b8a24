"""The volumes of a CT store as they were in the sources, compared with these; windows made from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from unistore.converters.ct.finish import smaller_encoding, window_attributes, window_points
from unistore.converters.ct.options import CtOptions
from unistore.converters.ct.scan import BY_FILE, Detail
from unistore.converters.ct.slabs import MEMBERS, VolumeArray
from unistore.converters.ct.voxels import is_scaled_as, point_coords
from unistore.errors import AddOptions, InputError, StoreError
from unistore.plugin import (
    Emit,
    ExportedArray,
    Finalized,
    IndexColumn,
    Metadata,
    OpenedByLibrary,
    Progress,
    Restore,
    RestoredArray,
    RestoredFile,
    RestoredFiles,
    Scan,
    StoreView,
    Table,
    array_values,
    offsets_of,
    whole,
)
from unistore.schemas.ct import fields as schema
from unistore.schemas.ct.fields import HEADER, IMAGE, SDF, VOLUMES, WINDOWS
from unistore.schemas.ct.geometry import read_geometry
from unistore.schemas.ct.voxels import ValueRange, inside
from unistore.schemas.ct.windows import OWN_VALUES, Window, parse_window, value_source
from unistore.system.types import AnyArray, Dtype, Int64s, JsonObject, UInt8s

# Bytes of voxels at a time
_SLAB = 32 << 20
# Points set at a time: as indices they take 24 bytes each
_POINTS = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """One volume of a CT store: row `number` of ``volumes``."""

    store: StoreView
    number: int
    name: str
    source: str  # name of its case folder or file
    extent: tuple[int, int, int]
    dtype: str  # of its image in the source; empty if it has no image
    info: str
    header: Any  # what is kept of the header of its file

    @property
    def geometry(self) -> JsonObject:
        """What is known of where its voxels lie."""
        geometry = read_geometry(self.store, self.number)._asdict()
        return {name: numbers for name, numbers in geometry.items() if numbers is not None}

    def contradiction(self, path: str, problem: str) -> StoreError:
        """Return the error of a store whose arrays contradict each other."""
        return StoreError(f"{self.store.path}: {path}: {problem}. Fix: unistore verify {self.store.path}")

    def groups(self, *families: str) -> list[str]:
        """Return the windows, masks, labels or fields of a volume: ``masks/liver``."""
        groups = sorted({path.rpartition("/")[0] for path in self.store.paths()})
        return [group for family in families for group in groups if self._has(group, family)]

    def _has(self, group: str, family: str) -> bool:
        path = f"{group}/present"
        if not group.startswith(f"{family}/") or not self.store.has(path):
            return group.startswith(f"{family}/")
        return bool(IndexColumn(self.store, path).take(np.array([self.number]))[0])

    def voxels(self, group: str) -> ExportedArray:
        """Return an image, label, mask or window as it was in the source, (D, H, W)."""
        if group.startswith(f"{WINDOWS}/"):
            if value_source(self.store.group(group)) in OWN_VALUES:
                dtype = self.store.array(f"{group}/values").dtype
                return ExportedArray(self.extent, dtype, partial(self._filled, group, dtype))
            return self.stored(group)
        stored = self.stored(group)
        if group == IMAGE:
            return stored.converted(np.dtype(self.dtype))
        path = f"{group}/label" if self.store.has(f"{group}/label") else f"{group}/mask"
        return stored.in_source(self.store.array(path).attributes, self.number)

    def stored(self, group: str) -> ExportedArray:
        """Return an image or label in the store's dtype, or bits and points as 0 and 1, (D, H, W)."""
        if group == IMAGE and not self.dtype:
            message = f"volume {self.name!r} cannot be exported as an image, because it has none"
            raise InputError.at(self.store.path, message, "remove --to", "missing")
        path = IMAGE if group == IMAGE else f"{group}/label"
        if self.store.has(path):
            dtype = self.store.array(path).dtype
            return ExportedArray(
                self.extent, dtype, partial(self.slabs, path, self.extent[2], dtype.itemsize)
            )
        blocks = self._bits if self.store.has(f"{group}/mask") else self._filled
        return ExportedArray(self.extent, np.dtype(np.uint8), partial(blocks, group))

    def points(self, group: str) -> tuple[ExportedArray, ExportedArray]:
        """Return coordinates (n, 3) and values (n,) of a window or distance field."""
        lo, hi = self._point_range(group)
        coords, values = (self.store.array(f"{group}/{name}") for name in ("coords", "values"))
        return ExportedArray.of_rows(coords, lo, hi), ExportedArray.of_rows(values, lo, hi)

    def _point_range(self, group: str) -> tuple[int, int]:
        lo, hi = IndexColumn(self.store, f"{group}/offsets").ranges(np.array([self.number]))
        return int(lo[0]), int(hi[0])

    def slabs(self, path: str, width: int, voxel: int) -> Iterator[AnyArray]:
        """Read its part of a padded array, some layers of chunks at a time. `voxel`: its bytes, unpacked."""
        array = self.store.array(path)
        depth, height, _ = self.extent
        tile = array.chunk_shape[1]
        step = max(tile, self._step(voxel) // tile * tile)
        for lo in range(0, depth, step):
            hi = min(depth, lo + step)
            yield array.read_box([self.number, lo, 0, 0], [self.number + 1, hi, height, width])[0]

    def _step(self, voxel: int) -> int:
        """Return how many planes have about `_SLAB` bytes."""
        return max(1, _SLAB // (max(1, prod(self.extent[1:])) * voxel))

    def _bits(self, group: str) -> Iterator[UInt8s]:
        width = self.extent[2]
        for slab in self.slabs(f"{group}/mask", -(-width // 8), 1):
            yield np.unpackbits(slab, axis=2, count=width, bitorder="little")

    def _filled(self, group: str, dtype: Dtype | None = None) -> Iterator[AnyArray]:
        """Read points, which stand in C order, as voxels of their values. Without a dtype, as 1."""
        depth, *plane = self.extent
        first, _ = self._point_range(group)
        ends = [first, *(first + np.cumsum(self._planes(group))).tolist()]
        points = self.store.array(f"{group}/coords")
        values = None if dtype is None else self.store.array(f"{group}/values")
        step = self._step(1)
        for lo in range(0, depth, step):
            hi = min(depth, lo + step)
            out = np.zeros((hi - lo, *plane), dtype or np.uint8)
            for start in range(ends[lo], ends[hi], _POINTS):
                stop = min(start + _POINTS, ends[hi])
                coords = points.read(start, stop).astype(np.int64)
                inside = 1 if values is None else values.read(start, stop)
                out[coords[:, 0] - lo, coords[:, 1], coords[:, 2]] = inside
            yield out

    def _planes(self, group: str) -> Int64s:
        """Count the points of each plane, which must lie inside the volume, sorted by depth."""
        path = f"{group}/coords"
        counts = np.zeros(self.extent[0], np.int64)
        deepest = 0
        for block in self.points(group)[0].blocks():
            depths = np.concatenate([[deepest], block[:, 0]]).astype(np.int64)
            if (block < 0).any() or (block >= np.array(self.extent)).any() or (np.diff(depths) < 0).any():
                message = f"volume {self.number} has points outside its extent {self.extent}, or out of order"
                raise self.contradiction(path, message)
            counts += np.bincount(depths[1:], minlength=len(counts))
            deepest = int(depths[-1])
        return counts


def volumes(store: StoreView) -> Iterator[Volume]:
    """Yield every volume of a store."""
    extents = whole(store, f"{VOLUMES}/extent").tolist()
    infos, headers, dtypes = (
        _texts(store, path, len(extents)) for path in (f"{VOLUMES}/info", HEADER, f"{VOLUMES}/source_dtype")
    )
    names = store.text(f"{VOLUMES}/name")
    sources = store.text("sources/path")
    for number, (depth, height, width) in enumerate(extents):
        yield Volume(
            store=store,
            number=number,
            name=names[number],
            source=sources[number],
            extent=(depth, height, width),
            dtype=dtypes[number],
            info=infos[number],
            header=json.loads(headers[number] or "null"),
        )


def _texts(store: StoreView, path: str, count: int) -> list[str]:
    return store.text(path) if store.has(f"{path}/data") else [""] * count


# The files of a CT volume as a store gives them back, to be compared with those of the source.


def restore(store: StoreView, scan: Scan) -> Restore:
    """Restore the image, and every window, mask, label and distance field that came as a file."""
    all_volumes = list(volumes(store))
    windows = scan.shared["agreement"].windows

    def source(number: int) -> RestoredFiles:
        volume = all_volumes[number]
        detail: Detail = scan.sources.details[number]
        files: list[RestoredFile] = []
        left_out: list[str] = []
        for array in detail.arrays:
            kind, _, name = array.role.partition("/")
            path = Path(array.path)
            if kind in MEMBERS:
                files.append(_restored_points(volume, array, path))
                continue
            metadata = _stated_metadata(volume, detail) if kind == "image" else {}
            restored = RestoredArray("", volume.voxels(IMAGE if kind == "image" else array.role))
            if kind == WINDOWS and value_source(store.group(array.role)) not in OWN_VALUES:
                restored = restored._replace(of_file=_as_mask)
                if volume.dtype and array.kind.kind == "f":
                    differ = partial(_scaled_difference, windows[name])
                    restored = RestoredArray("", volume.voxels(IMAGE), differ=differ)
                    left_out.append(f"{array.role} scaled to 0…1 (can be computed from the volume)")
            if array.numbering is not None:
                restored = restored._replace(of_file=partial(array.numbering.stored, location=path.name))
            file = RestoredFile(path, [restored], metadata=metadata, format=array.format, by_format=True)
            files.append(
                file._replace(parts=tuple(map(Path, array.parts)), adapt=partial(_only_array, metadata))
            )
        return RestoredFiles(files, left_out)

    return source


def _restored_points(volume: Volume, array: VolumeArray, path: Path) -> RestoredFile:
    """Return a window of points in C order, or a distance field."""
    kind, _, name = array.role.partition("/")
    group = f"{SDF if kind == SDF else WINDOWS}/{name}"
    arrays = [*map(RestoredArray, MEMBERS[kind], volume.points(group))]
    if kind != SDF:
        return RestoredFile(path, arrays, format=array.format, adapt=_in_c_order)
    if array.resolution:
        arrays.append(RestoredArray("resolution", array_values(np.array([array.resolution]))))
    return RestoredFile(path, arrays, format=array.format, adapt=_with_one_resolution)


def _stated_metadata(volume: Volume, detail: Detail) -> Metadata:
    """Return what the store has of the geometry that the image's file states, and of its header."""
    metadata = {name: volume.geometry.get(name) for name, by in detail.stated_by.items() if by == BY_FILE}
    return metadata | {"header": volume.header} if detail.header else metadata


def _only_array(metadata: Metadata, opened: OpenedByLibrary) -> OpenedByLibrary:
    """Return a file of voxels, whose array needs no name, with those of its metadata that are stored."""
    (name,) = opened.names
    stated = {name: value for name, value in (opened.metadata or {}).items() if name in metadata}
    return opened._replace(names=[""], array=lambda _: opened.array(name), metadata=stated)


def _as_mask(planes: AnyArray) -> UInt8s:
    return np.asarray(planes != 0, np.uint8)


def _scaled_difference(window: Window, image: AnyArray, scaled: AnyArray, first: int) -> str | None:
    """Say where an image, limited to a window and scaled to 0…1, differs from a file, or its mask does."""
    if image.shape != scaled.shape:
        return f"the shapes are {image.shape} and {scaled.shape}"
    exact = image.astype(np.float64)
    expected = (np.clip(exact, window.low, window.high) - window.low) / window.width
    is_inside = (exact >= window.low) & (exact <= window.high)
    if is_scaled_as(expected, scaled).all() or np.array_equal(is_inside, scaled):
        return None
    return f"planes {first} to {first + len(image)} differ"


def _in_c_order(opened: OpenedByLibrary) -> OpenedByLibrary:
    """Return points of a window in C order of their volume, as a store has them."""
    index = opened.array(MEMBERS["sparse"][0])
    order = np.lexsort(index.T[::-1])
    return opened._replace(array=lambda name: opened.array(name)[order])


def _with_one_resolution(opened: OpenedByLibrary) -> OpenedByLibrary:
    """Return a distance field whose resolution is one number for all axes."""

    def array(name: str) -> AnyArray:
        values = opened.array(name)
        return np.atleast_1d(np.max(values)) if name == "resolution" else values

    return opened._replace(array=array)


# Windows made from a store's own volumes, as a conversion with ``--window`` makes them.

_IMAGE = f"{schema.VOLUMES}/image"


def window(store: StoreView, text: str, given: CtOptions, emit: Emit, progress: Progress) -> Finalized:
    """Emit the points or bits of a window of all volumes, and return its table, offsets and attributes."""
    chosen = parse_window(text)
    if not store.has(_IMAGE):
        message = f"the window {chosen} cannot be computed, because the store has no images"
        raise InputError.at(store.path, message, "convert the sources with images", "missing")
    group = f"{schema.WINDOWS}/{chosen.name}"
    extents = whole(store, f"{schema.VOLUMES}/extent")
    options = store.root.options
    image = store.array(_IMAGE)
    test = inside(chosen, image.dtype)
    voxel = image.dtype.itemsize

    def slabs(volume: Volume) -> Iterator[AnyArray]:
        for voxels in volume.slabs(_IMAGE, volume.extent[2], voxel):
            yield voxels
            progress.advance(voxels.nbytes)

    def count(volume: Volume) -> int:
        values_seen = ValueRange()
        inside_window = 0
        for voxels in slabs(volume):
            values_seen.add(voxels)
            inside_window += int(np.count_nonzero(test(voxels)))
        unlike_hu = values_seen.contradiction()
        if unlike_hu is not None and "hu" not in (given.values, options.get("values")):
            message = f"volume {volume.name!r} {unlike_hu}; windows need HU: {chosen.name}"
            fix = AddOptions(("--values", "hu"), "if it is HU")
            raise InputError.at(store.path, message, fix, "values")
        return inside_window

    # Read twice: the encoding depends on how many are inside
    progress.begin("deriving", 2 * voxel * int(extents.prod(axis=1).sum()))
    every_volume = list(volumes(store))
    counts = np.array(list(map(count, every_volume)), np.int64)
    points = window_points(group, counts, extents, image.dtype.name, "volume")
    encoding = options.get("sparse", "auto")
    if encoding == "auto":
        encoding = smaller_encoding(int(counts.sum()), points, extents)
    depth, height, width = image.shape[1:]
    mask = schema.mask_field(group, (depth, height, width), tuple(options["tile"]))
    table = points if encoding == "coords" else Table(name=schema.WINDOWS, fields=(mask,))
    coords_dtype = points.fields[0].dtype
    for extent, volume in zip(extents.tolist(), every_volume, strict=True):
        bits = np.zeros((1, *mask.row_shape), np.uint8)
        first = 0
        for voxels in slabs(volume):
            is_inside = test(voxels)
            if encoding == "mask":
                packed = np.packbits(is_inside, axis=-1, bitorder="little")
                bits[0, first : first + len(packed), : packed.shape[1], : packed.shape[2]] = packed
            else:
                flat = np.flatnonzero(is_inside)
                coords = np.empty((len(flat), 3), coords_dtype)
                point_coords(flat, first, extent, coords)
                emit(group, "coords", coords)
                emit(group, "values", voxels.reshape(-1).take(flat))
            first += len(voxels)
        if encoding == "mask":
            emit(schema.WINDOWS, f"{chosen.name}/mask", bits)
    return Finalized(
        arrays=[(schema.offsets_field(group), offsets_of(counts))],
        spilled=(table,),
        samples=store.sample_count,
        sample_source=np.empty(0, np.int64),
        groups={group: window_attributes(chosen, encoding, "volume")},
    )
