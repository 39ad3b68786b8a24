"""Readers of boxes of a CT volume: image, labels, and masks in each stored form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from unistore.data.kinds.padding import Pad, copy_padded
from unistore.data.kinds.protocol import INDEX, SOURCE
from unistore.errors import InputError
from unistore.schemas.ct.voxels import limit
from unistore.schemas.ct.windows import parse_window
from unistore.schemas.indices import Column, contradiction, table_columns
from unistore.store.reader import Store
from unistore.system.hints import AnyArray, Int64s, UInt8s
from unistore.zarr3.array import StoredArray

IMAGE = "volumes/image"
EXTENT = "volumes/extent"
_COLUMNS = ("spacing", "origin", "direction")
_IMAGE_AXES = 4
# Planes that are read at once where only some voxels are taken
_PLANES = 32
# Reserved keys; a mask of that name gets the key ``windows.<name>``
_RESERVED = frozenset(
    (
        INDEX,
        SOURCE,
        "image",
        "coords",
        "values",
        "corner",
        "extent",
        "affine",
        "foreground",
        "name",
        "info",
        "metadata",
        "valid",
        "valid_extent",
        *_COLUMNS,
    )
)


class BoxSource(Protocol):
    """One value per voxel, read by box."""

    dtype: np.dtype[Any]

    def read(self, volume: int, lo: Sequence[int], hi: Sequence[int], out: AnyArray) -> None:
        """Read voxels ``lo:hi`` (depth, height, width) of a volume into C-contiguous `out`."""
        ...


class ImageBox:
    """Voxels of ``volumes/image`` or of a label, (V, D, H, W)."""

    def __init__(self, array: StoredArray) -> None:
        self._array = array
        self.dtype = array.dtype

    def read(self, volume: int, lo: Sequence[int], hi: Sequence[int], out: AnyArray) -> None:
        """See `BoxSource.read`."""
        self._array.read_box((volume, *lo), (volume + 1, *hi), out[None])


class BitBox:
    """0 or 1 per voxel, from a packed mask (V, D, H, ⌈W/8⌉), lowest bit first."""

    dtype = np.dtype(np.uint8)

    def __init__(self, array: StoredArray) -> None:
        self._array = array

    def read(self, volume: int, lo: Sequence[int], hi: Sequence[int], out: AnyArray) -> None:
        """See `BoxSource.read`."""
        left = lo[2] % 8
        width = hi[2] - lo[2]
        packed = self.bits(volume, (lo[0], lo[1], lo[2] // 8), (hi[0], hi[1], -(-hi[2] // 8)))
        if left == 0 and width == 8 * packed.shape[2]:
            out[...] = np.unpackbits(packed.reshape(-1), bitorder="little").reshape(out.shape)
        else:
            out[...] = np.unpackbits(packed, axis=-1, bitorder="little")[..., left : left + width]

    def bits(self, volume: int, lo: Sequence[int], hi: Sequence[int]) -> UInt8s:
        """Packed bytes ``lo:hi`` (depth, height, byte along the width) of a volume."""
        bits: UInt8s = self._array.read_box((volume, *lo), (volume + 1, *hi))[0]
        return bits


class WindowedBox:
    """An image limited to an intensity window, and scaled to 0…1 if asked for."""

    dtype = np.dtype(np.float32)

    def __init__(self, image: BoxSource, limits: tuple[float, float], *, scale: bool) -> None:
        self._image = image
        self._limits = limits
        self._scale = scale

    def read(self, volume: int, lo: Sequence[int], hi: Sequence[int], out: AnyArray) -> None:
        """See `BoxSource.read`."""
        stored = np.empty(out.shape, self._image.dtype)
        self._image.read(volume, lo, hi, stored)
        limit(stored, *self._limits, scale=self._scale, out=out)


class SteppedBox:
    """Every `step`-th voxel of each axis of another source, the first one included."""

    def __init__(self, box: BoxSource, step: int, extents: Int64s) -> None:
        self._box = box
        self._step = step
        self._extents = extents
        self.dtype = box.dtype

    def read(self, volume: int, lo: Sequence[int], hi: Sequence[int], out: AnyArray) -> None:
        """See `BoxSource.read`; `lo` and `hi` count the voxels that are taken."""
        step = self._step
        planes = max(1, _PLANES // self._step)
        first = [step * low for low in lo]
        last = [min(step * high, int(end)) for high, end in zip(hi, self._extents[volume], strict=True)]
        for plane in range(0, len(out), planes):
            deep = min(first[0] + step * (plane + planes), last[0])
            start = [first[0] + step * plane, *first[1:]]
            block = np.empty((deep - start[0], last[1] - first[1], last[2] - first[2]), self.dtype)
            self._box.read(volume, start, [deep, *last[1:]], block)
            out[plane : plane + planes] = block[::step, ::step, ::step]


class PointBox:
    """0 or 1 per voxel, from points: coords (M, 3) in C order of their volume, offsets (V + 1)."""

    dtype = np.dtype(np.uint8)

    def __init__(self, store: Store, group: str) -> None:
        self._coords = store.array(f"{group}/coords")
        self._offsets = Column(store, f"{group}/offsets")

    def read(self, volume: int, lo: Sequence[int], hi: Sequence[int], out: AnyArray) -> None:
        """See `BoxSource.read`."""
        out[...] = 0
        first, last = (int(bound[0]) for bound in self._offsets.ranges(np.array([volume])))
        first, last = self._bisect(first, last, lo[0]), self._bisect(first, last, hi[0])
        points = self._coords.read_ranges([first], [last]).astype(np.int64) - lo
        inside = points[((points >= 0) & (points < np.subtract(hi, lo))).all(axis=1)]
        out[inside[:, 0], inside[:, 1], inside[:, 2]] = 1

    def _bisect(self, first: int, last: int, depth: int) -> int:
        """First point of `first:last` at `depth` or behind; points are sorted by depth."""
        while first < last:
            middle = (first + last) // 2
            if int(self._coords.read_rows([middle])[0, 0]) < depth:
                first = middle + 1
            else:
                last = middle
        return first


def read_padded(
    box: BoxSource,
    volume: int,
    lo: Sequence[int],
    hi: Sequence[int],
    out: AnyArray,
    pad: Pad,
    fill: Any,
) -> None:
    """Read voxels ``lo:hi`` of a volume into the low corner of `out`, padded as `copy_padded` does."""
    extent = tuple(b - a for a, b in zip(lo, hi, strict=True))
    if extent == out.shape:
        box.read(volume, lo, hi, out)
        return
    inside = np.empty(extent, out.dtype)
    box.read(volume, lo, hi, inside)
    copy_padded(inside, out, pad, fill)


def _order(path: str) -> int:
    """Order of the values of a volume: geometry first."""
    name = path.rpartition("/")[2]
    return _COLUMNS.index(name) if name in _COLUMNS else len(_COLUMNS)


def window_limits(store: Store, name: str) -> tuple[float, float]:
    """Lowest and highest value of a window of the store, of a preset, or of ``"name:width:level"``."""
    if not store.has(IMAGE):
        msg = f"{store.path}: holds no images to take window {name!r} of"
        raise InputError(msg)
    held = {
        group.removeprefix("windows/"): store.group(group)
        for group in box_sources(store).values()
        if group.startswith("windows/")
    }
    if name in held:
        try:
            low = float(held[name]["low"])
            high = float(held[name]["high"])
        except (KeyError, TypeError, ValueError):
            low = high = math.nan
        if not low < high:
            raise contradiction(store, f"windows/{name}", "does not say its lowest and highest value")
        return low, high
    window = parse_window(name)
    return window.low, window.high


def box_source(store: Store, group: str) -> BoxSource:
    """Reader of ``volumes/image``, or of the window, mask or label in a group."""
    if store.has(group):
        return ImageBox(store.array(group))
    if store.has(f"{group}/label"):
        return ImageBox(store.array(f"{group}/label"))
    if store.has(f"{group}/mask"):
        return BitBox(store.array(f"{group}/mask"))
    return PointBox(store, group)


def box_sources(store: Store) -> dict[str, str]:
    """Path of the image, and group of each window, mask and label, by sample key."""
    path_of_key = {}
    for path in image_paths(store):
        name = path.rpartition("/")[2]
        path_of_key[path.replace("/", ".") if name in _RESERVED and path != IMAGE else name] = path
    for family in ("windows", "masks", "labels"):
        groups = {path.rpartition("/")[0] for path in store.paths() if path.startswith(f"{family}/")}
        for group in sorted(groups):
            name = group.removeprefix(f"{family}/")
            path_of_key[f"{family}.{name}" if name in _RESERVED or name in path_of_key else name] = group
    return path_of_key


def extent_path(store: Store) -> str:
    """Path of the extents of the volumes: beside them, in the table of samples."""
    path = f"{store.sample_table}/extent"
    return path if store.has(path) else EXTENT


def image_paths(store: Store) -> list[str]:
    """Paths of the images of volumes: the columns of their table with three axes of space."""
    table = extent_path(store).rpartition("/")[0]
    paths = table_columns(store, table) if store.has(f"{table}/extent") else []
    return [path for path in paths if len(store.array(path).shape) == _IMAGE_AXES]


def volume_columns(store: Store) -> dict[str, str]:
    """Path of each value per volume, by sample key: spacing, origin, …, and ``<mask>_present``."""
    extent = extent_path(store)
    table = extent.rpartition("/")[0]
    images = image_paths(store)
    columns = table_columns(store, table) if store.has(extent) else []
    numbers = [path for path in columns if path not in images and path != extent]
    path_of_key = {path.removeprefix(f"{table}/"): path for path in sorted(numbers, key=_order)}
    for key, group in box_sources(store).items():
        if store.has(f"{group}/present"):
            path_of_key[f"{key}_present"] = f"{group}/present"
    return path_of_key
