"""A batch as numpy arrays: dense, or ragged as values and offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# ``allocate(shape, dtype)`` returns an uninitialised C-contiguous array, like ``np.empty``
Allocate: TypeAlias = Callable[[tuple[int, ...], "np.dtype[Any]"], NDArray[Any]]

_lent: ContextVar[Allocate | None] = ContextVar("memory of a batch", default=None)


def lent_memory() -> Allocate | None:
    """Return what allocates the memory of the batch that a Loader is making, None outside of one."""
    return _lent.get()


@contextmanager
def lending(allocate: Allocate) -> Iterator[None]:
    """Let `lent_memory` return `allocate`."""
    token = _lent.set(allocate)
    try:
        yield
    finally:
        _lent.reset(token)


@dataclass(frozen=True, slots=True)
class Packed:
    """One key of a batch of B samples.

    Attributes
    ----------
    values
        Dense: ``(B, ...)``. Ragged: ``(sum of lengths, ...)``, sample after sample. An array from `Allocate`,
        or a strided view of one (images are permuted views). Text is a dense array of numpy's fixed-width
        unicode.
    offsets
        None: dense. Else ``(B + 1,)`` int64: sample i is ``values[offsets[i]:offsets[i + 1]]``.
    group
        Ragged keys of one group share their offsets: ``""`` is the sample's main group (points, voxels of
        a window), ``"voxel"`` a second one. Their offsets are collated as ``offsets``, ``voxel_offsets``.
    shapes
        ``(B, n)`` int64 if samples are boxes of different extents (volumes): ``values`` is flat and sample i
        is ``values[offsets[i]:offsets[i + 1]].reshape(shapes[i])``. Shared by the keys of a group, too.
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64] | None = None
    group: str = ""
    shapes: NDArray[np.int64] | None = None

    def group_key(self, what: str) -> str:
        """Return the key of the group's offsets or shapes: ``"voxel_offsets"`` for ``voxel``."""
        return f"{self.group}_{what}" if self.group else what

    def __reduce__(self) -> tuple[type[Packed], tuple[Any, ...]]:  # faster than that of dataclasses
        return Packed, (self.values, self.offsets, self.group, self.shapes)

    def __len__(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    def __getitem__(self, sample: int) -> NDArray[Any]:
        if self.offsets is None:
            return self.values[sample, ...]
        part = self.values[self.offsets[sample] : self.offsets[sample + 1]]
        return part if self.shapes is None else part.reshape(self.shapes[sample])

    def take(self, samples: NDArray[np.int64]) -> Packed:
        """Copy some samples of the batch, (n,)."""
        if self.offsets is None:
            return Packed(self.values[samples], None, self.group)
        lo = self.offsets[samples]
        hi = self.offsets[samples + 1]
        shapes = None if self.shapes is None else self.shapes[samples]
        return Packed(self.values[rows_of_ranges(lo, hi)], offsets_from_lengths(hi - lo), self.group, shapes)


Batch: TypeAlias = dict[str, Packed]


def offsets_from_lengths(lengths: NDArray[Any]) -> NDArray[np.int64]:
    """Return offsets ``(B + 1,)`` int64 of samples with the given lengths ``(B,)``."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def rows_of_ranges(lo: NDArray[np.int64], hi: NDArray[np.int64], stride: int = 1) -> NDArray[np.int64]:
    """Return every `stride`-th row of ranges ``lo:hi``, one range after the other."""
    counts = -(-(hi - lo) // stride)
    offsets = offsets_from_lengths(counts)
    rows: NDArray[np.int64] = np.repeat(lo, counts) + stride * (
        np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    )
    return rows


def range_of_rows(offsets: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which range of `offsets` (n + 1,) has each row, the last one of several that begin there."""
    return np.searchsorted(offsets, rows, side="right") - 1


def packed_copy(values: NDArray[Any], allocate: Allocate) -> Packed:
    """Copy dense values (B, …) into allocated memory."""
    out = allocate(values.shape, values.dtype)
    out[...] = values
    return Packed(out)


def packed_copies(values: Mapping[str, NDArray[Any]], keys: Iterable[str], allocate: Allocate) -> Batch:
    """Copy the values of those of some keys that there are, in the order of the keys."""
    return {key: packed_copy(values[key], allocate) for key in keys if key in values}
