"""Recommended arguments of a Loader with their reasons, and remarks on what slows loading down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from unistore.report.machine import OBJECT_STORE, Machine, StoreLocation
from unistore.report.suggestions import Suggestion
from unistore.report.trials import Speed, Trial, best
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
class Misfit:
    """A kind of samples that the family suggests and whose size does not fit the store, as Python code."""

    kind: str
    share: float  # of its samples that would be padded, 0 to 1; 0 if it has none
    why: str  # what reaches beyond the data, or leaves no samples
    fitting: str  # the kind in a size that fits

    @classmethod
    def of(cls, suggestion: Suggestion) -> Self:
        """Take what does not fit from a suggestion."""
        reach = suggestion.reach
        share = reach.beyond / reach.samples if reach.samples else 0.0
        return cls(kind=suggestion.declared, share=share, why=reach.problem, fitting=suggestion.text)

    def __str__(self) -> str:
        padded = f"{100 * self.share:.3g} % of its samples would be padded" if self.share else "no samples"
        return f"{self.kind}: {padded} ({self.why}); {self.fitting} goes with this store"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """A store as far as loading depends on it."""

    path: str
    family: str
    samples: int
    samples_as: str = ""  # their kind as Python code; empty: the natural kind
    incompatible_kinds: Sequence[Misfit] = ()
    location: StoreLocation
    fits_page_cache: bool | None  # whether the files fit into available memory; None: size unknown
    samples_a_chunk: float  # that share a chunk of the largest array; below 1: a sample takes several
    fork_safe: bool
    speed: Speed | None  # None without samples


@dataclass(frozen=True, slots=True)
class Advice:
    """A recommended argument of ``unistore.Loader``."""

    name: str
    value: Any
    reason: str

    def __str__(self) -> str:
        return f'{self.name}="{self.value}"' if isinstance(self.value, str) else f"{self.name}={self.value}"


def advise(machine: Machine, store: StoreFacts | None) -> list[Advice]:
    """Recommend arguments of a Loader to start from."""
    speed = None if store is None else store.speed
    advice = [_batch_size(speed), _shuffle(store), _workers(machine, store)]
    if machine.start_methods:
        advice.append(_start_method(machine, store))
    if machine.accelerator is not None:
        reason = f"an {machine.accelerator} accelerator is here: copies from pinned memory are asynchronous"
        advice.append(Advice("pin_memory", True, reason))
    if store is not None and speed is not None:
        rate = speed.shuffled * speed.sample_bytes
        decoded_bytes = store.samples * speed.sample_bytes
        slow = rate < SLOW_DECODE and speed.sample_bytes >= SMALL_SAMPLE
        if slow and decoded_bytes < machine.available_memory / 4:
            needed = f"{size(decoded_bytes)} of {size(machine.available_memory)} available"
            reason = f"decoding gives {size(rate)}/s a core, and all samples decoded take {needed}"
            advice.append(Advice("cache", "all", reason))
    return advice


def measured_advice(advice: Sequence[Advice], trials: Sequence[Trial]) -> list[Advice]:
    """Replace workers, batch size and cache by those of the best trial."""
    winner = best(trials)
    rate = f"{winner.samples_per_second:,.4g} samples/s"
    reason = f"{rate}, about as many as the fastest of {len(trials)} settings"
    measured = {argument.name: argument for argument in advice if argument.name != "cache"}
    for name in ("batch_size", "num_workers"):
        measured[name] = replace(measured[name], value=getattr(winner, name), reason=reason)
    if winner.cache is not None:
        measured["cache"] = Advice("cache", winner.cache, reason)
    return list(measured.values())


def _batch_size(speed: Speed | None) -> Advice:
    if speed is None:
        return Advice("batch_size", 64, "a number to begin with: your model decides")
    sizes = f"{size(speed.batch_size * speed.sample_bytes)} a batch, at {size(speed.sample_bytes)} a sample"
    return Advice("batch_size", speed.batch_size, f"{sizes}: a number to begin with, your model decides")


def _shuffle(store: StoreFacts | None) -> Advice:
    if store is None:
        return Advice("shuffle", True, "a full shuffle, for training")
    speed, network = store.speed, store.location.network
    if speed is not None and store.samples <= speed.batch_size:
        return Advice("shuffle", True, "a full shuffle: an epoch is a single batch")
    if speed is not None and speed.blocks >= MIN_SPEEDUP * speed.shuffled:
        times = f"{speed.blocks / speed.shuffled:.1f}×"
        return Advice(
            "shuffle", "blocks", f"blocks of neighbours read {times} as fast as a full shuffle here"
        )
    if store.samples_a_chunk >= 2 and (network or store.fits_page_cache is False):
        shared = f"{store.samples_a_chunk:.3g} samples share a chunk"
        origin = "over the network" if network else "from the disk"
        return Advice(
            "shuffle", "blocks", f"{shared}, and chunks come {origin}: each is fetched once an epoch"
        )
    return Advice("shuffle", True, "a full shuffle: blocks of neighbours would read no faster here")


def _workers(machine: Machine, store: StoreFacts | None) -> Advice:
    cores = machine.usable_cores
    if not machine.start_methods:
        return Advice("num_workers", 0, "this process is daemonic, as dask workers are: it starts no others")
    if cores < 2:
        reason = f"{cores:g} usable cores: a thread reads ahead, a process would only take turns"
        return Advice("num_workers", 0, reason)
    samples = None if store is None else store.samples
    ranks = environment_number("LOCAL_WORLD_SIZE", 1)
    planned = plan("auto", ranks, samples, cores=cores)
    return Advice("num_workers", planned.per_rank, planned.reason)


def _start_method(machine: Machine, store: StoreFacts | None) -> Advice:
    method, reason = "fork", "starts at once, and readers hold no thread or lock that a fork would break"
    if machine.start_method != "fork":
        method, reason = "spawn", "forking is not safe on this platform"
    if store is not None and not store.fork_safe:
        method, reason = "spawn", "the client of object stores has threads, which do not survive a fork"
    return Advice("multiprocessing_context", method, reason)


def remarks(machine: Machine, store: StoreFacts | None) -> list[str]:
    """List what slows loading down, most important first."""
    lines = []
    if machine.usable_cores < machine.all_cores:
        limits = []
        if machine.affinity is not None and machine.affinity < machine.all_cores:
            limits.append(f"the affinity mask allows {machine.affinity}")
        if machine.quota is not None:
            limits.append(f"a cgroup grants {machine.quota:g}")
        usable = f"{machine.usable_cores:g} of {machine.all_cores}"
        lines.append(f"only {usable} cores may be used: {', '.join(limits)}")
    if store is not None:
        lines += _store_remarks(store)
    if machine.shared_memory is not None and machine.shared_memory <= CONTAINER_SHM:
        lines.append(
            f"there is little shared memory ({size(machine.shared_memory)} in /dev/shm): unistore.Loader "
            "does without, workers of torch's DataLoader die of it (docker run --shm-size 8g)"
        )
    if not machine.memfd:
        lines.append("no memfd here: slabs lie in unlinked files of the folder for temporary files")
    if machine.descriptors is not None and machine.descriptors < FEW_DESCRIPTORS:
        lines.append(f"few open files are allowed ({machine.descriptors}): ulimit -n {FEW_DESCRIPTORS}")
    return lines


def _store_remarks(store: StoreFacts) -> list[str]:
    lines = [] if store.speed is not None else ["the store has no samples: nothing was measured"]
    lines += map(str, store.incompatible_kinds)
    system = store.location.file_system
    if store.location.network:
        network = "an object store" if system == OBJECT_STORE else system
        cure = 'Dataset(…, cache_dir="…") keeps copies of shards on a local disk'
        lines.append(f"reads cross a network ({network}): {cure}")
    elif store.fits_page_cache is False:
        lines.append("the store does not fit into the page cache: samples come from the disk in every epoch")
    if system == "overlay":
        lines.append(
            "the store lies in a container's overlay file system: mount it from the host (docker run -v), "
            "or it is gone with the container"
        )
    return lines
