"""Samplers for torch's ``DataLoader`` and torchdata's ``StatefulDataLoader``."""

from __future__ import annotations

from collections.abc import Iterator, Sized

from unistore.order.permutation import EpochIndex
from unistore.order.sequences import EpochSequence, RankShare, Weighted
from unistore.order.shuffle_choice import NAMED, ShuffleKind, shuffled
from unistore.system.arguments import MAX_EPOCH, Arguments, checked_epoch

# Positions computed at a time.
WINDOW = 8192


class SequenceSampler:
    """One rank's samples of an order, each with its epoch, for torch's ``DataLoader``.

    Pass it as ``sampler``, with the same ``batch_size``: the batches equal the batches of `unistore.Loader`
    with the same order. Call `set_epoch` before each epoch, as with torch's ``DistributedSampler``.
    ``StatefulDataLoader`` resumes it exactly.

    Parameters
    ----------
    sequence : EpochSequence
        For example `unistore.order.sequences.Shuffled` or `unistore.order.sequences.BlockShuffle`.
    batch_size : int, default 1
        Batch size of the DataLoader. It determines which positions of a step belong to this rank.
    rank : int, default 0
        Number of this process.
    world_size : int, default 1
        Number of processes that share each step.
    drop_last : bool, default False
        True: the same number of whole batches on every rank. False: every sample.
    start : int, default 0
        Position at which the first epoch begins, such as ``delivered`` of the state of a Loader.

    Examples
    --------
    >>> order = Shuffled(len(dataset), seed=1)  # doctest: +SKIP
    >>> sampler = SequenceSampler(order, batch_size=64, rank=0, world_size=2)  # doctest: +SKIP
    >>> loader = DataLoader(dataset, 64, sampler=sampler, collate_fn=unistore.collate)  # doctest: +SKIP
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
    """Sampler with every sample once per epoch, in an order that depends only on the seed and the epoch.

    Use it with ``torch.utils.data.DataLoader``, and call `set_epoch` before each epoch, as with torch's
    ``DistributedSampler``. Its indices carry the epoch to workers, also to persistent ones.

    For a Dataset of several stores with ``weights``, samples are drawn in these proportions, with
    replacement. ``unistore.Loader`` with the same seed, shuffle and batch size has the same order.

    Parameters
    ----------
    data : dataset or int
        A dataset, or the number of samples.
    seed : int, default 0
        Seed of the orders.
    samples_per_epoch : int, optional
        Number of draws per epoch; only with weights. None: the number of samples.
    shuffle : {True, "full", "blocks", "sources"}, default True
        ``True``: blocks if samples are small, otherwise full, as in `unistore.Loader`.
    batch_size : int, default 64
        Batch size of the DataLoader: number of samples per turn of a block shuffle.

    Raises
    ------
    InputError
        If an argument is invalid.
    ValueError
        If `samples_per_epoch` is given without weights.

    Examples
    --------
    >>> sampler = unistore.Shuffle(dataset, seed=1)  # doctest: +SKIP
    >>> loader = DataLoader(dataset, 8, sampler=sampler, collate_fn=unistore.collate)  # doctest: +SKIP
    >>> for epoch in range(10):  # doctest: +SKIP
    ...     sampler.set_epoch(epoch)
    ...     for batch in loader:
    ...         train(batch)
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
            msg = "samples_per_epoch: works only with a dataset that has weights. Fix: remove it"
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
