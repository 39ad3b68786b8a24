"""Sort tuples of integers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def unique_tuples(keys: Sequence[Ints]) -> tuple[Ints, Ints, Ints]:
    """Distinct tuples of non-negative integers in lexicographic order, the first key most significant.

    Returns
    -------
    first, inverse, counts
        One row of each distinct tuple; number of the tuple of each row; rows of each tuple.
    """
    order, begins = sort_tuples(keys)
    starts = np.flatnonzero(begins)
    inverse = np.empty(len(order), np.int64)
    inverse[order] = np.cumsum(begins) - 1
    return order[starts], inverse, np.diff(starts, append=len(order))


def sort_tuples(keys: Sequence[Ints]) -> tuple[Ints, NDArray[np.bool_]]:
    """Rows sorted by their tuples (stable), and whether each differs from the row before it."""
    extents = [int(key.max(initial=0)) + 1 for key in keys]
    packed = _pack(keys, extents)
    begins = np.ones(len(keys[0]), np.bool_)
    if packed is None:
        order = np.lexsort(keys[::-1])
        begins[1:] = np.any([key[order[1:]] != key[order[:-1]] for key in keys], axis=0)
        return order, begins
    bits = len(packed).bit_length()
    if int(packed.max(initial=0)).bit_length() + bits > 63:
        order = np.argsort(packed, kind="stable")
        packed = packed[order]
    else:
        both = np.sort(packed << bits | np.arange(len(packed)))  # several times faster than argsort
        order, packed = both & ((1 << bits) - 1), both >> bits
    begins[1:] = packed[1:] != packed[:-1]
    return order, begins


def _pack(keys: Sequence[Ints], extents: Sequence[int]) -> Ints | None:
    """All keys as digits of one int64, as that sorts several times faster; None if they do not fit."""
    if prod(extents) >= 1 << 63:
        return None
    packed = np.zeros(len(keys[0]), np.int64)
    for key, extent in zip(keys, extents, strict=True):
        packed *= extent
        packed += key
    return packed
