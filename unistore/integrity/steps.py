"""Run the steps of a verification or repair in this process or in worker processes."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from unistore.conversion.executors.local import Executor, Serial
from unistore.conversion.job import Outcome

T_contra = TypeVar("T_contra", contravariant=True)
T = TypeVar("T")


class StepJob(Protocol[T_contra]):
    """A `Job` without a bound on its memory."""

    def __call__(self, item: T_contra, /) -> Outcome:
        """Do one step."""

    def describe(self, item: T_contra, /) -> str:
        """What the step is, for the message when its worker dies repeatedly."""


@contextmanager
def make_executor(workers: int) -> Iterator[Executor]:
    """Executor with worker processes; with 0 workers, steps run in this process."""
    if workers == 0:
        yield Serial()
        return
    from unistore.conversion.executors.processes import Processes

    with Processes(workers, imports=("unistore.integrity.verify",)) as executor:
        yield executor


def run_in_order(
    executor: Executor, job: StepJob[T], items: Iterable[T]
) -> Generator[tuple[T, Outcome], None, None]:
    """Each item and its outcome, in the order of the items. Close the generator to stop before the end."""
    done: dict[int, tuple[T, Outcome]] = {}
    following = 0
    with closing(executor.run(_Numbered(job), list(enumerate(items)))) as outcomes:
        for (number, item), outcome in outcomes:
            done[number] = item, outcome
            while following in done:
                yield done.pop(following)
                following += 1


@dataclass(frozen=True, slots=True)
class _Numbered:
    """A job as a `Job` of (number, item)."""

    job: StepJob[Any]

    def __call__(self, item: tuple[int, Any]) -> Outcome:
        return self.job(item[1])

    def describe(self, item: tuple[int, Any]) -> str:
        return self.job.describe(item[1])

    def need(self, item: tuple[int, Any]) -> int:  # noqa: ARG002
        return 0
