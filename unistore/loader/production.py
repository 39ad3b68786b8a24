"""What processes and the reading thread have in common: requests in, arrivals out, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Arrival", "Producer", "Request"]


class Request(NamedTuple):
    """A batch that the consumer will want.

    Attributes
    ----------
    number
        Its place among the batches of the iteration.
    epoch, position
        Epoch, and the position in it of the first sample.
    indices
        (B,) int64 samples.
    """

    number: int
    epoch: int
    position: int
    indices: NDArray[np.int64]


class Arrival(NamedTuple):
    """A batch as it is handed to the consumer.

    Attributes
    ----------
    batch
        The batch, in place or copied.
    needed
        Bytes of memory it took.
    seconds
        Time it took to make.
    missed, copied
        Whether it did not fit into a slab; whether it was copied out of one.
    hits, misses
        Samples from the cache and beside it.
    """

    batch: Any
    needed: int
    seconds: float
    missed: bool = False
    copied: bool = False
    hits: int = 0
    misses: int = 0


class Producer(Protocol):
    """Makes batches ahead of the consumer. Used by one thread at a time."""

    def begin(self) -> None:
        """Forget all requests: an iteration starts."""
        ...

    def room(self) -> int:
        """Batches that may be requested now, beside those that are under way, stale ones included."""
        ...

    @property
    def capacity(self) -> int:
        """Batches that may be under way at a time."""
        ...

    def submit(self, requests: Sequence[Request]) -> int:
        """Take requests, the next ones by number, not more than there is room for; return how many."""
        ...

    def settle(self) -> None:
        """Wait until something that is under way is done."""
        ...

    def take(self, number: int) -> Arrival:
        """Wait for a batch that was offered.

        Raises
        ------
        SampleError
            It could not be made.
        WorkerDiedError
            A worker ended on its own.
        """
        ...

    @property
    def usable(self) -> bool:
        """Whether it still makes batches, in this process."""
        ...

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        ...

    def close(self) -> None:
        """End processes and threads, free memory. May be called twice, and from any thread."""
        ...
