"""The pool of worker processes: starts them, sends tasks, receives batches, notices deaths."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import select
import signal
import time
import warnings
from collections import deque
from collections.abc import Sequence
from multiprocessing.context import BaseContext
from typing import Any, NoReturn

import numpy as np

from unistore.errors import LoaderError, WorkerDiedError, first_few
from unistore.loader.fetch import Failure, raise_failure
from unistore.loader.iteration import Arrival, BatchConfig, Request
from unistore.loader.wire import Message, decode, encode, open_channel
from unistore.loader.worker import SlabLease, Task, TaskResult, main
from unistore.memory.segments import Arena, Segment, SharedGrowth
from unistore.memory.slabs import Slab, SlabRing

# The parent's side of a worker process: its start, its configuration, its exit.


class LoaderWorker:
    """A worker process, its channel, and the tasks and slabs that it has.

    Attributes
    ----------
    sent
        Tasks that are not answered yet: their generation, and the request.
    lent
        Slabs by number.
    queued
        Bytes of indices in `sent`.
    """

    def __init__(self, number: int, context: BaseContext, inherited: BatchConfig | None) -> None:
        self.number = number
        self.channel, theirs = open_channel()
        self.sent: deque[tuple[int, Request]] = deque()
        self.lent: dict[int, Slab] = {}
        self.queued = 0
        self._mapped: set[int] = set()
        process: Any = context.Process(  # type: ignore[attr-defined]
            target=main, args=(number, theirs, inherited), name=f"unistore-loader-{number}", daemon=True
        )
        self.process = process
        try:
            with warnings.catch_warnings():
                # Python 3.12 warns of forking while other threads run; workers touch nothing that these hold
                warnings.filterwarnings("ignore", message=".*use of fork", category=DeprecationWarning)
                process.start()
        except BaseException:
            self.channel.close()
            raise
        finally:
            theirs.close()

    def lend(self, slab: Slab) -> list[int]:
        """Note that the worker has a slab; return its descriptor, unless the worker has mapped it."""
        self.lent[slab.number] = slab
        if slab.number in self._mapped or slab.descriptor is None:
            return []
        self._mapped.add(slab.number)
        return [slab.descriptor]

    def queue(self, generation: int, request: Request) -> None:
        """Note a task that is sent."""
        self.sent.append((generation, request))
        self.queued += request.indices.nbytes

    def dequeue(self) -> tuple[int, Request]:
        """Return the task that is answered."""
        generation, request = self.sent.popleft()
        self.queued -= request.indices.nbytes
        return generation, request


def encode_config(config: BatchConfig, growth: SharedGrowth) -> Message | None:
    """Pickle a BatchConfig into shared memory, once for all workers; None if it cannot be pickled so.

    multiprocessing would copy them through a pipe to each worker, and wait for ever where a large dataset is
    sent to a worker that has already died. Only what may be sent in no other way (locks, queues, sockets)
    goes there.
    """
    try:
        return encode(config, Arena(None, growth))
    except RuntimeError:
        growth.close()
        return None
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        msg = (
            "dataset, collate_fn or worker_init_fn cannot be sent to a worker that is not forked: "
            f"{error}; define functions and classes at the top of a module"
        )
        raise LoaderError(msg) from error


def describe_exit(code: int | None) -> str:
    """Return how a worker ended, from its exit code, with a cure."""
    if code is None:
        return "closed its socket and does not answer"
    if code < 0:
        name = f"signal {-code}"
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
        cure = "lower num_workers, prefetch_factor or batch_size"
        hint = f" (out of memory? {cure})" if name == "SIGKILL" else ""
        return f"was killed by {name}{hint}"
    return (
        f"ended by itself with exit code {code}; what it printed says why "
        "(under spawn and forkserver the dataset must be importable from the module that defines it)"
    )


QUEUED_BYTES = 64 * 1024
"""Bytes of tasks that may wait in a worker's socket, so that sending never blocks."""
EXIT_TIMEOUT = 2.0
"""Seconds that workers have to exit after `close`; then they are killed."""


class WorkerPool:
    """Makes batches in worker processes, see `unistore.loader.iteration.Producer`."""

    def __init__(
        self,
        config: BatchConfig,  # configuration of the workers
        start_method: str,  # ``"fork"``, ``"forkserver"`` or ``"spawn"``
        ring: SlabRing,  # memory that batches are decoded into
        *,
        # whether workers get batches in turn, which keeps the lanes of a block shuffle apart. Else the worker
        # with the fewest tasks gets the next batch; while the first worker alone keeps ahead of the consumer,
        # it gets all of them, as further processes would compete with it for processor and caches
        round_robin: bool = False,
    ) -> None:
        self._owner = os.getpid()
        self._ring = ring
        self._round_robin = round_robin
        self._closed = False
        self._generation = 0
        self._ready: dict[int, tuple[Arrival | Failure, Slab | None, list[Segment]]] = {}
        self._workers: list[LoaderWorker] = []
        try:
            self._start(config, multiprocessing.get_context(start_method))
        except BaseException:
            self.close()
            raise
        self._waiting: dict[int, LoaderWorker] = {}
        self._poll = select.poll()
        for worker in self._workers:
            for descriptor in (worker.channel.fileno(), worker.process.sentinel):
                self._waiting[descriptor] = worker
                self._poll.register(descriptor, select.POLLIN)

    def _start(self, config: BatchConfig, context: BaseContext) -> None:
        growth = SharedGrowth()
        message = None if context.get_start_method() == "fork" else encode_config(config, growth)
        inherited = config if message is None else None
        cache = [] if config.cache is None else [config.cache.descriptor]
        try:
            for number in range(config.workers):
                worker = LoaderWorker(number, context, inherited)
                self._workers.append(worker)
                worker.channel.send((message, growth.sizes, len(cache)), cache + growth.descriptors)
        finally:
            growth.close()

    def begin(self) -> None:
        """See `Producer.begin`."""
        self._generation += 1
        for _, slab, _ in self._ready.values():
            if slab is not None:
                self._ring.put(slab)
        self._ready.clear()
        for worker in self._workers:
            if worker.sent:  # tasks of the last iteration, which are answered without work from now on
                self._send(worker, [], [], [])

    @property
    def capacity(self) -> int:
        """See `Producer.capacity`."""
        return self._ring.batches_in_flight

    def room(self) -> int:
        """See `Producer.room`."""
        return self.capacity - len(self._ready) - sum(len(worker.sent) for worker in self._workers)

    def submit(self, requests: Sequence[Request]) -> int:
        """See `Producer.submit`."""
        outgoing: dict[LoaderWorker, tuple[list[SlabLease], list[Task], list[int]]] = {}
        accepted = 0
        first_only = not self._round_robin and self._first_suffices()
        for request in requests:
            worker = self._workers[0] if first_only else self._next_worker(request.number)
            if worker.sent and worker.queued + request.indices.nbytes > QUEUED_BYTES:
                break
            leases, tasks, descriptors = outgoing.setdefault(worker, ([], [], []))
            slab = self._ring.take() if len(worker.lent) <= len(worker.sent) else None
            if slab is not None:
                leases.append(SlabLease(slab.number, slab.size))
                descriptors += worker.lend(slab)
            indices = np.ascontiguousarray(request.indices, np.int64).tobytes()
            tasks.append(Task(self._generation, request.epoch, indices))
            worker.queue(self._generation, request)
            accepted += 1
        for worker, (leases, tasks, descriptors) in outgoing.items():
            self._send(worker, leases, tasks, descriptors)
        return accepted

    def _send(
        self, worker: LoaderWorker, leases: list[SlabLease], tasks: list[Task], descriptors: list[int]
    ) -> None:
        try:
            worker.channel.send((self._generation, leases, tasks), descriptors)
        except OSError:
            self._raise_worker_died(worker)

    def _next_worker(self, number: int) -> LoaderWorker:
        if self._round_robin:
            return self._workers[number % len(self._workers)]
        return min(self._workers, key=lambda worker: len(worker.sent))

    def _first_suffices(self) -> bool:
        """Return whether all requested batches are made, and at least half of the capacity is ready."""
        if len(self._workers) == 1:
            return True
        for worker in self._workers:
            if worker.sent:
                self._receive(worker)
        return 2 * len(self._ready) >= self.capacity and not any(worker.sent for worker in self._workers)

    def take(self, number: int) -> Arrival:
        """See `Producer.take`."""
        while number not in self._ready:
            self.wait()
        arrival, slab, extra = self._ready.pop(number)
        if slab is not None and (isinstance(arrival, Failure) or arrival.needed == 0):
            self._ring.put(slab)
            slab = None
        if isinstance(arrival, Failure):
            raise_failure(arrival)
        copied = not self._ring.can_lend()
        if not copied:
            batch = decode(arrival.batch, self._ring.lend(slab, extra))
        else:
            buffers: list[Any] = [b"" if slab is None else slab.segment.map]
            buffers += [segment.map for segment in extra]
            batch = decode(arrival.batch, buffers, copy=True)
            if slab is not None:
                self._ring.put(slab)
        return arrival._replace(batch=batch, missed=bool(extra), copied=copied)

    def wait(self) -> None:
        """See `Producer.wait`."""
        woke = {descriptor: self._waiting[descriptor] for descriptor, _ in self._poll.poll()}
        if sum(self._receive(worker) for worker in dict.fromkeys(woke.values())):
            return
        for descriptor, worker in woke.items():
            if descriptor == worker.process.sentinel:
                self._raise_worker_died(worker)

    def _receive(self, worker: LoaderWorker) -> bool:
        """Receive the answers that a worker has sent; return whether there were any."""
        try:
            messages = worker.channel.receive(wait=False)
        except EOFError:
            self._raise_worker_died(worker)
        for message, descriptors in messages:
            self._accept(worker, message, descriptors)
        return bool(messages)

    def _accept(self, worker: LoaderWorker, answer: TaskResult, descriptors: list[int]) -> None:
        slab = worker.lent.pop(answer.slab, None)
        generation, request = worker.dequeue()
        try:
            shared = zip(descriptors, answer.sizes, strict=True)
            extra = [Segment.shared(descriptor, size) for descriptor, size in shared]
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if generation != self._generation or answer.result is None:
            if slab is not None:
                self._ring.put(slab)
            return
        if not isinstance(answer.result, Failure):
            self._ring.observe(answer.result.needed)
        self._ready[request.number] = answer.result, slab, extra

    def _raise_worker_died(self, worker: LoaderWorker) -> NoReturn:
        """Close the pool and raise how a worker ended."""
        worker.process.join(EXIT_TIMEOUT)
        code = worker.process.exitcode
        message = f"worker {worker.number} (pid {worker.process.pid}) {describe_exit(code)}"
        if worker.sent:
            _, request = worker.sent[0]
            samples = first_few([*map(str, request.indices)], 8)
            message += f"; it was reading samples {samples} of epoch {request.epoch}"
        self.close()
        raise WorkerDiedError(message)

    def close(self) -> None:
        """See `Producer.close`."""
        if self._closed or os.getpid() != self._owner:
            return
        self._closed = True
        for worker in self._workers:
            worker.channel.close()
        deadline = time.monotonic() + EXIT_TIMEOUT
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.exitcode is None:
                worker.process.kill()
                worker.process.join()
            worker.process.close()
        self._ready.clear()
        self._ring.close()

    @property
    def usable(self) -> bool:
        """Whether the pool is open, and belongs to this process."""
        return not self._closed and os.getpid() == self._owner

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [] if self._closed else [worker.process.pid for worker in self._workers]
