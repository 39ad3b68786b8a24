"""Questions about many files or sources on an executor, in batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from unistore.conversion.executors.local import Executor, Job, Outcome
from unistore.converters.asking import Ask, ask_here
from unistore.errors import first_few

T = TypeVar("T")
R = TypeVar("R")

MAX_BATCH = 256
"""Most items of a step: those that `Packed` keeps together."""
MIN_BATCHES = 32
"""Least number of steps, if there are as many items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Job[range]):
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


def run_in_order(
    executor: Executor, job: Job[T], items: Iterable[T]
) -> Generator[tuple[T, Outcome], None, None]:
    """Yield each item and its outcome, in the order of the items, which are hashable and differ.

    Close the generator to stop early.
    """
    waiting = deque(items)
    done: dict[T, Outcome] = {}
    with closing(executor.run(job, list(waiting))) as outcomes:
        for finished, outcome in outcomes:
            done[finished] = outcome
            while waiting and waiting[0] in done:
                item = waiting.popleft()
                yield item, done.pop(item)
