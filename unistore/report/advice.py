"""Recommended arguments of a Loader with their reasons, and remarks on what slows loading down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unistore.report.machine import OBJECT_STORE, Machine, StoreLocation
from unistore.report.speed import Speed
from unistore.report.trials import Trial, best
from unistore.system.sizes import size
from unistore.system.workers import environment_number, plan

MIN_SPEEDUP = 1.3
"""Block shuffle is recommended from this speedup on; less is within the noise of a measurement."""
SLOW_DECODE = 200e6
"""Bytes a second and core below which a cache of decoded samples is worth its memory."""
SMALL_SAMPLE = 32 << 10
"""Bytes of a decoded sample below which a lookup in the cache costs more than decoding."""
FEW_DESCRIPTORS = 4096
CONTAINER_SHM = 64 << 20
"""Default size of ``/dev/shm`` in Docker containers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """Properties of a store that loading depends on.

    Attributes
    ----------
    path, family, samples
        Path and family of the store; number of its samples.
    samples_as
        Their kind as Python code where the natural one does not fit the store; else empty.
    incompatible_kinds
        Kinds of samples that the family suggests and whose sizes do not fit this store: ``kind`` and
        ``fitting``, the kind in a size that fits, as Python code; ``share`` of its samples that would be
        padded, 0 to 1, 0 if it has none; ``why``: what reaches beyond the data, or leaves no samples.
    location
        File system that it is on.
    fits_page_cache
        Whether its files fit into available memory; None if their size is unknown.
    samples_a_chunk
        Samples that share a chunk of the largest array; below 1 where a sample takes several.
    fork_safe
        Whether workers may be forked.
    fork_seconds
        Seconds that a forked child took to read a batch; None: not tried, or it failed.
    speed
        Measured read speed; None without samples.
    """

    path: str
    family: str
    samples: int
    samples_as: str = ""
    incompatible_kinds: Sequence[Mapping[str, Any]] = ()
    location: StoreLocation
    fits_page_cache: bool | None
    samples_a_chunk: float
    fork_safe: bool
    fork_seconds: float | None
    speed: Speed | None


@dataclass(frozen=True, slots=True)
class Advice:
    """A recommended argument of ``unistore.Loader``: its name, its value, and why."""

    name: str
    value: Any
    reason: str

    def __str__(self) -> str:
        return f'{self.name}="{self.value}"' if isinstance(self.value, str) else f"{self.name}={self.value}"


def advise(machine: Machine, store: StoreFacts | None) -> list[Advice]:
    """Arguments of a Loader to start from: batch size, shuffle, workers, start method, pinning, cache."""
    speed = None if store is None else store.speed
    found = [
        Advice("batch_size", *_batch_size(speed)),
        Advice("shuffle", *_shuffle(store)),
        Advice("num_workers", *_workers(machine, store)),
    ]
    if machine.start_methods:
        found.append(Advice("multiprocessing_context", *_start_method(machine, store)))
    if machine.accelerator is not None:
        reason = f"an {machine.accelerator} accelerator is here: copies from pinned memory are asynchronous"
        found.append(Advice("pin_memory", True, reason))
    if store is not None and speed is not None:
        rate, decoded_bytes = speed.shuffled * speed.sample_bytes, store.samples * speed.sample_bytes
        slow = rate < SLOW_DECODE and speed.sample_bytes >= SMALL_SAMPLE
        if slow and decoded_bytes < machine.available_memory / 4:
            needed = f"{size(decoded_bytes)} of {size(machine.available_memory)} available"
            reason = f"decoding gives {size(rate)}/s a core, and all samples decoded take {needed}"
            found.append(Advice("cache", "all", reason))
    return found


def measured_advice(advice: Sequence[Advice], trials: Sequence[Trial]) -> list[Advice]:
    """Advice with the workers, batch size and cache of the best trial."""
    winner = best(trials)
    rate = f"{winner.samples_per_second:,.4g} samples/s"
    reason = f"{rate}, about as many as the fastest of {len(trials)} settings"
    found = {each.name: each for each in advice if each.name != "cache"}
    for name in ("batch_size", "num_workers", "cache"):
        if (value := getattr(winner, name)) is not None:
            found[name] = Advice(name, value, reason)
    return list(found.values())


def _batch_size(speed: Speed | None) -> tuple[int, str]:
    if speed is None:
        return 64, "a number to begin with: your model decides"
    sizes = f"{size(speed.batch_size * speed.sample_bytes)} a batch, at {size(speed.sample_bytes)} a sample"
    return speed.batch_size, f"{sizes}: a number to begin with, your model decides"


def _shuffle(store: StoreFacts | None) -> tuple[bool | str, str]:
    if store is None:
        return True, "a full shuffle, for training"
    speed, shared = store.speed, store.samples_a_chunk
    if speed is not None and store.samples <= speed.batch_size:
        return True, "a full shuffle: an epoch is a single batch"
    if speed is not None and speed.blocks >= MIN_SPEEDUP * speed.shuffled:
        times = speed.blocks / speed.shuffled
        return "blocks", f"blocks of neighbours read {times:.1f}× as fast as a full shuffle here"
    if shared >= 2 and (store.location.network or store.fits_page_cache is False):
        where = "over the network" if store.location.network else "from the disk"
        return "blocks", (
            f"{shared:.3g} samples share a chunk, and chunks come {where}: each is fetched once an epoch"
        )
    return True, "a full shuffle: blocks of neighbours would read no faster here"


def _workers(machine: Machine, store: StoreFacts | None) -> tuple[int, str]:
    if not machine.start_methods:
        return 0, "this process is daemonic, as dask workers are: it starts no others"
    cores, samples = machine.usable_cores, None if store is None else store.samples
    if cores < 2:
        return 0, f"{cores:g} usable cores: a thread reads ahead, a process would only take turns"
    found = plan("auto", environment_number("LOCAL_WORLD_SIZE", 1), samples, cores=cores)
    return found.per_rank, found.reason


def _start_method(machine: Machine, store: StoreFacts | None) -> tuple[str, str]:
    if store is not None and not store.fork_safe:
        return "spawn", "the client of object stores has threads, which do not survive a fork"
    if machine.start_method != "fork":
        return "spawn", "forking is not safe on this platform"
    if store is None or store.speed is None:
        return "fork", "starts at once, and readers hold no thread or lock that a fork would break"
    if store.fork_seconds is None:
        return "spawn", "a child forked after this process had read did not read a batch"
    milliseconds = f"{store.fork_seconds * 1e3:.0f} ms"
    return "fork", f"a child forked after this process had read took {milliseconds} for a batch"


def remarks(machine: Machine, store: StoreFacts | None) -> Sequence[str]:
    """Remarks on what slows loading down, most important first."""
    found = []
    if machine.usable_cores < machine.all_cores:
        limits = []
        if machine.affinity is not None and machine.affinity < machine.all_cores:
            limits.append(f"the affinity mask allows {machine.affinity}")
        if machine.quota is not None:
            limits.append(f"a cgroup grants {machine.quota:g}")
        usable = f"{machine.usable_cores:g} of {machine.all_cores}"
        found.append(f"only {usable} cores may be used: {', '.join(limits)}")
    found += [] if store is None else _store_remarks(store)
    if machine.shared_memory is not None and machine.shared_memory <= CONTAINER_SHM:
        found.append(
            f"there is little shared memory ({size(machine.shared_memory)} in /dev/shm): unistore.Loader "
            "does without, workers of torch's DataLoader die of it (docker run --shm-size 8g)"
        )
    if not machine.memfd:
        found.append("no memfd here: slabs lie in unlinked files of the folder for temporary files")
    if machine.descriptors is not None and machine.descriptors < FEW_DESCRIPTORS:
        found.append(f"few open files are allowed ({machine.descriptors}): ulimit -n {FEW_DESCRIPTORS}")
    return found


def _store_remarks(store: StoreFacts) -> list[str]:
    found = [] if store.speed is not None else ["the store has no samples: nothing was measured"]
    for each in store.incompatible_kinds:
        padded = f"{100 * each['share']:.3g} % of its samples would be padded"
        reason = f"{padded if each['share'] else 'no samples'} ({each['why']})"
        found.append(f"{each['kind']}: {reason}; {each['fitting']} goes with this store")
    kind = store.location.file_system
    if store.location.network:
        network = "an object store" if kind == OBJECT_STORE else kind
        cure = 'Dataset(…, cache_dir="…") keeps copies of shards on a local disk'
        found.append(f"reads cross a network ({network}): {cure}")
    elif store.fits_page_cache is False:
        found.append("the store does not fit into the page cache: samples come from the disk in every epoch")
    if kind == "overlay":
        found.append(
            "the store lies in a container's overlay file system: mount it from the host (docker run -v), "
            "or it is gone with the container"
        )
    return found
