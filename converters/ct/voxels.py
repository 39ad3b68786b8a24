"""Voxels of a window or mask, decided in the dtype of the file, as bits or points."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.ct.slabs import Box, planes, slabs
from unistore.converters.ct.source import Voxels
from unistore.schemas.ct.windows import Window

VoxelTest = Callable[[NDArray[Any]], NDArray[np.bool_]]
"""Maps a block of voxels to booleans: whether each is in a window or mask."""


def bounds(window: Window, dtype: np.dtype[Any]) -> tuple[Any, Any] | None:
    """Smallest and largest value of a dtype inside a window; None if there is none.

    ``low <= v <= high`` in exact arithmetic is ``first <= v <= last`` for every v of the dtype, so integers
    are compared as integers and halves as halves.
    """
    low = window.low
    high = window.high
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            first = dtype.type(low)
            last = dtype.type(high)
        if float(first) < low:
            first = np.nextafter(first, dtype.type(np.inf))
        if float(last) > high:
            last = np.nextafter(last, dtype.type(-np.inf))
        return (first, last) if first <= last else None
    kind = np.dtype(np.uint8) if dtype.kind == "b" else dtype
    limits = np.iinfo(kind)
    smallest = max(math.ceil(low), int(limits.min))
    largest = min(math.floor(high), 1 if dtype.kind == "b" else int(limits.max))
    return (kind.type(smallest), kind.type(largest)) if smallest <= largest else None


def inside(window: Window | None, dtype: np.dtype[Any]) -> VoxelTest:
    """Make the test of a window for a dtype; None: that of a mask, 1 (in floats above 0)."""
    if window is None:
        return (lambda values: values > 0) if dtype.kind == "f" else (lambda values: values == 1)
    limit = bounds(window, dtype.newbyteorder("="))
    if limit is None:
        return lambda values: np.zeros_like(values, np.bool_)
    first, last = limit

    def in_range(values: NDArray[Any]) -> NDArray[np.bool_]:
        values = values.view(np.uint8) if values.dtype.kind == "b" else values
        result: NDArray[np.bool_] = values >= first
        result &= values <= last
        return result

    return in_range


LISTED = 1 << 19
"""Voxels whose points are computed at a time, or one plane if that has more."""


def read_bits(
    file: Voxels,
    tests: Mapping[str, VoxelTest],
    out: Mapping[str, NDArray[np.uint8]],
    lo: int = 0,
    hi: int | None = None,
) -> None:
    """Write the bit masks of planes ``lo:hi`` to `out`, by name: (D, H, ⌈W/8⌉) u1, zero, or larger."""
    for box, (values,) in slabs([file], lo, hi):
        for name, bits in out.items():
            _pack(tests[name](values), bits, box)


def bit_shape(extent: Sequence[int]) -> tuple[int, int, int]:
    """Shape of the bit mask of a (D, H, W) volume: (D, H, ⌈W/8⌉)."""
    depth, height, width = extent
    return depth, height, -(-width // 8)


def list_bytes(file: Voxels) -> int:
    """Bytes that `read_points` allocates besides planes: indices, coordinates, temporary arrays, values."""
    return 40 * max(LISTED, math.prod(file.shape[1:]))


def read_points(
    file: Voxels, test: VoxelTest, lo: int, hi: int, counts: NDArray[np.int64] | None = None
) -> Iterator[tuple[slice, int, NDArray[np.int64], NDArray[Any]]]:
    """Points number `lo` to `hi` of a window in C order, some planes at a time.

    Parameters
    ----------
    test
        The window.
    counts
        Its points in each plane, (D,); if given, planes before point `lo` are not read.

    Yields
    ------
    at, first, flat, values
        Slice of these points, counted from `lo`; their C-order indices counted from plane `first`, for
        `point_coords`; and their voxels, (n,).
    """
    begin = 0
    before = 0
    if counts is not None:
        ends = np.cumsum(counts)
        begin = int(np.searchsorted(ends, lo, side="right"))
        before = int(ends[begin - 1]) if begin else 0
    step = max(1, LISTED // max(1, math.prod(file.shape[1:])))
    if lo >= hi:
        return
    for number, block in planes(file, begin):
        for first in range(0, len(block), step):
            part = block[first : first + step]
            flat = np.flatnonzero(test(part))
            start = max(lo, before)
            stop = min(hi, before + len(flat))
            if start < stop:
                chosen = flat[start - before : stop - before]
                yield slice(start - lo, stop - lo), number + first, chosen, part.reshape(-1).take(chosen)
            before += len(flat)
            if before >= hi:
                return


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


def _pack(inside: NDArray[np.bool_], bits: NDArray[np.uint8], box: Box) -> None:
    """Write a slab's mask into the bit mask (which is zero there, and may be larger than the volume)."""
    depth, height, width = inside.shape
    planes = box[0].start or 0
    start = box[2].start or 0
    target = bits[planes : planes + depth, :height, start // 8 : start // 8 + -(-width // 8)]
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
