"""``unistore.doctor``: facts of this machine and of a store on it, and the Loader that they suggest."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from unistore.data.kinds.locality import samples_per_chunk
from unistore.data.kinds.reach import as_code
from unistore.progress import resolve_progress
from unistore.report.advice import Advice, StoreFacts, advise, measured_advice, remarks
from unistore.report.blocks import Block, to_text
from unistore.report.machine import Machine, inspect_machine, locate_store
from unistore.report.speed import measure_speed, time_forked_read
from unistore.report.suggestions import natural_suggestion, suggestions
from unistore.report.trials import Trial, trial_table, try_settings
from unistore.store.reader import Store
from unistore.system.arguments import Arguments
from unistore.system.progress import Progress
from unistore.system.sizes import count_of, size

if TYPE_CHECKING:
    from unistore.data.dataset import Dataset
    from unistore.data.kinds.protocol import SampleKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """Facts of a machine and a store, remarks, and a recommended Loader. ``print`` shows it.

    Attributes
    ----------
    machine, store
        Their facts; `store` is None if no store was given.
    advice
        Arguments of a Loader, each with its reason.
    remarks
        What slows loading down, most important first.
    trials
        Settings that were measured, with ``measure=True``.
    """

    machine: Machine
    store: StoreFacts | None
    advice: Sequence[Advice]
    remarks: Sequence[str]
    trials: Sequence[Trial] = ()

    @property
    def line(self) -> str:
        """Python code that makes the Loader."""
        dataset = "dataset"
        if self.store is not None:
            kind = f", {self.store.samples_as}" if self.store.samples_as else ""
            dataset = f"unistore.Dataset({json.dumps(self.store.path)}{kind})"
        return f"unistore.Loader({dataset}, {', '.join(map(str, self.advice))})"

    @property
    def blocks(self) -> list[Block]:
        """Blocks to show."""
        found = [Block(title="machine", facts=_machine_facts(self.machine))]
        if self.store is not None:
            found.append(Block(title="store", facts=_store_facts(self.store, self.machine)))
        if self.trials:
            found.append(trial_table(self.trials))
        if self.remarks:
            found.append(Block(title="remarks", lines=self.remarks))
        found.append(Block(title="recommended", code=self.line))
        reasons = [(str(advice), advice.reason) for advice in self.advice]
        return [*found, Block(title="because", facts=reasons)]

    def to_json(self) -> dict[str, Any]:
        """JSON values: `machine`, `store` or null, `remarks`, `line`, `arguments`, `reasons`, `trials`."""
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
        return to_text(self.blocks)


def doctor(
    store: str | os.PathLike[str] | None = None,
    *,
    samples: SampleKind | None = None,
    measure: bool = False,
    seconds: float | None = None,
    progress: Progress | bool | None = None,
) -> Checkup:
    """Check this machine, and how fast it reads a store. Nothing is written.

    Parameters
    ----------
    store
        Folder or URL of a store; None: the machine alone.
    samples
        Kind of samples to read; None: the store's natural one.
    measure
        Try numbers of workers, batch sizes and a cache with this store, and recommend what was fastest.
    seconds
        With `measure`: how long each of these settings is timed, about 6 on two cores, 12 on 64; None: 2.0. A
        cache is filled as long before.
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
    check.number("seconds", seconds, none=True)
    if seconds is not None and not measure:
        check.refuse("seconds", "times the settings that are measured", "measure=True, or --measure")
    if store is None and (samples is not None or measure):
        check.refuse("store", "is required to read samples", 'doctor("train.zarr")')
    check.raise_problems()
    machine, facts, dataset = inspect_machine(), None, None
    if store is not None:
        facts, dataset = _inspect_store(os.fspath(store), machine, samples)
    advice, trials = advise(machine, facts), []
    if measure and dataset is not None and facts is not None and facts.speed is not None:
        arguments = {each.name: each.value for each in advice}
        batch_size, workers = arguments.pop("batch_size"), arguments.pop("num_workers")
        arguments.pop("cache", None)
        powers = range(int(machine.usable_cores).bit_length()) if machine.start_methods else ()
        doubling = [1 << power for power in powers]
        budget = machine.available_memory // 4
        fits = facts.samples * facts.speed.sample_bytes <= budget
        cache = "all" if fits else f"{budget // 10**6}MB"
        with resolve_progress(progress) as callbacks:
            counts = sorted({0, workers, *doubling})
            trials = try_settings(dataset, counts, batch_size, cache, seconds or 2.0, callbacks, **arguments)
        advice = measured_advice(advice, trials)
    return Checkup(
        machine=machine, store=facts, advice=advice, remarks=remarks(machine, facts), trials=trials
    )


def _inspect_store(path: str, machine: Machine, samples: SampleKind | None) -> tuple[StoreFacts, Dataset]:
    from unistore.data.dataset import Dataset  # imports torch

    store = Store(path)
    natural = natural_suggestion(store)
    if samples is None:
        kind, samples_as = natural.kind, natural.text if natural.changed else ""
    else:
        kind, samples_as = samples, as_code(samples)
    dataset = Dataset(path, kind)
    count = len(dataset)
    location = locate_store(store)
    speed = measure_speed(dataset) if count else None
    fork_seconds = None
    if speed is not None and store.fork_safe and "fork" in machine.start_methods:
        fork_seconds = time_forked_read(dataset, np.arange(min(speed.batch_size, count)))
    suggested = [natural, *(each for each in suggestions(store) if each.kind != natural.kind)]
    misfits = [
        {
            "kind": each.declared,
            "share": each.reach.beyond / each.reach.samples if each.reach.samples else 0.0,
            "why": each.reach.problem,
            "fitting": each.text,
        }
        for each in suggested
        if each.changed
    ]
    facts = StoreFacts(
        path=path,
        family=store.family,
        samples=count,
        samples_as=samples_as,
        incompatible_kinds=misfits,
        location=location,
        fits_page_cache=None if location.stored is None else location.stored < machine.available_memory,
        samples_a_chunk=samples_per_chunk(store, count)[0],
        fork_safe=store.fork_safe,
        fork_seconds=fork_seconds,
        speed=speed,
    )
    return facts, dataset


def _machine_facts(machine: Machine) -> list[tuple[str, str]]:
    affinity = "" if machine.affinity is None else f", affinity {machine.affinity}"
    version = "no cgroups" if machine.cgroup_version is None else f"cgroup v{machine.cgroup_version}"
    quota = "no quota" if machine.quota is None else f"quota {machine.quota:g}"
    limit = "no limit" if machine.memory_limit is None else f"limit {size(machine.memory_limit)}"
    total = "" if machine.memory is None else f" of {size(machine.memory)}"
    shared = "none"
    if machine.shared_memory is not None:
        shared = f"{size(machine.shared_memory_free)} free of {size(machine.shared_memory)} in /dev/shm"
    others = [method for method in machine.start_methods if method != machine.start_method]
    alternatives = f" (also: {', '.join(others)})" if others else ""
    start_method = f"{machine.start_method}{alternatives}"
    if not machine.start_methods:
        start_method = "none: this process is daemonic"
    return [
        ("cores", f"{machine.usable_cores:g} usable of {machine.all_cores}{affinity}, {version}: {quota}"),
        ("memory", f"{size(machine.available_memory)} available{total}, {version}: {limit}"),
        ("shared memory", f"{shared}, {'memfd' if machine.memfd else 'no memfd: temporary files'}"),
        ("open files", "?" if machine.descriptors is None else f"{machine.descriptors:,}"),
        ("start method", start_method),
        ("accelerator", machine.accelerator or "none"),
    ]


def _store_facts(store: StoreFacts, machine: Machine) -> list[tuple[str, str]]:
    location, speed = store.location, store.speed
    system = location.file_system
    if location.mount_point is not None:
        system += f" at {location.mount_point}, {size(location.free)} free"
    if location.network:
        system += ", reads cross a network"
    if location.in_memory:
        system += ", in memory"
    fits = {None: "its size is unknown", True: "fits", False: "does not fit"}[store.fits_page_cache]
    available, shared = size(machine.available_memory), store.samples_a_chunk
    facts = [
        ("path", store.path),
        ("samples", f"{count_of(store.samples, 'sample')} ({store.family.replace('_', ' ')})"),
        ("file system", system),
        ("page cache", f"{size(location.stored)} of files, {available} available: {fits}"),
        ("chunks", f"{shared:.3g} samples a chunk" if shared >= 1 else f"{1 / shared:.3g} chunks a sample"),
    ]
    if speed is not None:
        rates = {
            "random read": (speed.first_pass, "as the files were found"),
            "again": (speed.shuffled, "from the page cache, one core"),
            "in blocks": (speed.blocks, "from the page cache, one core"),
        }
        for name, (rate, how) in rates.items():
            samples = f"{rate:{',.0f' if rate >= 100 else '.3g'}} samples/s"
            facts.append((name, f"{samples}, {size(rate * speed.sample_bytes)}/s decoded {how}"))
    return facts
