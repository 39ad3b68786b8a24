"""Choose the locations of at most so many voxels of each class, seeded, in one pass over a file."""

# A voxel's rank is a random number that depends on its place alone, and the smallest ranks are kept: a
# uniform choice, the same however the file is divided and ordered.

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.ct.slabs import VolumeArray, slabs
from unistore.schemas.ct.voxels import VoxelTest

# Classes of a volume that have locations; where there are more, numbers are those of instances.
MOST_CLASSES = 128
_LARGEST = (1 << 16) - 1  # largest number of a class
_ANY_RANK = np.uint32((1 << 32) - 1)
_SEED = 29
_AT_ONCE = 1 << 16  # voxels that are looked at together, or one plane


class Locations(NamedTuple):
    """Voxels of the classes of a volume, class after class, in C order."""

    classes: NDArray[np.uint16]  # (K,) ascending; more than `MOST_CLASSES`: too many for locations
    lengths: NDArray[np.int64]  # (K,) voxels of each
    coords: NDArray[np.int32]  # (sum of lengths, 3) depth, height, width


def locations_of(
    array: VolumeArray, tests: Mapping[str, VoxelTest | None], most: int
) -> dict[str, Locations]:
    """Read a file once and find the locations of each name's classes: of a test class 1, else the values."""
    choices = {name: _Choice(array.shape, most) for name in tests}
    for box, (values,) in slabs([array]):
        # After a few planes only small ranks are looked at, so that dense classes cost little.
        step = max(1, _AT_ONCE // max(1, values[:1].size))
        for first in range(0, len(values), step):
            part = values[first : first + step]
            corner = ((box[0].start or 0) + first, box[1].start or 0, box[2].start or 0)
            for name, test in tests.items():
                choices[name].add(corner, _classes(part) if test is None else test(part).view(np.uint8))
    return {name: choice.locations() for name, choice in choices.items()}


def locations_bytes(voxels: int, most: int) -> int:
    """Return the bytes that `locations_of` allocates besides slabs, for the labels of so many voxels."""
    return 64 * min(voxels, 2 * most * MOST_CLASSES) + (1 << 24)


def _classes(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Return the values that are numbers of classes. Background and what is left out are 0."""
    if values.dtype.kind == "u" and values.dtype.itemsize <= 2:
        return values.astype(np.uint16)
    is_class = (values > 0) & (values <= _LARGEST)
    return np.where(is_class, values, 0).astype(np.uint16)


class _Choice:
    """The voxels of smallest rank of each class, so far."""

    def __init__(self, shape: tuple[int, ...], most: int) -> None:
        self._shape = shape
        self._most = most
        depth, height, _ = shape
        # Ranks are made by simple tabulation hashing (Pătraşcu and Thorup 2012): one exclusive or a voxel.
        words = np.random.Philox(_SEED).random_raw(sum(shape)) >> np.uint64(32)
        self._ranks = np.split(words.astype(np.uint32), [depth, depth + height])
        # Rank of the last voxel that is kept of each class; larger ones need not be looked at.
        self._limits = np.full(_LARGEST + 1, _ANY_RANK)
        none = np.empty(0, np.uint8)
        self._parts: list[tuple[NDArray[Any], ...]] = [(none, none, none.astype(np.int64))]
        self._too_many = False
        self._pending = 0
        self._kept = 0

    def add(self, corner: tuple[int, int, int], classes: NDArray[Any]) -> None:
        """Look at the voxels of a box at `corner`: their classes, (d, h, w) unsigned, 0 of none."""
        if self._too_many:
            return
        depth, height, width = (
            ranks[low : low + length]
            for ranks, low, length in zip(self._ranks, corner, classes.shape, strict=True)
        )
        ranks = depth[:, None, None] ^ height[:, None] ^ width
        place = np.nonzero((classes != 0) & (ranks <= self._limits[classes]))
        axes = [axis + low for axis, low in zip(place, corner, strict=True)]
        flat = np.ravel_multi_index(axes, self._shape)
        self._parts.append((classes[place], ranks[place], flat))
        self._pending += len(flat)
        if self._pending > self._kept + 4 * self._most:
            self._reduce()

    def _reduce(self) -> None:
        """Keep the voxels of smallest rank of each class."""
        classes, ranks, flat = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        order = np.lexsort((flat, ranks, classes))
        ordered = classes[order]
        starts = np.searchsorted(ordered, ordered)
        number = np.arange(len(order)) - starts
        kept = order[number < self._most]
        last = order[number == self._most - 1]
        self._limits[classes[last]] = ranks[last]
        # The voxels of instances without number would not fit into memory.
        self._too_many = len(np.unique(classes)) > MOST_CLASSES
        self._parts = [(classes[kept], ranks[kept], flat[kept])]
        self._kept = len(kept)
        self._pending = 0

    def locations(self) -> Locations:
        """Return what was found."""
        self._reduce()
        classes, _, flat = self._parts[0]
        order = np.lexsort((flat, classes))
        numbers, lengths = np.unique(classes, return_counts=True)
        coords = np.stack(np.unravel_index(flat[order], self._shape), axis=1)
        return Locations(numbers.astype(np.uint16), lengths.astype(np.int64), coords.astype(np.int32))
