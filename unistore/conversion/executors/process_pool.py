"""The worker processes of ``--workers N``: steps handed to them, those that are lost replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from typing import Any

import cloudpickle

from unistore.conversion.executors.flow import Done, Lost, Step
from unistore.conversion.executors.local import Job
from unistore.conversion.executors.process_connections import Starter, StarterLostError, Worker
from unistore.errors import ConversionError

__all__ = ["ProcessPool"]

MAX_STARTERS = 3
"""So many starters that end by themselves, or are killed, mean that none will ever stay."""
OUT_OF_MEMORY = "killed by SIGKILL"
"""How the kernel ends a process when memory runs out."""


class ProcessPool:
    """Worker processes of this machine, forked from a starter that has imported what they need.

    Each works on one step at a time, in the order in which it gets them, so that its death is blamed on the
    first that it has not answered. As long as there are enough, another one waits behind it in the worker's
    connection, so that no worker waits for the converter.

    Parameters
    ----------
    imports
        Modules that the starter imports besides those that every worker needs.
    tell
        Told, in a line, of every loss.
    """

    def __init__(self, imports: Sequence[str], tell: Callable[[str], None]) -> None:
        self._imports = imports
        self._tell = tell
        self._starter: Starter | None = None
        self._starters_lost = 0
        self._workers: list[Worker] = []
        self._count = 0
        self._job = b""

    @property
    def pids(self) -> list[int]:
        """Process numbers of the workers."""
        return [worker.pid for worker in self._workers]

    def start_importing(self) -> Starter:
        """The starter: a new one unless it is there, which imports while the caller does something else."""
        if self._starter is None:
            self._starter = Starter(self._imports)
        return self._starter

    def begin(self, job: Job[Any], count: int) -> None:
        """Have so many workers, for the steps of this job.

        Raises
        ------
        ConversionError
            If none can be started.
        """
        self.start_importing()
        self._job = cloudpickle.dumps(job)
        self._count = count
        while len(self._workers) > count:
            self._end(self._workers[-1])
        self._fill()

    def ready(self, waiting: int) -> bool:
        """See `Workers.ready`: a worker gets a second step only while all workers would get one."""
        fewest = len(self._least_busy().steps)
        return fewest == 0 or (fewest == 1 and waiting > len(self._workers))

    def hand_out(self, step: Step[Any]) -> None:
        """See `Workers.hand_out`."""
        self._least_busy().send(self._job, step)

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
        """End everything, whatever it is doing."""
        workers, starter = self._workers, self._starter
        self._workers, self._starter = [], None
        for worker in workers:
            worker.connection.close()
        if starter is not None:
            starter.stop()

    def _least_busy(self) -> Worker:
        return min(self._workers, key=lambda worker: len(worker.steps))

    def _fill(self) -> None:
        """Start the workers that are missing."""
        while len(self._workers) < self._count:
            try:
                self._workers.append(self.start_importing().fork())
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
