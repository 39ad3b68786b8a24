"""What a conversion would cost: files, requests, spilled bytes, and time, from a trial on some sources."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unistore.conversion.convert import convert_with
from unistore.conversion.dry_run import DryRun
from unistore.conversion.settings import Settings
from unistore.errors import UnistoreError

_SECONDS = 1.0  # of the trial, about
_FIRST_BYTES = 1 << 20  # of sources that are converted to learn how many fill the trial
_MOST_BYTES = 64 << 20  # A larger source takes longer than a trial may
_MOST_SOURCES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialConversion:
    """A conversion of some of the sources in one process."""

    sources: int
    bytes: int  # of their files
    seconds: float
    stored_bytes: int
    files: int  # of its store
    tasks: int
    total_seconds: float  # of all sources in one process, at the same rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a conversion would cost.

    Attributes
    ----------
    files
        Shards and documents, about: inodes of a folder, in a bucket as many PUT and HEAD requests.
    spilled_bytes
        Bytes of rows that wait uncompressed in the build folder until their shards are written.
    trial
        None if there was none, for the reason of `no_trial`.
    """

    files: int
    spilled_bytes: int
    trial: TrialConversion | None
    no_trial: str = ""


def cost_of(shown: DryRun, settings: Settings, options: Mapping[str, object]) -> Cost:
    """Return what a conversion of the sources of a dry run would cost."""
    trial = None
    reason = ""
    try:
        trial = _try(shown, Settings(codec=settings.codec), {**options, "exclude": ()})
        if trial is None:
            reason = "each source is too large for a trial that takes a second"
    except (UnistoreError, OSError):  # files of a dataset that are no sources by themselves
        reason = "a few of these sources cannot be converted without the others"
    shards = 0
    tasks = 0
    spilled = 0
    for table in shown.plan.tables:
        count = len(list(table.tasks()))
        tasks += count
        shards += count * len(table.arrays)
        if table.spilled:
            spilled += sum(array.shape[0] * array.field.row_bytes for array in table.arrays)
    files = shards + len(shown.plan.columns())
    if trial is not None:  # whose store has the index, too, which is not planned
        shards_of_trial = trial.tasks * shards // max(1, tasks)
        files = shards + max(len(shown.plan.columns()), trial.files - shards_of_trial)
    return Cost(files=files, spilled_bytes=spilled, trial=trial, no_trial=reason)


def _try(shown: DryRun, settings: Settings, options: Mapping[str, object]) -> TrialConversion | None:
    # Sources of sizes around the median stand for all
    sizes = shown.source_sizes
    order = np.argsort(np.abs(sizes - np.median(sizes)), kind="stable")[:_MOST_SOURCES]
    ends = np.cumsum(sizes[order])
    if not len(ends) or ends[0] > _MOST_BYTES:
        return None

    def converted(nbytes: float) -> TrialConversion:
        chosen = order[: max(1, int(np.searchsorted(ends, nbytes)))]
        files: dict[Path, None] = {}  # several sources may be in one
        for number in chosen.tolist():
            files |= dict.fromkeys(shown.scan.sources[number].files)
        with tempfile.TemporaryDirectory(prefix="unistore-trial-") as folder:
            store = Path(folder, "trial.zarr")
            started = time.perf_counter()
            report = convert_with(settings, [*files], store, shown.scan.family, options, progress=False)
            seconds = time.perf_counter() - started
        return TrialConversion(
            sources=report.sources,
            bytes=report.source_bytes,
            files=report.files,
            tasks=report.tasks,
            seconds=seconds,
            stored_bytes=report.stored_bytes,
            total_seconds=seconds * shown.source_bytes / max(1, report.source_bytes),
        )

    first = converted(_FIRST_BYTES)
    wanted = min(_MOST_BYTES, first.bytes * _SECONDS / first.seconds)
    return converted(wanted) if wanted > 2 * first.bytes and len(order) > first.sources else first
