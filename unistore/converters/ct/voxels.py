"""Read a volume: its voxels as bits, as points, counted in each plane, and locations of some."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exclusion import ProblemCollector
from unistore.converters.ct.scan import Detail
from unistore.converters.ct.slabs import (
    Box,
    VolumeArray,
    check_range,
    planes,
    point_blocks,
    read_image,
    slabs,
    sorted_points,
)
from unistore.converters.protocol import Emit, Facts
from unistore.errors import AddOptions, Fix, InputError, Problem
from unistore.schemas.ct.fields import FOREGROUND, LABELS, MASKS, SDF, VOLUMES, WINDOWS
from unistore.schemas.ct.voxels import ValueRange, VoxelTest, inside, limit
from unistore.schemas.ct.windows import Window, parse_window
from unistore.schemas.tables import Field, OwnForm, little_endian
from unistore.system.hints import AnyArray, Int64s, Shape, UInt8s

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


def _classes(values: AnyArray) -> NDArray[np.uint16]:
    # The values that are numbers of classes. Background and what is left out are 0
    if values.dtype.kind == "u" and values.dtype.itemsize <= 2:
        return values.astype(np.uint16)
    is_class = (values > 0) & (values <= _LARGEST)
    return np.where(is_class, values, 0).astype(np.uint16)


class _Choice:
    # The voxels of smallest rank of each class, so far
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
        # Look at the voxels of a box at `corner`: their classes, (d, h, w) unsigned, 0 of none
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
        # Keep the voxels of smallest rank of each class
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
        # What was found
        self._reduce()
        classes, _, flat = self._parts[0]
        order = np.lexsort((flat, classes))
        numbers, lengths = np.unique(classes, return_counts=True)
        coords = np.stack(np.unravel_index(flat[order], self._shape), axis=1)
        return Locations(numbers.astype(np.uint16), lengths.astype(np.int64), coords.astype(np.int32))


LISTED = 1 << 19  # voxels whose points are computed at a time, or one plane if that has more


def read_bits(
    array: VolumeArray,
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
    # Write a slab's mask into the bit mask (which is zero there, and may be larger than the volume)
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
    array: VolumeArray, test: VoxelTest, lo: int, hi: int, counts: Int64s | None = None
) -> Iterator[tuple[slice, int, Int64s, AnyArray]]:
    """Yield points number `lo` to `hi` of a window in C order: slice, first plane, indices, voxels."""
    # Indices count from the first plane, as `point_coords` takes them. `counts` are the points in each plane,
    # (D,): planes before point `lo` are not read.
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
    image: VolumeArray, windows: Mapping[str, Window], files: Mapping[str, VolumeArray]
) -> ImageCounts:
    """Look at every voxel of an image once, and at the same voxels of files of some windows."""
    state = _state(image, *files.values())
    return _count_image(image, tuple(windows.items()), tuple(files.items()), state)


def count_mask(mask: VolumeArray) -> Ones:
    """Look at every voxel of a mask once."""
    return _count_mask(mask, _state(mask))


def _state(*arrays: VolumeArray) -> tuple[tuple[int, int], ...]:
    # Size and modification time of all files
    statuses = [Path(path).stat() for array in arrays for path in (array.path, *array.parts)]
    return tuple((status.st_size, status.st_mtime_ns) for status in statuses)


@lru_cache(maxsize=512)
def _count_image(
    image: VolumeArray,
    windows: tuple[tuple[str, Window], ...],
    files: tuple[tuple[str, VolumeArray], ...],
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
def _count_mask(mask: VolumeArray, state: tuple[tuple[int, int], ...]) -> Ones:  # noqa: ARG001
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


def scaled_differences(image: VolumeArray, scaled: VolumeArray, window: Window) -> int:
    """Count the voxels of a file that are not those of an image, limited to a window and scaled to 0…1."""
    differing = 0
    for _, (values, stored) in slabs([image, scaled]):
        expected = limit(values, window.low, window.high, scale=True)
        differing += int(np.count_nonzero(~is_scaled_as(expected, stored)))
    return differing


def is_scaled_as(expected: AnyArray, scaled: AnyArray) -> NDArray[np.bool_]:
    """Tell where scaled values are as expected, but for a few roundings of float32 or of a coarser dtype."""
    # Where the image is NaN, any value will do.
    tolerance = 4 * max(float(np.finfo(scaled.dtype).eps), float(np.finfo(np.float32).eps))
    close: NDArray[np.bool_] = (np.abs(expected - scaled) <= tolerance) | np.isnan(expected)
    return close


# Read voxels, points and masks of one volume from its files.

Extent = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class VolumeReader:
    """Reads the volume of one source, called `name`."""

    name: str
    detail: Detail
    windows: Mapping[str, Window]  # of the store, by name
    options: Mapping[str, Any]  # of the conversion

    def facts(self) -> Facts:
        """Read everything once and return counts, or raise every problem of the volume's values."""
        # All i8: `points/<window>` (), `nan` (), `extent` (3,), `scaled/<window>` () of windows that came as
        # floats scaled to 0…1, `others/<group>` (), the voxels of a label or mask that are neither 0 nor 1.
        collected = ProblemCollector()
        numbers = {f"points/{name}": 0 for name in self.windows} | {"nan": 0}
        image = self.detail.array("image")
        if image is not None:
            counts = self._count(image)
            numbers |= {f"points/{name}": int(planes.sum()) for name, planes in counts.planes.items()}
            numbers["nan"] = counts.nan
            collected.problems += self._value_problems(image.name, counts.unlike_hu)
        for array in self.detail.arrays:
            name = array.role.partition("/")[2]
            with collected.attempt(array.name):
                if array.form == WINDOWS:
                    numbers |= self._check_window(name, array, image)
                elif array.form in (MASKS, LABELS):
                    numbers[f"others/{array.role}"] = _count_classes(array)
                elif array.is_points:
                    edge = array.resolution
                    check_range(array, (edge, edge, edge) if edge else self.detail.extent)
                if array.form == "sparse":
                    numbers[f"points/{name}"] = len(sorted_points(array)[0])
        collected.check()
        facts: dict[str, AnyArray] = {name: np.array(count, np.int64) for name, count in numbers.items()}
        return facts | {"extent": np.array(self.extent())}

    def locations(self, most: int, emit: Emit) -> Facts:
        """Find and emit locations of every window, mask and label.

        Returns
        -------
        Facts
            Of each group that has voxels, ``classes/<group>`` (K,) and ``locations/<group>`` (K,), how many.
        """
        image = self.detail.array("image")
        located: dict[str, Locations] = {}
        if image is not None and self.windows:
            tests = {f"{WINDOWS}/{name}": inside(window, image.kind) for name, window in self.windows.items()}
            located |= locations_of(image, tests, most)
        for array in self.detail.arrays:
            if array.form in (WINDOWS, MASKS, LABELS) and array.role not in located:
                is_mask = array.form == WINDOWS or array.kind.kind == "f"
                located |= locations_of(
                    array, {array.role: inside(None, array.kind) if is_mask else None}, most
                )
        facts: dict[str, AnyArray] = {}
        for group, (classes, lengths, coords) in located.items():
            facts |= {f"classes/{group}": classes, f"locations/{group}": lengths}
            if len(classes) <= MOST_CLASSES:
                dtype = np.uint16 if max(self.extent()) <= 1 << 16 else np.int32
                emit(f"{FOREGROUND}/{group}", "coords", coords.astype(dtype))
        return facts

    def extent(self) -> Extent:
        """D, H, W: of the image or a mask, else of the cube that point files state, else of all points."""
        if self.detail.extent is not None:
            return self.detail.extent
        stated = max(array.resolution for array in self.detail.arrays)
        if stated:
            return stated, stated, stated
        longest = np.zeros(3, np.int64)
        for array in self.detail.arrays:
            for index, _ in point_blocks(array):
                longest = np.maximum(longest, index.max(axis=0).astype(np.int64) + 1)
        depth, height, width = longest.tolist()
        return depth, height, width

    def read_planes(self, table: str, lo: int, hi: int | None, out: Mapping[str, AnyArray]) -> None:
        """Read planes ``lo:hi`` of this volume's row of ``volumes``, ``masks``, ``labels`` or ``windows``."""
        # What this volume lacks, and planes beyond its depth, stay zero. Windows that are files are read from
        # them, as `facts` has compared these with the image; all others in one pass of the image.
        if "extent" in out:
            out["extent"][0] = self.extent()
            return
        depth = self.extent()[0]
        hi = depth if hi is None else min(hi, depth)
        if hi <= lo:
            return
        image = self.detail.array("image")
        computed: dict[str, AnyArray] = {}
        for column, (block,) in out.items():
            name, _, form = column.rpartition("/")
            array = self.detail.array("image" if table == VOLUMES else f"{table}/{name}")
            is_scaled = table == WINDOWS and array is not None and array.kind.kind == "f"
            if array is not None and form != "mask":
                read_image(array, block, lo, hi)
            elif array is not None and (image is None or not is_scaled):
                read_bits(array, {name: inside(None, array.kind)}, {name: block}, lo, hi)
            elif table == WINDOWS:
                computed[name] = block
        if computed and image is not None:
            tests = {name: inside(self.windows[name], image.kind) for name in computed}
            read_bits(image, tests, computed, lo, hi)

    def read_window_points(self, name: str, lo: int, hi: int, out: Mapping[str, AnyArray]) -> None:
        """Read points ``lo:hi`` of a window, in C order."""
        sparse = self.detail.array(f"sparse/{name}")
        if sparse is not None:
            index, values = sorted_points(sparse)
            out["coords"][...] = index[lo:hi]
            out["values"][...] = values[lo:hi]
            return
        array = self.detail.array("image")
        counts = None
        if array is not None:
            test = inside(self.windows[name], array.kind)
            counts = self._count(array).planes[name] if lo else None
        else:
            array = self.detail.array(f"{WINDOWS}/{name}")
            if array is None:
                return
            test = inside(None, array.kind)
            counts = count_mask(array).planes if lo else None
        for part, first, flat, values in read_points(array, test, lo, hi, counts):
            point_coords(flat, first, array.shape, out["coords"][part])
            out["values"][part] = values

    def read_sdf(self, name: str, lo: int, hi: int, out: Mapping[str, AnyArray]) -> None:
        """Read points ``lo:hi`` of a distance field, in the file's order."""
        first = 0
        for index, values in point_blocks(self.detail.named(SDF)[name], lo, hi):
            rows = slice(first, first + len(index))
            out["coords"][rows] = index
            out["values"][rows] = values
            first = rows.stop

    def _count(self, image: VolumeArray) -> ImageCounts:
        return count_image(image, self.windows, self.detail.named(WINDOWS))

    def _check_window(self, name: str, array: VolumeArray, image: VolumeArray | None) -> dict[str, int]:
        # The facts of a window's file, and raise if it is not a mask, or differs from the image
        if image is None:
            ones = count_mask(array)
            if ones.others and not ones.is_scaled:
                raise _not_a_mask(array, ones.others)
            count = {f"points/{name}": int(ones.planes.sum())}
            return count | {f"scaled/{name}": 1} if ones.is_scaled else count
        differing = self._count(image).differing[name]
        is_scaled = differing > 0 and count_mask(array).is_scaled
        window = self.windows[name]
        if is_scaled:
            differing = scaled_differences(image, array, window)
        if differing:
            message = f"differs from window {window} of {image.name} in {differing} voxels"
            fix = "make it again from this volume, or remove it: it is computed anyway"
            raise array.file.problem(message, fix, "window")
        return {f"scaled/{name}": 1} if is_scaled else {}

    def _value_problems(self, location: str, unlike_hu: str | None) -> list[Problem]:
        # Return a problem if a window is cut of an image that is not of HU, and no file confirms it
        windows = [name for name in self.windows if self.detail.array(f"{WINDOWS}/{name}") is None]
        if unlike_hu is None or not windows or self.options["values"] == "hu":
            return []
        message = f"{unlike_hu}; a window is of HU: {', '.join(windows)}"
        # Windows that other volumes have as files are cut without the option, too
        otherwise: Fix = AddOptions(("--exclude", self.name), "if it is a mask or was scaled")
        if {parse_window(text).name for text in self.options["window"]}.issuperset(windows):
            otherwise = "leave --window out if it is a mask or was scaled"
        return [
            Problem(location, message, (otherwise, AddOptions(("--values", "hu"), "if it is HU")), "values")
        ]


def own_forms(detail: Detail, table: str, fields: Mapping[str, Field]) -> dict[str, OwnForm]:
    """Return the forms of the voxels and distances that a volume has itself, see `SourceReader.own`.

    Windows are its own where it has no image that they are cut of.
    """
    kind, _, of_points = table.partition("/")
    forms: dict[str, OwnForm] = {}
    if kind == FOREGROUND or (kind == WINDOWS and detail.array("image") is not None):
        return forms
    for column, field in fields.items():
        name, _, form = column.rpartition("/")
        role = {VOLUMES: "image"}.get(kind, table if of_points else f"{table}/{name}")
        array = detail.array(role) or detail.array(f"sparse/{of_points}")
        if column in ("extent", "coords"):
            forms[column] = OwnForm("<i4", field.row_shape)
        elif array is not None:
            # classes that are numbered anew may not fit the dtype of the file
            dtype = little_endian(array.kind.name if array.numbering is None else "int64")
            shape = () if of_points else array.shape
            restore = _voxels if form == "mask" else None
            forms[column] = OwnForm(dtype, shape, restore, f"{table}/{name}" if name else "")
    return forms


def _voxels(bits: AnyArray) -> AnyArray:
    return np.unpackbits(bits, axis=-1, bitorder="little")


def _count_classes(label: VolumeArray) -> int:
    # Count voxels of a label or mask other than 0 and 1, and raise if they are floats
    foreign_voxels = count_mask(label).others
    if not foreign_voxels or label.kind.kind != "f":
        return foreign_voxels
    if label.form == MASKS:
        raise _not_a_mask(label, foreign_voxels)
    message = f"is taken for a label by its name, but is {label.kind} and not a mask of 0 and 1"
    fix = "save classes as integers: labels.astype(np.uint8); rename it if it is a volume"
    raise label.file.problem(message, fix, "dtype")


def _not_a_mask(mask: VolumeArray, others: int) -> InputError:
    message = f"holds {others} values that are neither 0 nor 1: it is not a mask"
    fix = "save (values > 0).astype(np.uint8), or rename it to convert it as an image"
    return mask.file.problem(message, fix, "values")
