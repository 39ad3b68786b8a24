"""The pool of worker processes: starts them, sends tasks, receives batches, notices deaths."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import pickle
import select
import signal
import socket
import time
import warnings
from collections import deque
from collections.abc import Sequence
from multiprocessing.context import BaseContext
from typing import Any, NamedTuple, NoReturn

import numpy as np

from unistore.errors import LoaderError, SampleError, WorkerDiedError, first_few
from unistore.loader.cached import cached
from unistore.loader.collating import prepare_process, set_worker_info
from unistore.loader.fetch import (
    Failure,
    caused,
    choose_fetch,
    fetch_batch,
    in_one_line,
    pack_failure,
    raise_failure,
)
from unistore.loader.iteration import Arrival, BatchConfig, Request
from unistore.loader.wire import Channel, Message, decode, encode, open_channel
from unistore.memory import Arena, Segment, SharedGrowth, Slab, SlabRing
from unistore.order.seeding import seed_worker
from unistore.system.hints import Shape

# A worker process: receives tasks, decodes batches into slabs, and sends their descriptions.


class Task(NamedTuple):
    """One batch to make."""

    generation: int  # iteration it belongs to; tasks of an abandoned one are answered without work
    epoch: int  # epoch that it belongs to
    indices: bytes  # int64 sample indices, as bytes


class SlabLease(NamedTuple):
    """A slab for one batch; the worker decides for which. With its first lease comes its descriptor."""

    # its number and bytes
    slab: int
    size: int


class TaskResult(NamedTuple):
    """The result of a task. Tasks are answered in the order in which they were sent."""

    slab: int  # number of the slab that is returned with the batch; 0: no slab
    result: Arrival | Failure | None  # the batch, encoded; an error; or None if the task was abandoned
    # sizes of the batch's further segments, whose descriptors come with the answer
    sizes: Shape = ()


class _BatchMaker:
    """Makes the batches of a worker, in the slabs that were lent to it.

    A batch goes into the slab that was lent last, which may still be in the processor's caches.
    """

    def __init__(self, worker: int, config: BatchConfig, cache: int | None) -> None:
        self._slabs: dict[int, Segment] = {}
        self._lent: list[tuple[int, Segment]] = []
        self._dataset = config.dataset
        self._fetch = choose_fetch(config.dataset, config.collate, config.seed)
        if config.cache is not None and cache is not None:
            self._fetch = cached(config.dataset, self._fetch, config.cache.region(cache))
        set_worker_info(worker, config.workers, config.seed, config.dataset)
        seed_worker(config.seed, worker)
        if config.worker_init_fn is not None:
            config.worker_init_fn(worker)

    def take_slabs(self, leases: Sequence[SlabLease], descriptors: Sequence[int]) -> None:
        new = [lease for lease in leases if lease.slab not in self._slabs]
        for lease, descriptor in zip(new, descriptors, strict=True):
            self._slabs[lease.slab] = Segment.shared(descriptor, lease.size)
        self._lent += [(lease.slab, self._slabs[lease.slab]) for lease in reversed(leases)]
        if new:  # slabs only grow: smaller ones are not lent again
            size = new[-1].size
            self._slabs = {slab: segment for slab, segment in self._slabs.items() if segment.size >= size}

    def make(self, task: Task, growth: SharedGrowth) -> TaskResult:
        """Make a batch; `growth` makes what does not fit into its slab."""
        slab, segment = self._lent.pop() if self._lent else (0, None)
        arena = Arena(segment, growth)
        indices = np.frombuffer(task.indices, np.int64)
        result = fetch_batch(self._fetch, self._dataset, indices, task.epoch, arena)
        if isinstance(result, SampleError):
            growth.close()
            return TaskResult(slab, pack_failure(result))
        try:
            message = encode(result.batch, arena)
        except Exception as error:  # noqa: BLE001 - pickling may raise anything
            growth.close()
            failed = caused(SampleError(f"the batch cannot be sent: {in_one_line(error)}"), error)
            return TaskResult(slab, pack_failure(failed))
        return TaskResult(slab, result._replace(batch=message, needed=arena.needed), tuple(growth.sizes))


class _WorkerLoop:
    """A worker process: its channel to the parent, and its batch maker, or why it has none."""

    def __init__(
        self,
        number: int,  # the worker's number
        config: BatchConfig | None,  # its configuration; None: it comes with the first message
        channel: Channel,  # the worker's end of the channel
    ) -> None:
        self._channel = channel
        self._tasks: deque[Task] = deque()
        self._generation = 0
        self._maker: _BatchMaker | LoaderError
        (((message, sizes, cached_files), descriptors), *self._early) = channel.receive()
        try:
            cache = descriptors[0] if cached_files else None
            if config is None:  # mapped copy-on-write: workers share it until they write to it
                shared = zip(descriptors[cached_files:], sizes, strict=True)
                memory = [mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE) for descriptor, size in shared]
                config = decode(message, [b"", *memory])
            assert config is not None
            self._maker = _BatchMaker(number, config, cache)
        except Exception as error:  # noqa: BLE001 - the user's classes and function may raise anything
            self._maker = _start_error(number, error)
        finally:
            _close_all(descriptors)

    def serve(self) -> None:
        """Answer tasks until the parent closes the channel or dies."""
        parent = multiprocessing.parent_process()
        sentinels = [] if parent is None else [parent.sentinel]
        poll = select.poll()
        for descriptor in (self._channel.fileno(), *sentinels):
            poll.register(descriptor, select.POLLIN)
        messages = self._early
        while True:
            for (generation, leases, tasks), descriptors in messages:
                self._accept(generation, leases, tasks, descriptors)
            if self._tasks:
                self._answer(self._tasks.popleft())
            elif any(descriptor in sentinels for descriptor, _ in poll.poll()):
                return
            # between tasks too: slabs that just came back are lent again
            messages = self._channel.receive(wait=False)

    def _accept(
        self, generation: int, leases: list[SlabLease], tasks: list[Task], descriptors: list[int]
    ) -> None:
        self._generation = generation
        self._tasks.extend(tasks)
        try:
            if isinstance(self._maker, _BatchMaker):
                self._maker.take_slabs(leases, descriptors)
        finally:
            _close_all(descriptors)

    def _answer(self, task: Task) -> None:
        growth = SharedGrowth()
        try:
            if isinstance(self._maker, LoaderError):
                answer = TaskResult(0, pack_failure(self._maker))
            elif task.generation < self._generation:
                answer = TaskResult(0, None)
            else:
                answer = self._maker.make(task, growth)
            self._channel.send(answer, growth.descriptors)
        finally:
            growth.close()


def _start_error(worker: int, error: Exception) -> SampleError:
    """Return the error that answers every task of a worker that could not start."""
    reason = in_one_line(error)
    if "'__main__'" in reason or "__mp_main__" in reason:
        reason += (
            "; new workers cannot see what a notebook or an interactive session defines: "
            "move it into a file.py beside it and import it from there"
        )
    return caused(SampleError(f"worker {worker} could not start: {reason}"), error)


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def main(
    worker: int,  # its number
    end: socket.socket,  # the worker's end of the socket
    config: BatchConfig | None,  # its configuration; None: it comes with the first message
) -> None:
    """Run a worker until its parent closes the socket or dies."""
    prepare_process()
    channel = Channel(end)
    with contextlib.suppress(EOFError, ConnectionError):  # the parent has died
        _WorkerLoop(worker, config, channel).serve()
    channel.close()


# The parent's side of a worker process: its start, its configuration, its exit.


class LoaderWorker:
    """A worker process, its channel, and the tasks and slabs that it has."""

    def __init__(self, number: int, context: BaseContext, inherited: BatchConfig | None) -> None:
        self.number = number
        self.channel, theirs = open_channel()
        self.sent: deque[tuple[int, Request]] = deque()  # not answered yet, by generation
        self.lent: dict[int, Slab] = {}  # by number
        self.queued = 0  # bytes of indices in `sent`
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
