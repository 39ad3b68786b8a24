"""Samples of CT volumes: whole ones at their own extent, and boxes of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from unistore.data.kinds.boxes import (
    BoxSource,
    SteppedBox,
    WindowedBox,
    box_source,
    box_sources,
    extent_path,
    read_padded,
    volume_columns,
    window_limits,
)
from unistore.data.kinds.padding import Pad, check_pad, fill_values, normalize_pad
from unistore.data.kinds.protocol import SOURCE, Picks, SourceNames, require_arrays, select_keys
from unistore.data.packed import Allocate, Batch, Packed, offsets_from_lengths, packed_copy
from unistore.errors import InputError, Problem
from unistore.schemas.ct.geometry import LENGTHS, affines, has_geometry
from unistore.schemas.indices import Column, whole
from unistore.store.reader import Store
from unistore.system.arguments import Arguments
from unistore.system.hints import Int64s, Shape

_TEXTS = ("name", "info", "metadata", "header", "patient", "series")


def on_request(store: Store) -> tuple[str, ...]:
    """Keys of whole volumes that are read where they are named."""
    texts = [key for key in _TEXTS if store.has(f"volumes/{key}/data")]
    return (SOURCE, "extent", *(["affine"] if has_geometry(store) else []), *texts)


@dataclass(frozen=True, slots=True)
class Volumes:
    """Samples of a CT store: whole volumes without padding.

    Keys: ``image`` (D, H, W) in the stored dtype; every window and mask by its name, (D, H, W) u1 of 0 and 1;
    ``spacing``, ``origin``, ``direction`` if stored; ``<mask>_present``. On request: ``source``, ``name``,
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
        ``"name:width:level"``. Values below and above become its ends; NaN stays. The image is float32 then.
    scale
        Scale the window to 0…1: (value - low) / (high - low).
    size
        Depth, height and width of all samples, dense in a batch; one number is a cube. Their first
        voxel is the volume's: what is longer is cut off at the end, what is shorter is padded there. None:
        the true extents.
    pad
        What is padded with: ``"edge"``, the last voxel, of masks too; ``"zero"``; or a number, of the image:
        masks are 0. None: volumes shorter than `size` are refused.
    step
        Take every `step`-th voxel of each axis, the first one included, of images, masks and labels alike: 2
        makes 256 of 512. ``spacing`` is that of the voxels taken. `size` counts them.
    """

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
        if self.size is not None:
            check.sizes("size", self.size, 3)
        check.integer("step", self.step, 1)
        check_pad(check, self.pad)
        if self.pad in ("valid", "drop") or (self.pad is not None and self.size is None):
            check.refuse("pad", f"is {self.pad!r}", 'size= with pad="edge", "zero" or a number')
        check.raise_problems()
        object.__setattr__(self, "pad", normalize_pad(self.pad))
        if self.size is not None:
            size = tuple(self.size) if isinstance(self.size, (tuple, list)) else (self.size,) * 3
            object.__setattr__(self, "size", size)

    @property
    def repeats(self) -> bool:
        """See `SampleKind.repeats`."""
        return True

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Keys of samples; see `SampleKind.select`."""
        require_arrays(store, self, extent_path(store))
        if self.window is not None:
            window_limits(store, self.window)
        return select_keys([*box_sources(store), *volume_columns(store)], fields, on_request(store))

    def bind(self, store: Store, fields: Sequence[str], units: Int64s | None) -> WholeVolumeReader:
        """Reader of the volumes `units`."""
        return WholeVolumeReader(store, self, fields, units)


class WholeVolumeReader:
    """Reads volumes; see `SampleReader`."""

    def __init__(
        self,
        store: Store,
        kind: Volumes,
        fields: Sequence[str],
        units: Int64s | None,
    ) -> None:
        self._kind = kind
        stored = whole(store, extent_path(store)).astype(np.int64)
        self._extents = -(-stored // kind.step)
        self._units = np.arange(len(self._extents)) if units is None else units
        self._labels = VolumeMetadata(store, fields)
        groups = box_sources(store)
        self._boxes: dict[str, BoxSource] = {
            key: box_source(store, groups[key]) for key in fields if key in groups
        }
        if kind.window is not None and "image" in self._boxes:
            limits = window_limits(store, kind.window)
            self._boxes["image"] = WindowedBox(self._boxes["image"], limits, scale=kind.scale)
        if kind.step > 1:
            self._boxes = {key: SteppedBox(box, kind.step, stored) for key, box in self._boxes.items()}
        self._fills = fill_values(
            kind.pad, {key: box.dtype for key, box in self._boxes.items() if store.has(groups[key])}
        )
        if kind.size is not None:
            self._check_size(store)
            self._ends = np.minimum(self._extents, kind.size)
            self._extents = np.broadcast_to(np.array(kind.size, np.int64), self._extents.shape)
        else:
            self._ends = self._extents
        extents = self._extents[self._units]
        self._dense = bool((extents == extents[:1]).all())
        self._extent = tuple(extents[0].tolist()) if self._dense and len(extents) else None

    def box_shape(self, key: str) -> Shape | None:
        """See `BoxReader.box_shape`."""
        return self._extent if key in self._boxes else None

    def __len__(self) -> int:
        return len(self._units)

    def read(self, picks: Picks, allocate: Allocate) -> Batch:
        """Read a batch of volumes."""
        volumes = self._units[picks.index]
        extents = self._extents[volumes]
        ends = self._ends[volumes]
        offsets = offsets_from_lengths(extents.prod(axis=1))
        batch: Batch = {}
        for key, box in self._boxes.items():
            values = allocate((int(offsets[-1]),), box.dtype)
            for i, volume in enumerate(volumes.tolist()):
                out = values[offsets[i] : offsets[i + 1]].reshape(extents[i])
                fill = self._fills.get(key, 0)
                read_padded(box, volume, (0, 0, 0), ends[i].tolist(), out, self._kind.pad, fill)
            if self._dense and len(volumes):
                batch[key] = Packed(values.reshape(-1, *extents[0].tolist()))
            else:
                batch[key] = Packed(values, offsets, shapes=extents)
        return batch | self._labels.read(volumes, allocate, step=self._kind.step)

    def _check_size(self, store: Store) -> None:
        """Refuse volumes shorter than the samples, unless `pad` says what stands there."""
        short = (self._extents[self._units] < np.array(self._kind.size)).any(axis=1)
        if short.any() and self._kind.pad is None:
            least = " × ".join(map(str, self._extents[self._units].min(axis=0).tolist()))
            message = f"{store.path}: {int(short.sum())} volumes are shorter: of {least} voxels at least"
            raise InputError(Problem("size", message, 'pad="edge", "zero" or a number', "option"))


class VolumeMetadata:
    """Reads values per volume: spacing, origin, affine, names, …."""

    def __init__(self, store: Store, fields: Sequence[str]) -> None:
        paths = volume_columns(store) | {"extent": extent_path(store)}
        self._columns = {key: Column(store, paths[key]) for key in fields if key in paths}
        self._geometry = [Column(store, f"volumes/{name}") for name in LENGTHS if "affine" in fields]
        texts = [key for key in _TEXTS if key in fields]
        self._texts = {key: store.text(f"volumes/{key}") for key in texts}
        self._sources = SourceNames(store) if SOURCE in fields else None

    def read(
        self,
        volumes: Int64s,  # (B,)
        allocate: Allocate,
        first: Int64s | None = None,  # (B, 3) first voxel of each sample, in steps; None: that of the volume
        step: int = 1,  # voxels from one voxel of a sample to the next
    ) -> Batch:
        """Read values for a batch of volumes, or boxes of them."""
        batch = {key: packed_copy(column.take(volumes), allocate) for key, column in self._columns.items()}
        if "spacing" in batch:
            batch["spacing"].values[...] *= step
        if self._geometry:
            spacing, origin, direction = (column.take(volumes) for column in self._geometry)
            corners = np.zeros((len(volumes), 3)) if first is None else first.astype(np.float64)
            batch["affine"] = packed_copy(affines(step * spacing, origin, direction, corners), allocate)
        for key, texts in self._texts.items():
            values = np.array([texts[volume] for volume in volumes.tolist()], np.str_)
            batch[key] = packed_copy(values, allocate)
        if self._sources is not None:
            batch[SOURCE] = packed_copy(self._sources.take(volumes), allocate)
        return batch
