"""The `Loader` class: prefetched batches in a reproducible order that can be resumed exactly."""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, overload

from unistore.data.typed import CollatedT, DatasetT, SampleT
from unistore.errors import LoaderError, SampleError
from unistore.loader.cache import cache_file, cached, check_cache
from unistore.loader.epoch_batches import EpochBatches
from unistore.loader.fetch import InProcess, choose_fetch, packs_samples
from unistore.loader.iteration import (
    EpochProgress,
    Iteration,
    Producer,
    Requests,
    Stats,
    dataset_digest,
    report,
)
from unistore.loader.ordering import (
    DEFAULT_PREFETCH,
    drops_last,
    is_distributed,
    opened_dataset,
    ranks_of,
    reading_ahead,
    refuse_torch_options,
    resolve_start_method,
    sequence_for,
    workers_for,
)
from unistore.memory import SlabRing
from unistore.order.sequences import NAMED, EpochSequence, InOrder, RankShare
from unistore.system.arguments import MAX_EPOCH, MAX_WORKERS, Arguments, checked_epoch
from unistore.system.machine import available_memory
from unistore.system.types import JsonObject
from unistore.system.workers import distributed_ranks

if TYPE_CHECKING:
    import torch

    from unistore.data.dataset import Dataset

# Batches that the consumer may hold before further ones are copied.
HELD_BATCHES = 4
# Slabs take at most a quarter of the available memory.
MEMORY_DIVISOR = 4


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
        check = Arguments()
        check.flag("drop_last", drop_last, none=True)
        check.flag("pin_memory", pin_memory)
        check.flag("persistent_workers", persistent_workers)
        check.function("collate_fn", collate_fn)
        check.function("worker_init_fn", worker_init_fn)
        check.integer("log_every", log_every)
        check.integer("prefetch_factor", prefetch_factor, 1, MAX_WORKERS, none=True)
        check.integer("seed", seed, None)
        check.integer("samples_per_epoch", samples_per_epoch, 1, MAX_EPOCH, none=True)
        right = shuffle is None or isinstance(shuffle, bool) or shuffle in NAMED
        expected = "True, False, 'full', 'blocks' or 'sources'"
        check.expect("shuffle", shuffle, right, expected)
        refuse_torch_options(
            check,
            {
                "batch_sampler": batch_sampler,
                "timeout": timeout,
                "generator": generator,
                "pin_memory_device": pin_memory_device,
                "in_order": in_order,
            },
        )
        check.integer("batch_size", batch_size, 1, none=True)
        if batch_size is None and packs_samples(collate_fn):
            check.refuse("collate_fn", "packs samples into a batch, but batch_size is None", "remove it")
        check.function("batch_transform", batch_transform)
        self._to_device: Callable[[Any], Any] | None = None
        if device is not None or batch_transform is not None:
            from unistore.loader.collating import ToDevice  # loads torch

            try:
                self._to_device = ToDevice(device or "cpu", batch_transform)
            except (RuntimeError, TypeError) as error:
                check.refuse("device", f"{device!r} cannot be used: {str(error).splitlines()[0]}")
        resolve_start_method(check, multiprocessing_context, dataset)
        self._are_ranks_stated = rank is not None or world_size is not None or is_distributed(sampler)
        self.rank, self.world_size = ranks_of(check, sampler, rank, world_size)
        check.raise_problems()
        dataset = opened_dataset(Loader.__init__, dataset, convert, options)
        self.start_method = resolve_start_method(check, multiprocessing_context, dataset)
        self.batch_size = None if batch_size is None else int(batch_size)
        self._step = self.batch_size or 1
        fetch = choose_fetch(dataset, collate_fn, int(seed), single=self.batch_size is None)
        self._packed = fetch.packed
        if cache is not None:
            check_cache(dataset, fetch, cache)
        self.dataset: Any = dataset
        self.seed = int(seed)
        self._sampler = sampler
        self._sampler_epoch = 0
        self._sequence_for = partial(
            sequence_for,
            shuffle=shuffle or False,
            sampler=sampler,
            seed=self.seed,
            batch_size=self._step,
            subset=subset,
            weights=weights,
            samples_per_epoch=samples_per_epoch,
        )
        self.sequence = self._sequence_for(dataset)
        self._extended: EpochSequence | None = None  # order of later epochs, if this one is of an old version
        self._reads = reading_ahead(dataset, self.sequence)
        self.num_workers = workers_for(num_workers, len(self.sequence))
        self._ahead = int(prefetch_factor or DEFAULT_PREFETCH)
        self._collate_fn = collate_fn
        self.worker_init_fn = worker_init_fn
        self._drop_last = drop_last
        self.drop_last = drops_last(drop_last, sampler, self.sequence, self.world_size)
        self.pin_memory = pin_memory and _can_pin()
        self._cache = cache
        self._log_every = log_every
        self._progress = EpochProgress(dataset_digest(dataset), getattr(dataset, "version", None))
        self._stats = Stats()
        self._unreported = Stats()
        self._reported = time.perf_counter()
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
            if self._extended is not None and self._progress.begun:
                self._progress.finish()
                self._take_extended()
            self._follow_ranks()
            requests = self._ready_requests()
            self._follow_sampler()
            epoch, start = self._progress.begin()
            try:
                iteration = Iteration(self._deliver, requests, epoch, requests.begin(epoch, start))
            except BaseException:
                self.close()
                raise
            self._current = weakref.ref(iteration)
            self._unreported = Stats()
            self._reported = time.perf_counter()
            return iteration

    def _follow_ranks(self) -> None:
        # Trainers may start the processes, or initialise torch.distributed, after the loader was made
        ranks = None if self._are_ranks_stated else distributed_ranks()
        if ranks is not None and ranks != (self.rank, self.world_size):
            self.rank, self.world_size = ranks
            self.drop_last = drops_last(self._drop_last, self._sampler, self.sequence, self.world_size)
            self._requests = None

    def _follow_sampler(self) -> None:
        epoch = getattr(self._sampler, "epoch", 0) if hasattr(self._sampler, "set_epoch") else 0
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
        is_other = epoch != self.epoch or self._progress.begun
        self._progress.set_epoch(checked_epoch(epoch))
        if is_other:
            self._take_extended()

    @property
    def epoch(self) -> int:
        """Epoch that is being iterated; between iterations, the next one."""
        return self._progress.epoch

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
        return self._progress.save(self.sequence)

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
        fields = state if isinstance(state, Mapping) else {}
        dataset = self.dataset
        version = getattr(dataset, "version", None)
        saved = fields.get("store_version", 1)
        digest = dataset_digest(dataset)
        is_older = version is not None and fields.get("digest") != digest and saved != version
        if is_older and not extend:
            msg = (
                f"load_state_dict: the state was saved with version {saved!r} of {dataset.path}, but version "
                f"{version} is open. Fix: open Dataset(…, version={saved!r}), or finish that epoch with "
                "load_state_dict(state, extend=True)"
            )
            raise LoaderError(msg)
        if is_older:
            dataset = dataset.at_version(saved)
            if not self.dataset.extends(dataset):
                msg = (
                    f"load_state_dict: version {version} of {dataset.path} does not have all samples "
                    f"of version {saved!r}, or has another sample kind. "
                    f"Fix: open Dataset(…, version={saved!r}), or start a new epoch without the state"
                )
                raise LoaderError(msg)
            digest = dataset_digest(dataset)
            version = saved
        whole = self.sequence if self._extended is None else self._extended
        sequence = self._sequence_for(dataset) if is_older else whole
        order = fields.get("order")
        sequence = sequence.arranged(order) if isinstance(order, Mapping) else sequence
        progress = EpochProgress(digest, version)
        with self._exclusive():
            progress.load(state, sequence)
            self._extended = whole if is_older else None
            self._progress = progress
            self.sequence = sequence
            self._current = self._requests = None

    def _take_extended(self) -> None:
        # The epoch of an old version is over
        if self._extended is not None:
            self.sequence = self._extended
            self._progress.follow(dataset_digest(self.dataset), self.dataset.version)
            self._extended = self._requests = None

    def stats(self) -> JsonObject:
        """Return the path of the store, and totals since the loader was made.

        Returns
        -------
        dict
            JSON values; see `unistore.loader.iteration.Stats`.
        """
        return {"store": getattr(self.dataset, "path", None), **asdict(self._stats)}

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
        if self._sampler is None and isinstance(self.sequence, InOrder):
            from torch.utils.data import SequentialSampler

            return SequentialSampler(self.dataset)
        return self._sampler

    @property
    def collate_fn(self) -> Callable[[Any], Any]:
        """Function that makes batches of samples: the one that was given, or the default."""
        if self._collate_fn is not None:
            return self._collate_fn
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
        return self._ahead if self.num_workers else None

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
        return self._to_device is not None

    def upcoming_epoch(self) -> int:
        """Return the epoch of the next iteration."""
        self._follow_sampler()
        return self._progress.upcoming

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
            batch_size=self._step,
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
                across_epochs=self.num_workers > 0 and self._extended is None,
            )
        return self._requests

    def _make_producer(self) -> Producer:
        workers = self.num_workers
        single = self.batch_size is None
        fetch = choose_fetch(self._reads, self._collate_fn, self.seed, single=single)
        file = None if self._cache is None else cache_file(self.dataset, fetch, self._cache)
        ring = SlabRing(
            in_flight=self._ahead * workers,
            held=HELD_BATCHES,
            budget=available_memory() // MEMORY_DIVISOR,
            least=max(1, workers),
            shared=workers > 0,
        )
        producer: Producer
        if workers > 0:
            # needs sockets that carry descriptors, and poll: not on every platform
            from unistore.loader.worker_pool import BatchConfig, WorkerPool

            lanes = getattr(self.sequence, "lanes", None)
            config = BatchConfig(
                workers=workers,
                seed=self.seed,
                dataset=self._reads,
                collate=self._collate_fn,
                worker_init_fn=self.worker_init_fn,
                cache=file,
                single=single,
            )
            producer = WorkerPool(config, self.start_method, ring, round_robin=lanes is not None)
        else:
            if file is not None:
                fetch = cached(self.dataset, fetch, file.region(file.descriptor))
            producer = InProcess(fetch, self._reads, ring)
        if file is not None:
            weakref.finalize(producer, file.close)
        return producer

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
                self._progress.finish()
                self._take_extended()
                self._current = None
                raise StopIteration
            batch = as_tensors(arrival.batch, self._collate_fn) if self._packed else arrival.batch
        except (StopIteration, SampleError):
            raise
        except BaseException:
            self.close()  # Ctrl-C may have cut a message in half; the death of a worker has closed the pool
            raise
        waited = time.perf_counter() - started
        self._stats.count(arrival, waited)
        self._unreported.count(arrival, waited)
        self._progress.deliver(iteration.epoch, iteration.delivered)
        if self._log_every and self._stats.batches % self._log_every == 0:
            self._report(iteration)
        batch = pin(batch) if self.pin_memory else batch
        return batch if self._to_device is None else self._to_device(batch)

    def _report(self, iteration: Iteration) -> None:
        now = time.perf_counter()
        report(self._unreported.line(iteration.epoch, iteration.batches, now - self._reported))
        self._unreported = Stats()
        self._reported = now


def _close_all(producers: list[Producer]) -> None:
    while producers:
        producers.pop().close()


def _can_pin() -> bool:
    import torch

    accelerator = getattr(torch, "accelerator", torch.cuda)  # torch has the former since 2.6
    if accelerator.is_available():
        return True
    warnings.warn("pin_memory is ignored, because there is no accelerator", stacklevel=3)
    return False
