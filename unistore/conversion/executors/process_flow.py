"""The steps of one stage on their way through worker processes: handed out, collected, run again if lost."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

import cloudpickle

from unistore.conversion.executors.local import Job
from unistore.conversion.executors.process_crew import Crew, Worker
from unistore.conversion.job import Outcome
from unistore.errors import ConversionError

__all__ = ["Flow"]

T = TypeVar("T")

LOSSES = 3
"""A step whose worker died this many times is given up."""
MEMORY = ": out of memory? --memory bounds it"
"""Said of SIGKILL: it is how the kernel ends a process when memory runs out."""


class Flow(Generic[T]):
    """The steps of one stage on their way through the workers.

    Each worker does one step at a time, in the order in which it gets them, so that a loss is blamed on the
    first that it has not answered. As long as there are enough, another one waits behind it in the worker's
    connection, so that no worker waits while the caller journals. The largest come first, so that all workers
    are done at about the same time.

    Parameters
    ----------
    crew, count
        The workers, and how many there shall be.
    job, items
        What is to be done.
    tell
        Told, in a line, of every lost worker.
    """

    def __init__(
        self, crew: Crew, count: int, job: Job[T], items: list[T], tell: Callable[[str], None]
    ) -> None:
        self._crew = crew
        self._count = count
        self._job = job
        self._items = items
        self._tell = tell
        self._left = deque(sorted(range(len(items)), key=lambda number: -job.need(items[number])))
        self._flying: dict[Worker, deque[int]] = {}
        self._losses: Counter[int] = Counter()

    def run(self) -> Generator[tuple[T, Outcome], None, None]:
        """Hand out every item; yield those that are done.

        Raises
        ------
        ConversionError
            If a step lost its worker three times (names the step), or no worker can be started.
        """
        self._crew.begin()
        pickled: bytes = cloudpickle.dumps(self._job)
        self._crew.keep(self._count)
        while self._left or any(self._flying.values()):
            self._hand_out(pickled)
            worker = self._crew.next()
            try:
                answer = worker.answer()
            except (EOFError, ConnectionError):
                self._lose(worker)
                continue
            number = self._flying[worker].popleft()
            if isinstance(answer, Exception):
                raise answer
            self._hand_out(pickled)
            yield self._items[number], answer

    def _hand_out(self, pickled: bytes) -> None:
        workers = self._crew.workers
        for deep in (1, 2):
            for worker in workers:
                steps = self._flying.setdefault(worker, deque())
                if len(steps) < deep and len(self._left) > (deep - 1) * len(workers):
                    steps.append(self._left.popleft())
                    worker.do(pickled, self._items[steps[-1]])

    def _lose(self, worker: Worker) -> None:
        """Replace a worker that is gone; its steps run again."""
        steps = self._flying[worker]
        cause = self._crew.end(worker)
        if cause is not None:
            hint = MEMORY if cause == "killed by SIGKILL" else ""
            again = "its step runs again in a new one" if steps else "a new one takes its place"
            self._tell(f"a worker process was lost ({cause}{hint}); {again}")
            if steps:
                self._blame(steps[0], cause)
        self._crew.keep(self._count)
        gone = self._flying.keys() - set(self._crew.workers)
        self._left.extendleft(number for worker in gone for number in self._flying.pop(worker))

    def _blame(self, number: int, cause: str) -> None:
        self._losses[number] += 1
        if self._losses[number] < LOSSES:
            return
        hint = "out of memory? fewer --workers hold less"
        if cause != "killed by SIGKILL":
            hint = "a damaged file? see 'unistore inspect'; a conversion leaves it out with --exclude"
        msg = (
            f"{self._job.describe(self._items[number])}: its worker died {LOSSES} times ({cause}: {hint}); "
            "what was done is kept: the same command continues"
        )
        raise ConversionError(msg)
