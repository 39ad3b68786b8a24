"""Batches as NumPy arrays: dense, or packed as values and offsets."""

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
    """Return the function that allocates memory of the batch that a Loader is making. None: no Loader is."""
    return _lent.get()


@contextmanager
def lending(allocate: Allocate) -> Iterator[None]:
    """Make `lent_memory` return `allocate` inside this context."""
    token = _lent.set(allocate)
    try:
        yield
    finally:
        _lent.reset(token)


@dataclass(frozen=True, slots=True)
class Packed:
    """One key of a batch of B samples, dense or with variable length.

    ``packed[i]`` is sample i, ``len(packed)`` is B.

    Attributes
    ----------
    values : array
        Dense: shape (B, …). Variable length: the samples one after another, (sum of lengths, …). Images are
        permuted views. Texts are dense arrays of NumPy's fixed-width Unicode.
    offsets : int64 array of shape (B + 1,), optional
        Sample i is ``values[offsets[i]:offsets[i + 1]]``. None: dense.
    group : str, default ""
        Keys of variable length with the same group share their offsets. ``""`` is the main group of a sample
        (points, voxels of a window), ``"voxel"`` a second one. In a collated batch, their offsets are called
        ``offsets`` and ``voxel_offsets``.
    shapes : int64 array of shape (B, n), optional
        Shapes of samples that are volumes or crops of different extents. `values` is then flat, and
        sample i is ``values[offsets[i]:offsets[i + 1]].reshape(shapes[i])``. Keys of a group share them,
        too. None: samples differ only in length.

    Examples
    --------
    >>> packed = Packed(np.arange(5), np.array([0, 2, 5]))  # doctest: +SKIP
    >>> packed[1]  # doctest: +SKIP
    array([2, 3, 4])
    """

    values: NDArray[Any]
    offsets: NDArray[np.int64] | None = None
    group: str = ""
    shapes: NDArray[np.int64] | None = None

    def group_key(self, what: str) -> str:
        """Return the key of the group's offsets or shapes in a batch: ``"voxel_offsets"``.

        Parameters
        ----------
        what : {"offsets", "shapes"}
            Which of the two.
        """
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
        """Return a copy of some samples of the batch, given by their positions (n,)."""
        if self.offsets is None:
            return Packed(self.values[samples], None, self.group)
        lo = self.offsets[samples]
        hi = self.offsets[samples + 1]
        shapes = None if self.shapes is None else self.shapes[samples]
        return Packed(self.values[rows_of_ranges(lo, hi)], offsets_from_lengths(hi - lo), self.group, shapes)


Batch: TypeAlias = dict[str, Packed]


def offsets_from_lengths(lengths: NDArray[Any]) -> NDArray[np.int64]:
    """Return the offsets (B + 1,) int64 of samples with the given lengths (B,)."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def rows_of_ranges(lo: NDArray[np.int64], hi: NDArray[np.int64], stride: int = 1) -> NDArray[np.int64]:
    """Return every `stride`-th row of ranges ``lo:hi``, one range after another."""
    counts = -(-(hi - lo) // stride)
    offsets = offsets_from_lengths(counts)
    rows: NDArray[np.int64] = np.repeat(lo, counts) + stride * (
        np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    )
    return rows


def range_of_rows(offsets: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of the range that contains each row.

    Parameters
    ----------
    offsets : int64 array of shape (n + 1,)
        Range i has rows ``offsets[i]`` to ``offsets[i + 1] - 1``. Ranges may be empty.
    rows : int64 array
        Rows, each in one of the ranges.

    Returns
    -------
    int64 array of the shape of `rows`
        Numbers of the ranges.
    """
    return np.searchsorted(offsets, rows, side="right") - 1


def packed_copy(values: NDArray[Any], allocate: Allocate) -> Packed:
    """Copy dense values (B, …) into allocated memory."""
    out = allocate(values.shape, values.dtype)
    out[...] = values
    return Packed(out)


def packed_copies(values: Mapping[str, NDArray[Any]], keys: Iterable[str], allocate: Allocate) -> Batch:
    """Copy dense values by key into allocated memory.

    Parameters
    ----------
    values : mapping of str to array
        Values of shape (B, …) by key.
    keys : iterable of str
        Keys to copy, in this order. Keys without values are ignored.
    allocate : callable
        Called as ``allocate(shape, dtype)`` for each copy.

    Returns
    -------
    dict of str to Packed
        The copies by key.
    """
    return {key: packed_copy(values[key], allocate) for key in keys if key in values}
