"""In which order samples are read: samplers whose indices carry their epoch.

A shuffled order is a keyed bijection of ``range(n)``, computed for any position on its own: no array of n
indices exists, an epoch starts at once, and a position found in a checkpoint leads back to its sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.randomness import below, mix, words

__all__ = ["At", "Permutation", "Shuffle"]


class At(NamedTuple):
    """A sample index together with the epoch it is read in.

    Order objects yield it in place of a bare index: whatever is random in a sample derives from
    (seed, epoch, index), and the epoch must reach workers that were started an epoch ago.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    epoch: int


class Permutation:
    """A pseudo-random bijection of ``range(length)``, O(1) in memory.

    A Feistel network over mixed radices: a position is split into (left, right) with ``rows * columns >=
    length``, and each half in turn is shifted by a keyed hash of the other, modulo its radix. Values that
    fall outside ``range(length)`` (fewer than ``sqrt(length)`` exist) walk on along their cycle, as in
    Black and Rogaway 2002.

    Parameters
    ----------
    length
        Size of the domain.
    seed, epoch
        Key: another epoch is another permutation.
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
        """Where positions go.

        Parameters
        ----------
        positions
            (k,) integers in ``range(length)``.

        Returns
        -------
        (k,) int64; all of ``range(length)`` together give all of ``range(length)``.
        """
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


class Shuffle:
    """Every sample once an epoch, in an order that is a pure function of (seed, epoch).

    A sampler for ``torch.utils.data.DataLoader``; call `set_epoch` before each epoch, as with torch's
    ``DistributedSampler``. Its indices carry the epoch to workers, persistent ones included.

    Parameters
    ----------
    data
        A dataset, or the number of samples.
    seed
        Another seed is another sequence of orders.
    """

    block = 8192

    def __init__(self, data: Sized | int, seed: int = 0) -> None:
        self.length = data if isinstance(data, int) else len(data)
        self.seed = seed
        self.epoch = 0

    def __len__(self) -> int:
        return self.length

    def set_epoch(self, epoch: int) -> None:
        """Epoch whose order the next iteration yields."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[At]:
        epoch = self.epoch
        permutation = Permutation(self.length, self.seed, epoch)
        for start in range(0, self.length, self.block):
            positions = np.arange(start, min(start + self.block, self.length))
            for index in permutation(positions).tolist():
                yield At(index, epoch)
