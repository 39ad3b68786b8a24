"""Readers of the fields of a spike-camera store by boxes of frames: voxels, spikes, images."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.images import EncodedImages
from unistore.errors import CorruptionError, InputError
from unistore.schemas.indices import Column
from unistore.schemas.spike.fields import (
    FRAMES,
    IMAGE_EXTENT,
    IMAGES,
    SPIKE,
    SPIKE_EXTENT,
    SPIKE_LENGTH,
    count_dtype,
    file_table_name,
    row_bytes,
    unpack,
    voxel_bins,
    voxel_path,
    voxelize,
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
    """A field with one array per frame."""

    dtype: np.dtype[Any]
    extents: Column
    """Rows and columns of each frame without padding, (F, 2)."""
    channels_last: bool
    """Whether it is read as (…, h, w, 3); samples have (…, 3, h, w)."""

    def shape(self, height: int, width: int) -> tuple[int, ...]:
        """Shape of one frame's crop of `height` x `width` pixels, as read."""
        ...

    def read(self, frames: slice, box: Box, out: NDArray[Any]) -> None:
        """Read a box inside the extent of consecutive frames into contiguous `out`, (frames, *shape)."""
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

    def shape(self, height: int, width: int) -> tuple[int, ...]:
        """See `FrameField.shape`."""
        return height, width, 3

    def read(self, frames: slice, box: Box, out: NDArray[Any]) -> None:
        """See `FrameField.read`."""
        top, left, height, width = box
        if self._pixels is not None:
            lo, hi = (frames.start, top, left, 0), (frames.stop, top + height, left + width, 3)
            self._pixels.read_box(lo, hi, out)
            return
        assert self._encoded is not None
        rows = np.arange(frames.start, frames.stop)
        extents = self.extents.take(rows).tolist()
        for row, target, image in zip(rows.tolist(), out, self._encoded.read(rows), strict=True):
            extent = extents[row - frames.start]
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

    def shape(self, height: int, width: int) -> tuple[int, ...]:
        """See `FrameField.shape`."""
        return self._bins, height, width

    def read(self, frames: slice, box: Box, out: NDArray[Any]) -> None:
        """See `FrameField.read`."""
        top, left, height, width = box
        lo, hi = (frames.start, 0, top, left), (frames.stop, self._bins, top + height, left + width)
        self._array.read_box(lo, hi, out)


class Spikes:
    """Spikes (T, h, w) of a frame, as 0 and 1 or packed bits; T is that of the longest frame."""

    dtype = np.dtype(np.uint8)
    channels_last = False

    def __init__(self, store: Store, *, packed: bool = False) -> None:
        self._spikes = _PackedSpikes(store)
        self.extents = self._spikes.extents
        self._packed = packed

    def shape(self, height: int, width: int) -> tuple[int, ...]:
        """See `FrameField.shape`."""
        return self._spikes.steps, height, row_bytes(width) if self._packed else width

    def read(self, frames: slice, box: Box, out: NDArray[Any]) -> None:
        """See `FrameField.read`."""
        bits = self._spikes.read(frames, box)
        if self._packed:
            _shift_bits(bits, box.left % 8, box.width, out)
        else:
            out[...] = unpack(bits, box.width, box.left % 8)


def _shift_bits(bits: NDArray[np.uint8], left: int, width: int, out: NDArray[np.uint8]) -> None:
    """Copy `width` bits of every row from bit `left` on, padded with zeros to whole bytes."""
    columns = out.shape[-1]
    if left:
        np.right_shift(bits[..., :columns], np.uint8(left), out=out)
        carried = bits[..., 1 : columns + 1]
        out[..., : carried.shape[-1]] |= carried << np.uint8(8 - left)
    else:
        out[...] = bits[..., :columns]
    if width % 8:
        out[..., -1] &= np.uint8((1 << width % 8) - 1)


class ComputedVoxels:
    """A voxel set computed from the spikes of the crop; equal to a stored one."""

    channels_last = False

    def __init__(self, store: Store, bins: int) -> None:
        self._spikes = _PackedSpikes(store)
        self.extents = self._spikes.extents
        self._lengths = Column(store, SPIKE_LENGTH)
        self._bins = bins
        self.dtype = np.dtype(count_dtype(self._spikes.steps, bins))

    def shape(self, height: int, width: int) -> tuple[int, ...]:
        """See `FrameField.shape`."""
        return self._bins, height, width

    def read(self, frames: slice, box: Box, out: NDArray[Any]) -> None:
        """See `FrameField.read`."""
        bits = self._spikes.read(frames, box)
        lengths = self._lengths.take(np.arange(frames.start, frames.stop)).tolist()
        for target, frame, length in zip(out, bits, lengths, strict=True):
            voxelize(frame[:length], box.width, self._bins, left=box.left % 8, out=target)


class _PackedSpikes:
    """Packed spikes ``frames/spike`` (F, T, H, ⌈W/8⌉)."""

    def __init__(self, store: Store) -> None:
        self._array: StoredArray = store.array(SPIKE)
        self.extents = Column(store, SPIKE_EXTENT)
        self.steps = self._array.shape[1]

    def read(self, frames: slice, box: Box) -> NDArray[np.uint8]:
        """Bytes (frames, T, height, bytes) with the crop, whose first pixel is at bit ``left % 8``."""
        lo = (frames.start, 0, box.top, box.left // 8)
        hi = (frames.stop, self.steps, box.top + box.height, row_bytes(box.left + box.width))
        return self._array.read_box(lo, hi)


def stored_bins(store: Store) -> list[int]:
    """Numbers of bins of the stored voxel sets, ascending."""
    return sorted(bins for path in store.paths() if (bins := voxel_bins(path)) is not None)


def frame_fields(store: Store) -> tuple[list[str], list[str]]:
    """Default keys of clips, and keys on request."""
    images = [name for name in IMAGES if _has_image(store, name)]
    raw = ["spike", "spike_length"] if store.has(SPIKE) else []
    bits = ["spike_packed"] if store.has(SPIKE) else []
    if stored_bins(store):
        return ["voxel", *images], [*raw, *bits]
    return [*raw, *images], [*bits, *(["voxel"] if raw else [])]


def frame_field(store: Store, key: str, bins: int | None) -> FrameField:
    """Reader of ``voxel``, ``spike``, ``spike_packed``, ``blur`` or ``sharp``.

    Raises
    ------
    InputError
        If voxels are requested that are neither stored nor can be computed from spikes.
    """
    if key in IMAGES:
        return Images(store, key)
    if key != "voxel":
        return Spikes(store, packed=key == "spike_packed")
    stored = stored_bins(store)
    chosen = stored[0] if bins is None and stored else bins
    if chosen in stored:
        return StoredVoxels(store, chosen)
    if chosen is None or not store.has(SPIKE):
        listed = ", ".join(map(str, stored)) or "none"
        reason = "give the number of bins as voxel_bins" if chosen is None else f"no voxels of {chosen} bins"
        msg = f"{store.path}: {reason}; stored numbers of bins: {listed}"
        raise InputError(msg)
    return ComputedVoxels(store, chosen)


def _has_image(store: Store, name: str) -> bool:
    return store.has(f"{FRAMES}/{name}") or store.has(f"{file_table_name(name)}/data")
