"""Steps on this machine: in this process (``--workers 0``), and in worker processes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from multiprocessing.connection import wait
from typing import Any, Self, TypeVar

import cloudpickle

from unistore.conversion.executors.local import MAX_ENCODERS, Job, Steps, is_stopped
from unistore.conversion.executors.worker_process import (
    OUT_OF_MEMORY,
    WorkerLostError,
    WorkerProcess,
    keep_worker,
    take_worker,
)
from unistore.conversion.memory import PROCESS, most_workers
from unistore.errors import ConversionError, UnistoreError
from unistore.system.foreign import DamagedFiles, NeedsWorkerError, refused
from unistore.system.machine import keep_freed_memory, usable_cores
from unistore.system.progress import COUNTS, NO_PROGRESS, listener, step_bytes
from unistore.system.sizes import count_of, size

T = TypeVar("T")

MAX_DEATHS = 3  # A step fails after its worker died this many times

# Files at which workers of this process have died
_damaged: DamagedFiles = {}


class Processes:
    """Run steps on worker processes of this machine, which end when this is left.

    Without workers, steps run in this process until one opens a file with a foreign library. That step
    and all later ones run in a single worker, which a later command takes over. The largest steps come
    first, so that all workers finish at about the same time.
    """

    def __init__(
        self,
        workers: int = 0,
        *,
        memory: int | None = None,  # bytes of all processes, which may allow fewer workers; None: no limit
        imports: Sequence[str] = (),  # modules that workers need
        threads: int | None = None,  # that encode where one process does all steps; None: by the cores
        tell: Callable[[str], None] = NO_PROGRESS.tell,  # told, in a line, what happens to workers
    ) -> None:
        self.workers = workers
        self._memory = memory
        self._imports = imports
        self._threads = min(MAX_ENCODERS, int(usable_cores())) if threads is None else threads
        self._tell = tell
        self._processes: list[WorkerProcess] = []
        self._at_work: dict[WorkerProcess, Any] = {}

    def __enter__(self) -> Self:
        if self.workers:
            self._start(0, 1)  # it imports while this process scans
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # What is refused leaves the single worker idle, as what succeeds does.
        is_idle = kind is None or issubclass(kind, UnistoreError)
        if is_idle and not self.workers and self._processes:
            keep_worker(self._processes.pop())
        self._stop()

    @property
    def pids(self) -> list[int]:
        """Return the process numbers of the workers."""
        return [process.pid for process in self._processes]

    def run(self, job: Job[T], items: Iterable[T]) -> Steps[T]:
        """Yield every item with its outcome as it is done. A step that fails stops the others."""
        waiting = deque(items)
        if not self.workers and not self._processes:
            keep_freed_memory()
            while waiting:
                if is_stopped(job):
                    return
                try:
                    with refused(), step_bytes() as done:
                        outcome = job.threaded(waiting[0], max(job.threads, self._threads))
                except NeedsWorkerError:
                    listener()(-done.told)
                    break
                yield waiting.popleft(), replace(outcome, told=done.told)
        if waiting:
            yield from self._run_in_workers(job, sorted(waiting, key=job.need, reverse=True))

    def _run_in_workers(self, job: Job[T], items: Sequence[T]) -> Steps[T]:
        if self._at_work:
            raise RuntimeError("steps of another job are at work")
        self._start(max(map(job.need, items)), len(items))
        threads = max(job.threads, self._threads if len(self._processes) == 1 else 1)
        waiting = deque(items)
        at_work: dict[WorkerProcess, T] = self._at_work
        deaths: dict[WorkerProcess, int] = dict.fromkeys(self._processes, 0)
        told: Counter[WorkerProcess] = Counter()
        try:
            while waiting or at_work:
                if is_stopped(job):
                    waiting.clear()
                    if not at_work:
                        return
                idle = [process for process in self._processes if process not in at_work]
                for process in idle[: len(waiting)]:
                    at_work[process] = waiting.popleft()
                    self._send(process, job, at_work[process], threads)
                process = self._first_done(at_work)
                item = at_work.pop(process)
                try:
                    answer = process.receive()
                except WorkerLostError as error:
                    listener()(-told.pop(process, 0))
                    if is_stopped(job):  # the signal has ended it, too
                        continue
                    deaths[process] += self._replace(process, error)
                    if deaths[process] == MAX_DEATHS:
                        times = f"{MAX_DEATHS} times"
                        raise step_given_up(job, item, times, error.cause, error.hint) from error
                    at_work[process] = item
                    # One thread, if the files of several were open: a further death tells which file it is
                    self._send(process, job, item, 1 if deaths[process] else threads)
                    continue
                if isinstance(answer, int):
                    at_work[process] = item
                    told[process] += answer
                    listener()(answer)
                    continue
                deaths[process] = 0
                done_bytes = told.pop(process, 0)
                COUNTS.update(answer.counts)
                if waiting and not is_stopped(job):  # before the caller journals: no worker waits for that
                    at_work[process] = waiting.popleft()
                    self._send(process, job, at_work[process], threads)
                yield item, replace(answer, told=done_bytes)
        except BaseException:
            if at_work or waiting:
                self._stop()
            raise

    def _send(self, process: WorkerProcess, job: Job[T], item: T, threads: int) -> None:
        step = cloudpickle.dumps((job.alone(item), item, threads))
        # with room for what is reserved and never touched
        most_bytes = None if self._memory is None else self._memory + PROCESS
        process.send(step, _damaged, most_bytes)

    @staticmethod
    def _first_done(at_work: Iterable[WorkerProcess]) -> WorkerProcess:
        by_connection = {process.connection: process for process in at_work}
        return by_connection[wait(list(by_connection))[0]]  # type: ignore[index]

    def _replace(self, process: WorkerProcess, error: WorkerLostError) -> bool:
        # True: the step is at fault, not a file that it read
        process.restart()
        if error.damage and error.note not in _damaged:
            _damaged[error.note] = error.damage
            return False
        memory = "; if memory ran out, limit it with --memory" if error.cause == OUT_OF_MEMORY else ""
        self._tell(f"a worker process died ({error.cause}); its task runs again in a new one{memory}")
        return True

    def _stop(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.end()
        self._processes = []
        self._at_work.clear()

    def _start(self, need: int, steps: int) -> None:
        count = max(1, self.workers)
        most = max(1, most_workers(self._memory, count, need))
        if most < min(count, steps):
            share = f"{size(PROCESS)} + {size(need)}"
            self._tell(f"--memory allows {count_of(most, 'worker')}, with {share} each")
        while len(self._processes) > most:
            self._processes.pop().end()
        while len(self._processes) < min(most, steps):
            self._processes.append(take_worker(self._imports, self._memory))


def step_given_up(job: Job[T], item: T, how_often: str, cause: str, hint: str) -> ConversionError:
    """Return the error of a task that lost its worker too often. The cause is empty if it is not known."""
    died = f"its worker died {how_often}{f' ({cause})' if cause else ''}"
    return ConversionError(
        f"{job.describe(item)}: {died}; all finished work is kept. Fix: {hint}; then run the same command"
    )
