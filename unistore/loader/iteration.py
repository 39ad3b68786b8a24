"""Iterations over epochs: batches are requested ahead and delivered in order."""

from __future__ import annotations

import json
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import xxhash

from unistore.errors import LoaderError
from unistore.order.sequences import EpochSequence, RankShare
from unistore.system.arguments import MAX_EPOCH
from unistore.system.types import Int64s, JsonObject

# `Producer`, what makes batches in worker processes or in this one: requests in, batches out.


class Request(NamedTuple):
    """A batch to make."""

    number: int  # its index among the batches that were requested
    epoch: int  # epoch that it belongs to
    indices: Int64s  # (B,) int64 samples


class Arrival(NamedTuple):
    """A batch that was made, with statistics."""

    batch: Any  # the batch: views of a slab, or copies
    samples: int  # that it has
    needed: int  # bytes of memory it took
    seconds: float  # time it took to make
    # whether it did not fit into its slab; whether it was copied, as the consumer holds too many
    missed: bool = False
    copied: bool = False
    counts: Mapping[str, int] = {}  # what was added to `COUNTS` in the process that made it


class Producer(ABC):
    """Makes batches ahead of the consumer. Used by one thread at a time."""

    # Whether it can still make batches, in this process.
    usable = True
    # Largest number of batches that may be under way.
    capacity = 1

    @abstractmethod
    def begin(self) -> None:
        """Drop all requests: an iteration starts."""

    @abstractmethod
    def room(self) -> int:
        """Return the number of batches that may be requested now."""

    @abstractmethod
    def submit(self, requests: Sequence[Request]) -> int:
        """Accept at most `room` requests with consecutive numbers, and return how many were accepted."""

    def wait(self) -> None:  # noqa: B027 - where nothing runs beside the consumer
        """Wait until a batch under way is done."""

    @abstractmethod
    def take(self, number: int) -> Arrival:
        """Wait for a requested batch."""

    @property
    def pids(self) -> list[int]:
        return []

    @abstractmethod
    def close(self) -> None:
        """End processes, free memory. May be called twice, and from any thread."""


# Positions whose samples are computed at a time; computing many costs little more than a few.
WINDOW = 4096
# Batches that are made in less time are requested several at a time, see `Requests.request_ahead`.
QUICK_SECONDS = 0.002


class PlannedEpoch:
    """The batches of one rank in an epoch, which have consecutive numbers."""

    # Samples are computed in windows

    def __init__(self, sequence: EpochSequence, epoch: int, share: RankShare, first: int) -> None:
        self.epoch = epoch
        self.share = share
        self.first = first
        self.beginning = first, epoch, share.start
        self.stop = first + share.steps
        self._sequence = sequence
        self._window_start = 0
        self._window: Int64s = np.empty(0, np.int64)

    def request(self, number: int) -> Request:
        start, stop = self.share.span(number - self.first)
        return Request(number, self.epoch, self._samples(start, stop))

    def _samples(self, start: int, stop: int) -> Int64s:
        if start < self._window_start or stop > self._window_start + len(self._window):
            end = min(len(self._sequence), max(stop, start + WINDOW))
            self._window = self._sequence.indices(self.epoch, start, end)
            self._window_start = start
        return self._window[start - self._window_start : stop - self._window_start]


class Requests:
    """Batches that a producer makes ahead of the consumer, epoch after epoch."""

    # The order of the next epoch is known, so its first batches are made while the last ones of this epoch
    # are consumed. They are dropped if the next iteration starts elsewhere

    def __init__(
        self,
        # what makes batches, and the order of samples
        producer: Producer,
        sequence: EpochSequence,
        share: RankShare,  # this rank's part of an epoch
        *,
        across_epochs: bool,  # whether batches of the next epoch are requested before this one ends
    ) -> None:
        self._producer = producer
        self._sequence = sequence
        self._share = share
        self._across_epochs = across_epochs
        self._epochs: list[PlannedEpoch] = []
        self._taken = self._requested = 0

    def begin(self, epoch: int, start: int) -> RankShare:
        while self._epochs and self._epochs[0].beginning != (self._taken, epoch, start):
            del self._epochs[0]
        if not self._epochs:
            self._producer.begin()
            self._taken = self._requested = 0
            self._append(epoch, start, 0)
        self.request_ahead(at_once=True)
        return self._epochs[0].share

    def take(self) -> Arrival:
        while self._requested == self._taken:
            self.request_ahead(at_once=True)
            if self._requested == self._taken:
                self._producer.wait()
        number = self._taken
        self._taken += 1
        arrival = self._producer.take(number)
        self.request_ahead(at_once=arrival.seconds > QUICK_SECONDS)
        return arrival

    def request_ahead(
        self,
        *,
        # False: only when half of the producer's capacity is free, so that quick batches share messages
        at_once: bool,
    ) -> None:
        room = self._producer.room()
        last = self._epochs[-1]
        while self._across_epochs and last.share.steps and last.stop < self._requested + room:
            last = self._append(last.epoch + 1, 0, last.stop)
        room = min(room, last.stop - self._requested)
        if room <= 0 or (not at_once and 2 * room < self._producer.capacity):
            return
        numbers = range(self._requested, self._requested + room)
        self._requested += self._producer.submit([self._request(number) for number in numbers])

    def _append(self, epoch: int, start: int, first: int) -> PlannedEpoch:
        self._epochs.append(PlannedEpoch(self._sequence, epoch, replace(self._share, start=start), first))
        return self._epochs[-1]

    def _request(self, number: int) -> Request:
        epoch = next(epoch for epoch in self._epochs if number < epoch.stop)
        return epoch.request(number)


class Iteration:
    """Iterator over the batches of one rank, from the loader's position to the end of the epoch."""

    def __init__(
        self,
        # the loader's method that returns the next batch; the reference keeps the loader alive
        deliver: Callable[[Iteration], Any],
        # source of the batches, the epoch, and this rank's part of it
        requests: Requests,
        epoch: int,
        share: RankShare,
    ) -> None:
        self._deliver = deliver
        self._requests = requests
        self.epoch = epoch
        self._share = share
        self.batches = 0  # delivered
        self.over = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return self._share.steps - self.batches

    def __next__(self) -> Any:
        return self._deliver(self)

    def advance(self) -> Arrival | None:
        """Return the next arrival, or None at the end of the epoch."""
        if self.batches >= self._share.steps:
            self.over = True
            return None
        self.batches += 1
        return self._requests.take()

    @property
    def delivered(self) -> int:
        """Return samples of the epoch that all ranks together have delivered after this rank's last batch."""
        return self._share.delivered(self.batches)


# Statistics of a Loader: `Loader.stats`, and the line that ``log_every`` prints.

_log = logging.getLogger("unistore.loader")


@dataclass(slots=True)
class Stats:
    """Totals of some batches: since the loader was made, or since the last report."""

    # delivered
    batches: int = 0
    samples: int = 0
    bytes: int = 0  # bytes of memory that delivered batches took
    wait_seconds: float = 0.0  # seconds that the consumer waited for batches (``data_time``)
    decode_seconds: float = 0.0  # seconds that workers spent reading batches, summed over workers
    slab_misses: int = 0  # delivered batches that did not fit into a slab and got memory of their own
    copies: int = 0  # batches that were copied, or read into new memory, because the consumer held too many
    # chunks or samples that the cache had, and had not
    cache_hits: int = 0
    cache_misses: int = 0
    # objects that `cache_dir` had, and had not
    shard_hits: int = 0
    shard_misses: int = 0
    retries: int = 0  # requests to a bucket that were repeated

    def count(self, arrival: Arrival, waited: float) -> None:
        """Add a delivered batch, and the seconds that the consumer waited for it."""
        self.batches += 1
        self.samples += arrival.samples
        self.bytes += arrival.needed
        self.wait_seconds += waited
        self.decode_seconds += arrival.seconds
        self.slab_misses += arrival.missed
        self.copies += arrival.copied
        for name, amount in arrival.counts.items():
            setattr(self, name, getattr(self, name) + amount)

    def line(
        self,
        # where the loader stands
        epoch: int,
        batch: int,
        seconds: float,  # how long they took
    ) -> str:
        count = max(1, self.batches)
        rate = self.samples / seconds if seconds > 0 else 0.0
        parts = [
            f"epoch {epoch} batch {batch}",
            f"{rate:,.0f} samples/s",
            f"data_time {self.wait_seconds / count * 1e3:.2f} ms of {seconds / count * 1e3:.2f} ms a batch",
            f"decode {self.decode_seconds / count * 1e3:.2f} ms",
            f"{self.bytes / count / 1e6:.2f} MB a batch",
        ]
        if self.slab_misses:
            parts.append(f"{self.slab_misses} slab misses")
        if self.copies:
            parts.append(f"{self.copies} copied")
        if self.cache_hits or self.cache_misses:
            parts.append(f"cache {self.cache_hits / (self.cache_hits + self.cache_misses):.0%}")
        return "loader: " + ", ".join(parts)


def report(line: str) -> None:
    """Log a line at level INFO, or print it to standard error where that level is not logged."""
    if _log.hasHandlers() and _log.isEnabledFor(logging.INFO):
        _log.info(line)
    else:
        print(line, file=sys.stderr, flush=True)


VERSION = 1
_FIELDS = {"version": int, "epoch": int, "delivered": int, "digest": str, "order": dict}


def dataset_digest(dataset: Any) -> str:
    """Return the digest of a dataset's number of samples, and of its own ``digest`` if it has one."""
    own = getattr(dataset, "digest", None)
    own_digest = own() if callable(own) else own
    identity = json.dumps(
        {"samples": len(dataset), "dataset": None if own_digest is None else str(own_digest)}
    )
    return xxhash.xxh3_128_hexdigest(identity.encode())


class EpochProgress:
    """Epoch, and samples delivered in it by all ranks together."""

    # Prefetched samples do not count until they are delivered

    def __init__(
        self,
        digest: str,  # of the dataset, see `dataset_digest`
        version: int | None = None,  # of the grown store that it reads
    ) -> None:
        self.follow(digest, version)
        self.epoch = 0
        self.delivered = 0
        self.begun = False  # whether a batch of this epoch was delivered since it was begun or resumed
        self._following: int | None = None

    def follow(self, digest: str, version: int | None) -> None:
        """Go on with the samples of another version."""
        self._digest = digest
        self._version = version

    def set_epoch(self, epoch: int) -> None:
        """Make ``epoch`` the next one to be iterated. Within a resumed epoch, stay where it is."""
        if epoch != self.epoch or self.begun:
            self.epoch = epoch
            self.delivered = 0
            self.begun = False
            self._following = epoch

    def begin(self) -> tuple[int, int]:
        if self.begun:
            self.finish()
        self._following = None
        return self.epoch, self.delivered

    def deliver(self, epoch: int, delivered: int) -> None:
        """Note that all samples of an epoch before a position were delivered."""
        self.epoch = epoch
        self.delivered = delivered
        self.begun = True

    @property
    def upcoming(self) -> int:
        """Return the epoch that the next iteration is of."""
        return self._after() if self.begun else self.epoch

    def _after(self) -> int:
        return self.epoch + 1 if self._following is None else self._following

    def finish(self) -> None:
        self.epoch = self._after()
        self.delivered = 0
        self.begun = False

    def save(self, sequence: EpochSequence) -> JsonObject:
        grown = {} if self._version is None else {"store_version": self._version}
        return {
            "version": VERSION,
            "epoch": self.epoch,
            "delivered": self.delivered,
            "digest": self._digest,
            "order": sequence.describe(),
            **grown,
        }

    def load(self, state: Mapping[str, Any], sequence: EpochSequence) -> None:
        fields = state if isinstance(state, Mapping) else {}
        missing = [name for name, kind in _FIELDS.items() if type(fields.get(name)) is not kind]
        if missing or state["version"] != VERSION:
            fault = f"lacks {', '.join(sorted(missing))}" if missing else f"has version {state['version']!r}"
            msg = f"this is not a loader state of version {VERSION}: it {fault}"
            raise LoaderError(msg)
        mine = sequence.describe()
        theirs = {str(name): value for name, value in state["order"].items()}
        differences = [
            f"{name} was {theirs.get(name)!r} and is {mine.get(name)!r}"
            for name in sorted(mine.keys() | theirs.keys())
            if not isinstance(theirs.get(name), str | Integral) or theirs[name] != mine.get(name)
        ]
        if state["digest"] != self._digest:
            differences.append("the dataset holds other samples")
        if differences:
            msg = f"this state is of another run and cannot be continued exactly: {'; '.join(differences)}"
            raise LoaderError(msg)
        epoch = state["epoch"]
        delivered = state["delivered"]
        if not 0 <= epoch <= MAX_EPOCH or not 0 <= delivered <= len(sequence):
            msg = (
                f"the state says epoch {epoch}, {delivered} samples delivered of {len(sequence)}: "
                "no run of this loader comes there"
            )
            raise LoaderError(msg)
        self.epoch = epoch
        self.delivered = delivered
        self.begun = False
        self._following = None
