"""From what the user says to what the loader does: ranks, start method, order, number of workers."""

from __future__ import annotations

import multiprocessing
import os
import sys
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from unistore.errors import InputError, Problem
from unistore.order.blocks import GROUP, LANES, BlockShuffle, uniform_blocks
from unistore.order.sequences import EpochSequence, InOrder, Shuffled, Subset, Weighted
from unistore.system.arguments import EPOCHS, Arguments
from unistore.system.workers import MOST, environment_number, plan

__all__ = ["Placement", "place", "sequence_for", "workers_for"]

_SHUFFLE = "expected True, False or 'blocks', or a sequence of unistore.order.sequences"
PLAIN_BLOCK = 256
"""Samples of a block where a dataset cannot tell which samples share chunks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where and how this process takes part.

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


def place(
    *,
    batch_size: int,
    seed: int,
    prefetch: int,
    start_method: str | None,
    rank: int | None,
    world_size: int | None,
    dataset: Any,
) -> Placement:
    """Settle rank, world size and start method.

    Raises
    ------
    InputError
        Everything that does not fit, at once.
    """
    check = Arguments()
    check.whole("batch_size", batch_size, 1)
    check.whole("prefetch", prefetch, 1, MOST)
    check.whole("seed", seed, None)
    known = multiprocessing.get_all_start_methods()
    wished = start_method or getattr(dataset, "start_method", None)
    method = wished or ("fork" if sys.platform == "linux" else "spawn")
    check.one_of("start_method", method, known)
    ranks = check.whole("rank", rank, none=True), check.whole("world_size", world_size, 1, none=True)
    found_rank, found_size = _ranks(rank, world_size) if all(ranks) else (0, 1)
    if not 0 <= found_rank < found_size:
        check.refuse("rank", f"rank {found_rank} of {found_size}: must be at least 0 and below")
    check.settle()
    return Placement(rank=found_rank, world_size=found_size, start_method=method, prefetch=int(prefetch))


def _ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if rank is not None or world_size is not None:
        return rank or 0, 1 if world_size is None else world_size
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return environment_number("RANK", 0, least=0), environment_number("WORLD_SIZE", 1)
    return 0, 1


def workers_for(workers: int | str, samples: int) -> int:
    """Return the number of processes; ``"auto"`` shares the cores between the ranks of this machine."""
    ranks = environment_number("LOCAL_WORLD_SIZE", 1)
    if isinstance(workers, int):
        plan(workers, quiet=True)  # refuses what is no number of workers
        return workers
    return plan(workers, ranks, samples, quiet=True).train


def sequence_for(
    dataset: Any,
    shuffle: bool | str | EpochSequence,
    *,
    seed: int,
    batch_size: int,
    subset: Any,
    weights: Any,
    samples_per_epoch: int | None,
) -> EpochSequence:
    """Return the sequence of every epoch.

    Raises
    ------
    InputError
        Options that contradict each other, or indices outside the dataset.
    """
    if not isinstance(shuffle, (bool, str)):
        if not hasattr(shuffle, "indices"):
            raise InputError(Problem("shuffle", f"is {shuffle!r}, {_SHUFFLE}", kind="option"))
        if subset is not None or weights is not None:
            raise InputError(Problem("shuffle", "a sequence of its own leaves no room for subset or weights"))
        return shuffle
    check = Arguments()
    check.whole("samples_per_epoch", samples_per_epoch, 1, EPOCHS, none=True)
    check.settle()
    chosen = None if subset is None else _subset(subset, len(dataset))
    length = len(dataset) if chosen is None else len(chosen)
    offsets = None
    if weights is None and hasattr(dataset, "store_offsets") and dataset.weights is not None:
        weights, offsets = dataset.weights, dataset.store_offsets
        if chosen is not None:  # stores stay runs: which of their samples come where is drawn anyway
            chosen = np.sort(chosen)
            offsets = np.searchsorted(chosen, offsets)
    if weights is None and samples_per_epoch is not None:
        raise InputError(Problem("samples_per_epoch", "needs weights", kind="option"))
    if weights is not None:
        sequence = _weighted(weights, offsets, length, samples_per_epoch, seed, shuffle)
    elif shuffle is True:
        sequence = Shuffled(length, seed)
    elif shuffle is False:
        sequence = InOrder(length)
    elif shuffle == "blocks":
        together = getattr(dataset, "open_blocks", GROUP * LANES)
        sequence = BlockShuffle.within(_blocks(dataset, chosen), together, seed, deal=batch_size)
    else:
        raise InputError(Problem("shuffle", f"is {shuffle!r}, {_SHUFFLE}", kind="option"))
    return sequence if chosen is None else Subset(sequence, chosen)


def _weighted(
    weights: Any, offsets: Any, length: int, draws: int | None, seed: int, shuffle: bool | str
) -> EpochSequence:
    if shuffle is not True:
        cure = "shuffle=True; to read each sample once, open the dataset without weights"
        raise InputError(Problem("weights", f"draw at random, and shuffle is {shuffle!r}", cure, "option"))
    try:
        given = np.asarray(weights, np.float64)
        if offsets is None and given.shape != (length,):
            message = f"{given.size} weights for {length} samples, shape {given.shape}: expected one a sample"
            raise InputError(Problem("weights", message, kind="option"))
        return Weighted(given, offsets, draws, seed)
    except (TypeError, ValueError) as error:
        raise InputError(Problem("weights", str(error), kind="option")) from error


def _subset(subset: Any, samples: int) -> NDArray[np.int64]:
    try:
        chosen = np.asarray(subset)
    except ValueError:  # lists of different lengths
        chosen = np.asarray(None)
    if chosen.dtype == np.bool_ and chosen.shape == (samples,):
        return cast("NDArray[np.int64]", np.flatnonzero(chosen))
    if chosen.ndim != 1 or not (np.issubdtype(chosen.dtype, np.integer) or not len(chosen)):
        message = f"must be sample indices or one bool a sample, got {chosen.dtype} {chosen.shape}"
        raise InputError(Problem("subset", message, kind="option"))
    if len(chosen) and (chosen.min() < 0 or chosen.max() >= samples):
        message = f"holds {chosen.min()} to {chosen.max()}, and the dataset has {samples} samples"
        raise InputError(Problem("subset", message, kind="option"))
    return chosen.astype(np.int64)


def _blocks(dataset: Any, chosen: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Offsets of blocks of samples that share chunks, over the dataset or over a subset of it."""
    given = getattr(dataset, "block_offsets", None)
    if given is None:
        offsets = uniform_blocks(len(dataset), PLAIN_BLOCK)
    else:
        offsets = np.asarray(given() if callable(given) else given, np.int64)
    if chosen is None:
        return offsets
    if len(chosen) and np.any(np.diff(chosen) < 0):
        message = "'blocks' needs the subset in ascending order, so that neighbours share chunks"
        raise InputError(Problem("shuffle", message, kind="option"))
    return np.searchsorted(chosen, offsets).astype(np.int64)
