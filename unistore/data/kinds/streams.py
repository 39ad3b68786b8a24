"""One sample = consecutive time steps of one spike recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.clips import Crop, CroppedField, clip_starts, common_size, complete_arguments
from unistore.data.kinds.frames import StepSpikes
from unistore.data.kinds.protocol import SOURCE, Picks, SourceNames, require_arrays, select_keys
from unistore.data.kinds.reach import Reach
from unistore.data.kinds.spike_views import VIEWS, Voxels
from unistore.data.packed import Allocate, Batch, packed_copy
from unistore.schemas.indices import whole
from unistore.schemas.spike.fields import (
    BITS,
    FRAME_OFFSETS,
    FRAME_SOURCE,
    SEQUENCE_NAME,
    SEQUENCE_OFFSETS,
    SPIKE_EXTENT,
)
from unistore.schemas.spike.specs import require_version_2
from unistore.store.reader import Store
from unistore.system.arguments import Arguments

_NUMBERS = ("frame", "step", "corner")
_ON_REQUEST = (SOURCE, "sequence", *_NUMBERS)


@dataclass(frozen=True, slots=True)
class Steps:
    """Samples of a spike-camera store: `length` consecutive time steps of one recording.

    Keys: ``spike`` (T, h, w) u1 of 0 and 1 or, where `voxel_bins` asks for them, ``voxel`` (B, h, w),
    the spikes of the window in bins of time, bin = (t * B) // T with T = `length`. On request:
    ``spike_packed`` (T, h, ⌈w/8⌉) u1, least significant bit first, an eighth of the bytes; ``tfp`` and
    ``tfi`` (h, w) float32, gray pictures from 0 to 1 by the mean of the spikes and by the interval between
    two (`unistore.data.kinds.spike_views` has formulas and source); ``step``, the window's first step in its
    recording; ``frame``, the recording's row in the store; ``source``, ``sequence``, ``corner`` (2,) int64.

    A window lies in one recording: one file, as nothing says that the files of a folder follow each other
    without a gap. Where whole pictures differ in size (several cameras), the keys concerned are ragged.

    Parameters
    ----------
    length
        Time steps of a window. If every recording is shorter, that is refused.
    stride
        Time steps between the starts of two windows.
    crop
        Rows and columns in pixels; one number is a square; None: whole pictures. A crop larger than a
        recording's pictures is refused.
    fields
        Keys to read, unless the Dataset names them.
    voxel_bins
        Bins B of ``voxel``.
    random
        True: the crop is uniform over the picture, another one each epoch. False: the centre.
    """

    length: int = 200
    stride: int = 1
    crop: int | tuple[int, int] | None = None
    fields: tuple[str, ...] | None = None
    voxel_bins: int | None = None
    random: bool = True

    def __post_init__(self) -> None:
        complete_arguments(self, Arguments())

    def chosen(self, store: Store) -> Steps | None:
        """Return itself, or None where a store holds no spikes; see `NamesGroup.chosen`."""
        return self if store.has(BITS) else None

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Keys of samples; see `SampleKind.select`."""
        require_arrays(store, self, SEQUENCE_OFFSETS)
        require_version_2(store)
        require_arrays(store, self, BITS)
        natural = ["spike"] if self.voxel_bins is None else ["voxel"]
        all_keys = (*VIEWS, *natural, *_ON_REQUEST)
        return select_keys(natural, self.fields if fields is None else fields, all_keys)

    def bind(self, store: Store, fields: Sequence[str], units: NDArray[np.int64] | None) -> StepReader:
        """Reader of the windows in the recordings `units`."""
        require_version_2(store)
        return StepReader(store, self, fields, units)


class StepReader:
    """Reads windows of time steps; see `SampleReader`."""

    def __init__(
        self, store: Store, kind: Steps, fields: Sequence[str], units: NDArray[np.int64] | None
    ) -> None:
        assert not isinstance(kind.crop, int)
        self._crop = Crop(kind.crop, kind.random)
        self._extents = whole(store, SPIKE_EXTENT).astype(np.int64)
        self._offsets: NDArray[np.int64] = whole(store, FRAME_OFFSETS)
        self._sequences: NDArray[np.int64] = whole(store, SEQUENCE_OFFSETS)
        used = np.arange(len(self._extents)) if units is None else units
        runs = np.stack((self._offsets[used], self._offsets[used + 1]), axis=1)
        self._starts = clip_starts(runs, kind.length, kind.stride)
        extents = self._extents[self._frames(self._starts)]
        self._reach = _reach(kind, runs, len(self._starts), extents)
        size = common_size(self._crop, extents, extents)
        views = dict(VIEWS)
        if kind.voxel_bins is not None:
            views["voxel"] = Voxels(kind.voxel_bins, kind.length)
        self._fields: dict[str, CroppedField] = {}
        for key in fields:
            if key in views:
                field = StepSpikes(store, views[key])
                self._fields[key] = CroppedField(key, field, size, kind.length, None, 0)
        self._numbers = [key for key in fields if key in _NUMBERS]
        self._sources = SourceNames(store, FRAME_SOURCE) if SOURCE in fields else None
        self._names = np.array(store.text(SEQUENCE_NAME), np.str_) if "sequence" in fields else None

    def __len__(self) -> int:
        return len(self._starts)

    def reach(self) -> Reach:
        """See `CuttingReader.reach`."""
        return self._reach

    def read(self, picks: Picks, allocate: Allocate) -> Batch:
        """Read a batch of windows."""
        starts = self._starts[picks.index]
        frames = self._frames(starts)
        extents = self._extents[frames]
        corners = self._crop.corners(picks, extents, extents)
        boxes = self._crop.boxes(corners, extents, extents)
        batch: Batch = {key: field.read(starts, boxes, allocate) for key, field in self._fields.items()}
        numbers = {"frame": frames, "step": starts - self._offsets[frames], "corner": corners}
        batch |= {key: packed_copy(numbers[key], allocate) for key in self._numbers}
        if self._sources is not None:
            batch[SOURCE] = packed_copy(self._sources.take(frames), allocate)
        if self._names is not None:
            sequences = np.searchsorted(self._sequences, frames, side="right") - 1
            batch["sequence"] = packed_copy(self._names[sequences], allocate)
        return batch

    def box_shape(self, key: str) -> tuple[int, ...] | None:
        """See `BoxReader.box_shape`."""
        field = self._fields.get(key)
        return None if field is None else field.shape

    def _frames(self, starts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Recording of each step."""
        return np.searchsorted(self._offsets, starts, side="right") - 1


def _reach(kind: Steps, runs: NDArray[np.int64], samples: int, extents: NDArray[np.int64]) -> Reach:
    """How windows go with recordings of the steps `runs`, which give so many samples of `extents`."""
    longest = int((runs[:, 1] - runs[:, 0]).max(initial=0))
    if not samples:
        what = f"no recording has {kind.length} time steps: the most are {longest}"
        return Reach(samples=0, problem=what, fitting=replace(kind, length=longest) if longest else None)
    beyond = 0 if kind.crop is None else int((extents < kind.crop).any(axis=1).sum())
    if not beyond:
        return Reach(samples=samples)
    assert isinstance(kind.crop, tuple)
    smallest = extents.min(axis=0)
    crop, least = (" × ".join(map(str, size)) for size in (kind.crop, smallest.tolist()))
    what = f"crops of {crop} pixels reach beyond {beyond} of {samples} windows: the smallest is {least}"
    fitting = replace(kind, crop=tuple(np.minimum(kind.crop, smallest).tolist()))
    return Reach(samples=samples, beyond=beyond, problem=what, fitting=fitting)
