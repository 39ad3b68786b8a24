"""The pool of worker processes: starts them, sends tasks, receives batches, notices deaths."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import select
import time
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from unistore.errors import WorkerDiedError, first_few
from unistore.loader.failures import Failure, raise_failure
from unistore.loader.production import Arrival, Request
from unistore.loader.wire import Message, decode
from unistore.loader.worker import Answer, SlabLease, Task, WorkerConfig
from unistore.loader.worker_process import WorkerProcess, describe_exit, encode_config
from unistore.memory.segments import Segment, SharedGrowth, open_shared_memory
from unistore.memory.slabs import Slab, SlabRing

QUEUED_BYTES = 64 * 1024
"""Bytes of tasks that may wait in a worker's socket, so that sending never blocks."""
EXIT_TIMEOUT = 2.0
"""Seconds that workers have to exit after `close`; then they are killed."""


class WorkerPool:
    """Makes batches in worker processes, see `unistore.loader.production.Producer`.

    Parameters
    ----------
    config
        Configuration of the workers.
    start_method
        ``"fork"``, ``"forkserver"`` or ``"spawn"``.
    ring
        Memory that batches are decoded into.
    round_robin
        Whether workers get batches in turn, which keeps the lanes of a block shuffle apart. Else the worker
        with the fewest tasks gets the next batch; while the first worker alone keeps ahead of the consumer,
        it gets all of them, as further processes would compete with it for processor and caches.
    """

    def __init__(
        self, config: WorkerConfig, start_method: str, ring: SlabRing, *, round_robin: bool = False
    ) -> None:
        self._owner = os.getpid()
        self._ring = ring
        self._round_robin = round_robin
        self._closed = False
        self._generation = 0
        self._ready: dict[int, tuple[Answer, Slab | None, list[Segment]]] = {}
        self._workers: list[WorkerProcess] = []
        descriptors = [open_shared_memory(mmap.PAGESIZE)]
        try:
            self._control = np.frombuffer(mmap.mmap(descriptors[0], mmap.PAGESIZE), np.int64)
            context = multiprocessing.get_context(start_method)
            if config.cache is not None:
                descriptors.append(config.cache.create())
            message: Message | None = None
            growth = SharedGrowth()
            if start_method != "fork":
                message = encode_config(config, growth)
                descriptors += growth.descriptors
            for number in range(config.workers):
                self._workers.append(WorkerProcess(number, context, config if message is None else None))
                self._workers[-1].channel.send((config.cache is not None, message, growth.sizes), descriptors)
        except BaseException:
            self.close()
            raise
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._waiting: dict[int, WorkerProcess] = {}
        self._poll = select.poll()
        for worker in self._workers:
            for descriptor in (worker.channel.fileno(), worker.process.sentinel):
                self._waiting[descriptor] = worker
                self._poll.register(descriptor, select.POLLIN)

    def begin(self) -> None:
        """See `Producer.begin`."""
        self._generation += 1
        self._control[0] = self._generation
        for _, slab, _ in self._ready.values():
            if slab is not None:
                self._ring.put(slab)
        self._ready.clear()

    @property
    def capacity(self) -> int:
        """See `Producer.capacity`."""
        return self._ring.batches_in_flight

    def room(self) -> int:
        """See `Producer.room`."""
        return self.capacity - len(self._ready) - sum(len(worker.tasks) for worker in self._workers)

    def submit(self, requests: Sequence[Request]) -> int:
        """See `Producer.submit`."""
        outgoing: dict[WorkerProcess, tuple[list[SlabLease], list[Task], list[int]]] = {}
        accepted = 0
        first_only = not self._round_robin and self._first_suffices()
        for request in requests:
            worker = self._workers[0] if first_only else self._next_worker(request.number)
            size = request.indices.nbytes
            if worker.tasks and worker.queued + size > QUEUED_BYTES:
                break
            leases, tasks, descriptors = outgoing.setdefault(worker, ([], [], []))
            slab = self._ring.take() if len(worker.lent) <= len(worker.tasks) else None
            if slab is not None:
                new = slab.descriptor is not None and slab.number not in worker.known
                if slab.descriptor is not None and new:
                    worker.known.add(slab.number)
                    descriptors.append(slab.descriptor)
                worker.lent[slab.number] = slab
                leases.append(SlabLease(slab.number, slab.size, new))
            indices = np.ascontiguousarray(request.indices, np.int64).tobytes()
            tasks.append(Task(self._generation, request.number, request.epoch, indices))
            worker.tasks[self._generation, request.number] = request
            worker.queued += size
            accepted += 1
        self._queue_retired()
        for worker, (leases, tasks, descriptors) in outgoing.items():
            try:
                message = (
                    tuple(worker.forget),
                    [tuple(lease) for lease in leases],
                    [tuple(task) for task in tasks],
                )
                worker.channel.send(message, descriptors)
            except OSError:
                self._raise_worker_died(worker)
            worker.forget.clear()
        return accepted

    def _queue_retired(self) -> None:
        """Queue retired slabs, which workers unmap with their next tasks."""
        for number in self._ring.pop_retired():
            for worker in self._workers:
                if number in worker.known:
                    worker.known.discard(number)
                    worker.forget.append(number)

    def _next_worker(self, number: int) -> WorkerProcess:
        if self._round_robin:
            return self._workers[number % len(self._workers)]
        return min(self._workers, key=lambda worker: len(worker.tasks))

    def _first_suffices(self) -> bool:
        """Whether all requested batches are made, and at least half of the capacity is ready."""
        if len(self._workers) == 1:
            return True
        for worker in self._workers:
            if worker.tasks:
                self._receive(worker)
        return 2 * len(self._ready) >= self.capacity and not any(worker.tasks for worker in self._workers)

    def take(self, number: int) -> Arrival:
        """See `Producer.take`."""
        while number not in self._ready:
            self.wait()
        answer, slab, extra = self._ready.pop(number)
        if isinstance(answer.result, Failure):
            if slab is not None:
                self._ring.put(slab)
            raise_failure(answer.result)
        assert answer.result is not None
        assert not isinstance(answer.result, Failure)
        if slab is not None and answer.needed == 0:
            self._ring.put(slab)
            slab = None
        lent = self._ring.can_lend()
        if lent:
            batch = decode(answer.result, self._ring.lend(slab, extra))
        else:
            buffers: list[Any] = [b"" if slab is None else slab.segment.map]
            batch = decode(answer.result, buffers + [segment.map for segment in extra], copy=True)
            if slab is not None:
                self._ring.put(slab)
        missed = bool(extra)
        return Arrival(batch, answer.needed, answer.seconds, missed, not lent, answer.hits, answer.misses)

    def wait(self) -> None:
        """See `Producer.wait`."""
        woke = {descriptor: self._waiting[descriptor] for descriptor, _ in self._poll.poll()}
        if sum(self._receive(worker) for worker in dict.fromkeys(woke.values())):
            return
        for descriptor, worker in woke.items():
            if descriptor == worker.process.sentinel:
                self._raise_worker_died(worker)

    def _receive(self, worker: WorkerProcess) -> bool:
        """Receive the answers that a worker has sent; return whether there were any."""
        try:
            messages = worker.channel.receive(wait=False)
        except EOFError:
            self._raise_worker_died(worker)
        for message, descriptors in messages:
            self._accept(worker, Answer(*message), descriptors)
        return bool(messages)

    def _accept(self, worker: WorkerProcess, answer: Answer, descriptors: list[int]) -> None:
        slab = worker.lent.pop(answer.slab, None)
        try:
            if slab is not None and answer.made:
                slab.attach(descriptors.pop(0))
                worker.known.add(slab.number)
            extra = [
                Segment.shared(descriptor, size)
                for descriptor, size in zip(descriptors, answer.extra, strict=True)
            ]
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        request = worker.tasks.pop((answer.generation, answer.number))
        worker.queued -= request.indices.nbytes
        if answer.generation != self._generation or answer.result is None:
            if slab is not None:
                self._ring.put(slab)
            return
        if not isinstance(answer.result, Failure):
            self._ring.observe(answer.needed)
        self._ready[answer.number] = answer, slab, extra

    def _raise_worker_died(self, worker: WorkerProcess) -> NoReturn:
        """Close the pool and raise how a worker ended."""
        worker.process.join(EXIT_TIMEOUT)
        code = worker.process.exitcode
        doing = next(iter(worker.tasks.values()), None)
        message = f"worker {worker.number} (pid {worker.process.pid}) {describe_exit(code)}"
        if doing is not None:
            listed = first_few([*map(str, doing.indices)], 8)
            message += f"; it was reading samples {listed} of epoch {doing.epoch}"
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
