"""How fast Loaders with several settings read a store: samples a second, waits, memory."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unistore.system.progress import Progress
from unistore.zarr3.pool import forget_chunks

if TYPE_CHECKING:
    from unistore.data.dataset import Dataset

LARGEST_BATCH = 64
BATCH_BYTES = 32 << 20
"""Batches have as many samples as fit into these bytes, at most `LARGEST_BATCH`."""
SECONDS = 0.3
"""Duration of each measurement of `measure_speed`; at least two batches are read."""
NEAR_BEST = 0.9
"""The first trial with at least this share of the highest rate is the best one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Read speed of a Loader without workers, in samples a second."""

    batch_size: int  # a number to begin with
    sample_bytes: float  # memory of a decoded sample, on average
    first_pass: float  # in full shuffle, as the files were found: in the page cache or not
    shuffled: float  # in the same order again
    blocks: float  # in block shuffle


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Measurements of a Loader whose consumer does nothing else."""

    num_workers: int
    batch_size: int
    cache: str | None
    samples_per_second: float
    sample_bytes: float  # memory of a decoded sample, on average
    batches: int  # that were timed: neither the first one nor those that fill the cache
    mean: float  # seconds that each batch was waited for
    deviation: float
    longest: float
    first_batch: float  # seconds; workers start meanwhile
    resident: int | None  # bytes of this process and its workers, shared pages counted once
    anonymous: int | None
    cached: float | None  # hit rate of the cache, 0 to 1; None without look-ups

    @property
    def setting(self) -> str:
        """Arguments as Python code."""
        cache = "" if self.cache is None else f', cache="{self.cache}"'
        return f"num_workers={self.num_workers}, batch_size={self.batch_size}{cache}"


def measure_speed(dataset: Dataset, seconds: float = SECONDS) -> Speed:
    """Time Loaders without workers for `seconds` each: in full shuffle, in blocks, in full shuffle again."""
    count = len(dataset)
    began = time.perf_counter()
    sample = dataset.read_batch([count // 2])
    took = time.perf_counter() - began
    nbytes = sum(packed.values.nbytes for packed in sample.values())
    batch_size = _power_of_two(min(LARGEST_BATCH, count, BATCH_BYTES // max(1, nbytes)))
    # A batch of slow samples must not take longer than all measurements together.
    step = _power_of_two(min(batch_size, int(seconds / max(took, 1e-6))))
    setting = {"num_workers": 0, "batch_size": step, "cache": None}
    first, blocks, again = (
        _run_trial(dataset, seconds, setting, {"shuffle": order}) for order in ("full", "blocks", "full")
    )
    return Speed(
        batch_size=batch_size,
        sample_bytes=again.sample_bytes,
        first_pass=first.samples_per_second,
        shuffled=again.samples_per_second,
        blocks=blocks.samples_per_second,
    )


def _power_of_two(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)


def try_settings(
    dataset: Dataset,
    workers: Sequence[int],
    batch_size: int,
    cache: str,
    seconds: float,
    progress: Progress,
    **fixed: Any,
) -> list[Trial]:
    """Try numbers of workers, then batch sizes with the best number, then a cache with the best of both.

    Each setting is timed for `seconds`; `fixed` are further arguments of the Loader.
    """
    trials: list[Trial] = []

    def attempt(num_workers: int, batch_size: int, cache: str | None = None) -> None:
        setting = {"num_workers": num_workers, "batch_size": batch_size, "cache": cache}
        trial = _run_trial(dataset, seconds, setting, fixed)
        trials.append(trial)
        progress.tell(f"{trial.setting}: {trial.samples_per_second:,.0f} samples/s")

    for number in workers:
        attempt(number, batch_size)
    fastest = best(trials)
    for other in (batch_size // 4, batch_size * 4):
        # A batch that takes longer than a trial tells nothing.
        if 0 < other <= min(len(dataset), fastest.samples_per_second * seconds):
            attempt(fastest.num_workers, other)
    fastest = best(trials)
    attempt(fastest.num_workers, fastest.batch_size, cache)
    return trials


def best(trials: Sequence[Trial]) -> Trial:
    """Return the first trial that is about as fast as the fastest."""
    most = max(trial.samples_per_second for trial in trials)
    return next(trial for trial in trials if trial.samples_per_second >= NEAR_BEST * most)


def _run_trial(dataset: Dataset, seconds: float, setting: dict[str, Any], fixed: dict[str, Any]) -> Trial:
    from unistore.loader.loader import Loader

    forget_chunks()  # else a setting profits from chunks that an earlier one decoded
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the recommended line warns, too
        loader = Loader(dataset, **setting, **fixed)
    with loader:
        batches = _repeat_epochs(loader)
        first_batch = _wait(batches)
        filling = 0.0
        while setting["cache"] and loader.epoch == 0 and filling < seconds:
            filling += _wait(batches)
        before = loader.stats()
        waits = [_wait(batches)]
        while sum(waits) < seconds:
            waits.append(_wait(batches))
        after = loader.stats()
        resident, anonymous = _memory([os.getpid(), *loader.worker_pids])
    timed = {name: total - before[name] for name, total in after.items()}
    lookups = timed["cache_hits"] + timed["cache_misses"]
    return Trial(
        **setting,
        samples_per_second=timed["samples"] / sum(waits),
        sample_bytes=timed["bytes"] / timed["samples"],
        batches=len(waits),
        mean=float(np.mean(waits)),
        deviation=float(np.std(waits)),
        longest=max(waits),
        first_batch=first_batch,
        resident=resident,
        anonymous=anonymous,
        cached=timed["cache_hits"] / lookups if lookups else None,
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


def _memory(processes: Sequence[int]) -> tuple[int | None, int | None]:
    """Return bytes resident and anonymous, by proportional share (Linux: /proc/<pid>/smaps_rollup)."""
    shares = {"Pss:": 0, "Pss_Anon:": 0}
    try:
        for process in processes:
            for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
                name, value, *_ = line.split()
                if name in shares:
                    shares[name] += 1024 * int(value)
    except OSError:
        return None, None
    return shares["Pss:"], shares["Pss_Anon:"]
