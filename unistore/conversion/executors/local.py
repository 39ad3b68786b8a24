"""Protocols of jobs and executors, and executors in this process: serial and threaded."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Protocol, TypeVar, runtime_checkable

from unistore.conversion.job import Outcome
from unistore.conversion.memory import PROCESS, check_fits
from unistore.system.machine import usable_cores
from unistore.system.malloc import keep_freed_memory
from unistore.zarr3.threads import EncoderThreads, OrderedMap

MAX_ENCODERS = 8
"""Most threads that encode: the writing thread limits the rate of more."""

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Job(Protocol[T_contra]):
    """Function that runs one step for an item; job and items can be pickled."""

    def __call__(self, item: T_contra, /) -> Outcome:
        """Run one step; idempotent."""
        ...

    def describe(self, item: T_contra, /) -> str:
        """Description of the step for messages; names its sources."""
        ...

    def need(self, item: T_contra, /) -> int:
        """Peak bytes of the step, beyond `PROCESS`."""
        ...


@runtime_checkable
class ReadAheadJob(Protocol[T_contra]):
    """A job that can read a step while the previous one is encoded and written."""

    def read(self, item: T_contra, ordered_map: OrderedMap, /) -> Callable[[], Outcome]:
        """Read the step, mostly on the calling thread; the returned function does the rest."""
        ...


@runtime_checkable
class SlicedJob(Protocol[T_contra]):
    """A job that can be sent to a process with only the sources that a step needs.

    ``replace(job.bare(), **job.slice(item))(item)`` is equivalent to ``job(item)``.
    """

    def bare(self) -> Any:
        """The job without any source."""
        ...

    def slice(self, item: T_contra, /) -> dict[str, Any]:
        """Fields of the job for one item."""
        ...


def sent_job(job: Job[Any]) -> Any:
    """The part of a job that is sent to every process once."""
    return job.bare() if isinstance(job, SlicedJob) else job


def sent_item(job: Job[T], item: T) -> tuple[T, dict[str, Any]]:
    """An item, and the fields of the job that are sent with it."""
    return item, job.slice(item) if isinstance(job, SlicedJob) else {}


def do_sent(job: Any, sent: tuple[Any, dict[str, Any]]) -> Outcome:
    """Run the step of a sent item."""
    item, fields = sent
    outcome: Outcome = (replace(job, **fields) if fields else job)(item)
    return outcome


def largest_need(job: Job[T], items: Sequence[T], limit: int | None) -> int:
    """Peak bytes of the largest step, beyond `PROCESS`.

    Parameters
    ----------
    items
        At least one.
    limit
        Limit in bytes of a process with one step; None: no limit.

    Raises
    ------
    InputError
        If the limit is too small for that step.
    """
    largest = max(items, key=job.need)
    need = job.need(largest)
    check_fits(limit, need, job.describe(largest))
    return need


class Executor(Protocol):
    """Runs the steps of a job."""

    @property
    def workers(self) -> int:
        """Processes that do steps at once; 0: this one does them."""
        ...

    def run(self, job: Job[T], items: Iterable[T]) -> Generator[tuple[T, Outcome], None, None]:
        """Yield every item with its outcome, in any order.

        The caller closes the generator if it stops early; closing waits for running steps.
        """
        ...


class Serial:
    """In this process, in order: the reference for the bytes of every other executor."""

    workers = 0

    def run(self, job: Job[T], items: Iterable[T]) -> Generator[tuple[T, Outcome], None, None]:
        """Yield every item with its outcome, in order."""
        for item in items:
            yield item, job(item)


class Threaded:
    """In this process, in order, on its cores: a step is read while the one before is encoded and written.

    One thread reads HDF5 files, so that no two share one; one writes, and others encode for it, and decode
    images. They start with the first step and end with the last, however that is. The calling thread only
    waits: Ctrl-C that meets it inside of h5py may be lost.

    Parameters
    ----------
    memory
        Bytes that this process may hold; None: not bounded. Where it cannot hold two steps, one is finished
        before the next is begun.
    cores
        Threads that encode; None: as many as there are usable cores, and at most `MAX_ENCODERS`. One core
        does one step after the other.
    """

    workers = 0

    def __init__(self, memory: int | None = None, cores: int | None = None) -> None:
        self._memory = memory
        self._cores = min(MAX_ENCODERS, int(usable_cores())) if cores is None else cores

    def steps_at_once(self, need: int) -> int:
        """How many steps of at most `need` bytes are in memory at once: 1 or 2."""
        return 1 if self._cores < 2 or (self._memory is not None and PROCESS + 2 * need > self._memory) else 2

    def run(self, job: Job[T], items: Iterable[T]) -> Generator[tuple[T, Outcome], None, None]:
        """Yield every item with its outcome, in order."""
        todo = list(items)
        if self._cores < 2 or not todo or not isinstance(job, ReadAheadJob):
            yield from Serial().run(job, todo)
            return
        one_at_a_time = self.steps_at_once(max(map(job.need, todo))) < 2
        with ExitStack() as stack:
            reader, writer = (ThreadPoolExecutor(1, f"unistore-{what}") for what in ("read", "write"))
            for pool in (reader, writer):
                stack.callback(pool.shutdown, cancel_futures=True)
            keep_freed_memory()
            threads = EncoderThreads(self._cores)
            stack.callback(threads.stop)
            before: tuple[T, Future[Outcome]] | None = None
            for item in todo:
                try:
                    rest = reader.submit(job.read, item, threads.ordered_map).result()
                except Exception:
                    if before is not None:
                        yield before[0], before[1].result()
                    raise
                written = writer.submit(rest)
                del rest  # with the rows it holds
                if before is not None:
                    yield before[0], before[1].result()
                before = item, written
                if one_at_a_time:
                    yield item, written.result()
                    before = None
            if before is not None:
                yield before[0], before[1].result()
