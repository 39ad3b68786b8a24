"""Resolves ``shuffle``, ``sampler``, ``subset`` and ``weights`` to the order of epochs."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from unistore.errors import InputError, Problem
from unistore.loader.samplers import is_distributed, sampler_sequence
from unistore.order.sequences import EpochSequence, InOrder, Subset, Weighted, sample_indices
from unistore.order.shuffles import ShuffleKind, shuffled
from unistore.system.arguments import MAX_EPOCH, Arguments


def drops_last(drop_last: bool | None, sampler: Any, sequence: EpochSequence, world_size: int) -> bool:
    """Whether only whole batches are delivered.

    By default if several ranks share a shuffled order, so that all take the same number of steps. Orders of
    torch's ``DistributedSampler`` have the same length on all ranks anyway.
    """
    if drop_last is not None or world_size == 1 or is_distributed(sampler):
        return bool(drop_last)
    return sequence.describe().get("kind") != "in order"


def sequence_for(
    dataset: Any,
    shuffle: ShuffleKind | Literal[False],
    sampler: Any = None,
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
        If options contradict each other, or indices are outside the dataset.
    """
    check = Arguments()
    check.integer("samples_per_epoch", samples_per_epoch, 1, MAX_EPOCH, none=True)
    if sampler is not None:
        given = {"shuffle": shuffle or None, "subset": subset, "weights": weights}
        for name, value in (given | {"samples_per_epoch": samples_per_epoch}).items():
            if value is not None:
                check.refuse(name, "a sampler decides which samples an epoch has", "give one of the two")
    check.raise_problems()
    if sampler is not None:
        return sampler_sequence(sampler, len(dataset), seed)
    chosen = None if subset is None else sample_indices("subset", subset, len(dataset))
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
    elif shuffle is False:
        sequence = InOrder(length)
    else:
        return shuffled(dataset, shuffle, seed=seed, batch_size=batch_size, chosen=chosen)
    return sequence if chosen is None else Subset(sequence, chosen)


def _weighted(
    weights: Any, offsets: Any, length: int, draws: int | None, seed: int, shuffle: bool | str
) -> EpochSequence:
    if shuffle is not True and shuffle != "full":
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
