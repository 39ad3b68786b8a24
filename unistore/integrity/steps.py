"""Steps of a verification or repair, in this process or in worker processes, with their outcomes in order."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from unistore.conversion.executors.local import Executor, Serial
from unistore.conversion.job import Outcome

__all__ = ["CheckJob", "in_order", "workers_of"]

T_contra = TypeVar("T_contra", contravariant=True)
T = TypeVar("T")


class CheckJob(Protocol[T_contra]):
    """Work of one kind, as `Job`, whose memory nobody bounds."""

    def __call__(self, item: T_contra, /) -> Outcome:
        """Do one step."""
        ...

    def describe(self, item: T_contra, /) -> str:
        """What the step is, for the message when it loses its worker again and again."""
        ...


@contextmanager
def workers_of(count: int) -> Iterator[Executor]:
    """Where steps run: so many worker processes, or, for 0, this process."""
    if count == 0:
        yield Serial()
        return
    from unistore.conversion.executors.processes import Processes

    with Processes(count, imports=("unistore.integrity.run",)) as executor:
        yield executor


def in_order(executor: Executor, job: CheckJob[T], items: Sequence[T]) -> Generator[Outcome, None, None]:
    """Outcomes of all items in the items' order, each as soon as it and all before it are there.

    Close it to stop before the end.
    """
    early: dict[int, Outcome] = {}
    wanted = 0
    with closing(executor.run(_Numbered(job), list(enumerate(items)))) as done:
        for (number, _), outcome in done:
            early[number] = outcome
            while wanted in early:
                yield early.pop(wanted)
                wanted += 1


@dataclass(frozen=True, slots=True)
class _Numbered:
    """The same job for an executor: of items with their numbers."""

    job: CheckJob[Any]

    def __call__(self, item: tuple[int, Any]) -> Outcome:
        return self.job(item[1])

    def describe(self, item: tuple[int, Any]) -> str:
        return self.job.describe(item[1])

    def need(self, item: tuple[int, Any]) -> int:  # noqa: ARG002  as every job has it
        return 0
