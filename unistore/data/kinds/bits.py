"""Points of a packed mask in C order: all of them, or those of given ranks without expanding the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["every_point", "points_of_ranks"]

_1, _2, _3, _4, _8 = (np.uint64(shift) for shift in (1, 2, 3, 4, 8))
_EVERY_SECOND, _PAIRS = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
_NIBBLES, _BYTES = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)
_TOPS, _LOW = np.uint64(0x8080808080808080), np.uint64(0xFF)
_SPREAD = 16
"""Set bits for each rank up to which the word of every set bit is written down."""
_EXPANDED = 4 << 20
"""Voxels expanded at a time: bytes that stay in the cache between expanding and finding."""


def every_point(bits: NDArray[np.uint8], out: NDArray[np.int32]) -> None:
    """All set voxels.

    Parameters
    ----------
    bits
        (D, H, ⌈W/8⌉) u1, lowest bit first; padding bits are 0.
    out
        (n, 3) int32 for the n set bits: depth, height and width index of each, in C order.
    """
    depth, height, columns = bits.shape
    step = max(1, _EXPANDED // max(1, height * columns * 8))
    at = 0
    for first in range(0, depth, step):
        expanded = np.unpackbits(bits[first : first + step].reshape(-1), bitorder="little")
        flat = np.flatnonzero(expanded.view(np.bool_))
        _indices(flat, (height, 8 * columns), first, out[at : at + len(flat)])
        at += len(flat)


def points_of_ranks(bits: NDArray[np.uint8], ranks: NDArray[np.int64], out: NDArray[np.int32]) -> None:
    """Set voxels number `ranks` in C order.

    Costs one count over the mask and then the ranks alone: words of 64 voxels are counted, each rank's word
    is found, and its bit inside the word by the counts of the word's bytes and a table. Where set bits are
    not many times more than ranks, the word of every set bit is written down and looked up; else the words
    are found by bisection.

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
    every = flat.view("<u8")
    held = np.flatnonzero(every != 0)
    words = every[held]
    counts = np.bitwise_count(words)
    ends = np.cumsum(counts, dtype=np.int64)
    word: NDArray[Any]
    if ends[-1] <= _SPREAD * len(ranks):
        word = np.repeat(np.arange(len(words), dtype=np.int32), counts)[ranks]
    else:
        word = np.searchsorted(ends, ranks, side="right")
    starts = np.subtract(ends, counts, out=ends)
    bit = _select(words[word], (ranks - starts[word]).view(np.uint64))
    _indices(64 * held[word] + bit, (bits.shape[1], 8 * bits.shape[2]), 0, out)


def _select(words: NDArray[np.uint64], rank: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Place of the set bit number `rank` of each word, (k,).

    Counts of the eight bytes side by side in one word, their running sums by one multiplication, and how many
    of the sums do not exceed the rank by one subtraction (Vigna 2008, "Broadword implementation of
    rank/select queries", algorithm 2); a table finds the bit inside the byte. In place, as fresh memory costs
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
    place = np.bitwise_count(work).astype(np.uint64) << _3
    sums <<= _8
    sums >>= place
    sums &= _LOW
    inside = np.subtract(rank, sums, out=sums)
    octet = np.right_shift(words, place, out=work)
    octet &= _LOW
    octet <<= _3
    octet |= inside
    found: NDArray[np.int64] = place.view(np.int64)
    found += _BIT_OF_RANK.take(octet.view(np.int64))
    return found


def _indices(flat: NDArray[Any], plane: tuple[int, int], first: int, out: NDArray[np.int32]) -> None:
    """Depth, height and width of C-order indices `flat`, counted from plane `first`."""
    height, width = plane
    if len(flat) and flat[-1] < 1 << 31:
        flat = flat.astype(np.int32)  # divides twice as fast
    line = flat // width
    out[:, 2] = flat - line * width
    deep = line // height
    out[:, 1] = line - deep * height
    out[:, 0] = deep
    out[:, 0] += first


def _ranked_bits() -> NDArray[np.uint8]:
    """(256, 8) u1: place of the r-th set bit of each byte."""
    table = np.zeros((256, 8), np.uint8)
    for byte in range(256):
        places = [bit for bit in range(8) if byte >> bit & 1]
        table[byte, : len(places)] = places
    return table


_BIT_OF_RANK = _ranked_bits()
