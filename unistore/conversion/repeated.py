"""Run-length encoded arrays (the split of every row), decoded by slices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Repeated:
    """``np.repeat(values, counts, axis=0)`` without its memory; supports slices along axis 0.

    Attributes
    ----------
    values
        Value of each run, (runs, …).
    counts
        Rows of each run, 0 or more, (runs,) int64.
    """

    values: NDArray[Any]
    counts: NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.counts.sum())

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values."""
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array."""
        return (len(self), *self.values.shape[1:])

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        lo, hi, step = rows.indices(len(self))
        bounds = np.concatenate(([0], np.cumsum(self.counts))).clip(lo, max(lo, hi))
        return np.repeat(self.values, np.diff(bounds), axis=0)[::step]
