"""Ragged samples: ranges of rows of a table, or a random subset of each range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.protocol import Picks
from unistore.data.packed import offsets_from_lengths
from unistore.order.randomness import subset
from unistore.zarr3.array import Array


@dataclass(frozen=True, slots=True)
class Spans:
    """Rows of a batch of ragged samples.

    Attributes
    ----------
    lo, hi
        (B,) int64: sample i has rows ``lo[i]:hi[i]``.
    offsets
        (B + 1,) int64: offset of each sample in the batch.
    rows
        None: all rows. Else the rows of all samples, ``(offsets[-1],)``, relative to the sample's ``lo`` and
        ascending in each sample.
    """

    lo: NDArray[np.int64]
    hi: NDArray[np.int64]
    offsets: NDArray[np.int64]
    rows: NDArray[np.int64] | None = None

    @classmethod
    def draw(
        cls, picks: Picks, lo: NDArray[np.int64], hi: NDArray[np.int64], most: int | None = None
    ) -> Spans:
        """Rows ``lo:hi`` of each sample; of samples with more than `most` rows, a uniform subset."""
        lengths = hi - lo
        if most is None or not (lengths > most).any():
            return cls(lo, hi, offsets_from_lengths(lengths))
        offsets = offsets_from_lengths(np.minimum(lengths, most))
        rows = np.empty(int(offsets[-1]), np.int64)
        for i, length in enumerate(lengths.tolist()):
            part = rows[offsets[i] : offsets[i + 1]]
            part[:] = subset(length, most, picks.generator(i)) if length > most else np.arange(length)
        return cls(lo, hi, offsets, rows)

    def __len__(self) -> int:
        """Number of rows of the whole batch."""
        return int(self.offsets[-1])

    def read(self, array: Array, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read the values of these rows, ``(offsets[-1], …)``, into `out` if given."""
        if self.rows is None:
            return array.read_ranges(self.lo, self.hi, out)
        if out is None:
            out = np.empty((len(self), *array.shape[1:]), array.dtype)
        lengths = self.hi - self.lo
        scratch = np.empty((int(lengths.max()), *array.shape[1:]), array.dtype)
        for i, (lo, hi) in enumerate(zip(self.lo.tolist(), self.hi.tolist(), strict=True)):
            part = slice(int(self.offsets[i]), int(self.offsets[i + 1]))
            rows = self.rows[part]
            if len(rows) == hi - lo:
                array.read_ranges([lo], [hi], out[part])
            elif len(rows) * array.chunk_shape[0] < hi - lo:
                array.read_rows(rows + lo, out[part])
            else:  # nearly every chunk is needed: cheapest in order
                whole = array.read_ranges([lo], [hi], scratch[: hi - lo])
                np.take(whole, rows, axis=0, out=out[part], mode="clip")
        return out
