"""The workers of a dask cluster: steps handed to its scheduler, which runs those of lost workers again."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from unistore.conversion.executors.flow import Done, Lost, Step
from unistore.conversion.executors.local import Job, do_sent, sent_item, sent_job
from unistore.conversion.job import Outcome
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

    def __init__(self, client: Any, job: Job[Any], tell: Callable[[str], None]) -> None:
        self._client = client
        self._job = job
        self._tell = tell
        self._run = uuid.uuid4().hex
        self._sent_job: Any = None
        self._numbers = count()
        self._steps: dict[Any, Step[Any]] = {}
        self._ready: SimpleQueue[Any] = SimpleQueue()
        self._members: set[str] | None = None
        self._wide: set[str] = set()
        self._gone: SimpleQueue[str] = SimpleQueue()
        self._looked = 0.0
        client.subscribe_topic("all", partial(_note_removed, self._gone))
        self._look()

    def ready(self, waiting: int) -> bool:  # noqa: ARG002  the cluster balances its own workers
        """See `Workers.ready`."""
        return len(self._steps) < max(1, len(self._members or ())) * 2

    def hand_out(self, step: Step[Any]) -> None:
        """See `Workers.hand_out`."""
        if self._sent_job is None or self._sent_job.status == "error":
            self._sent_job = self._client.submit(_same, sent_job(self._job), pure=False)
        future = self._client.submit(
            _do,
            self._sent_job,
            sent_item(self._job, step.item),
            self._run,
            pure=False,
            priority=-next(self._numbers),
        )
        self._steps[future] = step
        future.add_done_callback(self._ready.put)

    def next(self) -> Done | Lost | None:
        """See `Workers.next`."""
        from distributed import KilledWorker

        self._look()
        try:
            future = self._ready.get(timeout=POLL)
        except Empty:
            return None
        step = self._steps.pop(future)
        try:
            outcome = self._outcome(future)
        except KilledWorker:
            hint = "out of memory? --memory bounds it; a damaged file? --exclude it"
            return Lost([step], step, hint, given_up=True)
        future.release()
        return Done(step, outcome)

    def stop(self) -> None:
        """Take back what has not begun, and wait until what has is over: nobody may end workers of others."""
        with suppress(Exception):  # a scheduler that is gone hands nothing out any more
            self._client.cancel(list(self._steps), force=True)
            self._client.run(_stop, self._run, on_error="ignore")
        self._steps.clear()
        self._sent_job = None

    def _outcome(self, future: Any) -> Outcome:
        from concurrent.futures import CancelledError

        while True:
            try:
                outcome: Outcome = future.result(timeout=POLL)
            except CancelledError as error:
                msg = "the dask scheduler went away; what was done is kept: start it, run the same command"
                raise ConversionError(msg) from error
            except TimeoutError:
                if future.status == "error":
                    raise
                self._look()
            else:
                return outcome

    def _look(self) -> None:
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


def _note_removed(gone: SimpleQueue[str], event: tuple[float, dict[str, Any]]) -> None:
    """Note the worker that the scheduler says it removed."""
    if event[1].get("action") == "remove-worker":
        gone.put(event[1]["worker"])


def _same(job: Any) -> Any:
    """The job, as a result that every step of a worker shares."""
    return job


def _do(job: Any, sent: tuple[Any, dict[str, Any]], run: str) -> Outcome:
    """One step; alone in its process, since threads must not share an HDF5 file."""
    with _one_at_a_time:
        return Outcome() if run in _stopped else do_sent(job, sent)


async def _stop(run: str) -> None:
    """Begin no step of a run on this worker any more; wait until the one that is at work is over."""
    _stopped.add(run)
    await asyncio.to_thread(_wait)


def _wait() -> None:
    with _one_at_a_time:
        pass
