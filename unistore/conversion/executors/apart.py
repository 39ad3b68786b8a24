"""``--workers 0``: steps in this process, and those that need a foreign library in a single worker."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from unistore.conversion.executors.local import Job, Outcome, encoding_threads
from unistore.errors import UnistoreError
from unistore.system.foreign import NeedsWorkerError, refused
from unistore.system.machine import keep_freed_memory
from unistore.system.progress import NO_PROGRESS

if TYPE_CHECKING:
    from unistore.conversion.executors.processes import Processes

T = TypeVar("T")


class Apart:
    """Run steps in this process, in order, until one opens a file with a foreign library.

    That step, and all others from then on, run in a worker process, which a later command takes over.

    The parameters are those of `Processes`, and the threads that encode in this process.
    """

    workers = 0

    def __init__(
        self,
        memory: int | None = None,
        *,
        imports: Sequence[str] = (),
        threads: int | None = None,
        tell: Callable[[str], None] = NO_PROGRESS.tell,
    ) -> None:
        self._memory = memory
        self._imports = imports
        self._tell = tell
        self._threads = encoding_threads() if threads is None else threads
        self._processes: Processes | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        processes = self._processes
        self._processes = None
        if processes is not None:
            # What is refused leaves the worker idle, as what succeeds does.
            processes.stop(keep_one=kind is None or issubclass(kind, UnistoreError))

    def run(self, job: Job[T], items: Iterable[T]) -> Generator[tuple[T, Outcome], None, None]:
        """Yield every item with its outcome, as `Processes.run`."""
        todo = list(items)
        done = 0
        if self._processes is None:
            for item, outcome in self._run_here(job, todo):
                done += 1
                yield item, outcome
        if done < len(todo):
            yield from self._in_worker().run(job, todo[done:])

    def _run_here(self, job: Job[T], items: Iterable[T]) -> Generator[tuple[T, Outcome], None, None]:
        """Yield items with their outcomes up to the first that needs a worker."""
        keep_freed_memory()
        for item in items:
            try:
                with refused():
                    outcome = job.threaded(item, self._threads)
            except NeedsWorkerError:
                return
            yield item, outcome

    def _in_worker(self) -> Processes:
        from unistore.conversion.executors.processes import Processes

        if self._processes is None:
            self._processes = Processes(1, memory=self._memory, imports=self._imports, tell=self._tell)
        return self._processes
