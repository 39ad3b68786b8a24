"""A worker process: receives tasks, decodes batches into slabs, and sends their descriptions."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import select
import socket
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from unistore.errors import LoaderError, SampleError
from unistore.loader.cached import cached
from unistore.loader.collating import prepare_process, set_worker_info
from unistore.loader.fetch import Failure, caused, choose_fetch, fetch_batch, in_one_line, pack_failure
from unistore.loader.iteration import Arrival, BatchConfig
from unistore.loader.wire import Channel, decode, encode
from unistore.memory.segments import Arena, Segment, SharedGrowth
from unistore.order.seeding import seed_worker


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
    sizes: tuple[int, ...] = ()


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
