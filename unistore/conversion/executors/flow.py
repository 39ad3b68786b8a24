"""Run the steps of a job on workers: the largest first, within the memory, again where a worker died.

Shared by local processes and dask; how steps reach workers is theirs (`Workers`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Generator, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from unistore.conversion.executors.local import Job, Outcome
from unistore.conversion.executors.worker_process import WorkerLostError
from unistore.errors import ConversionError

T = TypeVar("T")

MAX_DEATHS = 3
"""A step fails after its worker died this many times."""


@dataclass(eq=False, slots=True)
class Step(Generic[T]):
    """The step of a job for one item."""

    item: T
    need: int  # peak bytes
    deaths: int = 0  # how often its worker died


class Workers(Protocol):
    """Processes that run steps; their futures are those of `concurrent.futures`, or like them."""

    @property
    def steps_at_once(self) -> int:
        """How many steps to submit before the first is done."""
        ...

    def submit(self, job: Job[T], item: T) -> Any:
        """Submit a step; returns its future, which may raise `WorkerLostError`."""
        ...

    def wait(self, futures: Collection[Any]) -> Any:
        """Return a future that is done; None after a timeout."""
        ...

    def replace_lost(self, error: WorkerLostError) -> None:
        """Replace the lost worker; clears ``error.blamed`` where the step is not at fault."""
        ...

    def stop(self) -> None:
        """Stop early; returns once no step is running."""
        ...


def run_steps(
    workers: Workers, job: Job[T], items: Iterable[T], memory: int | None = None
) -> Generator[tuple[T, Outcome], None, None]:
    """Yield every item with its outcome as it is done; a step that fails stops the others.

    The largest steps come first, so that all workers finish at about the same time. Those in flight together
    need at most `memory` bytes; one is always allowed.
    """
    waiting = deque(sorted((Step(item, job.need(item)) for item in items), key=lambda step: -step.need))
    in_flight: dict[Any, Step[T]] = {}

    def fits(step: Step[T]) -> bool:
        held = sum(other.need for other in in_flight.values())
        return memory is None or not in_flight or held + step.need <= memory

    def submit() -> None:
        while waiting and len(in_flight) < workers.steps_at_once and fits(waiting[0]):
            step = waiting.popleft()
            in_flight[workers.submit(job, step.item)] = step

    try:
        submit()
        while in_flight:
            future = workers.wait(in_flight)
            if future is None:
                submit()
                continue
            step = in_flight.pop(future)
            outcome = None
            try:
                outcome = future.result()
            except WorkerLostError as error:
                workers.replace_lost(error)
                _count_death(job, step, error)
                waiting.appendleft(step)
            submit()  # before the caller journals: no worker waits for that
            if outcome is not None:
                yield step.item, outcome
    except BaseException:
        if in_flight or waiting:
            workers.stop()
        raise


def _count_death(job: Job[T], step: Step[T], error: WorkerLostError) -> None:
    """Raise if a step has lost its worker too often."""
    step.deaths += error.blamed
    if error.final or step.deaths == MAX_DEATHS:
        how_often = "again and again" if error.final else f"{MAX_DEATHS} times"
        cause = ": ".join(filter(None, (error.cause, error.hint)))
        msg = (
            f"{job.describe(step.item)}: its worker died {how_often} ({cause}); what was done is kept: "
            "the same command continues"
        )
        raise ConversionError(msg)
