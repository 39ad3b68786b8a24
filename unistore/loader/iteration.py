"""Iterations over epochs: batches are requested ahead and delivered in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.loader.production import Arrival, Producer, Request
from unistore.order.sequences import EpochSequence, RankShare

WINDOW = 4096
"""Positions whose samples are computed at a time; computing many costs little more than a few."""
QUICK_SECONDS = 0.002
"""Batches that are made in less time are requested several at a time, see `Requests.request_ahead`."""


class Positions:
    """The samples of an epoch, position by position, computed in windows.

    Parameters
    ----------
    sequence, epoch
        The order, and the number of the epoch.
    """

    def __init__(self, sequence: EpochSequence, epoch: int) -> None:
        self._sequence = sequence
        self._epoch = epoch
        self._first = 0
        self._known: NDArray[np.int64] = np.empty(0, np.int64)

    def __call__(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the samples (stop - start,) at positions ``start:stop``."""
        if start < self._first or stop > self._first + len(self._known):
            end = min(len(self._sequence), max(stop, start + WINDOW))
            self._known = self._sequence.indices(self._epoch, start, end)
            self._first = start
        return self._known[start - self._first : stop - self._first]


class _Epoch(NamedTuple):
    """The batches of one epoch, the first of which has the number `first` among all requests."""

    epoch: int
    share: RankShare
    positions: Positions
    first: int

    @property
    def beginning(self) -> tuple[int, int, int]:
        return self.first, self.epoch, self.share.start

    @property
    def stop(self) -> int:
        return self.first + self.share.steps


class Requests:
    """Batches that a producer makes ahead of the consumer, epoch after epoch.

    The order of the next epoch is known, so its first batches are made while the last ones of this epoch are
    consumed. They are dropped if the next iteration starts elsewhere.

    Parameters
    ----------
    producer, sequence
        What makes batches, and the order of samples.
    share
        This rank's part of an epoch.
    across_epochs
        Whether batches of the next epoch are requested before this one ends.
    """

    def __init__(
        self, producer: Producer, sequence: EpochSequence, share: RankShare, *, across_epochs: bool
    ) -> None:
        self._producer, self._sequence, self._share = producer, sequence, share
        self._across_epochs = across_epochs
        self._epochs: list[_Epoch] = []
        self._taken = self._requested = 0

    def begin(self, epoch: int, start: int) -> RankShare:
        """Start at a position of an epoch."""
        wanted = self._taken, epoch, start
        while self._epochs and self._epochs[0].beginning != wanted:
            del self._epochs[0]
        if not self._epochs:
            self._producer.begin()
            self._taken = self._requested = 0
            self._append(epoch, start, 0)
        self.request_ahead(at_once=True)
        return self._epochs[0].share

    def take(self) -> Arrival:
        """Wait for the next batch."""
        while self._requested == self._taken:
            self.request_ahead(at_once=True)
            if self._requested == self._taken:
                self._producer.wait()
        number, self._taken = self._taken, self._taken + 1
        arrival = self._producer.take(number)
        self.request_ahead(at_once=arrival.seconds > QUICK_SECONDS)
        return arrival

    def request_ahead(self, *, at_once: bool) -> None:
        """Request as many batches as there is room for.

        Parameters
        ----------
        at_once
            False: only when half of the producer's capacity is free, so that quick batches share messages.
        """
        room = self._producer.room()
        while (
            (last := self._epochs[-1]).stop < self._requested + room
            and self._across_epochs
            and last.share.steps
        ):
            self._append(last.epoch + 1, 0, last.stop)
        room = min(room, last.stop - self._requested)
        if room <= 0 or (not at_once and 2 * room < self._producer.capacity):
            return
        self._requested += self._producer.submit(
            [self._request(self._requested + each) for each in range(room)]
        )

    def _append(self, epoch: int, start: int, first: int) -> None:
        self._epochs.append(
            _Epoch(epoch, replace(self._share, start=start), Positions(self._sequence, epoch), first)
        )

    def _request(self, number: int) -> Request:
        in_epoch = next(each for each in self._epochs if number < each.stop)
        start, stop = in_epoch.share.span(number - in_epoch.first)
        return Request(number, in_epoch.epoch, in_epoch.positions(start, stop))


class Iteration:
    """Iterator over the batches of one rank, from the loader's position to the end of the epoch.

    Parameters
    ----------
    deliver
        The loader's method that returns the next batch; the reference keeps the loader alive.
    requests, epoch, share
        Source of the batches, the epoch, and this rank's part of it.

    Attributes
    ----------
    epoch
        Which epoch.
    over
        Whether the epoch has ended.
    """

    def __init__(
        self, deliver: Callable[[Iteration], Any], requests: Requests, epoch: int, share: RankShare
    ) -> None:
        self._deliver = deliver
        self._requests = requests
        self.epoch = epoch
        self._share = share
        self._next = 0
        self.over = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        """Batches left."""
        return self._share.steps - self._next

    def __next__(self) -> Any:
        return self._deliver(self)

    def advance(self) -> tuple[Arrival, int] | None:
        """Return the next arrival and its number of samples, or None at the end of the epoch."""
        if self._next >= self._share.steps:
            self.over = True
            return None
        start, stop = self._share.span(self._next)
        self._next += 1
        return self._requests.take(), stop - start

    @property
    def delivered(self) -> int:
        """Samples of the epoch that all ranks together have delivered after this rank's last batch."""
        return self._share.delivered(self._next)

    @property
    def epoch_and_batch(self) -> tuple[int, int]:
        """Epoch and batches delivered in this iteration."""
        return self.epoch, self._next
