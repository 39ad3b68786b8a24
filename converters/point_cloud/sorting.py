"""Sort rows by integers: tuples in memory, and out of core by distributing rows to buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.point_cloud.workspace import Column, ColumnType, Workspace

Ints = NDArray[np.int64]


def unique_tuples(keys: Sequence[Ints]) -> tuple[Ints, Ints, Ints]:
    """Distinct tuples of non-negative integers in lexicographic order, the first key most significant.

    Returns
    -------
    first, inverse, counts
        One row of each distinct tuple; number of the tuple of each row; rows of each tuple.
    """
    order, begins = sort_tuples(keys)
    starts = np.flatnonzero(begins)
    inverse = np.empty(len(order), np.int64)
    inverse[order] = np.cumsum(begins) - 1
    return order[starts], inverse, np.diff(starts, append=len(order))


def sort_tuples(keys: Sequence[Ints]) -> tuple[Ints, NDArray[np.bool_]]:
    """Rows sorted by their tuples (stable), and whether each differs from the row before it."""
    extents = [int(key.max(initial=0)) + 1 for key in keys]
    packed = _pack(keys, extents)
    begins = np.ones(len(keys[0]), np.bool_)
    if packed is None:
        order = np.lexsort(keys[::-1])
        begins[1:] = np.any([key[order[1:]] != key[order[:-1]] for key in keys], axis=0)
        return order, begins
    bits = len(packed).bit_length()
    if int(packed.max(initial=0)).bit_length() + bits > 63:
        order = np.argsort(packed, kind="stable")
        packed = packed[order]
    else:
        both = np.sort(packed << bits | np.arange(len(packed)))  # several times faster than argsort
        order, packed = both & ((1 << bits) - 1), both >> bits
    begins[1:] = packed[1:] != packed[:-1]
    return order, begins


def _pack(keys: Sequence[Ints], extents: Sequence[int]) -> Ints | None:
    """All keys as digits of one int64, as that sorts several times faster; None if they do not fit."""
    if prod(extents) >= 1 << 63:
        return None
    packed = np.zeros(len(keys[0]), np.int64)
    for key, extent in zip(keys, extents, strict=True):
        packed *= extent
        packed += key
    return packed


_BINS = 1 << 12

Read = Callable[[int, int], NDArray[Any]]
"""``read(lo, hi)``: rows of a column; do not modify them."""


def reader(column: Column) -> Read:
    """Function that reads rows of a column."""
    return lambda lo, hi: column[lo:hi]


def index_dtype(rows: int) -> str:
    """Dtype for indices of `rows` rows."""
    return "<u4" if rows <= 1 << 32 else "<i8"


class Rows:
    """Rows ``lo:hi`` of some columns, read on demand."""

    def __init__(self, columns: Mapping[str, Read], lo: int, hi: int) -> None:
        self.columns, self.lo, self.hi = columns, lo, hi

    def __len__(self) -> int:
        return self.hi - self.lo

    def read(self, key: str) -> NDArray[Any]:
        """All rows of a column."""
        return self.columns[key](self.lo, self.hi)

    def steps(self, limit: int) -> Iterator[Rows]:
        """The rows in steps of at most `limit`."""
        for lo in range(self.lo, self.hi, limit):
            yield Rows(self.columns, lo, min(lo + limit, self.hi))


class BucketOrder:
    """Stable sort of rows by their buckets.

    Parameters
    ----------
    numbers
        Bucket of each row, (n,).

    Attributes
    ----------
    order
        Rows in the order of their buckets; None if they are in order.
    parts
        ``(bucket, lo, hi)``: each bucket and its rows ``lo:hi`` in that order.
    """

    def __init__(self, numbers: NDArray[np.integer[Any]]) -> None:
        self.order: Ints | None = None
        self.parts: list[tuple[int, int, int]] = []
        if not len(numbers):
            return
        lowest = int(numbers.min())
        spread = int(numbers.max()) - lowest
        if spread and (numbers[1:] < numbers[:-1]).any():
            # 16 bits: radix sort
            small = (numbers - lowest).astype(np.uint16 if spread < 1 << 16 else np.int64)
            self.order = np.argsort(small, kind="stable")
            numbers = numbers[self.order]
        begins = np.flatnonzero(np.diff(numbers, prepend=lowest - 1))
        ends = [*begins[1:].tolist(), len(numbers)]
        self.parts = list(zip(numbers[begins].tolist(), begins.tolist(), ends, strict=True))

    def sort(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Rows in the order of their buckets."""
        return rows if self.order is None else rows.take(self.order, axis=0)


class Buckets:
    """Columns whose rows are distributed to buckets; inside a bucket rows keep their order.

    Parameters
    ----------
    sizes
        Rows that each bucket will hold.
    types
        dtype and row shape of each column, by name.
    """

    def __init__(self, work: Workspace, sizes: Ints, types: Mapping[str, ColumnType]) -> None:
        self._bounds = [0, *np.cumsum(sizes).tolist()]
        self._columns = {key: work.column(form, self._bounds[-1]) for key, form in types.items()}
        self._reads = {key: reader(column) for key, column in self._columns.items()}
        self._next = {key: self._bounds.copy() for key in types}

    def put(self, split: BucketOrder, columns: Mapping[str, NDArray[Any]]) -> None:
        """Put rows of one or more columns."""
        for key, values in columns.items():
            column, following, rows = self._columns[key], self._next[key], split.sort(values)
            for bucket, lo, hi in split.parts:
                begin = following[bucket]
                following[bucket] = end = begin + hi - lo
                column[begin:end] = rows[lo:hi]

    def __getitem__(self, bucket: int) -> Rows:
        return Rows(self._reads, *self._bounds[bucket : bucket + 2])

    def __iter__(self) -> Iterator[Rows]:
        return (Rows(self._reads, lo, hi) for lo, hi in pairwise(self._bounds))


def key_ranges(
    rows: Rows, ends: Mapping[str, tuple[int, int]], types: Mapping[str, ColumnType], work: Workspace
) -> Iterator[Rows]:
    """Divide rows into ranges of keys, in the order of the keys.

    Each range has at most a step of rows, or rows of one key only. Rows are divided by their first key;
    ranges with more rows are divided further, by the same key and then by the next keys.

    Parameters
    ----------
    rows
        The rows; they keep their order inside a range.
    ends
        Minimum and maximum of each key (a column of integers), the most significant key first.
    types
        dtype and row shape of all wanted columns, keys included.
    """
    varying = [key for key, (lowest, highest) in ends.items() if highest > lowest]
    if len(rows) <= work.step or not varying:
        yield rows
        return
    key = varying[0]
    lowest, highest = ends[key]
    width = (highest - lowest) // _BINS + 1
    counts = np.zeros((highest - lowest) // width + 1, np.int64)
    for part in rows.steps(work.step):
        bins = ((part.read(key) - lowest) // width).astype(np.int64, copy=False)
        counts += np.bincount(bins, minlength=len(counts))
    bucket_of = _group_bins(counts, work.step)
    with work.nested() as nested:
        buckets = Buckets(nested, np.bincount(bucket_of, counts).astype(np.int64), types)
        for part in rows.steps(work.step):
            values = part.read(key)
            split = BucketOrder(bucket_of[(values - lowest) // width])
            for name in types:
                buckets.put(split, {name: values if name == key else part.read(name)})
        for bucket in buckets:
            if len(bucket) > work.step:
                found = {key: extremes(bucket, key, work.step) for key in ends}
                inner = {key: (int(low), int(high)) for key, (low, high) in found.items()}
                yield from key_ranges(bucket, inner, types, nested)
            elif len(bucket):
                yield bucket


def extremes(rows: Rows, key: str, step: int) -> tuple[Any, Any]:
    """Minimum and maximum of a column."""
    parts = (part.read(key) for part in rows.steps(step))
    lows, highs = zip(*((values.min(), values.max()) for values in parts), strict=True)
    return min(lows), max(highs)


def _group_bins(counts: Ints, limit: int) -> Ints:
    """Bucket of each bin, (n,), for the rows in each bin, (n,).

    A bucket is one bin with more than half of `limit` rows, or neighbouring bins with fewer than `limit`.
    """
    half = max(1, limit // 2)
    large = (counts > half).astype(np.int64)
    buckets = (np.cumsum(counts) - counts) // half + 2 * np.cumsum(large) - large
    return np.asarray(np.unique(buckets, return_inverse=True)[1], np.int64)
