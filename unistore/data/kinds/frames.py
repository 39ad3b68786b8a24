"""Readers of the fields of a spike-camera store by boxes of frames and of time steps."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.images import EncodedImages
from unistore.data.kinds.spike_views import VIEWS, PackedBits, View, Voxels
from unistore.errors import CorruptionError, InputError
from unistore.schemas.indices import Column, whole
from unistore.schemas.spike.fields import (
    BITS,
    FRAME_OFFSETS,
    FRAMES,
    IMAGE_EXTENT,
    IMAGES,
    SPIKE_EXTENT,
    file_table_name,
    row_bytes,
    voxel_bins,
    voxel_path,
)
from unistore.store.reader import Store
from unistore.zarr3.array import StoredArray


class Box(NamedTuple):
    """A crop in pixels of a field."""

    top: int
    left: int
    height: int
    width: int


class FrameField(Protocol):
    """What is read of consecutive rows: of frames, or of time steps."""

    dtype: np.dtype[Any]
    extents: Column
    """Rows and columns of each frame without padding, (F, 2)."""
    channels_last: bool
    """Whether it is read as (…, h, w, 3); samples have (…, 3, h, w)."""

    def shape(self, count: int, height: int, width: int) -> tuple[int, ...]:
        """Shape of the crop of `height` x `width` pixels of `count` rows, as read."""
        ...

    def read(self, rows: slice, box: Box, out: NDArray[Any]) -> None:
        """Read a box inside the extent of consecutive rows into contiguous `out`."""
        ...


class Images:
    """``frames/blur`` or ``frames/sharp``, stored as an array or as compressed files."""

    dtype = np.dtype(np.uint8)
    channels_last = True

    def __init__(self, store: Store, name: str) -> None:
        self.extents = Column(store, IMAGE_EXTENT)
        path = f"{FRAMES}/{name}"
        self._pixels = store.array(path) if store.has(path) else None
        self._encoded = None if self._pixels is not None else EncodedImages(store, file_table_name(name))

    def shape(self, count: int, height: int, width: int) -> tuple[int, ...]:
        """See `FrameField.shape`."""
        return count, height, width, 3

    def read(self, rows: slice, box: Box, out: NDArray[Any]) -> None:
        """See `FrameField.read`."""
        top, left, height, width = box
        if self._pixels is not None:
            lo = (rows.start, top, left, 0)
            hi = (rows.stop, top + height, left + width, 3)
            self._pixels.read_box(lo, hi, out)
            return
        assert self._encoded is not None
        frames = np.arange(rows.start, rows.stop)
        extents = self.extents.take(frames).tolist()
        for row, target, image in zip(frames.tolist(), out, self._encoded.read(frames), strict=True):
            extent = extents[row - rows.start]
            if image.shape != (*extent, 3):
                msg = f"{self._encoded.path}: frame {row} is {image.shape}, expected {(*extent, 3)}"
                raise CorruptionError(msg)
            target[...] = image[top : top + height, left : left + width]


class StoredVoxels:
    """A stored voxel set."""

    channels_last = False

    def __init__(self, store: Store, bins: int) -> None:
        self._array = store.array(voxel_path(bins))
        self.extents = Column(store, SPIKE_EXTENT)
        self.dtype = self._array.dtype
        self._bins = bins

    def shape(self, count: int, height: int, width: int) -> tuple[int, ...]:
        """See `FrameField.shape`."""
        return count, self._bins, height, width

    def read(self, rows: slice, box: Box, out: NDArray[Any]) -> None:
        """See `FrameField.read`."""
        top, left, height, width = box
        lo = (rows.start, 0, top, left)
        hi = (rows.stop, self._bins, top + height, left + width)
        self._array.read_box(lo, hi, out)


class FrameSpikes:
    """A view of the spikes of each frame of a clip; T is that of the longest frame of the store."""

    channels_last = False

    def __init__(self, store: Store, view: View) -> None:
        self._bits: StoredArray = store.array(BITS)
        self._offsets = Column(store, FRAME_OFFSETS)
        self._view = view
        self.extents = Column(store, SPIKE_EXTENT)
        self.dtype = view.dtype
        self._longest = longest_frame(store)

    def shape(self, count: int, height: int, width: int) -> tuple[int, ...]:
        """See `FrameField.shape`."""
        return count, *self._view.shape(self._longest, height, width)

    def read(self, rows: slice, box: Box, out: NDArray[Any]) -> None:
        """See `FrameField.read`."""
        bounds = self._offsets.take(np.arange(rows.start, rows.stop + 1))
        bits = _read_bits(self._bits, int(bounds[0]), int(bounds[-1]), box)
        frames = np.split(bits, bounds[1:-1] - bounds[0])
        for target, frame in zip(out, frames, strict=True):
            self._view.fill(frame, box.left % 8, box.width, target)


class StepSpikes:
    """A view of some time steps."""

    channels_last = False

    def __init__(self, store: Store, view: View) -> None:
        self._bits: StoredArray = store.array(BITS)
        self._view = view
        self.extents = Column(store, SPIKE_EXTENT)
        self.dtype = view.dtype

    def shape(self, count: int, height: int, width: int) -> tuple[int, ...]:
        """See `FrameField.shape`."""
        return self._view.shape(count, height, width)

    def read(self, rows: slice, box: Box, out: NDArray[Any]) -> None:
        """See `FrameField.read`."""
        is_as_stored = isinstance(self._view, PackedBits) and box.left % 8 == 0
        bits = _read_bits(self._bits, rows.start, rows.stop, box, out if is_as_stored else None)
        self._view.fill(bits, box.left % 8, box.width, out)


def _read_bits(
    array: StoredArray, first: int, last: int, box: Box, out: NDArray[np.uint8] | None = None
) -> NDArray[np.uint8]:
    """Read bytes (t, height, bytes) with the crop, whose first pixel is at bit ``left % 8``."""
    lo = (first, box.top, box.left // 8)
    hi = (last, box.top + box.height, row_bytes(box.left + box.width))
    return array.read_box(lo, hi, out)


def longest_frame(store: Store) -> int:
    """Time steps of the longest frame of a store."""
    return int(np.diff(whole(store, FRAME_OFFSETS)).max(initial=0))


def stored_bins(store: Store) -> list[int]:
    """Numbers of bins of the stored voxel sets, ascending."""
    return sorted(bins for path in store.paths() if (bins := voxel_bins(path)) is not None)


def frame_fields(store: Store) -> tuple[list[str], list[str]]:
    """Default keys of clips, and keys on request."""
    images = [name for name in IMAGES if _has_image(store, name)]
    raw = ["spike", "spike_length"] if store.has(BITS) else []
    views = [key for key in VIEWS if key != "spike"] if raw else []
    if stored_bins(store):
        return ["voxel", *images], [*raw, *views]
    return [*raw, *images], [*views, *(["voxel"] if raw else [])]


def frame_field(store: Store, key: str, bins: int | None) -> FrameField:
    """Reader of ``voxel``, ``blur``, ``sharp`` or one of `VIEWS`.

    Raises
    ------
    InputError
        If voxels are requested that are neither stored nor can be computed from spikes.
    """
    if key in IMAGES:
        return Images(store, key)
    if key in VIEWS:
        return FrameSpikes(store, VIEWS[key])
    stored = stored_bins(store)
    chosen = stored[0] if bins is None and stored else bins
    if chosen in stored:
        return StoredVoxels(store, chosen)
    if chosen is None or not store.has(BITS):
        listed = ", ".join(map(str, stored)) or "none"
        reason = "give the number of bins as voxel_bins" if chosen is None else f"no voxels of {chosen} bins"
        msg = f"{store.path}: {reason}; stored numbers of bins: {listed}"
        raise InputError(msg)
    return FrameSpikes(store, Voxels(chosen, longest_frame(store)))


def _has_image(store: Store, name: str) -> bool:
    return store.has(f"{FRAMES}/{name}") or store.has(f"{file_table_name(name)}/data")
