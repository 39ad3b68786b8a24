"""Reads one field of clips: crops, padded if frames are smaller, ragged if crops differ in size."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.crops import Boxes, Crop
from unistore.data.kinds.frames import Box, FrameField
from unistore.data.kinds.padding import Pad, copy_padded, valid_masks
from unistore.data.packed import Allocate, Packed, offsets_from_lengths
from unistore.schemas.spike.bits import unpack


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
        Frames of a clip.
    pad, fill
        Padding of crops larger than their frame, see `padding`.
    """

    def __init__(
        self, key: str, field: FrameField, size: tuple[int, ...] | None, length: int, pad: Pad, fill: Any
    ) -> None:
        self.field = field
        self._key, self._size, self._length = key, size, length
        self._pad, self._fill = pad, fill

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Common shape of all samples; None if they differ."""
        if self._size is None:
            return None
        height, width = self._size
        shape = self.field.shape(height, width)
        return (self._length, *((shape[-1], *shape[:-1]) if self.field.channels_last else shape))

    def read(self, starts: NDArray[np.int64], boxes: Boxes, allocate: Allocate) -> Packed:
        """Clips that begin at the frames `starts`."""
        if self._size is None or not len(starts):
            return self._read_ragged(starts, boxes, allocate)
        height, width = self._size
        out = allocate((len(starts), self._length, *self.field.shape(height, width)), self.field.dtype)
        for i, start in enumerate(starts.tolist()):
            self._read_clip(start, boxes, i, out[i])
        return Packed(out.transpose(0, 1, 4, 2, 3) if self.field.channels_last else out)

    def _read_ragged(self, starts: NDArray[np.int64], boxes: Boxes, allocate: Allocate) -> Packed:
        field = self.field
        shapes = [(self._length, *field.shape(*size)) for size in boxes.size.tolist()]
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
        axes = 1 + len(field.shape(1, 1))
        return Packed(values, offsets, self._key, np.array(output_shapes, np.int64).reshape(-1, axes))

    def _read_clip(self, start: int, boxes: Boxes, clip: int, out: NDArray[Any]) -> None:
        """Read one clip, padded if its crop is larger than the frame."""
        top, left = boxes.corner[clip].tolist()
        height, width = boxes.size[clip].tolist()
        frames = slice(start, start + self._length)
        rows, columns = (boxes.extent[clip] - boxes.corner[clip]).tolist()
        if height <= rows and width <= columns:
            self.field.read(frames, Box(top, left, height, width), out)
            return
        box = Box(top, left, min(height, rows), min(width, columns))
        inside = np.empty((self._length, *self.field.shape(box.height, box.width)), self.field.dtype)
        self.field.read(frames, box, inside)
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
