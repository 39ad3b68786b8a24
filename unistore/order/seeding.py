"""Random numbers in functions that users give: a transform, a collation, a dataset of their own."""

from __future__ import annotations

import inspect
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.order.permutation import generator, words

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
    """A function of one argument whose random numbers depend on (seed, epoch, index) alone."""

    # One with a parameter ``rng`` is given a generator. Before each call of any other the global generators
    # of ``random``, numpy and torch (CPU) are seeded, and restored afterwards outside of workers

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
        """Return the results for B values. `epoch` and `index` are (B,)."""
        salted = seed ^ self._salt
        if self.takes_rng:
            keys = zip(values, epoch.tolist(), index.tolist(), strict=True)
            return [self.function(value, rng=generator(salted, *key)) for value, *key in keys]
        seeds = words(salted, epoch, index, 3).tolist()
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
    """Seed ``random``, numpy and, once it was imported, torch, from one 64-bit number each."""
    random.seed(seeds[0])
    np.random.seed(seeds[1] & 0xFFFFFFFF)  # noqa: NPY002 - the generator that user code draws from
    torch = _imported_torch()
    if torch is not None:
        # not torch.manual_seed: it takes 100 times as long, and queues a call for every accelerator
        torch.default_generator.manual_seed(seeds[2])


def seed_worker(seed: int, worker: int) -> None:
    """Seed the global generators of a new worker process, so that no two workers draw the same."""
    numbers = words(seed ^ WORKER_SALT, np.zeros(1, np.int64), np.array([worker]), 3)
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
