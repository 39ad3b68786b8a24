"""Coordinates of the set bits of a packed mask, in C order: of all, or of given ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_1, _2, _3, _4, _8 = (np.uint64(shift) for shift in (1, 2, 3, 4, 8))
_EVERY_SECOND, _PAIRS = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
_NIBBLES, _BYTES = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)
_TOPS, _LOW = np.uint64(0x8080808080808080), np.uint64(0xFF)
_TABLE_RATIO = 16
"""Up to this ratio of set bits to ranks, a table of the word of every set bit is made."""
_BLOCK_VOXELS = 4 << 20
"""Voxels unpacked at a time, one byte each, so that they stay in the processor's cache."""


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

    Counts the set bits of each word of 64 voxels, finds the word of each rank, and then its bit inside the
    word. Words are looked up in a table with one entry per set bit if that is not much larger than the ranks,
    else found by bisection. So the cost is one pass over the mask, and otherwise depends on the ranks alone.

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
    bit = _select(words[word], (ranks - starts[word]).view(np.uint64))
    _unravel(64 * nonzero[word] + bit, (bits.shape[1], 8 * bits.shape[2]), 0, out)


def _select(words: NDArray[np.uint64], rank: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Position of the set bit number `rank` in each word, (k,).

    Computes the bit counts of the eight bytes in one word, their running sums by a multiplication, and the
    number of sums that do not exceed the rank by a subtraction (Vigna 2008, "Broadword implementation of
    rank/select queries", algorithm 2); a table gives the bit inside the byte. In place, as fresh memory costs
    more than the arithmetic.
    """
    sums = words >> _1
    sums &= _EVERY_SECOND
    np.subtract(words, sums, out=sums)
    work = sums >> _2
    work &= _PAIRS
    sums &= _PAIRS
    sums += work
    sums += np.right_shift(sums, _4, out=work)
    sums &= _NIBBLES
    sums *= _BYTES
    np.multiply(rank, _BYTES, out=work)
    work |= _TOPS
    work -= sums
    work &= _TOPS
    shift = np.bitwise_count(work).astype(np.uint64) << _3
    sums <<= _8
    sums >>= shift
    sums &= _LOW
    inside = np.subtract(rank, sums, out=sums)
    byte_rank = np.right_shift(words, shift, out=work)
    byte_rank &= _LOW
    byte_rank <<= _3
    byte_rank |= inside
    found: NDArray[np.int64] = shift.view(np.int64)
    found += _BIT_OF_RANK.take(byte_rank.view(np.int64))
    return found


def _unravel(flat: NDArray[Any], plane: tuple[int, int], first: int, out: NDArray[np.int32]) -> None:
    """``np.unravel_index`` of C-order indices `flat`, counted from plane `first`."""
    height, width = plane
    if len(flat) and flat[-1] < 1 << 31:
        flat = flat.astype(np.int32)  # divides twice as fast
    line = flat // width
    out[:, 2] = flat - line * width
    plane_number = line // height
    out[:, 1] = line - plane_number * height
    out[:, 0] = plane_number
    out[:, 0] += first


def _bit_table() -> NDArray[np.uint8]:
    """(256, 8) u1: position of the r-th set bit of each byte."""
    table = np.zeros((256, 8), np.uint8)
    for byte in range(256):
        bits = [bit for bit in range(8) if byte >> bit & 1]
        table[byte, : len(bits)] = bits
    return table


_BIT_OF_RANK = _bit_table()
