"""Reads the batch of some sample indices: from datasets with ``read_batch``, or any map-style dataset."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from unistore.data.packed import Allocate, Batch
from unistore.errors import SampleError, first_few
from unistore.loader.collating import collate_into
from unistore.loader.failures import caused, in_one_line
from unistore.order.permutation import At
from unistore.order.seeding import BATCH_SALT, RandomFunction, takes_rng

Collate = Callable[[Any], Any]


class BatchDataset(Protocol):
    """A dataset that decodes a whole batch at once, into memory that it is given.

    Its random numbers are its own matter: the Loader seeds nothing before it reads.
    """

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def read_batch(self, indices: NDArray[np.int64], allocate: Allocate) -> Batch:
        """Return the batch of samples, its large arrays in allocated memory.

        ``indices`` are (B, 2): index and epoch of each sample.
        """
        ...


class Fetch(Protocol):
    """Reads batches."""

    packed: bool
    """Whether batches are dicts of `Packed`, which the parent still turns into tensors."""
    on_any_thread: bool
    """Whether a thread beside the consumer's may read: nothing draws from the global generators."""

    @property
    def hits(self) -> int:
        """Chunks, or samples of a plain dataset, that were found in the cache; 0 without one."""
        return 0

    @property
    def misses(self) -> int:
        """Chunks or samples that were not found in the cache; 0 without one."""
        return 0

    def __call__(self, indices: NDArray[np.int64], epoch: int, allocate: Allocate) -> Any:
        """Return the batch of some samples, (B,)."""
        ...


class BatchFetch:
    """Reads through ``dataset.read_batch``."""

    packed = on_any_thread = True
    hits = misses = 0

    def __init__(self, dataset: BatchDataset) -> None:
        self._dataset = dataset

    def __call__(self, indices: NDArray[np.int64], epoch: int, allocate: Allocate) -> Batch:
        """See `Fetch`."""
        pairs = np.full((len(indices), 2), epoch, np.int64)
        pairs[:, 0] = indices
        return self._dataset.read_batch(pairs, allocate)


class SampleFetch:
    """Reads sample by sample, or through ``__getitems__``, and collates.

    Parameters
    ----------
    dataset
        Anything with ``__getitem__``. Its ``set_epoch``, if it has one, is called with each new epoch.
    collate
        From a list of samples to a batch. None: ``unistore.collate`` for samples of a `unistore.Dataset`,
        else as torch's ``default_collate``, straight into the slab.
    seed
        Seed of the random numbers of the collation, and of a dataset that is not told the epoch.
    carry_epoch
        Whether indices carry the epoch, as `At`.
    """

    packed = False
    hits = misses = 0

    def __init__(self, dataset: Any, collate: Collate | None, seed: int, *, carry_epoch: bool) -> None:
        self._dataset = dataset
        self._collate = collate
        self._seed = seed
        self._random_collate = RandomFunction(collate, BATCH_SALT) if _may_draw(collate) else None
        self.carry_epoch = carry_epoch
        self._set_epoch = None if carry_epoch else getattr(dataset, "set_epoch", None)
        self._epoch: int | None = None
        self._in_batches = hasattr(dataset, "__getitems__")
        self._read = RandomFunction(dataset.__getitems__ if self._in_batches else dataset.__getitem__)
        functions = (collate, getattr(dataset, "transform", None))
        self.on_any_thread = carry_epoch and not any(map(_draws_globally, functions))

    def __call__(self, indices: NDArray[np.int64], epoch: int, allocate: Allocate) -> Any:
        """See `Fetch`."""
        samples = self.samples(indices.tolist(), epoch)
        return self.collated(samples, epoch, indices[:1], allocate)

    def samples(self, indices: Sequence[int], epoch: int) -> Sequence[Any]:
        """Samples as the dataset returns them."""
        if self._set_epoch is not None and epoch != self._epoch:
            self._set_epoch(epoch)
            self._epoch = epoch
        read = self._read
        if self.carry_epoch:  # such a dataset takes care of its random numbers
            pairs = [At(index, epoch) for index in indices]
            samples: Sequence[Any] = (
                read.function(pairs) if self._in_batches else [*map(read.function, pairs)]
            )
            return samples
        numbers = np.array(indices, np.int64)
        epochs = np.full_like(numbers, epoch)
        if not self._in_batches:
            return read.map(indices, self._seed, epochs, numbers)
        (samples,) = read.map([indices], self._seed, epochs[:1], numbers[:1])
        return samples

    def collated(
        self, samples: Sequence[Any], epoch: int, first: NDArray[np.int64], allocate: Allocate
    ) -> Any:
        """The batch of some samples; `first` (1,) is the index of the first one."""
        if self._random_collate is not None:
            (batch,) = self._random_collate.map([samples], self._seed, np.array([epoch]), first)
            return batch
        if self._collate is not None:
            return self._collate(samples)
        if "unistore.data.sample" in (type(samples).__module__, type(samples[0]).__module__):
            from unistore.data.collate import collate

            return collate(samples)
        return collate_into(samples, allocate)


def choose_fetch(dataset: Any, collate: Collate | None, seed: int) -> Fetch:
    """Return the fastest way to read a dataset.

    Whole batches are read in one go where nothing has to see single samples: without a transform, and with a
    collation that only arranges the arrays that were read.

    Raises
    ------
    TypeError
        The dataset has neither ``read_batch`` nor ``__getitem__``, or is a path.
    """
    if isinstance(dataset, str | os.PathLike):
        msg = f"the loader reads datasets: unistore.Loader(unistore.Dataset({os.fspath(dataset)!r}), …)"
        raise TypeError(msg)
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        msg = f"the loader reads map-style datasets (__len__ and __getitem__), got {type(dataset).__name__}"
        raise TypeError(msg)
    batched = hasattr(dataset, "read_batch")
    if batched and only_arranges(collate) and getattr(dataset, "transform", None) is None:
        return BatchFetch(dataset)
    return SampleFetch(dataset, collate, seed, carry_epoch=batched)


def only_arranges(collate: Collate | None) -> bool:
    """Whether a collation only arranges the arrays of a packed batch: the parent does that without a copy."""
    return not _may_draw(collate) and getattr(collate, "ragged", "packed") in ("packed", "list")


def _may_draw(function: Callable[..., Any] | None) -> TypeGuard[Callable[..., Any]]:
    """Whether a function may draw random numbers; our collations do not."""
    return function is not None and getattr(function, "__module__", None) != "unistore.data.collate"


def _draws_globally(function: Callable[..., Any] | None) -> bool:
    """Whether a function may draw from the global generators."""
    return _may_draw(function) and not takes_rng(function)


def sample_error(
    error: Exception, fetch: Fetch, dataset: Any, indices: NDArray[np.int64], epoch: int
) -> SampleError:
    """Find the sample of a batch that fails, by reading them one at a time.

    Parameters
    ----------
    error
        What reading the batch raised.
    fetch, dataset, indices, epoch
        How the batch was read.
    """
    for index in indices.tolist():
        try:
            fetch(np.array([index]), epoch, np.empty)
        except Exception as single:  # noqa: BLE001 - a dataset may raise anything
            _forget_context(single, error)
            source = _source(dataset, index)
            where = f"sample {index} ({source})" if source else f"sample {index}"
            message = f"{where}, epoch {epoch}: {in_one_line(single)}"
            return caused(SampleError(message, index, source), single)
    return batch_error(error, indices, epoch)


def _forget_context(error: BaseException, handled: BaseException) -> None:
    """Take an error that was being handled out of the chain of another: its traceback would be told twice."""
    while error.__context__ is not None and error.__context__ is not handled:
        error = error.__context__
    error.__context__ = None


def batch_error(error: BaseException, indices: NDArray[np.int64], epoch: int) -> SampleError:
    """Error that names the samples of a batch, when no single one is known to fail."""
    listed = first_few([*map(str, indices)], 8)
    message = f"the batch of samples {listed} (epoch {epoch}): {in_one_line(error)}"
    return caused(SampleError(message), error)


def _source(dataset: Any, index: int) -> str:
    """The source of a sample, from ``dataset.source_of``."""
    describe = getattr(dataset, "source_of", None)
    if describe is None:
        return ""
    try:
        return str(describe(index))
    except Exception as error:  # noqa: BLE001 - the failure being reported matters more than this one
        return f"source unknown: {type(error).__name__}: {error}"
