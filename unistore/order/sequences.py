"""Orders of the samples of an epoch, and the part of an epoch that each rank delivers."""

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

from unistore.order.permutation import Permutation, random_words
from unistore.system.arguments import MAX_COUNT, is_integer, wrong_argument
from unistore.system.types import Int64s


class EpochSequence(Protocol):
    """The order of the samples in each epoch. Implement it for an order of your own.

    ``indices(epoch, start, stop)`` must depend only on its arguments and on the seed, so that ranks,
    workers and a resumed run agree.

    Examples
    --------
    Every second sample, in the order of the dataset:

    >>> class EverySecond:  # doctest: +SKIP
    ...     def __init__(self, length):
    ...         self.length = length
    ...
    ...     def __len__(self):
    ...         return self.length // 2
    ...
    ...     def indices(self, epoch, start, stop):
    ...         return 2 * np.arange(start, stop)
    ...
    ...     def describe(self):
    ...         return {"kind": "every second", "length": self.length}
    ...
    ...     def arranged(self, description):
    ...         return self
    >>> loader = unistore.Loader(dataset, batch_size=8, sampler=EverySecond(len(dataset)))  # doctest: +SKIP
    """

    def __len__(self) -> int: ...

    def indices(self, epoch: int, start: int, stop: int) -> Int64s:
        """Return the samples at positions ``start:stop`` of an epoch.

        Parameters
        ----------
        epoch : int
            Number of the epoch, from 0.
        start, stop : int
            First position, and the position after the last, from 0 to ``len(self)``.

        Returns
        -------
        int64 array of shape (stop - start,)
            Indices of samples in the dataset.
        """
        ...

    def describe(self) -> dict[str, str | int]:
        """Return everything that the order depends on, as JSON values. Equal orders have equal ones."""
        ...

    def arranged(self, description: Mapping[str, object]) -> EpochSequence:  # noqa: ARG002
        """Return the same samples with the settings of a description that a run has saved."""
        return self


@dataclass(frozen=True, slots=True)
class InOrder(EpochSequence):
    """Samples 0, 1, 2, … of `length`, in this order, for example for evaluation.

    Attributes
    ----------
    length : int
        Number of samples.
    """

    length: int

    def __len__(self) -> int:
        return self.length

    def indices(self, epoch: int, start: int, stop: int) -> Int64s:  # noqa: ARG002
        return np.arange(start, stop)

    def describe(self) -> dict[str, str | int]:
        return {"kind": "in order", "length": self.length}


class Shuffled(EpochSequence):
    """Every sample once per epoch, fully shuffled. It needs no memory for the order.

    Parameters
    ----------
    length : int
        Number of samples.
    seed : int, default 0
        Seed of the orders.
    """

    def __init__(self, length: int, seed: int = 0) -> None:
        self.length = length
        self.seed = seed
        self._permutation: tuple[int, Permutation] | None = None

    def __len__(self) -> int:
        return self.length

    def indices(self, epoch: int, start: int, stop: int) -> Int64s:
        if self._permutation is None or self._permutation[0] != epoch:
            self._permutation = epoch, Permutation(self.length, self.seed, epoch)
        return self._permutation[1](np.arange(start, stop))

    def describe(self) -> dict[str, str | int]:
        return {"kind": "shuffled", "length": self.length, "seed": self.seed}


class Weighted(EpochSequence):
    """Draws with replacement, in proportion to weights.

    One random number chooses a run of samples by weight, and another one a sample of the run. Draw p of
    an epoch depends only on the seed, the epoch and p.

    Parameters
    ----------
    weights : sequence of float, (R,)
        Weight of each run of samples, finite and at least 0, with a positive sum. Runs without samples
        are never drawn.
    offsets : sequence of int, (R + 1,), optional
        First sample of each run, for example of each store. None: each run is one sample.
    length : int, optional
        Number of draws per epoch. None: the number of samples.
    seed : int, default 0
        Seed of the draws.

    Raises
    ------
    ValueError
        If weights are invalid.
    """

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
        is_list = numbers.ndim == 1 and len(numbers) > 0
        if not is_list or not np.all(np.isfinite(numbers)) or numbers.min() < 0:
            msg = f"weights must be at least one finite number, none below 0, got the shape {numbers.shape}"
            raise ValueError(msg)
        if runs is not None and len(runs) != len(numbers) + 1:
            expected = f"{len(runs) - 1:,} numbers, one for each run of samples"
            msg = f"weights must be {expected}, got {len(numbers):,}"
            raise ValueError(msg)
        if runs is not None:
            numbers = np.where(np.diff(runs) > 0, numbers, 0.0)
        with np.errstate(over="ignore"):
            bounds = np.cumsum(numbers)
        if not 0 < bounds[-1] < math.inf:
            reason = "are all zero" if bounds[-1] == 0 else "have no finite sum, so they must be scaled down"
            msg = f"weights {reason}"
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
        positions = np.arange(start, stop)
        epochs = np.full(len(positions), epoch)
        draws = random_words(self.seed, epochs, positions, 2) >> np.uint64(11)
        uniform = draws.astype(np.float64) * 2.0**-53
        run = np.minimum(np.searchsorted(self._bounds, uniform[:, 0], side="right"), self._last)
        if self._runs is None:
            return run.astype(np.int64)
        first = self._runs[run]
        extent = self._runs[run + 1] - self._runs[run]
        place = (uniform[:, 1] * extent).astype(np.int64)
        drawn: Int64s = first + np.minimum(place, extent - 1)
        return drawn

    def describe(self) -> dict[str, str | int]:
        return {"kind": "weighted", "length": self.length, "seed": self.seed, "weights": self._digest}


class Subset(EpochSequence):
    """An order of some of the samples, such as a split or the result of a filter.

    Parameters
    ----------
    sequence : EpochSequence
        Order of ``range(len(samples))``.
    samples : int array of shape (n,)
        Indices of these samples in the dataset.
    """

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
        return self.samples[self.sequence.indices(epoch, start, stop)].astype(np.int64, copy=False)

    def describe(self) -> dict[str, str | int]:
        return {**self.sequence.describe(), "subset": self._digest}

    def arranged(self, description: Mapping[str, object]) -> EpochSequence:
        return Subset(self.sequence.arranged(description), self.samples)


class Repeated(EpochSequence):
    """Another order, repeated or cut off to `length` positions.

    Parameters
    ----------
    sequence : EpochSequence
        The order, with at least one position unless `length` is 0.
    length : int
        Number of positions.
    """

    def __init__(self, sequence: EpochSequence, length: int) -> None:
        self._sequence = sequence
        self.length = length

    def __len__(self) -> int:
        return self.length

    def indices(self, epoch: int, start: int, stop: int) -> Int64s:
        period = len(self._sequence)
        parts = []
        while start < stop:
            first = start % period
            last = min(period, first + stop - start)
            parts.append(self._sequence.indices(epoch, first, last))
            start += last - first
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def describe(self) -> dict[str, str | int]:
        described = self._sequence.describe()
        return described if self.length == len(self._sequence) else {**described, "positions": self.length}


@dataclass(frozen=True, kw_only=True)
class RankShare:
    """The positions of an epoch that one rank delivers, batch by batch.

    Each step covers ``batch_size * world_size`` consecutive positions, rank after rank. Positions after
    the last full step are dropped, or divided among the ranks as evenly as possible.

    Attributes
    ----------
    length : int
        Number of positions of the epoch.
    start : int, default 0
        First position that is not yet delivered.
    batch_size : int
        Number of samples of a batch on one rank.
    rank : int, default 0
        Number of this process.
    world_size : int, default 1
        Number of processes that share the epoch.
    drop_last : bool, default False
        True: the same number of whole batches on every rank. False: every position, so that last batches
        may differ by one sample and a rank may have one step less.
    """

    length: int
    start: int = 0
    batch_size: int
    rank: int = 0
    world_size: int = 1
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
        """Number of batches of this rank."""
        first, stop = self._tail
        return self._steps[0] + (stop > first)

    def span(self, step: int) -> tuple[int, int]:
        """Return the first position of this rank's batch at a step, and the position after its last."""
        first = self.start + step * self.batch_size * self.world_size
        if step < self._steps[0]:
            return first + self.rank * self.batch_size, first + (self.rank + 1) * self.batch_size
        return first + self._tail[0], first + self._tail[1]

    def delivered(self, steps: int) -> int:
        """Return the number of positions of the epoch that all ranks have delivered after some steps."""
        end = self.start + steps * self.batch_size * self.world_size
        return min(end, max(self.start, self.length))


def sample_indices(name: str, given: Any, samples: int) -> Int64s:
    """Check an argument with sample indices.

    Parameters
    ----------
    name : str
        Name of the argument, for messages.
    given : sequence of int, or one bool per sample
        Value of the argument.
    samples : int
        Number of samples of the dataset.

    Returns
    -------
    int64 array of shape (n,)
        Indices in the given order; for bools, ascending.

    Raises
    ------
    InputError
        If there is no such sample, or the value has another form.
    """
    try:
        chosen = np.asarray(given)
    except (TypeError, ValueError):  # lists of different lengths
        chosen = np.asarray(None)
    if chosen.dtype == np.bool_ and chosen.shape == (samples,):
        return cast("Int64s", np.flatnonzero(chosen))
    are_numbers = np.issubdtype(chosen.dtype, np.integer) or chosen.size == 0
    if chosen.ndim != 1 or not are_numbers:
        expected = f"indices of samples, or {samples:,} values of True or False"
        message = f"must be {expected}, got {chosen.dtype} of shape {chosen.shape}"
        raise wrong_argument(name, message)
    if len(chosen) and (chosen.min() < 0 or chosen.max() >= samples):
        message = f"contains {chosen.min():,} to {chosen.max():,}, but the dataset has {samples:,} samples"
        raise wrong_argument(name, message)
    return chosen.astype(np.int64)


# Block shuffle: nearly as mixed as a full shuffle, but every chunk is decoded once.
#
# Samples that share chunks form a **block**. Every epoch shuffles the blocks, divides them into **groups**
# and shuffles the samples inside each group: the decoded chunks of a group fit into the reader's cache, and
# are not needed again after the group. Several groups are open at a time, one per **lane**. The lanes take
# turns of ``deal`` samples: with one batch per turn, workers and ranks that take batches in turn keep to
# their own lanes and never decode each other's chunks. Small rows take one lane: a row's share of its chunk
# costs little to decode in every worker, and all open blocks are mixed.

# Default number of blocks in a group, and of groups open at a time.
GROUP = 16
LANES = 4
# Blocks of at least so many samples, on average, take one lane.
SMALL_ROWS = 32


def uniform_blocks(length: int, block: int) -> Int64s:
    """Return offsets (n + 1,) int64 of blocks with `block` samples each; the last one may be shorter."""
    return np.append(np.arange(0, length, block, dtype=np.int64), length).astype(np.int64)


class BlockShuffle:
    """Every sample once per epoch, with samples that share chunks close together.

    The order takes one number of memory per block, and does not depend on the number of workers or ranks.

    Parameters
    ----------
    offsets : int array of shape (n + 1,)
        Block b has samples ``offsets[b]`` to ``offsets[b + 1] - 1``.
    seed : int, default 0
        Seed of the orders.
    group : int, default 16
        Number of blocks that are shuffled together. Larger groups mix better; ``group * lanes`` decoded
        blocks must fit into the cache.
    lanes : int, default 4
        Number of groups that are open at a time. A multiple of workers times ranks lets each of them keep
        to its own chunks.
    deal : int, default 64
        Number of samples per turn of a lane: the batch size.

    Raises
    ------
    ValueError
        If `offsets` do not ascend from 0, or another argument is below 1.
    """

    def __init__(
        self,
        offsets: NDArray[np.integer],  # (n + 1,) int64: block b holds samples ``offsets[b]:offsets[b + 1]``
        seed: int = 0,  # seed of the orders
        *,
        # blocks shuffled together. Larger groups mix better; ``group * lanes`` decoded blocks must be cached
        group: int = GROUP,
        # groups open at a time: a multiple of workers * ranks keeps each of them on its own chunks
        lanes: int = LANES,
        deal: int = 64,  # samples per turn of a lane: the batch size
    ) -> None:
        self.offsets = np.asarray(offsets, np.int64)
        if len(self.offsets) < 1 or self.offsets[0] != 0 or np.any(np.diff(self.offsets) < 0):
            msg = "block offsets must ascend from 0"
            raise ValueError(msg)
        if min(group, lanes, deal) < 1:
            msg = f"group, lanes and deal must be at least 1, got {group}, {lanes}, {deal}"
            raise ValueError(msg)
        self.seed = seed
        self.are_read_whole = False
        self.group = group
        self.lanes = lanes
        self.deal = deal
        self._epoch: tuple[int, Int64s, Int64s] | None = None
        self._open: tuple[int, int, _Lanes] | None = None

    @classmethod
    def within(
        cls,
        offsets: NDArray[np.integer],
        open_blocks: int,
        seed: int = 0,
        *,
        deal: int = 64,
        are_read_whole: bool = False,
    ) -> BlockShuffle:
        """Return a block shuffle with the largest groups of equal size that fit a limit.

        Parameters
        ----------
        offsets : int array of shape (n + 1,)
            First sample of each block.
        open_blocks : int
            Largest number of blocks that are open at a time, in all lanes.
        seed : int, default 0
            Seed of the orders.
        deal : int, default 64
            Number of samples per turn of a lane.
        are_read_whole : bool, default False
            Whether a worker that needs a sample reads its whole block, so that workers need lanes.
        """
        count = len(offsets) - 1
        is_shared = count < LANES * LANES if are_read_whole else offsets[-1] >= SMALL_ROWS * count
        lanes = 1 if is_shared else LANES
        width = max(1, open_blocks // lanes) * lanes
        group = -(-count // (max(1, -(-count // width)) * lanes))
        order = cls(offsets, seed, group=max(1, group), lanes=lanes, deal=deal)
        order.are_read_whole = are_read_whole
        return order

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def describe(self) -> dict[str, str | int]:
        blocks = xxhash.xxh3_128_hexdigest(self.offsets.astype("<i8", copy=False).tobytes())
        return {"kind": "blocks", "length": len(self), "blocks": blocks, "seed": self.seed, **self._tuning}

    @property
    def _tuning(self) -> dict[str, int]:
        return {"group": self.group, "lanes": self.lanes, "deal": self.deal}

    def arranged(self, description: Mapping[str, object]) -> BlockShuffle:
        tuning = self._tuning
        for name in tuning:
            if is_integer(value := description.get(name), 1, MAX_COUNT):
                tuning[name] = int(value)
        return BlockShuffle(self.offsets, self.seed, **tuning)

    def indices(self, epoch: int, start: int, stop: int) -> Int64s:
        _, bounds = self._order(epoch)
        parts = []
        while start < stop:
            number = int(np.searchsorted(bounds, start, side="right")) - 1
            end = min(stop, int(bounds[number + 1]))
            if self._open is None or self._open[:2] != (epoch, number):
                self._open = epoch, number, self._open_lanes(epoch, number)
            parts.append(self._open[2](np.arange(start, end) - bounds[number]))
            start = end
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _order(self, epoch: int) -> tuple[Int64s, Int64s]:
        if self._epoch is None or self._epoch[0] != epoch:
            count = len(self.offsets) - 1
            blocks = Permutation(count, self.seed, epoch)(np.arange(count))
            ends = np.concatenate(([0], np.cumsum(np.diff(self.offsets)[blocks])))
            edges = np.append(np.arange(0, count, self.group * self.lanes), count)
            self._epoch = epoch, blocks, ends[edges].astype(np.int64)
            self._open = None
        return self._epoch[1], self._epoch[2]

    def _open_lanes(self, epoch: int, number: int) -> _Lanes:
        width = self.group * self.lanes
        blocks = self._order(epoch)[0][number * width : (number + 1) * width]
        (seeds,) = random_words(self.seed, np.array([epoch]), np.array([number]), self.lanes).tolist()
        groups = []
        for first, seed in zip(range(0, len(blocks), self.group), seeds, strict=False):
            groups.append(_Group(self.offsets, blocks[first : first + self.group], seed))
        return _Lanes(groups, self.deal)


class _Group:
    # Memory is one number a block
    def __init__(self, offsets: Int64s, blocks: Int64s, seed: int) -> None:
        self._ends = np.cumsum(offsets[blocks + 1] - offsets[blocks])
        self._shifts = offsets[blocks + 1] - self._ends
        self._permutation = Permutation(int(self._ends[-1]), seed)

    def __len__(self) -> int:
        return self._permutation.length

    def __call__(self, positions: Int64s) -> Int64s:
        drawn = self._permutation(positions)
        return drawn + self._shifts[np.searchsorted(self._ends, drawn, side="right")]


class _Lanes:
    # Lanes take turns of ``deal`` samples until all are exhausted
    def __init__(self, lanes: list[_Group], deal: int) -> None:
        self._lanes = lanes
        self._deal = deal
        lengths = list(map(len, lanes))
        rounds = -(-max(lengths) // deal)
        round_ends = np.arange(rounds + 1)[:, None] * deal
        turn_lengths = np.diff(np.minimum(round_ends, lengths), axis=0)
        self._ends = np.cumsum(turn_lengths)

    def __call__(self, positions: Int64s) -> Int64s:
        turns = np.searchsorted(self._ends, positions, side="right")
        rounds, lanes = np.divmod(turns, len(self._lanes))
        starts = np.where(turns > 0, self._ends[turns - 1], 0)
        lane_positions = rounds * self._deal + positions - starts
        samples = np.empty(len(positions), np.int64)
        for number, lane in enumerate(self._lanes):
            mask = lanes == number
            samples[mask] = lane(lane_positions[mask])
        return samples
