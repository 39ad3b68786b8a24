"""Random numbers that depend on seed, epoch and sample: shuffled orders, and seeds of your own functions."""

# Computed at any position: no array of n indices is needed, and an epoch starts anywhere at once

from __future__ import annotations

import inspect
import math
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Random numbers as pure functions of (seed, epoch, index), the same in every process and worker.
#
# Few numbers for each sample of a batch are hashed together (`random_words`, `below`); many for one sample
# come from a counter-based generator (`generator`).

# Step of SplitMix64: 2**64 over the golden ratio, odd
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S32 = (np.uint64(shift) for shift in (27, 30, 31, 32))
_U64 = (1 << 64) - 1


@cache
def _key_type() -> type:
    # Given as ``key=``, numpy reads entropy that it does not use. Made with its first use, as numpy.random
    # takes time to import

    class PhiloxKey(np.random.bit_generator.ISeedSequence):
        def __init__(self, words: NDArray[np.uint64]) -> None:
            self._words = words

        def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[np.uint64]:  # noqa: ARG002
            return self._words

    return PhiloxKey


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scatter 64-bit words by the output function of SplitMix64, a bijection.

    See Steele, Lea and Flood 2014.
    """
    z = values ^ (values >> _S30)
    z *= _M1
    z ^= z >> _S27
    z *= _M2
    z ^= z >> _S31
    return z


def random_words(
    seed: int, epoch: NDArray[np.int64], index: NDArray[np.int64], count: int
) -> NDArray[np.uint64]:
    """Return random words for samples. Row i depends only on (seed modulo 2**64, epoch[i], index[i]).

    Parameters
    ----------
    seed : int
        The seed.
    epoch, index : int64 array of shape (B,)
        Epoch and index of each sample.
    count : int
        Number of words for each sample.

    Returns
    -------
    uint64 array of shape (B, count)
        Uniform random words.
    """
    seed_word = mix(np.array([seed & _U64], np.uint64))
    epoch_words = np.asarray(epoch, np.int64).astype(np.uint64)
    index_words = np.asarray(index, np.int64).astype(np.uint64)
    state = mix(epoch_words + seed_word)
    state = mix(state + GOLDEN + index_words * GOLDEN)
    steps = np.arange(1, count + 1, dtype=np.uint64) * GOLDEN
    return mix(state[:, None] + steps)


def below(draws: NDArray[np.uint64], bound: NDArray[Any] | int) -> NDArray[np.int64]:
    """Return integers from 0 to ``bound - 1`` from random words, for bounds below 2**32 (Lemire 2019)."""
    scaled = (draws >> _S32) * np.asarray(bound, np.int64).astype(np.uint64)
    numbers: NDArray[np.int64] = (scaled >> _S32).astype(np.int64)
    return numbers


def generator(seed: int, epoch: int, index: int) -> np.random.Generator:
    """Return the generator of one sample, counter-based (Philox 4x64)."""
    key = np.array([seed & _U64, 0], np.uint64)  # Philox would convert a list of large integers to float64
    counter = np.array([0, 0, epoch & _U64, index], np.uint64)
    philox = np.random.Philox(_key_type()(key), counter=counter)
    return np.random.Generator(philox)


class EpochIndex(NamedTuple):
    """The index of a sample, with its epoch.

    Samplers yield it instead of an int, because random values of a sample depend on (seed, epoch, index),
    and a worker that was started in an earlier epoch does not know the epoch otherwise.

    Attributes
    ----------
    index : int
        Position of the sample in the Dataset.
    epoch : int
        Number of the epoch, from 0.

    Examples
    --------
    >>> sample = dataset[unistore.EpochIndex(3, epoch=7)]  # doctest: +SKIP
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which is not needed
    epoch: int


class Permutation:
    """A pseudo-random permutation of ``range(length)`` that needs no memory for the order.

    Parameters
    ----------
    length : int
        Number of positions, at least 0.
    seed, epoch : int, default 0
        They determine the permutation.
    """

    # A Feistel network over mixed radices: a position is split into (left, right) with ``rows * columns >=
    # length``, and each half in turn is shifted by a keyed hash of the other, modulo its radix. Values
    # outside ``range(length)`` (fewer than ``sqrt(length)``) follow their cycle until they are inside, as
    # in Black and Rogaway 2002. The key is (seed, epoch)

    rounds = 8

    def __init__(self, length: int, seed: int = 0, epoch: int = 0) -> None:
        if length < 0:
            msg = f"length must be non-negative, got {length}"
            raise ValueError(msg)
        self.length = length
        self._rows = max(1, math.isqrt(max(0, length - 1)) + 1)
        self._columns = max(1, -(-length // self._rows))
        key = random_words(seed, np.array([epoch]), np.array([length]), self.rounds)
        self._keys = [key[0, turn] for turn in range(self.rounds)]

    def __call__(self, positions: NDArray[np.integer]) -> NDArray[np.int64]:
        """Return the numbers (k,) int64 at positions (k,) of the permutation."""
        numbers = self._once(np.asarray(positions, np.int64))
        outside = np.flatnonzero(numbers >= self.length)
        while len(outside):
            numbers[outside] = self._once(numbers[outside])
            outside = outside[numbers[outside] >= self.length]
        return numbers

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


# Random numbers in functions that users give: a transform, a collation, a dataset of their own.

# Keeps what a transform draws apart from what the sample itself was drawn with.
SAMPLE_SALT = 0x6A09E667F3BCC908
# Keeps what a collation draws apart from what the transform of its first sample draws.
BATCH_SALT = 0xBB67AE8584CAA73B
# Keeps what ``worker_init_fn`` draws apart from both.
WORKER_SALT = 0x3C6EF372FE94F82B

_states_lock = threading.RLock()
# a forked child neither waits for a thread of its parent nor goes on with the seeds of a sample
os.register_at_fork(
    before=_states_lock.acquire,
    after_in_parent=_states_lock.release,
    after_in_child=_states_lock.release,
)


class RandomFunction:
    """A function of one argument whose random numbers depend only on (seed, epoch, index).

    A function with a parameter ``rng`` gets a generator. Before each call of any other function, the
    global generators of ``random``, NumPy and PyTorch (CPU) are seeded; they are restored afterwards
    outside of workers.

    Parameters
    ----------
    function : callable
        The user's function.
    salt : int
        Makes its numbers differ from the numbers of other functions with the same seed, epoch and index.
    """

    def __init__(
        self,
        function: Callable[..., Any],  # the user's function
        # makes its numbers differ from those of other functions with the same seed, epoch and index
        salt: int = SAMPLE_SALT,
    ) -> None:
        self.function = function
        self.takes_rng = takes_rng(function)
        self._salt = salt

    def map(
        self, values: Sequence[Any], seed: int, epoch: NDArray[np.int64], index: NDArray[np.int64]
    ) -> list[Any]:
        """Return the results for B values.

        Parameters
        ----------
        values : sequence
            Arguments of the function.
        seed : int
            The seed.
        epoch, index : int64 array of shape (B,)
            Epoch and index of each value.
        """
        salted = seed ^ self._salt
        if self.takes_rng:
            keys = zip(values, epoch.tolist(), index.tolist(), strict=True)
            return [self.function(value, rng=generator(salted, *key)) for value, *key in keys]
        seeds = random_words(salted, epoch, index, 3).tolist()
        results = []
        with _saved_generators():
            for value, sample_seeds in zip(values, seeds, strict=True):
                seed_generators(sample_seeds)
                results.append(self.function(value))
        return results


def takes_rng(function: Callable[..., Any]) -> bool:
    """Return whether a function has a parameter ``rng``."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # functions in C may have no signature
        return False
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return "rng" in parameters and parameters["rng"].kind in kinds


def seed_generators(seeds: Sequence[int]) -> None:
    """Seed ``random``, NumPy and, if it is imported, PyTorch, with one 64-bit number each."""
    random.seed(seeds[0])
    np.random.seed(seeds[1] & 0xFFFFFFFF)  # noqa: NPY002 - the generator that user code draws from
    torch = _imported_torch()
    if torch is not None:
        # not torch.manual_seed: it takes 100 times as long, and queues a call for every accelerator
        torch.default_generator.manual_seed(seeds[2])


def seed_worker(seed: int, worker: int) -> None:
    """Seed the global generators of a new worker process, differently for each worker."""
    numbers = random_words(seed ^ WORKER_SALT, np.zeros(1, np.int64), np.array([worker]), 3)
    seed_generators(numbers[0].tolist())


@contextmanager
def _saved_generators() -> Iterator[None]:
    # One thread at a time, as the generators are those of all threads. In a worker nobody else draws from
    # them
    if _in_worker():
        yield
        return
    torch = _imported_torch()
    with _states_lock:
        python_state = random.getstate()
        numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002 - the generator that users draw from
        torch_state = None if torch is None else torch.default_generator.get_state()
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002 - the generator that users draw from
            if torch is not None:
                torch.default_generator.set_state(torch_state)


def _imported_torch() -> Any:
    # None as well while another thread is importing it
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "default_generator") else None


def _in_worker() -> bool:
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and worker._worker_info is not None
