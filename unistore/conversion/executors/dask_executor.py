"""Steps on an existing dask cluster: ``--scheduler``."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Self, TypeVar

from unistore.conversion.executors.local import Job, Outcome, Steps, is_stopped
from unistore.conversion.executors.processes import Processes, step_given_up
from unistore.conversion.memory import PROCESS
from unistore.errors import ConversionError, InputError
from unistore.remote.url import redact_url
from unistore.system.extras import require
from unistore.system.progress import COUNTS, NO_PROGRESS
from unistore.system.sizes import count_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from distributed import Client

T = TypeVar("T")

POLL = 0.5  # Seconds between two looks at the workers
TELL_AGAIN = 30.0  # Seconds between two lines on what is waited for
TIMEOUT = "20s"  # How long a scheduler may take to answer

_one_at_a_time = threading.Lock()
# Names of the runs of which this worker begins no step any more
_stopped: set[str] = set()


class Dask:
    """Run steps on the ``distributed`` workers of an existing cluster, one step at a time in each process.

    A step of a lost worker runs again as often as ``distributed.scheduler.allowed-failures`` says. A
    worker gets no more steps than it can begin at once, and as many again, the largest first.
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
        wait: float
        | None = None,  # seconds without a worker or an answer after which to give up; None: never
        tell: Callable[[str], None] = NO_PROGRESS.tell,  # told, in a line, what workers lack
    ) -> None:
        require("distributed", "a dask cluster needs", "cluster")
        from distributed import Client

        if isinstance(scheduler, Client):
            if scheduler.asynchronous or scheduler.status != "running":
                message = f"must be a client that is connected and not asynchronous, got {scheduler!r}"
                raise InputError.at("scheduler", message, "give distributed.Client(ADDRESS)", "option")
        elif not isinstance(scheduler, str) or redact_url(scheduler) != scheduler:
            shown = redact_url(scheduler) if isinstance(scheduler, str) else repr(scheduler)
            message = "is not a plain address"
            option = f"--scheduler {shown}"
            raise InputError.at(option, message, "give for example tcp://host:8786", "option")
        self._scheduler = scheduler
        self._memory = memory
        self._wait = wait
        self._tell = tell
        self._waits_since: float | None = None
        self._next_told = 0.0
        self._stack = ExitStack()
        self._client: Any = None
        self._told: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client = None
        self._stack.close()

    @property
    def workers(self) -> int:
        """Return the workers of the cluster now."""
        return len(self._connect().nthreads())

    def run(self, job: Job[T], items: Iterable[T]) -> Steps[T]:
        """Yield every item with its outcome as it is done. A step that fails stops the others."""
        waiting = deque(sorted(items, key=job.need, reverse=True))
        if not waiting:
            return
        client = self._connect()
        run = uuid.uuid4().hex
        done: SimpleQueue[Any] = SimpleQueue()
        in_flight: dict[Any, T] = {}
        room = float("inf") if self._memory is None else self._memory - PROCESS
        most = 0

        def fits(item: T) -> bool:
            held = sum(map(job.need, in_flight.values()))
            return not in_flight or (len(in_flight) < most and held + job.need(item) <= room)

        try:
            while waiting or in_flight:
                if is_stopped(job):
                    waiting.clear()
                    if not in_flight:
                        return
                most = 2 * self._look(client) or most
                while waiting and fits(waiting[0]):
                    item = waiting.popleft()
                    future = client.submit(_do, job.alone(item), item, run, pure=False, priority=len(waiting))
                    in_flight[future] = item
                    future.add_done_callback(done.put)
                with suppress(Empty):
                    future = done.get(timeout=POLL)
                    item = in_flight.pop(future)
                    yield item, _outcome_of(future, job, item)
        except BaseException:
            if in_flight or waiting:
                _stop_steps(client, list(in_flight), run)
            raise

    def _look(self, client: Any) -> int:
        if client.status != "running":  # its futures fail if it does not come back
            self._tell_waiting("the scheduler does not answer; check that it is running")
            return 0
        try:
            threads = client.nthreads()
        except (OSError, AttributeError):  # told by the futures
            return 0
        wide = sum(count > 1 for count in threads.values())
        if wide:
            self._tell_once(
                f"{count_of(wide, 'worker')} with several threads, but a task uses only one: start more "
                "workers with --nthreads 1, or LocalCluster(threads_per_worker=1)"
            )
        if threads:
            self._waits_since = None
        else:
            self._tell_waiting(
                "no worker is connected to the scheduler; start one with 'dask worker … --nthreads 1'"
            )
        return len(threads)

    def _tell_waiting(self, why: str) -> None:
        now = time.monotonic()
        if self._waits_since is None:
            self._waits_since = now
            self._next_told = now
        if self._wait is not None and now - self._waits_since > self._wait:
            kept = "all finished work is kept. Fix: run the same command to continue"
            msg = f"{why}. The conversion gave up after --wait {self._wait:g}; {kept}"
            raise ConversionError(msg)
        if now >= self._next_told:
            self._next_told = now + TELL_AGAIN
            self._tell(f"waiting: {why}")

    def _tell_once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._tell(line)

    def _connect(self) -> Any:
        if self._client is not None:
            return self._client
        import dask
        from distributed import Client

        with ExitStack() as stack:
            stack.enter_context(dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TB"}))
            stack.enter_context(_silent())
            try:
                client = self._scheduler
                if isinstance(client, str):
                    where = {"scheduler_file" if client.endswith(".json") else "address": client}
                    client = stack.enter_context(Client(**where, timeout=TIMEOUT, set_as_default=False))
            except OSError as error:
                msg = f"{self._scheduler}: no dask scheduler answers. Fix: start one with 'dask scheduler'"
                raise ConversionError(msg) from error
            except TypeError as error:  # it has no certificates
                fix = (
                    "set distributed.comm.tls in the configuration of dask, or pass "
                    "scheduler=distributed.Client(address, security=…) in Python"
                )
                option = f"--scheduler {self._scheduler}"
                raise InputError.at(option, "the scheduler needs certificates", fix, "option") from error
            except ValueError as error:
                message = f"is not an address: {error}"
                option = f"--scheduler {self._scheduler}"
                raise InputError.at(option, message, "give for example tcp://host:8786", "option") from error
            self._client = client
            self._stack = stack.pop_all()
        return self._client


def _outcome_of(future: Any, job: Job[T], item: T) -> Outcome:
    from concurrent.futures import CancelledError

    from distributed import KilledWorker

    try:
        outcome: Outcome = future.result()
    except KilledWorker as error:
        hint = "if memory ran out, add --memory; if a file is damaged, --exclude it"
        raise step_given_up(job, item, "again and again", "", hint) from error
    except CancelledError as error:
        msg = (
            "the dask scheduler stopped; all finished work is kept. "
            "Fix: start it again, and run the same command"
        )
        raise ConversionError(msg) from error
    future.release()
    COUNTS.update(outcome.counts)
    return outcome


def _stop_steps(client: Any, futures: list[Any], run: str) -> None:
    # Nobody may end the workers of others: what has begun is waited for
    with suppress(Exception):  # a scheduler that is gone hands nothing out any more
        client.cancel(futures, force=True)
        client.run(_stop, run, on_error="ignore")


def _do(job: Job[T], item: T, run: str) -> Outcome:
    # One at a time in a process: what needs a foreign library runs in a process below this one
    with _one_at_a_time, Processes() as executor:
        if run in _stopped:
            return Outcome()
        counts = COUNTS.copy()
        ((_, outcome),) = executor.run(job, [item])
        return replace(outcome, counts=COUNTS - counts, told=0)  # nobody listens on the worker of a cluster


async def _stop(run: str) -> None:
    _stopped.add(run)
    await asyncio.to_thread(_wait)


def _wait() -> None:
    with _one_at_a_time:
        pass


@contextmanager
def _silent() -> Iterator[None]:
    # What matters of the logs of dask and its event loop is told in our words
    names = ("distributed", "tornado", "asyncio")
    # several of dask's loggers have a level and a handler of their own
    below = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] in names]
    loggers = [logging.getLogger(name) for name in (*names, *below)]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
