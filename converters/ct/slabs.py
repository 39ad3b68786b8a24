"""Read a volume in slabs, in the order of its file.

Memory does not grow with the depth of a volume: a slab is about a megabyte of consecutive bytes, so that
Fortran-ordered files (the last axis is the slowest) are read as fast as C-ordered ones. Only if planes are
needed in order is a Fortran-ordered file read several times, once for each `BAND`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.ct.source import Voxels

SLAB = 1 << 20
"""Bytes of a slab, so that it stays in the cache of a core while it is compared."""
BAND = 32 << 20
"""Bytes of planes that one pass over a Fortran-ordered file reads."""

Box = tuple[slice, slice, slice]
_EVERY = slice(None)


def slabs(
    files: Sequence[Voxels], lo: int = 0, hi: int | None = None, share: int = 0, of: int = 1
) -> Iterator[tuple[Box, list[NDArray[Any]]]]:
    """Planes ``lo:hi`` of several files of one shape in slabs along the slowest axis; each is read once.

    If the files have different orders, Fortran-ordered ones are read once for each `BAND`.

    Parameters
    ----------
    share, of
        Read part number `share` of `of` equal parts, one for each thread. `of` must be 1 for files of
        different orders.

    Yields
    ------
    box, values
        Depth (counted from `lo`), height and width ranges; width ranges begin at multiples of 8. The voxels
        of every file there, (d, h, w), in native byte order; overwritten by the next slab.
    """
    depth, _, width = files[0].shape
    hi = depth if hi is None else hi
    if not same_order(files):
        for first, last in _bands(files, lo, hi):
            yield (
                (slice(first - lo, last - lo), _EVERY, _EVERY),
                [_planes_at(file, first, last) for file in files],
            )
        return
    fortran = files[0].fortran_order
    count = min(map(_count, files))
    begin, end = (0, width) if fortran else (lo, hi)
    cuts = -(-(end - begin) // count)
    first, last = (min(end, begin + cuts * number // of * count) for number in (share, share + 1))
    for several in zip(*(_slices(file, first, last, count) for file in files), strict=True):
        first_plane = several[0][0]
        if fortran:
            values = [block[lo:hi] for _, block in several]
            yield (_EVERY, _EVERY, slice(first_plane, first_plane + values[0].shape[2])), values
        else:
            values = [block for _, block in several]
            yield (slice(first_plane - lo, first_plane - lo + len(values[0])), _EVERY, _EVERY), values


def _slices(file: Voxels, begin: int, end: int, count: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """Indices ``begin:end`` of the slowest axis, `count` at a time: the first index, and voxels (d, h, w)."""
    depth, height, width = file.shape
    plane = (height, depth) if file.fortran_order else (height, width)
    buffer = np.empty((max(0, min(count, end - begin)), *plane), file.dtype.newbyteorder("="))
    with file.open() as read:
        for first in range(begin, end, count):
            block = buffer[: min(count, end - first)]
            read(first, block)
            yield first, block.T if file.fortran_order else block


def slab_bytes(file: Voxels) -> int:
    """Bytes of a slab of a file: more than `SLAB` if one plane is larger."""
    return _count(file) * _plane_bytes(file)


def band_bytes(file: Voxels) -> int:
    """Bytes of a band of planes of a file: more than `BAND` if one plane is larger."""
    return max(BAND, prod(file.shape[1:]) * file.dtype.itemsize)


def _count(file: Voxels) -> int:
    """Planes of the slowest axis in a slab."""
    count = max(1, SLAB // max(1, _plane_bytes(file)))
    return max(8, count // 8 * 8) if file.fortran_order else count


def _plane_bytes(file: Voxels) -> int:
    depth, height, width = file.shape
    return height * (depth if file.fortran_order else width) * file.dtype.itemsize


def same_order(files: Sequence[Voxels]) -> bool:
    """Whether all files have the same slowest axis."""
    return len({file.fortran_order for file in files}) == 1


def planes(file: Voxels, lo: int = 0, hi: int | None = None) -> Iterator[tuple[int, NDArray[Any]]]:
    """Planes ``lo:hi`` in order, some at a time: index of the first, and (n, H, W), C-contiguous."""
    hi = file.shape[0] if hi is None else hi
    if not file.fortran_order:
        for box, (values,) in slabs([file], lo, hi):
            yield lo + int(box[0].start), values
        return
    for first, last in _bands([file], lo, hi):
        yield first, _planes_at(file, first, last)


def _bands(files: Sequence[Voxels], lo: int, hi: int) -> Iterator[tuple[int, int]]:
    """Ranges of planes ``lo:hi`` with `BAND` bytes in all files together, at least one plane each."""
    plane = sum(prod(file.shape[1:]) * file.dtype.itemsize for file in files)
    step = max(1, BAND // max(1, plane))
    for first in range(lo, hi, step):
        yield first, min(first + step, hi)


def _planes_at(file: Voxels, lo: int, hi: int) -> NDArray[Any]:
    block = np.empty((hi - lo, *file.shape[1:]), file.dtype.newbyteorder("="))
    read_image(file, block, lo, hi)
    return block


def read_image(file: Voxels, out: NDArray[Any], lo: int = 0, hi: int | None = None) -> None:
    """Read planes ``lo:hi`` into the corner of `out`, (D, H, W) or larger, converting to its dtype.

    If order and dtype are the same, the file is read into `out` without a copy.
    """
    depth, height, width = file.shape
    hi = depth if hi is None else hi
    corner = out[: hi - lo, :height, :width]
    plain = corner.flags.c_contiguous and not file.fortran_order
    if plain and out.dtype == file.dtype.newbyteorder("="):
        with file.open() as read:
            read(lo, corner)
        return
    for box, (values,) in slabs([file], lo, hi):
        corner[box] = values
