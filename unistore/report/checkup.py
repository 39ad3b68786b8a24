"""``unistore.doctor``: facts of this machine and of a store on it, and the Loader that they suggest."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import resource
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from unistore.data.kinds.locality import samples_per_chunk
from unistore.data.kinds.named import parse_kind
from unistore.data.kinds.reach import as_code
from unistore.progress import resolve_progress
from unistore.remote.url import local_path
from unistore.report.suggestions import Suggestion, natural_suggestion, suggestions
from unistore.report.text import Block, to_text
from unistore.store.reader import Store
from unistore.system.arguments import Arguments
from unistore.system.machine import available_memory, usable_cores
from unistore.system.progress import Progress
from unistore.system.sizes import size
from unistore.system.workers import environment_number, plan
from unistore.zarr3.gather import forget_chunks

if TYPE_CHECKING:
    from unistore.data.dataset import Dataset
    from unistore.data.kinds.protocol import SampleKind


# How fast Loaders with several settings read a store: samples a second, waits, memory.

NEAR_BEST = 0.9  # share of the highest rate from which on a trial is about as fast


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Measurements of a Loader whose consumer does nothing else."""

    num_workers: int
    batch_size: int
    cache: str | None
    samples_per_second: float
    sample_bytes: float  # memory of a decoded sample, on average
    mean: float  # seconds that a batch was waited for, after the first one
    longest: float
    first_batch: float  # seconds; workers start meanwhile
    memory: int | None  # bytes of this process and its workers, shared pages counted once


def try_settings(
    dataset: Dataset,
    workers: Sequence[int],
    batch_size: int,
    cache: str,
    seconds: float,
    progress: Progress,
    **fixed: Any,
) -> list[Trial]:
    """Try numbers of workers, then batch sizes with the best number, then a cache with the best of both."""
    trials: list[Trial] = []

    def attempt(num_workers: int, batch_size: int, cache: str | None = None) -> None:
        trial = run_trial(dataset, seconds, num_workers, batch_size, cache, **fixed)
        trials.append(trial)
        setting = f"num_workers={num_workers}, batch_size={batch_size}"
        if cache is not None:
            setting += f', cache="{cache}"'
        progress.tell(f"{setting}: {trial.samples_per_second:,.0f} samples/s")

    for number in workers:
        attempt(number, batch_size)
    fastest = best(trials)
    for other_size in (batch_size // 4, batch_size * 4):
        # A batch that takes longer than a trial tells nothing.
        if 0 < other_size <= min(len(dataset), fastest.samples_per_second * seconds):
            attempt(fastest.num_workers, other_size)
    fastest = best(trials)
    attempt(fastest.num_workers, fastest.batch_size, cache)
    return trials


def best(trials: Sequence[Trial]) -> Trial:
    """Return the first trial that is about as fast as the fastest."""
    most = max(trial.samples_per_second for trial in trials)
    return next(trial for trial in trials if trial.samples_per_second >= NEAR_BEST * most)


def run_trial(
    dataset: Dataset,
    seconds: float,
    num_workers: int,
    batch_size: int,
    cache: str | None = None,
    **arguments: Any,
) -> Trial:
    """Time a Loader for `seconds`, at least one batch after the first."""
    from unistore.loader.loader import Loader

    forget_chunks()  # else a setting profits from chunks that an earlier one decoded
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the recommended line warns, too
        loader = Loader(dataset, num_workers=num_workers, batch_size=batch_size, cache=cache, **arguments)
    with loader:
        batches = _repeat_epochs(loader)
        first_batch = _wait(batches)
        filling = 0.0
        while cache and loader.epoch == 0 and filling < seconds:
            filling += _wait(batches)
        before = loader.stats()
        waits = [_wait(batches)]
        while sum(waits) < seconds:
            waits.append(_wait(batches))
        timed = {name: total - before[name] for name, total in loader.stats().items()}
        memory = _memory([os.getpid(), *loader.worker_pids])
    return Trial(
        num_workers=num_workers,
        batch_size=batch_size,
        cache=cache,
        samples_per_second=timed["samples"] / sum(waits),
        sample_bytes=timed["bytes"] / timed["samples"],
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
    """Return bytes in memory by proportional share (Linux), None elsewhere."""
    total = 0
    try:
        for process in processes:
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
            total += 1024 * int(text.partition("\nPss:")[2].split()[0])
    except OSError:
        return None
    return total


LARGEST_BATCH = 64
BATCH_BYTES = 32 << 20  # of a batch, unless one sample takes more
MIN_SPEEDUP = 1.3  # of block shuffle; less is within the noise of a measurement
SLOW_DECODE = 200e6  # bytes a second and core below which a cache is worth its memory
SMALL_SAMPLE = 32 << 10  # bytes of a sample below which a lookup costs more than decoding
FEW_FILES = 4096
CONTAINER_SHM = 64 << 20  # default size of /dev/shm in Docker containers
# Importing torch to find a GPU would take seconds; the drivers' device files take none.
_ACCELERATORS = {"/dev/nvidiactl": "NVIDIA", "/dev/kfd": "AMD"}
_NETWORK = re.compile("nfs|cifs|smb|lustre|gpfs|beegfs|ceph|fuse|9p|glusterfs|weka|afs")


class Machine(NamedTuple):
    """A machine as this process may use it."""

    all_cores: int
    usable_cores: float  # what the affinity mask and cgroups grant
    available_memory: int  # bytes that can still be allocated
    shared_memory: int | None  # bytes of /dev/shm; None: there is none
    open_files: int  # at most
    start_method: str | None  # of workers; None: a daemonic process starts none
    accelerator: str | None  # vendor of the GPU


class Speed(NamedTuple):
    """Read speed of a Loader without workers, in samples a second."""

    batch_size: int  # a number to begin with
    sample_bytes: float  # memory of a decoded sample, on average
    first_pass: float  # in full shuffle, as the files were found: in the page cache or not
    shuffled: float  # in the same order again
    blocks: float  # in block shuffle


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """A store as far as loading depends on it."""

    path: str
    family: str
    samples: int
    samples_as: str = ""  # their kind as Python code; empty: the natural kind
    file_system: str  # "ext4", "nfs4", "overlay", "an object store"; "?": unknown
    is_remote: bool  # whether reads cross a network
    stored_bytes: int | None  # None if the seal does not say
    fits_page_cache: bool
    samples_a_chunk: float  # that share a chunk of the largest array; below 1: a sample takes several
    fork_safe: bool
    misfits: Sequence[str] = ()  # kinds of samples whose sizes do not fit the store
    speed: Speed | None  # None without samples


class Advice(NamedTuple):
    """A recommended argument of ``unistore.Loader``."""

    name: str
    value: Any
    reason: str

    def __str__(self) -> str:
        return f'{self.name}="{self.value}"' if isinstance(self.value, str) else f"{self.name}={self.value}"


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
        record = self.to_json()
        store = record["store"] or {}
        speed = store.pop("speed", None) or {}
        store.pop("misfits", None)  # among the remarks
        rows = [list(_texts(trial).values()) for trial in record["trials"]]
        columns = [name.replace("_", " ") for name in asdict(self.trials[0])] if rows else []
        blocks = [
            Block("machine", facts=_facts(record["machine"])),
            Block("store", facts=_facts(store)),
            Block("samples/s without workers", facts=_facts(speed)),
            Block("measured", columns=columns, rows=rows, optional_columns=("longest", "sample bytes")),
            Block("remarks", lines=self.remarks),
            Block("recommended", code=self.line),
            Block("because", facts=[(str(advice), advice.reason) for advice in self.advice]),
        ]
        return [block for block in blocks if block.has_content]

    def to_json(self) -> dict[str, Any]:
        """JSON values: `machine`, `store` or null, `remarks`, `line`, `arguments`, `reasons`, `trials`."""
        store = None
        if self.store is not None:
            speed = self.store.speed
            store = {**asdict(self.store), "speed": None if speed is None else speed._asdict()}
        return {
            "machine": self.machine._asdict(),
            "store": store,
            "remarks": list(self.remarks),
            "line": self.line,
            "arguments": {advice.name: advice.value for advice in self.advice},
            "reasons": {advice.name: advice.reason for advice in self.advice},
            "trials": [asdict(trial) for trial in self.trials],
        }

    def __str__(self) -> str:
        return to_text(self.blocks)


def _texts(record: dict[str, Any]) -> dict[str, str]:
    """Return the values of a record as text, by the name of the field."""
    texts = {}
    for name, value in record.items():
        text = "none" if value is None else str(value)
        if value is not None and name.endswith(("memory", "bytes")):
            text = size(value)
        elif isinstance(value, float):
            text = f"{value:,.4g}"
        texts[name.replace("_", " ")] = text
    return texts


def _facts(record: dict[str, Any]) -> list[tuple[str, str]]:
    return list(_texts(record).items())


def doctor(
    store: str | os.PathLike[str] | None = None,
    *,
    samples: SampleKind | str | None = None,
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
        Kind of samples to read, or its text: ``"Windows(16)"``; None: the store's natural one.
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
    kind = parse_kind(samples) if isinstance(samples, str) else samples
    machine = inspect_machine()
    facts = None
    trials: list[Trial] = []
    if store is not None:
        facts, dataset = _look_at(os.fspath(store), machine, kind)
    advice = advise(machine, facts)
    if measure and facts is not None and facts.speed is not None:
        with resolve_progress(progress) as callbacks:
            trials = _measure(machine, facts, dataset, advice, seconds or 2.0, callbacks)
        advice = measured_advice(advice, trials)
    lines = remarks(machine, facts)
    return Checkup(machine=machine, store=facts, advice=advice, remarks=lines, trials=trials)


def inspect_machine() -> Machine:
    """Look at this machine."""
    shared = os.statvfs("/dev/shm") if Path("/dev/shm").is_dir() else None  # noqa: S108 - not written to
    start_method = "fork" if sys.platform == "linux" else "spawn"
    return Machine(
        all_cores=os.cpu_count() or 1,
        usable_cores=usable_cores(),
        available_memory=available_memory(),
        shared_memory=None if shared is None else shared.f_frsize * shared.f_blocks,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        start_method=None if multiprocessing.current_process().daemon else start_method,
        accelerator=next((name for path, name in _ACCELERATORS.items() if Path(path).exists()), None),
    )


def _look_at(path: str, machine: Machine, samples: SampleKind | None) -> tuple[StoreFacts, Dataset]:
    from unistore.data.dataset import Dataset  # imports torch

    store = Store(path)
    natural = natural_suggestion(store)
    samples_as = natural.text if natural.changed else ""
    if samples is not None:
        samples_as = as_code(samples)
    dataset = Dataset(path, natural.kind if samples is None else samples)
    other_kinds = [other for other in suggestions(store) if other.kind != natural.kind]
    folder = local_path(store.path)
    system = "an object store" if folder is None else file_system(folder)
    stored = store.attributes["seal"].get("bytes")
    facts = StoreFacts(
        path=path,
        family=store.family,
        samples=len(dataset),
        samples_as=samples_as,
        file_system=system,
        is_remote=folder is None or _NETWORK.match(system) is not None,
        stored_bytes=stored,
        fits_page_cache=stored is None or stored < machine.available_memory,
        samples_a_chunk=samples_per_chunk(store, len(dataset))[0],
        fork_safe=store.fork_safe,
        misfits=[_misfit(kind) for kind in (natural, *other_kinds) if kind.changed],
        speed=measure_speed(dataset) if len(dataset) else None,
    )
    return facts, dataset


def file_system(folder: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """Return the type of a folder's file system; ``"?"`` without `mounts`."""
    resolved = folder.resolve()
    deepest = 0
    kind = "?"
    for line in mounts.read_text().splitlines() if mounts.exists() else ():
        _, point, mounted_kind, *_ = line.split(" ")
        mounted = Path(point.replace("\\040", " "))
        # A later mount hides an earlier one at the same place.
        if resolved.is_relative_to(mounted) and len(mounted.parts) >= deepest:
            deepest = len(mounted.parts)
            kind = mounted_kind
    return kind


def _misfit(suggestion: Suggestion) -> str:
    """Say why a kind of samples does not fit the store, and which size of it does."""
    reach = suggestion.reach
    padded = "no samples"
    if reach.samples and reach.beyond:
        padded = f"{100 * reach.beyond / reach.samples:.3g} % of its samples would be padded"
    return f"{suggestion.declared}: {padded} ({reach.problem}); {suggestion.text} goes with this store"


def measure_speed(dataset: Dataset, seconds: float = 0.3) -> Speed:
    """Time Loaders without workers for `seconds` each, in at least two batches."""
    began = time.perf_counter()
    sample = dataset.read_batch([len(dataset) // 2])
    sample_seconds = time.perf_counter() - began
    sample_bytes = sum(packed.values.nbytes for packed in sample.values())
    batch_size = _power_of_two(min(LARGEST_BATCH, len(dataset), BATCH_BYTES // max(1, sample_bytes)))
    # A batch of slow samples must not take longer than all measurements together.
    step = _power_of_two(min(batch_size, int(seconds / max(sample_seconds, 1e-6))))
    orders = ("full", "full", "blocks")
    first, again, blocks = [run_trial(dataset, seconds, 0, step, shuffle=order) for order in orders]
    rates = [trial.samples_per_second for trial in (first, again, blocks)]
    return Speed(batch_size, again.sample_bytes, *rates)


def _power_of_two(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)


def _measure(
    machine: Machine,
    store: StoreFacts,
    dataset: Dataset,
    advice: Sequence[Advice],
    seconds: float,
    progress: Progress,
) -> list[Trial]:
    """Try the advised number of workers and every power of two up to the cores, and a cache that fits."""
    arguments = {argument.name: argument.value for argument in advice if argument.name != "cache"}
    batch_size = arguments.pop("batch_size")
    workers = {0, arguments.pop("num_workers")}
    if machine.start_method is not None:
        workers |= {1 << power for power in range(int(machine.usable_cores).bit_length())}
    budget = machine.available_memory // 4
    cache = "all" if _decoded_bytes(store) <= budget else f"{budget // 10**6}MB"
    return try_settings(dataset, sorted(workers), batch_size, cache, seconds, progress, **arguments)


def _decoded_bytes(store: StoreFacts) -> float:
    return 0.0 if store.speed is None else store.samples * store.speed.sample_bytes


def advise(machine: Machine, store: StoreFacts | None) -> list[Advice]:
    """Recommend arguments of a Loader to start from."""
    speed = None if store is None else store.speed
    batch = Advice("batch_size", 64, "a number to begin with: your model decides")
    if speed is not None:
        reason = f"{size(speed.sample_bytes)} a sample: a number to begin with, your model decides"
        batch = Advice("batch_size", speed.batch_size, reason)
    advice = [batch, _shuffle(store), _workers(machine, store)]
    if machine.start_method is not None:
        method = machine.start_method
        reason = "readers hold no thread or lock that a fork would break"
        if method != "fork":
            reason = "forking is not safe on this platform"
        if store is not None and not store.fork_safe:
            method = "spawn"
            reason = "the client of object stores has threads, which do not survive a fork"
        advice.append(Advice("multiprocessing_context", method, reason))
    if machine.accelerator is not None:
        reason = f"an {machine.accelerator} accelerator is here: copies from pinned memory are asynchronous"
        advice.append(Advice("pin_memory", True, reason))
    if store is not None and speed is not None and speed.sample_bytes >= SMALL_SAMPLE:
        rate = speed.shuffled * speed.sample_bytes
        if rate < SLOW_DECODE and _decoded_bytes(store) < machine.available_memory / 4:
            needed = size(_decoded_bytes(store))
            reason = f"decoding gives {size(rate)}/s a core, and all samples decoded take {needed}"
            advice.append(Advice("cache", "all", reason))
    return advice


def _shuffle(store: StoreFacts | None) -> Advice:
    if store is None:
        return Advice("shuffle", True, "a full shuffle, for training")
    speed = store.speed
    if speed is not None and store.samples <= speed.batch_size:
        return Advice("shuffle", True, "a full shuffle: an epoch is a single batch")
    if speed is not None and speed.blocks >= MIN_SPEEDUP * speed.shuffled:
        times = f"{speed.blocks / speed.shuffled:.1f}×"
        reason = f"blocks of neighbours read {times} as fast as a full shuffle here"
        return Advice("shuffle", "blocks", reason)
    if store.samples_a_chunk >= 2 and (store.is_remote or not store.fits_page_cache):
        shared = f"{store.samples_a_chunk:.3g} samples share a chunk"
        reason = f"{shared}, and chunks come from the disk or a network: each is fetched once an epoch"
        return Advice("shuffle", "blocks", reason)
    return Advice("shuffle", True, "a full shuffle: blocks of neighbours would read no faster here")


def _workers(machine: Machine, store: StoreFacts | None) -> Advice:
    cores = machine.usable_cores
    if machine.start_method is None:
        return Advice("num_workers", 0, "this process is daemonic, as dask workers are: it starts no others")
    if cores < 2:
        reason = f"{cores:g} usable cores: a thread reads ahead, a process would only take turns"
        return Advice("num_workers", 0, reason)
    samples = None if store is None else store.samples
    planned = plan("auto", environment_number("LOCAL_WORLD_SIZE", 1), samples, cores=cores)
    return Advice("num_workers", planned.per_rank, planned.reason)


def measured_advice(advice: Sequence[Advice], trials: Sequence[Trial]) -> list[Advice]:
    """Replace workers, batch size and cache by those of the best trial."""
    winner = best(trials)
    rate = f"{winner.samples_per_second:,.4g} samples/s"
    reason = f"{rate}, about as many as the fastest of {len(trials)} settings"
    measured = {argument.name: argument for argument in advice if argument.name != "cache"}
    for name in ("batch_size", "num_workers", "cache"):
        value = getattr(winner, name)
        if value is not None:
            measured[name] = Advice(name, value, reason)
    return list(measured.values())


def remarks(machine: Machine, store: StoreFacts | None) -> list[str]:
    """List what slows loading down, most important first."""
    lines = []
    if machine.usable_cores < machine.all_cores:
        usable = f"{machine.usable_cores:g} of {machine.all_cores}"
        lines.append(f"only {usable} cores may be used: an affinity mask or a cgroup grants no more")
    if store is not None:
        lines += _store_remarks(store)
    if machine.shared_memory is not None and machine.shared_memory <= CONTAINER_SHM:
        lines.append(
            f"there is little shared memory ({size(machine.shared_memory)} in /dev/shm): unistore.Loader "
            "does without, workers of torch's DataLoader die of it (docker run --shm-size 8g)"
        )
    if machine.open_files < FEW_FILES:
        lines.append(f"few open files are allowed ({machine.open_files}): ulimit -n {FEW_FILES}")
    return lines


def _store_remarks(store: StoreFacts) -> list[str]:
    lines = [] if store.speed is not None else ["the store has no samples: nothing was measured"]
    lines += store.misfits
    if store.is_remote:
        cure = 'Dataset(…, cache_dir="…") keeps copies of shards on a local disk'
        lines.append(f"reads cross a network ({store.file_system}): {cure}")
    elif not store.fits_page_cache:
        lines.append("the store does not fit into the page cache: samples come from the disk in every epoch")
    if store.file_system == "overlay":
        lines.append(
            "the store lies in a container's overlay file system: mount it from the host (docker run -v), "
            "or it is gone with the container"
        )
    return lines
