"""An epoch as a sequence of samples, and the share of it that each rank delivers."""

# ``indices(epoch, start, stop)`` is a pure function of (seed, epoch). Ranks, workers, batch size and
# prefetching only decide who delivers which positions, so a run that stops after ``delivered`` positions
# resumes exactly, even with other ones

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, cast

import numpy as np
import xxhash
from numpy.typing import NDArray

from unistore.errors import InputError, Problem
from unistore.order.permutation import Permutation, words
from unistore.system.hints import Int64s


class EpochSequence(Protocol):
    """Sample index at each position of an epoch."""

    def __len__(self) -> int: ...

    def indices(self, epoch: int, start: int, stop: int) -> Int64s:
        """Return dataset indices (stop - start,) at positions ``start:stop``, both in 0 to ``len(self)``."""
        ...

    def describe(self) -> dict[str, str | int]:
        """Return everything that the sequence depends on, for JSON, equal for equal sequences."""
        ...

    def arranged(self, description: Mapping[str, object]) -> EpochSequence:  # noqa: ARG002
        """Return the same samples with the tuning of a described sequence, that of a saved run."""
        return self


@dataclass(frozen=True, slots=True)
class InOrder(EpochSequence):
    """Samples 0, 1, 2, … of `length`, as for evaluation."""

    length: int

    def __len__(self) -> int:
        return self.length

    def indices(self, epoch: int, start: int, stop: int) -> Int64s:  # noqa: ARG002
        """Return the indices of samples at positions ``start:stop``."""
        return np.arange(start, stop)

    def describe(self) -> dict[str, str | int]:
        """Return what the order depends on, for JSON."""
        return {"kind": "in order", "length": self.length}


class Shuffled(EpochSequence):
    """Every one of `length` samples once per epoch, fully shuffled in O(1) memory."""

    def __init__(self, length: int, seed: int = 0) -> None:
        self.length = length
        self.seed = seed
        self._permutation: tuple[int, Permutation] | None = None

    def __len__(self) -> int:
        return self.length

    def indices(self, epoch: int, start: int, stop: int) -> Int64s:
        """Return the indices of samples at positions ``start:stop``."""
        if self._permutation is None or self._permutation[0] != epoch:
            self._permutation = epoch, Permutation(self.length, self.seed, epoch)
        return self._permutation[1](np.arange(start, stop))

    def describe(self) -> dict[str, str | int]:
        """Return what the order depends on, for JSON."""
        return {"kind": "shuffled", "length": self.length, "seed": self.seed}


class Weighted(EpochSequence):
    """Draws with replacement, in proportion to weights, O(runs) in memory."""

    # Draw p of an epoch depends on (seed, epoch, p) alone: one uniform number chooses a run of samples by
    # weight, another one a sample of the run

    def __init__(
        self,
        # (R,) non-negative, finite, with a positive sum; runs without samples are never drawn
        weights: Sequence[float] | NDArray[np.floating],
        # (R + 1,) first sample of each run, such as the stores of a joint dataset; None: runs of one sample
        offsets: Sequence[int] | NDArray[np.integer] | None = None,
        length: int | None = None,  # draws per epoch; None: the number of samples
        seed: int = 0,
    ) -> None:
        numbers = np.asarray(weights, np.float64)
        runs = None if offsets is None else np.asarray(offsets, np.int64)
        if numbers.ndim != 1 or not len(numbers) or not np.all(np.isfinite(numbers)) or numbers.min() < 0:
            msg = f"weights must be a non-empty list of finite numbers >= 0, got shape {numbers.shape}"
            raise ValueError(msg)
        if runs is not None and len(runs) != len(numbers) + 1:
            msg = f"{len(numbers)} weights for {len(runs) - 1} runs of samples"
            raise ValueError(msg)
        if runs is not None:
            numbers = np.where(np.diff(runs) > 0, numbers, 0.0)
        with np.errstate(over="ignore"):
            bounds = np.cumsum(numbers)
        if not 0 < bounds[-1] < math.inf:
            msg = "all weights are zero" if bounds[-1] == 0 else "the weights have no finite sum: scale them"
            raise ValueError(msg)
        samples = len(numbers) if runs is None else int(runs[-1])
        self.length = samples if length is None else length
        self.seed = seed
        self._runs = runs
        self._bounds = bounds / bounds[-1]
        self._last = int(np.flatnonzero(numbers)[-1])
        self._digest = xxhash.xxh3_128_hexdigest(numbers.tobytes())

    def __len__(self) -> int:
        return self.length

    def indices(self, epoch: int, start: int, stop: int) -> Int64s:
        """Return the indices of samples at positions ``start:stop``."""
        positions = np.arange(start, stop)
        draws = words(self.seed, np.full(len(positions), epoch), positions, 2) >> np.uint64(11)
        uniform = draws.astype(np.float64) * 2.0**-53
        run = np.minimum(np.searchsorted(self._bounds, uniform[:, 0], side="right"), self._last)
        if self._runs is None:
            return run.astype(np.int64)
        first = self._runs[run]
        extent = self._runs[run + 1] - self._runs[run]
        drawn: Int64s = first + np.minimum((uniform[:, 1] * extent).astype(np.int64), extent - 1)
        return drawn

    def describe(self) -> dict[str, str | int]:
        """Return what the order depends on, for JSON."""
        return {"kind": "weighted", "length": self.length, "seed": self.seed, "weights": self._digest}


class Subset(EpochSequence):
    """A sequence over some of the samples: episodes, a split, the result of a filter."""

    def __init__(
        self,
        sequence: EpochSequence,  # a sequence over ``range(len(samples))``
        samples: NDArray[np.integer],  # (n,) dataset indices
    ) -> None:
        self.sequence = sequence
        self.samples = np.ascontiguousarray(samples)
        self.lanes: int | None = getattr(sequence, "lanes", None)  # of a block shuffle
        self._digest = xxhash.xxh3_128_hexdigest(self.samples.astype("<i8", copy=False).tobytes())

    def __len__(self) -> int:
        return len(self.sequence)

    def indices(self, epoch: int, start: int, stop: int) -> Int64s:
        """Return the indices of samples at positions ``start:stop``."""
        return self.samples[self.sequence.indices(epoch, start, stop)].astype(np.int64, copy=False)

    def describe(self) -> dict[str, str | int]:
        """Return what the order depends on, for JSON."""
        return {**self.sequence.describe(), "subset": self._digest}

    def arranged(self, description: Mapping[str, object]) -> EpochSequence:
        """Return the same samples in the order of a described sequence."""
        return Subset(self.sequence.arranged(description), self.samples)


class Repeated(EpochSequence):
    """A sequence repeated, or truncated, to `length` positions. It has at least one, unless `length` is 0."""

    def __init__(self, sequence: EpochSequence, length: int) -> None:
        self._sequence = sequence
        self.length = length

    def __len__(self) -> int:
        return self.length

    def indices(self, epoch: int, start: int, stop: int) -> Int64s:
        """Return the indices of samples at positions ``start:stop``."""
        period = len(self._sequence)
        parts = []
        while start < stop:
            first = start % period
            last = min(period, first + stop - start)
            parts.append(self._sequence.indices(epoch, first, last))
            start += last - first
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def describe(self) -> dict[str, str | int]:
        """Return what the order depends on, for JSON."""
        described = self._sequence.describe()
        return described if self.length == len(self._sequence) else {**described, "positions": self.length}


@dataclass(frozen=True, kw_only=True)
class RankShare:
    """The positions of an epoch that one rank delivers, batch by batch."""

    # Each step covers ``batch_size * world_size`` consecutive positions, rank after rank. The rest after
    # the last full step is dropped, or split between the ranks as evenly as possible

    length: int  # positions of the epoch
    start: int = 0  # first position that is not yet delivered
    batch_size: int  # samples of a batch on one rank
    rank: int = 0
    world_size: int = 1  # processes that share the epoch
    # True: equal steps on every rank. False: every position, so that last batches may differ by one sample
    # and a rank may have one step less
    drop_last: bool = False

    @cached_property
    def _steps(self) -> tuple[int, int]:
        return divmod(max(0, self.length - self.start), self.batch_size * self.world_size)

    @cached_property
    def _tail(self) -> tuple[int, int]:
        # The part of this rank in what follows the last full step
        share, more = divmod(0 if self.drop_last else self._steps[1], self.world_size)
        first = self.rank * share + min(self.rank, more)
        return first, first + share + (self.rank < more)

    @property
    def steps(self) -> int:
        """Return the number of batches of this rank."""
        first, stop = self._tail
        return self._steps[0] + (stop > first)

    def span(self, step: int) -> tuple[int, int]:
        """Return the first position of this rank's batch at a step, and the one behind its last."""
        first = self.start + step * self.batch_size * self.world_size
        if step < self._steps[0]:
            return first + self.rank * self.batch_size, first + (self.rank + 1) * self.batch_size
        return first + self._tail[0], first + self._tail[1]

    def delivered(self, steps: int) -> int:
        """Return positions of the epoch that all ranks together have delivered after `steps` steps."""
        end = self.start + steps * self.batch_size * self.world_size
        return min(end, max(self.start, self.length))


def sample_indices(name: str, given: Any, samples: int) -> Int64s:
    """Return indices (n,) of samples, as they were given. Raises `InputError`, of the argument `name`."""
    try:
        chosen = np.asarray(given)
    except (TypeError, ValueError):  # lists of different lengths
        chosen = np.asarray(None)
    if chosen.dtype == np.bool_ and chosen.shape == (samples,):
        return cast("Int64s", np.flatnonzero(chosen))
    if chosen.ndim != 1 or not (np.issubdtype(chosen.dtype, np.integer) or not len(chosen)):
        message = f"must be sample indices or one bool a sample, got {chosen.dtype} {chosen.shape}"
        raise InputError(Problem(name, message, kind="option"))
    if len(chosen) and (chosen.min() < 0 or chosen.max() >= samples):
        message = f"holds {chosen.min()} to {chosen.max()}, and the dataset has {samples} samples"
        raise InputError(Problem(name, message, kind="option"))
    return chosen.astype(np.int64)
