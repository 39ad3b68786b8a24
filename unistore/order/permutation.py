"""Shuffled orders, and indices with their epoch.

A shuffled order is a keyed bijection of ``range(n)`` that can be computed at any position: no array of n
indices is needed, and an epoch starts, or resumes at any position, at once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.order.randomness import below, mix, words


class At(NamedTuple):
    """A sample index with its epoch.

    Samplers yield it instead of a bare index: whatever is random in a sample depends on (seed, epoch, index),
    and workers that were started in an earlier epoch must learn the epoch.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which is not needed
    epoch: int


class Permutation:
    """A pseudo-random bijection of ``range(length)``, O(1) in memory.

    A Feistel network over mixed radices: a position is split into (left, right) with ``rows * columns >=
    length``, and each half in turn is shifted by a keyed hash of the other, modulo its radix. Values outside
    ``range(length)`` (fewer than ``sqrt(length)``) follow their cycle until they are inside, as in Black and
    Rogaway 2002. The key is (seed, epoch).
    """

    rounds = 8

    def __init__(self, length: int, seed: int = 0, epoch: int = 0) -> None:
        if length < 0:
            msg = f"length must be non-negative, got {length}"
            raise ValueError(msg)
        self.length = length
        self._rows = max(1, math.isqrt(max(0, length - 1)) + 1)
        self._columns = max(1, -(-length // self._rows))
        key = words(seed, np.array([epoch]), np.array([length]), self.rounds)
        self._keys = [key[0, turn] for turn in range(self.rounds)]

    def __call__(self, positions: NDArray[np.integer]) -> NDArray[np.int64]:
        """Images (k,) int64 of positions (k,) in ``range(length)`` under the permutation."""
        found = self._once(np.asarray(positions, np.int64))
        outside = np.flatnonzero(found >= self.length)
        while len(outside):
            found[outside] = self._once(found[outside])
            outside = outside[found[outside] >= self.length]
        return found

    def _once(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        left, right = np.divmod(values, self._columns)
        for turn in range(0, self.rounds, 2):
            left = _shift(left, right, self._keys[turn], self._rows)
            right = _shift(right, left, self._keys[turn + 1], self._columns)
        return left * self._columns + right


def _shift(
    half: NDArray[np.int64], other: NDArray[np.int64], key: np.uint64, radix: int
) -> NDArray[np.int64]:
    moved = half + below(mix(other.astype(np.uint64) ^ key), radix)
    moved[moved >= radix] -= radix
    return moved
