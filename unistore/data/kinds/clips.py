"""One sample = a few consecutive frames of one spike-camera sequence, cropped alike in every field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.frames import Box, FrameField, frame_field, frame_fields
from unistore.data.kinds.padding import Pad, check_pad, copy_padded, fill_values, normalize_pad, valid_masks
from unistore.data.kinds.protocol import SOURCE, Picks, SourceNames, require_arrays, select_keys
from unistore.data.kinds.reach import Reach
from unistore.data.kinds.spike_views import VIEWS
from unistore.data.packed import Allocate, Batch, Packed, offsets_from_lengths, packed_copy
from unistore.schemas.indices import Column, whole
from unistore.schemas.spike.fields import (
    FRAME_OFFSETS,
    FRAME_SOURCE,
    IMAGE_EXTENT,
    IMAGES,
    SEQUENCE_NAME,
    SEQUENCE_OFFSETS,
    SPIKE_EXTENT,
    unpack,
)
from unistore.schemas.spike.specs import require_version_2
from unistore.store.reader import Store
from unistore.system.arguments import Arguments

# Crops in image coordinates, applied to fields of different resolutions.

# Largest spacing of corners, in image pixels, used to have a crop begin at whole pixels in every field
_MAX_STEP = 16


@dataclass(frozen=True, slots=True)
class Boxes:
    """The boxes of a batch of crops in one field.

    Attributes
    ----------
    corner
        (B, 2) int64: first row and column.
    size
        (B, 2) int64: rows and columns of the crop.
    extent
        (B, 2) int64: rows and columns of the field.
    """

    corner: NDArray[np.int64]
    size: NDArray[np.int64]
    extent: NDArray[np.int64]

    @property
    def inside(self) -> NDArray[np.int64]:
        """(B, 2) int64: rows and columns of the crop inside the field."""
        inside: NDArray[np.int64] = np.minimum(self.size, self.extent - self.corner)
        return inside


@dataclass(frozen=True, slots=True)
class Crop:
    """How clips are cropped.

    Parameters
    ----------
    size
        Rows and columns in image pixels; None: whole frames.
    random
        True: a uniform corner, different in each epoch. False: the centre.
    """

    size: tuple[int, int] | None
    random: bool

    def sizes(self, image: NDArray[np.int64], field: NDArray[np.int64]) -> NDArray[np.int64]:
        """Size of a crop in a field.

        Parameters
        ----------
        image, field
            (…, 2) extents of the frame's images and of the field.

        Returns
        -------
        (…, 2) int64: rows and columns, the crop's share of the image times the field's extent, at least 1.
        """
        if self.size is None:
            return field
        shares = (2 * np.array(self.size) * field + image) // (2 * np.maximum(image, 1))
        sizes: NDArray[np.int64] = np.maximum(1, shares)
        return sizes

    def corners(self, picks: Picks, image: NDArray[np.int64], field: NDArray[np.int64]) -> NDArray[np.int64]:
        """Corners (B, 2) in image pixels.

        If the ratio of the resolutions is simple, corners are at whole pixels of the other field, too: 720
        rows of image and 360 rows of spikes give even corners.

        Parameters
        ----------
        picks
            The batch.
        image, field
            (B, 2) extents of the images, and of the field with another resolution.
        """
        if self.size is None:
            return np.zeros_like(image)
        step = image // np.maximum(1, np.gcd(image, field))
        step = np.where(step <= _MAX_STEP, np.maximum(step, 1), 1)
        counts = np.maximum(image - np.array(self.size), 0) // step + 1
        number = picks.below(counts) if self.random else (counts - 1) // 2
        corners: NDArray[np.int64] = number * step
        return corners

    def boxes(self, corners: NDArray[np.int64], image: NDArray[np.int64], field: NDArray[np.int64]) -> Boxes:
        """Boxes of the crops at `corners` in a field of extents `field`, (B, 2)."""
        size = self.sizes(image, field)
        corner = corners * field // np.maximum(image, 1)
        return Boxes(np.minimum(corner, np.maximum(field - size, 0)), size, field)


# Reads one field of clips: crops, padded if frames are smaller, ragged if crops differ in size.


def common_size(crop: Crop, image: NDArray[np.int64], extents: NDArray[Any]) -> tuple[int, ...] | None:
    """Common rows and columns of the crops of all clips in a field; None if they differ or there are none.

    Parameters
    ----------
    image, extents
        (clips, 2): rows and columns of the images, and of the field.
    """
    sizes = crop.sizes(image, extents.astype(np.int64))
    return tuple(sizes[0].tolist()) if len(sizes) and (sizes == sizes[:1]).all() else None


class CroppedField:
    """Reads the clips of one field.

    Parameters
    ----------
    key
        Key of samples; ``spike_packed`` has bits along its last axis.
    field
        Reader of the field.
    size
        Rows and columns of every crop, see `common_size`.
    length
        Rows of a clip: frames, or time steps.
    pad, fill
        Padding of crops larger than their frame, see `padding`.
    """

    def __init__(
        self, key: str, field: FrameField, size: tuple[int, ...] | None, length: int, pad: Pad, fill: Any
    ) -> None:
        self.field = field
        self._key = key
        self._size = size
        self._length = length
        self._pad = pad
        self._fill = fill

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Common shape of all samples; None if they differ."""
        if self._size is None:
            return None
        height, width = self._size
        shape = self.field.shape(self._length, height, width)
        return (shape[0], shape[-1], *shape[1:-1]) if self.field.channels_last else shape

    def read(self, starts: NDArray[np.int64], boxes: Boxes, allocate: Allocate) -> Packed:
        """Clips that begin at the rows `starts`."""
        if self._size is None or not len(starts):
            return self._read_ragged(starts, boxes, allocate)
        height, width = self._size
        out = allocate((len(starts), *self.field.shape(self._length, height, width)), self.field.dtype)
        for i, start in enumerate(starts.tolist()):
            self._read_clip(start, boxes, i, out[i])
        return Packed(out.transpose(0, 1, 4, 2, 3) if self.field.channels_last else out)

    def _read_ragged(self, starts: NDArray[np.int64], boxes: Boxes, allocate: Allocate) -> Packed:
        field = self.field
        shapes = [field.shape(self._length, *size) for size in boxes.size.tolist()]
        offsets = offsets_from_lengths(np.array([int(np.prod(shape)) for shape in shapes], np.int64))
        values = allocate((int(offsets[-1]),), field.dtype)
        output_shapes: list[tuple[int, ...]] = []
        for i, (start, shape) in enumerate(zip(starts.tolist(), shapes, strict=True)):
            part = values[offsets[i] : offsets[i + 1]].reshape(shape)
            self._read_clip(start, boxes, i, part)
            if field.channels_last:
                moved = part.transpose(0, 3, 1, 2)
                output_shapes.append(moved.shape)
                part.reshape(moved.shape)[...] = moved.copy()
            else:
                output_shapes.append(shape)
        axes = len(field.shape(1, 1, 1))
        return Packed(values, offsets, self._key, np.array(output_shapes, np.int64).reshape(-1, axes))

    def _read_clip(self, start: int, boxes: Boxes, clip: int, out: NDArray[Any]) -> None:
        """Read one clip, padded if its crop is larger than the frame."""
        top, left = boxes.corner[clip].tolist()
        height, width = boxes.size[clip].tolist()
        rows_read = slice(start, start + self._length)
        rows, columns = (boxes.extent[clip] - boxes.corner[clip]).tolist()
        if height <= rows and width <= columns:
            self.field.read(rows_read, Box(top, left, height, width), out)
            return
        box = Box(top, left, min(height, rows), min(width, columns))
        inside = np.empty(self.field.shape(self._length, box.height, box.width), self.field.dtype)
        self.field.read(rows_read, box, inside)
        if self._key != "spike_packed":
            copy_padded(inside, out, self._pad, self._fill)
            return
        unpacked = np.empty((*out.shape[:-1], width), np.uint8)
        copy_padded(unpack(inside, box.width), unpacked, self._pad, self._fill)
        out[...] = np.packbits(unpacked, axis=-1, bitorder="little")


class CroppedMask:
    """Makes masks of where the crops of a field have data.

    Parameters
    ----------
    key
        Key of samples.
    extents
        (clips, 2): rows and columns of the field.
    size
        Rows and columns of every crop, see `common_size`.
    """

    def __init__(self, key: str, extents: NDArray[np.int64], size: tuple[int, ...] | None) -> None:
        self.extents = extents
        self.shape = size
        self._key = key

    def read(self, boxes: Boxes, allocate: Allocate) -> Packed:
        """(B, h, w) bool: True where the crop lies in the frame."""
        shape = self.shape if len(boxes.size) else None
        return valid_masks(self._key, boxes.size, boxes.inside, shape, allocate)


# Runs of frames that clips are cut from: frames of one sequence and one resolution.


def runs_of_frames(
    sequences: NDArray[np.int64], extents: NDArray[np.int64], units: NDArray[np.int64] | None
) -> NDArray[np.int64]:
    """Runs of consecutive frames of one sequence and one extent.

    Parameters
    ----------
    sequences
        Frame offsets of the sequences.
    extents
        (F, k): values that are the same in all frames of a run.
    units
        Frames to use; None: all.

    Returns
    -------
    (runs, 2) int64: first frame, and the one behind the last.
    """
    frames = len(extents)
    if not frames:
        return np.empty((0, 2), np.int64)
    used = np.ones(frames, np.bool_)
    if units is not None:
        used[:] = False
        used[units] = True
    connected = used[1:] & used[:-1] & (extents[1:] == extents[:-1]).all(axis=1)
    boundaries = sequences[(sequences > 0) & (sequences < frames)]
    connected[boundaries - 1] = False
    bounds = np.flatnonzero(np.concatenate(([True], ~connected, [True])))
    runs = np.stack((bounds[:-1], bounds[1:]), axis=1)
    used_runs: NDArray[np.int64] = runs[used[runs[:, 0]]]
    return used_runs


def clip_starts(runs: NDArray[np.int64], length: int, stride: int) -> NDArray[np.int64]:
    """First frames of the clips of `length` frames, every `stride`-th in each run."""
    counts = -(-np.maximum(runs[:, 1] - runs[:, 0] - length + 1, 0) // stride)
    offsets = offsets_from_lengths(counts)
    inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    starts: NDArray[np.int64] = np.repeat(runs[:, 0], counts) + stride * inside
    return starts


_EXTENTS = ("valid_extent", "spike_valid_extent")
_MASKS = ("valid", "spike_valid")
_NUMBERS = ("corner", "frame", *_EXTENTS)
_ON_REQUEST = (SOURCE, "sequence", *_NUMBERS, *_MASKS)


def complete_arguments(kind: Any, check: Arguments) -> None:
    """Check the arguments that `Clips` and `Steps` share, and bring `crop` and `fields` into one form.

    Raises
    ------
    InputError
        With every wrong argument, those that `check` found before among them.
    """
    check.integer("length", kind.length, 1)
    check.integer("stride", kind.stride, 1)
    check.integer("voxel_bins", kind.voxel_bins, 1, none=True)
    check.sizes("crop", kind.crop, 2, none=True)
    check.names("fields", kind.fields)
    check.flag("random", kind.random)
    check.raise_problems()
    crop = kind.crop if kind.crop is None or isinstance(kind.crop, (tuple, list)) else (kind.crop,) * 2
    fields = (kind.fields,) if isinstance(kind.fields, str) else kind.fields
    object.__setattr__(kind, "crop", None if crop is None else tuple(crop))
    object.__setattr__(kind, "fields", None if fields is None else tuple(fields))


@dataclass(frozen=True, slots=True)
class Clips:
    """Samples of a spike-camera store: `length` consecutive frames of one sequence.

    Keys: ``voxel`` (L, B, h, w) in the stored dtype; ``blur``, ``sharp`` (L, 3, h, w) u1 RGB, views of the
    stored (row, column, channel) order. In stores without voxels, unless `voxel_bins` asks for them:
    ``spike`` (L, T, h, w) u1 of 0 and 1, zero behind each frame's ``spike_length`` (L,) int32; on request
    elsewhere. On request: ``spike_packed`` (L, T, h, ⌈w/8⌉) u1, least significant bit first; ``tfp``, ``tfi``
    (L, h, w) float32, gray pictures of each frame, see `Steps`; ``source`` (of the first frame),
    ``sequence``, ``frame`` (the first frame's row in the store), ``corner`` (2,) int64 in image pixels.

    On request too, and the extents always under ``pad="valid"``: ``valid_extent``, ``spike_valid_extent``
    (2,) int64, how many rows and columns of the crop have data, in pixels of the images and in those of
    voxels and spikes; ``valid``, ``spike_valid`` (h, w) bool, True where they have.

    A clip never spans a change of resolution. Where clips of a store differ in shape (whole frames of several
    cameras), the keys concerned are ragged.

    Parameters
    ----------
    length
        Frames of a clip. If every sequence is shorter, that is refused.
    stride
        Frames between the starts of two clips.
    crop
        Rows and columns, in pixels of the images (of the spikes where there are none); one number is a
        square; None: whole frames. Fields of another resolution give the same part of the scene.
    fields
        Keys to read, unless the Dataset names them.
    voxel_bins
        Bins B of ``voxel``; None: the store's set (of several, the one with the fewest bins). A set that is
        not stored is computed from the spikes, bit for bit what conversion would store.
    random
        True: the crop is uniform over the frame, another one each epoch, one for all frames and fields of a
        clip. False: the centre.
    pad
        What a crop has below and right of a frame that is smaller than it. None: such crops are refused, with
        the largest that fits. ``"edge"``: the last row and column are repeated, in every field. ``"zero"``:
        zeros. A number: that, in the images; voxels and spikes are 0. ``"valid"``: zeros, with
        ``valid_extent`` and ``spike_valid_extent`` among the keys. ``"drop"``: such clips are no samples.
    """

    length: int = 5
    stride: int = 1
    crop: int | tuple[int, int] | None = 256
    fields: tuple[str, ...] | None = None
    voxel_bins: int | None = None
    random: bool = True
    pad: Pad = None

    def __post_init__(self) -> None:
        check = Arguments()
        check_pad(check, self.pad)
        complete_arguments(self, check)
        object.__setattr__(self, "pad", normalize_pad(self.pad))

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Keys of samples; see `SampleKind.select`."""
        require_arrays(store, self, SEQUENCE_OFFSETS)
        require_version_2(store)
        natural, on_request = frame_fields(store)
        if self.voxel_bins is not None and "voxel" in on_request:
            on_request = [key for key in (*natural, *on_request) if key not in ("voxel", *IMAGES)]
            natural = ["voxel", *(key for key in natural if key in IMAGES)]
        natural += _EXTENTS if self.pad == "valid" else ()
        keys = select_keys(natural, self.fields if fields is None else fields, (*on_request, *_ON_REQUEST))
        if "voxel" in keys:
            frame_field(store, "voxel", self.voxel_bins)
        return keys

    def bind(self, store: Store, fields: Sequence[str], units: NDArray[np.int64] | None) -> ClipReader:
        """Reader of the clips whose frames all lie in `units`."""
        require_version_2(store)
        return ClipReader(store, self, fields, units)


class ClipReader:
    """Reads clips; see `SampleReader`."""

    def __init__(
        self, store: Store, kind: Clips, fields: Sequence[str], units: NDArray[np.int64] | None
    ) -> None:
        assert not isinstance(kind.crop, int)
        self._kind = kind
        self._length = kind.length
        self._crop = Crop(kind.crop, kind.random)
        self._field_extents = whole(store, SPIKE_EXTENT).astype(np.int64)
        images = store.has(IMAGE_EXTENT)
        self._image_extents = whole(store, IMAGE_EXTENT).astype(np.int64) if images else self._field_extents
        self._sequences = whole(store, SEQUENCE_OFFSETS)
        extents = np.concatenate((self._field_extents, self._image_extents), axis=1)
        runs = runs_of_frames(self._sequences, extents, units)
        starts = clip_starts(runs, kind.length, kind.stride)
        self._reach, self._starts = _reach(kind, runs, starts, self._image_extents)
        keys = ("voxel", *VIEWS, *IMAGES)
        views = {key: frame_field(store, key, kind.voxel_bins) for key in fields if key in keys}
        filled = fill_values(kind.pad, {key: field.dtype for key, field in views.items() if key in IMAGES})
        image = self._image_extents[self._starts]
        self._fields: dict[str, CroppedField] = {}
        for key, field in views.items():
            size = common_size(self._crop, image, field.extents.take(self._starts))
            self._fields[key] = CroppedField(key, field, size, kind.length, kind.pad, filled.get(key, 0))
        self._masks: dict[str, CroppedMask] = {}
        for key, all_extents in zip(_MASKS, (self._image_extents, self._field_extents), strict=True):
            if key in fields:
                clip_extents = all_extents[self._starts]
                self._masks[key] = CroppedMask(
                    key, clip_extents, common_size(self._crop, image, clip_extents)
                )
        self._offsets = Column(store, FRAME_OFFSETS) if "spike_length" in fields else None
        self._numbers = [key for key in fields if key in _NUMBERS]
        self._sources = SourceNames(store, FRAME_SOURCE) if SOURCE in fields else None
        self._names = np.array(store.text(SEQUENCE_NAME), np.str_) if "sequence" in fields else None

    def __len__(self) -> int:
        return len(self._starts)

    def reach(self) -> Reach:
        """See `CuttingReader.reach`."""
        return self._reach

    def read(self, picks: Picks, allocate: Allocate) -> Batch:
        """Read a batch of clips."""
        starts = self._starts[picks.index]
        image = self._image_extents[starts]
        field_extents = self._field_extents[starts]
        corners = self._crop.corners(picks, image, field_extents)
        batch: Batch = {}
        for key, field in self._fields.items():
            boxes = self._crop.boxes(corners, image, field.field.extents.take(starts).astype(np.int64))
            batch[key] = field.read(starts, boxes, allocate)
        if self._offsets is not None:
            frames = starts[:, None] + np.arange(self._length)
            first, last = self._offsets.ranges(frames.reshape(-1))
            lengths = (last - first).astype(np.int32).reshape(frames.shape)
            batch["spike_length"] = packed_copy(lengths, allocate)
        numbers = {"corner": corners, "frame": starts}
        for key, extents in zip(_EXTENTS, (image, field_extents), strict=True):
            if key in self._numbers:
                numbers[key] = self._crop.boxes(corners, image, extents).inside
        batch |= {key: packed_copy(numbers[key], allocate) for key in self._numbers}
        for key, mask in self._masks.items():
            boxes = self._crop.boxes(corners, image, mask.extents[picks.index])
            batch[key] = mask.read(boxes, allocate)
        if self._sources is not None:
            batch[SOURCE] = packed_copy(self._sources.take(starts), allocate)
        if self._names is not None:
            sequence = np.searchsorted(self._sequences, starts, side="right") - 1
            batch["sequence"] = packed_copy(self._names[sequence], allocate)
        return batch

    def box_shape(self, key: str) -> tuple[int, ...] | None:
        """See `BoxReader.box_shape`."""
        field = self._fields.get(key) or self._masks.get(key)
        return None if field is None else field.shape


def _reach(
    kind: Clips, runs: NDArray[np.int64], starts: NDArray[np.int64], extents: NDArray[np.int64]
) -> tuple[Reach, NDArray[np.int64]]:
    """How clips from `starts` go with frames of `extents`, and the starts of those that are samples."""
    longest = int((runs[:, 1] - runs[:, 0]).max(initial=0))
    if not len(starts):
        if not longest:
            return Reach(samples=0), starts
        what = (
            f"no {kind.length} frames follow one another in one sequence and one resolution: the most are "
            f"{longest}"
        )
        clip_extents = extents[clip_starts(runs, longest, 1)]
        fitting = replace(_with_fitting_crop(kind, clip_extents), length=longest)
        return Reach(samples=0, problem=what, fitting=fitting), starts
    clip_extents = extents[starts]
    smaller = np.zeros(len(starts), np.bool_) if kind.crop is None else (clip_extents < kind.crop).any(axis=1)
    beyond = int(smaller.sum())
    if not beyond:
        return Reach(samples=len(starts)), starts
    assert isinstance(kind.crop, tuple)
    crop, least = (" × ".join(map(str, size)) for size in (kind.crop, clip_extents.min(axis=0).tolist()))
    what = (
        f"crops of {crop} pixels reach beyond the frames of {beyond} of {len(starts)} clips: rows and "
        f"columns are {least} at least"
    )
    fitting = _with_fitting_crop(kind, clip_extents)
    if kind.pad == "drop":
        return Reach(samples=len(starts) - beyond, problem=what, fitting=fitting), starts[~smaller]
    padded = kind.pad is not None
    return Reach(samples=len(starts), beyond=beyond, padded=padded, problem=what, fitting=fitting), starts


def _with_fitting_crop(kind: Clips, extents: NDArray[np.int64]) -> Clips:
    """Clips whose crop fits into frames of `extents`, (n, 2)."""
    if kind.crop is None or not (extents < kind.crop).any():
        return kind
    crop = tuple(np.minimum(kind.crop, np.maximum(extents.min(axis=0), 1)).tolist())
    return replace(kind, crop=crop, pad=None)
