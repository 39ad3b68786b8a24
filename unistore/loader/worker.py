"""A worker process: receives tasks, decodes batches into slabs, and sends their descriptions."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.errors import LoaderError, SampleError
from unistore.loader.cache import CacheFile
from unistore.loader.cached import cached
from unistore.loader.channel import Channel
from unistore.loader.environment import Environment, prepare_process
from unistore.loader.failures import Failure, caused, in_one_line, pack_failure
from unistore.loader.fetch import Collate, choose_fetch, sample_error
from unistore.loader.imports import release_import_lock
from unistore.loader.wire import Message, decode, encode
from unistore.memory.segments import Arena, Segment, SharedGrowth
from unistore.order.seeding import seed_worker


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Configuration of workers; pickled under forkserver and spawn.

    Attributes
    ----------
    workers
        Number of workers.
    seed
        Seed of the loader.
    dataset, collate, worker_init_fn
        Arguments of the Loader.
    cache
        The cache file, whose descriptor comes with the first message; None: no cache.
    """

    workers: int
    seed: int
    dataset: Any
    collate: Collate | None = None
    worker_init_fn: Callable[[int], object] | None = None
    cache: CacheFile | None = None


class Task(NamedTuple):
    """One batch to make.

    Attributes
    ----------
    generation
        Iteration it belongs to; tasks of an abandoned one are answered without work.
    number
        Its index among the batches that were requested.
    epoch
        Epoch that it belongs to.
    indices
        int64 sample indices, as bytes.
    """

    generation: int
    number: int
    epoch: int
    indices: bytes


class SlabLease(NamedTuple):
    """A slab for one batch; the worker decides for which.

    Attributes
    ----------
    slab, size
        Its number and bytes.
    new
        Whether its descriptor comes with it, as another worker has made it. A slab that is not new and that
        this worker has not mapped is made here, when a batch needs it.
    """

    slab: int
    size: int
    new: bool


class Answer(NamedTuple):
    """The result of a task.

    Attributes
    ----------
    generation, number
        The task's.
    slab
        Number of the slab that is returned with the batch; 0: no slab.
    made
        Whether the slab was made for this batch; its descriptor then comes first.
    result
        The batch, an error, or None if the task was abandoned.
    extra
        Sizes of the batch's own segments, whose descriptors come with the answer.
    needed
        Bytes of memory that the batch needed.
    seconds
        Time taken.
    hits, misses
        Reads that the cache had, and had not.
    """

    generation: int
    number: int
    slab: int
    made: bool
    result: Message | Failure | None
    extra: tuple[int, ...] = ()
    needed: int = 0
    seconds: float = 0.0
    hits: int = 0
    misses: int = 0


class _WorkerState:
    """State of the worker: its dataset and its mapped slabs.

    A batch goes into the slab that was lent last, which may still be in the processor's caches.
    """

    def __init__(
        self, worker: int, config: WorkerConfig, abandoned_before: NDArray[np.int64], cache: int | None
    ) -> None:
        self._current = abandoned_before
        self._slabs: dict[int, Segment] = {}
        self._lent: list[SlabLease] = []
        self._dataset = config.dataset
        self._fetch = choose_fetch(config.dataset, config.collate, config.seed)
        if config.cache is not None and cache is not None:
            self._fetch = cached(config.dataset, self._fetch, config.cache.region(cache))
        self._environment = Environment(worker, config.workers, config.seed, config.dataset)
        self._environment.prepare_torch()
        seed_worker(config.seed, worker)
        if config.worker_init_fn is not None:
            config.worker_init_fn(worker)

    def take_slabs(self, forget: tuple[int, ...], leases: list[SlabLease], descriptors: list[int]) -> None:
        for number in forget:
            self._slabs.pop(number, None)
        try:
            new = (lease for lease in leases if lease.new)
            for lease, descriptor in zip(new, descriptors, strict=True):
                self._slabs[lease.slab] = Segment.shared(descriptor, lease.size)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._lent += reversed(leases)

    def release_memory(self) -> None:
        """Drop the reference to the last batch's memory."""
        self._environment.lend(np.empty)

    def make(self, task: Task, made: SharedGrowth, growth: SharedGrowth) -> Answer:
        """Make a batch; `made` makes its slab if there is none, `growth` what does not fit into the slab."""
        if task.generation < self._current[0]:
            return Answer(task.generation, task.number, 0, False, None)
        lease = self._lent.pop() if self._lent else None
        started = time.perf_counter()
        hits, misses = self._fetch.hits, self._fetch.misses
        indices = np.frombuffer(task.indices, np.int64)
        plain = task.generation, task.number, lease.slab if lease else 0
        try:
            if lease is not None and lease.slab not in self._slabs:
                self._slabs[lease.slab] = made(lease.size)
            arena = Arena(self._slabs[lease.slab] if lease else None, growth)
            self._environment.lend(arena.allocate)
            batch = self._fetch(indices, task.epoch, arena.allocate)
        except Exception as error:  # noqa: BLE001 - a dataset may raise anything; the parent raises it
            growth.close()
            failed = sample_error(error, self._fetch, self._dataset, indices, task.epoch)
            return Answer(*plain, bool(made.sizes), pack_failure(failed))
        try:
            message = encode(batch, arena)
        except Exception as error:  # noqa: BLE001 - pickling may raise anything
            growth.close()
            failed = caused(SampleError(f"the batch cannot be sent: {in_one_line(error)}"), error)
            return Answer(*plain, bool(made.sizes), pack_failure(failed))
        spent = time.perf_counter() - started
        hits, misses = self._fetch.hits - hits, self._fetch.misses - misses
        grown = tuple(growth.sizes)
        return Answer(*plain, bool(made.sizes), message, grown, arena.needed, spent, hits, misses)


def _set_up(
    worker: int, config: WorkerConfig | None, channel: Channel
) -> tuple[_WorkerState | LoaderError, list[Any]]:
    """Return the state, or the error that answers every task; and messages received early.

    A configuration in shared memory is mapped copy-on-write: workers share it until they write to it.
    """
    (((has_cache, message, sizes), (control, *descriptors)), *early) = channel.receive()
    page = mmap.mmap(control, mmap.PAGESIZE, flags=mmap.MAP_SHARED)
    try:
        cache = descriptors[0] if has_cache else None
        if config is None:
            shared = zip(descriptors[has_cache:], sizes, strict=True)
            memory = [mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE) for descriptor, size in shared]
            config = decode(message, [b"", *memory])
        assert config is not None
        return _WorkerState(worker, config, np.frombuffer(page, np.int64), cache), early
    except Exception as error:  # noqa: BLE001 - the user's classes and function may raise anything
        kind = in_one_line(error)
        if "'__main__'" in kind or "__mp_main__" in kind:
            kind += (
                "; new workers cannot see what a notebook or an interactive session defines: "
                "move it into a file.py beside it and import it from there"
            )
        return caused(SampleError(f"worker {worker} could not start: {kind}"), error), early
    finally:
        for descriptor in (control, *descriptors):
            os.close(descriptor)


def _serve(worker: int, config: WorkerConfig | None, channel: Channel) -> None:
    state, messages = _set_up(worker, config, channel)
    parent = multiprocessing.parent_process()
    sentinels = [] if parent is None else [parent.sentinel]
    poll = select.poll()
    for descriptor in (channel.fileno(), *sentinels):
        poll.register(descriptor, select.POLLIN)
    tasks: deque[Task] = deque()
    while True:
        for (forget, leases, new_tasks), descriptors in messages:
            if isinstance(state, _WorkerState):
                state.take_slabs(forget, [SlabLease(*lease) for lease in leases], descriptors)
            tasks.extend(Task(*task) for task in new_tasks)
        if tasks:
            _answer(state, tasks.popleft(), channel)
        elif any(descriptor in sentinels for descriptor, _ in poll.poll()):
            return
        messages = channel.receive(wait=False)  # between tasks too: slabs that just came back are lent again


def _answer(state: _WorkerState | LoaderError, task: Task, channel: Channel) -> None:
    made, growth = SharedGrowth(), SharedGrowth()
    try:
        if isinstance(state, _WorkerState):
            answer = state.make(task, made, growth)
            state.release_memory()
        else:
            answer = Answer(task.generation, task.number, 0, False, pack_failure(state))
        channel.send(tuple(answer), made.descriptors + growth.descriptors)
    finally:
        made.close()
        growth.close()


def main(worker: int, end: socket.socket, config: WorkerConfig | None) -> None:
    """Run a worker until its parent closes the socket or dies.

    Parameters
    ----------
    worker
        Its number.
    end
        The worker's end of the socket.
    config
        Its configuration; None: it comes with the first message.
    """
    release_import_lock()
    prepare_process()
    channel = Channel(end)
    with contextlib.suppress(EOFError, ConnectionError):  # the parent has died
        _serve(worker, config, channel)
    channel.close()
