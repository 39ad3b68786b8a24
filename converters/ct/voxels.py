"""Voxels of a window or mask as bits or points."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.ct.slabs import Box, planes, slabs
from unistore.converters.ct.source import Voxels
from unistore.schemas.ct.voxels import VoxelTest

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
    begin, before = 0, 0
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
            start, stop = max(lo, before), min(hi, before + len(flat))
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
    planes, start = box[0].start or 0, box[2].start or 0
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
