"""Bringing the columns of a source into storage order.

A column of one block is read, and its rows are taken as they are wanted. Where there are more blocks, the
order is turned round by putting it into buckets of source rows; every block of source rows is then read once,
and its points are put into buckets of storage positions, which are sorted one by one. All of it reads and
writes forwards, so a file whose segments lie scattered costs no more than one that is in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.point_cloud.buckets import Buckets, Read, Rows, Split, position, reader
from unistore.converters.point_cloud.workspace import Column, Form, Workspace

__all__ = ["Order", "gather"]

Integers = NDArray[np.integer[Any]]


class Order:
    """Source rows in storage order.

    Parameters
    ----------
    points
        Rows of the source.
    pieces
        Source rows, one piece after the other, each in parts of any size; a row may come several times.
    work
        Where they are kept.
    rest
        Whether rows that are in no piece follow, in their own order.

    Attributes
    ----------
    lengths
        Rows of each piece, (P,).
    rest
        How many follow.
    rows
        The rows, (M,) u4, or i8 where that is too small.
    """

    def __init__(
        self, points: int, pieces: Iterable[Iterable[Integers]], work: Workspace, *, rest: bool
    ) -> None:
        self.points, self._work = points, work
        self.rows: Column = work.column((position(points), ()), points)
        lengths, total = [], 0
        for piece in pieces:
            before = total
            for part in piece:
                total = self._write(total, part)
            lengths.append(total - before)
        self.lengths = np.array(lengths, np.int64)
        self._moved = self._by_block(total)
        self._ends = [total]
        for block, lo in enumerate(range(0, points if rest else 0, work.block)):
            self._ends.append(self._write(self._ends[-1], self._left(block) + lo))
        self.rest = self._ends[-1] - total

    def __len__(self) -> int:
        return self._ends[-1]

    def of(self, block: int) -> Iterator[tuple[Integers, Integers]]:
        """Rows of a block of the source, counted in the block, and their positions; both ascending."""
        for part in self._moved[block].steps(self._work.step):
            yield part.read("row"), part.read("at")
        ends = self._ends[block : block + 2]
        if len(ends) == 2 and ends[1] > ends[0]:
            yield self._left(block), np.arange(*ends)

    def _write(self, at: int, rows: Integers) -> int:
        end = at + len(rows)
        if isinstance(self.rows, np.ndarray) and end > len(self.rows):
            self.rows = np.resize(self.rows, end)
        self.rows[at:end] = rows
        return end

    def _by_block(self, total: int) -> Sequence[Rows]:
        """Rows and their positions, for each block of the source."""
        everything = Rows({"row": reader(self.rows), "at": np.arange}, 0, total)
        block = self._work.block
        if self.points <= block:
            return [everything]
        counts = np.zeros(-(-self.points // block), np.int64)
        for part in everything.steps(self._work.step):
            counts += np.bincount(part.read("row") // block, minlength=len(counts))
        forms: dict[str, Form] = {"row": ("<u4", ()), "at": (position(total), ())}
        buckets = Buckets(self._work, counts, forms)
        for part in everything.steps(self._work.step):
            rows = part.read("row")
            split = Split(rows // block)
            buckets.put(split, {"row": (rows % block).astype(np.uint32), "at": part.read("at")})
        return list(buckets)

    def _left(self, block: int) -> NDArray[np.int64]:
        """Rows of a block that are in no piece."""
        left = np.ones(min(self._work.block, self.points - block * self._work.block), np.bool_)
        for part in self._moved[block].steps(self._work.step):
            left[part.read("row")] = False
        return np.flatnonzero(left)


def gather(order: Order, columns: Mapping[str, tuple[Form, Read]], work: Workspace) -> Mapping[str, Read]:
    """Bring columns into storage order; every row of the source is read once, sooner or later.

    Parameters
    ----------
    order
        The order.
    columns
        Form of each column and how its rows are read, in the source's order.
    work
        Where columns of several blocks are kept.

    Returns
    -------
    Mapping
        How the rows of each column are read in storage order: fast from the first to the last.
    """
    total, block = len(order), work.block
    if order.points <= block:
        return {
            key: _InOrder(partial(_whole, order, read), total, total) for key, (_, read) in columns.items()
        }
    forms = {key: form for key, (form, _) in columns.items()}
    sizes = np.diff([*range(0, max(1, total), block), total])
    buckets = Buckets(work, sizes, {**forms, "": ("<u4", ())})
    for number, lo in enumerate(range(0, order.points, block)):
        moved = []
        for rows, at in order.of(number):
            moved.append((rows, Split(at // block)))
            buckets.put(moved[-1][1], {"": at % block})
        for key, (_, read) in columns.items():
            values = read(lo, min(lo + block, order.points))
            for rows, split in moved:
                buckets.put(split, {key: values.take(rows, axis=0)})
    return {key: _InOrder(partial(_sorted, buckets, key), total, block) for key in columns}


def _whole(order: Order, read: Read, _: int) -> Read:
    """A column of one block, whose rows are taken as they are wanted."""
    values = read(0, order.points)
    return lambda lo, hi: values.take(order.rows[lo:hi], axis=0)


def _sorted(buckets: Buckets, key: str, block: int) -> Read:
    """One of several blocks of a column, whose rows are in another order."""
    values = buckets[block].read(key)
    rows = np.empty_like(values)
    _items(rows)[buckets[block].read("")] = _items(values)
    return lambda lo, hi: rows[lo:hi]


def _items(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows as single items, which are placed faster."""
    if rows.ndim == 1 or not len(rows):
        return rows
    return rows.reshape(len(rows), -1).view(f"V{rows.dtype.itemsize * rows[0].size}")[:, 0]


class _InOrder:
    """Rows of a column in storage order; a block is held from its first row asked for to its last.

    Parameters
    ----------
    load
        Reads a block; gives what reads its rows.
    points, block
        Rows of the column, and of a block.
    """

    def __init__(self, load: Callable[[int], Read], points: int, block: int) -> None:
        self._load, self._points, self._block = load, points, max(1, block)
        self._held: tuple[int, Read] | None = None

    def __call__(self, lo: int, hi: int) -> NDArray[Any]:
        size = self._block
        blocks = range(lo // size, max(hi - 1, lo) // size + 1)
        parts = [self._part(each, max(lo - each * size, 0), min(hi - each * size, size)) for each in blocks]
        if hi == self._points:
            self._held = None
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _part(self, block: int, lo: int, hi: int) -> NDArray[Any]:
        if self._held is None or self._held[0] != block:
            self._held = None
            self._held = block, self._load(block)
        return self._held[1](lo, hi)
