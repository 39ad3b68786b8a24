"""Bring the columns of a source into storage order: segment by segment.

A column of one block is read into memory, and its rows are taken from there. With more blocks, the order is
first distributed to buckets of source rows. Then every block of source rows is read once, and its points are
distributed to buckets of storage positions, which are sorted one by one. All reads and writes are sequential,
so that a file with scattered segments takes no longer than one in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.point_cloud.sorting import BucketOrder, Buckets, Read, Rows, index_dtype, reader
from unistore.converters.point_cloud.workspace import Column, ColumnType, Workspace
from unistore.schemas.point_cloud.fields import NO_SEGMENT
from unistore.schemas.tables import offsets_of

Ints = NDArray[np.int64]
Integers = NDArray[np.integer[Any]]


class StorageOrder:
    """Source rows in storage order.

    Parameters
    ----------
    pieces
        Source rows of each piece (a segment), each in parts of any size; a row may occur several times.
    rest
        Whether rows that are in no piece follow, in the source's order.

    Attributes
    ----------
    lengths
        Rows of each piece, (P,).
    unlisted
        How many rows follow the pieces.
    rows
        Source row of each stored row, (M,) u4, or i8 if u4 is too small.
    """

    def __init__(
        self, points: int, pieces: Iterable[Iterable[Integers]], work: Workspace, *, rest: bool
    ) -> None:
        self.points, self._work = points, work
        self.rows: Column = work.column((index_dtype(points), ()), points)
        lengths, total = [], 0
        for piece in pieces:
            before = total
            for part in piece:
                total = self._write(total, part)
            lengths.append(total - before)
        self.lengths = np.array(lengths, np.int64)
        self._blocks = self._by_block(total)
        self._ends = [total]
        for block, lo in enumerate(range(0, points if rest else 0, work.block)):
            self._ends.append(self._write(self._ends[-1], self._unlisted(block) + lo))
        self.unlisted = self._ends[-1] - total

    def __len__(self) -> int:
        return self._ends[-1]

    def in_block(self, block: int) -> Iterator[tuple[Integers, Integers]]:
        """Rows of a source block, counted inside the block, and their storage positions; both ascending."""
        for part in self._blocks[block].steps(self._work.step):
            yield part.read("row"), part.read("at")
        ends = self._ends[block : block + 2]
        if len(ends) == 2 and ends[1] > ends[0]:
            yield self._unlisted(block), np.arange(*ends)

    def _write(self, at: int, rows: Integers) -> int:
        end = at + len(rows)
        if isinstance(self.rows, np.ndarray) and end > len(self.rows):
            self.rows = np.resize(self.rows, end)
        self.rows[at:end] = rows
        return end

    def _by_block(self, total: int) -> Sequence[Rows]:
        """Rows and their storage positions, for each source block."""
        everything = Rows({"row": reader(self.rows), "at": np.arange}, 0, total)
        block = self._work.block
        if self.points <= block:
            return [everything]
        counts = np.zeros(-(-self.points // block), np.int64)
        for part in everything.steps(self._work.step):
            counts += np.bincount(part.read("row") // block, minlength=len(counts))
        types: dict[str, ColumnType] = {"row": ("<u4", ()), "at": (index_dtype(total), ())}
        buckets = Buckets(self._work, counts, types)
        for part in everything.steps(self._work.step):
            rows = part.read("row")
            split = BucketOrder(rows // block)
            buckets.put(split, {"row": (rows % block).astype(np.uint32), "at": part.read("at")})
        return list(buckets)

    def _unlisted(self, block: int) -> NDArray[np.int64]:
        """Rows of a block that are in no piece."""
        left = np.ones(min(self._work.block, self.points - block * self._work.block), np.bool_)
        for part in self._blocks[block].steps(self._work.step):
            left[part.read("row")] = False
        return np.flatnonzero(left)


def in_storage_order(
    order: StorageOrder, columns: Mapping[str, tuple[ColumnType, Read]], work: Workspace
) -> Mapping[str, Read]:
    """Bring columns into storage order; every row of the source is read once.

    Parameters
    ----------
    columns
        Type of each column, and the function that reads its rows in the source's order.

    Returns
    -------
    Mapping
        Function that reads the rows of each column in storage order; fast if read from first to last.
    """
    total, block = len(order), work.block
    if order.points <= block:
        return {
            key: _BlockCache(partial(_take, order, read), total, total) for key, (_, read) in columns.items()
        }
    types = {key: form for key, (form, _) in columns.items()}
    sizes = np.diff([*range(0, max(1, total), block), total])
    buckets = Buckets(work, sizes, {**types, "": ("<u4", ())})
    for number, lo in enumerate(range(0, order.points, block)):
        moved = []
        for rows, at in order.in_block(number):
            moved.append((rows, BucketOrder(at // block)))
            buckets.put(moved[-1][1], {"": at % block})
        for key, (_, read) in columns.items():
            values = read(lo, min(lo + block, order.points))
            for rows, split in moved:
                buckets.put(split, {key: values.take(rows, axis=0)})
    return {key: _BlockCache(partial(_sort_block, buckets, key), total, block) for key in columns}


def _take(order: StorageOrder, read: Read, _: int) -> Read:
    """Read a column of one block; rows are taken on demand."""
    values = read(0, order.points)
    return lambda lo, hi: values.take(order.rows[lo:hi], axis=0)


def _sort_block(buckets: Buckets, key: str, block: int) -> Read:
    """Read one of several blocks of a column and sort its rows."""
    values = buckets[block].read(key)
    rows = np.empty_like(values)
    _items(rows)[buckets[block].read("")] = _items(values)
    return lambda lo, hi: rows[lo:hi]


def _items(rows: NDArray[Any]) -> NDArray[Any]:
    """Each row as one item of a void dtype, as that is copied faster."""
    if rows.ndim == 1 or not len(rows):
        return rows
    return rows.reshape(len(rows), -1).view(f"V{rows.dtype.itemsize * rows[0].size}")[:, 0]


class _BlockCache:
    """Reads rows of a column in storage order; keeps the current block.

    Parameters
    ----------
    load
        ``load(block)`` returns the function that reads rows of a block.
    points, block
        Rows of the column, and of a block.
    """

    def __init__(self, load: Callable[[int], Read], points: int, block: int) -> None:
        self._load, self._points, self._block = load, points, max(1, block)
        self._current: tuple[int, Read] | None = None

    def __call__(self, lo: int, hi: int) -> NDArray[Any]:
        size = self._block
        blocks = range(lo // size, max(hi - 1, lo) // size + 1)
        parts = [self._part(each, max(lo - each * size, 0), min(hi - each * size, size)) for each in blocks]
        if hi == self._points:
            self._current = None
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _part(self, block: int, lo: int, hi: int) -> NDArray[Any]:
        if self._current is None or self._current[0] != block:
            self._current = None
            self._current = block, self._load(block)
        return self._current[1](lo, hi)


class Partition(NamedTuple):
    """Segments of one source in storage order; the segment of number -1 comes last.

    Attributes
    ----------
    order
        Rows of the source, segment by segment; None: all rows in the source's order.
    lengths
        (S,) points of each segment.
    numbers
        (S,) number of each segment.
    """

    order: StorageOrder | None
    lengths: Ints
    numbers: Ints

    @property
    def offsets(self) -> Ints:
        """(S + 1,) bounds of the segments in the storage order."""
        return offsets_of(self.lengths)


def by_indices(
    indices: Iterable[Iterable[Ints]], numbers: Ints | None, rows: int, work: Workspace
) -> Partition:
    """Segments given as sorted row indices; rows of no segment come last, as one segment of number -1.

    Parameters
    ----------
    indices
        Rows of each segment, in parts.
    numbers
        Number of each segment, (S,); None: 0, 1, ….
    """
    order = StorageOrder(rows, indices, work, rest=True)
    numbers = np.arange(len(order.lengths), dtype=np.int64) if numbers is None else numbers
    if not order.unlisted:
        return Partition(order, order.lengths, numbers)
    return Partition(order, np.append(order.lengths, order.unlisted), np.append(numbers, NO_SEGMENT))


def blocks(lengths: Ints, limit: int) -> Iterator[tuple[int, int]]:
    """Ranges of segments with at most `limit` points together, or one segment with more points."""
    first, points = 0, 0
    for segment, length in enumerate(lengths.tolist()):
        if segment > first and points + length > limit:
            yield first, segment
            first, points = segment, 0
        points += length
    if first < len(lengths):
        yield first, len(lengths)
