"""Records which samples of a batch are random: they change with the epoch and must not be cached."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.protocol import Picks

__all__ = ["WatchedPicks"]


class WatchedPicks(Picks):
    """Picks that record the samples that random numbers were drawn for.

    Parameters
    ----------
    picks
        The picks to record.

    Attributes
    ----------
    drawn
        (B,) bool: whether the sample depends on the epoch. Draws with only one possible result do not count.
    """

    __slots__ = ("drawn",)

    drawn: NDArray[np.bool_]

    def __init__(self, picks: Picks) -> None:
        super().__init__(picks.index, picks.epoch, picks.seed)
        object.__setattr__(self, "drawn", np.zeros(len(picks), np.bool_))

    def below(self, bounds: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Picks.below`."""
        np.logical_or(self.drawn, (np.asarray(bounds) > 1).any(axis=1), out=self.drawn)
        return super().below(bounds)

    def generator(self, sample: int) -> np.random.Generator:
        """See `Picks.generator`."""
        self.drawn[sample] = True
        return super().generator(sample)
