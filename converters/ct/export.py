"""CT volumes given back: the files of the sources, of their true extent and dtype."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import prod
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import (
    File,
    Form,
    Values,
    array_values,
    converted,
    row_values,
    source_dtype,
)
from unistore.converters.ct.names import GEOMETRY, POINTS, without_suffix
from unistore.converters.formats.nifti import Nifti
from unistore.converters.plugin import Array, Facts
from unistore.errors import InputError, Problem
from unistore.schemas.ct.fields import HEADER, IMAGE, INFO, LABELS, MASKS, SDF, VOLUMES, WINDOWS
from unistore.schemas.ct.geometry import FRAME, read_geometry
from unistore.schemas.ct.voxels import largest_point
from unistore.schemas.ct.windows import OWN_VALUES, value_source
from unistore.schemas.indices import ArrayView, Column, StoreView, contradiction, whole
from unistore.schemas.tables import SOURCE_FILES

# Bytes of voxels at a time
_SLAB = 32 << 20
# Points set at a time: as indices they take 24 bytes each
_POINTS = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """One volume of a CT store.

    Attributes
    ----------
    store, number
        Where it is: row of ``volumes``.
    name
        Of its case folder, as the store has it.
    extent
        Depth, height and width.
    dtype
        Of its image in the source; None if it has no image.
    """

    store: StoreView
    number: int
    name: str
    extent: tuple[int, int, int]
    dtype: np.dtype[Any] | None

    def image(self) -> Values | None:
        """Its voxels, (D, H, W), in its own dtype."""
        stored = self.stored()
        return None if stored is None or self.dtype is None else converted(stored, self.dtype)

    def stored(self) -> Values | None:
        """Its voxels, (D, H, W), in the store's dtype."""
        if self.dtype is None:
            return None
        return self._voxels(IMAGE)

    def has(self, group: str) -> bool:
        """Whether it has a window, mask or distance field."""
        path = f"{group}/present"
        if not self.store.has(path):
            return True
        return bool(Column(self.store, path).take(np.array([self.number]))[0])

    def mask(self, group: str) -> Values:
        """A window or mask as voxels of 0 and 1, (D, H, W) u1."""
        if self.store.has(f"{group}/mask"):
            return Values(self.extent, np.dtype(np.uint8), lambda: self._bits(f"{group}/mask"))
        return Values(self.extent, np.dtype(np.uint8), lambda: self._filled(group))

    def scaled(self, group: str) -> Values:
        """A window as voxels with the values of its points, and 0 elsewhere, (D, H, W)."""
        values = self.store.array(f"{group}/values")
        return Values(self.extent, values.dtype, lambda: self._filled(group, values))

    def label(self, group: str) -> Values:
        """A label as it was in the source, (D, H, W)."""
        path = f"{group}/label" if self.store.has(f"{group}/label") else f"{group}/mask"
        stored = self.stored_label(group)
        return converted(stored, source_dtype(self.store.array(path).attributes, self.number, stored.dtype))

    def stored_label(self, group: str) -> Values:
        """A label in the store's dtype, (D, H, W); u1 where it is stored as bits."""
        return self._voxels(f"{group}/label") if self.store.has(f"{group}/label") else self.mask(group)

    def points(self, group: str) -> tuple[Values, Values]:
        """Coordinates (n, 3) and values (n,) of a window or distance field."""
        lo, hi = self._point_range(group)
        coords, values = (self.store.array(f"{group}/{name}") for name in ("coords", "values"))
        return row_values(coords, lo, hi), row_values(values, lo, hi)

    def _point_range(self, group: str) -> tuple[int, int]:
        lo, hi = Column(self.store, f"{group}/offsets").ranges(np.array([self.number]))
        return int(lo[0]), int(hi[0])

    def _voxels(self, path: str) -> Values:
        dtype = self.store.array(path).dtype
        return Values(self.extent, dtype, lambda: self._slabs(path, self.extent[2], dtype.itemsize))

    def _slabs(self, path: str, width: int, voxel: int) -> Iterator[NDArray[Any]]:
        """Its part of a padded array, some layers of chunks at a time; `voxel`: its bytes, unpacked."""
        array = self.store.array(path)
        depth, height, _ = self.extent
        tile = array.chunk_shape[1]
        step = max(tile, self._step(voxel) // tile * tile)
        for lo in range(0, depth, step):
            hi = min(depth, lo + step)
            yield array.read_box([self.number, lo, 0, 0], [self.number + 1, hi, height, width])[0]

    def _step(self, voxel: int) -> int:
        """Planes of about `_SLAB` bytes."""
        return max(1, _SLAB // (max(1, prod(self.extent[1:])) * voxel))

    def _bits(self, path: str) -> Iterator[NDArray[np.uint8]]:
        width = self.extent[2]
        for slab in self._slabs(path, -(-width // 8), 1):
            yield np.unpackbits(slab, axis=2, count=width, bitorder="little")

    def _filled(self, group: str, values: ArrayView | None = None) -> Iterator[NDArray[Any]]:
        """Points, which stand in C order, as voxels of 1 or of their values."""
        depth, *plane = self.extent
        points = self._listed(group)
        done, _ = self._point_range(group)
        points_block = next(points, None)
        step = self._step(1)
        for lo in range(0, depth, step):
            hi = min(depth, lo + step)
            out = np.zeros((hi - lo, *plane), np.uint8 if values is None else values.dtype)
            while points_block is not None:
                ends = int(np.searchsorted(points_block[:, 0], hi))
                coords = points_block[:ends].astype(np.int64)
                inside = 1 if values is None else values.read(done, done + ends)
                out[coords[:, 0] - lo, coords[:, 1], coords[:, 2]] = inside
                done += ends
                if ends < len(points_block):
                    points_block = points_block[ends:]
                    break
                points_block = next(points, None)
            yield out

    def _listed(self, group: str) -> Iterator[NDArray[Any]]:
        """Coordinates of a window, `_POINTS` at a time, inside the volume and sorted by depth."""
        deepest = 0
        for block in self.points(group)[0].blocks():
            for first in range(0, len(block), _POINTS):
                part = block[first : first + _POINTS]
                depths = part[:, 0].astype(np.int64)
                outside = (largest_point(part.astype(np.int32, copy=False)) >= np.array(self.extent)).any()
                if outside or depths[0] < deepest or (depths[1:] < depths[:-1]).any():
                    message = (
                        f"volume {self.number} has points outside its extent {self.extent}, or out of order"
                    )
                    raise contradiction(self.store, f"{group}/coords", message)
                deepest = int(depths[-1])
                yield part


def volumes(store: StoreView) -> Iterator[Volume]:
    """Every volume of a store."""
    extents = whole(store, f"{VOLUMES}/extent").tolist()
    names = store.text(f"{VOLUMES}/name")
    has_dtypes = store.has(f"{VOLUMES}/source_dtype/data")
    dtypes = store.text(f"{VOLUMES}/source_dtype") if has_dtypes else [""] * len(names)
    for number, (name, (depth, height, width), dtype) in enumerate(zip(names, extents, dtypes, strict=True)):
        yield Volume(
            store=store,
            number=number,
            name=name,
            extent=(depth, height, width),
            dtype=np.dtype(dtype) if dtype else None,
        )


def files(store: StoreView) -> Iterator[File]:
    """Yield every file of a CT store under its name in the sources, its geometry, and computed windows.

    Older stores lack the names: there a volume is a case folder.
    """
    infos = store.text(INFO) if store.has(f"{INFO}/data") else []
    texts = store.text(SOURCE_FILES) if store.has(f"{SOURCE_FILES}/data") else None
    sources = store.text("sources/path")
    headers = headers_of(store)
    labels: set[str] = set()
    for volume in volumes(store):
        if texts is None:
            names = _case_names(volume, infos)
        else:
            names = _names(texts[volume.number])
            names |= _computed_names(volume, names, sources[volume.number])
        geometry = stated_geometry(volume)
        if names and geometry and not names.get(IMAGE, "").lower().endswith(Nifti.suffixes):
            text = json.dumps({"frame": FRAME, "order": "zyx", **geometry})
            yield _text_file(volume, _geometry_name(names, sources[volume.number]), text)
        for group, name in names.items():
            if group.startswith(f"{LABELS}/"):
                if name in labels:  # several images, such as the channels of a scan, may have one label
                    continue
                labels.add(name)
            if group == INFO:
                yield _text_file(volume, name, infos[volume.number])
            elif name.lower().endswith(Nifti.suffixes):
                facts = {**geometry, "header": headers[volume.number]} if group == IMAGE else geometry
                yield nifti_file(volume, name, _voxels(volume, group), facts)
            elif name.lower().endswith(POINTS):
                yield _file(volume, name, "npz", _points(volume, group))
            else:
                npy = name if name.lower().endswith(".npy") else f"{without_suffix(name)}.npy"
                yield _file(volume, npy, "npy", {"": _voxels(volume, group)})


def stated_geometry(volume: Volume) -> dict[str, Any]:
    """Return what is known of where a volume's voxels lie."""
    geometry = asdict(read_geometry(volume.store, volume.number))
    return {name: numbers for name, numbers in geometry.items() if numbers is not None}


def headers_of(store: StoreView) -> list[Any]:
    """Return what is kept of the header of each volume's file; None: nothing."""
    if not store.has(f"{HEADER}/data"):
        return [None] * len(whole(store, f"{VOLUMES}/extent"))
    return [json.loads(text) if text else None for text in store.text(HEADER)]


class _Blocks(Array):
    """Values of a store that a format writes block after block."""

    def blocks(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield all rows some at a time, each time with the number of the first."""
        lo = 0
        for rows in self.values.blocks():
            yield lo, rows
            lo += len(rows)


def nifti_file(volume: Volume, name: str, values: Values, facts: Facts) -> File:
    """Return a NIfTI file of voxels; what NIfTI has no dtype for is widened."""
    wider = {"bool": "u1", "float16": "f4"}.get(values.dtype.name)
    arrays = {"image": _Blocks(values if wider is None else converted(values, np.dtype(wider)))}
    write = partial(Nifti().write, arrays=arrays, facts=facts)
    return File(name=name, form="format", source=volume.number, values={}, write=write)


def nifti_files(store: StoreView) -> Iterator[File]:
    """Yield NIfTI files of a store, laid out as TotalSegmentator does, whatever the volumes came from.

    A volume ``<name>`` or ``<name>/ct`` is ``<name>/ct.nii.gz``; its masks and label volumes are
    ``<name>/segmentations/<label>.nii.gz``. Windows are computed from these again.

    Raises
    ------
    InputError
        If a volume has no voxels, only points.
    """
    headers = headers_of(store)
    groups = sorted({path.rpartition("/")[0] for path in store.paths()})
    for volume in volumes(store):
        image = volume.image()
        if image is None:
            message = f"volume {volume.name!r} has no image, so it cannot be exported as one"
            raise InputError(Problem(store.path, message, "leave --to out", "missing"))
        geometry = stated_geometry(volume)
        facts = {**geometry, "header": headers[volume.number]}
        folder = volume.name.removesuffix("/ct")
        yield nifti_file(volume, f"{folder}/ct.nii.gz", image, facts)
        for group in groups:
            family, _, name = group.partition("/")
            if family in (MASKS, LABELS) and name and volume.has(group):
                label = f"{folder}/segmentations/{name}.nii.gz"
                yield nifti_file(volume, label, volume.label(group), geometry)


def _geometry_name(names: Mapping[str, str], source: str) -> str:
    """Return the name of the file of a volume's geometry, from those of its files and of its source."""
    image = names.get(IMAGE, "")
    if image.endswith(source):
        return f"{without_suffix(image)}.{GEOMETRY}"
    folder = PurePosixPath(next(iter(names.values()))).parent
    if folder.name in ("windows", "masks", "labels"):
        folder = folder.parent
    return (folder / GEOMETRY).as_posix()


def _file(volume: Volume, name: str, form: Form, values: Mapping[str, Values]) -> File:
    return File(name=name, form=form, source=volume.number, values=values)


def _text_file(volume: Volume, name: str, text: str) -> File:
    return _file(volume, name, "raw", {"": array_values(np.frombuffer(text.encode(), np.uint8))})


def _names(text: str) -> dict[str, str]:
    """Return the names of a volume's files by group, checked to be texts."""
    names = json.loads(text)
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        msg = f"{SOURCE_FILES} holds {text!r}, expected names of files by group"
        raise ValueError(msg)
    return names


def _computed_names(volume: Volume, names: Mapping[str, str], source: str) -> dict[str, str]:
    """Return names for windows that came in no file, by group: where conversion finds them with the image.

    `source` is the name of the image, or of a case folder.
    """
    image = names.get(IMAGE)
    if image is None:
        return {}
    before = f"{image.rpartition('/')[0]}/windows/"
    if image.endswith(source):
        before = f"{without_suffix(image)}_"
    computed: dict[str, str] = {}
    for path in sorted(volume.store.paths()):
        group, _, array = path.rpartition("/")
        if array != "offsets" or not group.startswith(f"{WINDOWS}/"):
            continue
        if group not in names and volume.has(group):
            computed[group] = before + _window_name(group, volume.store.group(group))
    return computed


def _case_names(volume: Volume, infos: Sequence[str]) -> dict[str, str]:
    """Return names for the files of a volume as those of a case folder, by group."""
    store = volume.store
    folder = volume.name
    names = {} if volume.dtype is None else {IMAGE: f"{folder}/ct_original.npy"}
    for group in sorted({path.rpartition("/")[0] for path in store.paths()}):
        family, _, name = group.partition("/")
        if family not in (WINDOWS, MASKS, LABELS, SDF) or not name or not volume.has(group):
            continue
        if family == MASKS:
            mask = folder.rpartition("/")[2] if name == "binary" else name
            names[group] = f"{folder}/masks/{mask}_binary.npy"
        elif family == LABELS:
            names[group] = f"{folder}/labels/{name}.npy"
        elif family == SDF:
            names[group] = f"{folder}/windows/{name}.npz"
        else:
            names[group] = f"{folder}/windows/{_window_name(group, store.group(group))}"
    if infos and infos[volume.number]:
        names[INFO] = f"{folder}/info.json"
    return names


def _window_name(group: str, attributes: Mapping[str, Any]) -> str:
    width, level = (np.format_float_positional(attributes[name], trim="-") for name in ("width", "level"))
    form = "_sparse.npz" if value_source(attributes) == "sparse" else ".npy"
    return f"{group.partition('/')[2]}_w{width}_l{level}{form}"


def _voxels(volume: Volume, group: str) -> Values:
    """Return the voxels of an image, window, mask or label, as they were in the source."""
    if group == IMAGE:
        image = volume.image()
        if image is None:
            raise contradiction(volume.store, SOURCE_FILES, f"volume {volume.number} has no image")
        return image
    if not group.startswith(f"{WINDOWS}/"):
        return volume.label(group)
    if value_source(volume.store.group(group)) in OWN_VALUES:
        return volume.scaled(group)
    return volume.mask(group)


def _points(volume: Volume, group: str) -> dict[str, Values]:
    """Return the arrays of a file of points: of a distance field, or of a window."""
    if group.startswith(f"{SDF}/"):
        return _distances(volume, group)
    coords, values = volume.points(group)
    small = max(volume.extent) <= np.iinfo(np.int16).max
    indices = converted(coords, np.dtype(np.int16 if small else np.int32))
    return {"indices": indices, "values": values}


def _distances(volume: Volume, group: str) -> dict[str, Values]:
    coords, values = volume.points(group)
    column = Values((*values.shape, 1), values.dtype, lambda: (block[:, None] for block in values.blocks()))
    resolution = Column(volume.store, f"{group}/resolution").take(np.array([volume.number]))[0]
    resolution_dataset = {"resolution": array_values(np.array([resolution], np.int32))} if resolution else {}
    return {"sparse_index": converted(coords, np.dtype(np.int32)), "sparse_sdf": column, **resolution_dataset}
