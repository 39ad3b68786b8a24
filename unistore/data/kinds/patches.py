"""Samples of CT volumes that are boxes: drawn anew each epoch, or the cells of a grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.boxes import BoxReader, box_sources, extent_path, on_request, volume_columns
from unistore.data.kinds.foreground import Foreground, Shares, find_target, shares_of
from unistore.data.kinds.padding import (
    Pad,
    check_pad,
    normalize_pad,
    reach_of_boxes,
    set_sizes,
    valid_masks,
)
from unistore.data.kinds.protocol import (
    Picks,
    Reach,
    SampleKind,
    SampleReader,
    require_arrays,
    select_keys,
)
from unistore.data.kinds.volumes import Volumes
from unistore.data.packed import Allocate, Batch, offsets_from_lengths, packed_copy
from unistore.store.reader import Store
from unistore.system.arguments import Arguments, matches_type, wrong_argument
from unistore.system.hints import Int64s, Shape


class PatchReader(SampleReader):
    """Reads boxes."""

    def __init__(self, store: Store, kind: Patches, fields: Sequence[str], units: Int64s) -> None:
        self._kind = kind
        self._fields = fields
        self._volumes = BoxReader(store, fields, kind.pad, kind.step)
        extents = self._volumes.extents
        counts = kind.cells(extents[units]).prod(axis=1)
        if kind.random:
            counts = np.full(len(units), kind.per_volume)
        nouns = ("boxes of {} voxels", "volumes")
        self._reach, has_samples = reach_of_boxes(kind, "size", extents[units], counts, nouns)
        self._numbers = np.flatnonzero(has_samples)
        self._units = units[self._numbers]
        self._extents = extents[self._units]
        self._first = offsets_from_lengths(counts[self._numbers])
        self._foreground = Foreground(store, kind.shares) if kind.shares else None
        is_pointless = self._foreground is not None and not self._foreground.has_any(self._units)
        if is_pointless and len(self._units):
            names = ", ".join(name for name, _ in kind.shares)
            message = f"{store.path}: none of these {len(self._units)} volumes has a voxel of {names}"
            raise wrong_argument("foreground", message, "leave it out, or name another")

    def __len__(self) -> int:
        return int(self._first[-1])

    def box_shape(self, key: str) -> Shape | None:
        """Return the common shape of a key that is a box in all samples."""
        return self._kind.shape if key == "valid" or key in self._volumes.boxes else None

    def reach(self) -> Reach:
        """Return whether the sizes and limits of the kind fit the store."""
        return self._reach

    def read(self, picks: Picks, allocate: Allocate) -> Batch:
        """Read a batch of boxes."""
        which = self._volume_of(picks.index)
        corners = self._corners(picks, which)
        classes = np.zeros(len(picks), np.int32)
        if self._foreground is not None:
            classes = self._centre(picks, which, corners)
        shape = self._kind.shape
        sizes = np.tile(np.array(shape), (len(picks), 1))
        batch = self._volumes.read_boxes(self._units[which], corners, sizes, shape, allocate)
        inside = np.minimum(sizes, self._extents[which] - corners)
        numbers = {"corner": corners, "valid_extent": inside, "foreground": classes}
        batch |= {key: packed_copy(numbers[key], allocate) for key in self._fields if key in numbers}
        if "valid" in self._fields:
            batch["valid"] = valid_masks("valid", sizes, inside, shape, allocate)
        return batch

    def _volume_of(self, index: Int64s) -> Int64s:
        which: Int64s = np.searchsorted(self._first, index, side="right") - 1
        return which

    def _room(self, which: Int64s) -> Int64s:
        room: Int64s = np.maximum(self._extents[which] - self._kind.shape, 0)
        return room

    def _centre(self, picks: Picks, which: Int64s, corners: Int64s) -> NDArray[np.int32]:
        assert self._foreground is not None
        centres, classes = self._foreground.draw(picks, corners.shape[1], self._units[which])
        moved = centres // self._kind.step - np.array(self._kind.shape) // 2
        corners[...] = np.where(classes[:, None] > 0, np.clip(moved, 0, self._room(which)), corners)
        return classes

    def cell(self, index: int) -> GridCell:
        """Return where a cell of the grid lies."""
        picks = Picks(np.array([index]), np.zeros(1, np.int64))
        which = self._volume_of(picks.index)
        (corner,) = self._corners(picks, which).tolist()
        (extent,) = self._extents[which].tolist()
        cells = int(self._kind.cells(self._extents[which]).prod())
        return GridCell(int(self._numbers[which[0]]), tuple(corner), tuple(extent), cells)

    def _corners(self, picks: Picks, which: Int64s) -> Int64s:
        if self._kind.random:
            return picks.below(self._room(which) + 1)
        cell = picks.index - self._first[which]
        _, height, width = self._kind.cells(self._extents[which]).T
        places = np.stack((cell // (height * width), cell // width % height, cell % width), axis=1)
        corners: Int64s = np.minimum(places * self._kind.strides, self._room(which))
        return corners


@dataclass(frozen=True, slots=True)
class Patches(SampleKind):
    """Samples of a CT store: boxes of one size.

    Keys: as `Volumes`, with (d, h, w) of `size` in place of (D, H, W), and ``corner`` (3,) int64, the box's
    first voxel, counted in steps. On request, the former always under ``pad="valid"``: ``valid_extent`` (3,)
    int64, how far the volume reaches into the box from its corner. ``valid`` (d, h, w) bool, True inside the
    volume. With `foreground`, ``foreground`` () int32: the class of the voxel that the box is centred on, 0
    of a uniform box.

    Parameters
    ----------
    size
        Depth, height and width in voxels. One number is a cube.
    random
        True: the corner is uniform over the volume, another one each epoch. False: the cells of a grid that
        covers the volume. The last cell of an axis is moved back so that it ends with the volume.
    per_volume
        Random boxes of each volume an epoch.
    pad
        What a box has behind a volume that is smaller than it. None: such boxes are refused, with the
        largest size that fits. ``"edge"``: the last voxel is repeated, of masks too. ``"zero"``: zeros. A
        number: that, of the image. Masks are 0. ``"valid"``: zeros, with ``valid_extent`` among the keys.
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

    reader: ClassVar = PatchReader

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
        set_sizes(self, "size", 3)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the depth, height and width of a box."""
        assert isinstance(self.size, tuple)
        return self.size

    @property
    def shares(self) -> Shares:
        """Return the share of the boxes that are centred on each name."""
        assert not isinstance(self.foreground, (str, Mapping))
        return self.foreground or ()

    def cells(self, extents: Int64s) -> Int64s:
        """Return how many cells of the grid volumes of `extents` (V, 3) have along each axis, (V, 3)."""
        room = np.maximum(extents - self.shape, 0)
        cells: Int64s = -(-room // self.strides) + 1
        return np.where(extents > 0, cells, 0)

    @property
    def strides(self) -> Int64s:
        """Return the voxels from one cell of the grid to the next, (3,)."""
        return np.maximum(1, np.rint(np.array(self.shape) * (1 - self.overlap))).astype(np.int64)

    @property
    def whole(self) -> SampleKind | None:
        """Return the kind whose samples are whole rows of the sample table."""
        return Volumes(step=self.step)

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Return the keys of samples."""
        require_arrays(store, self, extent_path(store))
        for name, _ in self.shares:
            find_target(store, name)
        keys = [*box_sources(store), "corner", *volume_columns(store)]
        keys += ["valid_extent"] if self.pad == "valid" else []
        further = ["valid", "valid_extent"] + (["foreground"] if self.shares else [])
        return select_keys(keys, fields, (*on_request(store), *further))


class GridCell(NamedTuple):
    """Where a cell of a grid lies."""

    volume: int  # number of its volume among those of the split
    corner: tuple[int, ...]  # its first voxel
    extent: tuple[int, ...]  # depth, height and width of the volume, in steps
    cells: int  # that cover the volume
