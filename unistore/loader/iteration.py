"""Iterations over epochs: batches are requested ahead and delivered in order."""

from __future__ import annotations

import logging
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from unistore.order.sequences import EpochSequence, RankShare
from unistore.system.types import Int64s

# `Producer`, what makes batches in worker processes or in this one: requests in, batches out.


class Request(NamedTuple):
    """A batch to make.

    Attributes
    ----------
    number : int
        Number of the batch among the requested ones.
    epoch : int
        Its epoch.
    indices : int64 array of shape (B,)
        Its samples.
    """

    number: int
    epoch: int
    indices: Int64s


class Arrival(NamedTuple):
    """A finished batch, with statistics.

    Attributes
    ----------
    batch
        The batch: views of a shared-memory buffer, or copies.
    samples : int
        Number of samples.
    needed : int
        Memory that the batch took, in bytes.
    seconds : float
        Time that it took to make.
    missed : bool, default False
        Whether it did not fit into its buffer.
    copied : bool, default False
        Whether it was copied, because the consumer holds too many batches.
    counts : mapping of str to int
        Additions to `COUNTS` in the process that made it.
    """

    batch: Any
    samples: int
    needed: int
    seconds: float
    missed: bool = False
    copied: bool = False
    counts: Mapping[str, int] = {}


class Producer(ABC):
    """Base class of objects that make batches ahead of the consumer. One thread may use it at a time.

    Attributes
    ----------
    usable : bool, default True
        Whether it can still make batches in this process.
    capacity : int, default 1
        Largest number of batches in progress.
    """

    usable = True
    capacity = 1

    @abstractmethod
    def begin(self) -> None:
        """Drop all requests, because an iteration starts."""

    @abstractmethod
    def room(self) -> int:
        """Return the number of batches that may be requested now."""

    @abstractmethod
    def submit(self, requests: Sequence[Request]) -> int:
        """Accept requests with consecutive numbers, at most `room`. Return the number of accepted ones."""

    def wait(self) -> None:  # noqa: B027 - where nothing runs beside the consumer
        """Wait until a batch in progress is finished. Does nothing if no other process works."""

    @abstractmethod
    def take(self, number: int) -> Arrival:
        """Wait for a requested batch and return it."""

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return []

    @abstractmethod
    def close(self) -> None:
        """End processes and free memory. It may be called several times, from any thread."""


# Positions whose samples are computed at a time; computing many costs little more than a few.
WINDOW = 4096
# Batches that are made in less time are requested several at a time, see `Requests.request_ahead`.
QUICK_SECONDS = 0.002


class PlannedEpoch:
    """The batches of one rank in an epoch, with consecutive numbers.

    Parameters
    ----------
    sequence : EpochSequence
        Order of the samples.
    epoch : int
        The epoch.
    share : RankShare
        Positions that this rank delivers.
    first : int
        Number of its first batch.
    """

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
        """Return the request for the batch with this number."""
        start, stop = self.share.span(number - self.first)
        return Request(number, self.epoch, self._samples(start, stop))

    def _samples(self, start: int, stop: int) -> Int64s:
        if start < self._window_start or stop > self._window_start + len(self._window):
            end = min(len(self._sequence), max(stop, start + WINDOW))
            self._window = self._sequence.indices(self.epoch, start, end)
            self._window_start = start
        return self._window[start - self._window_start : stop - self._window_start]


class Requests:
    """Batches that a producer makes ahead of the consumer, epoch after epoch.

    The order of the next epoch is known, so its first batches are made while the last ones of this epoch
    are consumed. They are dropped if the next iteration starts elsewhere.

    Parameters
    ----------
    producer : Producer
        Makes the batches.
    sequence : EpochSequence
        Order of the samples.
    share : RankShare
        Part of an epoch that this rank delivers.
    across_epochs : bool
        Whether to request batches of the next epoch before this one ends.
    """

    def __init__(
        self,
        producer: Producer,
        sequence: EpochSequence,
        share: RankShare,
        *,
        across_epochs: bool,
    ) -> None:
        self._producer = producer
        self._sequence = sequence
        self._share = share
        self._across_epochs = across_epochs
        self._epochs: list[PlannedEpoch] = []
        self._taken = self._requested = 0

    def begin(self, epoch: int, start: int) -> RankShare:
        """Begin an epoch at position `start`, and return the part that this rank delivers."""
        while self._epochs and self._epochs[0].beginning != (self._taken, epoch, start):
            del self._epochs[0]
        if not self._epochs:
            self._producer.begin()
            self._taken = self._requested = 0
            self._append(epoch, start, 0)
        self.request_ahead(at_once=True)
        return self._epochs[0].share

    def take(self) -> Arrival:
        """Return the next batch, and request further ones."""
        while self._requested == self._taken:
            self.request_ahead(at_once=True)
            if self._requested == self._taken:
                self._producer.wait()
        number = self._taken
        self._taken += 1
        arrival = self._producer.take(number)
        self.request_ahead(at_once=arrival.seconds > QUICK_SECONDS)
        return arrival

    def request_ahead(self, *, at_once: bool) -> None:
        """Request as many batches as the producer accepts.

        Parameters
        ----------
        at_once : bool
            False: only if half of the capacity of the producer is free, so that fast batches share messages.
        """
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
    """Iterator over the batches of one rank, from the position of the loader to the end of the epoch.

    Parameters
    ----------
    deliver : callable
        Method of the loader that returns the next batch. The reference keeps the loader alive.
    requests : Requests
        Source of the batches.
    epoch : int
        The epoch.
    share : RankShare
        Part of the epoch that this rank delivers.

    Attributes
    ----------
    batches : int
        Number of batches so far.
    over : bool
        Whether the epoch has ended.
    """

    def __init__(
        self,
        deliver: Callable[[Iteration], Any],
        requests: Requests,
        epoch: int,
        share: RankShare,
    ) -> None:
        self._deliver = deliver
        self._requests = requests
        self.epoch = epoch
        self._share = share
        self.batches = 0
        self.over = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return self._share.steps - self.batches

    def __next__(self) -> Any:
        return self._deliver(self)

    def advance(self) -> Arrival | None:
        """Return the next batch, or None at the end of the epoch."""
        if self.batches >= self._share.steps:
            self.over = True
            return None
        self.batches += 1
        return self._requests.take()

    @property
    def delivered(self) -> int:
        """Number of samples of the epoch that all ranks together have delivered after the last batch."""
        return self._share.delivered(self.batches)


# Statistics of a Loader: `Loader.stats`, and the line that ``log_every`` prints.

_log = logging.getLogger("unistore.loader")


@dataclass(slots=True)
class Stats:
    """Totals of batches: since the loader was made, or since the last report.

    Attributes
    ----------
    batches, samples : int
        Number of delivered batches, and of their samples.
    bytes : int
        Memory that they took, in bytes.
    wait_seconds : float
        Time that the consumer waited for batches (``data_time``).
    decode_seconds : float
        Time that workers took to read batches, summed over workers.
    slab_misses : int
        Number of batches that did not fit into a shared-memory buffer and got memory of their own.
    copies : int
        Number of batches that were copied, or read into new memory, because the consumer held too many.
    cache_hits, cache_misses : int
        Number of chunks or samples that the cache had, and did not have.
    shard_hits, shard_misses : int
        Number of objects that `cache_dir` had, and did not have.
    retries : int
        Number of requests to an object store that were repeated.
    """

    batches: int = 0
    samples: int = 0
    bytes: int = 0
    wait_seconds: float = 0.0
    decode_seconds: float = 0.0
    slab_misses: int = 0
    copies: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    shard_hits: int = 0
    shard_misses: int = 0
    retries: int = 0

    def count(self, arrival: Arrival, waited: float) -> None:
        """Add a delivered batch, and the time that the consumer waited for it."""
        self.batches += 1
        self.samples += arrival.samples
        self.bytes += arrival.needed
        self.wait_seconds += waited
        self.decode_seconds += arrival.seconds
        self.slab_misses += arrival.missed
        self.copies += arrival.copied
        for name, amount in arrival.counts.items():
            setattr(self, name, getattr(self, name) + amount)

    def line(self, epoch: int, batch: int, seconds: float) -> str:
        """Return the totals as one line of text.

        Parameters
        ----------
        epoch, batch : int
            Position of the loader.
        seconds : float
            Time that these batches took.
        """
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


class Meter:
    """Counts delivered batches, and reports a line after some of them.

    Parameters
    ----------
    log_every : int
        Number of batches per line. 0: no lines.

    Attributes
    ----------
    totals : Stats
        Totals since the loader was made.
    """

    def __init__(self, log_every: int) -> None:
        self.totals = Stats()
        self._log_every = log_every
        self.begin()

    def begin(self) -> None:
        """Begin an iteration: the next line is about its batches."""
        self._unreported = Stats()
        self._reported = time.perf_counter()

    def count(self, arrival: Arrival, waited: float, iteration: Iteration) -> None:
        """Add a batch of an iteration, and the time that the consumer waited for it."""
        self.totals.count(arrival, waited)
        self._unreported.count(arrival, waited)
        if self._log_every and self.totals.batches % self._log_every == 0:
            seconds = time.perf_counter() - self._reported
            _report(self._unreported.line(iteration.epoch, iteration.batches, seconds))
            self.begin()


def _report(line: str) -> None:
    # Printed if the level INFO is not logged
    if _log.hasHandlers() and _log.isEnabledFor(logging.INFO):
        _log.info(line)
    else:
        print(line, file=sys.stderr, flush=True)


class EpochProgress:
    """The position in a run: the epoch, and the samples that all ranks together have delivered in it.

    Samples that were prefetched but not delivered do not count.

    Parameters
    ----------
    epoch, delivered : int, default 0
        Where the run begins or is resumed.

    Attributes
    ----------
    epoch : int
        The epoch.
    delivered : int
        Number of samples delivered in it.
    begun : bool
        Whether a batch was delivered since the epoch was begun or resumed.
    """

    def __init__(self, epoch: int = 0, delivered: int = 0) -> None:
        self.epoch = epoch
        self.delivered = delivered
        self.begun = False
        self._following: int | None = None

    def set_epoch(self, epoch: int) -> None:
        """Make ``epoch`` the next one. In a resumed epoch with the same number, keep the position."""
        if epoch != self.epoch or self.begun:
            self.epoch = epoch
            self.delivered = 0
            self.begun = False
            self._following = epoch

    def begin(self) -> tuple[int, int]:
        """Begin an iteration, and return its epoch and the number of delivered samples."""
        if self.begun:
            self.finish()
        self._following = None
        return self.epoch, self.delivered

    def deliver(self, epoch: int, delivered: int) -> None:
        """Record the number of samples of an epoch that were delivered."""
        self.epoch = epoch
        self.delivered = delivered
        self.begun = True

    @property
    def upcoming(self) -> int:
        """Epoch of the next iteration."""
        return self._after() if self.begun else self.epoch

    def _after(self) -> int:
        return self.epoch + 1 if self._following is None else self._following

    def finish(self) -> None:
        """End the epoch; the next one begins at its first sample."""
        self.epoch = self._after()
        self.delivered = 0
        self.begun = False
