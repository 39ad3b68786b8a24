"""Read the fields of a spike-camera store: crops of frames and time steps, and images made of spikes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.columns import EncodedImages
from unistore.errors import CorruptionError
from unistore.schemas.indices import IndexColumn, require_rule, whole
from unistore.schemas.spike.fields import (
    BITS,
    FRAME_OFFSETS,
    FRAMES,
    IMAGE_EXTENT,
    IMAGES,
    SPIKE_EXTENT,
    count_dtype,
    file_table_name,
    row_bytes,
    voxel_bins,
    voxel_path,
    voxelize,
)
from unistore.schemas.tables import unpack
from unistore.store.reader import Store
from unistore.system.arguments import wrong_argument
from unistore.system.types import AnyArray, Shape, UInt8s

Float32s: TypeAlias = NDArray[np.float32]

_CACHED_PIXELS = 1 << 20  # Pixels that are unpacked at a time: they stay in the cache until they are copied


_U1 = np.dtype(np.uint8)


@dataclass(frozen=True, slots=True)
class StepsView:
    """A form in which the spikes of consecutive time steps are delivered.

    Attributes
    ----------
    shape : callable
        ``shape(steps, height, width)`` returns the shape of the result.
    fill : callable
        ``fill(bits, left, width, out)`` writes the result. `bits` is uint8 (t, h, bytes), lowest bit
        first, with the first of `width` pixels at bit `left` of each row. `out` may have memory for more
        steps than t.
    dtype : numpy.dtype, default uint8
        Dtype of the result.
    """

    shape: Callable[[int, int, int], Shape]
    fill: Callable[[UInt8s, int, int, AnyArray], None]
    dtype: np.dtype[Any] = _U1


def _fill_pixels(bits: UInt8s, left: int, width: int, out: AnyArray) -> None:
    together = max(1, _CACHED_PIXELS // max(1, bits[0].size * 8)) if len(bits) else 1
    for start in range(0, len(bits), together):
        part = bits[start : start + together]
        out[start : start + len(part)] = unpack(part, width, left)
    out[len(bits) :] = 0


def _fill_bits(bits: UInt8s, left: int, width: int, out: AnyArray) -> None:
    _shift_bits(bits, left, width, out[: len(bits)])
    out[len(bits) :] = 0


def _fill_voxels(bits: UInt8s, left: int, width: int, out: AnyArray) -> None:
    voxelize(bits, width, len(out), left=left, out=out)


def _fill_picture(
    rule: Callable[[UInt8s, int, int], Float32s], bits: UInt8s, left: int, width: int, out: AnyArray
) -> None:
    out[...] = rule(bits, left, width)


def voxels(bins: int, most_steps: int) -> StepsView:
    """Return the form of spikes counted in `bins` bins of time: (B, h, w).

    Parameters
    ----------
    bins : int
        Number of bins B.
    most_steps : int
        Largest number of time steps, which determines the dtype of the counts.
    """
    dtype = np.dtype(count_dtype(most_steps, bins))
    return StepsView(lambda _, height, width: (bins, height, width), _fill_voxels, dtype)


def _shift_bits(bits: UInt8s, left: int, width: int, out: UInt8s) -> None:
    # Rows are padded with zeros to whole bytes
    columns = out.shape[-1]
    if left:
        np.right_shift(bits[..., :columns], np.uint8(left), out=out)
        carried = bits[..., 1 : columns + 1]
        out[..., : carried.shape[-1]] |= carried << np.uint8(8 - left)
    elif bits is not out:
        out[...] = bits[..., :columns]
    if width % 8:
        out[..., -1] &= np.uint8((1 << width % 8) - 1)


def tfp(bits: UInt8s, left: int, width: int) -> Float32s:
    """Return a grey image by "texture from playback": the mean of the spikes of each pixel.

    n spikes in T steps give n / T; grey levels are 255 n / T. See Zhu, Dong, Huang and Tian, "A
    retina-inspired sampling method for visual texture reconstruction", ICME 2019,
    doi:10.1109/ICME.2019.00248.

    Parameters
    ----------
    bits : uint8 array of shape (T, h, bytes)
        Spikes as bits, lowest bit first.
    left : int
        Bit of the first pixel of each row.
    width : int
        Number of pixels of a row.

    Returns
    -------
    float32 array of shape (h, width)
        Values from 0 to 1.
    """
    counts = voxelize(bits, width, 1, left=left)[0]
    mean: Float32s = counts.astype(np.float32) / np.float32(max(1, len(bits)))
    return mean


def tfi(bits: UInt8s, left: int, width: int) -> Float32s:
    """Return a grey image by "texture from interval": the interval between the spikes around the middle.

    With the last spike up to step T // 2 at step a, and the next one at step b, the value is 1 / (b - a);
    grey levels are 255 / (b - a). See Zhu, Dong, Huang and Tian, "A retina-inspired sampling method for
    visual texture reconstruction", ICME 2019, doi:10.1109/ICME.2019.00248.

    Parameters
    ----------
    bits : uint8 array of shape (T, h, bytes)
        Spikes as bits, lowest bit first.
    left : int
        Bit of the first pixel of each row.
    width : int
        Number of pixels of a row.

    Returns
    -------
    float32 array of shape (h, width)
        Values from 0 to 1. 0 if a pixel does not have both spikes.
    """
    middle = len(bits) // 2 + 1
    before = _steps_behind(bits[:middle][::-1], left, width)
    behind = _steps_behind(bits[middle:], left, width)
    has_both = (before > 0) & (behind > 0)
    # both counts begin at the first spike, so that what they lack is the interval
    interval = np.float32(len(bits) + 1) - before - behind
    values: Float32s = np.divide(1, interval, out=np.zeros_like(interval), where=has_both)
    return values


def _steps_behind(bits: UInt8s, left: int, width: int) -> Float32s:
    # 0 where a pixel has no spike
    fired = np.bitwise_or.accumulate(bits, axis=0)
    steps: Float32s = voxelize(fired, width, 1, left=left)[0].astype(np.float32)
    return steps


_PICTURE = partial(StepsView, lambda _, height, width: (height, width), dtype=np.dtype(np.float32))
PIXELS = StepsView(lambda steps, height, width: (steps, height, width), _fill_pixels)
PACKED_BITS = StepsView(lambda steps, height, width: (steps, height, row_bytes(width)), _fill_bits)
# Views of spikes by key: 0 and 1 (T, h, w), bits (T, h, ⌈w/8⌉), gray pictures (h, w)
VIEWS = {
    "spike": PIXELS,
    "spike_packed": PACKED_BITS,
    "tfp": _PICTURE(partial(_fill_picture, tfp)),
    "tfi": _PICTURE(partial(_fill_picture, tfi)),
}


class Box(NamedTuple):
    """A crop, in pixels of a field: first row and column, number of rows and columns."""

    top: int
    left: int
    height: int
    width: int


class Images:
    """Reads ``frames/blur`` or ``frames/sharp``, (L, h, w, 3) uint8, stored as an array or as image files."""

    dtype = np.dtype(np.uint8)

    def __init__(self, store: Store, name: str) -> None:
        self._extents = IndexColumn(store, IMAGE_EXTENT)
        path = f"{FRAMES}/{name}"
        self._pixels = store.array(path) if store.has(path) else None
        if self._pixels is not None:
            require_rule(store, IMAGE_EXTENT, limits=path)
        self._encoded = None if self._pixels is not None else EncodedImages(store, file_table_name(name))

    def shape(self, count: int, height: int, width: int) -> Shape:
        """Return the shape of `count` frames with these rows and columns."""
        return count, height, width, 3

    def read(self, rows: slice, box: Box, out: AnyArray) -> None:
        """Read a crop of some frames into `out`.

        Parameters
        ----------
        rows : slice
            Frames of the store, with start and stop.
        box : Box
            The crop, in pixels of the images.
        out : C-contiguous array
            Receives the values, in the shape that `shape` returns.

        Raises
        ------
        CorruptionError
            If an image does not have the stored extent.
        """
        top, left, height, width = box
        if self._pixels is not None:
            lo = (rows.start, top, left, 0)
            self._pixels.read_box(lo, (rows.stop, top + height, left + width, 3), out)
            return
        assert self._encoded is not None
        frames = np.arange(rows.start, rows.stop)
        images = self._encoded.read(frames)
        for frame, extent, target, image in zip(
            frames, self._extents.take(frames).tolist(), out, images, strict=True
        ):
            if image.shape != (*extent, 3):
                msg = (
                    f"{self._encoded.path}: frame {frame:,} has the shape {image.shape}, "
                    f"expected {(*extent, 3)}"
                )
                raise CorruptionError(msg)
            target[...] = image[top : top + height, left : left + width]


class StoredVoxels:
    """Reads a stored set of voxels, (L, B, h, w)."""

    def __init__(self, store: Store, bins: int) -> None:
        self._array = store.array(voxel_path(bins))
        require_rule(store, SPIKE_EXTENT, limits=voxel_path(bins))
        self.dtype = self._array.dtype
        self._bins = bins

    def shape(self, count: int, height: int, width: int) -> Shape:
        """Return the shape of `count` frames with these rows and columns."""
        return count, self._bins, height, width

    def read(self, rows: slice, box: Box, out: AnyArray) -> None:
        """Read a crop of some frames into `out`; see `Images.read`."""
        top, left, height, width = box
        hi = (rows.stop, self._bins, top + height, left + width)
        self._array.read_box((rows.start, 0, top, left), hi, out)


class StepSpikes:
    """Reads time steps in one of the forms of spikes."""

    def __init__(self, store: Store, view: StepsView) -> None:
        self._bits = store.array(BITS)
        require_rule(store, SPIKE_EXTENT, limits=BITS)
        self._view = view
        self.dtype = view.dtype

    def shape(self, count: int, height: int, width: int) -> Shape:
        """Return the shape of `count` time steps with these rows and columns."""
        return self._view.shape(count, height, width)

    def read(self, rows: slice, box: Box, out: AnyArray) -> None:
        """Read a crop of some time steps, by their rows in the store, into `out`; see `Images.read`."""
        is_as_stored = self._view is PACKED_BITS and box.left % 8 == 0
        bits = self._read_bits(rows.start, rows.stop, box, out if is_as_stored else None)
        self._view.fill(bits, box.left % 8, box.width, out)

    def _read_bits(self, first: int, last: int, box: Box, out: UInt8s | None = None) -> UInt8s:
        # The crop's first pixel is at bit ``left % 8``
        hi = (last, box.top + box.height, row_bytes(box.left + box.width))
        return self._bits.read_box((first, box.top, box.left // 8), hi, out)


class FrameSpikes(StepSpikes):
    """Reads the spikes of each frame of a clip in one of the forms. T is the length of the longest frame."""

    def __init__(self, store: Store, view: StepsView) -> None:
        super().__init__(store, view)
        self._offsets = IndexColumn(store, FRAME_OFFSETS)
        self._longest = longest_frame(store)

    def shape(self, count: int, height: int, width: int) -> Shape:
        return count, *self._view.shape(self._longest, height, width)

    def read(self, rows: slice, box: Box, out: AnyArray) -> None:
        bounds = self._offsets.take(np.arange(rows.start, rows.stop + 1))
        bits = self._read_bits(int(bounds[0]), int(bounds[-1]), box)
        frames = np.split(bits, bounds[1:-1] - bounds[0])
        for target, frame in zip(out, frames, strict=True):
            self._view.fill(frame, box.left % 8, box.width, target)


# What is read of consecutive rows, of frames or of time steps: the shape of a crop, and its values
FrameField: TypeAlias = Images | StoredVoxels | StepSpikes


def longest_frame(store: Store) -> int:
    """Return the number of time steps of the longest frame of a store."""
    return int(np.diff(whole(store, FRAME_OFFSETS)).max(initial=0))


def _stored_bins(store: Store) -> list[int]:
    return sorted(bins for path in store.paths() if (bins := voxel_bins(path)) is not None)


def frame_fields(store: Store) -> tuple[list[str], list[str]]:
    """Return the default keys of clips, and their optional keys."""
    paths = {name: (f"{FRAMES}/{name}", f"{file_table_name(name)}/data") for name in IMAGES}
    images = [name for name in IMAGES if any(map(store.has, paths[name]))]
    raw = ["spike", "spike_length"] if store.has(BITS) else []
    views = [key for key in VIEWS if key != "spike"] if raw else []
    if _stored_bins(store):
        return ["voxel", *images], [*raw, *views]
    return [*raw, *images], [*views, *(["voxel"] if raw else [])]


def frame_field(store: Store, key: str, bins: int | None) -> FrameField:
    """Return the reader of a field of frames.

    Parameters
    ----------
    store : Store
        A spike-camera store.
    key : str
        ``"voxel"``, ``"blur"``, ``"sharp"``, or a form of spikes.
    bins : int or None
        Number of bins of voxels. None: the stored set; of several, the one with the fewest bins.

    Returns
    -------
    Images, StoredVoxels or StepSpikes
        A stored set of voxels, or one that is computed from the spikes.

    Raises
    ------
    InputError
        If the store has neither these voxels nor spikes to compute them from.
    """
    if key in IMAGES:
        return Images(store, key)
    if key in VIEWS:
        return FrameSpikes(store, VIEWS[key])
    stored = _stored_bins(store)
    chosen = stored[0] if bins is None and stored else bins
    if chosen in stored:
        return StoredVoxels(store, chosen)
    if chosen is None or not store.has(BITS):
        if chosen is None:
            raise wrong_argument(
                "voxel_bins", f"{store.path} stores no voxels", "give voxel_bins, for example 5"
            )
        shown = ", ".join(map(str, stored))
        message = f"{store.path} has no voxels with {chosen} bins, and no spikes to compute them"
        raise wrong_argument("voxel_bins", message, f"use one of {shown}" if stored else "")
    return FrameSpikes(store, voxels(chosen, longest_frame(store)))
