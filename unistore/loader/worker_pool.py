"""The pool of worker processes and their work: tasks, batches, messages between them, deaths."""

from __future__ import annotations

import contextlib
import errno
import io
import mmap
import multiprocessing
import os
import pickle
import select
import signal
import socket
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np
import torch
from numpy.lib.array_utils import byte_bounds

from unistore.errors import LoaderError, SampleError, WorkerDiedError, first_few
from unistore.loader.cache import CacheFile, cached
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
from unistore.loader.iteration import Arrival, Producer, Request
from unistore.memory import ALIGNMENT, GRANULE, Arena, Slab, SlabRing, open_shared_memory, roomy
from unistore.order.permutation import seed_worker
from unistore.system.types import AnyArray, Shape

# What the Loader and its workers send each other: messages with descriptors, and batches.
#
# Arrays of a batch that lie in its slab are sent as their place there, others are copied into it first, and
# what does not fit travels inside the message. The first batch, whose size nobody knows, gets a slab from the
# worker once it is read

# The connection to a worker, over which descriptors go as well.

# Goes with each descriptor, as a stream carries none by itself
_DESCRIPTOR = b"d"

_parent_ends: weakref.WeakSet[Channel] = weakref.WeakSet()


class Channel:
    """One end of a connection between the parent and a worker.

    When the other process dies, in any way, the stream ends.
    """

    # That holds only while no other process has a copy of that end, so forked children close the ones that
    # they inherit

    def __init__(self, end: Connection[Any, Any]) -> None:
        self.connection = end
        self._poll = select.poll()  # a tenth of the time of `Connection.poll`
        self._poll.register(end, select.POLLIN)
        # The same stream, as a Connection carries no descriptors. It waits, whatever
        # `socket.setdefaulttimeout` says of new sockets: both have one mode
        self._socket = socket.fromfd(end.fileno(), socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(True)

    def send(self, message: Any, descriptors: Sequence[int] = ()) -> None:
        self.connection.send_bytes(pickle.dumps((message, len(descriptors)), protocol=5))
        for descriptor in descriptors:
            socket.send_fds(self._socket, [_DESCRIPTOR], [descriptor])

    def receive(self, *, wait: bool = True) -> list[tuple[Any, list[int]]]:
        """Return received messages, each with its descriptors, which the caller closes.

        Raises
        ------
        EOFError
            If the other end is closed.
        """
        messages: list[tuple[Any, list[int]]] = []
        while (wait and not messages) or self._poll.poll(0):
            try:
                message, count = pickle.loads(self.connection.recv_bytes())  # noqa: S301 - from our own process
            except (EOFError, ConnectionError) as error:
                if messages:  # the next call says so
                    break
                raise EOFError from error
            messages.append((message, self._receive_descriptors(count)))
        return messages

    def _receive_descriptors(self, count: int) -> list[int]:
        received: list[int] = []
        while len(received) < count:
            data, descriptors, _, _ = socket.recv_fds(self._socket, len(_DESCRIPTOR), 1)
            if not descriptors:
                _close_all(received)
                if not data:
                    raise EOFError
                raise OSError(errno.EMFILE, "no descriptor is free for the memory of a batch")
            received += descriptors
        return received

    def close(self) -> None:
        self.connection.close()
        self._socket.close()


def open_channel() -> tuple[Channel, Connection[Any, Any]]:
    """Return the end of the parent, and the end of the worker."""
    ours, theirs = multiprocessing.Pipe()
    channel = Channel(ours)
    _parent_ends.add(channel)
    return channel, theirs


def _close_parent_ends() -> None:
    for channel in list(_parent_ends):
        channel.close()


os.register_at_fork(after_in_child=_close_parent_ends)


# Whether it is a tensor, offset in the slab, dtype, shape, strides
_Place: TypeAlias = tuple[bool, int, str, Shape, Shape]


class _Packer(pickle.Pickler):
    def __init__(self, file: io.BytesIO, arena: Arena) -> None:
        super().__init__(file, protocol=5)
        self._arena = arena
        self.outside = 0  # bytes of arrays that are sent inside the message
        # by identity, of objects that are kept: the same one twice stays the same memory
        self._places: dict[int, tuple[Any, _Place | None]] = {}

    def persistent_id(self, value: Any) -> _Place | None:
        # None: pickled as it is
        if type(value) not in (np.ndarray, torch.Tensor):
            return None
        if id(value) not in self._places:
            self._places[id(value)] = value, self._place(value)
        return self._places[id(value)][1]

    def reducer_override(self, value: Any) -> Any:
        # NumPy pickles arrays with permuted axes in C order: 2.2 all of them, 2.4 those with gaps
        if type(value) is not np.ndarray or value.flags.forc or value.dtype.hasobject or not value.nbytes:
            return NotImplemented
        ordered, axes = _in_memory_order(value)
        content = np.ascontiguousarray(ordered)
        strides = content.transpose(axes).strides
        return np.ndarray, (value.shape, value.dtype, bytearray(content.tobytes()), 0, strides)

    def _place(self, value: Any) -> _Place | None:
        is_tensor = type(value) is torch.Tensor
        try:
            values: AnyArray = value.numpy() if is_tensor else value
        except (RuntimeError, TypeError):  # sparse, with a gradient, of a dtype that numpy lacks
            return None
        if values.dtype.kind in "OV" or not values.size:
            return None
        offset = self._find(values)
        if offset is None and self._arena.has_room(values.nbytes):
            values = self._copy(values)
            offset = self._find(values)
        if offset is None:
            self.outside += -(-values.nbytes // ALIGNMENT) * ALIGNMENT
            return None
        return is_tensor, offset, values.dtype.str, values.shape, values.strides

    def _find(self, values: AnyArray) -> int | None:
        first: int = values.__array_interface__["data"][0]
        low, high = (first, first + values.nbytes) if values.flags.c_contiguous else byte_bounds(values)
        offset = self._arena.find(low, high - low)
        return None if offset is None else offset + first - low

    def _copy(self, values: AnyArray) -> AnyArray:
        ordered, axes = _in_memory_order(values)
        copy = self._arena.allocate(ordered.shape, ordered.dtype)
        copy[...] = ordered
        return copy.transpose(axes)


def _in_memory_order(values: AnyArray) -> tuple[AnyArray, AnyArray]:
    """Return a view with the largest strides first, and the axes that transpose it back."""
    axes = np.argsort([-abs(stride) for stride in values.strides], kind="stable")
    return values.transpose(axes), np.argsort(axes)


class _Unpacker(pickle.Unpickler):
    def __init__(self, data: bytes, memory: Any, *, copy: bool) -> None:
        super().__init__(io.BytesIO(data))
        self._memory = memory
        self._copy = copy

    def persistent_load(self, place: _Place) -> Any:
        is_tensor, offset, dtype, shape, strides = place
        values: AnyArray = np.ndarray(shape, dtype, self._memory, offset, strides)
        if self._copy:
            values = values.copy(order="K")
        return torch.from_numpy(values) if is_tensor else values


def encode(
    batch: Any,
    arena: Arena,
) -> bytes:
    """Serialise a batch.

    Parameters
    ----------
    batch
        Any object that can be pickled.
    arena : Arena
        Memory of the batch. Arrays outside of it are copied into it, as far as they fit.
    """
    file = io.BytesIO()
    packer = _Packer(file, arena)
    packer.dump(batch)
    arena.needed += max(0, packer.outside - arena.overflow)  # so that the next slab has room for them
    return file.getvalue()


def decode(message: bytes, memory: Any, *, copy: bool = False) -> Any:
    """Restore a batch from the result of `encode`, as views of the memory of its buffer, or as copies."""
    return _Unpacker(message, memory, copy=copy).load()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """Settings of the workers that make batches. It is pickled for forkserver and spawn.

    Attributes
    ----------
    workers : int
        Number of worker processes. 0: none.
    seed : int
        Seed of the loader.
    dataset, collate, worker_init_fn
        Arguments of the Loader.
    cache : CacheFile, optional
        The cache file, whose descriptor comes with the first message. None: no cache.
    single : bool, default False
        Whether each batch is one sample, delivered without a batch dimension.
    """

    workers: int
    seed: int
    dataset: Any
    collate: Callable[[Any], Any] | None = None
    worker_init_fn: Callable[[int], object] | None = None
    cache: CacheFile | None = None
    single: bool = False


# A worker process: receives tasks, decodes batches into slabs, and sends their descriptions.


class Task(NamedTuple):
    """A batch to make. Tasks are answered in the order in which they were sent.

    Attributes
    ----------
    generation : int
        Its iteration. Tasks of an iteration that was left are answered without work.
    epoch : int
        Its epoch.
    indices : bytes
        Sample indices, int64.
    lease : (int, int) or None
        Number and size of a shared-memory buffer that is lent with it, for any batch. Its descriptor is
        sent once.
    """

    generation: int
    epoch: int
    indices: bytes
    lease: tuple[int, int] | None


# What answers a task: the number of the slab that is returned (0: none), and the batch, encoded; an error;
# or None where the task was abandoned
_Answer: TypeAlias = tuple[int, Arrival | Failure | None]


class _LoaderWorker:
    # A batch goes into the slab that was lent last, which may still be in the processor's caches
    def __init__(self, number: int, config: BatchConfig, cache: Sequence[int]) -> None:
        self._slabs: dict[int, Slab] = {}
        self._lent: list[int] = []
        self._dataset = config.dataset
        self._fetch = choose_fetch(config.dataset, config.collate, config.seed, single=config.single)
        if config.cache is not None:
            self._fetch = cached(config.dataset, self._fetch, config.cache.region(cache[0]))
        set_worker_info(number, config.workers, config.seed, config.dataset)
        seed_worker(config.seed, number)
        if config.worker_init_fn is not None:
            config.worker_init_fn(number)

    def take_slabs(self, tasks: Sequence[Task], descriptors: Sequence[int]) -> None:
        new = iter(descriptors)
        lent = []
        for number, size in filter(None, (task.lease for task in tasks)):
            if number not in self._slabs:
                # slabs only grow: smaller ones are not lent again
                self._slabs = {other: slab for other, slab in self._slabs.items() if slab.size >= size}
                self._slabs[number] = Slab(size, next(new))
                _ = self._slabs[number].map  # the descriptor is closed after this
            lent.append(number)
        self._lent += reversed(lent)

    def make(self, task: Task) -> tuple[_Answer, list[int]]:
        """Return the answer, and the descriptor of its memory if none was lent. The caller closes it."""
        number = self._lent.pop() if self._lent else 0
        slab = self._slabs.get(number)
        arena = Arena(slab)
        indices = np.frombuffer(task.indices, np.int64)
        result = fetch_batch(self._fetch, self._dataset, indices, task.epoch, arena)
        if isinstance(result, SampleError):
            return (number, pack_failure(result)), []
        descriptors: list[int] = []
        if slab is None and arena.needed >= GRANULE:  # through the socket it would be copied four times
            size = roomy(arena.needed)
            try:
                descriptors.append(open_shared_memory(size))
            except LoaderError as error:
                return (number, pack_failure(error)), []
            arena = Arena(Slab(size, descriptors[0]))
        try:
            message = encode(result.batch, arena)
        except Exception as error:  # noqa: BLE001 - pickling may raise anything
            failed = caused(SampleError(f"the batch cannot be sent: {in_one_line(error)}"), error)
            return (number, pack_failure(failed)), descriptors
        missed = arena.needed > (0 if slab is None else slab.size)
        return (number, result._replace(batch=message, needed=arena.needed, missed=missed)), descriptors


def _start_error(worker: int, error: Exception) -> SampleError:
    reason = in_one_line(error)
    if "'__main__'" in reason or "__mp_main__" in reason:
        reason += (
            ". New workers cannot import from a notebook or an interactive session. "
            "Fix: move the code into a .py file and import it"
        )
    return caused(SampleError(f"worker {worker} could not start: {reason}"), error)


def _start(
    number: int, config: BatchConfig | None, size: int, descriptors: list[int]
) -> _LoaderWorker | Failure:
    # `config` None: it is pickled in the last descriptor's memory of `size` bytes
    try:
        if config is None:
            with mmap.mmap(descriptors[-1], size, flags=mmap.MAP_SHARED) as memory:
                config = pickle.loads(memory)  # noqa: S301 - from our own process
        assert config is not None
        return _LoaderWorker(number, config, descriptors)
    except Exception as error:  # noqa: BLE001 - the user's classes and function may raise anything
        return pack_failure(_start_error(number, error))
    finally:
        _close_all(descriptors)


def _serve(number: int, config: BatchConfig | None, channel: Channel) -> None:
    ((size, descriptors), *messages) = channel.receive()
    worker = _start(number, config, size, descriptors)
    waiting: deque[Task] = deque()
    current = 0
    while True:
        # between tasks too: slabs that just came back are lent again
        for (generation, tasks), descriptors in messages:
            current = generation
            waiting += tasks
            try:
                if isinstance(worker, _LoaderWorker):
                    worker.take_slabs(tasks, descriptors)
            finally:
                _close_all(descriptors)
        if waiting:
            task = waiting.popleft()
            if not isinstance(worker, _LoaderWorker):
                channel.send((0, worker))
            elif task.generation < current:
                channel.send((0, None))
            else:
                answer, descriptors = worker.make(task)
                try:
                    channel.send(answer, descriptors)
                finally:
                    _close_all(descriptors)
        messages = channel.receive(wait=not waiting)


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def main(worker: int, end: Connection[Any, Any], config: BatchConfig | None) -> None:
    """Run a worker until its parent closes the connection or dies.

    Parameters
    ----------
    worker : int
        Number of the worker.
    end : Connection
        The worker's end of the connection.
    config : BatchConfig or None
        Its configuration. None: it comes with a message.
    """
    prepare_process()
    channel = Channel(end)
    with contextlib.suppress(EOFError, ConnectionError):  # the parent has died
        _serve(worker, config, channel)
    channel.close()


# The parent's side of a worker process: its start, its configuration, its exit.


class LoaderWorker:
    """A worker process, its channel, and the tasks and shared-memory buffers that it has."""

    def __init__(self, number: int, context: BaseContext, inherited: BatchConfig | None) -> None:
        self.number = number
        self.channel, theirs = open_channel()
        self.sent: deque[tuple[int, Request]] = deque()  # not answered yet, by generation
        self.lent: dict[int, Slab] = {}  # by number
        self._mapped: set[int] = set()
        process: Any = context.Process(  # type: ignore[attr-defined]
            target=main, args=(number, theirs, inherited), name=f"unistore-loader-{number}", daemon=True
        )
        self.process = process
        try:
            with warnings.catch_warnings(), _interrupt_held(context):
                # Python 3.12 warns of forking while other threads run; workers touch nothing that these hold
                warnings.filterwarnings("ignore", message=".*use of fork", category=DeprecationWarning)
                process.start()
        except BaseException:
            self.channel.close()
            raise
        finally:
            theirs.close()

    def lend(self, slab: Slab) -> list[int]:
        """Record that the worker has a buffer, and return its descriptor unless the worker has mapped it."""
        self.lent[slab.number] = slab
        if slab.number in self._mapped or slab.descriptor is None:
            return []
        self._mapped.add(slab.number)
        return [slab.descriptor]

    def has_room(self, request: Request) -> bool:
        """Return whether one more task can be sent without blocking."""
        queued = sum(sent.indices.nbytes for _, sent in self.sent)
        return not self.sent or queued + request.indices.nbytes <= QUEUED_BYTES


@contextlib.contextmanager
def _interrupt_held(context: BaseContext) -> Iterator[None]:
    # Ctrl-C reaches the workers too. A new one inherits this mask, and ends it once it ignores the signal
    method = context.get_start_method()
    if method == "forkserver":  # whose server would give its mask to processes of others
        yield
        return
    if method == "spawn":
        with contextlib.suppress(ImportError, OSError):  # which a system without semaphores raises
            context.Semaphore()  # has multiprocessing start its resource tracker now: that ends the mask
    held = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def pickle_config(config: BatchConfig) -> bytes | None:
    """Pickle the configuration, once for all workers. None: it can only be inherited by fork."""
    # multiprocessing would send it through a pipe to each worker, and wait for ever where a large dataset
    # is sent to a worker that has already died
    try:
        return pickle.dumps(config, protocol=5)
    except RuntimeError:
        return None
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        msg = (
            "dataset, collate_fn or worker_init_fn cannot be sent to a worker process that is not forked: "
            f"{error}. Fix: define functions and classes at the top level of a module"
        )
        raise LoaderError(msg) from error


def describe_exit(code: int | None) -> str:
    """Return how a worker ended, from its exit code, with a fix."""
    if code is None:
        return "closed its connection and does not answer"
    if code >= 0:
        return (
            f"ended with exit code {code}. Fix: see what it printed; with spawn and forkserver, the dataset "
            "must be importable from the module that defines it"
        )
    if code == -signal.SIGKILL:
        return (
            "was killed by SIGKILL, often because memory ran out. "
            "Fix: lower num_workers, prefetch_factor or batch_size"
        )
    return f"was killed by signal {-code} ({signal.strsignal(-code)})"


# Bytes of tasks that may wait in a worker's socket, so that sending never blocks.
QUEUED_BYTES = 64 * 1024
# Seconds that workers have to exit after `close`; then they are killed.
EXIT_TIMEOUT = 2.0


class WorkerPool(Producer):
    """Makes batches in worker processes.

    Parameters
    ----------
    config : BatchConfig
        Configuration of the workers.
    start_method : {"fork", "forkserver", "spawn"}
        How workers are started.
    ring : SlabRing
        Memory that batches are decoded into.
    round_robin : bool, default False
        True: workers get batches in turn, which keeps the lanes of a block shuffle apart. False: the
        worker with the fewest tasks gets the next batch.
    """

    def __init__(
        self,
        config: BatchConfig,  # configuration of the workers
        start_method: str,  # ``"fork"``, ``"forkserver"`` or ``"spawn"``
        ring: SlabRing,  # memory that batches are decoded into
        *,
        # whether workers get batches in turn, which keeps the lanes of a block shuffle apart. Else the worker
        # with the fewest tasks gets the next batch
        round_robin: bool = False,
    ) -> None:
        self._owner = os.getpid()
        self._ring = ring
        self._round_robin = round_robin
        self._closed = False
        self._generation = 0
        self._ready: dict[int, tuple[Arrival | Failure, Slab | None]] = {}
        self._workers: list[LoaderWorker] = []
        try:
            self._start(config, multiprocessing.get_context(start_method))
        except BaseException:
            self.close()
            raise
        self._poll = select.poll()
        self._by_socket = {worker.channel.connection.fileno(): worker for worker in self._workers}
        for descriptor in self._by_socket:
            self._poll.register(descriptor, select.POLLIN)

    def _start(self, config: BatchConfig, context: BaseContext) -> None:
        pickled = None if context.get_start_method() == "fork" else pickle_config(config)
        descriptors = [] if config.cache is None else [config.cache.descriptor]
        memory = None
        try:
            if pickled is not None:
                memory = open_shared_memory(len(pickled))
                os.pwrite(memory, pickled, 0)
                descriptors.append(memory)
            for number in range(config.workers):
                worker = LoaderWorker(number, context, config if pickled is None else None)
                self._workers.append(worker)
                worker.channel.send(len(pickled or b""), descriptors)
        finally:
            if memory is not None:
                os.close(memory)

    def begin(self) -> None:
        self._generation += 1
        for _, slab in self._ready.values():
            self._put(slab)
        self._ready.clear()
        for worker in self._workers:
            if worker.sent:  # tasks of the last iteration, which are answered without work from now on
                self._send(worker, [], [])

    @property
    def capacity(self) -> int:  # type: ignore[override]
        return self._ring.batches_in_flight

    def room(self) -> int:
        return self.capacity - len(self._ready) - sum(len(worker.sent) for worker in self._workers)

    def submit(self, requests: Sequence[Request]) -> int:
        outgoing: dict[LoaderWorker, tuple[list[Task], list[int]]] = {}
        accepted = 0
        for request in requests:
            worker = self._next_worker(request.number)
            if not worker.has_room(request):
                break
            tasks, descriptors = outgoing.setdefault(worker, ([], []))
            slab = self._ring.take() if len(worker.lent) <= len(worker.sent) else None
            lease = None
            if slab is not None:
                lease = slab.number, slab.size
                descriptors += worker.lend(slab)
            indices = np.ascontiguousarray(request.indices, np.int64).tobytes()
            tasks.append(Task(self._generation, request.epoch, indices, lease))
            worker.sent.append((self._generation, request))
            accepted += 1
        for worker, (tasks, descriptors) in outgoing.items():
            self._send(worker, tasks, descriptors)
        return accepted

    def _send(self, worker: LoaderWorker, tasks: list[Task], descriptors: list[int]) -> None:
        try:
            worker.channel.send((self._generation, tasks), descriptors)
        except OSError:
            self._raise_worker_died(worker)

    def _next_worker(self, number: int) -> LoaderWorker:
        if self._round_robin:
            return self._workers[number % len(self._workers)]
        return min(self._workers, key=lambda worker: len(worker.sent))

    def take(self, number: int) -> Arrival:
        while number not in self._ready:
            self.wait()
        arrival, slab = self._ready.pop(number)
        if isinstance(arrival, Failure):
            self._put(slab)
            raise_failure(arrival)
        if slab is None or not arrival.needed:
            self._put(slab)
            return arrival._replace(batch=decode(arrival.batch, b""))
        copied = not self._ring.can_lend()
        batch = decode(arrival.batch, slab.map if copied else self._ring.lend(slab), copy=copied)
        if copied:
            self._put(slab)
        return arrival._replace(batch=batch, copied=copied)

    def _put(self, slab: Slab | None) -> None:
        if slab is not None:
            self._ring.put(slab)

    def wait(self) -> None:
        for descriptor, _ in self._poll.poll():
            worker = self._by_socket[descriptor]
            try:
                messages = worker.channel.receive(wait=False)
            except EOFError:
                self._raise_worker_died(worker)
            for answer, descriptors in messages:
                self._accept(worker, answer, descriptors)

    def _accept(self, worker: LoaderWorker, answer: _Answer, descriptors: Sequence[int]) -> None:
        number, result = answer
        slab = worker.lent.pop(number, None)
        if descriptors:  # there was none
            slab = self._ring.adopt(descriptors[0])
        generation, request = worker.sent.popleft()
        if generation != self._generation or result is None:
            self._put(slab)
            return
        if not isinstance(result, Failure):
            self._ring.observe(result.needed)
        self._ready[request.number] = result, slab

    def _raise_worker_died(self, worker: LoaderWorker) -> NoReturn:
        worker.process.join(EXIT_TIMEOUT)
        code = worker.process.exitcode
        message = f"worker {worker.number} (pid {worker.process.pid})"
        if worker.sent:
            _, request = worker.sent[0]
            samples = first_few([*map(str, request.indices)], 8)
            message += f", reading samples {samples} of epoch {request.epoch},"
        self.close()
        msg = f"{message} {describe_exit(code)}"
        raise WorkerDiedError(msg)

    def close(self) -> None:
        if not self.usable:
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
    def usable(self) -> bool:  # type: ignore[override]
        return not self._closed and os.getpid() == self._owner

    @property
    def pids(self) -> list[int]:
        return [] if self._closed else [worker.process.pid for worker in self._workers]
