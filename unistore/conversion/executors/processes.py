"""Steps on worker processes of this machine: ``--workers N``."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from types import TracebackType
from typing import Self, TypeVar

from unistore.conversion.executors.flow import run_steps
from unistore.conversion.executors.local import Job, Serial, largest_need
from unistore.conversion.executors.process_pool import ProcessPool
from unistore.conversion.job import Outcome
from unistore.conversion.memory import PROCESS, most_workers
from unistore.system.progress import SILENT
from unistore.system.sizes import size

__all__ = ["Processes"]

T = TypeVar("T")


class Processes:
    """Run steps on worker processes of this machine, one step at a time in each.

    What workers need is imported, in a process of its own, from the moment that this is entered; workers
    start with the first step and end when this is left. One that is lost is replaced and its step runs
    again; a step that loses its worker three times is reported with what it was.

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
        tell: Callable[[str], None] = SILENT.tell,
    ) -> None:
        self._workers = workers
        self._memory = memory
        self._tell = tell
        self._pool = ProcessPool(imports, tell)

    def __enter__(self) -> Self:
        if most_workers(self._memory, self._workers, 0):
            self._pool.start_importing()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.stop()

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
        count = self._count(largest_need(job, todo, self._memory), len(todo))
        if not count:
            self._pool.stop()
            yield from Serial().run(job, todo)
            return
        self._pool.begin(job, count)
        yield from run_steps(self._pool, job, todo)

    @property
    def pids(self) -> list[int]:
        """Process numbers of the workers."""
        return self._pool.pids

    def _count(self, need: int, steps: int) -> int:
        """Workers for so many steps of at most `need` bytes; 0: this process has to do them itself."""
        wanted = min(self._workers, steps)
        count = most_workers(self._memory, wanted, need)
        if count < wanted:
            alone = "" if count else ": converting in this process alone"
            self._tell(f"memory for {count} worker(s) of {size(PROCESS)} + {size(need)} each{alone}")
        return count
