"""A three-dimensional ``.npy`` file read a slab at a time, in the order of the file.

No function here holds a whole volume, nor a part of it that grows with its depth: a slab is half a megabyte
of consecutive bytes, so Fortran-ordered files (the last axis slowest) are as cheap to read as C-ordered ones.
Only where planes are wanted in their order is a Fortran-ordered file read more than once, once a `BAND`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.npy import NpyHeader, open_flat, read_flat

__all__ = [
    "Box",
    "Slab",
    "VoxelFile",
    "band_bytes",
    "planes",
    "read_image",
    "slab_bytes",
    "slabs",
    "together",
]

SLAB = 512 << 10
"""Bytes of a slab: it stays in a core's own cache through every comparison made on it."""
BAND = 32 << 20
"""Bytes of planes that are taken out of Fortran-ordered files at once."""

Box = tuple[slice, slice, slice]


@dataclass(frozen=True, slots=True)
class VoxelFile:
    """A file of voxels.

    Attributes
    ----------
    path, header
        Its path and header, of three axes.
    location
        What an error calls it; its path by default.
    """

    path: Path
    header: NpyHeader
    location: str | None = None


@dataclass(frozen=True, slots=True)
class Slab:
    """A part of a volume, or of some of its planes.

    Attributes
    ----------
    box
        Where it lies: depth (counted from the first plane asked for), height and width ranges. Width ranges
        begin at multiples of 8.
    values
        Its voxels, (d, h, w), native byte order; valid until the next slab is asked for.
    """

    box: Box
    values: NDArray[Any]


def slabs(file: VoxelFile, lo: int = 0, hi: int | None = None, count: int | None = None) -> Iterator[Slab]:
    """Cut planes ``lo:hi`` into slabs along the file's slowest axis (depth; width in Fortran order).

    Parameters
    ----------
    count
        Extent of a slab on that axis; None: as many as make `SLAB` bytes.

    Raises
    ------
    InputError
        The file ends early.
    """
    header = file.header
    depth, height, width = header.shape
    hi = depth if hi is None else hi
    fortran = header.fortran_order
    begin, end, plane = (0, width, (height, depth)) if fortran else (lo, hi, (height, width))
    count = _count(header) if count is None else count
    buffer = np.empty((max(0, min(count, end - begin)), *plane), header.dtype)
    every = slice(None)
    with open_flat(file.path, header, file.location) as read:
        for first in range(begin, end, count):
            last = min(first + count, end)
            block = buffer[: last - first]
            read(first * math.prod(plane), block)
            values = _native(block)
            if fortran:
                yield Slab((every, every, slice(first, last)), values.T[lo:hi])
            else:
                yield Slab((slice(first - lo, last - lo), every, every), values)


def slab_bytes(header: NpyHeader) -> int:
    """Bytes of a slab of a file: more than `SLAB` where one plane is larger."""
    return _count(header) * _plane_bytes(header)


def band_bytes(header: NpyHeader) -> int:
    """Bytes of a band of planes of a file: more than `BAND` where one plane is larger."""
    return max(BAND, math.prod(header.shape[1:]) * header.dtype.itemsize)


def _count(header: NpyHeader) -> int:
    """Planes of the slowest axis in a slab."""
    count = max(1, SLAB // max(1, _plane_bytes(header)))
    return max(8, count // 8 * 8) if header.fortran_order else count


def _plane_bytes(header: NpyHeader) -> int:
    depth, height, width = header.shape
    return height * (depth if header.fortran_order else width) * header.dtype.itemsize


def together(files: Sequence[VoxelFile]) -> Iterator[tuple[Box, list[NDArray[Any]]]]:
    """Voxels of files of one shape, the same places of all of them at once; each file is read once.

    Where one of them is Fortran-ordered and another is not, that one is read once a `BAND`.

    Yields
    ------
    box, values
        As in `Slab`, with the voxels of every file.
    """
    headers = [file.header for file in files]
    if len({header.fortran_order for header in headers}) == 1:
        count = min(map(_count, headers))
        for several in zip(*(slabs(file, count=count) for file in files), strict=True):
            yield several[0].box, [slab.values for slab in several]
        return
    every = slice(None)
    for lo, hi in _bands(headers, 0, headers[0].shape[0]):
        yield (slice(lo, hi), every, every), [_box(file, lo, hi) for file in files]


def planes(file: VoxelFile, lo: int = 0, hi: int | None = None) -> Iterator[tuple[int, NDArray[Any]]]:
    """Planes ``lo:hi`` in their order, some at a time: number of the first, and (n, H, W), C-contiguous."""
    hi = file.header.shape[0] if hi is None else hi
    if not file.header.fortran_order:
        for slab in slabs(file, lo, hi):
            yield lo + int(slab.box[0].start), slab.values
        return
    for first, last in _bands([file.header], lo, hi):
        yield first, _box(file, first, last)


def _bands(headers: Sequence[NpyHeader], lo: int, hi: int) -> Iterator[tuple[int, int]]:
    """Cut planes ``lo:hi`` into ranges of `BAND` bytes of all files together, of one plane at least."""
    plane = sum(math.prod(header.shape[1:]) * header.dtype.itemsize for header in headers)
    step = max(1, BAND // max(1, plane))
    for first in range(lo, hi, step):
        yield first, min(first + step, hi)


def _box(file: VoxelFile, lo: int, hi: int) -> NDArray[Any]:
    block = np.empty((hi - lo, *file.header.shape[1:]), file.header.dtype.newbyteorder("="))
    read_image(file, block, lo, hi)
    return block


def read_image(file: VoxelFile, out: NDArray[Any], lo: int = 0, hi: int | None = None) -> None:
    """Read planes ``lo:hi`` into the corner of `out`, (D, H, W) or larger, converting to its dtype.

    Where the file's bytes are `out`'s bytes they are read straight into it.
    """
    header = file.header
    depth, height, width = header.shape
    hi = depth if hi is None else hi
    corner = out[: hi - lo, :height, :width]
    plain = corner.flags.c_contiguous and not header.fortran_order
    if plain and out.dtype == header.dtype.newbyteorder("="):
        read_flat(file.path, header, lo * height * width, corner.view(header.dtype), file.location)
        _native(corner.view(header.dtype))
        return
    for slab in slabs(file, lo, hi):
        corner[slab.box] = slab.values


def _native(block: NDArray[Any]) -> NDArray[Any]:
    """The same memory in native byte order, swapped in place where it was not."""
    if block.dtype.isnative:
        return block
    return block.byteswap(inplace=True).view(block.dtype.newbyteorder("="))
