"""``unistore.doctor``: facts of this machine and of a store on it, and the Loader that they suggest."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from unistore.data.kinds.locality import samples_per_chunk
from unistore.data.kinds.reach import as_code
from unistore.progress import resolve_progress
from unistore.report.advice import Advice, Misfit, StoreFacts, advise, measured_advice, remarks
from unistore.report.machine import Machine, inspect_machine, locate_store
from unistore.report.suggestions import natural_suggestion, suggestions
from unistore.report.text import Block, to_text
from unistore.report.trials import Trial, measure_speed, try_settings
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
        reasons = [(str(advice), advice.reason) for advice in self.advice]
        blocks = [
            Block("machine", facts=_machine_facts(self.machine)),
            Block("store", facts=_store_facts(self.store, self.machine)),
            _trial_table(self.trials),
            Block("remarks", lines=self.remarks),
            Block("recommended", code=self.line),
            Block("because", facts=reasons),
        ]
        return [block for block in blocks if block.has_content]

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
    machine = inspect_machine()
    if store is None:
        return Checkup(
            machine=machine, store=None, advice=advise(machine, None), remarks=remarks(machine, None)
        )
    facts, dataset = _look_at(os.fspath(store), machine, samples)
    advice = advise(machine, facts)
    trials: list[Trial] = []
    if measure and facts.speed is not None:
        trials = _measure(machine, facts, facts.speed.sample_bytes, dataset, advice, seconds or 2.0, progress)
        advice = measured_advice(advice, trials)
    return Checkup(
        machine=machine, store=facts, advice=advice, remarks=remarks(machine, facts), trials=trials
    )


def _look_at(path: str, machine: Machine, samples: SampleKind | None) -> tuple[StoreFacts, Dataset]:
    from unistore.data.dataset import Dataset  # imports torch

    store = Store(path)
    natural = natural_suggestion(store)
    samples_as = natural.text if natural.changed else ""
    if samples is not None:
        samples_as = as_code(samples)
    dataset = Dataset(path, natural.kind if samples is None else samples)
    location = locate_store(store)
    others = [other for other in suggestions(store) if other.kind != natural.kind]
    misfits = [Misfit.of(suggestion) for suggestion in (natural, *others) if suggestion.changed]
    facts = StoreFacts(
        path=path,
        family=store.family,
        samples=len(dataset),
        samples_as=samples_as,
        incompatible_kinds=misfits,
        location=location,
        fits_page_cache=None if location.stored is None else location.stored < machine.available_memory,
        samples_a_chunk=samples_per_chunk(store, len(dataset))[0],
        fork_safe=store.fork_safe,
        speed=measure_speed(dataset) if len(dataset) else None,
    )
    return facts, dataset


def _measure(
    machine: Machine,
    store: StoreFacts,
    sample_bytes: float,
    dataset: Dataset,
    advice: Sequence[Advice],
    seconds: float,
    progress: Progress | bool | None,
) -> list[Trial]:
    """Try the advised number of workers and every power of two up to the cores, and a cache that fits."""
    arguments = {argument.name: argument.value for argument in advice if argument.name != "cache"}
    batch_size = arguments.pop("batch_size")
    workers = {0, arguments.pop("num_workers")}
    if machine.start_methods:
        workers |= {1 << power for power in range(int(machine.usable_cores).bit_length())}
    budget = machine.available_memory // 4
    cache = "all" if store.samples * sample_bytes <= budget else f"{budget // 10**6}MB"
    with resolve_progress(progress) as callbacks:
        return try_settings(dataset, sorted(workers), batch_size, cache, seconds, callbacks, **arguments)


def _machine_facts(machine: Machine) -> list[tuple[str, str]]:
    memory = f"{size(machine.available_memory)} available of {size(machine.memory)}"
    if machine.memory_limit is not None:
        memory += f", cgroups grant {size(machine.memory_limit)}"
    return [
        ("cores", f"{machine.usable_cores:g} usable of {machine.all_cores}"),
        ("memory", memory),
        ("shared memory", f"{size(machine.shared_memory_free)} free of {size(machine.shared_memory)}"),
        ("open files", "?" if machine.descriptors is None else f"{machine.descriptors:,}"),
        ("start methods", ", ".join(machine.start_methods) or "none: this process is daemonic"),
        ("accelerator", machine.accelerator or "none"),
    ]


def _store_facts(store: StoreFacts | None, machine: Machine) -> list[tuple[str, str]]:
    if store is None:
        return []
    location, shared = store.location, store.samples_a_chunk
    system = location.file_system
    if location.mount_point is not None:
        system += f" at {location.mount_point}, {size(location.free)} free"
    fits = {None: "its size is unknown", True: "fits", False: "does not fit"}[store.fits_page_cache]
    facts = [
        ("path", store.path),
        ("samples", f"{count_of(store.samples, 'sample')} ({store.family.replace('_', ' ')})"),
        ("file system", f"{system}, in memory" if location.in_memory else system),
        ("page cache", f"{size(location.stored)} of {size(machine.available_memory)} available: {fits}"),
        ("chunks", f"{shared:.3g} samples a chunk" if shared >= 1 else f"{1 / shared:.3g} chunks a sample"),
    ]
    if (speed := store.speed) is not None:
        rates = {
            "random read": (speed.first_pass, "in full shuffle, as the files were found"),
            "again": (speed.shuffled, "in the same order again"),
            "in blocks": (speed.blocks, "in block shuffle"),
        }
        for name, (rate, order) in rates.items():
            decoded = size(rate * speed.sample_bytes)
            facts.append((name, f"{rate:,.4g} samples/s, {decoded}/s decoded, {order}"))
    return facts


def _trial_table(trials: Sequence[Trial]) -> Block:
    """Make a table of trials, with times in milliseconds."""
    rows = []
    for trial in trials:
        hits = "" if trial.cached is None else f", {trial.cached:.0%} found"
        times = [f"{1000 * seconds:.3g}" for seconds in (trial.mean, trial.deviation, trial.longest)]
        setting = (str(trial.num_workers), str(trial.batch_size), f"{trial.cache or 'none'}{hits}")
        memory = (size(trial.resident), size(trial.anonymous))
        rate = f"{trial.samples_per_second:,.4g}"
        rows.append((*setting, rate, *times, f"{1000 * trial.first_batch:.0f}", *memory))
    columns = (
        "workers",
        "batch",
        "cache",
        "samples/s",
        "wait ms",
        "± ms",
        "longest",
        "first",
        "RSS",
        "anon.",
    )
    return Block("measured", columns=columns, rows=rows, optional_columns=("longest", "first"))
