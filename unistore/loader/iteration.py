"""One pass over an epoch: requests go out ahead, batches come back in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.loader.production import Arrival, Producer, Request
from unistore.order.sequences import EpochSequence, Share

__all__ = ["Iteration", "Positions"]

WINDOW = 4096
"""Positions whose samples are computed at a time: hashing many costs little more than hashing few."""
QUICK = 0.002
"""Seconds that a batch may take to make to count as quick, see `Iteration.request_ahead`."""


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


class Iteration:
    """Iterator over the batches of one rank, from where the loader stands to the end of the epoch.

    Parameters
    ----------
    deliver
        The loader's method that hands out the next batch of an iteration; keeps the loader alive.
    producer, positions, epoch, share
        Who makes batches, and which.

    Attributes
    ----------
    epoch
        Which epoch.
    over
        Whether the epoch has ended.
    """

    def __init__(
        self,
        deliver: Callable[[Iteration], Any],
        producer: Producer,
        positions: Positions,
        epoch: int,
        share: Share,
    ) -> None:
        self._deliver = deliver
        self._producer = producer
        self._positions = positions
        self.epoch = epoch
        self._share = share
        self._steps = share.steps
        self._next = 0
        self._offered = 0
        self.over = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        """Batches left."""
        return self._steps - self._next

    def __next__(self) -> Any:
        return self._deliver(self)

    def advance(self) -> tuple[Arrival, int] | None:
        """Return the next arrival and its number of samples, or None at the end of the epoch."""
        if self._next >= self._steps:
            self.over = True
            return None
        if self._offered == self._next:
            self.request_ahead(at_once=True)
        while self._offered == self._next:
            self._producer.settle()
            self.request_ahead(at_once=True)
        number, self._next = self._next, self._next + 1
        arrival = self._producer.take(number)
        self.request_ahead(at_once=arrival.seconds > QUICK)
        start, stop = self._share.span(number)
        return arrival, stop - start

    def request_ahead(self, *, at_once: bool) -> None:
        """Request as many batches as there is room for.

        Parameters
        ----------
        at_once
            False: only when half of what may be under way can be requested together, so that batches which
            are quick to make do not cost a message each.
        """
        room = min(self._producer.room(), self._steps - self._offered)
        if room <= 0 or (not at_once and 2 * room < self._producer.capacity and self._offered < self._steps):
            return
        requests = []
        for number in range(self._offered, self._offered + room):
            start, stop = self._share.span(number)
            requests.append(Request(number, self.epoch, start, self._positions(start, stop)))
        self._offered += self._producer.submit(requests)

    @property
    def delivered(self) -> int:
        """Positions of the epoch that all ranks have delivered once this one has handed out its batch."""
        return self._share.delivered(self._next)

    @property
    def place(self) -> tuple[int, int]:
        """Epoch and batches delivered in this iteration."""
        return self.epoch, self._next
