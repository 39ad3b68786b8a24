"""Read the voxels of a volume in slabs of about a megabyte, in the order of the file."""

# Memory does not grow with the depth, and Fortran-ordered files (the last axis is the slowest) are read as
# fast as C-ordered ones. Only if planes are needed in order is such a file read once for each `BAND`.

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.label_map import Numbering
from unistore.converters.formats.dicom_headers import DicomPixels
from unistore.converters.plugin import Array, Format, SourceFile
from unistore.converters.seam.faults import calling
from unistore.converters.seam.formats import formats, open_file

SLAB = 1 << 20  # bytes of a slab, so that it stays in the cache of a core while it is compared
BAND = 32 << 20  # bytes of planes that one pass over a Fortran-ordered file reads

Box = tuple[slice, slice, slice]
_EVERY = slice(None)


class VolumeArray(NamedTuple):
    """An array of a volume, as the header of its file describes it. JSON values, and the key of caches."""

    role: str  # "image", "windows/lung", "sparse/lung", "masks/3", "labels/seg", "sdf/far"
    name: str  # of its file, as messages call it
    path: str
    format: str
    dtype: str  # as in the file, byte order included
    shape: tuple[int, ...]  # (D, H, W) of voxels, (n,) of points
    fortran_order: bool = False  # whether the last axis varies slowest in the file
    forward_only: bool = False  # whether planes are read best from the first to the last
    memory: int = 0  # bytes that the open file needs, without the planes that are read
    resolution: int = 0  # edge of the cube of points; 0: the file does not say
    numbering: Numbering | None = None  # of labels in the store; None: as in the file
    parts: tuple[str, ...] = ()  # files that continue it
    further: tuple[str, ...] = ()  # other files that it needs
    known: tuple[DicomPixels, ...] = ()  # what is known of its slices

    @property
    def kind(self) -> np.dtype[Any]:
        """Native dtype of its values."""
        return np.dtype(self.dtype).newbyteorder("=")

    @property
    def file(self) -> SourceFile:
        """Its file, which may read those alone that the scan named."""
        parts = tuple(map(Path, self.parts))
        roots = (Path(self.path), *parts, *map(Path, self.further))
        return SourceFile(Path(self.path), self.name, roots, parts=parts, known=self.known or None)

    @property
    def opening(self) -> Format:
        """What opens its file."""
        return formats()[self.format]

    @contextmanager
    def open(self) -> Iterator[Mapping[str, Array]]:
        """Open the arrays of its file."""
        with calling(self.opening, self.name), open_file(self.opening, self.file) as opened:
            yield opened.arrays

    def blocks(self, first: int, stop: int, step: int) -> Iterator[NDArray[Any]]:
        """Read the slowest axis, `step` at a time: (d, h, w) in native byte order, until the next is read."""
        buffer = np.empty((max(0, min(step, stop - first)), *self._plane), self.kind)
        with self.open() as arrays:
            (array,) = arrays.values()
            for lo in range(first, stop, step):
                block = buffer[: min(step, stop - lo)]
                self._read(array.T if self.fortran_order else array, lo, block)
                yield block.T if self.fortran_order else block

    def read(self, lo: int, out: NDArray[Any]) -> None:
        """Read planes from number `lo` on of a file in C order into `out`, (n, H, W), of its dtype."""
        with self.open() as arrays:
            (array,) = arrays.values()
            self._read(array, lo, out)

    def _read(self, planes: Array, lo: int, out: NDArray[Any]) -> None:
        stop = lo + len(out)
        if self.numbering is not None:
            out[...] = self.numbering.stored(planes.read(lo, stop), self.name)
            return
        rows = planes.read(lo, stop, out)
        if rows is not out:
            out[...] = rows

    @property
    def _plane(self) -> tuple[int, int]:
        """Shape of a plane of the slowest axis."""
        depth, height, width = self.shape
        return height, depth if self.fortran_order else width

    @property
    def step(self) -> int:
        """Planes of the slowest axis in a slab."""
        count = max(1, SLAB // max(1, prod(self._plane) * self.kind.itemsize))
        return max(8, count // 8 * 8) if self.fortran_order else count

    @property
    def slab_bytes(self) -> int:
        """Bytes of a slab: more than `SLAB` if one plane is larger."""
        return self.step * prod(self._plane) * self.kind.itemsize

    @property
    def band_bytes(self) -> int:
        """Bytes of a band of planes: more than `BAND` if one plane is larger."""
        return max(BAND, prod(self.shape[1:]) * self.kind.itemsize)


def slabs(
    arrays: Sequence[VolumeArray], lo: int = 0, hi: int | None = None
) -> Iterator[tuple[Box, list[NDArray[Any]]]]:
    """Read planes ``lo:hi`` of arrays of one shape, and yield the ranges (d, h, w) and voxels of slabs."""
    # Width ranges begin at multiples of 8, and the next slab overwrites the voxels. If the files have
    # different orders, Fortran-ordered ones are read once for each `BAND`.
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


def planes(array: VolumeArray, lo: int = 0) -> Iterator[tuple[int, NDArray[Any]]]:
    """Read planes from `lo` on in order, some at a time: the number of the first, and (n, H, W)."""
    depth = array.shape[0]
    if array.fortran_order:
        for first, stop in _bands([array], lo, depth):
            yield first, _planes_at(array, first, stop)
        return
    for box, (values,) in slabs([array], lo):
        yield lo + int(box[0].start), values


def _bands(arrays: Sequence[VolumeArray], lo: int, hi: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of planes ``lo:hi`` with `BAND` bytes in all arrays together, at least one plane each."""
    plane = sum(prod(array.shape[1:]) * array.kind.itemsize for array in arrays)
    step = max(1, BAND // max(1, plane))
    for first in range(lo, hi, step):
        yield first, min(first + step, hi)


def _planes_at(array: VolumeArray, lo: int, hi: int) -> NDArray[Any]:
    block = np.empty((hi - lo, *array.shape[1:]), array.kind)
    read_image(array, block, lo, hi)
    return block


def read_image(array: VolumeArray, out: NDArray[Any], lo: int = 0, hi: int | None = None) -> None:
    """Read planes ``lo:hi`` into the corner of `out`, (D, H, W) or larger, converting to its dtype."""
    depth, height, width = array.shape
    hi = depth if hi is None else hi
    corner = out[: hi - lo, :height, :width]
    if corner.flags.c_contiguous and not array.fortran_order and out.dtype == array.kind:
        array.read(lo, corner)  # without a copy
        return
    for box, (values,) in slabs([array], lo, hi):
        corner[box] = values
