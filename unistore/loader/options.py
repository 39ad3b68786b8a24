"""Arguments of the Loader, checked and resolved: one record, which the rest of the Loader uses."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Self

from unistore.loader.fetch import Collate, Fetch, choose_fetch, packs_samples
from unistore.loader.ordering import is_distributed, sequence_for
from unistore.order.sequences import EpochSequence
from unistore.order.shuffle_choice import NAMED, ShuffleKind
from unistore.system.arguments import MAX_EPOCH, MAX_WORKERS, Arguments, wrong_argument
from unistore.system.workers import environment_number, plan, resolve_ranks

if TYPE_CHECKING:
    import torch

# Default of ``prefetch_factor``: batches made ahead for each worker.
DEFAULT_PREFETCH = 4

# Options of torch's DataLoader without a meaning here: the default, and what to write instead
_TORCH_OPTIONS = {
    "batch_sampler": (None, "give batch_size, and shuffle or sampler for the order"),
    "timeout": (0, "remove it: a worker that dies raises WorkerDiedError at once"),
    "generator": (None, "give seed, which determines the order and the generators of workers"),
    "pin_memory_device": ("", "remove it: pin_memory=True uses the accelerator of this machine"),
    "in_order": (True, "remove it: batches always come in the order of the epoch, so a run can be resumed"),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class LoaderOptions:
    """Arguments of `Loader`, which describes them.

    Attributes
    ----------
    torch_options : mapping
        Arguments of torch's ``DataLoader`` without a meaning here, by name.
    ranks : (int, int), default (0, 1)
        Rank of this process, and number of ranks. `checked` sets it.
    are_ranks_stated : bool, default False
        Whether the ranks were given. Otherwise they may change until an epoch begins. `checked` sets it.
    finish : callable, optional
        Copies a batch to `device`, and transforms it. None: neither was requested. `checked` sets it.
    """

    batch_size: int | None
    shuffle: ShuffleKind | bool | None
    sampler: Any
    num_workers: int | str
    collate_fn: Collate | None
    pin_memory: bool
    drop_last: bool | None
    worker_init_fn: Callable[[int], object] | None
    multiprocessing_context: str | BaseContext | None
    prefetch_factor: int | None
    persistent_workers: bool
    seed: int
    rank: int | None
    world_size: int | None
    subset: Any
    weights: Any
    samples_per_epoch: int | None
    cache: str | int | None
    device: torch.device | str | None
    batch_transform: Callable[[Any], Any] | None
    log_every: int
    torch_options: Mapping[str, Any]
    ranks: tuple[int, int] = (0, 1)
    are_ranks_stated: bool = False
    finish: Callable[[Any], Any] | None = None

    def checked(self, dataset: Any) -> Self:
        """Return these options with numbers as Python integers, and with the ranks of this process.

        Parameters
        ----------
        dataset
            The dataset as it was given, perhaps a path.

        Raises
        ------
        InputError
            If options are invalid. It contains all problems.
        """
        check = Arguments()
        check.flag("drop_last", self.drop_last, none=True)
        check.flag("pin_memory", self.pin_memory)
        check.flag("persistent_workers", self.persistent_workers)
        check.function("collate_fn", self.collate_fn)
        check.function("worker_init_fn", self.worker_init_fn)
        check.integer("log_every", self.log_every)
        check.integer("prefetch_factor", self.prefetch_factor, 1, MAX_WORKERS, none=True)
        check.integer("seed", self.seed, None)
        check.integer("samples_per_epoch", self.samples_per_epoch, 1, MAX_EPOCH, none=True)
        is_order = self.shuffle is None or isinstance(self.shuffle, bool) or self.shuffle in NAMED
        check.expect("shuffle", self.shuffle, is_order, "True, False, 'full', 'blocks' or 'sources'")
        _refuse_torch_options(check, self.torch_options)
        check.integer("batch_size", self.batch_size, 1, none=True)
        if self.batch_size is None and packs_samples(self.collate_fn):
            check.refuse("collate_fn", "packs samples into a batch, but batch_size is None", "remove it")
        check.function("batch_transform", self.batch_transform)
        finish = self._finish(check)
        self._check_start_method(check, dataset)
        ranks = _ranks_of(check, self.sampler, self.rank, self.world_size)
        are_ranks_stated = self.rank is not None or self.world_size is not None
        are_ranks_stated = are_ranks_stated or is_distributed(self.sampler)
        check.raise_problems()
        return replace(
            self,
            batch_size=None if self.batch_size is None else int(self.batch_size),
            seed=int(self.seed),
            ranks=ranks,
            are_ranks_stated=are_ranks_stated,
            finish=finish,
        )

    def _finish(self, check: Arguments) -> Callable[[Any], Any] | None:
        if self.device is None and self.batch_transform is None:
            return None
        from unistore.loader.collating import ToDevice  # loads torch

        try:
            return ToDevice(self.device or "cpu", self.batch_transform)
        except (RuntimeError, TypeError) as error:
            check.refuse("device", f"{self.device!r} cannot be used: {str(error).splitlines()[0]}")
            return None

    def _check_start_method(self, check: Arguments, dataset: Any) -> None:
        methods = multiprocessing.get_all_start_methods()
        method = self.start_method(dataset)
        shown_methods = ", ".join(map(repr, methods))
        expected = f"one of {shown_methods}, or a context of multiprocessing"
        given = method if self.multiprocessing_context is None else self.multiprocessing_context
        check.expect("multiprocessing_context", given, method in methods, expected)

    @property
    def is_single(self) -> bool:
        """Whether samples are delivered one by one, without a batch dimension."""
        return self.batch_size is None

    @property
    def step(self) -> int:
        """Number of samples that this rank delivers at a time."""
        return self.batch_size or 1

    @property
    def ahead(self) -> int:
        """Number of batches to prepare ahead for each worker."""
        return int(self.prefetch_factor or DEFAULT_PREFETCH)

    def start_method(self, dataset: Any) -> str:
        """Return how workers are started.

        By default as the dataset prefers; otherwise by fork on Linux, and by spawn elsewhere.
        """
        context = self.multiprocessing_context
        if isinstance(context, BaseContext):
            return str(context.get_start_method())
        if context is not None:
            return str(context)
        preferred: object = getattr(dataset, "start_method", None)
        if preferred:
            return str(preferred)
        return "fork" if sys.platform == "linux" else "spawn"

    def workers(self, samples: int) -> int:
        """Return the number of worker processes for epochs of `samples` samples.

        ``"auto"`` is a share of the cores of this machine, and 0 in a process that cannot start any.

        Raises
        ------
        InputError
            If workers are requested in a process that cannot start any, such as a dask worker with its nanny.
        """
        if multiprocessing.current_process().daemon:
            if self.num_workers in (0, "auto"):
                return 0
            message = (
                f"is {self.num_workers}, but this process is daemonic, like a dask worker, "
                "and cannot start others"
            )
            fix = "give num_workers=0, or start 'dask worker --no-nanny'"
            raise wrong_argument("num_workers", message, fix)
        ranks = environment_number("LOCAL_WORLD_SIZE", 1)
        return plan(self.num_workers, 1 if isinstance(self.num_workers, int) else ranks, samples).per_rank

    def fetch(self, dataset: Any) -> Fetch:
        """Return what reads batches of a dataset."""
        return choose_fetch(dataset, self.collate_fn, self.seed, single=self.is_single)

    def sequence(self, dataset: Any) -> EpochSequence:
        """Return the order of the samples of a dataset in every epoch."""
        return sequence_for(
            dataset,
            self.shuffle or False,
            self.sampler,
            seed=self.seed,
            batch_size=self.step,
            subset=self.subset,
            weights=self.weights,
            samples_per_epoch=self.samples_per_epoch,
        )


def _refuse_torch_options(check: Arguments, options: Mapping[str, Any]) -> None:
    # A value that is torch's default is not a problem
    for name, value in options.items():
        default, fix = _TORCH_OPTIONS[name]
        if not (value is default or (type(value) in (int, float, str) and value == default)):
            check.refuse(
                name, f"is {value!r}, but Loader has no option {name}; PyTorch's DataLoader has", fix
            )


def _ranks_of(check: Arguments, sampler: Any, rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and world size. A ``DistributedSampler`` determines both."""
    if is_distributed(sampler):
        if rank is not None or world_size is not None:
            message = "does not work with a DistributedSampler, which sets the rank itself"
            check.refuse("rank", message, "remove rank and world_size")
        rank = sampler.rank
        world_size = sampler.num_replicas
    return resolve_ranks(check, rank, world_size)


def opened_dataset(
    caller: Callable[..., Any], dataset: Any, convert: Mapping[str, Any] | None, keywords: Mapping[str, Any]
) -> Any:
    """Return the dataset. A path becomes a `unistore.Dataset`, with the options of a conversion.

    Raises
    ------
    InputError
        If there are options of a conversion, but the dataset is not a path.
    """
    is_path = isinstance(dataset, str | os.PathLike)
    if not is_path and convert is None and not keywords:
        return dataset
    from unistore.data.source_paths import conversion_options

    options = conversion_options(caller, convert, keywords)
    if not is_path:
        message = "is an option to convert source files, but the dataset is not a path"
        fix = "give it to unistore.Dataset"
        raise wrong_argument(", ".join(options or ()) or "convert", message, fix)
    from unistore.data.dataset import Dataset

    return Dataset(dataset, convert=options)
