"""Steps on dask: worker processes of this machine, or an existing cluster."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self, TypeVar

from unistore.errors import ConversionError
from unistore.execute.dask_crew import Crew
from unistore.execute.dask_flow import Flow
from unistore.execute.dask_logs import silent
from unistore.execute.executors import Job, Serial
from unistore.execute.job import Outcome
from unistore.execute.memory import PROCESS, check_fits, most_workers, shown

__all__ = ["Dask"]

T = TypeVar("T")

TIMEOUT = "20s"
"""How long an existing scheduler may take to answer."""


class Dask:
    """Run steps on ``distributed`` workers, one step at a time in each process.

    Processes start with the first step and end when this is left. A lost worker is replaced and its step
    runs again; a step that loses its worker three times is reported with what it was.

    Parameters
    ----------
    workers
        Single-threaded processes to start on this machine (when `scheduler` is None): at most as many.
    scheduler
        Address of an existing cluster (``"tcp://host:8786"``) whose workers see the same files.
    memory
        Bytes that all processes together may hold; None: not bounded. Of an existing cluster only the steps
        that are at work at once are counted.
    tell
        Told, in a line, what happens to workers.
    """

    def __init__(
        self,
        workers: int,
        scheduler: str | None = None,
        *,
        memory: int | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._workers = workers
        self._scheduler = scheduler
        self._memory = memory
        self._tell = tell or _nobody
        self._stack = ExitStack()
        self._client: Any = None
        self._crew: Crew | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the workers of this machine, whatever they do, and leave the scheduler."""
        self._client = self._crew = None
        self._stack.close()

    def run(self, job: Job[T], items: Iterable[T]) -> Generator[tuple[T, Outcome], None, None]:
        """Yield every item with its outcome as it is done.

        Raises
        ------
        ConversionError
            If a step lost its worker three times (names the step), or the scheduler is gone.
        InputError
            If one step alone is more than `memory`.
        """
        todo = list(items)
        if not todo:
            return
        largest = max(todo, key=job.need)
        check_fits(self._memory, job.need(largest), job.describe(largest))
        count = self._count(job.need(largest), len(todo))
        if not count:
            yield from Serial().run(job, todo)
            return
        self._start()
        if self._crew is not None:
            self._crew.keep(count)
        flow = Flow(self._client, self._crew, job, self._room(count), self._tell)
        finished = False
        try:
            yield from flow.run(todo)
            finished = True
        finally:
            if not finished:
                flow.abandon()
                if self._crew is not None:
                    self.stop()

    @property
    def pids(self) -> list[int]:
        """Process numbers of the workers on this machine."""
        return [] if self._crew is None else self._crew.pids

    def _count(self, most: int, steps: int) -> int:
        """Workers for so many steps of at most `most` bytes; 0: this process has to do them itself."""
        if self._scheduler is not None:
            return steps
        wanted = min(self._workers, steps)
        count = most_workers(self._memory, wanted, most)
        if count < wanted:
            alone = "" if count else ": converting in this process alone"
            self._tell(f"memory for {count} worker(s) of {shown(PROCESS)} + {shown(most)} each{alone}")
        return count

    def _room(self, count: int) -> int | None:
        """Bytes that the steps at work may hold together."""
        if self._memory is None:
            return None
        return self._memory - PROCESS * (1 + (count if self._crew is not None else 0))

    def _start(self) -> None:
        if self._client is not None:
            return
        import dask
        from distributed import Client, LocalCluster

        settings = {
            "distributed.scheduler.allowed-failures": 0,  # counted here, so that no neighbour is blamed
            "distributed.scheduler.worker-ttl": "30 minutes",
            "distributed.scheduler.http.routes": [],
            "distributed.admin.large-graph-warning-threshold": "1 TB",
        }
        with ExitStack() as stack:
            stack.enter_context(dask.config.set(settings))
            stack.enter_context(silent())
            place: Any = self._scheduler
            if self._scheduler is None:
                quiet = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
                local = LocalCluster(n_workers=0, processes=True, scheduler_kwargs=quiet, silence_logs=False)
                place = stack.enter_context(local)
            try:
                client = stack.enter_context(Client(place, timeout=TIMEOUT, set_as_default=False))
            except OSError as error:
                msg = f"{self._scheduler}: no dask scheduler answers there; start one with 'dask scheduler'"
                raise ConversionError(msg) from error
            if self._scheduler is None:
                self._crew = Crew(client.scheduler.address, self._tell)
                stack.callback(self._crew.stop)
            self._client = client
            self._stack = stack.pop_all()


def _nobody(line: str) -> None:
    """Tell nobody."""
