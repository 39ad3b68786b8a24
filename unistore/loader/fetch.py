"""Read the batch of some sample indices, from any map-style dataset."""

from __future__ import annotations

import contextlib
import pickle
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias, TypeGuard

import numpy as np

from unistore.data.packed import Allocate, lending
from unistore.errors import LoaderError, SampleError, first_few
from unistore.loader.iteration import Arrival, Producer, Request
from unistore.memory import Arena, SlabRing
from unistore.order.permutation import BATCH_SALT, EpochIndex, RandomFunction
from unistore.system.progress import COUNTS
from unistore.system.types import Int64s

# Errors that travel from a worker to the consumer.


class WorkerTraceback(Exception):  # noqa: N818 - it says where an error was raised, and is none itself
    """The traceback of an error in a worker, as text: the ``__cause__`` of that error in the consumer."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Failure(NamedTuple):
    """An error in a form that can be sent from a worker.

    Attributes
    ----------
    error : LoaderError
        The error.
    cause : bytes or None
        Its cause, pickled. None: the cause cannot be pickled.
    trace : str
        Traceback of the cause.
    """

    error: LoaderError
    cause: bytes | None
    trace: str


def in_one_line(error: BaseException) -> str:
    """Return the type of an error, and the first line of its message."""
    message = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def caused(error: SampleError, cause: BaseException) -> SampleError:
    """Return an error with its ``__cause__`` set."""
    error.__cause__ = cause
    return error


def pack_failure(error: LoaderError) -> Failure:
    """Pack an error, with its cause if that can be pickled and unpickled."""
    raised = error.__cause__
    if raised is None:
        return Failure(error, None, "")
    trace = "".join(traceback.format_exception(raised))
    # Where dask has been imported, pickle takes tracebacks and causes along, also those that do not travel.
    error.__cause__ = None
    raised.__traceback__ = raised.__cause__ = raised.__context__ = None
    cause: bytes | None = None
    with contextlib.suppress(Exception):  # of a cause that does not travel the traceback does
        packed = pickle.dumps(raised)
        pickle.loads(packed)  # noqa: S301 - made in the line above
        cause = packed
    return Failure(error, cause, trace)


def raise_failure(failure: Failure) -> NoReturn:
    """Raise a packed error with its cause, and with the traceback of the worker as the cause of that."""
    trace = WorkerTraceback(failure.trace)
    if failure.cause is None:
        raise failure.error from trace
    cause: BaseException = pickle.loads(failure.cause)  # noqa: S301 - from our worker
    cause.__cause__ = trace
    raise failure.error from cause


Collate: TypeAlias = Callable[[Any], Any]


class BatchFetch:
    """Reads batches with ``dataset.read_batch(indices, allocate)``, which draws its own random numbers.

    Attributes
    ----------
    packed : bool
        Whether batches are dicts of `Packed`, which the parent turns into tensors.
    """

    packed = True

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __call__(self, indices: Int64s, epoch: int, allocate: Allocate) -> Any:
        pairs = np.full((len(indices), 2), epoch, np.int64)
        pairs[:, 0] = indices
        return self._dataset.read_batch(pairs, allocate)


class SampleFetch:
    """Reads samples one by one, or with ``__getitems__``, and collates them.

    Parameters
    ----------
    dataset
        Any object with ``__getitem__``. Its ``set_epoch``, if it has one, is called with each new epoch.
    collate : callable or None
        Called with a list of samples; returns the batch. None: ``unistore.collate`` for samples of a
        `unistore.Dataset`, otherwise as torch's ``default_collate``.
    seed : int
        Seed of the random numbers of `collate`, and of a dataset that does not get the epoch.
    single : bool, default False
        True: batches of one sample are delivered as that sample. `collate` is called with the sample instead
        of a list. None: as torch's ``default_convert``.
    """

    packed = False

    def __init__(
        self,
        # anything with ``__getitem__``. Its ``set_epoch``, if it has one, is called with each new epoch
        dataset: Any,
        # from a list of samples to a batch. None: ``unistore.collate`` for samples of a `unistore.Dataset`,
        # else as torch's ``default_collate``
        collate: Collate | None,
        seed: int,  # seed of the random numbers of the collation, and of a dataset that is not told the epoch
        *,
        single: bool = False,
    ) -> None:
        self._collate = collate
        self._single = single
        self._seed = seed
        self._random_collate = RandomFunction(collate, BATCH_SALT) if _may_draw(collate) else None
        self._carry_epoch = hasattr(dataset, "read_batch")  # whether indices carry the epoch, as `EpochIndex`
        self._set_epoch = None if self._carry_epoch else getattr(dataset, "set_epoch", None)
        self._epoch: int | None = None
        self._in_batches = hasattr(dataset, "__getitems__")
        self._read = RandomFunction(dataset.__getitems__ if self._in_batches else dataset.__getitem__)

    def __call__(self, indices: Int64s, epoch: int, allocate: Allocate) -> Any:  # noqa: ARG002
        samples = self._samples(indices, epoch)
        given = samples[0] if self._single else samples
        if self._random_collate is not None:
            (batch,) = self._random_collate.map([given], self._seed, np.array([epoch]), indices[:1])
            return batch
        if self._collate is not None:
            return self._collate(given)
        if self._single:
            from torch.utils.data import default_convert

            convert: Collate = default_convert
            return convert(given)
        if "unistore.data.collate" in (type(samples).__module__, type(samples[0]).__module__):
            from unistore.data.collate import collate

            return collate(samples)
        from unistore.loader.collating import collate_samples

        return collate_samples(samples)

    def _samples(self, indices: Int64s, epoch: int) -> Sequence[Any]:
        if self._set_epoch is not None and epoch != self._epoch:
            self._set_epoch(epoch)
            self._epoch = epoch
        numbers = indices.tolist()
        read = self._read
        if self._carry_epoch:  # such a dataset takes care of its random numbers
            pairs = [EpochIndex(index, epoch) for index in numbers]
            samples: Sequence[Any] = (
                read.function(pairs) if self._in_batches else [*map(read.function, pairs)]
            )
            return samples
        epochs = np.full_like(indices, epoch)
        if not self._in_batches:
            return read.map(numbers, self._seed, epochs, indices)
        (samples,) = read.map([numbers], self._seed, epochs[:1], indices[:1])
        return samples


class Fetch(Protocol):
    """Reads batches: `BatchFetch`, `SampleFetch`, or one of them with a cache."""

    packed: bool

    def __call__(self, indices: Int64s, epoch: int, allocate: Allocate) -> Any:
        """Read a batch.

        Parameters
        ----------
        indices : int64 array of shape (B,)
            The samples.
        epoch : int
            The epoch.
        allocate : callable
            Called as ``allocate(shape, dtype)`` for the memory of the batch.
        """


def choose_fetch(dataset: Any, collate: Collate | None, seed: int, *, single: bool = False) -> Fetch:
    """Return the fastest way to read batches of a dataset.

    Whole batches are read in one go if nothing has to see single samples: without a transform, and with a
    collation that only arranges the arrays that were read.

    Parameters
    ----------
    dataset, collate, seed
        As in `SampleFetch`.
    single : bool, default False
        Whether batches have one sample, which is delivered without a batch dimension.

    Raises
    ------
    TypeError
        If the dataset is not map-style.
    """
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        msg = f"dataset: must have __len__ and __getitem__, got {type(dataset).__name__}"
        raise TypeError(msg)
    if single:
        return SampleFetch(dataset, collate, seed, single=True)
    batched = hasattr(dataset, "read_batch") and getattr(dataset, "transform", None) is None
    return BatchFetch(dataset) if batched and only_arranges(collate) else SampleFetch(dataset, collate, seed)


def only_arranges(collate: Collate | None) -> bool:
    """Return whether a collate function only arranges arrays, which the parent does without a copy."""
    return not _may_draw(collate) and getattr(collate, "ragged", "packed") in ("packed", "list")


def packs_samples(collate: Collate | None) -> bool:
    """Return whether a collate function is ``unistore.collate`` or a ``unistore.Collate``."""
    return collate is not None and getattr(collate, "__module__", None) == "unistore.data.collate"


def _may_draw(function: Collate | None) -> TypeGuard[Collate]:
    # Our own collations draw nothing
    return function is not None and not packs_samples(function)


def fetch_batch(
    fetch: Fetch, dataset: Any, indices: Int64s, epoch: int, arena: Arena
) -> Arrival | SampleError:
    """Read a batch.

    Parameters
    ----------
    fetch : Fetch
        Reads the batch.
    dataset
        The dataset, which names the source of a failing sample.
    indices : int64 array of shape (B,)
        The samples.
    epoch : int
        The epoch.
    arena : Arena
        Memory of the batch.

    Returns
    -------
    Arrival or SampleError
        The batch, or the error that names the failing sample.
    """
    counts = COUNTS.copy()
    started = time.perf_counter()
    try:
        with lending(arena.allocate):
            batch = fetch(indices, epoch, arena.allocate)
    except Exception as error:  # noqa: BLE001 - a dataset may raise anything; the consumer raises it
        failure = error
    else:
        seconds = time.perf_counter() - started
        return Arrival(batch, len(indices), arena.needed, seconds, counts=COUNTS - counts)
    try:  # outside of the handler: else the tracebacks of both readings would be told
        return _sample_error(failure, fetch, dataset, indices, epoch)
    finally:
        del failure  # its traceback refers to this frame


def _sample_error(error: Exception, fetch: Fetch, dataset: Any, indices: Int64s, epoch: int) -> SampleError:
    # Samples are read one at a time to find the one that fails
    for index in indices.tolist():
        try:
            fetch(np.array([index]), epoch, np.empty)
        except Exception as single:  # noqa: BLE001 - a dataset may raise anything
            source = _source(dataset, index)
            where = f"sample {index} ({source})" if source else f"sample {index}"
            message = f"{where}, epoch {epoch}: {in_one_line(single)}"
            return caused(SampleError(message, index, source), single)
    shown_indices = first_few([*map(str, indices)], 8)
    message = f"the batch of samples {shown_indices} (epoch {epoch}): {in_one_line(error)}"
    return caused(SampleError(message), error)


def _source(dataset: Any, index: int) -> str:
    describe = getattr(dataset, "source_of", None)
    if describe is None:
        return ""
    try:
        return str(describe(index))
    except Exception as error:  # noqa: BLE001 - the failure being reported matters more than this one
        return f"source unknown: {type(error).__name__}: {error}"


class InProcess(Producer):
    """Makes each batch in this process, when the consumer takes it, in memory that is reused."""

    def __init__(self, fetch: Fetch, dataset: Any, ring: SlabRing) -> None:
        self._fetch = fetch
        self._dataset = dataset
        self._ring = ring
        self._requests: list[Request] = []

    def begin(self) -> None:
        self._requests.clear()

    def room(self) -> int:
        return 1 - len(self._requests)

    def submit(self, requests: Sequence[Request]) -> int:
        self._requests += requests
        return len(requests)

    def take(self, number: int) -> Arrival:  # noqa: ARG002 - there is one request at most
        request = self._requests.pop()
        slab = self._ring.take()
        # while the consumer holds all slabs, batches get memory of their own
        copied = slab is None and self._ring.slab_size > 0
        arena = Arena(None) if slab is None else Arena(slab, self._ring.lend(slab))
        arrival = fetch_batch(self._fetch, self._dataset, request.indices, request.epoch, arena)
        if isinstance(arrival, SampleError):
            raise arrival
        self._ring.observe(arrival.needed)
        missed = not copied and arrival.needed > (0 if slab is None else slab.size)
        return arrival._replace(missed=missed, copied=copied)

    def close(self) -> None:
        self.begin()
        self._ring.close()
