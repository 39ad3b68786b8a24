"""One sample = one box of a CT volume: drawn anew each epoch, or a cell of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.boxes import EXTENT, BoxSource, box_source, box_sources, volume_columns
from unistore.data.kinds.protocol import Picks, chosen, require
from unistore.data.kinds.volumes import ON_REQUEST, VolumeLabels
from unistore.data.packed import Allocate, Batch, Packed, offsets_from_lengths, placed
from unistore.schemas.indices import Column
from unistore.store.reader import Store
from unistore.system.arguments import Arguments

__all__ = ["Patches"]


@dataclass(frozen=True, slots=True)
class Patches:
    """Samples of a CT store: boxes of one size.

    Keys: as `Volumes`, with (d, h, w) of `size` in place of (D, H, W), and ``corner`` (3,) int64, the box's
    first voxel. Where a volume is smaller than the box, the image's fill value (masks: 0) follows it.

    Parameters
    ----------
    size
        Depth, height and width in voxels; one number is a cube.
    random
        True: the corner is uniform over the volume, another one each epoch. False: the cells of a grid that
        covers the volume; the last cell of an axis is moved back so that it ends with the volume.
    per_volume
        Random boxes of each volume an epoch.
    """

    size: int | tuple[int, int, int] = (96, 96, 96)
    random: bool = True
    per_volume: int = 1

    def __post_init__(self) -> None:
        check = Arguments()
        check.sizes("size", self.size, 3)
        check.flag("random", self.random)
        if check.whole("per_volume", self.per_volume, 1) and self.per_volume != 1 and not self.random:
            check.refuse(
                "per_volume", f"is {self.per_volume}, and random is False: a grid covers each volume once"
            )
        check.settle()
        size = tuple(self.size) if isinstance(self.size, (tuple, list)) else (self.size,) * 3
        object.__setattr__(self, "size", size)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Depth, height and width of a box."""
        assert isinstance(self.size, tuple)
        return self.size

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Keys of samples; see `SampleKind.select`."""
        require(store, "ct", self)
        return chosen([*box_sources(store), "corner", *volume_columns(store)], fields, ON_REQUEST)

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
        extents = Column(store, EXTENT)
        self._units = np.arange(len(extents)) if units is None else units
        self._extents = extents.take(self._units).astype(np.int64)
        self._labels = VolumeLabels(store, fields)
        self._corner = "corner" in fields
        groups = box_sources(store)
        self._boxes = {key: box_source(store, groups[key]) for key in fields if key in groups}
        cells = np.full(len(self._units), kind.per_volume)
        self._cells = -(-self._extents // self._shape)
        self._first = offsets_from_lengths(cells if kind.random else self._cells.prod(axis=1))

    def __len__(self) -> int:
        return int(self._first[-1])

    def read(self, picks: Picks, allocate: Allocate) -> Batch:
        """Read a batch of boxes."""
        which = np.searchsorted(self._first, picks.index, side="right") - 1
        corners = self._corners(picks, which)
        ends = np.minimum(corners + self._shape, self._extents[which])
        batch: Batch = {}
        for key, box in self._boxes.items():
            out = allocate((len(picks), *self._kind.shape), box.dtype)
            for i, volume in enumerate(self._units[which].tolist()):
                _read(box, volume, corners[i].tolist(), ends[i].tolist(), out[i])
            batch[key] = Packed(out)
        if self._corner:
            batch["corner"] = placed(corners, allocate)
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


def _read(box: BoxSource, volume: int, lo: list[int], hi: list[int], out: NDArray[np.generic]) -> None:
    extent = tuple(b - a for a, b in zip(lo, hi, strict=True))
    if extent == out.shape:
        box.read(volume, lo, hi, out)
        return
    inside = np.empty(extent, out.dtype)
    box.read(volume, lo, hi, inside)
    out[...] = box.fill
    out[tuple(slice(n) for n in extent)] = inside
