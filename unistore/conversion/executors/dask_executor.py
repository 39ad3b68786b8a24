"""Steps on an existing dask cluster: ``--scheduler``."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Self, TypeVar

from unistore.conversion.executors.apart import Apart
from unistore.conversion.executors.flow import run_steps
from unistore.conversion.executors.local import Job, Outcome
from unistore.conversion.executors.worker_process import WorkerLostError
from unistore.conversion.memory import PROCESS, largest_need
from unistore.errors import ConversionError, InputError
from unistore.remote.url import redact_url
from unistore.system.progress import NO_PROGRESS
from unistore.system.sizes import count_of

if TYPE_CHECKING:
    from distributed import Client

# What dask logs of its own is kept off the terminal: what matters of it is told in our words.

_LOGGERS = ("distributed", "tornado", "asyncio")
_SILENCE = logging.CRITICAL + 1


@contextmanager
def silent() -> Iterator[None]:
    """Have dask and the event loop below it log nothing meanwhile.

    Levels are set on the loggers, not on their handlers: several of dask's loggers have a level and a handler
    of their own.
    """
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    loggers += [
        logger
        for name, logger in logging.root.manager.loggerDict.items()
        if name.startswith(tuple(f"{tree}." for tree in _LOGGERS)) and isinstance(logger, logging.Logger)
    ]
    before = [(logger, logger.level) for logger in loggers]
    for logger in loggers:
        logger.setLevel(_SILENCE)
    try:
        yield
    finally:
        for logger, level in before:
            logger.setLevel(level)


# The workers of a dask cluster: steps handed to its scheduler, which runs those of lost workers again.

T = TypeVar("T")

POLL = 0.5
"""Seconds between two looks at the workers."""

_one_at_a_time = threading.Lock()
# Names of the runs of which this worker begins no step any more
_stopped: set[str] = set()


class DaskCluster:
    """The workers of a cluster, for the steps of one job.

    They get no more steps than they can begin at once, and as many again. How often a step may lose its
    worker is the cluster's own setting (``distributed.scheduler.allowed-failures``).
    """

    def __init__(
        self,
        client: Any,  # connected to the scheduler (`distributed.Client`)
        tell: Callable[[str], None],  # told, in a line, of workers that are lost or missing
    ) -> None:
        self._client = client
        self._tell = tell
        self._run = uuid.uuid4().hex
        self._numbers = count()
        self._done: SimpleQueue[Any] = SimpleQueue()
        self._in_flight: dict[Any, _Step] = {}
        self._members: set[str] | None = None
        self._wide: set[str] = set()
        self._gone: SimpleQueue[str] = SimpleQueue()
        self._looked = 0.0
        client.subscribe_topic("all", partial(_note_removed, self._gone))
        self.look()

    @property
    def steps_at_once(self) -> int:
        """See `Workers`; the cluster balances its own workers."""
        return max(1, len(self._members or ())) * 2

    def submit(self, job: Job[T], item: T) -> _Step:
        """See `Workers`."""
        priority = -next(self._numbers)
        future = self._client.submit(_do, job.alone(item), item, self._run, pure=False, priority=priority)
        self._in_flight[future] = _Step(future, self.look)
        future.add_done_callback(self._done.put)
        return self._in_flight[future]

    def wait(self, _: Collection[Any]) -> _Step | None:
        """See `Workers`."""
        self.look()
        try:
            return self._in_flight.pop(self._done.get(timeout=POLL))
        except Empty:
            return None

    def replace_lost(self, error: WorkerLostError) -> None:
        """See `Workers`; the cluster does it."""

    def stop(self) -> None:
        """Take back what has not begun, and wait until what has is over: nobody may end workers of others."""
        with suppress(Exception):  # a scheduler that is gone hands nothing out any more
            self._client.cancel(list(self._in_flight), force=True)
            self._client.run(_stop, self._run, on_error="ignore")
        self._in_flight.clear()

    def look(self) -> None:
        """See which workers there are; tell of those that the cluster lost."""
        if time.monotonic() - self._looked < POLL:
            return
        self._looked = time.monotonic()
        try:
            threads = self._client.nthreads()
        except (OSError, AttributeError):  # told by the futures
            return
        members = set(threads)
        wide = [address for address, count in threads.items() if count > 1 and address not in self._wide]
        if wide:
            self._wide.update(wide)
            self._tell(
                f"{count_of(len(wide), 'worker')} with several threads, of which a step uses one: start "
                "more with --nthreads 1 (LocalCluster: threads_per_worker=1)"
            )
        if not members and self._members != members:
            self._tell("no worker is connected to the scheduler: waiting for 'dask worker … --nthreads 1'")
        self._members = members
        while not self._gone.empty():
            self._tell(f"worker {self._gone.get()} was lost; its steps run again on others")


class _Step:
    """The future of a step."""

    def __init__(self, future: Any, look: Callable[[], None]) -> None:
        self._future = future
        self._look = look

    def result(self) -> Outcome:
        """Return the outcome of the step; raises what it raised."""
        from concurrent.futures import CancelledError

        from distributed import KilledWorker

        while True:
            try:
                outcome: Outcome = self._future.result(timeout=POLL)
            except KilledWorker as error:
                hint = "out of memory? --memory bounds it; a damaged file? --exclude it"
                raise WorkerLostError("", hint, final=True) from error
            except CancelledError as error:
                msg = "the dask scheduler went away; what was done is kept: start it, run the same command"
                raise ConversionError(msg) from error
            except TimeoutError:
                if self._future.status == "error":
                    raise
                self._look()
            else:
                self._future.release()
                return outcome


def _note_removed(gone: SimpleQueue[str], event: tuple[float, dict[str, Any]]) -> None:
    """Note the worker that the scheduler says it removed."""
    if event[1].get("action") == "remove-worker":
        gone.put(event[1]["worker"])


def _do(job: Job[T], item: T, run: str) -> Outcome:
    """One step, one at a time in a process; what needs a foreign library runs in a process below this one."""
    with _one_at_a_time, Apart() as executor:
        if run in _stopped:
            return Outcome()
        ((_, outcome),) = executor.run(job, [item])
        return outcome


async def _stop(run: str) -> None:
    """Begin no step of a run on this worker any more; wait until the one that is at work is over."""
    _stopped.add(run)
    await asyncio.to_thread(_wait)


def _wait() -> None:
    with _one_at_a_time:
        pass


TIMEOUT = "20s"
"""How long a scheduler may take to answer."""


class Dask:
    """Run steps on the ``distributed`` workers of an existing cluster, one step at a time in each process.

    The connection is made with the first step and ends when this is left. A step of a lost worker runs again
    on another; one that the cluster gives up is reported with what it was.
    """

    def __init__(
        self,
        # address (``"tcp://host:8786"``, or ``"tls://…"`` with the certificates of dask's configuration), the
        # JSON file that ``dask scheduler --scheduler-file`` writes, or a `distributed.Client`, which is left
        # open: for certificates of its own. Its workers see the same files
        scheduler: str | Client,
        *,
        # bytes that this process and the steps at work at once may hold; None: not bounded
        memory: int | None = None,
        tell: Callable[[str], None] = NO_PROGRESS.tell,  # told, in a line, what happens to workers
    ) -> None:
        from distributed import Client

        if isinstance(scheduler, Client):
            if scheduler.asynchronous or scheduler.status != "running":
                msg = f"scheduler={scheduler!r}: expected a client that is connected, and not asynchronous"
                raise InputError(msg)
        elif not isinstance(scheduler, str) or redact_url(scheduler) != scheduler:
            shown = redact_url(scheduler) if isinstance(scheduler, str) else repr(scheduler)
            msg = f"--scheduler {shown}: expected an address alone, as in tcp://host:8786"
            raise InputError(msg)
        self._scheduler = scheduler
        self._memory = memory
        self._tell = tell
        self._stack = ExitStack()
        self._client: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client = None
        self._stack.close()

    @property
    def workers(self) -> int:
        """Workers of the cluster now; see `Executor`."""
        return len(self._connect().scheduler_info(n_workers=-1)["workers"])

    def run(self, job: Job[T], items: Iterable[T]) -> Generator[tuple[T, Outcome], None, None]:
        """Yield every item with its outcome as it is done."""
        todo = list(items)
        if not todo:
            return
        largest_need(job, todo, self._memory)
        cluster = DaskCluster(self._connect(), self._tell)
        memory = None if self._memory is None else self._memory - PROCESS
        yield from run_steps(cluster, job, todo, memory)

    def _connect(self) -> Any:
        if self._client is not None:
            return self._client
        import dask
        from distributed import Client

        with ExitStack() as stack:
            stack.enter_context(dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TB"}))
            stack.enter_context(silent())
            try:
                client = self._scheduler
                if isinstance(client, str):
                    where = {"scheduler_file" if client.endswith(".json") else "address": client}
                    client = stack.enter_context(Client(**where, timeout=TIMEOUT, set_as_default=False))
            except OSError as error:
                msg = f"{self._scheduler}: no dask scheduler answers there; start one with 'dask scheduler'"
                raise ConversionError(msg) from error
            except TypeError as error:  # it has no certificates
                msg = (
                    f"--scheduler {self._scheduler}: needs certificates: set distributed.comm.tls in dask's "
                    "configuration, or give scheduler=distributed.Client(address, security=…) from Python"
                )
                raise InputError(msg) from error
            except ValueError as error:
                msg = f"--scheduler {self._scheduler}: expected an address, as in tcp://host:8786 ({error})"
                raise InputError(msg) from error
            self._client = client
            self._stack = stack.pop_all()
        return self._client
