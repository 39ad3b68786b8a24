"""Fields of a spike-camera store, read as boxes of consecutive frames: voxels, spikes, images."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.images import KeptImages
from unistore.errors import CorruptionError, InputError
from unistore.schemas.indices import Column
from unistore.schemas.spike.bits import count_dtype, row_bytes, unpack, voxelize
from unistore.schemas.spike.fields import (
    FRAMES,
    IMAGE_EXTENT,
    IMAGES,
    SPIKE,
    SPIKE_EXTENT,
    SPIKE_LENGTH,
    file_table_name,
    voxel_bins,
    voxel_path,
)
from unistore.store.reader import Store
from unistore.zarr3.array import Array

__all__ = ["Box", "FrameField", "frame_field", "frame_fields"]


class Box(NamedTuple):
    """A crop in pixels of a field."""

    top: int
    left: int
    height: int
    width: int


class FrameField(Protocol):
    """Something that every frame has, row by column."""

    dtype: np.dtype[Any]
    extents: Column
    """True rows and columns of each frame, (F, 2)."""
    channels_last: bool
    """Whether it is read (…, h, w, 3), to be handed out (…, 3, h, w)."""

    def shape(self, height: int, width: int) -> tuple[int, ...]:
        """Shape of one frame's crop of `height` x `width` pixels, as it is read."""
        ...

    def read(self, frames: slice, box: Box, out: NDArray[Any]) -> None:
        """Read a box of consecutive frames, inside their extent, into `out`, contiguous (frames, *shape)."""
        ...


class Images:
    """``frames/blur`` or ``frames/sharp``, stored as tiles or as the source's files."""

    dtype = np.dtype(np.uint8)
    channels_last = True

    def __init__(self, store: Store, name: str) -> None:
        self.extents = Column(store, IMAGE_EXTENT)
        files = file_table_name(name)
        tiles = store.has(f"{FRAMES}/{name}")
        self._tiles = store.array(f"{FRAMES}/{name}") if tiles else None
        self._kept = None if tiles else KeptImages(store, files)

    def shape(self, height: int, width: int) -> tuple[int, ...]:
        """See `FrameField.shape`."""
        return height, width, 3

    def read(self, frames: slice, box: Box, out: NDArray[Any]) -> None:
        """See `FrameField.read`."""
        top, left, height, width = box
        if self._tiles is not None:
            lo, hi = (frames.start, top, left, 0), (frames.stop, top + height, left + width, 3)
            self._tiles.read_box(lo, hi, out)
            return
        assert self._kept is not None
        rows = np.arange(frames.start, frames.stop)
        extents = self.extents.take(rows).tolist()
        for row, target, image in zip(rows.tolist(), out, self._kept.read(rows), strict=True):
            extent = extents[row - frames.start]
            if image.shape != (*extent, 3):
                msg = f"{self._kept.path}: frame {row} is {image.shape}, expected {(*extent, 3)}"
                raise CorruptionError(msg)
            target[...] = image[top : top + height, left : left + width]


class StoredVoxels:
    """A voxel set of the store."""

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
    """Spikes of a frame, unpacked to 0 and 1 or as bits; (T, h, w) with T of the longest frame."""

    dtype = np.dtype(np.uint8)
    channels_last = False

    def __init__(self, store: Store, *, packed: bool = False) -> None:
        self._bits = _Bits(store)
        self.extents = self._bits.extents
        self._packed = packed

    def shape(self, height: int, width: int) -> tuple[int, ...]:
        """See `FrameField.shape`."""
        return self._bits.steps, height, row_bytes(width) if self._packed else width

    def read(self, frames: slice, box: Box, out: NDArray[Any]) -> None:
        """See `FrameField.read`."""
        bits = self._bits.read(frames, box)
        if self._packed:
            _cut(bits, box.left % 8, box.width, out)
        else:
            out[...] = unpack(bits, box.width, box.left % 8)


def _cut(bits: NDArray[np.uint8], left: int, width: int, out: NDArray[np.uint8]) -> None:
    """`width` bits from bit `left` of every row on, padded with zeros to whole bytes."""
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
    """A voxel set computed from the bits of the crop; equals a stored one bit for bit."""

    channels_last = False

    def __init__(self, store: Store, bins: int) -> None:
        self._bits = _Bits(store)
        self.extents = self._bits.extents
        self._lengths = Column(store, SPIKE_LENGTH)
        self._bins = bins
        self.dtype = np.dtype(count_dtype(self._bits.steps, bins))

    def shape(self, height: int, width: int) -> tuple[int, ...]:
        """See `FrameField.shape`."""
        return self._bins, height, width

    def read(self, frames: slice, box: Box, out: NDArray[Any]) -> None:
        """See `FrameField.read`."""
        bits = self._bits.read(frames, box)
        lengths = self._lengths.take(np.arange(frames.start, frames.stop)).tolist()
        for target, frame, length in zip(out, bits, lengths, strict=True):
            voxelize(frame[:length], box.width, self._bins, left=box.left % 8, out=target)


class _Bits:
    """``frames/spike`` (F, T, H, ⌈W/8⌉)."""

    def __init__(self, store: Store) -> None:
        self._array: Array = store.array(SPIKE)
        self.extents = Column(store, SPIKE_EXTENT)
        self.steps = self._array.shape[1]

    def read(self, frames: slice, box: Box) -> NDArray[np.uint8]:
        """Bytes that hold a crop: (frames, T, height, bytes), its first pixel at bit ``left % 8``."""
        lo = (frames.start, 0, box.top, box.left // 8)
        hi = (frames.stop, self.steps, box.top + box.height, row_bytes(box.left + box.width))
        return self._array.read_box(lo, hi)


def stored_bins(store: Store) -> list[int]:
    """Bins of the voxel sets of a store, ascending."""
    return sorted(bins for path in store.paths() if (bins := voxel_bins(path)) is not None)


def frame_fields(store: Store) -> tuple[list[str], list[str]]:
    """Keys that clips of a store have by themselves, and those they have on request."""
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
        If voxels are wanted that the store neither holds nor has spikes to compute from.
    """
    if key in IMAGES:
        return Images(store, key)
    if key != "voxel":
        return Spikes(store, packed=key == "spike_packed")
    held = stored_bins(store)
    chosen = held[0] if bins is None and held else bins
    if chosen in held:
        return StoredVoxels(store, chosen)
    if chosen is None or not store.has(SPIKE):
        listed = ", ".join(map(str, held)) or "none"
        wanted = "name the bins with voxel_bins" if chosen is None else f"no voxels of {chosen} bins"
        msg = f"{store.path}: {wanted}; the store holds sets of: {listed}"
        raise InputError(msg)
    return ComputedVoxels(store, chosen)


def _has_image(store: Store, name: str) -> bool:
    return store.has(f"{FRAMES}/{name}") or store.has(f"{file_table_name(name)}/data")
