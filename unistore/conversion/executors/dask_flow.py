"""The steps of one stage on their way through the workers of a dask cluster: handed out and collected."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from unistore.conversion.executors.local import Job
from unistore.conversion.job import Outcome
from unistore.errors import ConversionError

__all__ = ["Flow"]

T = TypeVar("T")

BEAT = 0.5
"""Seconds between two looks at the workers."""

_one_at_a_time = threading.Lock()
_finished: set[str] = set()
"""Names of the flows of which this worker begins no step any more."""


class Flow(Generic[T]):
    """The steps of one stage on their way through the workers.

    No more are handed out than workers can begin at once, or than there is memory for. How often a step may
    lose its worker is the cluster's own setting (``distributed.scheduler.allowed-failures``).
    """

    def __init__(self, client: Any, job: Job[T], room: int | None, tell: Callable[[str], None]) -> None:
        self._client = client
        self._job = job
        self._room = room
        self._tell = tell
        self._name = uuid.uuid4().hex
        self._loaded: Any = None
        self._flying: dict[Any, int] = {}
        self._done: SimpleQueue[Any] = SimpleQueue()
        self._members: set[str] | None = None
        self._gone: SimpleQueue[str] = SimpleQueue()
        self._looked = 0.0

    def run(self, items: list[T]) -> Generator[tuple[T, Outcome], None, None]:
        """Hand out every item; yield those that are done."""
        from distributed import KilledWorker

        self._client.subscribe_topic("all", self._hear)
        needs = [self._job.need(item) for item in items]
        left = deque(range(len(items)))
        while left or self._flying:
            self._look()
            while left and self._may_fly(needs[left[0]], needs):
                self._hand_out(left.popleft(), items)
            try:
                future = self._done.get(timeout=BEAT)
            except Empty:
                continue
            number = self._flying.pop(future)
            try:
                outcome = self._result(future)
            except KilledWorker as error:
                raise ConversionError(self._given_up(items[number])) from error
            future.release()
            yield items[number], outcome
        self._loaded = None

    def abandon(self) -> None:
        """Take back what has not begun, and wait until what has is over: nobody may end workers of others."""
        with suppress(Exception):  # a scheduler that is gone hands nothing out any more
            self._client.cancel(list(self._flying), force=True)
            self._client.run(_finish, self._name, on_error="ignore")
        self._flying.clear()
        self._loaded = None

    def _may_fly(self, need: int, needs: list[int]) -> bool:
        if not self._flying:
            return True
        if len(self._flying) >= max(1, len(self._members or ())) * 2:
            return False
        held = sum(needs[number] for number in self._flying.values())
        return self._room is None or held + need <= self._room

    def _hand_out(self, number: int, items: list[T]) -> None:
        if self._loaded is None or self._loaded.status == "error":
            self._loaded = self._client.submit(_same, self._job, pure=False)
        step = items[number], self._name
        future = self._client.submit(_step, self._loaded, *step, pure=False, priority=-number)
        self._flying[future] = number
        future.add_done_callback(self._done.put)

    def _result(self, future: Any) -> Outcome:
        from concurrent.futures import CancelledError

        while True:
            try:
                outcome: Outcome = future.result(timeout=BEAT)
            except CancelledError as error:
                msg = "the dask scheduler went away; what was done is kept: start it, run the same command"
                raise ConversionError(msg) from error
            except TimeoutError:
                if future.status == "error":
                    raise
                self._look()
            else:
                return outcome

    def _given_up(self, item: T) -> str:
        return (
            f"{self._job.describe(item)}: its worker died again and again (out of memory? --memory bounds "
            "it; a damaged file? --exclude it); what was done is kept: the same command continues"
        )

    def _look(self) -> None:
        """Tell of workers that the cluster lost."""
        if time.monotonic() - self._looked < BEAT:
            return
        self._looked = time.monotonic()
        try:
            members = set(self._client.nthreads())
        except (OSError, AttributeError):  # told by the futures
            return
        if not members and self._members != members:
            self._tell("no worker is connected to the scheduler: waiting for 'dask worker … --nthreads 1'")
        self._members = members
        while not self._gone.empty():
            self._tell(f"worker {self._gone.get()} was lost; its steps run again on others")

    def _hear(self, event: tuple[float, dict[str, Any]]) -> None:
        """What the scheduler says of its workers."""
        if event[1].get("action") == "remove-worker":
            self._gone.put(event[1]["worker"])


def _same(job: T) -> T:
    """The job, as a result that every step of a worker shares."""
    return job


def _step(job: Job[T], item: T, flow: str) -> Outcome:
    """One step; alone in its process, since threads must not share an HDF5 file."""
    with _one_at_a_time:
        return Outcome() if flow in _finished else job(item)


async def _finish(flow: str) -> None:
    """Begin no step of a flow on this worker any more; wait until the one that is at work is over."""
    _finished.add(flow)
    await asyncio.to_thread(_wait)


def _wait() -> None:
    with _one_at_a_time:
        pass
