"""Protocols of jobs and executors, what of a job is sent to other processes, and the serial executor."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from unistore.errors import Problem
from unistore.system.machine import usable_cores

MAX_ENCODERS = 8
"""Most threads that encode: the writing thread limits the rate of more."""

if TYPE_CHECKING:
    from unistore.zarr3.threads import OrderedMap

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one step: a record for the journal, or the problems of its sources."""

    record: dict[str, Any] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


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
class ThreadedJob(Protocol[T_contra]):
    """A job that can encode on threads."""

    def threaded(self, item: T_contra, ordered_map: OrderedMap, /) -> Outcome:
        """Run one step with the same result as a call, with the threads of `ordered_map`."""
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


@dataclass(frozen=True, slots=True)
class SentJob:
    """The part of a job that is sent to every process once."""

    job: Any
    threads: int = 1  # that encode

    def do(self, sent: SentItem) -> Outcome:
        """Run the step of a sent item."""
        return do(self.whole(sent), sent.item, self.threads)

    def whole(self, sent: SentItem) -> Job[Any]:
        """The job, as far as a sent item needs it."""
        job: Job[Any] = replace(self.job, **sent.fields) if sent.fields else self.job
        return job


class SentItem(NamedTuple):
    """An item, and the fields of the job that are sent with it."""

    item: Any
    fields: dict[str, Any]


def sent_job(job: Job[Any], threads: int = 1) -> SentJob:
    """Return the part of a job without sources."""
    return SentJob(job.bare() if isinstance(job, SlicedJob) else job, threads)


def sent_item(job: Job[T], item: T) -> SentItem:
    """Return an item with its part of the job."""
    return SentItem(item, job.slice(item) if isinstance(job, SlicedJob) else {})


def encoding_threads() -> int:
    """Return how many threads should encode where one process does all steps."""
    return min(MAX_ENCODERS, int(usable_cores()))


def do(job: Job[T], item: T, threads: int) -> Outcome:
    """Run one step, which encodes on so many threads if it can."""
    if threads < 2 or not isinstance(job, ThreadedJob):
        return job(item)
    from unistore.zarr3.threads import EncoderThreads

    encoders = EncoderThreads(threads)
    try:
        return job.threaded(item, encoders.ordered_map)
    finally:
        encoders.stop()


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
