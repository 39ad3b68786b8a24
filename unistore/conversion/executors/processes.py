"""Steps on worker processes of this machine: ``--workers N``."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any, Self, TypeVar

import cloudpickle

from unistore.conversion.executors.flow import Done, Lost, Step, run_steps
from unistore.conversion.executors.local import Job, Serial, largest_need, sent_item, sent_job
from unistore.conversion.executors.process_connections import Starter, StarterLostError, Worker
from unistore.conversion.job import Outcome
from unistore.conversion.memory import PROCESS, most_workers
from unistore.errors import ConversionError
from unistore.system.progress import NO_PROGRESS
from unistore.system.sizes import count_of, size

T = TypeVar("T")

MAX_STARTERS = 3
"""So many starters that end by themselves, or are killed, mean that none will ever stay."""
OUT_OF_MEMORY = "killed by SIGKILL"
"""How the kernel ends a process when memory runs out."""


class Processes:
    """Run steps on worker processes of this machine, forked from a starter that has imported what they need.

    The starter imports from the moment that this is entered; workers start with the first step and end when
    this is left. One that is lost is replaced and its step runs again; a step that loses its worker three
    times is reported with what it was.

    Each worker does one step at a time, in the order in which it gets them, so that its death is blamed on
    the first that it has not answered. As long as there are enough, another one waits behind it in the
    worker's connection, so that no worker waits for the converter.

    Parameters
    ----------
    workers
        How many processes: at most as many.
    memory
        Bytes that all processes together may hold; None: not bounded.
    imports
        Modules that steps need, imported before they are asked for.
    tell
        Told, in a line, what happens to workers.
    """

    def __init__(
        self,
        workers: int,
        *,
        memory: int | None = None,
        imports: Sequence[str] = (),
        tell: Callable[[str], None] = NO_PROGRESS.tell,
    ) -> None:
        self.workers = workers
        self._memory = memory
        self._imports = imports
        self._tell = tell
        self._starter: Starter | None = None
        self._starters_lost = 0
        self._workers: list[Worker] = []
        self._count = 0
        self._job = b""
        self._whole: Any = None

    def __enter__(self) -> Self:
        if most_workers(self._memory, self.workers, 0):
            self._start_importing()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pids(self) -> list[int]:
        """Process numbers of the workers."""
        return [worker.pid for worker in self._workers]

    def run(self, job: Job[T], items: Iterable[T]) -> Generator[tuple[T, Outcome], None, None]:
        """Yield every item with its outcome as it is done.

        Raises
        ------
        ConversionError
            If a step lost its worker three times (names the step), or no worker can be started.
        InputError
            If one step alone is more than `memory`.
        """
        todo = list(items)
        if not todo:
            return
        self._count = self._affordable(largest_need(job, todo, self._memory), len(todo))
        if not self._count:
            self.stop()
            yield from Serial().run(job, todo)
            return
        self._start_importing()
        self._job, self._whole = cloudpickle.dumps(sent_job(job)), job
        while len(self._workers) > self._count:
            self._end(self._workers[-1])
        self._fill()
        try:
            yield from run_steps(self, job, todo)
        finally:
            self._whole = None  # with what it knows of all sources

    def ready(self, waiting: int) -> bool:
        """See `Workers.ready`: a worker gets a second step only while all workers would get one."""
        fewest = len(self._least_busy().steps)
        return fewest == 0 or (fewest == 1 and waiting > len(self._workers))

    def hand_out(self, step: Step[Any]) -> None:
        """See `Workers.hand_out`."""
        self._least_busy().send(self._job, step, sent_item(self._whole, step.item))

    def next(self) -> Done | Lost:
        """See `Workers.next`."""
        readable: list[Any] = wait([worker.connection for worker in self._workers])
        worker = next(worker for worker in self._workers if worker.connection is readable[0])
        try:
            answer = worker.receive()
        except (EOFError, ConnectionError):
            return self._replace(worker)
        step = worker.steps.popleft()
        if isinstance(answer, Exception):
            raise answer
        return Done(step, answer)

    def stop(self) -> None:
        """End everything, whatever it is doing; see `Workers.stop`."""
        workers, starter = self._workers, self._starter
        self._workers, self._starter = [], None
        for worker in workers:
            worker.connection.close()
        if starter is not None:
            starter.stop()

    def _affordable(self, need: int, steps: int) -> int:
        """Workers for so many steps of at most `need` bytes; 0: this process has to do them itself."""
        wanted = min(self.workers, steps)
        count = most_workers(self._memory, wanted, need)
        if count < wanted:
            alone = "" if count else ": converting in this process alone"
            self._tell(
                f"memory for {count_of(count, 'worker')} of {size(PROCESS)} + {size(need)} each{alone}"
            )
        return count

    def _least_busy(self) -> Worker:
        return min(self._workers, key=lambda worker: len(worker.steps))

    def _start_importing(self) -> Starter:
        """The starter: a new one unless it is there, which imports while this process does something else."""
        if self._starter is None:
            self._starter = Starter(self._imports)
        return self._starter

    def _fill(self) -> None:
        """Start the workers that are missing."""
        while len(self._workers) < self._count:
            try:
                self._workers.append(self._start_importing().fork())
            except StarterLostError:
                self._lose_starter()

    def _replace(self, worker: Worker) -> Lost:
        """Have a new worker for one that is gone; or for all of them, if the starter is."""
        before = list(self._workers)
        cause = self._end(worker)
        blamed = worker.steps[0] if worker.steps and cause is not None else None
        if cause is not None:
            memory = ": out of memory? --memory bounds it" if cause == OUT_OF_MEMORY else ""
            again = "a new one takes its place" if blamed is None else "its step runs again in a new one"
            self._tell(f"a worker process was lost ({cause}{memory}); {again}")
        self._fill()
        gone = [each for each in before if each not in self._workers]
        hint = "a damaged file? see 'unistore inspect'; a conversion leaves it out with --exclude"
        if cause == OUT_OF_MEMORY:
            hint = "out of memory? fewer --workers hold less"
        return Lost([step for each in gone for step in each.steps], blamed, f"{cause}: {hint}")

    def _end(self, worker: Worker) -> str | None:
        """End a worker; returns how it ended. None: the starter is lost, and all workers with it."""
        assert self._starter is not None
        try:
            cause = self._starter.end(worker)
        except StarterLostError:
            self._lose_starter()
            return None
        self._workers.remove(worker)
        return cause

    def _lose_starter(self) -> None:
        """Clear away after a starter that is gone; another one starts when it is needed."""
        workers, starter = self._workers, self._starter
        assert starter is not None
        self._workers, self._starter = [], None
        for worker in workers:
            worker.wait_for_end()
        cause = starter.stop()
        self._starters_lost += 1
        if self._starters_lost >= MAX_STARTERS:
            msg = (
                f"the process that starts workers ended {MAX_STARTERS} times ({cause}); what was done is "
                "kept: --workers 0 does without"
            )
            raise ConversionError(msg)
        self._tell(f"the process that starts workers was lost ({cause}); all are started anew")
