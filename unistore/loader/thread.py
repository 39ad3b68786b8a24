"""``num_workers=0``: a thread reads ahead while the consumer computes, or the consumer reads itself."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from unistore.errors import SampleError
from unistore.loader.fetch import Fetch, batch_error, fetch_batch
from unistore.loader.iteration import Arrival, Request
from unistore.memory import Arena, SlabRing

MIN_OVERLAP = 0.001
"""Seconds of overlap a batch from which on a thread always pays: handing a batch over takes less."""
SMOOTHING = 0.25
"""Weight of the newest batch in the moving averages of reading and of computing time."""


_Made: TypeAlias = tuple[Request, Arrival | SampleError]


class _MakerThread:
    """Makes batches in the slabs of a ring, one at a time, on whichever thread calls it."""

    def __init__(self, fetch: Fetch, dataset: Any, ring: SlabRing) -> None:
        self.fetch = fetch
        self._dataset = dataset
        self._ring = ring
        self._lock = threading.Lock()

    def make(self, request: Request) -> Arrival | SampleError:
        with self._lock:
            return self._make(request)

    def _make(self, request: Request) -> Arrival | SampleError:
        slab = self._ring.take()
        # while the consumer holds all slabs, batches get memory of their own
        copied = slab is None and self._ring.slab_size > 0
        arena = Arena(None)
        if slab is not None:
            arena = Arena(slab.segment, None, self._ring.lend(slab, [])[0])
        try:
            result = fetch_batch(self.fetch, self._dataset, request.indices, request.epoch, arena)
        except BaseException as error:
            # sys.exit in a transform: without the thread its consumer would wait for ever
            if threading.current_thread() is threading.main_thread():
                raise
            return batch_error(error, request.indices, request.epoch)
        if isinstance(result, SampleError):
            return result
        self._ring.observe(result.needed)
        room = 0 if slab is None else slab.size
        missed = result.needed > room and not copied
        return result._replace(missed=missed, copied=copied)


class ReadingThread:
    """Makes batches on a thread of this process, see `unistore.loader.iteration.Producer`.

    Slabs are private memory here, reused so that batches need no new pages.

    The thread reads while the consumer computes. Where that saves less than handing batches over and waiting
    for the GIL costs, the consumer itself reads, when it takes a batch. It also makes every batch for which a
    function of the user may draw from the global generators.
    """

    def __init__(
        self,
        # what reads the batches, and of which dataset
        fetch: Fetch,
        dataset: Any,
        ring: SlabRing,  # memory that they are read into
    ) -> None:
        self._ring = ring
        self._maker = _MakerThread(fetch, dataset, ring)
        self._reads_ahead = fetch.on_any_thread
        self._pending: deque[Request] = deque()
        self._begun: deque[Request] = deque()
        self._computing = self._making = 0.0
        self._left: float | None = None
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._made: queue.SimpleQueue[_Made] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(
            target=_make_batches,
            args=(self._maker, self._requests, self._made),
            name="unistore-loader",
            daemon=True,
        )
        self._thread.start()

    def begin(self) -> None:
        """See `Producer.begin`."""
        for abandoned in (self._requests, self._made):
            with suppress(queue.Empty):
                while True:
                    abandoned.get_nowait()
        self._pending.clear()
        self._begun.clear()
        self._left = None

    @property
    def capacity(self) -> int:
        """See `Producer.capacity`."""
        return self._ring.batches_in_flight

    def room(self) -> int:
        """See `Producer.room`."""
        return self.capacity - len(self._begun) - len(self._pending)

    def submit(self, requests: Sequence[Request]) -> int:
        """See `Producer.submit`."""
        self._pending += requests
        if self._reads_ahead:
            self._hand_over()
        return len(requests)

    def _hand_over(self) -> None:
        """Give all pending requests to the thread."""
        for request in self._pending:
            self._requests.put(request)
        self._begun += self._pending
        self._pending.clear()

    def take(self, number: int) -> Arrival:  # noqa: ARG002 - requests are taken in their order
        """See `Producer.take`."""
        if self._maker.fetch.on_any_thread and self._left is not None:
            self._computing += SMOOTHING * (time.perf_counter() - self._left - self._computing)
            self._reads_ahead = thread_helps(self._computing, self._making)
            if self._reads_ahead:
                self._hand_over()
        result = self._next()
        self._left = time.perf_counter()
        if isinstance(result, SampleError):
            raise result
        self._making += SMOOTHING * (result.seconds - self._making)
        return result

    def _next(self) -> Arrival | SampleError:
        if not self._begun:
            return self._maker.make(self._pending.popleft())
        expected = self._begun.popleft()
        while True:
            request, result = self._made.get()
            if request is expected:  # else it is of an iteration that was left
                return result

    def wait(self) -> None:
        """See `Producer.wait`: there is room as soon as all batches are taken."""

    def close(self) -> None:
        """See `Producer.close`."""
        if self._closed:
            return
        self._closed = True
        self.begin()
        self._requests.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._ring.close()

    @property
    def pids(self) -> list[int]:
        """See `Producer.pids`: a thread has none."""
        return []

    @property
    def usable(self) -> bool:
        """Whether the thread is running; it does not survive a fork."""
        return not self._closed and self._thread.is_alive()


def thread_helps(
    # seconds that the consumer computes between two batches, and seconds to make a batch
    computing: float,
    making: float,
) -> bool:
    """Return whether reading ahead on a thread pays."""
    return computing > 2 * making or min(computing, making) > MIN_OVERLAP


def _make_batches(
    maker: _MakerThread, requests: queue.SimpleQueue[Request | None], arrivals: queue.SimpleQueue[_Made]
) -> None:
    while (request := requests.get()) is not None:
        arrivals.put((request, maker.make(request)))
