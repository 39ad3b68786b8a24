"""From facts to arguments of a Loader, with a reason each, and to remarks about what stands in the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unistore.report.machine import Machine
from unistore.report.place import OBJECT_STORE, Place
from unistore.report.speed import Speed
from unistore.report.trials import Trial, best
from unistore.system.sizes import size
from unistore.system.workers import environment_number, plan

__all__ = ["Advice", "Misfit", "StoreFacts", "advise", "remarks"]

FASTER = 1.3
"""Block shuffle is recommended where it reads this many times faster; less is within the noise."""
SLOW_DECODE = 200e6
"""Bytes a second of one core below which decoded samples are worth keeping: kept images, zstd at its best."""
SMALL_SAMPLE = 32 << 10
"""Bytes of a decoded sample below which finding it costs more than decoding it."""
FEW_DESCRIPTORS = 4096
CONTAINER_SHM = 64 << 20
"""What container engines give ``/dev/shm`` unless they are told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """A kind of samples, suggested for all stores of a family, that does not go with this one as it is.

    Attributes
    ----------
    kind
        As Python code.
    share
        Of its samples, how many would be padded; 0 where it has none.
    why
        What reaches beyond what, or which limit leaves no samples.
    fitting
        The kind as it goes with the store, as Python code.
    """

    kind: str
    share: float
    why: str
    fitting: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """A store, as far as loading depends on it.

    Attributes
    ----------
    path, family, samples
        Of the store; samples of its natural kind.
    samples_as
        Their kind as Python code where the natural one does not go with the store; else empty.
    misfits
        Suggested kinds that do not go with the store.
    place
        Where it lies.
    fits_page_cache
        Whether its files fit into available memory; None if their size is unknown.
    samples_a_chunk
        Samples that share a chunk of the largest array; below 1 where a sample takes several.
    fork_safe
        Whether workers may be forked.
    fork_seconds
        What a forked child took to read a batch; None: not tried, or it did not.
    speed
        Measured; None where there are no samples.
    """

    path: str
    family: str
    samples: int
    samples_as: str = ""
    misfits: Sequence[Misfit] = ()
    place: Place
    fits_page_cache: bool | None
    samples_a_chunk: float
    fork_safe: bool
    fork_seconds: float | None
    speed: Speed | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """An argument of ``unistore.Loader``.

    Attributes
    ----------
    name, value
        The argument.
    reason
        Why.
    """

    name: str
    value: Any
    reason: str

    def __str__(self) -> str:
        return f'{self.name}="{self.value}"' if isinstance(self.value, str) else f"{self.name}={self.value}"


def advise(machine: Machine, store: StoreFacts | None) -> list[Advice]:
    """Arguments of a Loader to start from, in the order of its signature."""
    speed = None if store is None else store.speed
    found = [_batch_size(speed), _shuffle(store)]
    found += [_workers(machine, store), _start_method(machine, store)]
    if machine.accelerator is not None:
        reason = f"an {machine.accelerator} accelerator is here: copies from pinned memory are asynchronous"
        found.append(Advice(name="pin_memory", value=True, reason=reason))
    if store is not None and speed is not None and _worth_a_cache(machine, store, speed):
        rate, whole = speed.shuffled * speed.sample_bytes, store.samples * speed.sample_bytes
        reason = (
            f"decoding gives {size(rate)}/s a core, and all samples decoded take {size(whole)} of "
            f"{size(machine.available_memory)} available"
        )
        found.append(Advice(name="cache", value="all", reason=reason))
    return found


def measured_advice(advice: Sequence[Advice], trials: Sequence[Trial]) -> list[Advice]:
    """Advice with workers, batch size and cache of the best setting that was tried."""
    taken = best(trials)
    reason = (
        f"{taken.samples_per_second:,.4g} samples/s, about as many as the fastest of {len(trials)} settings"
    )
    found = {each.name: each for each in advice if each.name != "cache"}
    for name in ("batch_size", "num_workers", "cache"):
        if (value := getattr(taken, name)) is not None:
            found[name] = Advice(name=name, value=value, reason=reason)
    return list(found.values())


def _batch_size(speed: Speed | None) -> Advice:
    if speed is None:
        return Advice(name="batch_size", value=64, reason="a number to begin with: your model decides")
    whole = size(speed.batch_size * speed.sample_bytes)
    reason = (
        f"{whole} a batch, at {size(speed.sample_bytes)} a sample: a number to begin with, your model decides"
    )
    return Advice(name="batch_size", value=speed.batch_size, reason=reason)


def _shuffle(store: StoreFacts | None) -> Advice:
    if store is None:
        return Advice(name="shuffle", value=True, reason="a full shuffle, for training")
    speed, shared = store.speed, store.samples_a_chunk
    if speed is not None and store.samples <= speed.batch_size:
        return Advice(name="shuffle", value=True, reason="a full shuffle: an epoch is a single batch")
    if speed is not None and speed.blocks >= FASTER * speed.shuffled:
        times = speed.blocks / speed.shuffled
        reason = f"blocks of neighbours read {times:.1f}× as fast as a full shuffle here"
        return Advice(name="shuffle", value="blocks", reason=reason)
    if shared >= 2 and (store.place.network or store.fits_page_cache is False):
        where = "over the network" if store.place.network else "from the disk"
        reason = f"{shared:.3g} samples share a chunk, and chunks come {where}: each is fetched once an epoch"
        return Advice(name="shuffle", value="blocks", reason=reason)
    reason = "a full shuffle: blocks of neighbours would read no faster here"
    return Advice(name="shuffle", value=True, reason=reason)


def _workers(machine: Machine, store: StoreFacts | None) -> Advice:
    if machine.usable_cores < 2:
        reason = (
            f"{machine.usable_cores:g} usable cores: a thread reads ahead, a process would only take turns"
        )
        return Advice(name="num_workers", value=0, reason=reason)
    ranks = environment_number("LOCAL_WORLD_SIZE", 1)
    decided = plan(
        "auto", ranks, None if store is None else store.samples, cores=machine.usable_cores, quiet=True
    )
    reason = decided.reason.removeprefix("loader workers: ").rpartition(":")[0]
    return Advice(name="num_workers", value=decided.train, reason=reason)


def _start_method(machine: Machine, store: StoreFacts | None) -> Advice:
    if store is not None and not store.fork_safe:
        reason = "the client of object stores has threads, which do not survive a fork"
        return Advice(name="multiprocessing_context", value="spawn", reason=reason)
    if machine.start_method != "fork":
        return Advice(
            name="multiprocessing_context", value="spawn", reason="forking is not safe on this platform"
        )
    if store is None or store.speed is None:
        reason = "starts at once, and nothing of a reader holds a thread or a lock across it"
        return Advice(name="multiprocessing_context", value="fork", reason=reason)
    if store.fork_seconds is None:
        reason = "a child forked after this process had read did not read a batch"
        return Advice(name="multiprocessing_context", value="spawn", reason=reason)
    reason = f"a child forked after this process had read took {store.fork_seconds * 1e3:.0f} ms for a batch"
    return Advice(name="multiprocessing_context", value="fork", reason=reason)


def _worth_a_cache(machine: Machine, store: StoreFacts, speed: Speed) -> bool:
    slow = speed.shuffled * speed.sample_bytes < SLOW_DECODE and speed.sample_bytes >= SMALL_SAMPLE
    return slow and store.samples * speed.sample_bytes < machine.available_memory / 4


def remarks(machine: Machine, store: StoreFacts | None) -> Sequence[str]:
    """Sentences about what stands in the way, most important first."""
    found = []
    if machine.usable_cores < machine.all_cores:
        limits = []
        if machine.affinity is not None and machine.affinity < machine.all_cores:
            limits.append(f"the affinity mask allows {machine.affinity}")
        if machine.quota is not None:
            limits.append(f"a cgroup grants {machine.quota:g}")
        found.append(
            f"only {machine.usable_cores:g} of {machine.all_cores} cores may be used: {', '.join(limits)}"
        )
    if store is not None:
        found += _store_remarks(store)
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
    found = []
    if store.speed is None:
        found.append("the store has no samples: nothing was measured")
    for misfit in store.misfits:
        first = f"{100 * misfit.share:.3g} % of its samples would be padded" if misfit.share else "no samples"
        found.append(f"{misfit.kind}: {first} ({misfit.why}); {misfit.fitting} goes with this store")
    if store.fits_page_cache is False and not store.place.network:
        found.append("the store does not fit into the page cache: samples come from the disk in every epoch")
    if store.place.network:
        kind = "an object store" if store.place.file_system == OBJECT_STORE else store.place.file_system
        cure = 'Dataset(…, cache_dir="…") keeps copies of shards on a local disk'
        found.append(f"reads cross a network ({kind}): {cure}")
    if store.place.file_system == "overlay":
        found.append(
            "the store lies in a container's overlay file system: mount it from the host (docker run -v), "
            "or it is gone with the container"
        )
    return found
