"""Read patches of CT volumes: images, labels, and masks in each form that a store can have."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from unistore.data.kinds.padding import Pad, copy_padded, fill_values, packed_boxes
from unistore.data.kinds.protocol import INDEX, SOURCE, RowValues
from unistore.data.packed import Allocate, Batch, packed_copy
from unistore.errors import InputError
from unistore.schemas.ct.fields import LENGTHS
from unistore.schemas.ct.geometry import affines, has_geometry
from unistore.schemas.ct.voxels import limit
from unistore.schemas.ct.windows import parse_window
from unistore.schemas.indices import IndexColumn, contradiction, require_rule, table_columns, whole
from unistore.schemas.tables import unpack
from unistore.store.reader import Store
from unistore.system.types import AnyArray, Int64s, Shape, UInt8s
from unistore.zarr3.array import StoredArray

IMAGE = "volumes/image"
EXTENT = "volumes/extent"
_COLUMNS = ("spacing", "origin", "direction")
_TEXTS = ("name", "info", "metadata", "header", "patient", "series")
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


class BoxSource(ABC):
    """Base class of readers of one value per voxel.

    Attributes
    ----------
    dtype : numpy.dtype
        Dtype of the values.
    """

    dtype: np.dtype[Any]

    @abstractmethod
    def read(self, volume: int, lo: Sequence[int], hi: Sequence[int], out: AnyArray) -> None:
        """Read a patch of a volume.

        Parameters
        ----------
        volume : int
            Number of the volume in the store.
        lo, hi : sequence of int
            First voxel, and the voxel after the last one: depth, height and width.
        out : C-contiguous array of shape ``hi - lo``
            Receives the values.
        """


class ImageBox(BoxSource):
    """Reads an image or a label: a stored array of shape (V, D, H, W)."""

    def __init__(self, array: StoredArray) -> None:
        self._array = array
        self.dtype = array.dtype

    def read(self, volume: int, lo: Sequence[int], hi: Sequence[int], out: AnyArray) -> None:
        self._array.read_box((volume, *lo), (volume + 1, *hi), out[None])


class BitBox(BoxSource):
    """Reads 0 or 1 per voxel from a packed mask of shape (V, D, H, ⌈W/8⌉), lowest bit first."""

    dtype = np.dtype(np.uint8)

    def __init__(self, array: StoredArray) -> None:
        self._array = array

    def read(self, volume: int, lo: Sequence[int], hi: Sequence[int], out: AnyArray) -> None:
        first = (*lo[:2], lo[2] // 8)
        last = (*hi[:2], -(-hi[2] // 8))
        packed = self.bits(volume, first, last)
        out[...] = unpack(packed, hi[2] - lo[2], lo[2] % 8)

    def bits(self, volume: int, lo: Sequence[int], hi: Sequence[int]) -> UInt8s:
        """Return packed bytes of a volume.

        Parameters
        ----------
        volume : int
            Number of the volume in the store.
        lo, hi : sequence of int
            First byte, and the byte after the last one: depth, height, and byte along the width.

        Returns
        -------
        uint8 array of shape ``hi - lo``
            Eight voxels per byte, lowest bit first.
        """
        bits: UInt8s = self._array.read_box((volume, *lo), (volume + 1, *hi))[0]
        return bits


class WindowedBox(BoxSource):
    """Reads an image limited to a CT window, as float32; optionally scaled to 0…1."""

    dtype = np.dtype(np.float32)

    def __init__(self, image: BoxSource, limits: tuple[float, float], *, scale: bool) -> None:
        self._image = image
        self._limits = limits
        self._scale = scale

    def read(self, volume: int, lo: Sequence[int], hi: Sequence[int], out: AnyArray) -> None:
        stored = np.empty(out.shape, self._image.dtype)
        self._image.read(volume, lo, hi, stored)
        limit(stored, *self._limits, scale=self._scale, out=out)


class SteppedBox(BoxSource):
    """Reads every `step`-th voxel of each axis of another reader, beginning with the first."""

    def __init__(self, box: BoxSource, step: int, extents: Int64s) -> None:
        self._box = box
        self._step = step
        self._extents = extents
        self.dtype = box.dtype

    def read(self, volume: int, lo: Sequence[int], hi: Sequence[int], out: AnyArray) -> None:
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


class PointBox(BoxSource):
    """Reads 0 or 1 per voxel from stored points: ``coords`` (M, 3) in C order, and ``offsets`` (V + 1,)."""

    dtype = np.dtype(np.uint8)

    def __init__(self, store: Store, group: str) -> None:
        require_rule(store, f"{group}/offsets", offsets_of=group)
        self._coords = store.array(f"{group}/coords")
        self._offsets = IndexColumn(store, f"{group}/offsets")

    def read(self, volume: int, lo: Sequence[int], hi: Sequence[int], out: AnyArray) -> None:
        out[...] = 0
        first, last = (int(bound[0]) for bound in self._offsets.ranges(np.array([volume])))
        # points are sorted by depth
        start, stop = (
            first + bisect_left(range(first, last), depth, key=self._depth) for depth in (lo[0], hi[0])
        )
        points = self._coords.read_ranges([start], [stop]).astype(np.int64) - lo
        inside = points[((points >= 0) & (points < np.subtract(hi, lo))).all(axis=1)]
        out[inside[:, 0], inside[:, 1], inside[:, 2]] = 1

    def _depth(self, row: int) -> int:
        return int(self._coords.read_rows([row])[0, 0])


def window_limits(store: Store, name: str) -> tuple[float, float]:
    """Return the lowest and highest value of a CT window.

    Parameters
    ----------
    store : Store
        A CT store with images.
    name : str
        A window of the store, a preset (``"lung"``), or ``"name:width:level"``.

    Returns
    -------
    (float, float)
        Limits in the units of the image.

    Raises
    ------
    InputError
        If the store has no images, or there is no such window.
    CorruptionError
        If the store does not state the limits of its window.
    """
    if not store.has(IMAGE):
        message = f"the window {name!r} needs images, but this store has none"
        raise InputError.at(store.path, message, "convert again with the original CT files", "window")
    path = f"windows/{name}"
    if path in box_sources(store).values():
        held = store.group(path)
        try:
            low = float(held["low"])
            high = float(held["high"])
        except (KeyError, TypeError, ValueError):
            low = high = math.nan
        if not low < high:
            raise contradiction(store, path, "does not state its lowest and highest value")
        return low, high
    window = parse_window(name)
    return window.low, window.high


def box_source(store: Store, group: str) -> BoxSource:
    """Return the reader of an image, or of a window, mask or label by its group."""
    path = array_of(store, group)
    if path is None:
        return PointBox(store, group)
    array = store.array(path)
    return BitBox(array) if path == f"{group}/mask" else ImageBox(array)


def array_of(store: Store, group: str) -> str | None:
    """Return the path of the array with the voxels of a group. None: the group has points."""
    paths = (group, f"{group}/label", f"{group}/mask")
    return next((path for path in paths if store.has(path)), None)


def box_sources(store: Store) -> dict[str, str]:
    """Return the path of each image, and the group of each window, mask and label, by key."""
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
    """Return the path of the extents of the volumes, (V, 3)."""
    path = f"{store.sample_table}/extent"
    return path if store.has(path) else EXTENT


def image_paths(store: Store) -> list[str]:
    """Return the paths of the images: the columns of the table of volumes with three axes of space."""
    table = extent_path(store).rpartition("/")[0]
    paths = table_columns(store, table) if store.has(f"{table}/extent") else []
    return [path for path in paths if len(store.array(path).shape) == _IMAGE_AXES]


def volume_columns(store: Store) -> dict[str, str]:
    """Return the path of each value per volume, by key: ``spacing``, ``origin``, …, ``<mask>_present``."""
    extent = extent_path(store)
    table = extent.rpartition("/")[0]
    columns = table_columns(store, table) if store.has(extent) else []
    numbers = set(columns) - {extent, *image_paths(store)}
    names = sorted(path.removeprefix(f"{table}/") for path in numbers)
    first = [name for name in _COLUMNS if name in names]
    path_of_key = {name: f"{table}/{name}" for name in dict.fromkeys([*first, *names])}
    for key, group in box_sources(store).items():
        if store.has(f"{group}/present"):
            path_of_key[f"{key}_present"] = f"{group}/present"
    return path_of_key


def on_request(store: Store) -> tuple[str, ...]:
    """Return the optional keys of volumes, which are read only if they are named."""
    texts = [key for key in _TEXTS if store.has(f"volumes/{key}/data")]
    return (SOURCE, "extent", *(["affine"] if has_geometry(store) else []), *texts)


class BoxReader:
    """Reads patches of volumes, and values of their volumes.

    Parameters
    ----------
    store : Store
        A CT store.
    fields : sequence of str
        Keys to read.
    pad : Pad
        Value of voxels outside a volume, as in `Patches`.
    step : int
        Every `step`-th voxel of each axis is read.
    window : WindowedBox, optional
        Reader that replaces the reader of the image. None: the image as stored.

    Attributes
    ----------
    extents : int64 array of shape (V, 3)
        Depth, height and width of every volume of the store, in steps.
    boxes : dict of str to BoxSource
        Reader of each key with a value per voxel.
    """

    def __init__(
        self,
        store: Store,
        fields: Sequence[str],
        pad: Pad,
        step: int,  # every `step`-th voxel of each axis is read
        window: WindowedBox | None = None,  # in place of the image
    ) -> None:
        groups = box_sources(store)
        read = [array_of(store, groups[key]) for key in fields if key in groups]
        for path in dict.fromkeys([*image_paths(store), *filter(None, read)]):
            require_rule(store, extent_path(store), limits=path)
        stored = whole(store, extent_path(store)).astype(np.int64)
        self.extents: Int64s = -(-stored // step)
        self.boxes = {key: box_source(store, groups[key]) for key in fields if key in groups}
        if window is not None and "image" in self.boxes:
            self.boxes["image"] = window
        if step > 1:
            self.boxes = {key: SteppedBox(box, step, stored) for key, box in self.boxes.items()}
        images = {key: box.dtype for key, box in self.boxes.items() if store.has(groups[key])}
        self._fills = fill_values(pad, images)
        self._pad = pad
        self._step = step
        texts = {key: f"volumes/{key}" for key in _TEXTS}
        paths = volume_columns(store) | texts | {"extent": extent_path(store)}
        self._values = RowValues(store, fields, paths, None)
        self._geometry = [IndexColumn(store, f"volumes/{name}") for name in LENGTHS if "affine" in fields]

    def read_boxes(
        self,
        volumes: Int64s,
        corners: Int64s,
        shapes: Int64s,
        common: Shape | None,
        allocate: Allocate,
    ) -> Batch:
        """Read a batch of patches, padded if they extend beyond their volume.

        Parameters
        ----------
        volumes : int64 array of shape (B,)
            Volume of each patch.
        corners : int64 array of shape (B, 3)
            First voxel of each patch, in steps.
        shapes : int64 array of shape (B, 3)
            Depth, height and width of each patch, in steps.
        common : tuple of int or None
            Shape of all samples, for a dense batch. None: they differ.
        allocate : callable
            Called as ``allocate(shape, dtype)`` for the memory of the batch.

        Returns
        -------
        dict of str to Packed
            The keys of `fields` that volumes have.
        """
        ends = np.minimum(corners + shapes, self.extents[volumes])
        extents = ends - corners
        is_whole = (extents == shapes).all(axis=1).tolist()
        boxes = list(zip(volumes.tolist(), corners.tolist(), ends.tolist(), strict=True))

        def read(key: str, number: int, out: AnyArray) -> None:
            inside = out if is_whole[number] else np.empty(extents[number], out.dtype)
            self.boxes[key].read(*boxes[number], inside)
            if not is_whole[number]:
                copy_padded(inside, out, self._pad, self._fills.get(key, 0))

        batch: Batch = {}
        for key, box in self.boxes.items():
            batch[key] = packed_boxes("", shapes, common, box.dtype, allocate, partial(read, key))
        batch |= self._values.read(volumes, allocate)
        if "spacing" in batch:
            batch["spacing"].values[...] *= self._step
        if self._geometry:
            spacing, origin, direction = (column.take(volumes) for column in self._geometry)
            affine = affines(self._step * spacing, origin, direction, corners.astype(np.float64))
            batch["affine"] = packed_copy(affine, allocate)
        return batch
