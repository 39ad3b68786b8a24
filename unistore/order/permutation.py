"""Random orders of samples, position by position, and indices that carry their epoch.

A shuffled order is a keyed bijection of ``range(n)``, computed for any position on its own: no array of n
indices exists, an epoch starts at once, and a position found in a checkpoint leads back to its sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.order.randomness import below, mix, words

__all__ = ["At", "Draws", "Permutation"]


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


class Draws:
    """Draws with replacement, in proportion to weights, O(runs) in memory.

    Draw p of an epoch is decided by the hash of (seed, epoch, p) alone: one uniform number chooses a run of
    samples by weight, another one a sample of the run.

    Parameters
    ----------
    weights
        (R,) non-negative, finite, with a positive sum: one a sample, or one a run. A run without samples is
        never drawn.
    offsets
        (R + 1,) first sample of every run, such as the stores of a joint dataset. None: runs of one sample.
    seed
        Another seed is another sequence of draws.

    Raises
    ------
    ValueError
        The weights are no weights, or do not fit the runs.
    """

    def __init__(
        self,
        weights: Sequence[float] | NDArray[np.floating],
        offsets: Sequence[int] | NDArray[np.integer] | None = None,
        seed: int = 0,
    ) -> None:
        given = np.asarray(weights, np.float64)
        runs = None if offsets is None else np.asarray(offsets, np.int64)
        if given.ndim != 1 or not len(given) or not np.all(np.isfinite(given)) or given.min() < 0:
            msg = f"weights must be a non-empty list of finite numbers >= 0, got shape {given.shape}"
            raise ValueError(msg)
        if runs is not None and len(runs) != len(given) + 1:
            msg = f"{len(given)} weights for {len(runs) - 1} runs of samples"
            raise ValueError(msg)
        if runs is not None:
            given = np.where(np.diff(runs) > 0, given, 0.0)
        with np.errstate(over="ignore"):
            bounds = np.cumsum(given)
        if not 0 < bounds[-1] < math.inf:
            msg = "all weights are zero" if bounds[-1] == 0 else "the weights have no finite sum: scale them"
            raise ValueError(msg)
        self.weights = given
        self.samples = len(given) if runs is None else int(runs[-1])
        self.seed = seed
        self._bounds = bounds / bounds[-1]
        self._last = int(np.flatnonzero(given)[-1])
        self.runs = runs

    def __call__(self, epoch: int, positions: NDArray[np.integer]) -> NDArray[np.int64]:
        """Samples (k,) int64 drawn at positions (k,) of an epoch."""
        draws = words(self.seed, np.full(len(positions), epoch), positions.astype(np.int64), 2) >> np.uint64(
            11
        )
        uniform = draws.astype(np.float64) * 2.0**-53
        chosen = np.minimum(np.searchsorted(self._bounds, uniform[:, 0], side="right"), self._last)
        if self.runs is None:
            return chosen.astype(np.int64)
        first, extent = self.runs[chosen], self.runs[chosen + 1] - self.runs[chosen]
        drawn: NDArray[np.int64] = first + np.minimum((uniform[:, 1] * extent).astype(np.int64), extent - 1)
        return drawn
