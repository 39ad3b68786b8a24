"""An epoch as a sequence of samples, and the part of it that each rank delivers.

A sequence is a pure function of (seed, epoch): ``indices(epoch, start, stop)`` computes any stretch of it on
its own. Ranks, workers, batch size and prefetching only decide who delivers which positions, so a run that
stops after ``delivered`` positions continues exactly, whatever it continues with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from unistore.order.permutation import Draws, Permutation

__all__ = ["EpochSequence", "InOrder", "Repeated", "Share", "Shuffled", "Subset", "Weighted"]


class EpochSequence(Protocol):
    """Which sample stands at which position of an epoch."""

    def __len__(self) -> int:
        """Positions of an epoch."""
        ...

    def indices(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """Dataset indices (stop - start,) at positions ``start:stop``, both in 0 to ``len(self)``."""
        ...

    def describe(self) -> dict[str, str | int]:
        """Everything that the sequence depends on, as JSON; equal descriptions mean equal sequences."""
        ...

    def arranged(self, description: Mapping[str, object]) -> EpochSequence:  # noqa: ARG002
        """Sequence of the same samples, arranged as one that described itself so; self if not applicable."""
        return self


@dataclass(frozen=True, slots=True)
class InOrder(EpochSequence):
    """Samples 0, 1, 2, …: evaluation.

    Attributes
    ----------
    length
        Number of samples.
    """

    length: int

    def __len__(self) -> int:
        return self.length

    def indices(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:  # noqa: ARG002
        """See `EpochSequence.indices`."""
        return np.arange(start, stop)

    def describe(self) -> dict[str, str | int]:
        """See `EpochSequence.describe`."""
        return {"kind": "in order", "length": self.length}


class Shuffled(EpochSequence):
    """Every sample once an epoch, a full shuffle in O(1) memory.

    The order of `unistore.order.sampler.Shuffle`, position by position.

    Parameters
    ----------
    length
        Number of samples.
    seed
        Another seed is another sequence of orders.
    """

    def __init__(self, length: int, seed: int = 0) -> None:
        self.length = length
        self.seed = seed
        self._permutation: tuple[int, Permutation] | None = None

    def __len__(self) -> int:
        return self.length

    def indices(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """See `EpochSequence.indices`."""
        if self._permutation is None or self._permutation[0] != epoch:
            self._permutation = epoch, Permutation(self.length, self.seed, epoch)
        return self._permutation[1](np.arange(start, stop))

    def describe(self) -> dict[str, str | int]:
        """See `EpochSequence.describe`."""
        return {"kind": "shuffled", "length": self.length, "seed": self.seed}


class Weighted(EpochSequence):
    """Draws with replacement, in proportion to weights; see `unistore.order.permutation.Draws`.

    Parameters
    ----------
    weights
        (R,) non-negative, finite, with a positive sum: one a sample, or one a run.
    offsets
        (R + 1,) first sample of every run, such as the stores of a joint dataset. None: runs of one sample.
    length
        Draws an epoch. None: as many as there are samples.
    seed
        Another seed is another sequence of draws.

    Raises
    ------
    ValueError
        The weights are no weights, or do not fit the runs.
    """

    def __init__(
        self,
        weights: Sequence[float] | NDArray[np.floating],
        offsets: Sequence[int] | NDArray[np.integer] | None = None,
        length: int | None = None,
        seed: int = 0,
    ) -> None:
        self._draws = Draws(weights, offsets, seed)
        self._digest = xxhash.xxh3_128_hexdigest(self._draws.weights.tobytes())
        self.length = self._draws.samples if length is None else length
        self.seed = seed

    def __len__(self) -> int:
        return self.length

    def indices(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """See `EpochSequence.indices`."""
        return self._draws(epoch, np.arange(start, stop))

    def describe(self) -> dict[str, str | int]:
        """See `EpochSequence.describe`."""
        return {"kind": "weighted", "length": self.length, "seed": self.seed, "weights": self._digest}


class Subset(EpochSequence):
    """A sequence over some of the samples: episodes, a split, what a filter let through.

    Parameters
    ----------
    sequence
        A sequence over ``range(len(samples))``.
    samples
        (n,) dataset indices, kept as they are given.

    Attributes
    ----------
    lanes
        Of a block shuffle, see `unistore.order.blocks`; None: the sequence has none.
    """

    def __init__(self, sequence: EpochSequence, samples: NDArray[np.integer]) -> None:
        self._sequence = sequence
        self._samples = np.ascontiguousarray(samples)
        self.lanes: int | None = getattr(sequence, "lanes", None)
        self._digest = xxhash.xxh3_128_hexdigest(self._samples.astype("<i8", copy=False).tobytes())

    def __len__(self) -> int:
        return len(self._sequence)

    def indices(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """See `EpochSequence.indices`."""
        return self._samples[self._sequence.indices(epoch, start, stop)].astype(np.int64, copy=False)

    def describe(self) -> dict[str, str | int]:
        """See `EpochSequence.describe`."""
        return {**self._sequence.describe(), "subset": self._digest}

    def arranged(self, description: Mapping[str, object]) -> EpochSequence:
        """See `EpochSequence.arranged`."""
        return Subset(self._sequence.arranged(description), self._samples)


class Repeated(EpochSequence):
    """A sequence that begins again at its end, up to a number of positions; or only its first ones.

    Parameters
    ----------
    sequence
        Of at least one position, if `length` is above 0.
    length
        Positions of an epoch.
    """

    def __init__(self, sequence: EpochSequence, length: int) -> None:
        self._sequence = sequence
        self.length = length

    @classmethod
    def to(cls, length: int, sequence: EpochSequence) -> EpochSequence:
        """A sequence with so many positions: itself where it has them."""
        return sequence if length == len(sequence) else cls(sequence, length)

    def __len__(self) -> int:
        return self.length

    def indices(self, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """See `EpochSequence.indices`."""
        once, parts = len(self._sequence), []
        while start < stop:
            first = start % once
            last = min(once, first + stop - start)
            parts.append(self._sequence.indices(epoch, first, last))
            start += last - first
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def describe(self) -> dict[str, str | int]:
        """See `EpochSequence.describe`."""
        return {**self._sequence.describe(), "positions": self.length}


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The positions that one rank delivers, batch after batch, from a position of the epoch onwards.

    Step k of the whole run covers ``batch_size * world_size`` consecutive positions, rank after rank. What
    is left after the last whole step is dropped, or split between the ranks as evenly as it can be.

    Attributes
    ----------
    length
        Positions of the epoch.
    start
        First position not yet delivered when this share was made.
    batch_size
        Samples of a batch on one rank.
    rank, world_size
        This process and the number of processes that share the epoch.
    drop_last
        True: equal steps on every rank (training). False: every position, so that the ranks' last batches
        may differ by one sample and a rank may have one step less (evaluation).
    """

    length: int
    start: int = 0
    batch_size: int
    rank: int = 0
    world_size: int = 1
    drop_last: bool = False
    _whole: int = field(init=False, repr=False)
    _tail: tuple[int, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        whole, left = divmod(max(0, self.length - self.start), self._stride)
        each, more = divmod(0 if self.drop_last else left, self.world_size)
        first = self.rank * each + min(self.rank, more)
        object.__setattr__(self, "_whole", whole)
        object.__setattr__(self, "_tail", (first, first + each + (self.rank < more)))

    @property
    def _stride(self) -> int:
        return self.batch_size * self.world_size

    @property
    def steps(self) -> int:
        """Batches of this rank."""
        first, stop = self._tail
        return self._whole + (stop > first)

    def span(self, step: int) -> tuple[int, int]:
        """First position of this rank's batch at a step, and the one after its last."""
        first = self.start + step * self._stride
        if step < self._whole:
            return first + self.rank * self.batch_size, first + (self.rank + 1) * self.batch_size
        return first + self._tail[0], first + self._tail[1]

    def delivered(self, steps: int) -> int:
        """Positions of the epoch that all ranks together have delivered after so many steps."""
        return min(self.start + steps * self._stride, max(self.start, self.length))
