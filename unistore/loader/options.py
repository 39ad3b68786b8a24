"""Resolves arguments of the Loader: rank, world size, start method, number of workers."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing.context import BaseContext
from typing import Any

from unistore.errors import InputError, Problem
from unistore.loader.samplers import is_distributed
from unistore.system.arguments import MAX_WORKERS, Arguments
from unistore.system.ranks import resolve_ranks
from unistore.system.workers import environment_number, plan

DEFAULT_PREFETCH = 4
"""Default of ``prefetch_factor``: batches made ahead for each worker."""

_TORCH_OPTIONS = {
    "batch_sampler": (None, "batch_size=…, with shuffle=… or sampler=… for the order"),
    "timeout": (0, "leave it out: a worker that dies raises WorkerDiedError at once"),
    "generator": (None, "seed=…: the order and the generators of workers follow from it"),
    "pin_memory_device": ("", "leave it out: pin_memory=True pins for the accelerator that is there"),
    "in_order": (True, "leave it out: batches come in the order of the epoch, so that a run can be resumed"),
}
"""Options of torch's DataLoader without a meaning here: the default, and what to write instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Rank of this process, and how its workers run.

    Attributes
    ----------
    rank, world_size
        This process among those that share an epoch.
    start_method
        Of worker processes.
    prefetch
        Batches made ahead for each worker.
    """

    rank: int
    world_size: int
    start_method: str
    prefetch: int


def refuse_torch_options(check: Arguments, given: Mapping[str, Any]) -> None:
    """Note options of torch's DataLoader that have no meaning here, unless they are torch's defaults."""
    for name, value in given.items():
        default, cure = _TORCH_OPTIONS[name]
        if not (value is default or (type(value) in (int, float, str) and value == default)):
            check.refuse(name, f"is {value!r}, and has no meaning here", cure)


def resolve_placement(
    check: Arguments,
    *,
    batch_size: int | None,
    seed: int,
    prefetch_factor: int | None,
    multiprocessing_context: str | BaseContext | None,
    sampler: Any,
    rank: int | None,
    world_size: int | None,
    dataset: Any,
) -> Placement:
    """Resolve rank, world size, start method and prefetching.

    Raises
    ------
    InputError
        With all invalid arguments, including those already in `check`.
    """
    if batch_size is None:
        cure = "batch_size=1, collate_fn=operator.itemgetter(0) delivers samples one by one"
        check.refuse("batch_size", "is None, and samples are always collated", cure)
    else:
        check.integer("batch_size", batch_size, 1)
    check.integer("prefetch_factor", prefetch_factor, 1, MAX_WORKERS, none=True)
    check.integer("seed", seed, None)
    method = _start_method(check, multiprocessing_context, dataset)
    if is_distributed(sampler):
        if rank is not None or world_size is not None:
            check.refuse("rank", "DistributedSampler says the rank, too", "leave out rank and world_size")
        rank, world_size = sampler.rank, sampler.num_replicas
    own_rank, ranks = resolve_ranks(check, rank, world_size)
    check.raise_problems()
    prefetch = DEFAULT_PREFETCH if prefetch_factor is None else int(prefetch_factor)
    return Placement(rank=own_rank, world_size=ranks, start_method=method, prefetch=prefetch)


def _start_method(check: Arguments, context: str | BaseContext | None, dataset: Any) -> str:
    known = multiprocessing.get_all_start_methods()
    if context is None:
        preferred: object = getattr(dataset, "start_method", None)
        context = str(preferred) if preferred else "fork" if sys.platform == "linux" else "spawn"
    method = context.get_start_method() if isinstance(context, BaseContext) else context
    listed = ", ".join(map(repr, known))
    expected = f"one of {listed}, or a context of multiprocessing"
    check.expect("multiprocessing_context", context, method in known, expected)
    return str(method)


def workers_for(num_workers: int | str, samples: int) -> int:
    """Return the number of worker processes; ``"auto"`` shares the cores among the ranks of this machine.

    0 in a process that may start no others, such as a dask worker with its nanny.
    """
    if multiprocessing.current_process().daemon:
        if num_workers in (0, "auto"):
            return 0
        message = f"is {num_workers}, but this process is daemonic, as dask workers are: it starts no others"
        cure = "num_workers=0, or 'dask worker --no-nanny'"
        raise InputError(Problem("num_workers", message, cure, "option"))
    ranks = environment_number("LOCAL_WORLD_SIZE", 1)
    try:
        if isinstance(num_workers, int):
            plan(num_workers)  # raises unless it is a valid number of workers
            return num_workers
        return plan(num_workers, ranks, samples).per_rank
    except InputError as error:
        raise InputError(
            [replace(each, file="num_workers", dataset="") for each in error.problems]
        ) from error
