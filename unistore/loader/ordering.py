"""The order of epochs, from arguments of the Loader: shuffle, sampler, subset, weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

import numpy as np

from unistore.errors import InputError
from unistore.order.sampler import SequenceSampler, Shuffle
from unistore.order.sequences import (
    BlockShuffle,
    EpochSequence,
    InOrder,
    Repeated,
    Shuffled,
    Subset,
    Weighted,
    sample_indices,
)
from unistore.order.shuffle_choice import ShuffleKind, shuffled
from unistore.system.arguments import Arguments, wrong_argument


def drops_last(drop_last: bool | None, sampler: Any, sequence: EpochSequence, world_size: int) -> bool:
    """Return whether only whole batches are delivered.

    By default they are if several ranks share a shuffled order, so that all ranks take the same number of
    steps. Orders of torch's ``DistributedSampler`` have the same length on all ranks anyway.
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
    subset: Any = None,
    weights: Any = None,
    samples_per_epoch: int | None = None,
) -> EpochSequence:
    """Return the order of the samples in every epoch, from arguments of the Loader.

    Raises
    ------
    InputError
        If an argument is invalid, or given together with a sampler.
    """
    if sampler is not None:
        check = Arguments()
        set_options = {"shuffle": shuffle or None, "subset": subset, "weights": weights}
        for name, value in (set_options | {"samples_per_epoch": samples_per_epoch}).items():
            if value is not None:
                message = "does not work with a sampler, which chooses the samples of an epoch itself"
                check.refuse(name, message, f"remove {name} or the sampler")
        check.raise_problems()
        return sampler_sequence(sampler, len(dataset), seed)
    chosen = None if subset is None else sample_indices("subset", subset, len(dataset))
    length = len(dataset) if chosen is None else len(chosen)
    offsets = None
    if weights is None and hasattr(dataset, "store_offsets") and dataset.weights is not None:
        weights = dataset.weights
        offsets = dataset.store_offsets
        if chosen is not None:  # stores stay runs: which of their samples come where is drawn anyway
            chosen = np.sort(chosen)
            offsets = np.searchsorted(chosen, offsets)
    if weights is None and samples_per_epoch is not None:
        raise wrong_argument("samples_per_epoch", "works only with weights", "add weights=…, or remove it")
    if weights is not None:
        sequence = _weighted(weights, offsets, length, samples_per_epoch, seed, shuffle)
    elif shuffle is False:
        sequence = InOrder(length)
    else:
        return shuffled(dataset, shuffle, seed=seed, batch_size=batch_size, chosen=chosen)
    return sequence if chosen is None else Subset(sequence, chosen)


def reading_ahead(dataset: Any, sequence: EpochSequence) -> Any:
    """Return the dataset to read in an order: one that reads whole blocks, or the same dataset."""
    chosen = None
    if isinstance(sequence, Subset):
        chosen = sequence.samples
        sequence = sequence.sequence
    if isinstance(sequence, BlockShuffle) and sequence.are_read_whole:
        return dataset.reading_ahead(sequence.offsets, chosen)
    return dataset


def _weighted(
    weights: Any, offsets: Any, length: int, draws: int | None, seed: int, shuffle: bool | str
) -> EpochSequence:
    if shuffle is not True and shuffle != "full":
        fix = "give shuffle=True, or remove weights to read each sample once"
        raise wrong_argument("weights", f"draw samples at random, but shuffle is {shuffle!r}", fix)
    try:
        numbers = np.asarray(weights, np.float64)
        if offsets is None and numbers.shape != (length,):
            message = f"must be {length:,} numbers, one for each sample, got the shape {numbers.shape}"
            raise wrong_argument("weights", message)
        return Weighted(numbers, offsets, draws, seed)
    except (TypeError, ValueError) as error:
        raise wrong_argument("weights", str(error).removeprefix("weights ")) from error


_CUSTOM_ORDER = (
    "give a list of indices, or an object with the methods of unistore.order.sequences.EpochSequence"
)


def sampler_sequence(
    sampler: Any,
    samples: int,
    seed: int,
) -> EpochSequence:
    """Return the order of a sampler.

    Torch's samplers keep their meaning: which samples an epoch has, how often and with what probability.
    The order itself depends on the seed and the epoch.

    Parameters
    ----------
    sampler
        An `EpochSequence`, `unistore.Shuffle`, sample indices, or a sampler of ``torch.utils.data``.
    samples : int
        Number of samples of the dataset.
    seed : int
        Seed of the Loader. `unistore.Shuffle` and torch's ``DistributedSampler`` have their own.

    Raises
    ------
    InputError
        If the sampler has another type, an own generator, or more samples than the dataset.
    """
    torch_name = _torch_name(sampler)
    if torch_name in _TORCH:
        if getattr(sampler, "generator", None) is not None:
            message = f"this {torch_name} has a generator of its own"
            raise _sampler_error(message, "make it without a generator, and give seed=… to the Loader")
        return _check_length(*_TORCH[torch_name](sampler, seed), samples)
    if torch_name == "BatchSampler":
        raise _sampler_error(
            "must not be a BatchSampler", "give its sampler as sampler=…, and batch_size and drop_last"
        )
    if isinstance(sampler, Shuffle):
        return _check_length(sampler.sequence, sampler.samples, samples)
    if isinstance(sampler, SequenceSampler):
        fix = "give the sequence itself, and rank and world_size to the Loader"
        raise _sampler_error("must not be a SequenceSampler, which is made for torch's DataLoader", fix)
    if isinstance(sampler, Sequence) or hasattr(sampler, "__array__"):
        chosen = sample_indices("sampler", sampler, samples)
        return Subset(InOrder(len(chosen)), chosen)
    if callable(getattr(sampler, "indices", None)):
        return cast("EpochSequence", sampler)
    message = f"is of type {type(sampler).__name__}, whose order does not depend only on seed and epoch"
    raise _sampler_error(message, _CUSTOM_ORDER)


def is_distributed(sampler: Any) -> bool:
    """Return whether a sampler is torch's ``DistributedSampler``."""
    return _torch_name(sampler) == "DistributedSampler"


def _torch_name(sampler: Any) -> str:
    torch_modules = ("torch.utils.data.sampler", "torch.utils.data.distributed")
    return type(sampler).__name__ if type(sampler).__module__ in torch_modules else ""


def _check_length(sequence: EpochSequence, over: int, samples: int) -> EpochSequence:
    if over > samples:
        message = f"was made for {over:,} samples, but the dataset has {samples:,}"
        raise _sampler_error(message, "make it for the dataset that the Loader reads")
    return sequence


def _sampler_error(message: str, fix: str = "") -> InputError:
    return wrong_argument("sampler", message, fix)


def _in_order(sampler: Any, seed: int) -> tuple[EpochSequence, int]:  # noqa: ARG001 - as the others
    length = len(sampler.data_source)
    return InOrder(length), length


def _random(sampler: Any, seed: int) -> tuple[EpochSequence, int]:
    length = len(sampler.data_source)
    draws = int(sampler.num_samples)
    if sampler.replacement:
        return Weighted([1.0], [0, length], draws, seed), length
    return Repeated(Shuffled(length, seed), draws), length


def _subset_random(sampler: Any, seed: int) -> tuple[EpochSequence, int]:
    chosen = np.asarray(sampler.indices, np.int64)
    indices = sample_indices("sampler", chosen, int(chosen.max(initial=-1)) + 1)
    return Subset(Shuffled(len(indices), seed), indices), int(indices.max(initial=-1)) + 1


def _weighted_random(sampler: Any, seed: int) -> tuple[EpochSequence, int]:
    if not sampler.replacement:
        message = "this WeightedRandomSampler draws without replacement"
        fix = "give it replacement=True, or read every sample once with shuffle=True and subset=…"
        raise _sampler_error(message, fix)
    weights = np.asarray(sampler.weights, np.float64)
    try:
        return Weighted(weights, None, int(sampler.num_samples), seed), len(weights)
    except ValueError as error:
        message = f"its {error}"
        raise _sampler_error(message) from error


def _distributed(sampler: Any, seed: int) -> tuple[EpochSequence, int]:  # noqa: ARG001 - has its own
    length = len(sampler.dataset)
    order = Shuffled(length, sampler.seed) if sampler.shuffle else InOrder(length)
    return Repeated(order, sampler.total_size), length


# Torch's samplers: the order of each, and the number of samples that it is made for
_TORCH: Mapping[str, Callable[[Any, int], tuple[EpochSequence, int]]] = {
    "DistributedSampler": _distributed,
    "RandomSampler": _random,
    "SequentialSampler": _in_order,
    "SubsetRandomSampler": _subset_random,
    "WeightedRandomSampler": _weighted_random,
}
