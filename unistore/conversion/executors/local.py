"""Jobs and executors, the serial executor, and questions to any."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from unistore.converters.protocol import ParallelMap, serial_map
from unistore.errors import Problem, first_few
from unistore.system.progress import (
    NO_PROGRESS,
    Listener,
    Progress,
    begin_items,
    ignore,
    listening,
    step_bytes,
)
from unistore.system.types import JsonObject

MAX_ENCODERS = 8  # Most threads that encode: the writing thread limits the rate of more

T = TypeVar("T")
R = TypeVar("R")
T_contra = TypeVar("T_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one step: a record for the journal, or the problems of its sources."""

    record: JsonObject = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    counts: Counter[str] = field(default_factory=Counter)  # what another process counted meanwhile
    told: int = 0  # bytes of the step that the listener of `unistore.system.progress` was told already


Steps = Generator[tuple[T, Outcome], None, None]  # Items, each with its outcome

# Set by a signal: steps at work are finished, and no further one begins
STOP = Event()


class Job(ABC, Generic[T_contra]):
    """Runs one step for an item. Job and items can be pickled."""

    __slots__ = ()
    is_journaled: ClassVar[bool] = False  # Whether a conversion that stops after some steps continues behind
    threads: int = 1  # of a step, however many processes there are

    @abstractmethod
    def __call__(self, item: T_contra, /) -> Outcome:
        """Run one step, with the same result each time."""

    @abstractmethod
    def describe(self, item: T_contra, /) -> str:
        """Return the description of a step for messages, which names its sources."""

    def threaded(self, item: T_contra, threads: int, /) -> Outcome:  # noqa: ARG002
        """Run one step with the same result as a call. It may use so many threads."""
        return self(item)

    def need(self, item: T_contra, /) -> int:  # noqa: ARG002
        """Return the peak bytes of the step, beyond `PROCESS`."""
        return 0

    def alone(self, item: T_contra, /) -> Self:  # noqa: ARG002
        """Return the job with the sources of one step alone, to be sent to another process."""
        # A worker of a cluster may send it once more, to a process below it: this may be done twice.
        return self


def is_stopped(job: Job[Any]) -> bool:
    """Return whether no further step of a job begins."""
    return STOP.is_set() and job.is_journaled


class Executor(Protocol):
    """Runs the steps of a job."""

    @property
    def workers(self) -> int:
        """Return the processes that do steps at once. 0: this one does them."""
        ...

    def run(self, job: Job[T], items: Iterable[T]) -> Steps[T]:
        """Yield every item with its outcome, in any order.

        A caller that stops early closes the generator, which waits for running steps.
        """
        ...


class Serial:
    """In this process, in order: the reference for the bytes of every other executor."""

    workers = 0

    def run(self, job: Job[T], items: Iterable[T]) -> Steps[T]:
        """Yield every item with its outcome, in order."""
        for item in items:
            if is_stopped(job):
                return
            with step_bytes() as done:
                outcome = job(item)
            yield item, replace(outcome, told=done.told)


MAX_BATCH = 256  # Most items of a step: those that `PackedObjects` keeps together
MIN_BATCHES = 32  # Least number of steps, if there are as many items


@dataclass(frozen=True, slots=True, kw_only=True)
class AskJob(Job[range]):
    """Ask about some items: ``job(numbers)`` returns their answers in its record."""

    function: Callable[[Any], Any]
    items: Sequence[Any]
    first: int = 0  # number of the first of `items`
    threads: int = 1

    def __call__(self, numbers: range) -> Outcome:
        """Ask about the items with these numbers."""
        return self.threaded(numbers, self.threads)

    def threaded(self, numbers: range, threads: int) -> Outcome:
        """Ask on the threads of the job, or on one."""
        threads = min(threads, self.threads)
        return Outcome({"answers": list(serial_map(self.function, self._items_of(numbers), threads=threads))})

    def describe(self, numbers: range) -> str:
        """Return the first item, for messages."""
        names = [str(getattr(item, "name", item)) for item in self._items_of(numbers)]
        return f"scanning {first_few(names, 1)}"

    def alone(self, numbers: range) -> AskJob:
        """Return the job with the items of these numbers alone."""
        return replace(self, items=self._items_of(numbers), first=numbers.start)

    def _items_of(self, numbers: range) -> Sequence[Any]:
        return self.items[numbers.start - self.first : numbers.stop - self.first]


def parallel_map(
    executor: Executor,
    progress: Progress = NO_PROGRESS,
    stage: str = "",  # of which the items are counted, if there is progress
    nbytes: Callable[[Any], int] | None = None,  # of an item, if bytes are counted; None: items are
) -> ParallelMap:
    """Return a function that asks on an executor."""

    def ask(function: Callable[[T], R], items: Sequence[T], /, *, threads: int = 1) -> Iterator[R]:
        if nbytes is None:
            count = begin_items(progress, stage, len(items))
            sizes = [1] * len(items)
            told: Listener = ignore
        else:
            sizes = list(map(nbytes, items))
            progress.begin(stage, sum(sizes))
            count = told = progress.advance
        most = max(1, len(items) // MIN_BATCHES)
        step = min(MAX_BATCH, 1 << most.bit_length() - 1)
        batches = [range(lo, min(lo + step, len(items))) for lo in range(0, len(items), step)]
        job = AskJob(function=function, items=items, threads=threads)
        done: dict[int, list[R]] = {}
        position = 0
        with closing(executor.run(job, batches)) as steps:
            while True:
                with listening(told):
                    finished = next(steps, None)
                if finished is None:
                    return
                numbers, outcome = finished
                done[numbers.start] = outcome.record["answers"]
                count(sum(sizes[numbers.start : numbers.stop]) - outcome.told * (nbytes is not None))
                while position in done:
                    answers = done.pop(position)
                    position += len(answers)
                    yield from answers

    return ask
