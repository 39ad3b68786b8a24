"""One sample = a few consecutive frames of one spike-camera sequence, cropped alike in every field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.columns import SourceNames
from unistore.data.kinds.crops import Boxes, Crop
from unistore.data.kinds.frames import Box, FrameField, frame_field, frame_fields
from unistore.data.kinds.protocol import SOURCE, Picks, chosen, require
from unistore.data.packed import Allocate, Batch, Packed, offsets_from_lengths, placed
from unistore.schemas.indices import Column, whole
from unistore.schemas.spike.fields import (
    IMAGE_EXTENT,
    SEQUENCE_NAME,
    SEQUENCE_OFFSETS,
    SPIKE_EXTENT,
    SPIKE_LENGTH,
)
from unistore.store.reader import Store
from unistore.system.arguments import Arguments

__all__ = ["Clips"]

_NUMBERS = ("corner", "frame")
_ON_REQUEST = (SOURCE, "sequence", *_NUMBERS)


@dataclass(frozen=True, slots=True)
class Clips:
    """Samples of a spike-camera store: `length` consecutive frames of one sequence.

    Keys: ``voxel`` (L, B, h, w) in the stored dtype; ``blur``, ``sharp`` (L, 3, h, w) u1 RGB, views of the
    stored (row, column, channel) order. In stores without voxels: ``spike`` (L, T, h, w) u1 of 0 and 1, zero
    behind each frame's ``spike_length`` (L,) int32; on request elsewhere. On request: ``spike_packed``
    (L, T, h, ⌈w/8⌉) u1, least significant bit first; ``source`` (of the first frame), ``sequence``,
    ``frame`` (the first frame's row in the store), ``corner`` (2,) int64 in image pixels.

    A clip never spans a change of resolution. Where clips of a store differ in shape (whole frames of several
    cameras), the keys concerned are ragged.

    Parameters
    ----------
    length
        Frames of a clip.
    stride
        Frames between the starts of two clips.
    crop
        Rows and columns, in pixels of the images (of the spikes where there are none); one number is a
        square; None: whole frames. Fields of another resolution give the same part of the scene. Frames
        smaller than the crop are followed by zeros.
    fields
        Keys to read, unless the Dataset names them.
    voxel_bins
        Bins B of ``voxel``; None: the store's set (of several, the one with the fewest bins). A set that is
        not stored is computed from the spikes, bit for bit what conversion would store.
    random
        True: the crop is uniform over the frame, another one each epoch, one for all frames and fields of a
        clip. False: the centre.
    """

    length: int = 5
    stride: int = 1
    crop: int | tuple[int, int] | None = 256
    fields: tuple[str, ...] | None = None
    voxel_bins: int | None = None
    random: bool = True

    def __post_init__(self) -> None:
        check = Arguments()
        check.whole("length", self.length, 1)
        check.whole("stride", self.stride, 1)
        check.whole("voxel_bins", self.voxel_bins, 1, none=True)
        check.sizes("crop", self.crop, 2, none=True)
        check.names("fields", self.fields)
        check.flag("random", self.random)
        check.settle()
        crop = self.crop if self.crop is None or isinstance(self.crop, (tuple, list)) else (self.crop,) * 2
        fields = (self.fields,) if isinstance(self.fields, str) else self.fields
        object.__setattr__(self, "crop", None if crop is None else tuple(crop))
        object.__setattr__(self, "fields", None if fields is None else tuple(fields))

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Keys of samples; see `SampleKind.select`."""
        require(store, "spike", self)
        natural, on_request = frame_fields(store)
        if self.voxel_bins is not None and "voxel" in on_request:
            natural, on_request = ["voxel", *natural], [key for key in on_request if key != "voxel"]
        keys = chosen(natural, self.fields if fields is None else fields, (*on_request, *_ON_REQUEST))
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
        self._length = kind.length
        self._crop = Crop(kind.crop, kind.random)
        self._field_extents = whole(store, SPIKE_EXTENT).astype(np.int64)
        images = store.has(IMAGE_EXTENT)
        self._image_extents = whole(store, IMAGE_EXTENT).astype(np.int64) if images else self._field_extents
        self._sequences = whole(store, SEQUENCE_OFFSETS)
        self._starts = self._find_starts(kind.stride, units)
        keys = ("voxel", "spike", "spike_packed", "blur", "sharp")
        self._fields = {key: frame_field(store, key, kind.voxel_bins) for key in fields if key in keys}
        self._dense = {key: self._has_one_shape(field) for key, field in self._fields.items()}
        self._lengths = Column(store, SPIKE_LENGTH) if "spike_length" in fields else None
        self._numbers = [key for key in fields if key in _NUMBERS]
        self._sources = SourceNames(store) if SOURCE in fields else None
        self._names = np.array(store.text(SEQUENCE_NAME), np.str_) if "sequence" in fields else None

    def __len__(self) -> int:
        return len(self._starts)

    def read(self, picks: Picks, allocate: Allocate) -> Batch:
        """Read a batch of clips."""
        starts = self._starts[picks.index]
        image = self._image_extents[starts]
        corners = self._crop.corners(picks, image, self._field_extents[starts])
        batch: Batch = {}
        for key, field in self._fields.items():
            boxes = self._crop.boxes(corners, image, field.extents.take(starts).astype(np.int64))
            if self._dense[key] and len(starts):
                batch[key] = self._read_dense(field, starts, boxes, allocate)
            else:
                batch[key] = self._read_ragged(key, field, starts, boxes, allocate)
        if self._lengths is not None:
            frames = starts[:, None] + np.arange(self._length)
            values = self._lengths.take(frames.reshape(-1)).reshape(frames.shape)
            batch["spike_length"] = placed(values, allocate)
        numbers = {"corner": corners, "frame": starts}
        batch |= {key: placed(numbers[key], allocate) for key in self._numbers}
        if self._sources is not None:
            batch[SOURCE] = placed(self._sources.take(starts), allocate)
        if self._names is not None:
            sequence = np.searchsorted(self._sequences, starts, side="right") - 1
            batch["sequence"] = placed(self._names[sequence], allocate)
        return batch

    def box_shape(self, key: str) -> tuple[int, ...] | None:
        """See `BoxReader.box_shape`."""
        if not self._dense.get(key, False):
            return None
        field, first = self._fields[key], self._starts[:1]
        size = self._crop.sizes(self._image_extents[first], field.extents.take(first).astype(np.int64))[0]
        shape = field.shape(*size.tolist())
        return (self._length, shape[-1], *shape[:-1]) if field.channels_last else (self._length, *shape)

    def _find_starts(self, stride: int, units: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """First frames of all clips: inside one sequence, one resolution and the chosen frames."""
        frames = len(self._field_extents)
        if not frames:
            return np.empty(0, np.int64)
        extents = np.concatenate((self._field_extents, self._image_extents), axis=1)
        wanted = np.ones(frames, np.bool_)
        if units is not None:
            wanted[:] = False
            wanted[units] = True
        joined = wanted[1:] & wanted[:-1] & (extents[1:] == extents[:-1]).all(axis=1)
        inner = self._sequences[(self._sequences > 0) & (self._sequences < frames)]
        joined[inner - 1] = False
        runs = np.flatnonzero(np.concatenate(([True], ~joined, [True])))
        parts = [
            np.arange(first, last - self._length + 1, stride)
            for first, last in pairwise(runs.tolist())
            if wanted[first]
        ]
        return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)

    def _has_one_shape(self, field: FrameField) -> bool:
        if not len(self._starts):
            return False
        sizes = self._crop.sizes(
            self._image_extents[self._starts], field.extents.take(self._starts).astype(np.int64)
        )
        return bool((sizes == sizes[:1]).all())

    def _read_dense(
        self, field: FrameField, starts: NDArray[np.int64], boxes: Boxes, allocate: Allocate
    ) -> Packed:
        height, width = boxes.size[0].tolist()
        out = allocate((len(starts), self._length, *field.shape(height, width)), field.dtype)
        for i, start in enumerate(starts.tolist()):
            self._read_clip(field, start, boxes, i, out[i])
        return Packed(out.transpose(0, 1, 4, 2, 3) if field.channels_last else out)

    def _read_ragged(
        self, key: str, field: FrameField, starts: NDArray[np.int64], boxes: Boxes, allocate: Allocate
    ) -> Packed:
        shapes = [(self._length, *field.shape(*size)) for size in boxes.size.tolist()]
        offsets = offsets_from_lengths(np.array([int(np.prod(shape)) for shape in shapes], np.int64))
        values = allocate((int(offsets[-1]),), field.dtype)
        handed: list[tuple[int, ...]] = []
        for i, (start, shape) in enumerate(zip(starts.tolist(), shapes, strict=True)):
            part = values[offsets[i] : offsets[i + 1]].reshape(shape)
            self._read_clip(field, start, boxes, i, part)
            if field.channels_last:
                moved = part.transpose(0, 3, 1, 2)
                handed.append(moved.shape)
                part.reshape(moved.shape)[...] = moved.copy()
            else:
                handed.append(shape)
        axes = 1 + len(field.shape(1, 1))
        return Packed(values, offsets, key, np.array(handed, np.int64).reshape(-1, axes))

    def _read_clip(self, field: FrameField, start: int, boxes: Boxes, clip: int, out: NDArray[Any]) -> None:
        """One clip of one field, zeros where the crop is larger than the frame."""
        top, left = boxes.corner[clip].tolist()
        height, width = boxes.size[clip].tolist()
        frames = slice(start, start + self._length)
        rows, columns = (boxes.extent[clip] - boxes.corner[clip]).tolist()
        if height <= rows and width <= columns:
            field.read(frames, Box(top, left, height, width), out)
            return
        box = Box(top, left, min(height, rows), min(width, columns))
        inside = np.empty((self._length, *field.shape(box.height, box.width)), field.dtype)
        field.read(frames, box, inside)
        out[...] = 0
        out[tuple(slice(extent) for extent in inside.shape)] = inside
