"""Run the steps of a job on workers: submit, collect, retry steps whose worker died.

Shared by local processes and dask; how steps reach workers is theirs (`Workers`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from unistore.conversion.executors.local import Job
from unistore.conversion.job import Outcome
from unistore.errors import ConversionError

T = TypeVar("T")

MAX_DEATHS = 3
"""A step fails after its worker died this many times."""


@dataclass(eq=False, slots=True)
class Step(Generic[T]):
    """The step of a job for one item."""

    item: T
    need: int
    """Peak bytes."""
    deaths: int = 0
    """How often its worker died."""


@dataclass(frozen=True, slots=True)
class Done:
    """A finished step."""

    step: Step[Any]
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Lost:
    """Workers that died, with the steps submitted to them."""

    steps: Sequence[Step[Any]]
    blamed: Step[Any] | None
    """The step during which a worker died; None: it was idle."""
    cause: str
    """How the worker died, and what may help."""
    given_up: bool = False
    """Whether the step was retried by the workers themselves and must not be retried again."""


class Workers(Protocol):
    """Processes that run the steps of one job, and are replaced if they die."""

    def ready(self, waiting: int) -> bool:
        """Whether one of `waiting` steps may be submitted now; always True if none is in flight."""
        ...

    def hand_out(self, step: Step[Any]) -> None:
        """Send a step to a worker."""
        ...

    def next(self) -> Done | Lost | None:
        """Wait for the next event; None after a timeout. Raises what a step raised."""
        ...

    def stop(self) -> None:
        """Stop early; returns once no step is running."""
        ...


def run_steps(
    workers: Workers, job: Job[T], items: Iterable[T], memory: int | None = None
) -> Generator[tuple[T, Outcome], None, None]:
    """Run a step of the job for every item; yield each item with its outcome as it is done.

    The largest steps come first, so that all workers finish at about the same time. An error or Ctrl-C stops
    the workers.

    Parameters
    ----------
    memory
        Limit in bytes of steps in flight together (one is always allowed); None: no limit.

    Raises
    ------
    ConversionError
        If a step lost its worker `MAX_DEATHS` times (names the step), or there are no workers any more.
    """
    waiting = deque(sorted((Step(item, job.need(item)) for item in items), key=lambda step: -step.need))
    in_flight = set[Step[T]]()

    def fits(step: Step[T]) -> bool:
        held = sum(each.need for each in in_flight)
        return memory is None or not in_flight or held + step.need <= memory

    def hand_out() -> None:
        while waiting and workers.ready(len(waiting)) and fits(waiting[0]):
            step = waiting.popleft()
            in_flight.add(step)
            workers.hand_out(step)

    try:
        hand_out()
        while in_flight:
            event = workers.next()
            if isinstance(event, Lost):
                _blame(job, event)
                in_flight.difference_update(event.steps)
                waiting.extendleft(reversed(event.steps))
            elif event is not None:
                in_flight.remove(event.step)
            hand_out()  # before the caller journals: no worker waits for that
            if isinstance(event, Done):
                yield event.step.item, event.outcome
    except BaseException:
        workers.stop()
        raise


def _blame(job: Job[Any], lost: Lost) -> None:
    """Count a death for the step that was running; raise after too many."""
    step = lost.blamed
    if step is None:
        return
    step.deaths += 1
    if lost.given_up or step.deaths == MAX_DEATHS:
        often = "again and again" if lost.given_up else f"{MAX_DEATHS} times"
        msg = (
            f"{job.describe(step.item)}: its worker died {often} ({lost.cause}); what was done is kept: "
            "the same command continues"
        )
        raise ConversionError(msg)
