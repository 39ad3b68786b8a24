"""Passes over epochs: requests go out ahead, batches come back in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.loader.production import Arrival, Producer, Request
from unistore.order.sequences import EpochSequence, RankShare

__all__ = ["Iteration", "Positions", "Requests"]

WINDOW = 4096
"""Positions whose samples are computed at a time: hashing many costs little more than hashing few."""
QUICK = 0.002
"""Seconds that a batch may take to make to count as quick, see `Requests.ahead`."""


class Positions:
    """The samples of an epoch, position by position, computed in windows.

    Parameters
    ----------
    sequence, epoch
        Of which epoch.
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

    The next epoch is known before this one ends, so its first batches are made while the last ones of this
    are consumed. They are forgotten if another epoch, or another place in it, is wanted then.

    Parameters
    ----------
    producer, sequence
        Who makes batches, and of which samples.
    share
        This rank's part of an epoch.
    beyond
        Whether batches of later epochs are requested before they are asked for.
    """

    def __init__(
        self, producer: Producer, sequence: EpochSequence, share: RankShare, *, beyond: bool
    ) -> None:
        self._producer, self._sequence, self._share = producer, sequence, share
        self._beyond = beyond
        self._epochs: list[_Epoch] = []
        self._taken = self._offered = 0

    def begin(self, epoch: int, start: int) -> RankShare:
        """Turn to an epoch, from a position on."""
        wanted = self._taken, epoch, start
        while self._epochs and self._epochs[0].beginning != wanted:
            del self._epochs[0]
        if not self._epochs:
            self._producer.begin()
            self._taken = self._offered = 0
            self._append(epoch, start, 0)
        self.ahead(at_once=True)
        return self._epochs[0].share

    def take(self) -> Arrival:
        """Wait for the next batch."""
        while self._offered == self._taken:
            self.ahead(at_once=True)
            if self._offered == self._taken:
                self._producer.settle()
        number, self._taken = self._taken, self._taken + 1
        arrival = self._producer.take(number)
        self.ahead(at_once=arrival.seconds > QUICK)
        return arrival

    def ahead(self, *, at_once: bool) -> None:
        """Request as many batches as there is room for.

        Parameters
        ----------
        at_once
            False: only when half of what may be under way can be requested together, so that batches which
            are quick to make do not cost a message each.
        """
        room = self._producer.room()
        while (last := self._epochs[-1]).stop < self._offered + room and self._beyond and last.share.steps:
            self._append(last.epoch + 1, 0, last.stop)
        room = min(room, last.stop - self._offered)
        if room <= 0 or (not at_once and 2 * room < self._producer.capacity):
            return
        self._offered += self._producer.submit([self._request(self._offered + each) for each in range(room)])

    def _append(self, epoch: int, start: int, first: int) -> None:
        self._epochs.append(
            _Epoch(epoch, replace(self._share, start=start), Positions(self._sequence, epoch), first)
        )

    def _request(self, number: int) -> Request:
        of = next(each for each in self._epochs if number < each.stop)
        start, stop = of.share.span(number - of.first)
        return Request(number, of.epoch, start, of.positions(start, stop))


class Iteration:
    """Iterator over the batches of one rank, from where the loader stands to the end of the epoch.

    Parameters
    ----------
    deliver
        The loader's method that hands out the next batch of an iteration; keeps the loader alive.
    requests, epoch, share
        Where batches come from, and which epoch they are of.

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
        """Positions of the epoch that all ranks have delivered once this one has handed out its batch."""
        return self._share.delivered(self._next)

    @property
    def place(self) -> tuple[int, int]:
        """Epoch and batches delivered in this iteration."""
        return self.epoch, self._next
