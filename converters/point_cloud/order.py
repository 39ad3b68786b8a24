"""Bringing the columns of a source into storage order, held in memory or not.

What is held is taken in the order that is wanted. Where neither the columns nor the order fit memory, the
order is turned round by sorting it into buckets of source rows; every block of source rows is then read once,
and its points are put into buckets of storage positions, which are sorted one by one. All of it reads and
writes forwards, so a file whose segments lie scattered costs no more than one that is in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.point_cloud.scratch import BLOCK, Buckets, Form, Scratch, cut, position

__all__ = ["Order", "Read", "gather"]

Ints = NDArray[np.int64]
Rows = NDArray[np.integer[Any]]
Read = Callable[[int, int], NDArray[Any]]
"""``read(lo, hi)``: rows of a column, not to be changed."""


class Order:
    """Source rows in storage order.

    Parameters
    ----------
    rows
        Rows of the source.
    pieces
        The rows, one piece after the other, each in parts of any size; a row may come several times.
    scratch
        Where they are kept.
    rest
        Whether rows that are in no piece follow, in their own order.

    Attributes
    ----------
    lengths
        Rows of each piece, (P,).
    rest
        How many follow.
    column
        The rows, (M,) u4, or i8 where that is too small.
    """

    def __init__(self, rows: int, pieces: Iterable[Iterable[Rows]], scratch: Scratch, *, rest: bool) -> None:
        self.rows = rows
        self.column = scratch.column((position(rows), ()), rows)
        lengths, total = [], 0
        for piece in pieces:
            before = total
            for part in piece:
                self.column.write(total, part)
                total += len(part)
            lengths.append(total - before)
        self.lengths = np.array(lengths, np.int64)
        self._total = total
        self._block = max(1, rows) if scratch.held else BLOCK
        self._turned = None if scratch.held else self._turn(scratch)
        blocks = -(-rows // self._block)
        self._rest = np.zeros(blocks + 1, np.int64)
        self._rest[0] = total
        for block in range(blocks) if rest else ():
            left = self._left(block)
            self._rest[block + 1] = len(left)
            self.column.write(int(self._rest[: block + 1].sum()), left + block * self._block)
        self._rest = np.cumsum(self._rest)
        self.rest = int(self._rest[-1]) - total

    def __len__(self) -> int:
        return int(self._rest[-1])

    def of(self, block: int) -> Iterator[tuple[Rows, Rows]]:
        """Rows of a block of the source, counted in the block, and their positions; where nothing is held."""
        assert self._turned is not None
        rows, at = self._turned.columns["row"], self._turned.columns["at"]
        for lo, hi in self._turned.pieces(block, BLOCK):
            yield rows.read(lo, hi), at.read(lo, hi)
        first, last = self._rest[block : block + 2].tolist()
        if last > first:
            yield self._left(block), np.arange(first, last)

    def _turn(self, scratch: Scratch) -> Buckets:
        """Rows and their positions in storage order, by blocks of the source."""
        steps = [(lo, min(lo + BLOCK, self._total)) for lo in range(0, self._total, BLOCK)]
        counts = np.zeros(max(1, -(-self.rows // BLOCK)), np.int64)
        for lo, hi in steps:
            counts += np.bincount(self.column.read(lo, hi) // BLOCK, minlength=len(counts))
        turned = Buckets(scratch, counts, {"row": ("<u4", ()), "at": (position(self._total), ())})
        for lo, hi in steps:
            source = self.column.read(lo, hi)
            order, cuts = cut(source // BLOCK)
            at = np.arange(lo, hi) if order is None else order + lo
            source = source if order is None else source[order]
            turned.put("row", (source % BLOCK).astype(np.uint32), cuts)
            turned.put("at", at, cuts)
        return turned

    def _left(self, block: int) -> Ints:
        """Rows of a block that are in no piece."""
        left = np.ones(min(self._block, self.rows - block * self._block), np.bool_)
        if self._turned is None:
            left[self.column.read(0, self._total)] = False
        else:
            for lo, hi in self._turned.pieces(block, BLOCK):
                left[self._turned.columns["row"].read(lo, hi)] = False
        return np.flatnonzero(left)


def gather(order: Order, columns: Mapping[str, tuple[Form, Read]], scratch: Scratch) -> Mapping[str, Read]:
    """Bring columns into storage order; every row of the source is read once, sooner or later.

    Parameters
    ----------
    order
        The order.
    columns
        Form of each column and how its rows are read, in the source's order.
    scratch
        Where they are kept.

    Returns
    -------
    Mapping
        How the rows of each column are read in storage order: fast from the first to the last.
    """
    if scratch.held:
        return {key: _Taken(order, read) for key, (_, read) in columns.items()}
    total = len(order)
    sizes = np.diff([*range(0, total, BLOCK), total])
    forms = {key: form for key, (form, _) in columns.items()}
    out = Buckets(scratch, sizes, {**forms, "": ("<u4", ())})
    for block, lo in enumerate(range(0, order.rows, BLOCK)):
        pieces = []
        for rows, at in order.of(block):
            sorted_by, cuts = cut(at // BLOCK)
            inside = (at % BLOCK).astype(np.uint32)
            out.put("", inside if sorted_by is None else inside[sorted_by], cuts)
            pieces.append((rows if sorted_by is None else rows[sorted_by], cuts))
        for key, (_, read) in columns.items():
            values = read(lo, min(lo + BLOCK, order.rows))
            for rows, cuts in pieces:
                out.put(key, values.take(rows, axis=0), cuts)
    return {key: _Sorted(out, key) for key in columns}


class _Taken:
    """Rows of a column that is held, in the source's order, from its first row asked for to its last."""

    def __init__(self, order: Order, read: Read) -> None:
        self._order, self._read = order, read
        self._values: NDArray[Any] | None = None

    def __call__(self, lo: int, hi: int) -> NDArray[Any]:
        values = self._read(0, self._order.rows) if self._values is None else self._values
        self._values = None if hi == len(self._order) else values
        return values.take(self._order.column.read(lo, hi), axis=0)


class _Sorted:
    """Rows of a column that lie in the right block, but not at the right place in it."""

    def __init__(self, buckets: Buckets, key: str) -> None:
        self._buckets, self._key = buckets, key
        self._last: tuple[int, NDArray[Any]] | None = None

    def __call__(self, lo: int, hi: int) -> NDArray[Any]:
        if hi <= lo:
            return self._buckets.columns[self._key].read(lo, lo)
        blocks = range(lo // BLOCK, (hi - 1) // BLOCK + 1)
        parts = [self._block(block)[max(0, lo - block * BLOCK) : hi - block * BLOCK] for block in blocks]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _block(self, block: int) -> NDArray[Any]:
        if self._last is None or self._last[0] != block:
            lo, hi = self._buckets.bounds[block : block + 2].tolist()
            values = self._buckets.columns[self._key].read(lo, hi)
            placed = np.empty_like(values)
            _rows_of(placed)[self._buckets.columns[""].read(lo, hi)] = _rows_of(values)
            self._last = block, placed
        return self._last[1]


def _rows_of(values: NDArray[Any]) -> NDArray[Any]:
    """Rows as single items, which are placed faster."""
    if values.ndim == 1 or not len(values):
        return values
    return values.reshape(len(values), -1).view(f"V{values.dtype.itemsize * values[0].size}")[:, 0]
