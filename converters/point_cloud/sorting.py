"""Sort rows by integers, in memory or, where they are more than a step, in memory maps of temporary files.

Columns are read and written from first to last, or appended to a few thousand buckets. So sorting is as fast
where the maps are larger than the memory of the machine.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.errors import ConversionError
from unistore.schemas.tables import offsets_of

STEP = 1 << 19
"""Points that are processed at a time."""
_BINS = 1 << 12
# Name of a column of places
_PLACE = ""

Ints = NDArray[np.int64]
Integers = NDArray[np.integer[Any]]
Table = Mapping[str, NDArray[Any]]
"""Columns of equally many rows, by name."""


class Workspace:
    """Creates temporary columns.

    Parameters
    ----------
    folder
        Folder for the files of columns of more than a step of rows. None: all columns are in memory.

    Attributes
    ----------
    step
        Rows that are processed at a time.
    """

    def __init__(self, folder: Path | None) -> None:
        self.step = STEP
        self._folder = folder

    def in_memory(self, rows: int) -> bool:
        """Return whether a column of `rows` rows is in memory."""
        return self._folder is None or rows <= self.step

    def column(self, dtype: str, rows: int, row_shape: tuple[int, ...] = ()) -> NDArray[Any]:
        """Create a column of undefined values.

        Its file has no name and goes with the column, or with the process.

        Raises
        ------
        ConversionError
            If the disk is full.
        """
        shape = (rows, *row_shape)
        if self._folder is None or self.in_memory(rows):
            return np.empty(shape, dtype)
        try:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                # Without room on the disk, writing to the map would end the process by a signal.
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, np.dtype(dtype).itemsize * prod(shape))
                return np.memmap(file, dtype, "r+", shape=shape).view(np.ndarray)
        except OSError as error:
            msg = (
                f"{self._folder}: points cannot be sorted there ({error.strerror or error}); free space "
                "(twice that of the file, uncompressed) or give more --memory, then run the same command"
            )
            raise ConversionError(msg) from error

    def steps(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Divide rows ``start:stop`` into ranges of at most a step."""
        for lo in range(start, stop, self.step):
            yield lo, min(lo + self.step, stop)


def index_dtype(rows: int) -> str:
    """Return the dtype for indices of `rows` rows."""
    return "<u4" if rows <= 1 << 32 else "<i8"


class Sorted(NamedTuple):
    """Rows of a table, sorted by some of its columns."""

    table: Table
    order: Ints | None  # rows of the table, sorted; None: they are sorted
    starts: Ints  # position in that order of the first row of each group of equal keys

    def column(self, name: str) -> NDArray[Any]:
        """Return a column, sorted."""
        column = self.table[name]
        return column if self.order is None else column[self.order]

    def first(self) -> Ints:
        """Return the row of the table that is the first of each group."""
        return self.starts if self.order is None else self.order[self.starts]


def sorted_groups(table: Table, keys: Sequence[str], work: Workspace) -> Iterator[Sorted]:
    """Sort rows by tuples of non-negative integers; equal ones keep their order.

    Yields ranges of keys in their order, each with at most a step of rows, or with more rows of one group.

    Parameters
    ----------
    keys
        Columns of the tuples, the most significant first.
    """
    for part in _key_ranges(table, keys, work):
        if rows_in(part) > work.step:
            yield Sorted(part, None, np.zeros(1, np.int64))
        else:
            yield Sorted(part, *sort_tuples([part[key] for key in keys]))


def sort_tuples(keys: Sequence[Integers]) -> tuple[Ints, Ints]:
    """Sort rows by their tuples in memory, see `sorted_groups`."""
    packed = _pack(keys)
    begins = np.ones(len(keys[0]), np.bool_)
    if packed is None:
        order = np.lexsort(keys[::-1])
        begins[1:] = np.any([key[order[1:]] != key[order[:-1]] for key in keys], axis=0)
        return order, np.flatnonzero(begins)
    bits = len(packed).bit_length()
    if int(packed.max(initial=0)).bit_length() + bits > 63:
        order = np.argsort(packed, kind="stable")
        packed = packed[order]
    else:
        # Sorting keys with their rows in the low bits is several times faster than argsort.
        both = np.sort(packed << bits | np.arange(len(packed)))
        order = both & ((1 << bits) - 1)
        packed = both >> bits
    begins[1:] = packed[1:] != packed[:-1]
    return order, np.flatnonzero(begins)


def _pack(keys: Sequence[Integers]) -> Ints | None:
    """Join all keys as digits of one int64, as that sorts several times faster; None if they do not fit."""
    extents = [int(key.max(initial=0)) + 1 for key in keys]
    if prod(extents) >= 1 << 63:
        return None
    packed = np.zeros(len(keys[0]), np.int64)
    for key, extent in zip(keys, extents, strict=True):
        packed *= extent
        packed += key
    return packed


def _key_ranges(table: Table, keys: Sequence[str], work: Workspace) -> Iterator[Table]:
    """Divide rows into ranges of their keys, in the order of these; rows keep their order in a range.

    A range has at most a step of rows, or rows of one tuple only. Rows are divided by their first key. Ranges
    with more rows are divided further, by the same key and then by the next keys.
    """
    rows = rows_in(table)
    if rows <= work.step:
        yield table
        return
    for name in keys:
        key = table[name]
        lowest, highest = map(int, extremes(key, work))
        if lowest < highest:
            break
    else:
        yield table
        return
    width = (highest - lowest) // _BINS + 1
    counts = np.zeros((highest - lowest) // width + 1, np.int64)
    for lo, hi in work.steps(0, rows):
        counts += np.bincount((key[lo:hi] - lowest) // width, minlength=len(counts))
    bucket_of_bin = _group_bins(counts, work.step)
    buckets = Buckets(np.bincount(bucket_of_bin, counts).astype(np.int64), table, work)
    for lo, hi in work.steps(0, rows):
        buckets.put(bucket_of_bin[(key[lo:hi] - lowest) // width], part_of(table, lo, hi).items())
    for bucket in buckets:
        yield from _key_ranges(bucket, keys, work)


def extremes(column: NDArray[Any], work: Workspace) -> tuple[Any, Any]:
    """Return the minimum and the maximum of a column."""
    lows = []
    highs = []
    for lo, hi in work.steps(0, len(column)):
        lows.append(column[lo:hi].min())
        highs.append(column[lo:hi].max())
    return min(lows), max(highs)


def rows_in(table: Table) -> int:
    """Return the number of rows."""
    return len(next(iter(table.values())))


def part_of(table: Table, lo: int, hi: int) -> Table:
    """Return rows ``lo:hi``."""
    return {name: column[lo:hi] for name, column in table.items()}


class Buckets:
    """A table whose rows are divided among buckets; inside a bucket rows keep their order.

    Parameters
    ----------
    sizes
        Rows that each bucket will hold, of at most 2^16 buckets.
    like
        A table with the same columns.
    """

    def __init__(self, sizes: Ints, like: Table, work: Workspace) -> None:
        self._bounds = offsets_of(sizes)
        self._ends = self._bounds[:-1].copy()
        self._table = {name: _empty(column, int(self._bounds[-1]), work) for name, column in like.items()}

    def put(self, buckets: Integers, columns: Iterable[tuple[str, NDArray[Any]]]) -> None:
        """Append rows to their buckets; columns may be read one after the other."""
        counts = np.bincount(buckets, minlength=len(self._ends))
        order = None
        if (buckets[1:] < buckets[:-1]).any():
            order = np.argsort(buckets.astype(np.uint16), kind="stable")  # of 16 bits: a radix sort
        filled = np.flatnonzero(counts)
        stops = np.cumsum(counts[filled]).tolist()
        starts = [0, *stops]
        for name, column in columns:
            rows = column if order is None else column.take(order, axis=0)
            for bucket, start, stop in zip(filled.tolist(), starts, stops, strict=False):
                end = int(self._ends[bucket])
                self._table[name][end : end + stop - start] = rows[start:stop]
        self._ends += counts

    def __iter__(self) -> Iterator[Table]:
        for start, stop in pairwise(self._bounds.tolist()):
            yield part_of(self._table, start, stop)


class PlacedTable:
    """A table whose rows are put to their places in any order; columns are then read from first to last.

    Parameters
    ----------
    bounds
        Places where the parts that are read start, and the number of rows.
    like
        A table with the same columns.
    """

    def __init__(self, bounds: Ints, like: Table, work: Workspace) -> None:
        self._bounds = bounds
        self._whole: Table | None = None
        if work.in_memory(int(bounds[-1])):
            self._whole = {name: _empty(column, int(bounds[-1]), work) for name, column in like.items()}
        else:
            self._buckets = Buckets(np.diff(bounds), {**like, _PLACE: np.empty(0, np.uint32)}, work)

    def put(self, places: Integers, columns: Iterable[tuple[str, NDArray[Any]]]) -> None:
        """Put at most a step of rows to their places; columns may be read one after the other."""
        if self._whole is not None:
            for name, rows in columns:
                self._whole[name][places] = rows
            return
        part = np.searchsorted(self._bounds, places, side="right") - 1
        self._buckets.put(part, chain(columns, [(_PLACE, places - self._bounds[part])]))

    def column(self, name: str) -> Iterator[NDArray[Any]]:
        """Read a column in parts."""
        if self._whole is not None:
            for start, stop in pairwise(self._bounds.tolist()):
                yield self._whole[name][start:stop]
            return
        for part in self._buckets:
            values = np.empty_like(part[name])
            _items(values)[part[_PLACE]] = _items(part[name])
            yield values


def _empty(like: NDArray[Any], rows: int, work: Workspace) -> NDArray[Any]:
    return work.column(like.dtype.str, rows, like.shape[1:])


def _items(rows: NDArray[Any]) -> NDArray[Any]:
    """View each row as one item of a void dtype, as that is copied faster."""
    if rows.ndim == 1 or not len(rows):
        return rows
    return rows.reshape(len(rows), -1).view(f"V{rows[0].nbytes}")[:, 0]


def _group_bins(counts: Ints, limit: int) -> NDArray[np.uint16]:
    """Return the bucket of each bin, (n,), for the rows in each bin, (n,).

    A bucket is one bin with more than half of `limit` rows, or neighbouring bins with fewer than `limit`.
    """
    half = max(1, limit // 2)
    large = (counts > half).astype(np.int64)
    buckets = (np.cumsum(counts) - counts) // half + 2 * np.cumsum(large) - large
    numbers: NDArray[np.uint16] = np.unique(buckets, return_inverse=True)[1].astype(np.uint16)
    return numbers
