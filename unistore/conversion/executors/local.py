"""Jobs and executors, what of a job is sent to other processes, and the serial executor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from unistore.errors import Problem
from unistore.system.machine import usable_cores

MAX_ENCODERS = 8
"""Most threads that encode: the writing thread limits the rate of more."""

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one step: a record for the journal, or the problems of its sources."""

    record: dict[str, Any] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


class Job(ABC, Generic[T_contra]):
    """Runs one step for an item; job and items can be pickled."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, item: T_contra, /) -> Outcome:
        """Run one step; idempotent."""

    @abstractmethod
    def describe(self, item: T_contra, /) -> str:
        """Return the description of a step for messages; names its sources."""

    def threaded(self, item: T_contra, threads: int, /) -> Outcome:  # noqa: ARG002
        """Run one step with the same result as a call; it may use so many threads."""
        return self(item)

    def need(self, item: T_contra, /) -> int:  # noqa: ARG002
        """Return the peak bytes of the step, beyond `PROCESS`."""
        return 0

    def bare(self) -> Self:
        """Return the job without any source: ``replace(job.bare(), **job.slice(item))(item)`` does a step."""
        return self

    def slice(self, item: T_contra, /) -> dict[str, Any]:  # noqa: ARG002
        """Return the fields of the job that `bare` lacks for one item."""
        return {}


@dataclass(frozen=True, slots=True)
class SentJob:
    """The part of a job that is sent to every process once: the job without sources."""

    job: Any
    threads: int = 1  # that encode

    def do(self, sent: SentItem) -> Outcome:
        """Run the step of a sent item."""
        return self.whole(sent).threaded(sent.item, self.threads)

    def whole(self, sent: SentItem) -> Job[Any]:
        """Return the job, as far as a sent item needs it."""
        job: Job[Any] = replace(self.job, **sent.fields) if sent.fields else self.job
        return job


class SentItem(NamedTuple):
    """An item, and the fields of the job that are sent with it."""

    item: Any
    fields: dict[str, Any]


def encoding_threads() -> int:
    """Return how many threads should encode where one process does all steps."""
    return min(MAX_ENCODERS, int(usable_cores()))


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
