"""Samples of CT volumes: whole ones at their own extent, or all cut and padded to one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from unistore.data.kinds.boxes import (
    IMAGE,
    BoxReader,
    WindowedBox,
    box_source,
    box_sources,
    extent_path,
    on_request,
    volume_columns,
    window_limits,
)
from unistore.data.kinds.padding import (
    Pad,
    check_pad,
    common_shape,
    normalize_pad,
    reach_of_boxes,
    set_sizes,
)
from unistore.data.kinds.protocol import (
    PRESENT_SUFFIX,
    Picks,
    Reach,
    SampleKind,
    SampleReader,
    require_arrays,
    select_keys,
)
from unistore.data.packed import Allocate, Batch
from unistore.store.reader import Store
from unistore.system.arguments import Arguments
from unistore.system.hints import Int64s, Shape


class WholeVolumeReader(SampleReader):
    """Reads volumes."""

    def __init__(self, store: Store, kind: Volumes, fields: Sequence[str], units: Int64s) -> None:
        self._kind = kind
        window = None
        if kind.window is not None and "image" in fields:
            limits = window_limits(store, kind.window)
            window = WindowedBox(box_source(store, IMAGE), limits, scale=kind.scale)
        self._volumes = BoxReader(store, fields, kind.pad, kind.step, window)
        extents = self._volumes.extents
        self._units = units
        self._shapes = extents if kind.size is None else np.broadcast_to(np.array(kind.size), extents.shape)
        self._common = common_shape(self._shapes[self._units])

    def __len__(self) -> int:
        return len(self._units)

    def reach(self) -> Reach:
        """Return whether the sizes and limits of the kind fit the store."""
        extents = self._volumes.extents[self._units]
        ones = np.ones(len(extents), np.int64)
        return reach_of_boxes(self._kind, "size", extents, ones, ("boxes of {} voxels", "volumes"))[0]

    def box_shape(self, key: str) -> Shape | None:
        """Return the common shape of a key that is a box in all samples."""
        return self._common if key in self._volumes.boxes else None

    def read(self, picks: Picks, allocate: Allocate) -> Batch:
        """Read a batch of volumes."""
        volumes = self._units[picks.index]
        corners = np.zeros((len(volumes), 3), np.int64)
        return self._volumes.read_boxes(volumes, corners, self._shapes[volumes], self._common, allocate)


@dataclass(frozen=True, slots=True)
class Volumes(SampleKind):
    """Samples of a CT store: whole volumes without padding.

    Keys: ``image`` (D, H, W) in the stored dtype. Every window and mask by its name, (D, H, W) u1 of 0 and 1.
    ``spacing``, ``origin``, ``direction`` if stored, ``<mask>_present``. On request: ``source``, ``name``,
    ``extent`` (3,) of the stored volume, ``affine`` (4, 4) float64 from (depth, height, width, 1) of the
    sample to (z, y, x, 1) in mm toward head, back and left, NaN where the source states less, ``info`` (the
    text of the case's ``info.json``), ``metadata`` (its row of ``metadata.csv``, as JSON), ``header`` (what
    is kept of that of its file, as JSON), ``patient`` and ``series`` (digests of DICOM).

    Batches are dense, (B, D, H, W), if all volumes have one extent. Else volumes are ragged: packed batches
    have flat values with ``offsets`` and ``shapes`` (B, 3), padded ones are padded to the largest.

    Parameters
    ----------
    window
        Limit the image to an intensity window: one of the store, a preset (``"lung"``), or
        ``"name:width:level"``. Values below and above become its ends. NaN stays. The image is float32 then.
    scale
        Scale the window to 0…1: (value - low) / (high - low).
    size
        Depth, height and width of all samples, dense in a batch. One number is a cube. Their first
        voxel is the volume's: what is longer is cut off at the end, what is shorter is padded there. None:
        the true extents.
    pad
        What is padded with: ``"edge"``, the last voxel, of masks too. ``"zero"``, or a number, of the image:
        masks are 0. None: volumes shorter than `size` are refused.
    step
        Take every `step`-th voxel of each axis, the first one included, of images, masks and labels alike: 2
        makes 256 of 512. ``spacing`` is that of the voxels taken. `size` counts them.
    """

    reader: ClassVar = WholeVolumeReader

    window: str | None = None
    scale: bool = False
    size: int | tuple[int, int, int] | None = None
    pad: Pad = None
    step: int = 1

    def __post_init__(self) -> None:
        check = Arguments()
        check.text("window", self.window, none=True)
        check.flag("scale", self.scale)
        if self.scale is True and self.window is None:
            check.refuse("scale", "scales a window to 0…1: name the window", 'window="lung"')
        check.sizes("size", self.size, 3, none=True)
        check.integer("step", self.step, 1)
        check_pad(check, self.pad)
        if self.pad in ("valid", "drop") or (self.pad is not None and self.size is None):
            check.refuse("pad", f"is {self.pad!r}", 'size= with pad="edge", "zero" or a number')
        check.raise_problems()
        object.__setattr__(self, "pad", normalize_pad(self.pad))
        set_sizes(self, "size", 3)

    @property
    def repeats(self) -> bool:
        """Return whether samples are the same in every epoch and share no rows."""
        return True

    @property
    def whole(self) -> SampleKind | None:
        """Return the kind whose samples are whole rows of the sample table."""
        return replace(self, size=None, pad=None)

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Return the keys of samples."""
        require_arrays(store, self, extent_path(store))
        if self.window is not None:
            window_limits(store, self.window)
        return select_keys([*box_sources(store), *volume_columns(store)], fields, on_request(store))

    def validity(self, store: Store, key: str) -> tuple[str, ...]:
        """Return the key that says which volumes have a mask, or label, that others lack."""
        name = f"{key}{PRESENT_SUFFIX}"
        return (name,) if name in volume_columns(store) else ()
