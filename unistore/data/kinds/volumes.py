"""Samples of CT volumes: whole ones at their own extent, and boxes of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

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
from unistore.data.kinds.padding import Pad, check_pad, fill_values, normalize_pad, valid_masks
from unistore.data.kinds.protocol import SOURCE, Picks, SourceNames, require_arrays, select_keys
from unistore.data.kinds.reach import Reach
from unistore.data.packed import Allocate, Batch, Packed, offsets_from_lengths, packed_copy
from unistore.errors import InputError, Problem
from unistore.schemas.indices import Column, whole
from unistore.store.reader import Store
from unistore.system.arguments import Arguments
from unistore.system.hints import Int64s, Shape

_TEXTS = ("name", "info", "metadata", "header", "patient", "series")


def on_request(store: Store) -> tuple[str, ...]:
    """Keys of whole volumes that are read where they are named."""
    return (SOURCE, "extent", *(key for key in _TEXTS if store.has(f"volumes/{key}/data")))


@dataclass(frozen=True, slots=True)
class Volumes:
    """Samples of a CT store: whole volumes without padding.

    Keys: ``image`` (D, H, W) in the stored dtype; every window and mask by its name, (D, H, W) u1 of 0 and 1;
    ``spacing``, ``origin``, ``direction`` if stored; ``<mask>_present``. On request: ``source``, ``name``,
    ``extent`` (3,) of the stored volume, ``info`` (the text of the case's ``info.json``), ``metadata``
    (its row of ``metadata.csv``, as JSON), ``header`` (what is kept of that of its file, as JSON),
    ``patient`` and ``series`` (digests of DICOM).

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
        batch |= self._labels.read(volumes, allocate)
        if self._kind.step > 1 and "spacing" in batch:
            batch["spacing"].values[...] *= self._kind.step
        return batch

    def _check_size(self, store: Store) -> None:
        """Refuse volumes shorter than the samples, unless `pad` says what stands there."""
        short = (self._extents[self._units] < np.array(self._kind.size)).any(axis=1)
        if short.any() and self._kind.pad is None:
            least = " × ".join(map(str, self._extents[self._units].min(axis=0).tolist()))
            message = f"{store.path}: {int(short.sum())} volumes are shorter: of {least} voxels at least"
            raise InputError(Problem("size", message, 'pad="edge", "zero" or a number', "option"))


class VolumeMetadata:
    """Reads values per volume: spacing, origin, names, …."""

    def __init__(self, store: Store, fields: Sequence[str]) -> None:
        paths = volume_columns(store) | {"extent": extent_path(store)}
        self._columns = {key: Column(store, paths[key]) for key in fields if key in paths}
        texts = [key for key in _TEXTS if key in fields]
        self._texts = {key: store.text(f"volumes/{key}") for key in texts}
        self._sources = SourceNames(store) if SOURCE in fields else None

    def read(self, volumes: Int64s, allocate: Allocate) -> Batch:
        """Values for a batch of volumes."""
        batch = {key: packed_copy(column.take(volumes), allocate) for key, column in self._columns.items()}
        for key, texts in self._texts.items():
            values = np.array([texts[volume] for volume in volumes.tolist()], np.str_)
            batch[key] = packed_copy(values, allocate)
        if self._sources is not None:
            batch[SOURCE] = packed_copy(self._sources.take(volumes), allocate)
        return batch


# One sample = one box of a CT volume: drawn anew each epoch, or a cell of a grid.


@dataclass(frozen=True, slots=True)
class Patches:
    """Samples of a CT store: boxes of one size.

    Keys: as `Volumes`, with (d, h, w) of `size` in place of (D, H, W), and ``corner`` (3,) int64, the box's
    first voxel. On request, the former always under ``pad="valid"``: ``valid_extent`` (3,) int64, how far the
    volume reaches into the box from its corner; ``valid`` (d, h, w) bool, True inside the volume.

    Parameters
    ----------
    size
        Depth, height and width in voxels; one number is a cube.
    random
        True: the corner is uniform over the volume, another one each epoch. False: the cells of a grid that
        covers the volume; the last cell of an axis is moved back so that it ends with the volume.
    per_volume
        Random boxes of each volume an epoch.
    pad
        What a box has behind a volume that is smaller than it. None: such boxes are refused, with the
        largest size that fits. ``"edge"``: the last voxel is repeated, of masks too. ``"zero"``: zeros. A
        number: that, of the image; masks are 0. ``"valid"``: zeros, with ``valid_extent`` among the keys.
        ``"drop"``: volumes smaller than the box have no samples.
    """

    size: int | tuple[int, int, int] = (96, 96, 96)
    random: bool = True
    per_volume: int = 1
    pad: Pad = None

    def __post_init__(self) -> None:
        check = Arguments()
        check.sizes("size", self.size, 3)
        check.flag("random", self.random)
        if check.integer("per_volume", self.per_volume, 1) and self.per_volume != 1 and not self.random:
            check.refuse(
                "per_volume", f"is {self.per_volume}, and random is False: a grid covers each volume once"
            )
        check_pad(check, self.pad)
        check.raise_problems()
        object.__setattr__(self, "pad", normalize_pad(self.pad))
        size = tuple(self.size) if isinstance(self.size, (tuple, list)) else (self.size,) * 3
        object.__setattr__(self, "size", size)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Depth, height and width of a box."""
        assert isinstance(self.size, tuple)
        return self.size

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Keys of samples; see `SampleKind.select`."""
        require_arrays(store, self, extent_path(store))
        natural = [*box_sources(store), "corner", *volume_columns(store)]
        natural += ["valid_extent"] if self.pad == "valid" else []
        return select_keys(natural, fields, (*on_request(store), "valid", "valid_extent"))

    def bind(self, store: Store, fields: Sequence[str], units: Int64s | None) -> PatchReader:
        """Reader of boxes in the volumes `units`."""
        return PatchReader(store, self, fields, units)


class PatchReader:
    """Reads boxes; see `SampleReader`."""

    def __init__(self, store: Store, kind: Patches, fields: Sequence[str], units: Int64s | None) -> None:
        self._kind = kind
        self._shape = np.array(kind.shape)
        column = Column(store, extent_path(store))
        units = np.arange(len(column)) if units is None else units
        extents = column.take(units).astype(np.int64)
        self._reach, kept = _reach(kind, extents)
        self._units, self._extents = (units, extents) if kept is None else (units[kept], extents[kept])
        self._labels = VolumeMetadata(store, fields)
        self._numbers = [key for key in ("corner", "valid_extent") if key in fields]
        self._masks = "valid" in fields
        groups = box_sources(store)
        self._boxes = {key: box_source(store, groups[key]) for key in fields if key in groups}
        images = {key: box.dtype for key, box in self._boxes.items() if store.has(groups[key])}
        self._fills = fill_values(kind.pad, images)
        cells = np.full(len(self._units), kind.per_volume)
        self._cells = -(-self._extents // self._shape)
        self._first = offsets_from_lengths(cells if kind.random else self._cells.prod(axis=1))

    def __len__(self) -> int:
        return int(self._first[-1])

    def reach(self) -> Reach:
        """See `CuttingReader.reach`."""
        return self._reach

    def read(self, picks: Picks, allocate: Allocate) -> Batch:
        """Read a batch of boxes."""
        which = np.searchsorted(self._first, picks.index, side="right") - 1
        corners = self._corners(picks, which)
        ends = np.minimum(corners + self._shape, self._extents[which])
        batch: Batch = {}
        for key, box in self._boxes.items():
            out = allocate((len(picks), *self._kind.shape), box.dtype)
            for i, volume in enumerate(self._units[which].tolist()):
                lo = corners[i].tolist()
                hi = ends[i].tolist()
                fill = self._fills.get(key, 0)
                read_padded(box, volume, lo, hi, out[i], self._kind.pad, fill)
            batch[key] = Packed(out)
        numbers = {"corner": corners, "valid_extent": ends - corners}
        batch |= {key: packed_copy(numbers[key], allocate) for key in self._numbers}
        if self._masks:
            sizes = np.tile(self._shape, (len(picks), 1))
            batch["valid"] = valid_masks("valid", sizes, ends - corners, self._kind.shape, allocate)
        return batch | self._labels.read(self._units[which], allocate)

    def _corners(self, picks: Picks, which: Int64s) -> Int64s:
        room = np.maximum(self._extents[which] - self._shape, 0)
        if self._kind.random:
            return picks.below(room + 1)
        cell = picks.index - self._first[which]
        cells = self._cells[which]
        in_plane = cell % (cells[:, 1] * cells[:, 2])
        z = cell // (cells[:, 1] * cells[:, 2])
        y = in_plane // cells[:, 2]
        x = in_plane % cells[:, 2]
        corners: Int64s = np.minimum(np.stack((z, y, x), axis=1) * self._shape, room)
        return corners


def _reach(kind: Patches, extents: Int64s) -> tuple[Reach, NDArray[np.bool_] | None]:
    """How boxes go with volumes of `extents` (V, 3), and which volumes have samples; None: all."""
    cells = (
        np.full(len(extents), kind.per_volume) if kind.random else (-(-extents // kind.shape)).prod(axis=1)
    )
    smaller: NDArray[np.bool_] = np.any(extents < np.array(kind.shape), axis=1)
    short = int(smaller.sum())
    if not short:
        return Reach(samples=int(cells.sum())), None
    least = extents.min(axis=0)
    fitting = replace(kind, size=tuple(np.minimum(kind.shape, np.maximum(least, 1)).tolist()), pad=None)
    size = " × ".join(map(str, kind.shape))
    smallest = " × ".join(map(str, least.tolist()))
    what = (
        f"boxes of {size} voxels reach beyond {short} of {len(extents)} volumes: depth, height and width are "
        f"{smallest} at least"
    )
    if kind.pad == "drop":
        return Reach(samples=int(cells[~smaller].sum()), problem=what, fitting=fitting), ~smaller
    beyond = int(cells[smaller].sum())
    padded = kind.pad is not None
    return Reach(samples=int(cells.sum()), beyond=beyond, padded=padded, problem=what, fitting=fitting), None
