"""Questions about many files or sources on an executor, in batches."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from unistore.conversion.executors.local import Executor, Outcome, SlicedJob
from unistore.converters.asking import Ask, ask_here
from unistore.errors import first_few

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
R = TypeVar("R")

MAX_BATCH = 256
"""Most items of a step: those that `Packed` keeps together."""
MIN_BATCHES = 32
"""Least number of steps, if there are as many items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Ask about some items: ``job(numbers)`` returns their answers in its record."""

    function: Callable[[Any], Any]
    items: Sequence[Any]
    first: int = 0  # number of the first of `items`
    threads: int = 1

    def __call__(self, numbers: range) -> Outcome:
        """Ask about the items with these numbers."""
        items = self.items[numbers.start - self.first : numbers.stop - self.first]
        return Outcome({"answers": list(ask_here(self.function, items, threads=self.threads))})

    def describe(self, numbers: range) -> str:
        """Return the first item, for messages."""
        names = [str(getattr(item, "name", item)) for item in self.items[numbers.start : numbers.stop]]
        return f"scanning {first_few(names, 1)}"

    def bare(self) -> Batch:
        """Return the job without items."""
        return replace(self, items=())

    def slice(self, numbers: range) -> dict[str, Any]:
        """Return the items with these numbers."""
        return {"items": self.items[numbers.start : numbers.stop], "first": numbers.start}


def asking(executor: Executor) -> Ask:
    """Return a function that asks on an executor."""

    def ask(function: Callable[[T], R], items: Sequence[T], /, *, threads: int = 1) -> Iterator[R]:
        most = max(1, len(items) // MIN_BATCHES)
        step = min(MAX_BATCH, 1 << most.bit_length() - 1)
        batches = [range(lo, min(lo + step, len(items))) for lo in range(0, len(items), step)]
        job = Batch(function=function, items=items, threads=threads)
        for _, outcome in run_in_order(executor, job, batches):
            yield from outcome.record["answers"]

    return ask


class StepJob(Protocol[T_contra]):
    """A `Job` without a bound on its memory."""

    def __call__(self, item: T_contra, /) -> Outcome:
        """Do one step."""
        ...

    def describe(self, item: T_contra, /) -> str:
        """Describe the step, for the message when its worker dies repeatedly."""
        ...


def run_in_order(
    executor: Executor, job: StepJob[T], items: Iterable[T]
) -> Generator[tuple[T, Outcome], None, None]:
    """Yield each item and its outcome, in the order of the items. Close the generator to stop early."""
    numbered = list(enumerate(items))
    done: dict[int, tuple[T, Outcome]] = {}
    following = 0
    with closing(executor.run(_Numbered(job), numbered)) as outcomes:
        for (number, item), outcome in outcomes:
            done[number] = item, outcome
            while following in done:
                yield done.pop(following)
                following += 1


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A job as a job of (number, item)."""

    job: StepJob[Any]
    fields: Mapping[str, Any] = field(default_factory=dict)  # of `job`, for one item

    def __call__(self, item: tuple[int, Any]) -> Outcome:
        job: StepJob[Any] = replace(self.job, **self.fields) if self.fields else self.job  # type: ignore[type-var]
        return job(item[1])

    def describe(self, item: tuple[int, Any]) -> str:
        return self.job.describe(item[1])

    def need(self, item: tuple[int, Any]) -> int:  # noqa: ARG002  as every job has it
        return 0

    def bare(self) -> _Numbered:
        return _Numbered(self.job.bare()) if isinstance(self.job, SlicedJob) else self

    def slice(self, item: tuple[int, Any]) -> dict[str, Any]:
        return {"fields": self.job.slice(item[1])} if isinstance(self.job, SlicedJob) else {}
