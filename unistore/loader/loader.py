"""The `Loader` class: prefetched batches in a reproducible order that can be resumed exactly."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, overload

from unistore.data.typed import CollatedT, DatasetT, SampleT
from unistore.errors import LoaderError, SampleError
from unistore.loader.cache import check_cache
from unistore.loader.epoch_batches import EpochBatches
from unistore.loader.iteration import Iteration, Meter, Producer, Requests
from unistore.loader.options import LoaderOptions, opened_dataset
from unistore.loader.ordering import drops_last, reading_ahead
from unistore.loader.producers import make_producer
from unistore.loader.state import RunState
from unistore.order.sequences import EpochSequence, InOrder, RankShare
from unistore.system.arguments import checked_epoch
from unistore.system.caller import warn_caller
from unistore.system.types import JsonObject
from unistore.system.workers import distributed_ranks

if TYPE_CHECKING:
    import torch

    from unistore.data.dataset import Dataset


class Loader(Generic[DatasetT, CollatedT]):
    """Batches of a dataset, prepared ahead by worker processes in shared memory.

    It has the arguments of PyTorch's ``DataLoader`` in the same order, and some of its own. Each ``for``
    loop is one epoch. Leaving a loop early ends its epoch. Only one iteration is active at a time;
    several threads may share it.

    **Order.** The order of an epoch depends only on the seed and the epoch, not on workers, prefetching,
    the start method or ranks. `state_dict` and `load_state_dict` resume a run exactly, also in the middle
    of an epoch.

    **Batches.** You can keep a batch: it never changes while you hold it. The first batches that you hold
    stay where they were decoded; further ones are copied.

    Parameters
    ----------
    dataset : Dataset, map-style dataset, or path
        A `unistore.Dataset`, which reads whole batches, or any map-style dataset. A path is opened as a
        `unistore.Dataset`: a store, or source files, which are converted once.
    batch_size : int or None, default 1
        Number of samples of a batch on this rank. None: samples one by one, without a batch dimension, as
        ``dataset[i]`` returns them. ``len(loader)`` is then the number of samples, and ranks take samples
        in turn.
    shuffle : bool or {"full", "blocks", "sources"}, default False
        False: in order. ``"full"``: a random permutation. ``"blocks"``: samples that share chunks stay
        close together; see `unistore.order.sequences`. True: blocks if a full shuffle would decode more
        than 8 samples for each sample that it delivers (a warning says so), otherwise full.
        ``"sources"``: one source file after another, in random order, the samples of each shuffled.
    sampler : optional
        Samples of an epoch and their order: an `EpochSequence`, `unistore.Shuffle`, sample indices, or
        torch's ``RandomSampler``, ``SequentialSampler``, ``SubsetRandomSampler``,
        ``WeightedRandomSampler`` or ``DistributedSampler``. Torch's samplers decide which samples an
        epoch has, how often, with what probability and on which rank; the order depends on the seed and
        the epoch. Ranks share the samples of a sampler. ``set_epoch`` of a sampler sets the epoch of the
        Loader, but is not needed. None: as `shuffle` states.
    num_workers : int or "auto", default "auto"
        Number of worker processes. ``"auto"``: from the available cores. 0: batches are read inside
        ``next()``, and the global random generators are as before afterwards.
    collate_fn : callable, optional
        Called in the workers with a list of samples; returns the batch. If `batch_size` is None, it is
        called with each sample. With a parameter ``rng``, it gets
        a ``numpy.random.Generator`` seeded by (`seed`, epoch, index of the first sample of the batch);
        otherwise the global generators of ``random``, NumPy and PyTorch are seeded from these. None:
        packed batches for a `unistore.Dataset`, otherwise as ``torch.utils.data.default_collate``.
    pin_memory : bool, default False
        Copy tensors into pinned memory, for asynchronous copies to an accelerator.
    drop_last : bool, optional
        True: only whole batches, the same number on every rank. False: every sample, so that ranks may
        take different numbers of steps. None: True if you shuffle for several ranks without a
        ``DistributedSampler``, otherwise False.
    worker_init_fn : callable, optional
        Called once in every worker with its number.
    multiprocessing_context : str or context, optional
        ``"fork"``, ``"forkserver"``, ``"spawn"``, or a context of `multiprocessing`. None: the attribute
        ``start_method`` of the dataset if it has one, otherwise fork on Linux and spawn elsewhere.
    prefetch_factor : int, optional
        Number of batches to prepare ahead for each worker. Fewer if they would take more than 256 MB
        together, but at least one per worker, and never more than a quarter of the memory. None: 4.
    persistent_workers : bool, default True
        Accepted and ignored: workers always live until the loader is closed.
    batch_sampler, timeout, generator, pin_memory_device, in_order
        Arguments of ``DataLoader`` without a meaning here. Any value except torch's default is an error,
        which says what to write instead.
    seed : int, default 0
        Seed of the order, and of random numbers in `collate_fn`, in `worker_init_fn` and in samples of a
        dataset without ``read_batch``. A `unistore.Dataset` has its own seed.
    rank, world_size : int, optional
        Number of this process, and number of processes that share each step. None: from
        ``torch.distributed`` if it is initialised when an epoch begins, otherwise from ``RANK`` and
        ``WORLD_SIZE``, otherwise 0 and 1.
    subset : indices, or one bool per sample, optional
        Samples to use. None: all samples.
    weights : sequence of float, optional
        One weight per sample (of `subset`): samples are drawn with replacement, in proportion. Needs
        ``shuffle=True``. None: the ``weights`` of the dataset for its stores if it has any, otherwise
        every sample once per epoch.
    samples_per_epoch : int, optional
        Number of draws per epoch; only with weights. None: the number of samples.
    cache : str or int, optional
        Only for a `unistore.Dataset`. A size (``"4GB"``, or bytes) or ``"all"``: keep decoded chunks in a
        temporary file that all workers share, until it is full; random samples are drawn from them anew.
        ``"disk"``: keep the samples of a Dataset without anything random in a file of its `cache_dir`,
        for later runs and other processes; the first run decodes all samples before its first batch.
        None: no cache.
    device : torch.device or str, optional
        Copy batches to this device, on a stream of their own. A copy runs at the same time as the step
        before it, unless the loop waits for each step (``loss.item()``). None: batches stay in host
        memory.
    batch_transform : callable, optional
        Called in this process with every batch, on that device and stream. Its random numbers are not
        seeded, so a resumed run does not repeat them.
    log_every : int, default 0
        Report one line after so many batches. 0: never.
    convert, **options
        Options of the conversion of source files, as in `unistore.Dataset`.

    Raises
    ------
    InputError
        If arguments are invalid. It contains all problems.
    TypeError
        If the dataset is not map-style. If a keyword is neither an argument nor an option of a
        conversion.

    See Also
    --------
    unistore.Dataset : The samples.
    unistore.Shuffle : The same orders for PyTorch's ``DataLoader``.

    Examples
    --------
    >>> dataset = unistore.Dataset("arrays.zarr", split="train")  # doctest: +SKIP
    >>> loader = unistore.Loader(dataset, batch_size=64, shuffle=True, seed=1)  # doctest: +SKIP
    >>> for epoch in range(10):  # doctest: +SKIP
    ...     for batch in loader:
    ...         train(batch["data"], batch["label"])

    Batches on a GPU, and a checkpoint that resumes in the middle of an epoch:

    >>> loader = unistore.Loader(dataset, batch_size=64, shuffle=True, device="cuda")  # doctest: +SKIP
    >>> loader.load_state_dict(torch.load("checkpoint.pt")["loader"])  # doctest: +SKIP
    """

    def __init__(
        self,
        dataset: DatasetT,
        batch_size: int | None = 1,
        shuffle: bool | Literal["full", "blocks", "sources"] | None = False,
        sampler: Any = None,
        batch_sampler: None = None,
        num_workers: int | str = "auto",
        collate_fn: Callable[[Any], CollatedT] | None = None,
        pin_memory: bool = False,
        drop_last: bool | None = None,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = True,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        subset: Any = None,
        weights: Any = None,
        samples_per_epoch: int | None = None,
        cache: str | int | None = None,
        device: torch.device | str | None = None,
        batch_transform: Callable[[Any], Any] | None = None,
        log_every: int = 0,
        convert: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        chosen = LoaderOptions(
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=drop_last,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            seed=seed,
            rank=rank,
            world_size=world_size,
            subset=subset,
            weights=weights,
            samples_per_epoch=samples_per_epoch,
            cache=cache,
            device=device,
            batch_transform=batch_transform,
            log_every=log_every,
            torch_options={
                "batch_sampler": batch_sampler,
                "timeout": timeout,
                "generator": generator,
                "pin_memory_device": pin_memory_device,
                "in_order": in_order,
            },
        ).checked(dataset)
        self._options = chosen
        self.dataset: Any = opened_dataset(Loader.__init__, dataset, convert, options)
        self.start_method = chosen.start_method(self.dataset)
        self.batch_size = chosen.batch_size
        self.seed = chosen.seed
        self.worker_init_fn = worker_init_fn
        fetch = chosen.fetch(self.dataset)
        self._packed = fetch.packed
        if cache is not None:
            check_cache(self.dataset, fetch, cache)
        self._run = RunState(self.dataset, chosen.sequence)
        self._reads = reading_ahead(self.dataset, self.sequence)
        self.num_workers = chosen.workers(len(self.sequence))
        self.rank, self.world_size = chosen.ranks
        self.drop_last = drops_last(drop_last, sampler, self.sequence, self.world_size)
        self.pin_memory = pin_memory and _can_pin()
        self._meter = Meter(log_every)
        self._sampler_epoch = 0
        self._current: weakref.ref[Iteration] | None = None
        self._producer: list[Producer] = []
        self._requests: Requests | None = None
        self._owner = os.getpid()
        self._lock = threading.RLock()
        weakref.finalize(self, _close_all, self._producer)

    def __repr__(self) -> str:
        order = type(self.sequence).__name__
        workers = f"num_workers={self.num_workers}"
        summary = f"batch_size={self.batch_size}, {workers}, {order}, epoch {self.epoch}, {len(self)} batches"
        return f"Loader({self.dataset!r},\n       {summary})"

    def _repr_html_(self) -> str:
        from unistore.html import text_html

        inner = getattr(self.dataset, "_repr_html_", lambda: text_html(repr(self.dataset)))()
        summary = repr(self).rpartition("\n")[2].strip().removesuffix(")")
        return f"<div><strong>Loader</strong> {text_html(summary)}{inner}</div>"

    def __len__(self) -> int:
        """Return the number of batches of this rank in a whole epoch."""
        return self.share().steps

    @overload
    def __iter__(self: Loader[Dataset[SampleT], None]) -> Iterator[SampleT]: ...
    @overload
    def __iter__(self: Loader[Any, None]) -> Iterator[Any]: ...
    @overload
    def __iter__(self) -> Iterator[CollatedT]: ...
    def __iter__(self) -> Iterator[Any]:
        with self._exclusive():
            if self._run.is_older and self._run.progress.begun:
                self._finish_epoch()
            self._follow_ranks()
            requests = self._ready_requests()
            self._follow_sampler()
            epoch, start = self._run.progress.begin()
            try:
                iteration = Iteration(self._deliver, requests, epoch, requests.begin(epoch, start))
            except BaseException:
                self.close()
                raise
            self._current = weakref.ref(iteration)
            self._meter.begin()
            return iteration

    def _follow_ranks(self) -> None:
        # Trainers may start the processes, or initialise torch.distributed, after the loader was made
        options = self._options
        ranks = None if options.are_ranks_stated else distributed_ranks()
        if ranks is not None and ranks != (self.rank, self.world_size):
            self.rank, self.world_size = ranks
            self.drop_last = drops_last(options.drop_last, options.sampler, self.sequence, self.world_size)
            self._requests = None

    def _follow_sampler(self) -> None:
        sampler = self._options.sampler
        epoch = getattr(sampler, "epoch", 0) if hasattr(sampler, "set_epoch") else 0
        if epoch != self._sampler_epoch:
            self._sampler_epoch = epoch
            self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration. Without it, every iteration is the epoch after the last one.

        Parameters
        ----------
        epoch : int
            Number of the epoch, from 0.
        """
        is_other = epoch != self.epoch or self._run.progress.begun
        self._run.progress.set_epoch(checked_epoch(epoch))
        if is_other and self._run.end_older():
            self._requests = None

    def _finish_epoch(self) -> None:
        self._run.progress.finish()
        if self._run.end_older():
            self._requests = None

    @property
    def sequence(self) -> EpochSequence:
        """Order of the samples of each epoch."""
        return self._run.sequence

    @property
    def epoch(self) -> int:
        """Epoch that is being iterated; between iterations, the next one."""
        return self._run.progress.epoch

    def state_dict(self) -> JsonObject:
        """Return the position in the run. Batches that were prefetched but not delivered do not count.

        Returns
        -------
        dict
            JSON values: the epoch, the number of delivered samples, a hash of the dataset, and the order.
            They are the same on every rank after the same step.

        Examples
        --------
        >>> state = {"model": model.state_dict(), "loader": loader.state_dict()}  # doctest: +SKIP
        >>> torch.save(state, "checkpoint.pt")  # doctest: +SKIP
        """
        return self._run.save()

    def load_state_dict(self, state: Mapping[str, Any], *, extend: bool = False) -> None:
        """Continue from a saved position, also in the middle of an epoch.

        Workers, prefetching, batch size and the number of ranks may differ from the run that saved the state.

        Parameters
        ----------
        state : dict
            Result of `state_dict`.
        extend : bool, default False
            For a store that has grown since. True: finish the epoch with the samples of the version that
            the state belongs to; the next epoch has all samples. Later versions may only have added
            samples.

        Raises
        ------
        LoaderError
            If the state belongs to other samples, another order, or another version. The message names
            the difference.
        """
        with self._exclusive():
            self._run.load(state, extend=extend)
            self._current = self._requests = None

    def stats(self) -> JsonObject:
        """Return the path of the store, and totals since the loader was made.

        Returns
        -------
        dict
            JSON values; see `unistore.loader.iteration.Stats`.
        """
        return {"store": getattr(self.dataset, "path", None), **asdict(self._meter.totals)}

    # What else a `DataLoader` has, which Trainers look at

    timeout = 0
    generator = None
    pin_memory_device = ""
    in_order = True

    @property
    def batch_sampler(self) -> EpochBatches | None:
        """Sample indices of the batches of the next epoch, for a ``DataLoader`` of the same batches.

        None if samples are delivered one by one.
        """
        return None if self.batch_size is None else EpochBatches(self)

    @property
    def sampler(self) -> Any:
        """The sampler that was given, or torch's ``SequentialSampler`` if samples come in order."""
        if self._options.sampler is None and isinstance(self.sequence, InOrder):
            from torch.utils.data import SequentialSampler

            return SequentialSampler(self.dataset)
        return self._options.sampler

    @property
    def collate_fn(self) -> Callable[[Any], Any]:
        """Function that makes batches of samples: the one that was given, or the default."""
        if self._options.collate_fn is not None:
            return self._options.collate_fn
        if self.batch_size is None:
            from torch.utils.data import default_convert

            return default_convert
        if hasattr(self.dataset, "read_batch"):
            from unistore.data.collate import collate

            return collate
        from unistore.loader.collating import collate_samples

        return collate_samples

    @property
    def prefetch_factor(self) -> int | None:
        """Number of batches prepared ahead for each worker. None: there are no workers."""
        return self._options.ahead if self.num_workers else None

    @property
    def persistent_workers(self) -> bool:
        """Whether there are workers. They live until the loader is closed."""
        return self.num_workers > 0

    @property
    def multiprocessing_context(self) -> str | None:
        """How workers are started. None: there are no workers."""
        return self.start_method if self.num_workers else None

    @property
    def finishes_batches(self) -> bool:
        """Whether batches are copied to a device or transformed in this process."""
        return self._options.finish is not None

    def upcoming_epoch(self) -> int:
        """Return the epoch of the next iteration."""
        self._follow_sampler()
        return self._run.progress.upcoming

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the running workers."""
        return self._producer[0].pids if self._producer else []

    def close(self) -> None:
        """End the workers and free memory.

        Batches that you hold stay valid. A new iteration starts new workers.
        """
        with self._exclusive():
            self._current = self._requests = None
            _close_all(self._producer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _exclusive(self) -> threading.RLock:
        # A forked child has neither producer nor iteration: the parent's workers are not its own, nor are
        # threads that held the lock
        if self._owner != os.getpid():
            self._owner = os.getpid()
            self._lock = threading.RLock()
            self._current = None
        return self._lock

    def share(self) -> RankShare:
        """Return the positions of a whole epoch that this rank delivers."""
        self._follow_ranks()
        return RankShare(
            length=len(self.sequence),
            batch_size=self._options.step,
            rank=self.rank,
            world_size=self.world_size,
            drop_last=self.drop_last,
        )

    def _ready_requests(self) -> Requests:
        if self._producer and not self._producer[0].usable:
            _close_all(self._producer)
        if not self._producer:
            self._producer.append(self._make_producer())
            self._requests = None
        if self._requests is None:
            self._requests = Requests(
                self._producer[0],
                self.sequence,
                self.share(),
                across_epochs=self.num_workers > 0 and not self._run.is_older,
            )
        return self._requests

    def _make_producer(self) -> Producer:
        return make_producer(
            self._options,
            self._reads,
            workers=self.num_workers,
            start_method=self.start_method,
            worker_init_fn=self.worker_init_fn,
            round_robin=getattr(self.sequence, "lanes", None) is not None,
        )

    def _deliver(self, iteration: Iteration) -> Any:
        with self._exclusive():
            return self._next_batch(iteration)

    def _next_batch(self, iteration: Iteration) -> Any:
        if iteration.over:
            raise StopIteration
        if self._current is None or self._current() is not iteration or not self._producer:
            msg = (
                "this iteration has ended, because the Loader was closed, iterated again, or used in another "
                "thread or forked process. Fix: iterate it again, and use a separate Loader in each thread"
            )
            raise LoaderError(msg)
        from unistore.data.collate import as_tensors, pin  # loads torch

        started = time.perf_counter()
        try:
            arrival = iteration.advance()
            if arrival is None:
                self._finish_epoch()
                self._current = None
                raise StopIteration
            batch = arrival.batch
            if self._packed:
                batch = as_tensors(batch, self._options.collate_fn)
        except (StopIteration, SampleError):
            raise
        except BaseException:
            self.close()  # Ctrl-C may have cut a message in half; the death of a worker has closed the pool
            raise
        waited = time.perf_counter() - started
        self._run.progress.deliver(iteration.epoch, iteration.delivered)
        self._meter.count(arrival, waited, iteration)
        if self.pin_memory:
            batch = pin(batch)
        finish = self._options.finish
        return batch if finish is None else finish(batch)


def _close_all(producers: list[Producer]) -> None:
    while producers:
        producers.pop().close()


def _can_pin() -> bool:
    import torch

    accelerator = getattr(torch, "accelerator", torch.cuda)  # torch has the former since 2.6
    if accelerator.is_available():
        return True
    warn_caller("pin_memory is ignored, because there is no accelerator")
    return False
