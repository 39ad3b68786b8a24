"""Bringing the columns of a source into storage order when neither the columns nor the order fit memory.

The order is turned round by sorting it into buckets of source rows; every block of source rows is then read
once, and its points are put into buckets of storage positions, which are sorted one by one. All of it reads
and writes forwards, so a file whose segments lie scattered costs no more than one that is in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.point_cloud_scratch import BLOCK, Buckets, Form, Scratch, cut

__all__ = ["Order", "Read", "gather"]

Ints = NDArray[np.int64]
Read = Callable[[int, int], NDArray[Any]]
"""``read(lo, hi)``: rows of a column."""


class Order:
    """Source rows in storage order.

    Parameters
    ----------
    rows
        Rows of the source.
    pieces
        The rows, one piece after the other; a row may come several times.
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
        The rows, (M,) i8.
    """

    def __init__(self, rows: int, pieces: Iterable[Ints], scratch: Scratch, *, rest: bool) -> None:
        self.rows = rows
        blocks = max(1, -(-rows // BLOCK))
        self.column = scratch.column(("<i8", ()), rows)
        counts, lengths, total = np.zeros(blocks, np.int64), [], 0
        for piece in pieces:
            self.column.write(total, piece)
            counts += np.bincount(piece // BLOCK, minlength=blocks)
            lengths.append(len(piece))
            total += len(piece)
        self.lengths = np.array(lengths, np.int64)
        self._pairs = Buckets(scratch, counts, {"row": ("<u4", ()), "at": ("<i8", ())})
        for lo in range(0, total, BLOCK):
            source = self.column.read(lo, min(lo + BLOCK, total))
            order, cuts = cut(source // BLOCK)
            at = np.arange(lo, lo + len(source)) if order is None else order + lo
            source = source if order is None else source[order]
            self._pairs.put("row", (source % BLOCK).astype(np.uint32), cuts)
            self._pairs.put("at", at, cuts)
        self._rest = np.zeros(blocks + 1, np.int64)
        self._rest[0] = total
        for block in range(blocks) if rest else ():
            left = self._left(block)
            self._rest[block + 1] = len(left)
            self.column.write(int(self._rest[: block + 1].sum()), left + block * BLOCK)
        self._rest = np.cumsum(self._rest)
        self.rest = int(self._rest[-1]) - total

    def __len__(self) -> int:
        return int(self._rest[-1])

    def of(self, block: int) -> Iterator[tuple[Ints, Ints]]:
        """Rows of a block of the source, counted in the block, and their positions in storage order."""
        rows, at = self._pairs.columns["row"], self._pairs.columns["at"]
        for lo, hi in self._pairs.pieces(block, BLOCK):
            yield rows.read(lo, hi).astype(np.int64), at.read(lo, hi)
        first, last = self._rest[block : block + 2].tolist()
        if last > first:
            yield self._left(block), np.arange(first, last)

    def _left(self, block: int) -> Ints:
        """Rows of a block that are in no piece."""
        left = np.ones(min(BLOCK, self.rows - block * BLOCK), np.bool_)
        for lo, hi in self._pairs.pieces(block, BLOCK):
            left[self._pairs.columns["row"].read(lo, hi)] = False
        return np.flatnonzero(left)


def gather(order: Order, columns: Mapping[str, tuple[Form, Read]], scratch: Scratch) -> Mapping[str, Read]:
    """Bring columns into storage order; every block of source rows is read once.

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
        return parts[0].copy() if len(parts) == 1 else np.concatenate(parts)

    def _block(self, block: int) -> NDArray[Any]:
        if self._last is None or self._last[0] != block:
            lo, hi = self._buckets.bounds[block : block + 2].tolist()
            values = self._buckets.columns[self._key].read(lo, hi)
            placed = np.empty_like(values)
            placed[self._buckets.columns[""].read(lo, hi).astype(np.int64)] = values
            self._last = block, placed
        return self._last[1]
