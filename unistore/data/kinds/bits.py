"""Coordinates of the set bits of a packed mask, in C order: of all, or of given ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_3, _8 = np.uint64(3), np.uint64(8)
_ONES, _TOPS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_LOW = np.uint64(0xFF)
_TABLE_RATIO = 16
"""Up to this ratio of set bits to ranks, a table of the word of every set bit is made."""
_BLOCK_VOXELS = 4 << 20
"""Voxels unpacked at a time, one byte each, so that they stay in the processor's cache."""
_BLOCK_RANKS = 8192
"""Ranks looked up at a time: their arrays stay in the second-level cache."""


def all_points(bits: NDArray[np.uint8], out: NDArray[np.int32]) -> None:
    """Coordinates of all set voxels.

    Parameters
    ----------
    bits
        (D, H, ⌈W/8⌉) u1, lowest bit first; padding bits are 0.
    out
        (n, 3) int32 for the n set bits: depth, height and width index of each, in C order.
    """
    depth, height, columns = bits.shape
    step = max(1, _BLOCK_VOXELS // max(1, height * columns * 8))
    done = 0
    for first in range(0, depth, step):
        unpacked = np.unpackbits(bits[first : first + step].reshape(-1), bitorder="little")
        flat = np.flatnonzero(unpacked.view(np.bool_))
        _unravel(flat, (height, 8 * columns), first, out[done : done + len(flat)])
        done += len(flat)


def points_at_ranks(bits: NDArray[np.uint8], ranks: NDArray[np.int64], out: NDArray[np.int32]) -> None:
    """Coordinates of the set voxels with the given ranks in C order.

    Counts the set bits of each word of 64 voxels, finds the word of each rank, then its byte and its bit.
    Words are looked up in a table with one entry per set bit if that is not much larger than the ranks, else
    by bisection. The byte is the number of running sums of the bytes' counts that do not exceed the rank,
    found by one subtraction (Vigna 2008, "Broadword implementation of rank/select queries", algorithm 2). So
    the cost is one pass over the mask, and otherwise depends on the ranks alone.

    Parameters
    ----------
    bits
        (D, H, ⌈W/8⌉) u1, C-contiguous, lowest bit first; padding bits are 0.
    ranks
        (k,) int64, ascending, each below the number of set bits.
    out
        (k, 3) int32: depth, height and width index of each.
    """
    if not len(ranks):
        return
    flat = bits.reshape(-1)
    if len(flat) % 8:
        flat = np.concatenate((flat, np.zeros(-len(flat) % 8, np.uint8)))
    all_words = flat.view("<u8")
    nonzero = np.flatnonzero(all_words)
    words = all_words[nonzero]
    counts = np.bitwise_count(words)
    ends = np.cumsum(counts, dtype=np.int64)
    word: NDArray[Any]
    if ends[-1] <= _TABLE_RATIO * len(ranks):
        word = np.repeat(np.arange(len(words), dtype=np.int32), counts)[ranks]
    else:
        word = np.searchsorted(ends, ranks, side="right")
    starts = np.subtract(ends, counts, out=ends)
    nonzero *= 64
    for lo in range(0, len(ranks), _BLOCK_RANKS):  # in place: fresh memory costs more than the arithmetic
        part = slice(lo, lo + _BLOCK_RANKS)
        at = word[part].astype(np.int64)
        chosen = words[at]
        rank = (ranks[part] - starts[at]).view(np.uint64)
        sums = np.bitwise_count(chosen.view(np.uint8)).view(np.uint64)
        sums *= _ONES
        work = rank * _ONES
        work |= _TOPS
        work -= sums
        work &= _TOPS
        shift = np.bitwise_count(work).astype(np.uint64)
        shift <<= _3
        sums <<= _8
        sums >>= shift
        sums &= _LOW
        rank -= sums
        chosen >>= shift
        chosen &= _LOW
        chosen <<= _3
        chosen |= rank
        flat = shift.view(np.int64)
        flat += _BIT_OF_RANK[chosen.view(np.int64)]
        flat += nonzero[at]
        _unravel(flat, (bits.shape[1], 8 * bits.shape[2]), 0, out[part])


def _unravel(flat: NDArray[Any], plane: tuple[int, int], first: int, out: NDArray[np.int32]) -> None:
    """``np.unravel_index`` of C-order indices `flat`, counted from plane `first`."""
    height, width = plane
    if len(flat) and flat[-1] < 1 << 31:
        flat = flat.astype(np.int32)  # divides twice as fast
    line = flat // width
    np.subtract(flat, line * width, out=out[:, 2], casting="same_kind")
    plane_number = line // height
    np.subtract(line, plane_number * height, out=out[:, 1], casting="same_kind")
    np.add(plane_number, first, out=out[:, 0], casting="same_kind")


_BIT_OF_RANK = np.array(
    [([bit for bit in range(8) if byte >> bit & 1] + 8 * [0])[:8] for byte in range(256)], np.int64
).reshape(-1)
"""At 8 · byte + r: position of the r-th set bit of a byte."""
