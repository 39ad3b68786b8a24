"""``num_workers=0``: a thread reads ahead while the consumer computes, or the consumer reads itself."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from unistore.errors import SampleError
from unistore.loader.fetch import Fetch, batch_error, sample_error
from unistore.loader.production import Arrival, Request
from unistore.memory.segments import Arena, Segment
from unistore.memory.slabs import SlabRing

MIN_OVERLAP = 0.001
"""Seconds of overlap a batch from which on a thread always pays: handing a batch over takes less."""
SMOOTHING = 0.25
"""Weight of the newest batch in the moving averages of reading and of computing time."""


class _Job(NamedTuple):
    generation: int
    request: Request


class _SlabLease(NamedTuple):
    slab: Segment
    lease: Any


class _Done(NamedTuple):
    generation: int
    number: int
    room: int = 0
    batch: Any = None
    error: SampleError | None = None
    needed: int = 0
    seconds: float = 0.0
    hits: int = 0
    misses: int = 0


class ReadingThread:
    """Makes batches on a thread of this process, see `unistore.loader.production.Producer`.

    Slabs are private memory here, reused so that batches need no new pages. While the consumer holds as many
    slabs as the ring can spare, batches get memory of their own.

    The thread reads while the consumer computes. Where that saves less than handing batches over and waiting
    for the GIL costs, the consumer itself reads, when it takes a batch. It also makes every batch for which a
    function of the user may draw from the global generators.

    Parameters
    ----------
    fetch, dataset
        What reads the batches, and of which dataset.
    ring
        Memory that they are read into.
    """

    def __init__(self, fetch: Fetch, dataset: Any, ring: SlabRing) -> None:
        self._ring = ring
        self._fetch, self._dataset = fetch, dataset
        self._generation = [0]
        self._pending: deque[_Job] = deque()
        self._under_way = 0
        self._ahead = fetch.on_any_thread
        self._away = self._making = 0.0
        self._left: float | None = None
        self._ready: dict[int, tuple[_Done, bool]] = {}
        self._leases: list[_SlabLease] = []
        self._lent = 0
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[_Done] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(
            target=_read,
            args=(fetch, dataset, self._jobs, self._leases, self._done, self._generation),
            name="unistore-loader",
            daemon=True,
        )
        self._thread.start()

    def begin(self) -> None:
        """See `Producer.begin`."""
        self._generation[0] += 1
        self._ready.clear()
        self._pending.clear()
        self._left = None

    @property
    def capacity(self) -> int:
        """See `Producer.capacity`."""
        return self._ring.batches_in_flight

    def room(self) -> int:
        """See `Producer.room`."""
        return self.capacity - self._under_way - len(self._ready) - len(self._pending)

    def submit(self, requests: Sequence[Request]) -> int:
        """See `Producer.submit`."""
        self._pending += [_Job(self._generation[0], request) for request in requests]
        if self._ahead:
            self._begin(len(self._pending))
        return len(requests)

    def _begin(self, count: int) -> None:
        """Give the next pending batches to the thread, or make them here if it does not read ahead."""
        self._under_way += count
        leases = []
        while self._lent < self._under_way and (slab := self._ring.take()) is not None:
            leases.append(_SlabLease(slab.segment, self._ring.lend(slab, [])[0]))
            self._lent += 1
        self._leases += reversed(leases)
        for _ in range(count):
            job = self._pending.popleft()
            if self._ahead:
                self._jobs.put(job)
            else:
                self._done.put(_make(self._fetch, self._dataset, job, self._leases))

    def take(self, number: int) -> Arrival:
        """See `Producer.take`."""
        if self._fetch.on_any_thread and self._left is not None:
            self._away += SMOOTHING * (time.perf_counter() - self._left - self._away)
            self._ahead = thread_helps(self._away, self._making)
            if self._ahead:
                self._begin(len(self._pending))
        while number not in self._ready:
            if not self._under_way:
                self._begin(1)
            self.wait()
        done, all_held = self._ready.pop(number)
        self._making += SMOOTHING * (done.seconds - self._making)
        self._left = time.perf_counter()
        if done.error is not None:
            raise done.error
        missed = done.needed > done.room and not all_held
        return Arrival(done.batch, done.needed, done.seconds, missed, all_held, done.hits, done.misses)

    def wait(self) -> None:
        """See `Producer.wait`."""
        done = self._done.get()
        self._under_way -= 1
        self._lent -= done.room > 0
        if done.generation == self._generation[0]:
            self._ready[done.number] = done, not done.room and self._ring.slab_size > 0
            if done.error is None:
                self._ring.observe(done.needed)

    def close(self) -> None:
        """See `Producer.close`."""
        if self._closed:
            return
        self._closed = True
        self._generation[0] += 1
        self._jobs.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._ready.clear()
        self._pending.clear()
        self._leases.clear()
        self._ring.close()

    @property
    def pids(self) -> list[int]:
        """See `Producer.pids`: a thread has none."""
        return []

    @property
    def usable(self) -> bool:
        """Whether the thread is running; it does not survive a fork."""
        return not self._closed and self._thread.is_alive()


def thread_helps(away: float, making: float) -> bool:
    """Whether reading ahead on a thread pays.

    Parameters
    ----------
    away, making
        Seconds that the consumer computes between two batches, and seconds to make a batch.
    """
    return away > 2 * making or min(away, making) > MIN_OVERLAP


def _read(
    fetch: Fetch,
    dataset: Any,
    jobs: queue.SimpleQueue[_Job | None],
    leases: list[_SlabLease],
    done: queue.SimpleQueue[_Done],
    generation: list[int],
) -> None:
    while True:
        job = jobs.get()
        if job is None:
            return
        if job.generation == generation[0]:
            done.put(_make(fetch, dataset, job, leases))
        else:
            done.put(_Done(job.generation, job.request.number))


def _make(fetch: Fetch, dataset: Any, job: _Job, leases: list[_SlabLease]) -> _Done:
    """Make a batch in the slab that was lent last, which may still be in the processor's caches."""
    request = job.request
    started = time.perf_counter()
    slab, lease = leases.pop() if leases else (None, None)
    room = 0 if slab is None else slab.size
    arena = Arena(slab, None, lease)
    indices = request.indices
    hits, misses = fetch.hits, fetch.misses
    try:
        batch = fetch(indices, request.epoch, arena.allocate)
    except Exception as error:  # noqa: BLE001 - a dataset may raise anything; the consumer raises it
        failed = sample_error(error, fetch, dataset, indices, request.epoch)
        return _Done(job.generation, request.number, room, error=failed)
    except BaseException as error:  # sys.exit in a transform: without the thread its consumer waits for ever
        if threading.current_thread() is threading.main_thread():
            raise
        failed = batch_error(error, indices, request.epoch)
        return _Done(job.generation, request.number, room, error=failed)
    spent = time.perf_counter() - started
    hits, misses = fetch.hits - hits, fetch.misses - misses
    return _Done(job.generation, request.number, room, batch, None, arena.needed, spent, hits, misses)
