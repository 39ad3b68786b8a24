"""Resolves ``sampler``: a sequence, sample indices, or one of torch's samplers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from unistore.errors import InputError, Problem
from unistore.order.sampler import SequenceSampler, Shuffle
from unistore.order.sequences import (
    EpochSequence,
    InOrder,
    Repeated,
    Shuffled,
    Subset,
    Weighted,
    sample_indices,
)

_CUSTOM_ORDER = (
    "an order of your own is an object with the methods of unistore.order.sequences.EpochSequence, "
    "or a list of indices"
)


def sampler_sequence(sampler: Any, samples: int, seed: int) -> EpochSequence:
    """Return the order of a sampler.

    Torch's samplers keep their meaning: which samples an epoch has, how often and with what chance. The order
    itself is ours, a function of (seed, epoch).

    Parameters
    ----------
    sampler
        A sequence, `unistore.Shuffle`, indices, or a sampler of ``torch.utils.data``.
    samples
        Number of samples of the dataset.
    seed
        Of the Loader; `unistore.Shuffle` and torch's ``DistributedSampler`` have their own.

    Raises
    ------
    InputError
        If it is of another type, or has indices outside the dataset.
    """
    known = _torch_name(sampler)
    if known in _TORCH:
        if getattr(sampler, "generator", None) is not None:
            message = f"{known} has a generator"
            raise _sampler_error(message, "leave it out: seed=… of the Loader decides the order")
        return _check_length(*_TORCH[known](sampler, seed), samples)
    if known == "BatchSampler":
        raise _sampler_error(
            "is a BatchSampler", "batch_size=…, drop_last=… and its own sampler as sampler=…"
        )
    if isinstance(sampler, Shuffle):
        return _check_length(sampler.sequence, sampler.samples, samples)
    if isinstance(sampler, SequenceSampler):
        cure = "give the sequence that it was made of, and rank and world_size to the Loader"
        raise _sampler_error("is a SequenceSampler, which serves torch's DataLoader", cure)
    if isinstance(sampler, Sequence) or hasattr(sampler, "__array__"):
        chosen = sample_indices("sampler", sampler, samples)
        return Subset(InOrder(len(chosen)), chosen)
    if callable(getattr(sampler, "indices", None)):
        return cast("EpochSequence", sampler)
    message = f"is of type {type(sampler).__name__}, whose order is not a function of (seed, epoch)"
    raise _sampler_error(message, _CUSTOM_ORDER)


def is_distributed(sampler: Any) -> bool:
    """Whether a sampler is torch's ``DistributedSampler``, which says the rank and the number of ranks."""
    return _torch_name(sampler) == "DistributedSampler"


def _torch_name(sampler: Any) -> str:
    """Name of torch's sampler class; ``""`` for others, and for classes derived from them."""
    known = ("torch.utils.data.sampler", "torch.utils.data.distributed")
    return type(sampler).__name__ if type(sampler).__module__ in known else ""


def _check_length(sequence: EpochSequence, over: int, samples: int) -> EpochSequence:
    """Return a sequence over the first `over` samples, if the dataset has as many."""
    if over > samples:
        message = f"draws from {over} samples, and the dataset has {samples}"
        raise _sampler_error(message, "make it for the dataset that the Loader reads")
    return sequence


def _sampler_error(message: str, cure: str = "") -> InputError:
    return InputError(Problem("sampler", message, cure, "option"))


def _in_order(sampler: Any, seed: int) -> tuple[EpochSequence, int]:  # noqa: ARG001 - as the others
    length = len(sampler.data_source)
    return InOrder(length), length


def _random(sampler: Any, seed: int) -> tuple[EpochSequence, int]:
    length, draws = len(sampler.data_source), int(sampler.num_samples)
    if sampler.replacement:
        return Weighted([1.0], [0, length], draws, seed), length
    return Repeated.to(draws, Shuffled(length, seed)), length


def _subset_random(sampler: Any, seed: int) -> tuple[EpochSequence, int]:
    chosen = np.asarray(sampler.indices, np.int64)
    indices = sample_indices("sampler", chosen, int(chosen.max(initial=-1)) + 1)
    return Subset(Shuffled(len(indices), seed), indices), int(indices.max(initial=-1)) + 1


def _weighted(sampler: Any, seed: int) -> tuple[EpochSequence, int]:
    if not sampler.replacement:
        message = "WeightedRandomSampler draws without replacement"
        raise _sampler_error(message, "replacement=True, or every sample once: shuffle=True, subset=…")
    weights = np.asarray(sampler.weights, np.float64)
    try:
        return Weighted(weights, None, int(sampler.num_samples), seed), len(weights)
    except ValueError as error:
        raise _sampler_error(str(error)) from error


def _distributed(sampler: Any, seed: int) -> tuple[EpochSequence, int]:  # noqa: ARG001 - has its own
    length = len(sampler.dataset)
    order = Shuffled(length, sampler.seed) if sampler.shuffle else InOrder(length)
    return Repeated.to(sampler.total_size, order), length


_TORCH: Mapping[str, Callable[[Any, int], tuple[EpochSequence, int]]] = {
    "DistributedSampler": _distributed,
    "RandomSampler": _random,
    "SequentialSampler": _in_order,
    "SubsetRandomSampler": _subset_random,
    "WeightedRandomSampler": _weighted,
}
"""Torch's samplers: the order of each, and the number of samples that it is made for."""
