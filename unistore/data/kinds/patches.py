"""One sample = one box of a CT volume: drawn anew each epoch, or a cell of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.boxes import EXTENT, IMAGE, box_source, box_sources, read_padded, volume_columns
from unistore.data.kinds.padding import Pad, check_pad, fill_values, normalize_pad, valid_masks
from unistore.data.kinds.protocol import Picks, require_arrays, select_keys
from unistore.data.kinds.reach import Reach
from unistore.data.kinds.volumes import VolumeMetadata, on_request
from unistore.data.packed import Allocate, Batch, Packed, offsets_from_lengths, packed_copy
from unistore.schemas.indices import Column
from unistore.store.reader import Store
from unistore.system.arguments import Arguments


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
        require_arrays(store, self, EXTENT)
        known = [*box_sources(store), "corner", *volume_columns(store)]
        known += ["valid_extent"] if self.pad == "valid" else []
        return select_keys(known, fields, (*on_request(store), "valid", "valid_extent"))

    def bind(self, store: Store, fields: Sequence[str], units: NDArray[np.int64] | None) -> PatchReader:
        """Reader of boxes in the volumes `units`."""
        return PatchReader(store, self, fields, units)


class PatchReader:
    """Reads boxes; see `SampleReader`."""

    def __init__(
        self, store: Store, kind: Patches, fields: Sequence[str], units: NDArray[np.int64] | None
    ) -> None:
        self._kind = kind
        self._shape = np.array(kind.shape)
        column = Column(store, EXTENT)
        units = np.arange(len(column)) if units is None else units
        extents = column.take(units).astype(np.int64)
        self._reach, kept = _reach(kind, extents)
        self._units, self._extents = (units, extents) if kept is None else (units[kept], extents[kept])
        self._labels = VolumeMetadata(store, fields)
        self._numbers = [key for key in ("corner", "valid_extent") if key in fields]
        self._masks = "valid" in fields
        groups = box_sources(store)
        self._boxes = {key: box_source(store, groups[key]) for key in fields if key in groups}
        images = {key: box.dtype for key, box in self._boxes.items() if groups[key] == IMAGE}
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
                lo, hi, fill = corners[i].tolist(), ends[i].tolist(), self._fills.get(key, 0)
                read_padded(box, volume, lo, hi, out[i], self._kind.pad, fill)
            batch[key] = Packed(out)
        numbers = {"corner": corners, "valid_extent": ends - corners}
        batch |= {key: packed_copy(numbers[key], allocate) for key in self._numbers}
        if self._masks:
            sizes = np.tile(self._shape, (len(picks), 1))
            batch["valid"] = valid_masks("valid", sizes, ends - corners, self._kind.shape, allocate)
        return batch | self._labels.read(self._units[which], allocate)

    def _corners(self, picks: Picks, which: NDArray[np.int64]) -> NDArray[np.int64]:
        room = np.maximum(self._extents[which] - self._shape, 0)
        if self._kind.random:
            return picks.below(room + 1)
        cell = picks.index - self._first[which]
        cells = self._cells[which]
        rest, z = cell % (cells[:, 1] * cells[:, 2]), cell // (cells[:, 1] * cells[:, 2])
        y, x = rest // cells[:, 2], rest % cells[:, 2]
        corners: NDArray[np.int64] = np.minimum(np.stack((z, y, x), axis=1) * self._shape, room)
        return corners


def _reach(kind: Patches, extents: NDArray[np.int64]) -> tuple[Reach, NDArray[np.bool_] | None]:
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
    size, smallest = (" × ".join(map(str, each)) for each in (kind.shape, least.tolist()))
    what = (
        f"boxes of {size} voxels reach beyond {short} of {len(extents)} volumes: depth, height and width are "
        f"{smallest} at least"
    )
    if kind.pad == "drop":
        return Reach(samples=int(cells[~smaller].sum()), problem=what, fitting=fitting), ~smaller
    beyond, padded = int(cells[smaller].sum()), kind.pad is not None
    return Reach(samples=int(cells.sum()), beyond=beyond, padded=padded, problem=what, fitting=fitting), None
