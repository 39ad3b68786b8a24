"""Steps on worker processes of this machine: ``--workers N``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import Self, TypeVar

import cloudpickle

from unistore.conversion.executors.flow import run_steps
from unistore.conversion.executors.local import Job, Outcome, encoding_threads
from unistore.conversion.executors.worker_process import (
    OUT_OF_MEMORY,
    WorkerLostError,
    WorkerProcess,
    keep_worker,
    take_worker,
)
from unistore.conversion.memory import PROCESS, largest_need, most_workers
from unistore.system.foreign import DamagedFiles
from unistore.system.progress import NO_PROGRESS
from unistore.system.sizes import count_of, size

T = TypeVar("T")

# Files at which workers of this process have died
_damaged: DamagedFiles = {}


class Processes:
    """Run steps on worker processes of this machine, each waited for by a thread.

    The first worker starts when this is entered, the others with the first steps; they end when this is left.
    One that is lost is replaced and its step runs again; a step that loses its worker three times is reported
    with what it was. A file at which a worker died is refused from then on.

    There are at most `workers` of them, fewer where `memory` (bytes of all processes) does not allow so many;
    a single one encodes on threads. `tell` is told, in a line, what happens to them.
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
        # with room for what is reserved and never touched
        self._most_bytes = None if memory is None else memory + PROCESS
        self._imports = imports
        self.tell = tell
        self._processes: list[WorkerProcess] = []
        self._idle: SimpleQueue[WorkerProcess] = SimpleQueue()
        self._threads: ThreadPoolExecutor | None = None
        self._lost: SimpleQueue[WorkerProcess] = SimpleQueue()
        self._pending: set[Future[Outcome]] = set()

    def __enter__(self) -> Self:
        self._start(0, 1)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pids(self) -> list[int]:
        """Process numbers of the workers."""
        return [process.pid for process in self._processes]

    def run(self, job: Job[T], items: Iterable[T]) -> Generator[tuple[T, Outcome], None, None]:
        """Yield every item with its outcome as it is done; see `run_steps`."""
        todo = list(items)
        if not todo:
            return
        self._start(largest_need(job, todo, self._memory), len(todo))
        with ThreadPoolExecutor(len(self._processes), "unistore-worker") as self._threads:
            yield from run_steps(self, job, todo)

    @property
    def steps_at_once(self) -> int:
        """One for each worker, and as many that wait, so that no worker waits for this process."""
        return 2 * len(self._processes)

    def submit(self, job: Job[T], item: T) -> Future[Outcome]:
        """Submit a step; see `Workers`."""
        assert self._threads is not None
        # By this thread, so that what cannot be pickled ends the conversion with its own error.
        encoders = encoding_threads() if len(self._processes) == 1 else 1
        future = self._threads.submit(self._call, cloudpickle.dumps((job.alone(item), item, encoders)))
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    def wait(self, futures: Collection[Future[Outcome]]) -> Future[Outcome]:
        """Return the first future that is done."""
        done = wait(futures, return_when=FIRST_COMPLETED).done
        return next(future for future in futures if future in done)

    def replace_lost(self, error: WorkerLostError) -> None:
        """Start a worker for a lost one, and refuse the file that it was reading; see `Workers`."""
        process = self._lost.get()
        process.restart()  # by this thread: the kernel ends workers with the thread that started them
        self._idle.put(process)
        if error.damage and error.note not in _damaged:
            _damaged[error.note] = error.damage
            error.blamed = False
            return
        memory = ": out of memory? --memory bounds it" if error.cause == OUT_OF_MEMORY else ""
        again = "its step runs again in a new one" if error.blamed else "a new one takes its place"
        self.tell(f"a worker process was lost ({error.cause}{memory}); {again}")

    def stop(self, *, keep_one: bool = False) -> None:
        """End everything, whatever it is doing; or keep an idle worker for the next command."""
        # A thread whose step is pending may be about to take the idle worker.
        if keep_one and not self._pending and not self._idle.empty():
            spare = self._idle.get()
            self._processes.remove(spare)
            keep_worker(spare)
        if self._threads is not None:
            # First, so that no thread takes another step: it would wait for a process for ever.
            self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()
            self._idle.put(process)  # whoever waits for one learns that it is gone
        if self._threads is not None:
            self._threads.shutdown()
        for process in self._processes:
            process.end()
        self._processes = []
        self._idle = SimpleQueue()
        self._lost = SimpleQueue()

    def _call(self, step: bytes) -> Outcome:
        process = self._idle.get()
        try:
            outcome = process.call(step, dict(_damaged), self._most_bytes)
        except WorkerLostError:
            self._lost.put(process)
            raise
        except BaseException:
            self._idle.put(process)
            raise
        self._idle.put(process)
        return outcome

    def _start(self, need: int, steps: int) -> None:
        """Start the workers that so many steps lack; end those that the memory does not allow."""
        most = max(1, most_workers(self._memory, self.workers, need))
        if most < min(self.workers, steps):
            self.tell(f"memory for {count_of(most, 'worker')} of {size(PROCESS)} + {size(need)} each")
        while len(self._processes) > most:
            process = self._idle.get()
            self._processes.remove(process)
            process.end()
        while len(self._processes) < min(most, steps):
            process = take_worker(self._imports)
            self._processes.append(process)
            self._idle.put(process)
