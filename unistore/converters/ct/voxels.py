"""Voxels of a volume: as bits, as points, counted in each plane, and locations of some."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.ct.slabs import Box, VolumeArray, VolumeFile, planes, slabs
from unistore.schemas.ct.voxels import ValueRange, VoxelTest, inside, limit
from unistore.schemas.ct.windows import Window
from unistore.system.types import AnyArray, Int64s, Shape, UInt8s

# Choose the locations of at most so many voxels of each class, seeded, in one pass over a file.
#
# A voxel's rank is a random number that depends on its place alone, and the smallest ranks are kept: a
# uniform choice, the same however the file is divided and ordered.

# Classes of a volume that have locations; where there are more, numbers are those of instances.
MOST_CLASSES = 128
_LARGEST = (1 << 16) - 1  # largest number of a class
_ANY_RANK = np.uint32((1 << 32) - 1)
_SEED = 29
_AT_ONCE = 1 << 16  # voxels that are looked at together, or one plane


class Locations(NamedTuple):
    """Voxels of the classes of a volume, class after class, in C order."""

    classes: NDArray[np.uint16]  # (K,) ascending; more than `MOST_CLASSES`: too many for locations
    lengths: Int64s  # (K,) voxels of each
    coords: NDArray[np.int32]  # (sum of lengths, 3) depth, height, width


def locations_of(array: VolumeFile, tests: Mapping[str, VoxelTest | None], most: int) -> dict[str, Locations]:
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


def _classes(values: AnyArray) -> NDArray[np.uint16]:
    """The values that are numbers of classes. Background and what is left out are 0."""
    if values.dtype.kind == "u" and values.dtype.itemsize <= 2:
        return values.astype(np.uint16)
    is_class = (values > 0) & (values <= _LARGEST)
    return np.where(is_class, values, 0).astype(np.uint16)


class _Choice:
    """The voxels of smallest rank of each class, so far."""

    def __init__(self, shape: Shape, most: int) -> None:
        self._shape = shape
        self._most = most
        depth, height, _ = shape
        # Ranks are made by simple tabulation hashing (Pătraşcu and Thorup 2012): one exclusive or a voxel.
        words = np.random.Philox(_SEED).random_raw(sum(shape)) >> np.uint64(32)
        self._ranks = np.split(words.astype(np.uint32), [depth, depth + height])
        # Rank of the last voxel that is kept of each class; larger ones need not be looked at.
        self._limits = np.full(_LARGEST + 1, _ANY_RANK)
        none = np.empty(0, np.uint8)
        self._parts: list[tuple[AnyArray, ...]] = [(none, none, none.astype(np.int64))]
        self._too_many = False
        self._pending = 0
        self._kept = 0

    def add(self, corner: tuple[int, int, int], classes: AnyArray) -> None:
        """Look at the voxels of a box at `corner`: their classes, (d, h, w) unsigned, 0 of none."""
        if self._too_many:
            return
        parts = [
            ranks[low : low + length]
            for ranks, low, length in zip(self._ranks, corner, classes.shape, strict=True)
        ]
        depth, height, width = np.ix_(*parts)
        ranks = depth ^ height ^ width
        place = np.nonzero((classes != 0) & (ranks <= self._limits[classes]))
        flat = np.ravel_multi_index(tuple(np.add(place, np.array(corner)[:, None])), self._shape)
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
        """What was found."""
        self._reduce()
        classes, _, flat = self._parts[0]
        order = np.lexsort((flat, classes))
        numbers, lengths = np.unique(classes, return_counts=True)
        coords = np.stack(np.unravel_index(flat[order], self._shape), axis=1)
        return Locations(numbers.astype(np.uint16), lengths.astype(np.int64), coords.astype(np.int32))


LISTED = 1 << 19  # voxels whose points are computed at a time, or one plane if that has more


def read_bits(
    array: VolumeFile,
    tests: Mapping[str, VoxelTest],
    out: Mapping[str, UInt8s],
    lo: int = 0,
    hi: int | None = None,
) -> None:
    """Write the bit masks of planes ``lo:hi`` to `out`, by name: (D, H, ⌈W/8⌉) u1, zero, or larger."""
    for box, (values,) in slabs([array], lo, hi):
        for name, bits in out.items():
            _pack(tests[name](values), bits, box)


def bit_shape(extent: Sequence[int]) -> tuple[int, int, int]:
    """Return the shape of the bit mask of a (D, H, W) volume: (D, H, ⌈W/8⌉)."""
    depth, height, width = extent
    return depth, height, -(-width // 8)


def _pack(inside: NDArray[np.bool_], bits: UInt8s, box: Box) -> None:
    """Write a slab's mask into the bit mask (which is zero there, and may be larger than the volume)."""
    depth, height, width = inside.shape
    first = box[0].start or 0
    column = (box[2].start or 0) // 8
    target = bits[first : first + depth, :height, column : column + -(-width // 8)]
    if inside.flags.c_contiguous and width % 8 == 0:  # no byte holds bits of two rows
        target[...] = np.packbits(inside.reshape(-1), bitorder="little").reshape(target.shape)
        return
    if inside.flags.c_contiguous:
        target[...] = np.packbits(inside, axis=-1, bitorder="little")
        return
    ones = inside.view(np.uint8)
    for byte in range(target.shape[2]):  # along width a Fortran slab's voxels are whole planes apart
        packed = ones[:, :, 8 * byte].copy(order="F")
        for bit in range(1, min(8, width - 8 * byte)):
            packed |= ones[:, :, 8 * byte + bit] << np.uint8(bit)
        target[:, :, byte] = packed


def list_bytes(array: VolumeArray) -> int:
    """Return the bytes that `read_points` allocates besides planes: indices, coordinates, values."""
    return 40 * max(LISTED, math.prod(array.shape[1:]))


def read_points(
    array: VolumeFile, test: VoxelTest, lo: int, hi: int, counts: Int64s | None = None
) -> Iterator[tuple[slice, int, Int64s, AnyArray]]:
    """Yield the points number `lo` to ``hi - 1`` of a window, in C order.

    Parameters
    ----------
    array : VolumeFile
        The image.
    test : callable
        Returns which voxels are inside the window.
    lo, hi : int
        Number of the first point, and the number after the last.
    counts : int64 array of shape (D,), optional
        Number of points in each plane. Planes before point `lo` are then not read.

    Yields
    ------
    slice
        Points, counted from `lo`.
    int
        Number of the first plane.
    int64 array
        Indices of the points from that plane on; see `point_coords`.
    array
        Voxels.
    """
    begin = 0
    before = 0
    if counts is not None:
        ends = np.cumsum(counts)
        begin = int(np.searchsorted(ends, lo, side="right"))
        before = int(ends[begin - 1]) if begin else 0
    step = max(1, LISTED // max(1, math.prod(array.shape[1:])))
    for number, block in planes(array, begin):
        for first in range(0, len(block), step):
            if before >= hi:
                return
            part = block[first : first + step]
            flat = np.flatnonzero(test(part))
            start = max(lo, before)
            stop = min(hi, before + len(flat))
            if start < stop:
                chosen = flat[start - before : stop - before]
                yield slice(start - lo, stop - lo), number + first, chosen, part.reshape(-1).take(chosen)
            before += len(flat)


def point_coords(flat: Int64s, first: int, extent: Sequence[int], out: AnyArray) -> None:
    """Write depth, height, width of C-order indices `flat` (counted from plane `first`) to `out`, (n, 3)."""
    _, height, width = extent
    small = len(flat) == 0 or int(flat[-1]) < 1 << 32  # 32-bit division takes half the time
    kind: Any = np.uint32 if small else np.uint64
    index: AnyArray = flat.astype(kind)
    row: AnyArray = index // kind(width)
    plane: AnyArray = row // kind(height)
    out[:, 2] = index - row * kind(width)
    out[:, 1] = row - plane * kind(height)
    out[:, 0] = plane + kind(first)


class ImageCounts(NamedTuple):
    """What an image holds."""

    planes: Mapping[str, Int64s]  # voxels inside each window in each plane, (D,)
    nan: int  # voxels that are not a number; they are in no window
    differing: Mapping[str, int]  # voxels of the file of a window that are not 1 inside it and 0 elsewhere
    unlike_hu: str | None  # why its values do not look like HU, if they were looked at and do not


class Ones(NamedTuple):
    """What a mask holds."""

    planes: Int64s  # its voxels in each plane, (D,): those that are 1, of floats those above 0
    others: int  # voxels that are neither 0 nor 1
    is_scaled: bool  # whether it is of floats between 0 and 1


# Results are kept for the shards of a volume; with the `state` of its files, changed ones are read again.


def count_image(
    image: VolumeFile, windows: Mapping[str, Window], files: Mapping[str, VolumeFile]
) -> ImageCounts:
    """Look at every voxel of an image once, and at the same voxels of files of some windows."""
    state = _state(image, *files.values())
    return _count_image(image, tuple(windows.items()), tuple(files.items()), state)


def count_mask(mask: VolumeFile) -> Ones:
    """Look at every voxel of a mask once."""
    return _count_mask(mask, _state(mask))


def _state(*arrays: VolumeFile) -> tuple[tuple[int, int], ...]:
    """Size and modification time of all files."""
    statuses = [Path(path).stat() for array in arrays for path in (array.path, *array.parts)]
    return tuple((status.st_size, status.st_mtime_ns) for status in statuses)


@lru_cache(maxsize=512)
def _count_image(
    image: VolumeFile,
    windows: tuple[tuple[str, Window], ...],
    files: tuple[tuple[str, VolumeFile], ...],
    state: tuple[tuple[int, int], ...],  # noqa: ARG001
) -> ImageCounts:
    tests = {name: inside(window, image.kind) for name, window in windows}
    counts = {name: np.zeros(image.shape[0], np.int64) for name in tests}
    differing = {name: 0 for name, _ in files}
    values_seen = ValueRange()
    is_float = image.kind.kind == "f"
    nan = 0
    # Nothing is read where nothing can be found
    if not tests and not is_float:
        return ImageCounts({}, 0, {}, None)
    for box, (values, *others) in slabs([image, *(array for _, array in files)]):
        values_seen.add(values)
        if is_float:
            nan += int(np.count_nonzero(np.isnan(values)))
        by_file = dict(zip(differing, others, strict=True))
        for name, test in tests.items():
            is_inside = test(values)
            counts[name][box[0]] += _per_plane(is_inside)
            if name in by_file:
                differing[name] += int(np.count_nonzero(is_inside.view(np.uint8) != by_file[name]))
    return ImageCounts(counts, nan, differing, values_seen.contradiction())


@lru_cache(maxsize=512)
def _count_mask(mask: VolumeFile, state: tuple[tuple[int, int], ...]) -> Ones:  # noqa: ARG001
    test = inside(None, mask.kind)
    counts = np.zeros(mask.shape[0], np.int64)
    foreign_voxels = 0
    is_scaled = mask.kind.kind == "f"
    for box, (values,) in slabs([mask]):
        counts[box[0]] += _per_plane(test(values))
        if values.itemsize > 1 or int(values.view(np.uint8).max()) > 1:
            foreign_voxels += int(np.count_nonzero((values != 0) & (values != 1)))
        is_scaled = is_scaled and bool(((values >= 0) & (values <= 1)).all())
    return Ones(counts, foreign_voxels, is_scaled and foreign_voxels > 0)


def _per_plane(is_inside: NDArray[np.bool_]) -> Int64s:
    if is_inside.flags.c_contiguous:
        return np.array([np.count_nonzero(plane) for plane in is_inside], np.int64)
    counts: Int64s = is_inside.view(np.uint8).sum(axis=(1, 2), dtype=np.int64)
    return counts


def scaled_differences(image: VolumeFile, scaled: VolumeFile, window: Window) -> int:
    """Count the voxels of a file that are not those of an image, limited to a window and scaled to 0…1."""
    differing = 0
    for _, (values, stored) in slabs([image, scaled]):
        expected = limit(values, window.low, window.high, scale=True)
        differing += int(np.count_nonzero(~is_scaled_as(expected, stored)))
    return differing


def is_scaled_as(expected: AnyArray, scaled: AnyArray) -> NDArray[np.bool_]:
    """Return where scaled values are as expected, except for a few roundings of float32 or a coarser dtype.

    Where the image is NaN, any value is right.
    """
    tolerance = 4 * max(float(np.finfo(scaled.dtype).eps), float(np.finfo(np.float32).eps))
    close: NDArray[np.bool_] = (np.abs(expected - scaled) <= tolerance) | np.isnan(expected)
    return close
