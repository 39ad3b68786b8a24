"""``unistore.doctor``: what a machine, and a store on it, let a Loader do, and one line to start from."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from unistore.data.kinds.locality import samples_per_chunk
from unistore.report.advice import Advice, Misfit, StoreFacts, advise, remarks
from unistore.report.blocks import Block, plain
from unistore.report.machine import Machine, look_at_machine
from unistore.report.place import look_at_place
from unistore.report.speed import forks_safely, measure
from unistore.report.suggestions import Suggestion, natural_suggestion, suggestions
from unistore.store.reader import Store
from unistore.system.arguments import Arguments
from unistore.system.sizes import count_of, size

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
    """

    machine: Machine
    store: StoreFacts | None
    advice: Sequence[Advice]
    remarks: Sequence[str]

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
        if self.remarks:
            found.append(Block(title="remarks", lines=self.remarks))
        found.append(Block(title="recommended", code=self.line))
        reasons = [(str(advice), advice.reason) for advice in self.advice]
        return [*found, Block(title="because", facts=reasons)]

    def to_json(self) -> dict[str, Any]:
        """JSON values: ``machine``, ``store`` or null, ``remarks``, ``line``, ``arguments``, ``reasons``."""
        return {
            "machine": asdict(self.machine),
            "store": None if self.store is None else asdict(self.store),
            "remarks": list(self.remarks),
            "line": self.line,
            "arguments": {advice.name: advice.value for advice in self.advice},
            "reasons": {advice.name: advice.reason for advice in self.advice},
        }

    def __str__(self) -> str:
        return plain(self.blocks)


def doctor(store: str | os.PathLike[str] | None = None) -> Checkup:
    """Look at this machine, and at a store from it: some batches are read, nothing is written.

    Parameters
    ----------
    store
        Folder or URL of a store; None: the machine alone.

    Raises
    ------
    InputError
        If `store` is no path.
    StoreError
        There is no finished store at `store`.

    Examples
    --------
    >>> print(unistore.doctor("train.zarr"))  # doctest: +SKIP
    """
    check = Arguments()
    check.path("store", store, none=True)
    check.raise_problems()
    machine = look_at_machine()
    facts = None if store is None else _look_at_store(os.fspath(store), machine)
    return Checkup(
        machine=machine, store=facts, advice=advise(machine, facts), remarks=remarks(machine, facts)
    )


def _look_at_store(path: str, machine: Machine) -> StoreFacts:
    from unistore.data.dataset import Dataset  # takes torch

    store = Store(path)
    natural = natural_suggestion(store)
    dataset = Dataset(path, natural.kind)
    count = len(dataset)
    place = look_at_place(store)
    speed = measure(dataset) if count else None
    forked = None
    if speed is not None and store.fork_safe and "fork" in machine.start_methods:
        forked = forks_safely(dataset, np.arange(min(speed.batch_size, count)))
    return StoreFacts(
        path=path,
        family=store.family,
        samples=count,
        samples_as=natural.text if natural.changed else "",
        misfits=_misfits([natural, *(each for each in suggestions(store) if each.kind != natural.kind)]),
        place=place,
        fits_page_cache=None if place.stored is None else place.stored < machine.available_memory,
        samples_a_chunk=samples_per_chunk(store, count)[0],
        fork_safe=store.fork_safe,
        fork_seconds=forked,
        speed=speed,
    )


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
