"""Samplers for torch's ``DataLoader`` and torchdata's ``StatefulDataLoader``."""

from __future__ import annotations

from collections.abc import Iterator, Sized

from unistore.order.permutation import EpochIndex
from unistore.order.sequences import NAMED, EpochSequence, RankShare, ShuffleKind, Weighted, shuffled
from unistore.system.arguments import MAX_EPOCH, Arguments, checked_epoch

# Positions computed at a time.
WINDOW = 8192


class SequenceSampler:
    """One rank's samples of a sequence, each with its epoch.

    Pass it as ``sampler`` with the same ``batch_size``: batches are then those of `unistore.Loader` with the
    same sequence. Call `set_epoch` before each epoch, as with torch's ``DistributedSampler``.
    ``StatefulDataLoader`` resumes it by skipping, which is exact, as the sequence has no other state.

    Parameters
    ----------
    sequence
        `unistore.order.sequences.Shuffled`, `unistore.order.sequences.BlockShuffle`, …
    batch_size
        Of the DataLoader. Decides which positions of a step belong to this rank.
    rank, world_size
        This process, and the number of processes that share each step.
    drop_last
        True: the same number of full batches on every rank. False: every sample.
    start
        Position at which the first iterated epoch begins, such as ``delivered`` of a loader's state.
    """

    def __init__(
        self,
        sequence: EpochSequence,
        batch_size: int = 1,
        *,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        start: int = 0,
    ) -> None:
        self.sequence = sequence
        self.batch_size = batch_size
        self.start = start
        self.rank = rank
        self.world_size = world_size
        self.drop_last = drop_last
        self.epoch = 0
        self._started = False

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration. Epochs after the first one begin at position 0."""
        if self._started and epoch != self.epoch:
            self.start = 0
        self.epoch = epoch

    def __len__(self) -> int:
        share = self._share()
        if not share.steps:
            return 0
        first, stop = share.span(share.steps - 1)
        return (share.steps - 1) * self.batch_size + stop - first

    def __iter__(self) -> Iterator[EpochIndex]:
        share = self._share()
        epoch = self.epoch
        self._started = True
        for step in range(share.steps):
            for index in self.sequence.indices(epoch, *share.span(step)).tolist():
                yield EpochIndex(index, epoch)

    def _share(self) -> RankShare:
        return RankShare(
            length=len(self.sequence),
            start=self.start,
            batch_size=self.batch_size,
            rank=self.rank,
            world_size=self.world_size,
            drop_last=self.drop_last,
        )


class Shuffle(SequenceSampler):
    """Every sample once per epoch, in an order that is a pure function of (seed, epoch).

    A sampler for ``torch.utils.data.DataLoader``. Call `set_epoch` before each epoch, as with torch's
    ``DistributedSampler``. Its indices carry the epoch to workers, including persistent ones.

    From a Dataset of several stores with ``weights``, samples are drawn in these proportions, with
    replacement. ``unistore.Loader`` with the same seed, shuffle and batch size has the same order.

    Parameters
    ----------
    data
        A dataset, or the number of samples.
    seed
        Seed of the orders.
    samples_per_epoch
        Draws per epoch, with weights only. None: the number of samples.
    shuffle
        ``"full"``, ``"blocks"``, ``"sources"``, or True: blocks if samples are small, else full, as in
        `unistore.Loader`.
    batch_size
        Of the DataLoader. The turn length of a block shuffle.

    Raises
    ------
    InputError
        If an argument is invalid.
    ValueError
        If `samples_per_epoch` is given without weights.
    """

    def __init__(
        self,
        data: Sized | int,
        seed: int = 0,
        samples_per_epoch: int | None = None,
        *,
        shuffle: ShuffleKind = True,
        batch_size: int = 64,
    ) -> None:
        check = Arguments()
        if not hasattr(data, "__len__"):
            check.integer("data", data, most=MAX_EPOCH)
        check.integer("seed", seed, None)
        check.integer("samples_per_epoch", samples_per_epoch, 1, MAX_EPOCH, none=True)
        right = shuffle is True or shuffle in NAMED
        check.expect("shuffle", shuffle, right, "True, 'full', 'blocks' or 'sources'")
        check.integer("batch_size", batch_size, 1)
        check.raise_problems()
        offsets = getattr(data, "store_offsets", None)
        weights = None if offsets is None else getattr(data, "weights", None)
        if weights is None and samples_per_epoch is not None:
            msg = "samples_per_epoch goes with a dataset that has weights: without, each sample comes once"
            raise ValueError(msg)
        self.samples = len(data) if isinstance(data, Sized) else int(data)
        self.seed = int(seed)
        sequence: EpochSequence
        if weights is not None:
            sequence = Weighted(weights, offsets, samples_per_epoch, self.seed)
        else:
            counted = data if isinstance(data, Sized) else range(self.samples)
            sequence = shuffled(counted, shuffle, seed=self.seed, batch_size=batch_size)
        # computed so many at a time, as one rank has all
        super().__init__(sequence, WINDOW)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        super().set_epoch(checked_epoch(epoch))
