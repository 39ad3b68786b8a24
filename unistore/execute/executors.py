"""Executors: run one function over many items and hand back each outcome as it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from unistore.execute.job import Outcome

__all__ = ["Executor", "Serial"]

T = TypeVar("T")


class Executor(Protocol):
    """Where steps run."""

    def run(self, job: Callable[[T], Outcome], items: Iterable[T]) -> Iterator[tuple[T, Outcome]]:
        """Yield every item with its outcome, in any order. The job and the items pickle."""
        ...


class Serial:
    """In this process, in order: the reference that every other executor must equal byte for byte."""

    def run(self, job: Callable[[T], Outcome], items: Iterable[T]) -> Iterator[tuple[T, Outcome]]:
        """Yield every item with its outcome, in order."""
        for item in items:
            yield item, job(item)
