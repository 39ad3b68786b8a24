"""Samples of CT volumes that are boxes: drawn anew each epoch, or the cells of a grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.boxes import (
    BoxSource,
    SteppedBox,
    box_source,
    box_sources,
    extent_path,
    read_padded,
    volume_columns,
)
from unistore.data.kinds.foreground import Foreground, Shares, find_target, shares_of
from unistore.data.kinds.padding import Pad, check_pad, fill_values, normalize_pad, valid_masks
from unistore.data.kinds.protocol import Picks, require_arrays, select_keys
from unistore.data.kinds.reach import Reach
from unistore.data.kinds.volumes import VolumeMetadata, on_request
from unistore.data.packed import Allocate, Batch, Packed, offsets_from_lengths, packed_copy
from unistore.errors import InputError, Problem
from unistore.schemas.indices import Column, whole
from unistore.store.reader import Store
from unistore.system.arguments import Arguments, matches_type
from unistore.system.hints import Int64s, Shape


@dataclass(frozen=True, slots=True)
class Patches:
    """Samples of a CT store: boxes of one size.

    Keys: as `Volumes`, with (d, h, w) of `size` in place of (D, H, W), and ``corner`` (3,) int64, the box's
    first voxel, counted in steps. On request, the former always under ``pad="valid"``: ``valid_extent`` (3,)
    int64, how far the volume reaches into the box from its corner; ``valid`` (d, h, w) bool, True inside the
    volume. With `foreground`, ``foreground`` () int32: the class of the voxel that the box is centred on, 0
    of a uniform box.

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
    step
        Take every `step`-th voxel of each axis, as `Volumes` does: boxes are those of ``Volumes(step=…)``.
    overlap
        Share of a box, on each axis, that the next cell of a grid has in common with it: 0.5 halves the step.
        `unistore.stitch` joins predictions of the cells.
    foreground
        Centre boxes on voxels of a mask, label or window, as far as the volume's border allows: by its name,
        by the name of a class of a label, or ``"seg:2"``. A class of the volume is drawn first, then one of
        its voxels, from those that ``unistore convert --foreground-locations`` stored. Shares by name:
        ``{"tumour": 0.3, "liver": 0.1}``, and 0.6 of the boxes are uniform. In volumes that lack it, boxes
        are uniform.
    """

    size: int | tuple[int, int, int] = (96, 96, 96)
    random: bool = True
    per_volume: int = 1
    pad: Pad = None
    step: int = 1
    overlap: float = 0.0
    foreground: str | Mapping[str, float] | Shares | None = None

    def __post_init__(self) -> None:
        check = Arguments()
        check.sizes("size", self.size, 3)
        check.flag("random", self.random)
        if check.integer("per_volume", self.per_volume, 1) and self.per_volume != 1 and not self.random:
            check.refuse(
                "per_volume", f"is {self.per_volume}, and random is False: a grid covers each volume once"
            )
        check_pad(check, self.pad)
        check.integer("step", self.step, 1)
        is_share = matches_type(self.overlap, float) and 0 <= self.overlap < 1
        if check.expect("overlap", self.overlap, is_share, "a share of a box, from 0 to below 1"):
            object.__setattr__(self, "overlap", float(self.overlap))
            if self.overlap and self.random is True:
                check.refuse("overlap", "is of the cells of a grid", "random=False")
        if self.foreground is not None:
            if self.random is False:
                check.refuse("foreground", "is of random boxes", "leave it or random=False out")
            object.__setattr__(self, "foreground", shares_of(check, self.foreground))
        check.raise_problems()
        object.__setattr__(self, "pad", normalize_pad(self.pad))
        size = tuple(self.size) if isinstance(self.size, (tuple, list)) else (self.size,) * 3
        object.__setattr__(self, "size", size)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Depth, height and width of a box."""
        assert isinstance(self.size, tuple)
        return self.size

    @property
    def shares(self) -> Shares:
        """Share of the boxes that are centred on each name."""
        assert not isinstance(self.foreground, (str, Mapping))
        return self.foreground or ()

    def cells(self, extents: Int64s) -> Int64s:
        """Return how many cells of the grid volumes of `extents` (V, 3) have along each axis, (V, 3)."""
        room = np.maximum(extents - self.shape, 0)
        cells: Int64s = -(-room // self.strides) + 1
        return np.where(extents > 0, cells, 0)

    @property
    def strides(self) -> Int64s:
        """Voxels from one cell of the grid to the next, (3,)."""
        return np.maximum(1, np.rint(np.array(self.shape) * (1 - self.overlap))).astype(np.int64)

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Keys of samples; see `SampleKind.select`."""
        require_arrays(store, self, extent_path(store))
        for name, _ in self.shares:
            find_target(store, name)
        known = [*box_sources(store), "corner", *volume_columns(store)]
        known += ["valid_extent"] if self.pad == "valid" else []
        further = ["valid", "valid_extent"] + (["foreground"] if self.shares else [])
        return select_keys(known, fields, (*on_request(store), *further))

    def bind(self, store: Store, fields: Sequence[str], units: Int64s | None) -> PatchReader:
        """Reader of boxes in the volumes `units`."""
        return PatchReader(store, self, fields, units)


class GridCell(NamedTuple):
    """Where a cell of a grid lies."""

    volume: int  # number of its volume among those of the split
    corner: tuple[int, ...]  # its first voxel
    extent: tuple[int, ...]  # depth, height and width of the volume, in steps
    cells: int  # that cover the volume


class PatchReader:
    """Reads boxes; see `SampleReader`."""

    def __init__(self, store: Store, kind: Patches, fields: Sequence[str], units: Int64s | None) -> None:
        self._kind = kind
        self._shape = np.array(kind.shape)
        column = Column(store, extent_path(store))
        units = np.arange(len(column)) if units is None else units
        extents = -(-column.take(units).astype(np.int64) // kind.step)
        self._reach, kept = _reach(kind, extents)
        self._numbers = np.arange(len(units)) if kept is None else np.flatnonzero(kept)
        self._units = units[self._numbers]
        self._extents = extents[self._numbers]
        self._labels = VolumeMetadata(store, fields)
        self._keys = [key for key in ("corner", "valid_extent", "foreground") if key in fields]
        self._masks = "valid" in fields
        groups = box_sources(store)
        self._boxes: dict[str, BoxSource] = {
            key: box_source(store, groups[key]) for key in fields if key in groups
        }
        if kind.step > 1:
            stored = whole(store, extent_path(store)).astype(np.int64)
            self._boxes = {key: SteppedBox(box, kind.step, stored) for key, box in self._boxes.items()}
        images = {key: box.dtype for key, box in self._boxes.items() if store.has(groups[key])}
        self._fills = fill_values(kind.pad, images)
        self._cells = kind.cells(self._extents)
        counts = np.full(len(self._units), kind.per_volume) if kind.random else self._cells.prod(axis=1)
        self._first = offsets_from_lengths(counts)
        self._foreground = Foreground(store, kind.shares) if kind.shares else None
        is_pointless = self._foreground is not None and not self._foreground.has_any(self._units)
        if is_pointless and len(self._units):
            names = ", ".join(name for name, _ in kind.shares)
            message = f"{store.path}: none of these {len(self._units)} volumes has a voxel of {names}"
            raise InputError(Problem("foreground", message, "leave it out, or name another", "option"))

    def __len__(self) -> int:
        return int(self._first[-1])

    def box_shape(self, key: str) -> Shape | None:
        """See `BoxReader.box_shape`."""
        return self._kind.shape if key in self._boxes else None

    def reach(self) -> Reach:
        """See `CuttingReader.reach`."""
        return self._reach

    def read(self, picks: Picks, allocate: Allocate) -> Batch:
        """Read a batch of boxes."""
        which = self._volume_of(picks.index)
        corners = self._corners(picks, which)
        classes = np.zeros(len(picks), np.int32)
        if self._foreground is not None:
            classes = self._centre(picks, which, corners)
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
        numbers = {"corner": corners, "valid_extent": ends - corners, "foreground": classes}
        batch |= {key: packed_copy(numbers[key], allocate) for key in self._keys}
        if self._masks:
            sizes = np.tile(self._shape, (len(picks), 1))
            batch["valid"] = valid_masks("valid", sizes, ends - corners, self._kind.shape, allocate)
        return batch | self._labels.read(self._units[which], allocate, corners, self._kind.step)

    def _volume_of(self, index: Int64s) -> Int64s:
        """Return which of the volumes each box is of, (B,)."""
        which: Int64s = np.searchsorted(self._first, index, side="right") - 1
        return which

    def _centre(self, picks: Picks, which: Int64s, corners: Int64s) -> NDArray[np.int32]:
        """Move boxes onto voxels of the foreground, and return the classes of these."""
        assert self._foreground is not None
        centres, classes = self._foreground.draw(picks, corners.shape[1], self._units[which])
        moved = centres // self._kind.step - self._shape // 2
        room = np.maximum(self._extents[which] - self._shape, 0)
        corners[...] = np.where(classes[:, None] > 0, np.clip(moved, 0, room), corners)
        return classes

    def cell(self, index: int) -> GridCell:
        """Return where a cell of the grid lies."""
        picks = Picks(np.array([index]), np.zeros(1, np.int64))
        which = self._volume_of(picks.index)
        corner = self._corners(picks, which)[0]
        volume = int(which[0])
        extent = self._extents[volume]
        count = int(self._cells[volume].prod())
        return GridCell(int(self._numbers[volume]), tuple(corner.tolist()), tuple(extent.tolist()), count)

    def _corners(self, picks: Picks, which: Int64s) -> Int64s:
        room = np.maximum(self._extents[which] - self._shape, 0)
        if self._kind.random:
            return picks.below(room + 1)
        cell = picks.index - self._first[which]
        cells = self._cells[which]
        rest = cell % (cells[:, 1] * cells[:, 2])
        z = cell // (cells[:, 1] * cells[:, 2])
        y = rest // cells[:, 2]
        x = rest % cells[:, 2]
        corners: Int64s = np.minimum(np.stack((z, y, x), axis=1) * self._kind.strides, room)
        return corners


def _reach(kind: Patches, extents: Int64s) -> tuple[Reach, NDArray[np.bool_] | None]:
    """How boxes go with volumes of `extents` (V, 3), and which volumes have samples; None: all."""
    cells = np.full(len(extents), kind.per_volume) if kind.random else kind.cells(extents).prod(axis=1)
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
