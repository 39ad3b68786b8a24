"""The volumes of a CT store: their voxels and points, as they were in the sources."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import ExportedArray, converted, row_values, source_dtype
from unistore.errors import InputError, Problem
from unistore.schemas.ct.fields import HEADER, IMAGE, VOLUMES, WINDOWS
from unistore.schemas.ct.geometry import read_geometry
from unistore.schemas.ct.windows import OWN_VALUES, value_source
from unistore.schemas.indices import ArrayView, IndexColumn, StoreView, contradiction, whole

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
    def geometry(self) -> dict[str, Any]:
        """What is known of where its voxels lie."""
        geometry = read_geometry(self.store, self.number)._asdict()
        return {name: numbers for name, numbers in geometry.items() if numbers is not None}

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
                values = self.store.array(f"{group}/values")
                return ExportedArray(self.extent, values.dtype, partial(self._filled, group, values))
            return self.stored(group)
        stored = self.stored(group)
        if group == IMAGE:
            return converted(stored, np.dtype(self.dtype))
        path = f"{group}/label" if self.store.has(f"{group}/label") else f"{group}/mask"
        return converted(stored, source_dtype(self.store.array(path).attributes, self.number, stored.dtype))

    def stored(self, group: str) -> ExportedArray:
        """Return an image or label in the store's dtype, or bits and points as 0 and 1, (D, H, W)."""
        if group == IMAGE and not self.dtype:
            message = f"volume {self.name!r} has no image, so it cannot be exported as one"
            raise InputError(Problem(self.store.path, message, "leave --to out", "missing"))
        path = IMAGE if group == IMAGE else f"{group}/label"
        if self.store.has(path):
            dtype = self.store.array(path).dtype
            return ExportedArray(
                self.extent, dtype, partial(self._slabs, path, self.extent[2], dtype.itemsize)
            )
        blocks = self._bits if self.store.has(f"{group}/mask") else self._filled
        return ExportedArray(self.extent, np.dtype(np.uint8), partial(blocks, group))

    def points(self, group: str) -> tuple[ExportedArray, ExportedArray]:
        """Return coordinates (n, 3) and values (n,) of a window or distance field."""
        lo, hi = self._point_range(group)
        coords, values = (self.store.array(f"{group}/{name}") for name in ("coords", "values"))
        return row_values(coords, lo, hi), row_values(values, lo, hi)

    def _point_range(self, group: str) -> tuple[int, int]:
        lo, hi = IndexColumn(self.store, f"{group}/offsets").ranges(np.array([self.number]))
        return int(lo[0]), int(hi[0])

    def _slabs(self, path: str, width: int, voxel: int) -> Iterator[NDArray[Any]]:
        """Read its part of a padded array, some layers of chunks at a time. `voxel`: its bytes, unpacked."""
        array = self.store.array(path)
        depth, height, _ = self.extent
        tile = array.chunk_shape[1]
        step = max(tile, self._step(voxel) // tile * tile)
        for lo in range(0, depth, step):
            hi = min(depth, lo + step)
            yield array.read_box([self.number, lo, 0, 0], [self.number + 1, hi, height, width])[0]

    def _step(self, voxel: int) -> int:
        """Return planes of about `_SLAB` bytes."""
        return max(1, _SLAB // (max(1, prod(self.extent[1:])) * voxel))

    def _bits(self, group: str) -> Iterator[NDArray[np.uint8]]:
        width = self.extent[2]
        for slab in self._slabs(f"{group}/mask", -(-width // 8), 1):
            yield np.unpackbits(slab, axis=2, count=width, bitorder="little")

    def _filled(self, group: str, values: ArrayView | None = None) -> Iterator[NDArray[Any]]:
        """Read points, which stand in C order, as voxels of 1 or of their values."""
        depth, *plane = self.extent
        first, _ = self._point_range(group)
        ends = [first, *(first + np.cumsum(self._planes(group))).tolist()]
        array = self.store.array(f"{group}/coords")
        step = self._step(1)
        for lo in range(0, depth, step):
            hi = min(depth, lo + step)
            out = np.zeros((hi - lo, *plane), np.uint8 if values is None else values.dtype)
            for start in range(ends[lo], ends[hi], _POINTS):
                stop = min(start + _POINTS, ends[hi])
                coords = array.read(start, stop).astype(np.int64)
                inside = 1 if values is None else values.read(start, stop)
                out[coords[:, 0] - lo, coords[:, 1], coords[:, 2]] = inside
            yield out

    def _planes(self, group: str) -> NDArray[np.int64]:
        """Count the points of each plane, which lie inside the volume, sorted by depth."""
        counts = np.zeros(self.extent[0], np.int64)
        deepest = 0
        for block in self.points(group)[0].blocks():
            depths = np.concatenate([[deepest], block[:, 0]]).astype(np.int64)
            if (block < 0).any() or (block >= np.array(self.extent)).any() or (np.diff(depths) < 0).any():
                message = f"volume {self.number} has points outside its extent {self.extent}, or out of order"
                raise contradiction(self.store, f"{group}/coords", message)
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
