"""One sample = a few consecutive frames of one spike-camera sequence, cropped alike in every field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.columns import SourceNames
from unistore.data.kinds.cropped import CroppedField, CroppedMask, common_size
from unistore.data.kinds.crops import Crop
from unistore.data.kinds.frames import frame_field, frame_fields
from unistore.data.kinds.padding import Pad, check_pad, fill_values, normalize_pad
from unistore.data.kinds.protocol import SOURCE, Picks, require_arrays, select_keys
from unistore.data.kinds.reach import Reach
from unistore.data.kinds.runs import clip_starts, runs_of_frames
from unistore.data.packed import Allocate, Batch, packed_copy
from unistore.schemas.indices import Column, whole
from unistore.schemas.spike.fields import (
    IMAGE_EXTENT,
    IMAGES,
    SEQUENCE_NAME,
    SEQUENCE_OFFSETS,
    SPIKE_EXTENT,
    SPIKE_LENGTH,
)
from unistore.store.reader import Store
from unistore.system.arguments import Arguments

_EXTENTS = ("valid_extent", "spike_valid_extent")
_MASKS = ("valid", "spike_valid")
_NUMBERS = ("corner", "frame", *_EXTENTS)
_ON_REQUEST = (SOURCE, "sequence", *_NUMBERS, *_MASKS)


@dataclass(frozen=True, slots=True)
class Clips:
    """Samples of a spike-camera store: `length` consecutive frames of one sequence.

    Keys: ``voxel`` (L, B, h, w) in the stored dtype; ``blur``, ``sharp`` (L, 3, h, w) u1 RGB, views of the
    stored (row, column, channel) order. In stores without voxels, unless `voxel_bins` asks for them:
    ``spike`` (L, T, h, w) u1 of 0 and 1, zero behind each frame's ``spike_length`` (L,) int32; on request
    elsewhere. On request: ``spike_packed`` (L, T, h, ⌈w/8⌉) u1, least significant bit first; ``source`` (of
    the first frame), ``sequence``,
    ``frame`` (the first frame's row in the store), ``corner`` (2,) int64 in image pixels.

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
        check.integer("length", self.length, 1)
        check.integer("stride", self.stride, 1)
        check.integer("voxel_bins", self.voxel_bins, 1, none=True)
        check.sizes("crop", self.crop, 2, none=True)
        check.names("fields", self.fields)
        check.flag("random", self.random)
        check_pad(check, self.pad)
        check.raise_problems()
        object.__setattr__(self, "pad", normalize_pad(self.pad))
        crop = self.crop if self.crop is None or isinstance(self.crop, (tuple, list)) else (self.crop,) * 2
        fields = (self.fields,) if isinstance(self.fields, str) else self.fields
        object.__setattr__(self, "crop", None if crop is None else tuple(crop))
        object.__setattr__(self, "fields", None if fields is None else tuple(fields))

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Keys of samples; see `SampleKind.select`."""
        require_arrays(store, self, SEQUENCE_OFFSETS)
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
        return ClipReader(store, self, fields, units)


class ClipReader:
    """Reads clips; see `SampleReader`."""

    def __init__(
        self, store: Store, kind: Clips, fields: Sequence[str], units: NDArray[np.int64] | None
    ) -> None:
        assert not isinstance(kind.crop, int)
        self._kind, self._length = kind, kind.length
        self._crop = Crop(kind.crop, kind.random)
        self._field_extents = whole(store, SPIKE_EXTENT).astype(np.int64)
        images = store.has(IMAGE_EXTENT)
        self._image_extents = whole(store, IMAGE_EXTENT).astype(np.int64) if images else self._field_extents
        self._sequences = whole(store, SEQUENCE_OFFSETS)
        extents = np.concatenate((self._field_extents, self._image_extents), axis=1)
        runs = runs_of_frames(self._sequences, extents, units)
        starts = clip_starts(runs, kind.length, kind.stride)
        self._reach, self._starts = _reach(kind, runs, starts, self._image_extents)
        keys = ("voxel", "spike", "spike_packed", "blur", "sharp")
        found = {key: frame_field(store, key, kind.voxel_bins) for key in fields if key in keys}
        filled = fill_values(kind.pad, {key: field.dtype for key, field in found.items() if key in IMAGES})
        image = self._image_extents[self._starts]
        self._fields: dict[str, CroppedField] = {}
        for key, field in found.items():
            size = common_size(self._crop, image, field.extents.take(self._starts))
            self._fields[key] = CroppedField(key, field, size, kind.length, kind.pad, filled.get(key, 0))
        self._masks: dict[str, CroppedMask] = {}
        for key, all_extents in zip(_MASKS, (self._image_extents, self._field_extents), strict=True):
            if key in fields:
                clip_extents = all_extents[self._starts]
                self._masks[key] = CroppedMask(
                    key, clip_extents, common_size(self._crop, image, clip_extents)
                )
        self._lengths = Column(store, SPIKE_LENGTH) if "spike_length" in fields else None
        self._numbers = [key for key in fields if key in _NUMBERS]
        self._sources = SourceNames(store) if SOURCE in fields else None
        self._names = np.array(store.text(SEQUENCE_NAME), np.str_) if "sequence" in fields else None

    def __len__(self) -> int:
        return len(self._starts)

    def reach(self) -> Reach:
        """See `CuttingReader.reach`."""
        return self._reach

    def read(self, picks: Picks, allocate: Allocate) -> Batch:
        """Read a batch of clips."""
        starts = self._starts[picks.index]
        image, field_extents = self._image_extents[starts], self._field_extents[starts]
        corners = self._crop.corners(picks, image, field_extents)
        batch: Batch = {}
        for key, field in self._fields.items():
            boxes = self._crop.boxes(corners, image, field.field.extents.take(starts).astype(np.int64))
            batch[key] = field.read(starts, boxes, allocate)
        if self._lengths is not None:
            frames = starts[:, None] + np.arange(self._length)
            values = self._lengths.take(frames.reshape(-1)).reshape(frames.shape)
            batch["spike_length"] = packed_copy(values, allocate)
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
        found = self._fields.get(key) or self._masks.get(key)
        return None if found is None else found.shape


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
