"""Executors: run one function over many items and hand back each outcome as it is done."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Protocol, TypeVar

from unistore.execute.job import Outcome

__all__ = ["Executor", "Job", "Serial"]

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Job(Protocol[T_contra]):
    """Work of one kind; pickles, as its items do."""

    def __call__(self, item: T_contra, /) -> Outcome:
        """Do one step. It may be done twice, and its result is the same."""
        ...

    def describe(self, item: T_contra, /) -> str:
        """What the step is, in words that name its sources."""
        ...

    def need(self, item: T_contra, /) -> int:
        """Bytes that the step holds at its peak, beyond what every process does."""
        ...


class Executor(Protocol):
    """Where steps run."""

    def run(self, job: Job[T], items: Iterable[T]) -> Generator[tuple[T, Outcome], None, None]:
        """Yield every item with its outcome, in any order.

        The caller closes the generator when it stops before the end; no step is at work any more then.
        """
        ...


class Serial:
    """In this process, in order: the reference that every other executor must equal byte for byte."""

    def run(self, job: Job[T], items: Iterable[T]) -> Generator[tuple[T, Outcome], None, None]:
        """Yield every item with its outcome, in order."""
        for item in items:
            yield item, job(item)
