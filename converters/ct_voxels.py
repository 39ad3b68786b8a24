"""Voxels of a ``.npy`` volume, a slab at a time in the order of the file: images, windows, masks, points.

No function here copies a whole volume: a slab is a few megabytes of consecutive bytes, so Fortran-ordered
files (the last axis slowest) are as cheap to read as C-ordered ones. What is kept of a volume is at most its
bit mask, an eighth of a byte a voxel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.npy import NpyHeader, open_npy, read_flat
from unistore.schemas.ct_windows import Window

__all__ = [
    "Slab",
    "bit_shape",
    "bounds",
    "expand_points",
    "point_coords",
    "point_values",
    "read_image",
    "read_mask",
    "slabs",
    "survey",
]

SLAB = 2 << 20
"""Bytes of a slab: it stays in the cache through every comparison made on it."""


@dataclass(frozen=True, slots=True)
class Slab:
    """A part of a volume.

    Attributes
    ----------
    box
        Where it lies: depth, height and width ranges. Width ranges begin at multiples of 8.
    values
        Its voxels, (d, h, w), native byte order; valid until the next slab is asked for.
    """

    box: tuple[slice, slice, slice]
    values: NDArray[Any]


def slabs(path: Path, header: NpyHeader, location: str | None = None) -> Iterator[Slab]:
    """Cut a 3-d file into slabs along its slowest axis (depth; width in Fortran order).

    Raises
    ------
    InputError
        The file ends early.
    """
    depth, height, width = header.shape
    fortran = header.fortran_order
    slowest, plane = (width, (height, depth)) if fortran else (depth, (height, width))
    plane_values = math.prod(plane)
    count = max(1, SLAB // (plane_values * header.dtype.itemsize))
    if fortran:
        count = max(8, count // 8 * 8)
    buffer = np.empty((min(count, slowest), *plane), header.dtype)
    every = slice(None)
    for lo in range(0, slowest, count):
        hi = min(lo + count, slowest)
        block = buffer[: hi - lo]
        read_flat(path, header, lo * plane_values, block, location)
        values = _native(block)
        if fortran:
            yield Slab((every, every, slice(lo, hi)), values.T)
        else:
            yield Slab((slice(lo, hi), every, every), values)


def read_image(path: Path, header: NpyHeader, out: NDArray[Any], location: str | None = None) -> None:
    """Read a volume into the corner of `out`, (D, H, W) or larger, converting to its dtype.

    Where the file's bytes are `out`'s bytes they are read straight into it.
    """
    corner = out[tuple(slice(extent) for extent in header.shape)]
    plain = corner.flags.c_contiguous and not header.fortran_order
    if plain and out.dtype == header.dtype.newbyteorder("="):
        read_flat(path, header, 0, corner.view(header.dtype), location)
        _native(corner.view(header.dtype))
        return
    for slab in slabs(path, header, location):
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


def survey(
    path: Path,
    header: NpyHeader,
    windows: Sequence[Window],
    bits: Mapping[str, NDArray[np.uint8]],
    location: str | None = None,
) -> tuple[dict[str, int], int]:
    """Look at every voxel once.

    Parameters
    ----------
    windows
        Windows to count.
    bits
        Where to put the bit masks of some of them, by name: (D, H, ⌈W/8⌉) u1, zero, or larger.

    Returns
    -------
    counts, nan
        Voxels inside each window, by name, and voxels that are not a number (they are in no window).
    """
    counts = dict.fromkeys((window.name for window in windows), 0)
    limits = {window.name: bounds(window, header.dtype.newbyteorder("=")) for window in windows}
    nan = 0
    for slab in slabs(path, header, location):
        values = slab.values.view(np.uint8) if slab.values.dtype.kind == "b" else slab.values
        if values.dtype.kind == "f":
            nan += int(np.count_nonzero(np.isnan(values)))
        for name, limit in limits.items():
            if limit is None:
                continue
            inside = (values >= limit[0]) & (values <= limit[1])
            counts[name] += int(np.count_nonzero(inside))
            if name in bits:
                _pack(inside, bits[name], slab.box)
    return counts, nan


def read_mask(
    path: Path, header: NpyHeader, out: NDArray[np.uint8] | None, location: str | None = None
) -> tuple[int, int]:
    """Read a volume of zeros and ones as bits.

    Parameters
    ----------
    out
        (D, H, ⌈W/8⌉) u1, zero, or larger; None only counts.

    Returns
    -------
    ones, others
        How many voxels are 1, and how many are neither 0 nor 1.
    """
    ones = others = 0
    for slab in slabs(path, header, location):
        inside = slab.values == 1
        count = int(np.count_nonzero(inside))
        ones += count
        others += int(np.count_nonzero(slab.values)) - count
        if out is not None:
            _pack(inside, out, slab.box)
    return ones, others


def bit_shape(extent: Sequence[int]) -> tuple[int, int, int]:
    """Shape of the bit mask of a (D, H, W) volume: (D, H, ⌈W/8⌉)."""
    depth, height, width = extent
    return depth, height, -(-width // 8)


def expand_points(
    bits: NDArray[np.uint8], width: int, lo: int, hi: int
) -> Iterator[tuple[int, int, int, NDArray[np.int64]]]:
    """Points number `lo` to `hi` of a bit mask in C order, a few planes at a time.

    Parameters
    ----------
    bits
        (D, H, ⌈W/8⌉) u1.
    width
        W.

    Yields
    ------
    at, first, last, flat
        Place of these points counted from `lo`; the planes ``first:last`` they lie in; their C-order indices
        inside those planes.
    """
    counts = np.bitwise_count(bits).sum(axis=(1, 2), dtype=np.int64)
    ends = np.cumsum(counts)
    step = max(1, SLAB // max(1, bits.shape[1] * width))
    first_plane = int(np.searchsorted(ends, lo, side="right"))
    last_plane = int(np.searchsorted(ends, hi, side="left")) + 1
    for first in range(first_plane, min(last_plane, len(bits)), step):
        last = min(first + step, last_plane, len(bits))
        before = int(ends[first] - counts[first])
        inside = np.unpackbits(bits[first:last], axis=-1, count=width, bitorder="little").view(np.bool_)
        flat = np.flatnonzero(inside)
        start, stop = max(lo, before), min(hi, before + len(flat))
        if start < stop:
            yield start - lo, first, last, flat[start - before : stop - before]


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


def point_values(
    path: Path,
    header: NpyHeader,
    first: int,
    last: int,
    flat: NDArray[np.int64],
    out: NDArray[Any],
    location: str | None = None,
) -> None:
    """Write the voxels at C-order indices `flat` of planes ``first:last`` to `out`, (n,)."""
    _, height, width = header.shape
    if not header.fortran_order:
        block = np.empty((last - first) * height * width, header.dtype)
        read_flat(path, header, first * height * width, block, location)
        out[...] = block[flat]
        return
    row, column = np.divmod(flat, width)
    plane, line = np.divmod(row, height)
    out[...] = open_npy(path, location)[plane + first, line, column]


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
