"""Random numbers as pure functions of (seed, epoch, index): the same in every process and worker.

Small draws of a whole batch are hashed at once (`words`, `below`); large ones of one sample come from a
counter-based generator (`generator`). Nothing here keeps state.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["below", "generator", "mix", "subset", "words"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S32 = (np.uint64(shift) for shift in (27, 30, 31, 32))
_U64 = (1 << 64) - 1
_MARKED = 32
"""Population for each draw up to which draws are marked in it, which costs less than to sort them."""


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's output function (Steele, Lea and Flood 2014): a bijection that scatters 64-bit words."""
    z = values ^ (values >> _S30)
    z *= _M1
    z ^= z >> _S27
    z *= _M2
    z ^= z >> _S31
    return z


def words(seed: int, epoch: NDArray[np.int64], index: NDArray[np.int64], count: int) -> NDArray[np.uint64]:
    """``count`` random words a sample.

    Parameters
    ----------
    seed
        Any integer, taken modulo 2**64.
    epoch, index
        (B,) int64 each.
    count
        Words a sample.

    Returns
    -------
    (B, count) uint64; row i depends on (seed, epoch[i], index[i]) alone.
    """
    state = mix(np.asarray(epoch, np.int64).astype(np.uint64) + mix(np.array([seed & _U64], np.uint64)))
    state = mix(state + _GOLDEN + np.asarray(index, np.int64).astype(np.uint64) * _GOLDEN)
    steps = np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
    return mix(state[:, None] + steps)


def below(draws: NDArray[np.uint64], bound: NDArray[Any] | int) -> NDArray[np.int64]:
    """Integers in ``[0, bound)`` from random words (Lemire 2019, multiply and shift); bounds < 2**32."""
    scaled = (draws >> _S32) * np.asarray(bound, np.int64).astype(np.uint64)
    found: NDArray[np.int64] = (scaled >> _S32).astype(np.int64)
    return found


def generator(seed: int, epoch: int, index: int) -> np.random.Generator:
    """Counter-based generator (Philox 4x64) of one sample."""
    key = np.array([seed & _U64, 0], np.uint64)  # a list of large integers would pass through float64
    counter = np.array([0, 0, epoch & _U64, index], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


def subset(total: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Exactly uniform ``count`` of ``range(total)`` without replacement, ascending.

    Costs what the smaller of the subset and its complement costs, never a permutation of ``total``: draws
    with replacement, a few more than needed, and leaves out repetitions and then a uniform choice of the
    surplus. By symmetry every subset of a size is equally likely at each step.

    Parameters
    ----------
    total
        Size of the population.
    count
        Size of the subset, 0 to ``total``.
    rng
        Where draws come from.

    Returns
    -------
    (count,) int64, strictly ascending.
    """
    if 2 * count > total:
        return _without(total, subset(total, total - count, rng))
    dtype = np.uint32 if total <= 1 << 32 else np.uint64
    found = np.empty(0, dtype)
    missing = count
    while missing > 0:
        # n draws of N leave N (1 - exp(-n / N)) different ones in expectation, with a spread below sqrt(n)
        free = total - len(found)
        draws = math.ceil(-total * math.log1p(-missing / free) + 4 * math.sqrt(missing))
        found = _different(total, np.concatenate((found, rng.integers(0, total, draws, dtype=dtype))))
        missing = count - len(found)
    if missing < 0:
        found = found[_without(len(found), rng.choice(len(found), -missing, replace=False, shuffle=False))]
    return found.astype(np.int64)


def _different(total: int, drawn: NDArray[Any]) -> NDArray[Any]:
    """The different ones of numbers below `total`, ascending."""
    if total > _MARKED * len(drawn):
        ordered = np.sort(drawn)
        return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))]
    marked = np.zeros(total, np.bool_)
    marked[drawn] = True
    return np.flatnonzero(marked).astype(drawn.dtype)


def _without(total: int, left_out: NDArray[np.int64]) -> NDArray[np.int64]:
    keep = np.ones(total, np.bool_)
    keep[left_out] = False
    return np.flatnonzero(keep)
