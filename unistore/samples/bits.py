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
    is found by bisection, and its bit inside the word by the counts of the word's bytes and a table.

    Parameters
    ----------
    bits
        (D, H, ⌈W/8⌉) u1, C-contiguous, lowest bit first; padding bits are 0.
    ranks
        (k,) int64, ascending, each below the number of set bits.
    out
        (k, 3) int32: depth, height and width index of each.
    """
    flat = bits.reshape(-1)
    if len(flat) % 8:
        flat = np.concatenate((flat, np.zeros(-len(flat) % 8, np.uint8)))
    words = flat.view("<u8")
    ends = np.cumsum(np.bitwise_count(words), dtype=np.int64)
    word = np.searchsorted(ends, ranks, side="right")
    before = np.where(word > 0, ends[word - 1], 0)
    bit = _select(words[word], (ranks - before).astype(np.uint64))
    _indices(64 * word + bit, (bits.shape[1], 8 * bits.shape[2]), 0, out)


def _select(words: NDArray[np.uint64], rank: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Place of the set bit number `rank` of each word, (k,).

    Counts of the eight bytes side by side in one word, their running sums by one multiplication, and how many
    of the sums do not exceed the rank by one subtraction (Vigna 2008, "Broadword implementation of
    rank/select queries", algorithm 2); a table finds the bit inside the byte.
    """
    sums = words - ((words >> _1) & _EVERY_SECOND)
    sums = (sums & _PAIRS) + ((sums >> _2) & _PAIRS)
    sums = ((sums + (sums >> _4)) & _NIBBLES) * _BYTES
    passed = ((rank * _BYTES) | _TOPS) - sums
    place = np.bitwise_count(passed & _TOPS).astype(np.uint64) << _3
    inside = rank - (((sums << _8) >> place) & _LOW)
    octet = (words >> place) & _LOW
    found: NDArray[np.int64] = place.astype(np.int64) + _BIT_OF_RANK[octet, inside]
    return found


def _indices(flat: NDArray[Any], plane: tuple[int, int], first: int, out: NDArray[np.int32]) -> None:
    """Depth, height and width of C-order indices `flat`, counted from plane `first`."""
    height, width = plane
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
