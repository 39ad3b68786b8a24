"""Arrays of runs of equal values (the split of every row), made in blocks: they take no memory a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Repeated"]


@dataclass(frozen=True, slots=True, eq=False)
class Repeated:
    """What ``np.repeat(values, counts)`` gives, to be sliced along axis 0 like it.

    Attributes
    ----------
    values
        (runs, …): the value of each run.
    counts
        (runs,) int64: its rows, 0 or more.
    """

    values: NDArray[Any]
    counts: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.counts.sum())

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the values."""
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        return (len(self), *self.values.shape[1:])

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        lo, hi, step = rows.indices(len(self))
        bounds = np.concatenate(([0], np.cumsum(self.counts))).clip(lo, max(lo, hi))
        return np.repeat(self.values, np.diff(bounds), axis=0)[::step]
