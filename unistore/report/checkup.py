"""``unistore.doctor``: what a machine, and a store on it, let a Loader do, and one line to start from."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from unistore.data.kinds.locality import samples_per_chunk
from unistore.data.kinds.reach import as_code
from unistore.progress import shown
from unistore.report.advice import Advice, Misfit, StoreFacts, advise, measured_advice, remarks
from unistore.report.blocks import Block, plain
from unistore.report.machine import Machine, look_at_machine
from unistore.report.place import look_at_place
from unistore.report.speed import forks_safely
from unistore.report.speed import measure as speed_of
from unistore.report.suggestions import Suggestion, natural_suggestion, suggestions
from unistore.report.trials import Trial, trial_table, try_settings
from unistore.store.reader import Store
from unistore.system.arguments import Arguments
from unistore.system.progress import Progress
from unistore.system.sizes import count_of, size

if TYPE_CHECKING:
    from unistore.data.dataset import Dataset
    from unistore.data.kinds.protocol import SampleKind

__all__ = ["Checkup", "doctor"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """Facts, remarks, and what to do. ``str()`` and ``print()`` show it.

    Attributes
    ----------
    machine, store
        The facts; without a store None.
    advice
        Arguments of a Loader, each with its reason.
    remarks
        Sentences about what stands in the way, most important first.
    trials
        Settings that were measured, where that was asked for.
    """

    machine: Machine
    store: StoreFacts | None
    advice: Sequence[Advice]
    remarks: Sequence[str]
    trials: Sequence[Trial] = ()

    @property
    def line(self) -> str:
        """A line of Python that makes the Loader."""
        dataset = "dataset"
        if self.store is not None:
            kind = f", {self.store.samples_as}" if self.store.samples_as else ""
            dataset = f"unistore.Dataset({json.dumps(self.store.path)}{kind})"
        return f"unistore.Loader({dataset}, {', '.join(map(str, self.advice))})"

    @property
    def blocks(self) -> list[Block]:
        """What to show."""
        found = [Block(title="machine", facts=_machine_facts(self.machine))]
        if self.store is not None:
            found.append(Block(title="store", facts=_store_facts(self.store, self.machine)))
        if self.trials:
            columns, rows = trial_table(self.trials)
            found.append(Block(title="measured", columns=columns, rows=rows, spare=("longest", "first")))
        if self.remarks:
            found.append(Block(title="remarks", lines=self.remarks))
        found.append(Block(title="recommended", code=self.line))
        reasons = [(str(advice), advice.reason) for advice in self.advice]
        return [*found, Block(title="because", facts=reasons)]

    def to_json(self) -> dict[str, Any]:
        """JSON values: ``machine``, ``store`` or null, ``remarks``, ``line``, ``reasons``, …."""
        return {
            "machine": asdict(self.machine),
            "store": None if self.store is None else asdict(self.store),
            "remarks": list(self.remarks),
            "line": self.line,
            "arguments": {advice.name: advice.value for advice in self.advice},
            "reasons": {advice.name: advice.reason for advice in self.advice},
            "trials": [asdict(trial) for trial in self.trials],
        }

    def __str__(self) -> str:
        return plain(self.blocks)


def doctor(
    store: str | os.PathLike[str] | None = None,
    *,
    samples: SampleKind | None = None,
    measure: bool = False,
    seconds: float = 2.0,
    progress: Progress | bool | None = None,
) -> Checkup:
    """Look at this machine, and at a store from it: some batches are read, nothing is written.

    Parameters
    ----------
    store
        Folder or URL of a store; None: the machine alone.
    samples
        Kind of samples to read; None: the store's natural one.
    measure
        Try numbers of workers, batch sizes and a cache with this store, and recommend what was fastest.
    seconds
        How long each of these settings is timed; there are 6 to 10. A cache is filled as long before.
    progress
        As of `unistore.convert`, of the settings that are tried.

    Raises
    ------
    InputError
        If `store` is no path, or an argument does not fit.
    StoreError
        There is no finished store at `store`.

    Examples
    --------
    >>> print(unistore.doctor("train.zarr", measure=True))  # doctest: +SKIP
    """
    check = Arguments()
    check.path("store", store, none=True)
    check.flag("measure", measure)
    check.number("seconds", seconds)
    if store is None and (samples is not None or measure):
        check.refuse("store", "is not named, and samples are read of one", 'doctor("train.zarr")')
    check.raise_problems()
    machine, facts, dataset = look_at_machine(), None, None
    if store is not None:
        facts, dataset = _look_at_store(os.fspath(store), machine, samples)
    advice, trials = advise(machine, facts), []
    if measure and dataset is not None and facts is not None and facts.speed is not None:
        fixed = {
            each.name: each.value
            for each in advice
            if each.name not in ("num_workers", "batch_size", "cache")
        }
        workers = _worker_counts(machine, next(each.value for each in advice if each.name == "num_workers"))
        whole, room = facts.samples * facts.speed.sample_bytes, machine.available_memory // 4
        cache = "all" if whole <= room else f"{room // 10**6}MB"
        with shown(progress) as told:
            trials = try_settings(dataset, workers, facts.speed.batch_size, cache, seconds, told, **fixed)
        advice = measured_advice(advice, trials)
    return Checkup(
        machine=machine, store=facts, advice=advice, remarks=remarks(machine, facts), trials=trials
    )


def _worker_counts(machine: Machine, advised: int) -> list[int]:
    """0, 1, 2, 4, … up to the cores, and what is advised without a trial."""
    doubling = [1 << power for power in range(int(machine.usable_cores).bit_length())]
    return sorted({0, advised, *doubling})


def _look_at_store(path: str, machine: Machine, samples: SampleKind | None) -> tuple[StoreFacts, Dataset]:
    from unistore.data.dataset import Dataset  # takes torch

    store = Store(path)
    natural = natural_suggestion(store)
    samples_as = natural.text if natural.changed else ""
    dataset = Dataset(path, natural.kind if samples is None else samples)
    count = len(dataset)
    place = look_at_place(store)
    speed = speed_of(dataset) if count else None
    forked = None
    if speed is not None and store.fork_safe and "fork" in machine.start_methods:
        forked = forks_safely(dataset, np.arange(min(speed.batch_size, count)))
    facts = StoreFacts(
        path=path,
        family=store.family,
        samples=count,
        samples_as=samples_as if samples is None else as_code(samples),
        misfits=_misfits([natural, *(each for each in suggestions(store) if each.kind != natural.kind)]),
        place=place,
        fits_page_cache=None if place.stored is None else place.stored < machine.available_memory,
        samples_a_chunk=samples_per_chunk(store, count)[0],
        fork_safe=store.fork_safe,
        fork_seconds=forked,
        speed=speed,
    )
    return facts, dataset


def _misfits(suggested: Sequence[Suggestion]) -> list[Misfit]:
    return [
        Misfit(
            kind=each.said,
            share=each.reach.beyond / each.reach.samples if each.reach.samples else 0.0,
            why=each.reach.what,
            fitting=each.text,
        )
        for each in suggested
        if each.changed
    ]


def _machine_facts(machine: Machine) -> list[tuple[str, str]]:
    affinity = "" if machine.affinity is None else f", affinity {machine.affinity}"
    version = "no cgroups" if machine.cgroup_version is None else f"cgroup v{machine.cgroup_version}"
    quota = "no quota" if machine.quota is None else f"quota {machine.quota:g}"
    limit = "no limit" if machine.memory_limit is None else f"limit {size(machine.memory_limit)}"
    whole = "" if machine.memory is None else f" of {size(machine.memory)}"
    shared = "none"
    if machine.shared_memory is not None:
        shared = f"{size(machine.shared_memory_free)} free of {size(machine.shared_memory)} in /dev/shm"
    others = [method for method in machine.start_methods if method != machine.start_method]
    beside = f" (also: {', '.join(others)})" if others else ""
    return [
        ("cores", f"{machine.usable_cores:g} usable of {machine.all_cores}{affinity}, {version}: {quota}"),
        ("memory", f"{size(machine.available_memory)} available{whole}, {version}: {limit}"),
        ("shared memory", f"{shared}, {'memfd' if machine.memfd else 'no memfd: temporary files'}"),
        ("open files", "?" if machine.descriptors is None else f"{machine.descriptors:,}"),
        ("start method", f"{machine.start_method}{beside}"),
        ("accelerator", machine.accelerator or "none"),
    ]


def _store_facts(store: StoreFacts, machine: Machine) -> list[tuple[str, str]]:
    place, speed = store.place, store.speed
    system = place.file_system
    if place.mount_point is not None:
        system += f" at {place.mount_point}, {size(place.free)} free"
    if place.network:
        system += ", reads cross a network"
    if place.in_memory:
        system += ", in memory"
    fits = {None: "its size is unknown", True: "fits", False: "does not fit"}[store.fits_page_cache]
    facts = [
        ("path", store.path),
        ("samples", f"{count_of(store.samples, 'sample')} ({store.family.replace('_', ' ')})"),
        ("file system", system),
        ("page cache", f"{size(place.stored)} of files, {size(machine.available_memory)} available: {fits}"),
        ("chunks", _per_chunk(store.samples_a_chunk)),
    ]
    if speed is None:
        return facts
    return [
        *facts,
        ("random read", f"{_rate(speed.found, speed.sample_bytes)} as the files were found"),
        ("again", f"{_rate(speed.shuffled, speed.sample_bytes)} from the page cache, one core"),
        ("in blocks", f"{_rate(speed.blocks, speed.sample_bytes)} from the page cache, one core"),
    ]


def _per_chunk(samples: float) -> str:
    return f"{samples:.3g} samples a chunk" if samples >= 1 else f"{1 / samples:.3g} chunks a sample"


def _rate(samples: float, each: float) -> str:
    shown = f"{samples:,.0f}" if samples >= 100 else f"{samples:.3g}"
    return f"{shown} samples/s, {size(samples * each)}/s decoded"
