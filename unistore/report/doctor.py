"""`doctor`: facts about this machine and a store on it, and a recommended Loader."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unistore.data.blocks import samples_per_chunk
from unistore.data.kinds.named import as_code, parse_kind
from unistore.progress import resolve_progress
from unistore.remote.url import local_path
from unistore.report.epochs import EpochCost, epoch_costs
from unistore.report.suggestions import misfits, natural_suggestion
from unistore.report.text import Block, to_text
from unistore.report.trials import LARGEST_BATCH, Trial, best, first_batch_size, measure_speed, try_settings
from unistore.store.versions import OpenedStores, open_stores
from unistore.system.arguments import Arguments
from unistore.system.extras import EXTRAS, require_torch
from unistore.system.kernel import kernel
from unistore.system.machine import available_memory, file_system, usable_cores
from unistore.system.progress import Progress
from unistore.system.sizes import size
from unistore.system.types import JsonObject, PathLike
from unistore.system.workers import environment_number, plan
from unistore.zarr3.compiled import compiled_functions

if TYPE_CHECKING:
    from unistore.data.dataset import Dataset
    from unistore.data.kinds.protocol import SampleKind

MIN_SPEEDUP = 1.3  # of block shuffle; less is within the noise of a measurement
CONTAINER_SHM = 64 << 20  # default size of /dev/shm in Docker containers
_NETWORK = re.compile("nfs|cifs|smb|lustre|gpfs|beegfs|ceph|fuse|9p|glusterfs|weka|afs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine, as this process may use it.

    Attributes
    ----------
    all_cores : int
        Number of cores.
    usable_cores : float
        Number of cores that the affinity mask and cgroups allow.
    available_memory : int
        Memory that can still be allocated, in bytes.
    shared_memory : int or None
        Size of /dev/shm in bytes. None: there is none.
    starts_workers : bool
        Whether this process can start workers. A daemonic process cannot.
    has_kernel : bool
        Whether the compiled kernel can be used. Otherwise Python does its work.
    """

    all_cores: int
    usable_cores: float  # what the affinity mask and cgroups grant
    available_memory: int  # bytes that can still be allocated
    shared_memory: int | None  # bytes of /dev/shm; None: there is none
    starts_workers: bool  # a daemonic process starts none
    has_kernel: bool  # whether the compiled kernel can be used; Python does its work where not
    missing_extras: Mapping[str, str]  # extras with a library that is not installed, and what each would add


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """Facts about a store that matter for loading.

    Attributes
    ----------
    path : str
        Folder or URL.
    version : int or None
        Number of the version of a versioned store.
    family : str
        Name of the family.
    samples : int
        Number of samples.
    samples_as : str
        The sample kind as Python code. Empty: the default kind.
    file_system : str
        Type of the file system: ``"ext4"``, ``"nfs4"``, ``"an object store"``, or ``"?"``.
    is_remote : bool
        Whether reads use a network.
    stored_bytes : int or None
        Size of the store in bytes. None: the seal does not state it.
    fits_page_cache : bool
        Whether the store fits into the memory for cached files.
    samples_a_chunk : float
        Number of samples per chunk of the largest array. Below 1: a sample has several chunks.
    """

    path: str
    version: int | None
    family: str
    samples: int
    samples_as: str
    file_system: str
    is_remote: bool
    stored_bytes: int | None
    fits_page_cache: bool
    samples_a_chunk: float


@dataclass(frozen=True, slots=True)
class Advice:
    """A recommended argument of ``unistore.Loader``.

    Attributes
    ----------
    name : str
        Name of the argument.
    value
        Recommended value.
    reason : str
        Why.
    """

    name: str
    value: Any
    reason: str

    def __str__(self) -> str:
        return f"{self.name}={self.value!r}".replace("'", '"')


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DoctorReport:
    """Facts about a machine and a store, notes, and a recommended Loader.

    ``print(report)`` shows what the command ``unistore doctor`` prints.

    Attributes
    ----------
    machine : Machine
        Facts about the machine.
    store : StoreFacts or None
        Facts about the store. None: no store was given.
    advice : sequence of Advice
        Arguments of a Loader, each with its reason.
    remarks : sequence of str
        Causes of slow loading, the most important first.
    trials : sequence of Trial
        Loaders that were timed: without workers in a full shuffle and in blocks; with ``measure=True``,
        then several numbers of workers, batch sizes and a cache.
    epochs : sequence of EpochCost
        For a store in an object store: requests and bytes of the first epoch in each order, and with
        `cache_dir`.
    """

    machine: Machine
    store: StoreFacts | None
    advice: Sequence[Advice]
    remarks: Sequence[str]
    trials: Sequence[Trial] = ()
    epochs: Sequence[EpochCost] = ()

    @property
    def line(self) -> str:
        """Python code that makes the recommended Loader."""
        dataset = "dataset"
        if self.store is not None:
            kind = f", {self.store.samples_as}" if self.store.samples_as else ""
            version = "" if self.store.version is None else f", version={self.store.version}"
            dataset = f"unistore.Dataset({json.dumps(self.store.path)}{kind}{version})"
        return f"unistore.Loader({dataset}, {', '.join(map(str, self.advice))})"

    @property
    def blocks(self) -> list[Block]:
        trials = [dict(_shown(trial)) for trial in self.trials]
        blocks = [
            Block("machine", facts=_shown(self.machine)),
            Block(
                "not installed",
                columns=("extra", "would add", "command"),
                rows=[
                    (name, adds, f"pip install 'unistore[{name}]'")
                    for name, adds in self.machine.missing_extras.items()
                ],
            ),
            Block("store", facts=_shown(self.store) if self.store else ()),
            Block(
                "measured",
                columns=list(trials[0]) if trials else (),
                rows=[list(trial.values()) for trial in trials],
                optional_columns=("longest", "sample bytes", "shuffle"),
            ),
            Block(
                "a first epoch",
                columns=("shuffle", "requests", "bytes"),
                rows=[(cost.order, f"{cost.requests:,}", size(cost.bytes)) for cost in self.epochs],
            ),
            Block("remarks", lines=self.remarks),
            Block("recommended", code=self.line),
            Block("because", facts=[(str(advice), advice.reason) for advice in self.advice]),
        ]
        return [block for block in blocks if block.has_content]

    def to_json(self) -> JsonObject:
        """Return the attributes and `line` as JSON values."""
        return {**asdict(self), "line": self.line}

    def __repr__(self) -> str:
        return to_text(self.blocks)


def _shown(record: Machine | StoreFacts | Trial) -> list[tuple[str, str]]:
    facts = []
    for name, value in asdict(record).items():
        if isinstance(value, Mapping):  # a table of its own
            continue
        text = "none" if value is None else str(value)
        if value is not None and name.endswith(("memory", "bytes")):
            text = size(value)
        elif isinstance(value, float):
            text = f"{value:,.4g}"
        facts.append((name.replace("_", " "), text))
    return facts


def doctor(
    store: PathLike | None = None,
    *,
    samples: SampleKind | str | None = None,
    measure: bool = False,
    seconds: float | None = None,
    version: int | str | None = None,
    progress: Progress | bool | None = None,
) -> DoctorReport:
    """Check this machine, and how fast it reads a store. Nothing is written.

    Parameters
    ----------
    store : path or URL, optional
        Folder or URL of a store. None: only the machine.
    samples : sample kind or str, optional
        Samples to read, for example ``"Clips(length=5)"``. None: the default kind of the store.
    measure : bool, default False
        Try several numbers of workers, batch sizes and a cache with this store, and recommend the fastest.
    seconds : float, optional
        With `measure`: time for each of these settings, of which there are about 6 on two cores and 12 on
        64. A cache is filled for the same time before. None: 2.0.
    version : int or str, optional
        Number or name of the version of a versioned store. None: the newest.
    progress : optional
        As in `unistore.convert`: the settings that are tried.

    Returns
    -------
    DoctorReport
        Facts, notes, and arguments of a Loader.

    Raises
    ------
    InputError
        If an argument is invalid.
    StoreError
        If there is no finished store at `store`.

    Examples
    --------
    >>> report = unistore.doctor("train.zarr", measure=True)  # doctest: +SKIP
    >>> print(report.line)  # doctest: +SKIP
    """
    check = Arguments()
    check.path("store", store, none=True)
    check.flag("measure", measure)
    check.number("seconds", seconds, none=True)
    if seconds is not None and not measure:
        check.refuse("seconds", "works only with measure", "add measure=True (--measure)")
    if store is None and (samples is not None or measure):
        check.refuse("store", "is needed to read samples", "give a store, for example train.zarr")
    check.raise_problems()
    kind = parse_kind(samples) if isinstance(samples, str) else samples
    machine = inspect_machine()
    if store is None:
        advice = advise(machine, None)
        return DoctorReport(machine=machine, store=None, advice=advice, remarks=list(remarks(machine, None)))
    require_torch("timing Loaders needs")
    from unistore.data.dataset import Dataset

    opened = open_stores(os.fspath(store), version)
    natural = natural_suggestion(opened.stores[0])
    samples_as = natural.text if natural.changed else ""
    if kind is not None:
        samples_as = as_code(kind)
    dataset = Dataset(store, kind or natural.kind, version=version)
    facts = _look_at(opened, dataset, samples_as, machine)
    trials = measure_speed(dataset) if facts.samples else []
    advice = advise(machine, facts, trials)
    if measure and facts.samples:
        with resolve_progress(progress) as callbacks:
            arguments = {argument.name: argument.value for argument in advice}
            workers = _workers_to_try(machine, arguments["num_workers"])
            cache_bytes = machine.available_memory // 4
            settings = try_settings(dataset, arguments, workers, cache_bytes, seconds or 2.0, callbacks)
        advice = _measured(advice, settings)
        trials += settings
    lines = [*misfits(opened.stores[0], natural), *remarks(machine, facts)]
    batch_size: int = advice[0].value
    epochs = epoch_costs(dataset, batch_size) if facts.samples else []
    return DoctorReport(
        machine=machine, store=facts, advice=advice, remarks=lines, trials=trials, epochs=epochs
    )


def inspect_machine() -> Machine:
    """Return facts about this machine."""
    shared = os.statvfs("/dev/shm") if Path("/dev/shm").is_dir() else None  # noqa: S108 - not written to
    return Machine(
        all_cores=os.cpu_count() or 1,
        usable_cores=usable_cores(),
        available_memory=available_memory(),
        shared_memory=None if shared is None else shared.f_frsize * shared.f_blocks,
        starts_workers=not multiprocessing.current_process().daemon,
        has_kernel=kernel() is not None and compiled_functions() is not None,
        missing_extras={name: extra.adds for name, extra in EXTRAS.items() if extra.missing},
    )


def _look_at(opened: OpenedStores, dataset: Dataset, samples_as: str, machine: Machine) -> StoreFacts:
    store = opened.stores[0]
    folder = local_path(store.path)
    system = "an object store" if folder is None else file_system(folder)
    stored = sum(part.root.seal.bytes for part in opened.stores)
    return StoreFacts(
        path=opened.path,
        version=None if opened.version is None else opened.version.number,
        family=store.family,
        samples=len(dataset),
        samples_as=samples_as,
        file_system=system,
        is_remote=folder is None or _NETWORK.match(system) is not None,
        stored_bytes=stored,
        fits_page_cache=stored is None or stored < machine.available_memory,
        samples_a_chunk=samples_per_chunk(dataset.read_parts[0].store, int(dataset.store_offsets[1]))[0],
    )


def _workers_to_try(machine: Machine, advised: int) -> list[int]:
    numbers = {0, advised}
    if machine.starts_workers:
        numbers |= {1 << power for power in range(int(machine.usable_cores).bit_length())}
    return sorted(numbers)


def _measured(advice: Sequence[Advice], trials: Sequence[Trial]) -> list[Advice]:
    winner = best(trials)
    rate = f"{winner.samples_per_second:,.4g} samples/s"
    reason = f"{rate}, close to the fastest of {len(trials)} settings"
    measured = {argument.name: argument for argument in advice}
    for name in ("batch_size", "num_workers", "cache"):
        value = getattr(winner, name)
        if value is not None:
            measured[name] = Advice(name, value, reason)
    return list(measured.values())


def advise(machine: Machine, store: StoreFacts | None, speed: Sequence[Trial] = ()) -> list[Advice]:
    """Recommend arguments of a Loader. `speed` is the result of `measure_speed`."""
    batch = Advice("batch_size", LARGEST_BATCH, "a first guess; the best size depends on your model")
    shuffle = Advice("shuffle", True, "a full shuffle, for training")
    if store is not None and speed:
        sample_bytes = speed[0].sample_bytes
        reason = f"{size(sample_bytes)} per sample; a first guess, the best size depends on your model"
        batch = Advice("batch_size", first_batch_size(store.samples, sample_bytes), reason)
        shuffle = _shuffle(store, batch.value, *speed)
    return [batch, shuffle, _workers(machine, store)]


def _shuffle(store: StoreFacts, batch_size: int, full: Trial, blocks: Trial) -> Advice:
    if store.samples <= batch_size:
        return Advice("shuffle", True, "a full shuffle, because an epoch is a single batch")
    speedup = blocks.samples_per_second / full.samples_per_second
    if speedup >= MIN_SPEEDUP:
        reason = f"blocks of neighbours read {speedup:.1f}× as fast as a full shuffle here"
        return Advice("shuffle", "blocks", reason)
    if store.samples_a_chunk >= 2 and (store.is_remote or not store.fits_page_cache):
        shared = f"{store.samples_a_chunk:.3g} samples share a chunk"
        reason = f"{shared}, and each chunk is fetched only once per epoch from the disk or network"
        return Advice("shuffle", "blocks", reason)
    return Advice("shuffle", True, "a full shuffle, because blocks of neighbours are not faster here")


def _workers(machine: Machine, store: StoreFacts | None) -> Advice:
    cores = machine.usable_cores
    if not machine.starts_workers:
        reason = "this process is daemonic, like a dask worker, and cannot start others"
        return Advice("num_workers", 0, reason)
    if cores < 2:
        reason = f"{cores:g} usable cores, so a worker would only slow down training"
        return Advice("num_workers", 0, reason)
    samples = None if store is None else store.samples
    planned = plan("auto", environment_number("LOCAL_WORLD_SIZE", 1), samples, cores=cores)
    return Advice("num_workers", planned.per_rank, planned.reason)


def remarks(machine: Machine, store: StoreFacts | None) -> Iterator[str]:
    """Iterate over causes of slow loading, the most important first."""
    if store is not None and not store.samples:
        yield "the store has no samples, so reading was not measured"
    if machine.usable_cores < machine.all_cores:
        usable = f"{machine.usable_cores:g} of {machine.all_cores}"
        yield f"only {usable} cores may be used, because of an affinity mask or a cgroup"
    if store is not None and store.is_remote:
        fix = 'Dataset(…, cache_dir="…") keeps copies of shards on a local disk'
        yield f"the store is read over a network ({store.file_system}); {fix}"
    elif store is not None and not store.fits_page_cache:
        yield "the store does not fit into the page cache, so samples are read from the disk in every epoch"
    if machine.shared_memory is not None and machine.shared_memory <= CONTAINER_SHM:
        yield (
            f"there is little shared memory ({size(machine.shared_memory)} in /dev/shm): unistore.Loader "
            "works without it, but workers of torch's DataLoader die; raise it with docker run --shm-size 8g"
        )
    if not machine.has_kernel:
        yield (
            "the compiled kernel is missing, or numcodecs and google-crc32c hide their functions, so Python "
            "does its work in more processor time; install a C compiler, then install unistore again without "
            "UNISTORE_KERNEL=0"
        )
