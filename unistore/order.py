"""In which order samples are read: samplers whose indices carry their epoch."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["At"]


class At(NamedTuple):
    """A sample index together with the epoch it is read in.

    Order objects yield it in place of a bare index: whatever is random in a sample derives from
    (seed, epoch, index), and the epoch must reach workers that were started an epoch ago.
    """

    index: int
    epoch: int
