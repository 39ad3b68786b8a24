"""`Producer`, the interface of worker processes and the reading thread: requests in, batches out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from unistore.loader.cache import CacheFile


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """What batches are made of; pickled under forkserver and spawn.

    Attributes
    ----------
    workers
        Number of worker processes; 0: none.
    seed
        Seed of the loader.
    dataset, collate, worker_init_fn
        Arguments of the Loader.
    cache
        The cache file, whose descriptor comes with the first message; None: no cache.
    """

    workers: int
    seed: int
    dataset: Any
    collate: Callable[[Any], Any] | None = None
    worker_init_fn: Callable[[int], object] | None = None
    cache: CacheFile | None = None


class Request(NamedTuple):
    """A batch to make.

    Attributes
    ----------
    number
        Its index among the batches that were requested.
    epoch
        Epoch that it belongs to.
    indices
        (B,) int64 samples.
    """

    number: int
    epoch: int
    indices: NDArray[np.int64]


class Arrival(NamedTuple):
    """A batch that was made, with statistics.

    Attributes
    ----------
    batch
        The batch: views of a slab, or copies.
    needed
        Bytes of memory it took.
    seconds
        Time it took to make.
    missed, copied
        Whether it did not fit into its slab; whether it was copied, as the consumer holds too many.
    hits, misses
        Reads that the cache had and had not.
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
        """Drop all requests: an iteration starts."""
        ...

    def room(self) -> int:
        """Number of batches that may be requested now."""
        ...

    @property
    def capacity(self) -> int:
        """Largest number of batches that may be under way."""
        ...

    def submit(self, requests: Sequence[Request]) -> int:
        """Accept requests with consecutive numbers, at most `room`; return how many were accepted."""
        ...

    def wait(self) -> None:
        """Wait until a batch under way is done."""
        ...

    def take(self, number: int) -> Arrival:
        """Wait for a requested batch.

        Raises
        ------
        SampleError
            If it could not be made.
        WorkerDiedError
            If a worker died.
        """
        ...

    @property
    def usable(self) -> bool:
        """Whether it can still make batches, in this process."""
        ...

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        ...

    def close(self) -> None:
        """End processes and threads, free memory. May be called twice, and from any thread."""
        ...
