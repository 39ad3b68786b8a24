"""Sorting more rows than memory holds: rows are put into buckets, which are then worked on one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.point_cloud.workspace import Column, Form, Workspace

__all__ = ["Buckets", "Read", "Rows", "Split", "key_ranges", "position", "reader"]

_BINS = 1 << 12

Ints = NDArray[np.int64]
Read = Callable[[int, int], NDArray[Any]]
"""``read(lo, hi)``: rows of a column, not to be changed."""


def reader(column: Column) -> Read:
    """How rows of a column are read."""
    return lambda lo, hi: column[lo:hi]


def position(rows: int) -> str:
    """Dtype of a position among so many rows."""
    return "<u4" if rows <= 1 << 32 else "<i8"


class Rows:
    """Rows ``lo:hi`` of some columns, read when they are asked for."""

    def __init__(self, columns: Mapping[str, Read], lo: int, hi: int) -> None:
        self._columns, self._lo, self._hi = columns, lo, hi

    def __len__(self) -> int:
        return self._hi - self._lo

    def read(self, key: str) -> NDArray[Any]:
        """All rows of a column."""
        return self._columns[key](self._lo, self._hi)

    def steps(self, limit: int) -> Iterator[Rows]:
        """Parts of at most `limit` rows."""
        for lo in range(self._lo, self._hi, limit):
            yield Rows(self._columns, lo, min(lo + limit, self._hi))


class Split:
    """Rows sorted by the buckets they go into, in their own order inside each.

    Parameters
    ----------
    numbers
        Bucket of each row, (n,).

    Attributes
    ----------
    order
        Rows in the order of their buckets; None: as they are.
    parts
        Number of each bucket, and where its rows begin and end in that order.
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
    """Columns whose rows are put into buckets, each bucket's in the order in which they came.

    Parameters
    ----------
    work
        Where the columns are.
    sizes
        Rows that each bucket will hold.
    forms
        dtype and row shape of each column, by name.
    """

    def __init__(self, work: Workspace, sizes: Ints, forms: Mapping[str, Form]) -> None:
        self._bounds = [0, *np.cumsum(sizes).tolist()]
        self._columns = {key: work.column(form, self._bounds[-1]) for key, form in forms.items()}
        self._reads = {key: reader(column) for key, column in self._columns.items()}
        self._next = {key: self._bounds.copy() for key in forms}

    def put(self, split: Split, columns: Mapping[str, NDArray[Any]]) -> None:
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
    rows: Rows, ends: Mapping[str, tuple[int, int]], forms: Mapping[str, Form], work: Workspace
) -> Iterator[Rows]:
    """Cut rows into ranges of keys, in the order of the keys.

    A range has at most a step of rows, or one key: rows are cut by their first key into ranges, one that has
    more is cut finer, at last by the further keys.

    Parameters
    ----------
    rows
        The rows; those of one range stay in their order.
    ends
        Smallest and largest of each key (a column of integers), the most significant first.
    forms
        dtype and row shape of all columns that are wanted, keys included.
    """
    uneven = [key for key, (lowest, highest) in ends.items() if highest > lowest]
    if len(rows) <= work.step or not uneven:
        yield rows
        return
    key = uneven[0]
    lowest, highest = ends[key]
    width = (highest - lowest) // _BINS + 1
    counts = np.zeros((highest - lowest) // width + 1, np.int64)
    for part in rows.steps(work.step):
        counts += np.bincount((part.read(key) - lowest) // width, minlength=len(counts))
    bucket_of = _grouped(counts, work.step)
    with work.inner() as inner:
        buckets = Buckets(inner, np.bincount(bucket_of, counts).astype(np.int64), forms)
        for part in rows.steps(work.step):
            values = part.read(key)
            split = Split(bucket_of[(values - lowest) // width])
            for name in forms:
                buckets.put(split, {name: values if name == key else part.read(name)})
        for bucket in buckets:
            if len(bucket):
                yield from key_ranges(bucket, _ends(bucket, ends, work.step), forms, inner)


def _ends(rows: Rows, keys: Mapping[str, tuple[int, int]], step: int) -> Mapping[str, tuple[int, int]]:
    """Smallest and largest of each key; not looked for where nothing will be cut."""
    if len(rows) <= step:
        return keys
    each = {key: [_least_and_most(part.read(key)) for part in rows.steps(step)] for key in keys}
    return {
        key: (min(low for low, _ in found), max(high for _, high in found)) for key, found in each.items()
    }


def _least_and_most(values: Ints) -> tuple[int, int]:
    return int(values.min()), int(values.max())


def _grouped(counts: Ints, limit: int) -> Ints:
    """Bucket of each of some neighbours: fewer than `limit` rows together, or one of more than half as many.

    Parameters
    ----------
    counts
        Rows of each, (n,).
    """
    half = max(1, limit // 2)
    alone = (counts > half).astype(np.int64)
    buckets = (np.cumsum(counts) - counts) // half + np.cumsum(alone) + np.cumsum(alone) - alone
    return np.asarray(np.unique(buckets, return_inverse=True)[1], np.int64)
