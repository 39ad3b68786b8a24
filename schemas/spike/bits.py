"""Spikes as bits: eight pixels a byte, least significant bit first, rows padded to whole bytes.

The converter and the readers share these functions, so that voxels computed while reading equal stored ones
bit for bit. Voxel grid (reference formula of the spike-camera literature): ``bin = (t * B) // T`` with the
frame's own length T, ``voxel[bin] += spike[t]``; this is not ``np.array_split`` (T = 88, B = 5 gives
18, 18, 17, 18, 17).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PIECE = 4 << 20
"""Bytes of unpacked spikes summed at a time: they stay in the cache between unpacking and adding."""
_MOST_U1 = 255


def row_bytes(width: int) -> int:
    """Bytes of one packed row of `width` pixels."""
    return -(-width // 8)


def pack(spikes: NDArray[Any]) -> NDArray[np.uint8]:
    """Pack spikes (…, W) of 0 and 1 (u1 or bool) into bits (…, ⌈W/8⌉), padding with zeros."""
    return np.packbits(spikes, axis=-1, bitorder="little")


def unpack(packed: NDArray[np.uint8], width: int, left: int = 0) -> NDArray[np.uint8]:
    """Unpack bits into pixels of 0 and 1.

    Parameters
    ----------
    packed
        (…, bytes) u1.
    width
        Pixels wanted in a row.
    left
        Bits to leave out at the start of every row: for a crop that begins inside a byte, at pixel x,
        give the bytes from ``x // 8`` on and ``left = x % 8``.

    Returns
    -------
    (…, width) u1
    """
    _check_width(packed, width, left)
    if packed.shape[-1] * 8 == width:
        flat = np.unpackbits(np.ascontiguousarray(packed).reshape(-1), bitorder="little")
        return flat.reshape(*packed.shape[:-1], width)
    return np.unpackbits(packed, axis=-1, bitorder="little")[..., left : left + width]


def bin_edges(length: int, bins: int) -> NDArray[np.int64]:
    """First time step of every bin, and the length at the end: (bins + 1,) i8.

    Bin b holds the steps t with ``(t * bins) // length == b``; it is empty where ``bins > length``.
    """
    return -(-(np.arange(bins + 1, dtype=np.int64) * length) // bins)


def count_dtype(length: int, bins: int) -> str:
    """Smallest unsigned dtype that holds the spikes of one bin of a recording of `length` steps."""
    longest = -(-length // bins)
    return "uint8" if longest <= _MOST_U1 else "uint16" if longest <= 65_535 else "uint32"


def voxelize(
    packed: NDArray[np.uint8],
    width: int,
    bins: int,
    *,
    left: int = 0,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Count spikes in `bins` bins of time, straight from packed bits.

    Parameters
    ----------
    packed
        (T, H, bytes) u1: the frame's own steps, without padding in time.
    width
        Pixels wanted in a row.
    bins
        Number of bins B.
    left
        Bits to leave out at the start of every row, as in `unpack`.
    out
        (B, H, width), any unsigned dtype that holds the counts; overwritten. A new array of
        `count_dtype` if not given.

    Returns
    -------
    (B, H, width)
        ``out``.

    Raises
    ------
    ValueError
        If ``bins`` is below 1, a row is too short, or ``out`` has another shape or too small a dtype.
    """
    _check_width(packed, width, left)
    length, height, stored = packed.shape
    if bins < 1:
        msg = f"bins must be at least 1, got {bins}"
        raise ValueError(msg)
    needed = count_dtype(length, bins)
    if out is None:
        out = np.empty((bins, height, width), needed)
    if out.shape != (bins, height, width) or not np.can_cast(needed, out.dtype):
        msg = f"out must be ({bins}, {height}, {width}) of at least {needed}, got {out.shape} {out.dtype}"
        raise ValueError(msg)
    most = max(1, min(_MOST_U1, _PIECE // max(1, height * stored * 8)))
    whole_rows = left == 0 and width == stored * 8
    edges = bin_edges(length, bins).tolist()
    for number, (first, last) in enumerate(pairwise(edges)):
        target = out[number]
        if first == last:
            target[...] = 0
        for start in range(first, last, most):
            piece = np.ascontiguousarray(packed[start : min(start + most, last)])
            steps = np.unpackbits(piece.reshape(-1), bitorder="little").reshape(-1, height, stored * 8)
            if start == first and whole_rows and out.dtype == np.uint8:
                np.add.reduce(steps, axis=0, dtype=np.uint8, out=target)
                continue
            counts = np.add.reduce(steps, axis=0, dtype=np.uint8)[:, left : left + width]
            if start == first:
                target[...] = counts
            else:
                target += counts
    return out


def _check_width(packed: NDArray[np.uint8], width: int, left: int) -> None:
    if left < 0 or width < 0 or left + width > packed.shape[-1] * 8:
        msg = f"{packed.shape[-1]} bytes a row hold no {width} pixels from bit {left} on"
        raise ValueError(msg)
