"""CT volumes given back: a case folder a volume, of its true extent and dtype, with all that it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
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
from unistore.schemas.ct.fields import LABELS, MASKS, SDF, VOLUMES, WINDOWS
from unistore.schemas.ct.voxels import largest_point
from unistore.schemas.indices import Column, contradiction, whole
from unistore.schemas.store_view import ArrayView, StoreView

_SLAB = 32 << 20
"""Bytes of voxels at a time."""
_POINTS = 1 << 18
"""Points set at a time: as indices they take 24 bytes each."""


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
        return self._voxels(f"{VOLUMES}/image")

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
        listed = next(points, None)
        step = self._step(1)
        for lo in range(0, depth, step):
            hi = min(depth, lo + step)
            out = np.zeros((hi - lo, *plane), np.uint8 if values is None else values.dtype)
            while listed is not None:
                ends = int(np.searchsorted(listed[:, 0], hi))
                at = listed[:ends].astype(np.int64)
                inside = 1 if values is None else values.read(done, done + ends)
                out[at[:, 0] - lo, at[:, 1], at[:, 2]] = inside
                done += ends
                if ends < len(listed):
                    listed = listed[ends:]
                    break
                listed = next(points, None)
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
    known = store.has(f"{VOLUMES}/source_dtype/data")
    dtypes = store.text(f"{VOLUMES}/source_dtype") if known else [""] * len(names)
    for number, (name, (depth, height, width), dtype) in enumerate(zip(names, extents, dtypes, strict=True)):
        yield Volume(
            store=store,
            number=number,
            name=name,
            extent=(depth, height, width),
            dtype=np.dtype(dtype) if dtype else None,
        )


def files(store: StoreView) -> Iterator[File]:
    """Every file of a CT store."""
    groups = sorted({path.rpartition("/")[0] for path in store.paths()})
    infos = store.text(f"{VOLUMES}/info") if store.has(f"{VOLUMES}/info/data") else []
    for volume in volumes(store):
        image = volume.image()
        if image is not None:
            yield _file(volume, "ct_original.npy", "npy", {"": image})
        for group in groups:
            family, _, name = group.partition("/")
            if family not in (WINDOWS, MASKS, LABELS, SDF) or not name or not volume.has(group):
                continue
            if family in (MASKS, LABELS):
                inside = f"masks/{_mask_name(volume, name)}" if family == MASKS else f"labels/{name}.npy"
                yield _file(volume, inside, "npy", {"": volume.label(group)})
            elif family == SDF:
                yield _file(volume, f"windows/{name}.npz", "npz", _distances(volume, group))
            else:
                yield _window(volume, group, store.group(group))
        if infos and infos[volume.number]:
            text = np.frombuffer(infos[volume.number].encode(), np.uint8)
            yield _file(volume, "info.json", "raw", {"": array_values(text)})


def _file(volume: Volume, name: str, form: Form, values: Mapping[str, Values]) -> File:
    return File(name=f"{volume.name}/{name}", form=form, source=volume.number, values=values)


def _window(volume: Volume, group: str, attributes: Mapping[str, Any]) -> File:
    """A window as voxels, or, where its points have values of their own, as points."""
    width, level = (np.format_float_positional(attributes[name], trim="-") for name in ("width", "level"))
    name = f"windows/{group.partition('/')[2]}_w{width}_l{level}"
    if str(attributes["values"]).startswith("as in the scaled window"):
        return _file(volume, f"{name}.npy", "npy", {"": volume.scaled(group)})
    if not str(attributes["values"]).startswith("as in the sparse file"):
        return _file(volume, f"{name}.npy", "npy", {"": volume.mask(group)})
    coords, values = volume.points(group)
    small = max(volume.extent) <= np.iinfo(np.int16).max
    indices = converted(coords, np.dtype(np.int16 if small else np.int32))
    return _file(volume, f"{name}_sparse.npz", "npz", {"indices": indices, "values": values})


def _distances(volume: Volume, group: str) -> dict[str, Values]:
    coords, values = volume.points(group)
    column = Values((*values.shape, 1), values.dtype, lambda: (block[:, None] for block in values.blocks()))
    resolution = Column(volume.store, f"{group}/resolution").take(np.array([volume.number]))[0]
    said = {"resolution": array_values(np.array([resolution], np.int32))} if resolution else {}
    return {"sparse_index": converted(coords, np.dtype(np.int32)), "sparse_sdf": column, **said}


def _mask_name(volume: Volume, name: str) -> str:
    case = volume.name.rpartition("/")[2]
    return f"{case}_binary.npy" if name == "binary" else f"{name}_binary.npy"
