"""The `Clips` and `Steps` sample kinds: a sample is a run of frames, or of time steps, of a spike camera."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from unistore.data.kinds.frames import (
    VIEWS,
    Box,
    FrameField,
    Images,
    StepSpikes,
    frame_field,
    frame_fields,
    voxels,
)
from unistore.data.kinds.padding import (
    Pad,
    checked_pad,
    common_shape,
    copy_padded,
    fill_values,
    packed_boxes,
    reach_of_boxes,
    set_sizes,
    valid_masks,
)
from unistore.data.kinds.protocol import (
    SOURCE,
    Reach,
    RowValues,
    SampleIndices,
    SampleKind,
    SampleReader,
    require_arrays,
    select_keys,
)
from unistore.data.packed import (
    Allocate,
    Batch,
    Packed,
    packed_copies,
    range_of_rows,
    rows_of_ranges,
)
from unistore.schemas.array_specs import SAMPLES, ArraySpec
from unistore.schemas.indices import require_rule, table_columns, whole
from unistore.schemas.spike.fields import (
    BITS,
    FRAME_OFFSETS,
    FRAME_SOURCE,
    FRAMES,
    IMAGE_EXTENT,
    IMAGES,
    SEQUENCE_NAME,
    SEQUENCE_OFFSETS,
    SPIKE_EXTENT,
    SPIKES,
)
from unistore.schemas.tables import unpack
from unistore.store.reader import Store
from unistore.system.arguments import Arguments, as_names
from unistore.system.types import AnyArray, Int64s, Shape

# Largest spacing of corners, in image pixels, used to have a crop begin at whole pixels in every field
_MAX_STEP = 16
_EXTENTS = ("valid_extent", "spike_valid_extent")
_MASKS = ("valid", "spike_valid")
_OF_STEPS = (SOURCE, "sequence", "frame", "step", "corner")


class Crops(NamedTuple):
    """The crops of a batch in one field.

    Attributes
    ----------
    corner : int64 array of shape (B, 2)
        Row and column of the first pixel of each crop.
    size : int64 array of shape (B, 2)
        Rows and columns of each crop.
    inside : int64 array of shape (B, 2)
        Rows and columns, from the corner on, that are inside the field.
    """

    corner: Int64s
    size: Int64s
    inside: Int64s


@dataclass(frozen=True, slots=True)
class Crop:
    """How clips are cropped, for fields of different resolutions.

    Attributes
    ----------
    size : (int, int) or None
        Rows and columns, in pixels of the images. None: whole frames.
    random : bool
        True: a uniform corner, another one in every epoch. False: the centre.
    """

    size: tuple[int, int] | None
    random: bool

    def sizes(self, image: Int64s, field: Int64s) -> Int64s:
        """Return the sizes of crops in a field.

        Parameters
        ----------
        image : int64 array of shape (…, 2)
            Rows and columns of the images.
        field : int64 array of shape (…, 2)
            Rows and columns of the field.

        Returns
        -------
        int64 array of shape (…, 2)
            The share of the image that the crop covers, times the extent of the field; at least 1.
        """
        if self.size is None:
            return field
        shares = (2 * np.array(self.size) * field + image) // (2 * np.maximum(image, 1))
        sizes: Int64s = np.maximum(1, shares)
        return sizes

    def corners(self, picks: SampleIndices, image: Int64s, field: Int64s) -> Int64s:
        """Return the corners of the crops of a batch.

        If the ratio of the resolutions is simple, corners are whole pixels in both fields: 720 rows of
        images and 360 rows of spikes give even corners.

        Parameters
        ----------
        picks : SampleIndices
            The samples of the batch. They determine random corners.
        image : int64 array of shape (B, 2)
            Rows and columns of the images.
        field : int64 array of shape (B, 2)
            Rows and columns of the other field.

        Returns
        -------
        int64 array of shape (B, 2)
            Row and column of the first pixel, in pixels of the images.
        """
        if self.size is None:
            return np.zeros_like(image)
        step = image // np.maximum(1, np.gcd(image, field))
        step = np.where(step <= _MAX_STEP, np.maximum(step, 1), 1)
        counts = np.maximum(image - np.array(self.size), 0) // step + 1
        number = picks.below(counts) if self.random else (counts - 1) // 2
        return number * step

    def crops(self, corners: Int64s, image: Int64s, field: Int64s) -> Crops:
        """Return the crops at `corners` (B, 2) in a field with the extents `field` (B, 2)."""
        size = self.sizes(image, field)
        corner = np.minimum(corners * field // np.maximum(image, 1), np.maximum(field - size, 0))
        return Crops(corner, size, np.minimum(size, field - corner))


class CroppedField:
    """Reads clips of one field.

    Parameters
    ----------
    key : str
        Key of the samples. ``"spike_packed"`` has bits along its last axis.
    field : FrameField
        Reader of the field.
    size : (int, int) or None
        Rows and columns of every crop. None: crops differ in size.
    length : int
        Number of frames, or time steps, of a clip.
    pad : Pad
        As in `Clips`.
    fill : scalar
        Value of padded pixels.
    """

    def __init__(
        self,
        key: str,  # ``spike_packed`` has bits along its last axis
        field: FrameField,
        size: Shape | None,  # rows and columns of every crop; None: they differ
        length: int,  # rows of a clip: frames, or time steps
        pad: Pad,
        fill: Any,
    ) -> None:
        self._key = key
        self._field = field
        self._common = None if size is None else field.shape(length, *size)
        self._length = length
        self._pad = pad
        self._fill = fill
        self.is_image = isinstance(field, Images)

    @property
    def shape(self) -> Shape | None:
        """Common shape of all samples, or None if they differ."""
        shape = self._common
        if shape is None or not self.is_image:
            return shape
        return (shape[0], shape[-1], *shape[1:-1])

    def read(self, starts: Int64s, crops: Crops, allocate: Allocate) -> Packed:
        """Read the clips of a batch.

        Parameters
        ----------
        starts : int64 array of shape (B,)
            First row of each clip.
        crops : Crops
            Crop of each clip.
        allocate : callable
            Called as ``allocate(shape, dtype)`` for the memory of the batch.

        Returns
        -------
        Packed
            Dense if all samples have the same shape. Images are views with channels first.
        """
        shapes = [self._field.shape(self._length, *size) for size in crops.size.tolist()]
        axes = len(self._field.shape(1, 1, 1))
        output_shapes = np.array(shapes, np.int64).reshape(-1, axes)
        moves_channels = self.is_image and self._common is None
        if moves_channels:
            output_shapes = output_shapes[:, [0, 3, 1, 2]]

        def read(number: int, out: AnyArray) -> None:
            clip = np.empty(shapes[number], out.dtype) if moves_channels else out
            self._read_clip(int(starts[number]), Crops(*(part[number] for part in crops)), clip)
            if moves_channels:
                out[...] = clip.transpose(0, 3, 1, 2)

        packed = packed_boxes(self._key, output_shapes, self._common, self._field.dtype, allocate, read)
        if self.is_image and packed.offsets is None:
            return Packed(packed.values.transpose(0, 1, 4, 2, 3))
        return packed

    def _read_clip(self, start: int, crop: Crops, out: AnyArray) -> None:
        box = Box(*crop.corner.tolist(), *crop.inside.tolist())
        rows = slice(start, start + self._length)
        if (crop.inside == crop.size).all():
            self._field.read(rows, box, out)
            return
        inside = np.empty(self._field.shape(self._length, box.height, box.width), out.dtype)
        self._field.read(rows, box, inside)
        if self._key != "spike_packed":
            copy_padded(inside, out, self._pad, self._fill)
            return
        unpacked = np.empty((*out.shape[:-1], int(crop.size[1])), np.uint8)
        copy_padded(unpack(inside, box.width), unpacked, self._pad, self._fill)
        out[...] = np.packbits(unpacked, axis=-1, bitorder="little")


def runs_of_frames(sequences: Int64s, extents: Int64s, units: Int64s) -> Int64s:
    """Return the runs of consecutive frames that have one sequence and one extent.

    Parameters
    ----------
    sequences : int64 array of shape (sequences + 1,)
        First frame of each sequence.
    extents : int64 array of shape (frames, k)
        Extents of each frame.
    units : int64 array
        Frames to use.

    Returns
    -------
    int64 array of shape (runs, 2)
        First frame of each run, and the frame after its last one.
    """
    frames = len(extents)
    if not frames:
        return np.empty((0, 2), np.int64)
    used = np.zeros(frames, np.bool_)
    used[units] = True
    are_alike = (extents[1:] == extents[:-1]).all(axis=1)
    connected = used[1:] & used[:-1] & are_alike
    boundaries = sequences[(sequences > 0) & (sequences < frames)]
    connected[boundaries - 1] = False
    bounds = np.flatnonzero(np.concatenate(([True], ~connected, [True])))
    runs = np.stack((bounds[:-1], bounds[1:]), axis=1)
    used_runs: Int64s = runs[used[runs[:, 0]]]
    return used_runs


def clip_starts(runs: Int64s, length: int, stride: int) -> Int64s:
    """Return the first row of each clip.

    Parameters
    ----------
    runs : int64 array of shape (runs, 2)
        First row of each run, and the row after its last one.
    length : int
        Number of rows of a clip.
    stride : int
        Number of rows between the starts of two clips.

    Returns
    -------
    int64 array
        Rows, run after run. A clip never extends beyond its run.
    """
    lo, hi = runs.T
    ends = np.maximum(hi - length + 1, lo)
    return rows_of_ranges(lo, ends, stride)


def attached_columns(store: Store) -> dict[str, str]:
    """Return the path of each column of the frames that `unistore.attach` or `derive` added, by name."""
    columns = table_columns(store, FRAMES)
    attached = [path for path in columns if store.specs.of(path) == ArraySpec(rows=(SAMPLES, 0))]
    return {path.removeprefix(f"{FRAMES}/"): path for path in attached}


def _complete_arguments(kind: Any, check: Arguments) -> None:
    check.integer("length", kind.length, 1)
    check.integer("stride", kind.stride, 1)
    check.integer("voxel_bins", kind.voxel_bins, 1, none=True)
    check.sizes("crop", kind.crop, 2, none=True)
    check.names("fields", kind.fields)
    check.flag("random", kind.random)
    check.raise_problems()
    set_sizes(kind, "crop", 2)
    object.__setattr__(kind, "fields", as_names(kind.fields))


class ClipReader(SampleReader):
    """Reads batches of `Clips` or `Steps`."""

    def __init__(self, store: Store, kind: Clips | Steps, fields: Sequence[str], units: Int64s) -> None:
        assert not isinstance(kind.crop, int)
        self._by_frame = isinstance(kind, Clips)
        self._length = kind.length
        self._crop = Crop(kind.crop, kind.random)
        self._fields = fields
        self._spike_extents = whole(store, SPIKE_EXTENT).astype(np.int64)
        self._image_extents = self._spike_extents
        if self._by_frame and store.has(IMAGE_EXTENT):
            self._image_extents = whole(store, IMAGE_EXTENT).astype(np.int64)
        require_rule(store, SEQUENCE_OFFSETS, offsets_of=FRAMES)
        self._sequences = whole(store, SEQUENCE_OFFSETS)
        needs_steps = not self._by_frame or "spike_length" in fields
        if needs_steps:
            require_rule(store, FRAME_OFFSETS, offsets_of=SPIKES)
        self._steps = whole(store, FRAME_OFFSETS) if needs_steps else np.empty(0, np.int64)
        if self._by_frame:
            extents = np.concatenate((self._spike_extents, self._image_extents), axis=1)
            runs = runs_of_frames(self._sequences, extents, units)
        else:
            runs = np.stack((self._steps[units], self._steps[units + 1]), axis=1)
        self._starts = clip_starts(runs, kind.length, kind.stride)
        self._reach = self._fit(kind, runs)
        pad = kind.pad if isinstance(kind, Clips) else None
        views = {key: self._field(store, kind, key) for key in fields if key in ("voxel", *VIEWS, *IMAGES)}
        filled = fill_values(pad, {key: field.dtype for key, field in views.items() if key in IMAGES})
        frames = self._frames(self._starts)
        image = self._image_extents[frames]
        self._sizes = {  # common ones of all crops in images, and in spikes and voxels
            True: common_shape(self._crop.sizes(image, image)),
            False: common_shape(self._crop.sizes(image, self._spike_extents[frames])),
        }
        self._views = {}
        for key, field in views.items():
            size = self._sizes[key in IMAGES]
            self._views[key] = CroppedField(key, field, size, kind.length, pad, filled.get(key, 0))
        self._labels = RowValues(store, fields, {}, FRAME_SOURCE)
        attached = attached_columns(store) if self._by_frame else {}
        self._attached = {key: store.array(path) for key, path in attached.items() if key in fields}
        names = [key for key in fields if key == "sequence"]
        self._names = RowValues(store, names, {"sequence": SEQUENCE_NAME}, None)

    def _field(self, store: Store, kind: Clips | Steps, key: str) -> FrameField:
        if self._by_frame:
            return frame_field(store, key, kind.voxel_bins)
        if key != "voxel":
            return StepSpikes(store, VIEWS[key])
        assert kind.voxel_bins is not None
        return StepSpikes(store, voxels(kind.voxel_bins, kind.length))

    def _fit(self, kind: Clips | Steps, runs: Int64s) -> Reach:
        nouns = ("crops of {} pixels", "clips" if self._by_frame else "windows")
        extents = self._image_extents[self._frames(self._starts)]
        ones = np.ones(len(extents), np.int64)
        if len(extents):
            reach, has_samples = reach_of_boxes(kind, "crop", extents, ones, nouns)
            self._starts = self._starts[has_samples]
            return reach
        longest = int((runs[:, 1] - runs[:, 0]).max(initial=0))
        if not longest:
            return Reach(0)
        problem = f"length={kind.length} leaves no samples: the longest recording has {longest:,} time steps"
        if self._by_frame:
            problem = f"length={kind.length} leaves no samples: at most {longest:,} frames of one resolution "
            problem += "follow one another in a sequence"
        shorter: Clips | Steps = replace(kind, length=longest)
        extents = self._image_extents[self._frames(clip_starts(runs, longest, 1))]
        reach, _ = reach_of_boxes(shorter, "crop", extents, np.ones(len(extents), np.int64), nouns)
        return Reach(0, problem=problem, fitting=reach.fitting or shorter)

    def _frames(self, starts: Int64s) -> Int64s:
        return starts if self._by_frame else range_of_rows(self._steps, starts)

    def __len__(self) -> int:
        return len(self._starts)

    def reach(self) -> Reach:
        return self._reach

    def box_shape(self, key: str) -> Shape | None:
        if key in _MASKS:
            return self._sizes[key == _MASKS[0]]
        return self._views[key].shape if key in self._views else None

    def axis_names(self, key: str) -> Sequence[str]:
        return ("channel", "image_y", "image_x") if key in IMAGES else ()

    def read(self, picks: SampleIndices, allocate: Allocate) -> Batch:
        starts = self._starts[picks.index]
        frames = self._frames(starts)
        image = self._image_extents[frames]
        spikes = self._spike_extents[frames]
        corners = self._crop.corners(picks, image, spikes)
        crops = {
            True: self._crop.crops(corners, image, image),
            False: self._crop.crops(corners, image, spikes),
        }
        batch: Batch = {}
        for key, view in self._views.items():
            batch[key] = view.read(starts, crops[view.is_image], allocate)
        numbers = {"corner": corners, "frame": frames}
        for key, mask, of_image in zip(_EXTENTS, _MASKS, (True, False), strict=True):
            crop = crops[of_image]
            numbers[key] = crop.inside
            if mask in self._fields:
                batch[mask] = valid_masks(mask, crop.size, crop.inside, self._sizes[of_image], allocate)
        rows = starts[:, None] + np.arange(self._length)
        if not self._by_frame:
            numbers["step"] = starts - self._steps[frames]
        elif len(self._steps):
            numbers["spike_length"] = (self._steps[rows + 1] - self._steps[rows]).astype(np.int32)
        batch |= packed_copies(numbers, self._fields, allocate)
        for key, array in self._attached.items():
            out = allocate((*rows.shape, *array.shape[1:]), array.dtype)
            array.read_rows(rows.reshape(-1), out.reshape(-1, *array.shape[1:]))
            batch[key] = Packed(out)
        sequences = range_of_rows(self._sequences, frames)
        return batch | self._labels.read(frames, allocate) | self._names.read(sequences, allocate)


@dataclass(frozen=True, slots=True)
class Clips(SampleKind):
    """Samples of a spike-camera store: consecutive frames of one sequence.

    All frames and fields of a clip are cropped alike. A clip never contains a change of resolution. Batches
    are dense unless samples differ in shape (whole frames of several cameras); these keys are then packed.

    Keys of a sample, with L of `length` and (h, w) of the crop:

    - ``voxel`` (L, B, h, w), in the stored dtype: spikes counted in B bins of time.
    - ``blur`` and ``sharp`` (L, 3, h, w), uint8 RGB, if the store has them.
    - ``spike`` (L, T, h, w), uint8, 0 or 1, and ``spike_length`` (L,), int32: instead of ``voxel`` if the
      store has no voxels and `voxel_bins` does not ask for them. T is the length of the longest frame of
      the store; steps after the ``spike_length`` of a frame are 0.
    - ``valid_extent`` and ``spike_valid_extent`` with ``pad="valid"``: see below.

    Optional keys, read with ``fields=[…]``:

    - ``spike`` and ``spike_length``, as above; ``spike_packed`` (L, T, h, ⌈w/8⌉), uint8: the spikes as bits,
      lowest bit first.
    - ``tfp`` and ``tfi`` (L, h, w), float32: a grey image of each frame, see `Steps`.
    - ``valid_extent`` and ``spike_valid_extent`` (2,), int64: number of rows and columns of the crop with
      data, in pixels of the images, and in pixels of voxels and spikes.
    - ``valid`` and ``spike_valid`` (h, w), bool: True for pixels with data.
    - ``source`` (of the first frame), ``sequence`` (name), ``frame`` (row of the first frame in the
      store) and ``corner`` (2,), int64, in pixels of the images.
    - columns that were attached to ``frames``: (L, …).

    Parameters
    ----------
    length : int, default 5
        Number of frames of a clip. If every sequence is shorter, reading raises InputError.
    stride : int, default 1
        Number of frames between the starts of two clips.
    crop : int or (int, int), default 256
        Rows and columns, in pixels of the images, or of the spikes if there are no images. One number is a
        square. Fields of another resolution give the same part of the scene. None: whole frames.
    fields : tuple of str, optional
        Keys to read, unless the Dataset names them. None: the default keys.
    voxel_bins : int, optional
        Number of bins B of ``voxel``. A set that is not stored is computed from the spikes, with the
        values that a conversion would store. None: the stored set; of several, the one with the fewest
        bins.
    random : bool, default True
        True: the crop is uniform over the frame, another one in every epoch. False: the centre.
    pad : {"edge", "zero", "valid", "drop"} or number, optional
        Value of pixels outside a frame that is smaller than the crop. ``"edge"``: the last row and column are
        repeated, in every field. ``"zero"``: zeros. A number: that value in the images, and 0 in voxels and
        spikes. ``"valid"``: zeros, and the two keys of valid extents. ``"drop"``: such clips are not samples.
        None: such a crop is an error, which states the largest crop that fits.

    Raises
    ------
    InputError
        If an argument is invalid.

    Examples
    --------
    Eight frames with voxels of 5 bins, and the sharp images:

    >>> dataset = unistore.Dataset(  # doctest: +SKIP
    ...     "spikes.zarr", unistore.Clips(length=8, crop=128, voxel_bins=5), fields=["voxel", "sharp"]
    ... )
    """

    reader: ClassVar = ClipReader

    length: int = 5
    stride: int = 1
    crop: int | tuple[int, int] | None = 256
    fields: tuple[str, ...] | None = None
    voxel_bins: int | None = None
    random: bool = True
    pad: Pad = None

    def __post_init__(self) -> None:
        check = Arguments()
        object.__setattr__(self, "pad", checked_pad(check, self.pad))
        _complete_arguments(self, check)

    @property
    def whole(self) -> SampleKind | None:
        return Clips(length=1, crop=None, random=False, voxel_bins=self.voxel_bins)

    def chosen(self, store: Store) -> SampleKind | None:
        """Return the kind for a store. None: its frames are streams, longer than windows of `Steps`."""
        natural, _ = frame_fields(store)
        if "spike" not in natural or not {*IMAGES}.isdisjoint(natural):
            return self
        steps = len(store.array(BITS)) / max(1, store.sample_count)  # of a frame, on average
        return self if steps < Steps().length else None

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        require_arrays(store, self, SEQUENCE_OFFSETS)
        default_keys, on_request = frame_fields(store)
        if self.voxel_bins is not None and "voxel" in on_request:
            on_request = [key for key in (*default_keys, *on_request) if key not in ("voxel", *IMAGES)]
            default_keys = ["voxel", *(key for key in default_keys if key in IMAGES)]
        default_keys += _EXTENTS if self.pad == "valid" else ()
        further = (
            *on_request,
            *attached_columns(store),
            SOURCE,
            "sequence",
            "corner",
            "frame",
            *_EXTENTS,
            *_MASKS,
        )
        keys = select_keys(default_keys, self.fields if fields is None else fields, further)
        if "voxel" in keys:
            frame_field(store, "voxel", self.voxel_bins)
        return keys


@dataclass(frozen=True, slots=True)
class Steps(SampleKind):
    """Samples of a spike-camera store: consecutive time steps of one recording.

    A window lies in one recording, because the files of a folder may have gaps between them. Batches are
    dense. With ``crop=None`` and recordings that differ in size (several cameras), the keys with axes (h, w)
    are packed instead.

    Keys of a sample, with T of `length` and (h, w) of the crop:

    - ``spike`` (T, h, w), uint8, 0 or 1.
    - with `voxel_bins`, instead: ``voxel`` (B, h, w), the number of spikes in B bins of time, in the smallest
      of uint8, uint16 and uint32 that holds the steps of a bin. Step t is in bin ``(t * B) // T``.

    Optional keys, read with ``fields=[…]``:

    - ``spike_packed`` (T, h, ⌈w/8⌉), uint8: the spikes as bits, lowest bit first; an eighth of the bytes.
    - ``tfp`` and ``tfi`` (h, w), float32, 0 to 1: grey images. For n spikes of a pixel, ``tfp`` is n / T.
      ``tfi`` is 1 / (b - a), where a is the last spike up to step T // 2 and b the next one after it, and 0
      if there is no such pair.
    - ``step`` (first step of the window in its recording), ``frame`` (row of the recording in the store),
      ``source``, ``sequence`` (name) and ``corner`` (2,), int64.

    Parameters
    ----------
    length : int, default 200
        Number of time steps of a window. If every recording is shorter, reading raises InputError.
    stride : int, default 1
        Number of time steps between the starts of two windows.
    crop : int or (int, int), optional
        Rows and columns in pixels. One number is a square. A crop larger than the frames of a recording is an
        error. None: whole frames.
    fields : tuple of str, optional
        Keys to read, unless the Dataset names them. None: the default keys.
    voxel_bins : int, optional
        Number of bins B of ``voxel``. None: spikes.
    random : bool, default True
        True: the crop is uniform over the frame, another one in every epoch. False: the centre.

    Raises
    ------
    InputError
        If an argument is invalid. Opening a Dataset raises it if the store has no spikes.

    Examples
    --------
    >>> dataset = unistore.Dataset("spikes.zarr", unistore.Steps(length=400, stride=200))  # doctest: +SKIP
    """

    reader: ClassVar = ClipReader

    length: int = 200
    stride: int = 1
    crop: int | tuple[int, int] | None = None
    fields: tuple[str, ...] | None = None
    voxel_bins: int | None = None
    random: bool = True

    def __post_init__(self) -> None:
        _complete_arguments(self, Arguments())

    def chosen(self, store: Store) -> SampleKind | None:
        return self if store.has(BITS) else None

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        require_arrays(store, self, SEQUENCE_OFFSETS)
        require_arrays(store, self, BITS)
        default_keys = ["spike"] if self.voxel_bins is None else ["voxel"]
        return select_keys(
            default_keys, self.fields if fields is None else fields, (*VIEWS, *default_keys, *_OF_STEPS)
        )
