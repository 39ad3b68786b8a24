"""Trials of Loaders on a store: speed, waiting time, and memory."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unistore.system.progress import Progress
from unistore.zarr3.gather import forget_chunks

if TYPE_CHECKING:
    from unistore.data.dataset import Dataset

NEAR_BEST = 0.9  # share of the highest rate from which on a trial is about as fast
LARGEST_BATCH = 64
BATCH_BYTES = 32 << 20  # of a batch, unless one sample takes more


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Measurements of a Loader whose consumer does nothing else.

    Attributes
    ----------
    num_workers, batch_size, shuffle, cache
        Arguments of the Loader.
    samples_per_second : float
        Speed.
    sample_bytes : float
        Mean memory of a decoded sample.
    mean, longest : float
        Time that the consumer waited for a batch after the first one, in seconds.
    first_batch : float
        Time until the first batch, in seconds, in which workers start.
    memory : int or None
        Memory of this process and its workers in bytes, with shared pages counted once. None: unknown.
    """

    num_workers: int
    batch_size: int
    shuffle: str | bool
    cache: str | None
    samples_per_second: float
    sample_bytes: float
    mean: float
    longest: float
    first_batch: float
    memory: int | None


def measure_speed(dataset: Dataset, seconds: float = 0.3) -> list[Trial]:
    """Time Loaders without workers for some seconds each: in a full shuffle, and in blocks."""
    began = time.perf_counter()
    sample = dataset.read_batch([len(dataset) // 2])
    sample_seconds = time.perf_counter() - began
    sample_bytes = sum(packed.values.nbytes for packed in sample.values())
    # A batch of slow samples must not take longer than all measurements together.
    most = int(seconds / max(sample_seconds, 1e-6))
    batch_size = _power_of_two(min(first_batch_size(len(dataset), sample_bytes), most))
    orders = ("full", "full", "blocks")  # the first one finds files in the page cache, or not
    return [
        run_trial(dataset, seconds, num_workers=0, batch_size=batch_size, shuffle=order) for order in orders
    ][1:]


def first_batch_size(samples: int, sample_bytes: float) -> int:
    """Return a batch size to begin with."""
    return _power_of_two(min(LARGEST_BATCH, samples, int(BATCH_BYTES / max(1, sample_bytes))))


def _power_of_two(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)


def run_trial(dataset: Dataset, seconds: float, **arguments: Any) -> Trial:
    """Time a Loader with these arguments. At least one batch after the first is timed."""
    from unistore.loader.loader import Loader

    forget_chunks()  # else a setting profits from chunks that an earlier one decoded
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the recommended line warns, too
        loader = Loader(dataset, **arguments)
    with loader:
        batches = _repeat_epochs(loader)
        first_batch = _wait(batches)
        filling = 0.0
        while arguments.get("cache") and loader.epoch == 0 and filling < seconds:
            filling += _wait(batches)
        before = loader.stats()
        waits = [_wait(batches)]
        while sum(waits) < seconds:
            waits.append(_wait(batches))
        after = loader.stats()
        memory = _memory([os.getpid(), *loader.worker_pids])
    samples = after["samples"] - before["samples"]
    return Trial(
        **{"cache": None, **arguments},
        samples_per_second=samples / sum(waits),
        sample_bytes=(after["bytes"] - before["bytes"]) / samples,
        mean=sum(waits) / len(waits),
        longest=max(waits),
        first_batch=first_batch,
        memory=memory,
    )


def _repeat_epochs(loader: Any) -> Iterator[None]:
    # No reference to a batch is kept, so that its slab is free again.
    while True:
        for _ in loader:
            yield


def _wait(batches: Iterator[None]) -> float:
    began = time.perf_counter()
    next(batches)
    return time.perf_counter() - began


def _memory(processes: Sequence[int]) -> int | None:
    total = 0
    try:
        for process in processes:
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
            total += 1024 * int(text.partition("\nPss:")[2].split()[0])
    except OSError:
        return None
    return total


def try_settings(
    dataset: Dataset,
    arguments: Mapping[str, Any],
    workers: Iterable[int],
    cache_bytes: int,
    seconds: float,
    progress: Progress,
) -> list[Trial]:
    """Try numbers of workers, then batch sizes with the best number, then a cache with the best of both.

    Parameters
    ----------
    dataset : Dataset
        The samples.
    arguments : mapping
        Arguments of a Loader: num_workers, batch_size (to begin with) and shuffle.
    workers : iterable of int
        Numbers of workers to try.
    cache_bytes : int
        Size of the cache.
    seconds : float
        Time for each setting.
    progress : Progress
        Receives the progress.
    """
    trials: list[Trial] = []

    def attempt(**changed: Any) -> None:
        trials.append(run_trial(dataset, seconds, **{**arguments, **changed}))
        setting = ", ".join(f"{name}={json.dumps(value)}" for name, value in changed.items())
        progress.tell(f"{setting}: {trials[-1].samples_per_second:,.0f} samples/s")

    first_size = arguments["batch_size"]
    for number in workers:
        attempt(num_workers=number, batch_size=first_size)
    fastest = best(trials)
    for batch_size in (first_size // 4, first_size * 4):
        # A batch that takes longer than a trial tells nothing.
        if 0 < batch_size <= min(len(dataset), fastest.samples_per_second * seconds):
            attempt(num_workers=fastest.num_workers, batch_size=batch_size)
    fastest = best(trials)
    cache = "all" if len(dataset) * fastest.sample_bytes <= cache_bytes else f"{cache_bytes // 10**6}MB"
    attempt(num_workers=fastest.num_workers, batch_size=fastest.batch_size, cache=cache)
    return trials


def best(trials: Sequence[Trial]) -> Trial:
    """Return the first trial that is about as fast as the fastest."""
    most = max(trial.samples_per_second for trial in trials)
    return next(trial for trial in trials if trial.samples_per_second >= NEAR_BEST * most)
