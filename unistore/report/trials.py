"""Timed trials of Loader settings: samples a second, wait of each batch, memory."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unistore.report.blocks import Block
from unistore.system.progress import Progress
from unistore.system.sizes import size
from unistore.zarr3.pool import forget_chunks

if TYPE_CHECKING:
    from unistore.data.dataset import Dataset

NEAR_BEST = 0.9
"""The first trial with at least this share of the highest rate is the best one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Measurements of a Loader with one setting.

    Attributes
    ----------
    num_workers, batch_size, cache
        Its arguments.
    samples_per_second
        Of `batches`.
    batches
        Batches that were timed: not the first, and not those of the epoch (at most as long as a trial) that
        fills the cache.
    mean, deviation, longest
        Seconds that a consumer that does nothing else waited for each batch.
    first_batch
        Seconds until the first batch; workers start meanwhile.
    resident, anonymous
        Bytes of memory of this process and its workers, shared pages counted once; None: unknown.
    cached
        Hit rate of the cache, 0 to 1; None without look-ups.
    """

    num_workers: int
    batch_size: int
    cache: str | None
    samples_per_second: float
    batches: int
    mean: float
    deviation: float
    longest: float
    first_batch: float
    resident: int | None
    anonymous: int | None
    cached: float | None

    @property
    def setting(self) -> str:
        """Arguments as Python code."""
        cache = "" if self.cache is None else f', cache="{self.cache}"'
        return f"num_workers={self.num_workers}, batch_size={self.batch_size}{cache}"


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

    A quarter of `batch_size` and four times as many samples are tried, too; each setting for `seconds`.
    `fixed` are further arguments of the Loader.
    """
    found: list[Trial] = []

    def attempt(num_workers: int, batch_size: int, cache: str | None = None) -> None:
        trial = _run_trial(dataset, seconds, num_workers, batch_size, cache, fixed)
        found.append(trial)
        progress.tell(f"{trial.setting}: {trial.samples_per_second:,.0f} samples/s")

    for number in workers:
        attempt(number, batch_size)
    fastest = best(found)
    for other in (batch_size // 4, batch_size * 4):
        # a batch that takes longer than a trial tells nothing
        if 0 < other <= len(dataset) and other <= fastest.samples_per_second * seconds:
            attempt(fastest.num_workers, other)
    fastest = best(found)
    attempt(fastest.num_workers, fastest.batch_size, cache)
    return found


def best(trials: Sequence[Trial]) -> Trial:
    """The first trial that is about as fast as the fastest."""
    most = max(trial.samples_per_second for trial in trials)
    return next(trial for trial in trials if trial.samples_per_second >= NEAR_BEST * most)


def trial_table(trials: Sequence[Trial]) -> Block:
    """A table of trials; times in milliseconds."""
    settings = ("workers", "batch", "cache", "samples/s")
    columns = (*settings, "wait ms", "± ms", "longest", "first", "RSS", "anon.")
    rows = [
        (
            str(trial.num_workers),
            str(trial.batch_size),
            f"{trial.cache or 'none'}{'' if trial.cached is None else f', {trial.cached:.0%} found'}",
            f"{trial.samples_per_second:,.4g}",
            *(f"{1e3 * each:.3g}" for each in (trial.mean, trial.deviation, trial.longest)),
            f"{1e3 * trial.first_batch:.0f}",
            size(trial.resident),
            size(trial.anonymous),
        )
        for trial in trials
    ]
    return Block(title="measured", columns=columns, rows=rows, optional_columns=("longest", "first"))


def _run_trial(
    dataset: Dataset, seconds: float, num_workers: int, batch_size: int, cache: str | None, fixed: Any
) -> Trial:
    from unistore.loader.loader import Loader

    setting: dict[str, Any] = {"num_workers": num_workers, "batch_size": batch_size, "cache": cache}
    forget_chunks()  # else a setting profits from chunks that an earlier one decoded
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the recommended line warns, too
        loader = Loader(dataset, **setting, **fixed)
    with loader:
        batches = _repeat_epochs(loader)
        began = time.perf_counter()
        next(batches)
        first_batch = time.perf_counter() - began
        while cache and loader.epoch == 0 and time.perf_counter() < began + first_batch + seconds:
            next(batches)
        before, waits = loader.stats(), [_wait(batches)]
        while sum(waits) < seconds:
            waits.append(_wait(batches))
        done = {name: value - before[name] for name, value in loader.stats().items()}
        resident, anonymous = _memory([os.getpid(), *loader.worker_pids])
    lookups = done["cache_hits"] + done["cache_misses"]
    return Trial(
        **setting,
        samples_per_second=done["samples"] / sum(waits),
        batches=len(waits),
        mean=float(np.mean(waits)),
        deviation=float(np.std(waits)),
        longest=max(waits),
        first_batch=first_batch,
        resident=resident,
        anonymous=anonymous,
        cached=done["cache_hits"] / lookups if lookups else None,
    )


def _repeat_epochs(loader: Any) -> Iterator[None]:
    """Batches of one epoch after the other; no reference to a batch is kept."""
    while True:
        for _ in loader:
            yield


def _wait(batches: Iterator[None]) -> float:
    began = time.perf_counter()
    next(batches)
    return time.perf_counter() - began


def _memory(processes: Sequence[int]) -> tuple[int | None, int | None]:
    """Bytes resident and anonymous, by proportional share (Linux: /proc/<pid>/smaps_rollup)."""
    resident = anonymous = 0
    try:
        for process in processes:
            for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
                resident += 1024 * int(line.split()[1]) if line.startswith("Pss:") else 0
                anonymous += 1024 * int(line.split()[1]) if line.startswith("Pss_Anon:") else 0
    except OSError:
        return None, None
    return resident, anonymous
