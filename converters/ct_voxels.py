"""Voxels of a ``.npy`` volume, a slab at a time in the order of the file: images, windows, masks, points.

No function here holds a whole volume, nor a part of it that grows with its depth: a slab is a few megabytes
of consecutive bytes, so Fortran-ordered files (the last axis slowest) are as cheap to read as C-ordered ones.
Only where planes are wanted in their order is a Fortran-ordered file read more than once, once a `BAND`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.npy import NpyHeader, read_flat
from unistore.schemas.ct_windows import Window

__all__ = [
    "Inside",
    "Slab",
    "band_bytes",
    "bands",
    "bit_shape",
    "bounds",
    "box",
    "inside",
    "list_bytes",
    "point_coords",
    "read_bits",
    "read_image",
    "read_points",
    "slab_bytes",
    "slabs",
    "survey",
]

SLAB = 2 << 20
"""Bytes of a slab: it stays in the cache through every comparison made on it."""
BAND = 32 << 20
"""Bytes of planes that are taken out of a Fortran-ordered file at once."""
LISTED = 1 << 19
"""Voxels whose points are listed at once, or a plane where that has more."""

Inside = Callable[[NDArray[Any]], NDArray[np.bool_]]
"""Which voxels of a block belong to a window or a mask."""


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

    box: tuple[slice, slice, slice]
    values: NDArray[Any]


def slabs(
    path: Path, header: NpyHeader, location: str | None = None, lo: int = 0, hi: int | None = None
) -> Iterator[Slab]:
    """Cut planes ``lo:hi`` of a 3-d file into slabs along its slowest axis (depth; width in Fortran order).

    Raises
    ------
    InputError
        The file ends early.
    """
    depth, height, width = header.shape
    hi = depth if hi is None else hi
    fortran = header.fortran_order
    begin, end, plane = (0, width, (height, depth)) if fortran else (lo, hi, (height, width))
    count = _count(header)
    buffer = np.empty((min(count, end - begin), *plane), header.dtype)
    every = slice(None)
    for first in range(begin, end, count):
        last = min(first + count, end)
        block = buffer[: last - first]
        read_flat(path, header, first * math.prod(plane), block, location)
        values = _native(block)
        if fortran:
            yield Slab((every, every, slice(first, last)), values.T[lo:hi])
        else:
            yield Slab((slice(first - lo, last - lo), every, every), values)


def slab_bytes(header: NpyHeader) -> int:
    """Bytes of a slab of a file: more than `SLAB` where one plane is larger."""
    return _count(header) * _plane_bytes(header)


def _count(header: NpyHeader) -> int:
    """Planes of the slowest axis in a slab."""
    count = max(1, SLAB // max(1, _plane_bytes(header)))
    return max(8, count // 8 * 8) if header.fortran_order else count


def _plane_bytes(header: NpyHeader) -> int:
    depth, height, width = header.shape
    return height * (depth if header.fortran_order else width) * header.dtype.itemsize


def bands(header: NpyHeader, lo: int, hi: int) -> Iterator[tuple[int, int]]:
    """Cut planes ``lo:hi`` into ranges of planes for `box`."""
    step = max(1, band_bytes(header) // max(1, math.prod(header.shape[1:]) * header.dtype.itemsize))
    for first in range(lo, hi, step):
        yield first, min(first + step, hi)


def band_bytes(header: NpyHeader) -> int:
    """Bytes of a band of planes: more than the constants where one plane is larger."""
    plane = math.prod(header.shape[1:]) * header.dtype.itemsize
    return max(plane, BAND if header.fortran_order else SLAB)


def box(path: Path, header: NpyHeader, lo: int, hi: int, location: str | None = None) -> NDArray[Any]:
    """Planes ``lo:hi``, (hi - lo, H, W), C-contiguous, native byte order."""
    block = np.empty((hi - lo, *header.shape[1:]), header.dtype.newbyteorder("="))
    read_image(path, header, block, location, lo, hi)
    return block


def read_image(
    path: Path,
    header: NpyHeader,
    out: NDArray[Any],
    location: str | None = None,
    lo: int = 0,
    hi: int | None = None,
) -> None:
    """Read planes ``lo:hi`` into the corner of `out`, (D, H, W) or larger, converting to its dtype.

    Where the file's bytes are `out`'s bytes they are read straight into it.
    """
    depth, height, width = header.shape
    hi = depth if hi is None else hi
    corner = out[: hi - lo, :height, :width]
    plain = corner.flags.c_contiguous and not header.fortran_order
    if plain and out.dtype == header.dtype.newbyteorder("="):
        read_flat(path, header, lo * height * width, corner.view(header.dtype), location)
        _native(corner.view(header.dtype))
        return
    for slab in slabs(path, header, location, lo, hi):
        corner[slab.box] = slab.values


def bounds(window: Window, dtype: np.dtype[Any]) -> tuple[Any, Any] | None:
    """Smallest and largest value of a dtype inside a window; None if it holds none.

    ``low <= v <= high`` in exact arithmetic is ``first <= v <= last`` for every v of the dtype, so integers
    are compared as integers and halves as halves.
    """
    low, high = window.low, window.high
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            first, last = dtype.type(low), dtype.type(high)
        if float(first) < low:
            first = np.nextafter(first, dtype.type(np.inf))
        if float(last) > high:
            last = np.nextafter(last, dtype.type(-np.inf))
        return (first, last) if first <= last else None
    kind = np.dtype(np.uint8) if dtype.kind == "b" else dtype
    limits = np.iinfo(kind)
    least = max(math.ceil(low), int(limits.min))
    most = min(math.floor(high), 1 if dtype.kind == "b" else int(limits.max))
    return (kind.type(least), kind.type(most)) if least <= most else None


def inside(window: Window | None, dtype: np.dtype[Any]) -> Inside:
    """Make the test of a window on voxels of a dtype; None: of a mask, whose voxels are 1."""
    if window is None:
        return lambda values: values == 1
    limit = bounds(window, dtype.newbyteorder("="))
    if limit is None:
        return lambda values: np.zeros_like(values, np.bool_)
    first, last = limit

    def within(values: NDArray[Any]) -> NDArray[np.bool_]:
        values = values.view(np.uint8) if values.dtype.kind == "b" else values
        found: NDArray[np.bool_] = values >= first
        found &= values <= last
        return found

    return within


def survey(
    path: Path, header: NpyHeader, tests: Mapping[str, Inside], location: str | None = None
) -> tuple[dict[str, NDArray[np.int64]], int]:
    """Look at every voxel once.

    Parameters
    ----------
    tests
        Windows or masks to count, by name.

    Returns
    -------
    counts, nan
        Voxels inside each window in each plane, (D,), by name, and voxels that are not a number (they are in
        no window).
    """
    counts = {name: np.zeros(header.shape[0], np.int64) for name in tests}
    nan = 0
    for slab in slabs(path, header, location):
        if slab.values.dtype.kind == "f":
            nan += int(np.count_nonzero(np.isnan(slab.values)))
        for name, test in tests.items():
            counts[name][slab.box[0]] += _per_plane(test(slab.values))
    return counts, nan


def read_bits(
    path: Path,
    header: NpyHeader,
    tests: Mapping[str, Inside],
    out: Mapping[str, NDArray[np.uint8]],
    location: str | None = None,
    lo: int = 0,
    hi: int | None = None,
) -> None:
    """Write the bit masks of planes ``lo:hi`` to `out`, by name: (D, H, ⌈W/8⌉) u1, zero, or larger."""
    for slab in slabs(path, header, location, lo, hi):
        for name, bits in out.items():
            _pack(tests[name](slab.values), bits, slab.box)


def bit_shape(extent: Sequence[int]) -> tuple[int, int, int]:
    """Shape of the bit mask of a (D, H, W) volume: (D, H, ⌈W/8⌉)."""
    depth, height, width = extent
    return depth, height, -(-width // 8)


def list_bytes(header: NpyHeader) -> int:
    """Bytes that `read_points` holds besides a band: index, coordinates, what divides them, values."""
    return 40 * max(LISTED, math.prod(header.shape[1:]))


def read_points(
    path: Path,
    header: NpyHeader,
    test: Inside,
    counts: NDArray[np.int64],
    lo: int,
    hi: int,
    location: str | None = None,
) -> Iterator[tuple[slice, int, NDArray[np.int64], NDArray[Any]]]:
    """Points number `lo` to `hi` of a window in C order, some planes at a time.

    Parameters
    ----------
    test, counts
        The window, and its points in each plane, (D,).

    Yields
    ------
    at, first, flat, values
        Place of these points counted from `lo`; their C-order indices, counted from plane `first`, for
        `point_coords`; and their voxels (n,).
    """
    ends = np.cumsum(counts)
    first_plane = int(np.searchsorted(ends, lo, side="right"))
    last_plane = min(int(np.searchsorted(ends, hi, side="left")) + 1, len(ends))
    step = max(1, LISTED // max(1, math.prod(header.shape[1:])))
    for begin, end in bands(header, first_plane, last_plane):
        if ends[begin] - counts[begin] == ends[end - 1]:
            continue
        band = box(path, header, begin, end, location)
        for first in range(begin, end, step):
            planes = band[first - begin : min(first + step, end) - begin]
            before = int(ends[first] - counts[first])
            flat = np.flatnonzero(test(planes))
            start, stop = max(lo, before), min(hi, before + len(flat))
            if start < stop:
                flat = flat[start - before : stop - before]
                yield slice(start - lo, stop - lo), first, flat, planes.reshape(-1).take(flat)


def point_coords(flat: NDArray[np.int64], first: int, extent: Sequence[int], out: NDArray[Any]) -> None:
    """Write depth, height, width of C-order indices `flat` (counted from plane `first`) to `out`, (n, 3)."""
    _, height, width = extent
    small = len(flat) == 0 or int(flat[-1]) < 1 << 32  # 32-bit division takes half the time
    kind: Any = np.uint32 if small else np.uint64
    index: NDArray[Any] = flat.astype(kind)
    row: NDArray[Any] = index // kind(width)
    plane: NDArray[Any] = row // kind(height)
    out[:, 2] = index - row * kind(width)
    out[:, 1] = row - plane * kind(height)
    out[:, 0] = plane + kind(first)


def _per_plane(found: NDArray[np.bool_]) -> NDArray[np.int64]:
    if found.flags.c_contiguous:
        return np.array([np.count_nonzero(plane) for plane in found], np.int64)
    counts: NDArray[np.int64] = found.view(np.uint8).sum(axis=(1, 2), dtype=np.int64)
    return counts


def _native(block: NDArray[Any]) -> NDArray[Any]:
    """The same memory in native byte order, swapped in place where it was not."""
    if block.dtype.isnative:
        return block
    return block.byteswap(inplace=True).view(block.dtype.newbyteorder("="))


def _pack(inside: NDArray[np.bool_], bits: NDArray[np.uint8], box: tuple[slice, slice, slice]) -> None:
    """Write a slab's mask into the bit mask (which is zero there, and may be larger than the volume)."""
    depth, height, width = inside.shape
    planes, start = box[0].start or 0, box[2].start or 0
    target = bits[planes : planes + depth, :height, start // 8 : start // 8 + -(-width // 8)]
    if inside.flags.c_contiguous:
        target[...] = np.packbits(inside, axis=-1, bitorder="little")
        return
    ones = inside.view(np.uint8)
    for byte in range(target.shape[2]):  # along width a Fortran slab's voxels are whole planes apart
        packed = ones[:, :, 8 * byte].copy(order="F")
        for bit in range(1, min(8, width - 8 * byte)):
            packed |= ones[:, :, 8 * byte + bit] << np.uint8(bit)
        target[:, :, byte] = packed
