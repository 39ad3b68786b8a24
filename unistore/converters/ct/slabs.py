"""Read voxels in slabs of about a megabyte, in the order of the file, and files of points."""

# Memory does not grow with the depth, and Fortran-ordered files (the last axis is the slowest) are read as
# fast as C-ordered ones. Only if planes are needed in order is such a file read once for each `BAND`.

from __future__ import annotations

import atexit
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unistore.converters.formats.dicom_headers import DicomPixels
from unistore.errors import InputError
from unistore.plugin import Array, Openable, OpenFile, SourceFile, count_of, storable
from unistore.system.types import AnyArray, Shape

SLAB = 1 << 20  # bytes of a slab, so that it stays in the cache of a core while it is compared
BAND = 32 << 20  # bytes of planes that one pass over a Fortran-ordered file reads

Box = tuple[slice, slice, slice]
_EVERY = slice(None)


class VolumeArray(NamedTuple):
    """An array of a volume, as the header of its file describes it, in JSON values."""

    role: str  # "image", "windows/lung", "sparse/lung", "masks/3", "labels/seg", "sdf/far"
    name: str  # of its file, as messages call it
    path: str
    format: str
    dtype: str  # as in the file, byte order included
    shape: Shape  # (D, H, W) of voxels, (n,) of points
    fortran_order: bool = False  # whether the last axis varies slowest in the file
    forward_only: bool = False  # whether planes are read best from the first to the last
    memory: int = 0  # bytes that the open file needs, without the planes that are read
    resolution: int = 0  # edge of the cube of points; 0: the file does not say
    numbering: Any = None  # of labels in the store, as their label map has it; None: as in the file
    parts: tuple[str, ...] = ()  # files that continue it
    further: tuple[str, ...] = ()  # other files that it needs
    known: tuple[DicomPixels, ...] = ()  # what is known of its slices

    @property
    def form(self) -> str:
        """What it is, without its name: "image", "windows", "sparse", "masks", "labels" or "sdf"."""
        return self.role.partition("/")[0]

    @property
    def is_points(self) -> bool:
        """Whether its file holds points, not voxels."""
        return self.form in MEMBERS

    @property
    def kind(self) -> np.dtype[Any]:
        """Native dtype of its values."""
        return np.dtype(self.dtype).newbyteorder("=")

    @property
    def step(self) -> int:
        """Planes of the slowest axis in a slab."""
        count = max(1, SLAB // max(1, prod(self.plane) * self.kind.itemsize))
        return max(8, count // 8 * 8) if self.fortran_order else count

    @property
    def slab_bytes(self) -> int:
        """Bytes of a slab: more than `SLAB` if one plane is larger."""
        return self.step * prod(self.plane) * self.kind.itemsize

    @property
    def band_bytes(self) -> int:
        """Bytes of a band of planes: more than `BAND` if one plane is larger."""
        return max(BAND, prod(self.shape[1:]) * self.kind.itemsize)

    @property
    def plane(self) -> tuple[int, int]:
        """Shape of a plane of the slowest axis."""
        depth, height, width = self.shape
        return height, depth if self.fortran_order else width


class VolumeFile(VolumeArray):
    """An array of a volume that is read from its file. The key of caches: it is equal if its header is."""

    source: Openable

    @classmethod
    def of(cls, array: VolumeArray, source: Openable) -> VolumeFile:
        """Return the array of a file."""
        volume = cls(*array)
        volume.source = source.followed_by(tuple(map(Path, array.parts)), array.known or None)
        return volume

    @property
    def file(self) -> SourceFile:
        """Its file, which may read only those that the scan named."""
        return self.source.file

    @contextmanager
    def open(self) -> Iterator[Mapping[str, Array]]:
        """Open the arrays of its file.

        One that is read from the first byte on stays open, so that the planes of the next slab follow.
        """
        if not self.forward_only or self.source.format.library:
            with self.source.open() as opened:
                yield opened.arrays
            return
        try:
            yield _KEPT.arrays(self)
        except BaseException:
            _KEPT.close()
            raise

    def blocks(self, first: int, stop: int, step: int) -> Iterator[AnyArray]:
        """Read the slowest axis, `step` at a time: (d, h, w) in native byte order, until the next is read."""
        buffer = np.empty((max(0, min(step, stop - first)), *self.plane), self.kind)
        with self.open() as arrays:
            (array,) = arrays.values()
            for lo in range(first, stop, step):
                block = buffer[: min(step, stop - lo)]
                self._read(array.T if self.fortran_order else array, lo, block)
                yield block.T if self.fortran_order else block

    def read(self, lo: int, out: AnyArray) -> None:
        """Read planes from number `lo` on of a file in C order into `out`, (n, H, W), of its dtype."""
        with self.open() as arrays:
            (array,) = arrays.values()
            self._read(array, lo, out)

    def _read(self, planes: Array, lo: int, out: AnyArray) -> None:
        stop = lo + len(out)
        if self.numbering is not None:
            out[...] = self.numbering.stored(planes.read(lo, stop), self.name)
            return
        rows = planes.read(lo, stop, out)
        if rows is not out:
            out[...] = rows


class _KeptFile:
    """The file that was read last, while more of its planes may be wanted."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._key: tuple[VolumeFile, int] | None = None
        self._arrays: Mapping[str, Array] = {}

    def arrays(self, array: VolumeFile) -> Mapping[str, Array]:
        key = array, array.file.path.stat().st_mtime_ns
        if key != self._key:
            self.close()
            self._arrays = self._stack.enter_context(array.source.open()).arrays
            self._key = key
        return self._arrays

    def close(self) -> None:
        self._key = None
        self._stack.close()


_KEPT = _KeptFile()
atexit.register(_KEPT.close)  # while there is what it is closed with


def slabs(
    arrays: Sequence[VolumeFile], lo: int = 0, hi: int | None = None
) -> Iterator[tuple[Box, list[AnyArray]]]:
    """Read planes ``lo:hi`` of arrays with one shape, in slabs.

    Parameters
    ----------
    arrays : sequence of VolumeFile
        The arrays.
    lo : int, default 0
        First plane.
    hi : int, optional
        Plane after the last. None: all.

    Yields
    ------
    Box
        Ranges (depth, height, width) of the slab. Ranges of the width begin at multiples of 8.
    list of array
        Voxels of each array. The next slab overwrites them.
    """
    depth, _, width = arrays[0].shape
    hi = depth if hi is None else hi
    if len({array.fortran_order for array in arrays}) > 1:
        for first, stop in _bands(arrays, lo, hi):
            planes = [_planes_at(array, first, stop) for array in arrays]
            yield (slice(first - lo, stop - lo), _EVERY, _EVERY), planes
        return
    step = min(array.step for array in arrays)
    fortran = arrays[0].fortran_order
    begin, end = (0, width) if fortran else (lo, hi)
    blocks = [array.blocks(begin, end, step) for array in arrays]
    for first, *values in zip(range(begin, end, step), *blocks, strict=True):
        if fortran:
            box = (_EVERY, _EVERY, slice(first, first + values[0].shape[2]))
            yield box, [block[lo:hi] for block in values]
        else:
            yield (slice(first - lo, first - lo + len(values[0])), _EVERY, _EVERY), values


def planes(array: VolumeFile, lo: int = 0) -> Iterator[tuple[int, AnyArray]]:
    """Read planes from `lo` on in order, some at a time: the number of the first, and (n, H, W)."""
    depth = array.shape[0]
    if array.fortran_order:
        for first, stop in _bands([array], lo, depth):
            yield first, _planes_at(array, first, stop)
        return
    for box, (values,) in slabs([array], lo):
        yield lo + int(box[0].start), values


def _bands(arrays: Sequence[VolumeFile], lo: int, hi: int) -> Iterator[tuple[int, int]]:
    """Ranges of planes ``lo:hi`` with `BAND` bytes in all arrays together, at least one plane each."""
    plane = sum(prod(array.shape[1:]) * array.kind.itemsize for array in arrays)
    step = max(1, BAND // max(1, plane))
    for first in range(lo, hi, step):
        yield first, min(first + step, hi)


def _planes_at(array: VolumeFile, lo: int, hi: int) -> AnyArray:
    block = np.empty((hi - lo, *array.shape[1:]), array.kind)
    read_image(array, block, lo, hi)
    return block


def read_image(array: VolumeFile, out: AnyArray, lo: int = 0, hi: int | None = None) -> None:
    """Read planes ``lo:hi`` into the corner of `out`, (D, H, W) or larger, converting to its dtype."""
    depth, height, width = array.shape
    hi = depth if hi is None else hi
    corner = out[: hi - lo, :height, :width]
    if corner.flags.c_contiguous and not array.fortran_order and out.dtype == array.kind:
        array.read(lo, corner)  # without a copy
        return
    for box, (values,) in slabs([array], lo, hi):
        corner[box] = values


# Files of points: sparse windows and distance fields, checked before they are used as indices.

# Names of the indices and values in a file, by kind of points.
MEMBERS = {"sparse": ("indices", "values"), "sdf": ("sparse_index", "sparse_sdf")}
BLOCK = 1 << 17  # points read at a time

Points = tuple[AnyArray, AnyArray]  # indices (n, 3) and values (n,)


def kind_of(names: Collection[str]) -> str:
    """Return which points the arrays of a file are: ``sparse`` or ``sdf`` (empty: none)."""
    kinds = [kind for kind, members in MEMBERS.items() if set(members) <= set(names)]
    return kinds[0] if len(kinds) == 1 else ""


def points_in(opened: OpenFile, file: SourceFile, format: str, name: str) -> VolumeArray:
    """Describe an open file of points called `name`."""
    arrays = opened.arrays
    kind = kind_of(arrays)
    if not kind:
        expected = " or ".join(" and ".join(names) for names in MEMBERS.values())
        message = f"contains {', '.join(arrays) or 'no arrays'}; expected {expected}"
        raise file.problem(message, "save the arrays with these names", "layout")
    index, values = (arrays[member] for member in MEMBERS[kind])
    rows = index.shape[:1]
    if len(index.shape) != 2 or index.shape[1] != 3 or index.dtype.kind not in "iu":
        message = f"{MEMBERS[kind][0]} is {index.dtype} {index.shape}, expected integers (points, 3)"
        raise file.problem(message, kind="shape")
    if values.shape not in (rows, (*rows, 1)) or not storable(values.dtype):
        expected = f"({rows[0]},) or ({rows[0]}, 1)"
        message = f"{MEMBERS[kind][1]} is {values.dtype} {values.shape}, expected numbers {expected}"
        raise file.problem(message, kind="shape")
    return VolumeArray(
        role=f"{kind}/{name}",
        name=file.name,
        path=str(file.path),
        format=format,
        dtype=values.dtype.str,
        shape=rows,
        resolution=_resolution(arrays),
    )


def _resolution(arrays: Mapping[str, Array]) -> int:
    """The edge of the cube that the points lie in (0: the file does not say)."""
    edge = arrays.get("resolution")
    if edge is None or edge.shape not in ((), (1,), (3,)) or edge.dtype.kind not in "iu":
        return 0
    return int(np.max(edge.read(0, 3 if edge.shape == (3,) else 1)))


def point_blocks(array: VolumeFile, lo: int = 0, hi: int | None = None, step: int = 0) -> Iterator[Points]:
    """Read points ``lo:hi`` in the file's order, some at a time."""
    hi = array.shape[0] if hi is None else hi
    step = step or BLOCK
    with array.open() as arrays:
        index, values = (arrays[member] for member in MEMBERS[array.form])
        for first in range(lo, hi, step):
            stop = min(first + step, hi)
            yield index[first:stop], values[first:stop].reshape(-1)


def check_range(array: VolumeFile, extent: tuple[int, int, int] | None) -> None:
    """Check that points lie in a volume (None: it is not known, so that indices must fit 32 bits)."""
    limit = extent or (1 << 31,) * 3
    count = 0
    rows = 0
    first = ""
    for index, _ in point_blocks(array):
        is_outside = ((index < 0) | (index > np.array(limit) - 1)).any(axis=1)
        if is_outside.any():
            row = int(np.argmax(is_outside))
            first = first or f"the first is row {rows + row}: {index[row].tolist()}"
            count += int(np.count_nonzero(is_outside))
        rows += len(index)
    if count:
        message = f"has {count_of(count, 'point')} outside of the volume {limit}; {first}"
        raise InputError.at(array.name, message, "make it again from this volume", "range")


def sorted_points(array: VolumeFile) -> Points:
    """Read all points in C order of their volume, as ``np.argwhere`` gives them. None may occur twice."""
    return _sorted_points(array, array.file.path.stat().st_mtime_ns)


@lru_cache(maxsize=1)  # kept for the next shard of the same volume
def _sorted_points(array: VolumeFile, time: int) -> Points:  # noqa: ARG001
    if array.shape[0] == 0:
        return np.empty((0, 3), np.int32), np.empty(0, array.kind)
    ((index, values),) = point_blocks(array, step=array.shape[0])
    flat = np.ravel_multi_index(tuple(index.T), tuple(longest + 1 for longest in index.max(axis=0).tolist()))
    if (flat[1:] > flat[:-1]).all():
        return index, values
    order = np.argsort(flat, kind="stable")
    twice = np.flatnonzero(np.diff(flat[order]) == 0)
    if len(twice):
        first = index[order[twice[0]]].tolist()
        message = f"has {count_of(len(twice), 'voxel')} more than once; the first is {first}"
        raise InputError.at(array.name, message, "make it again from its volume", "duplicate")
    return index[order], values[order]
