"""Sequences as samplers of torch's ``DataLoader`` and torchdata's ``StatefulDataLoader``."""

from __future__ import annotations

from collections.abc import Iterator

from unistore.order.permutation import At
from unistore.order.sequences import EpochSequence, Share

__all__ = ["SequenceSampler"]


class SequenceSampler:
    """Yields the samples of a sequence that one rank reads, each with its epoch.

    Give it as ``sampler`` together with the same ``batch_size``: batches are then those of `unistore.Loader`
    with the same sequence. Call `set_epoch` before each epoch, as with torch's ``DistributedSampler``.
    ``StatefulDataLoader`` resumes it by skipping, which is exact: the sequence depends on nothing else.

    Parameters
    ----------
    sequence
        `unistore.order.sequences.Shuffled`, `unistore.order.blocks.BlockShuffle`, …
    batch_size
        Of the DataLoader; decides which positions of a step are this rank's.
    rank, world_size
        Which part of every step this process reads.
    drop_last
        True: the same number of whole batches on every rank. False: every sample.
    start
        Position at which the first epoch that is iterated begins, such as ``delivered`` of a loader's state.
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
        self.rank, self.world_size, self.drop_last = rank, world_size, drop_last
        self.start = start
        self.epoch = 0
        self._begun = False

    def set_epoch(self, epoch: int) -> None:
        """Epoch whose order the next iteration yields; epochs after the first one begin at position 0."""
        if self._begun and epoch != self.epoch:
            self.start = 0
        self.epoch = epoch

    def __len__(self) -> int:
        share = self._share()
        if not share.steps:
            return 0
        first, stop = share.span(share.steps - 1)
        return (share.steps - 1) * self.batch_size + stop - first

    def __iter__(self) -> Iterator[At]:
        share, epoch = self._share(), self.epoch
        self._begun = True
        for step in range(share.steps):
            for index in self.sequence.indices(epoch, *share.span(step)).tolist():
                yield At(index, epoch)

    def _share(self) -> Share:
        return Share(
            length=len(self.sequence),
            start=self.start,
            batch_size=self.batch_size,
            rank=self.rank,
            world_size=self.world_size,
            drop_last=self.drop_last,
        )
