"""The workers of a dask cluster: steps handed to its scheduler, which runs those of lost workers again."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from unistore.conversion.executors.apart import Apart
from unistore.conversion.executors.local import Job, Outcome, SentItem, SentJob, sent_item, sent_job
from unistore.conversion.executors.worker_process import WorkerLostError
from unistore.errors import ConversionError
from unistore.system.sizes import count_of

T = TypeVar("T")

POLL = 0.5
"""Seconds between two looks at the workers."""

_one_at_a_time = threading.Lock()
_stopped: set[str] = set()
"""Names of the runs of which this worker begins no step any more."""


class DaskCluster:
    """The workers of a cluster, for the steps of one job.

    They get no more steps than they can begin at once, and as many again. How often a step may lose its
    worker is the cluster's own setting (``distributed.scheduler.allowed-failures``).

    Parameters
    ----------
    client
        Connected to the scheduler (`distributed.Client`).
    tell
        Told, in a line, of workers that are lost or missing.
    """

    def __init__(self, client: Any, tell: Callable[[str], None]) -> None:
        self._client = client
        self._tell = tell
        self._run = uuid.uuid4().hex
        self._sent_job: Any = None
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
        if self._sent_job is None or self._sent_job.status == "error":
            self._sent_job = self._client.submit(_same, sent_job(job), pure=False)
        future = self._client.submit(
            _do,
            self._sent_job,
            sent_item(job, item),
            self._run,
            pure=False,
            priority=-next(self._numbers),
        )
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
        self._sent_job = None

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
        self._future, self._look = future, look

    def result(self) -> Outcome:
        """Outcome of the step; raises what it raised."""
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


def _same(job: Any) -> Any:
    """The job, as a result that every step of a worker shares."""
    return job


def _do(job: SentJob, item: SentItem, run: str) -> Outcome:
    """One step, one at a time in a process; what needs a foreign library runs in a process below this one."""
    with _one_at_a_time, Apart() as executor:
        if run in _stopped:
            return Outcome()
        ((_, outcome),) = executor.run(_SentStep(job), [item])
        return outcome


@dataclass(frozen=True, slots=True)
class _SentStep:
    """A sent job as a `Job` of its sent items."""

    job: SentJob

    def __call__(self, item: SentItem) -> Outcome:
        return self.job.do(item)

    def describe(self, item: SentItem) -> str:
        return self.job.whole(item).describe(item.item)

    def need(self, item: SentItem) -> int:  # noqa: ARG002  the sender has admitted it
        return 0


async def _stop(run: str) -> None:
    """Begin no step of a run on this worker any more; wait until the one that is at work is over."""
    _stopped.add(run)
    await asyncio.to_thread(_wait)


def _wait() -> None:
    with _one_at_a_time:
        pass
