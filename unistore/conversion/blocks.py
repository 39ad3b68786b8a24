"""Memory of the rows of a step, used again by the next: fresh memory costs the kernel as much as reading."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Blocks", "Kept"]


class Blocks:
    """Blocks of rows whose memory goes from one step to the next of the same table.

    One thread may take while another gives back. Pickles without its memory.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._table = ""
        self._free: dict[str, list[NDArray[np.uint8]]] = defaultdict(list)

    def __reduce__(self) -> tuple[type[Blocks], tuple[()]]:
        return Blocks, ()

    def take(
        self, table: str, column: str, shape: tuple[int, ...], dtype: str, fill: float | bool
    ) -> NDArray[Any]:
        """A block of a column, full of `fill`. Memory of another table is let go first.

        Parameters
        ----------
        table, column
            Whose rows it will hold.
        shape, dtype
            (rows, *row_shape), and the column's dtype.
        fill
            What every element is.
        """
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        memory = self._found(table, column, nbytes)
        fresh = memory is None
        if memory is None:
            memory = np.zeros(nbytes, np.uint8)
        block: NDArray[Any] = memory[:nbytes].view(dtype).reshape(shape)
        if not fresh or fill != 0:
            block[...] = fill
        return block

    def give(self, table: str, blocks: Mapping[str, NDArray[Any]]) -> None:
        """Give blocks back by column; nobody may look into them any more."""
        with self._lock:
            if table == self._table:
                for column, block in blocks.items():
                    self._free[column].append(_whole(block))

    def _found(self, table: str, column: str, nbytes: int) -> NDArray[np.uint8] | None:
        with self._lock:
            if table != self._table:
                self._table = table
                self._free.clear()
            free = self._free[column]
            memory = free.pop() if free else None
        return memory if memory is not None and len(memory) >= nbytes else None


def _whole(block: NDArray[Any]) -> NDArray[np.uint8]:
    """The memory that a block lies in."""
    while isinstance(block.base, np.ndarray):
        block = block.base
    return block


class Kept:
    """Rows of tables that were read before, for who reads them again. Pickles without them."""

    def __init__(self) -> None:
        self._parts: list[tuple[str, int, int, Mapping[str, NDArray[Any]]]] = []

    def __reduce__(self) -> tuple[type[Kept], tuple[()]]:
        return Kept, ()

    def add(self, table: str, lo: int, hi: int, columns: Mapping[str, NDArray[Any]]) -> None:
        """Keep rows ``lo:hi`` of all columns of a table, which nobody changes any more."""
        self._parts.append((table, lo, hi, columns))

    def fill(self, table: str, lo: int, hi: int, out: Mapping[str, NDArray[Any]]) -> bool:
        """Copy rows ``lo:hi`` of columns, if they are there."""
        for name, first, last, columns in self._parts:
            if name == table and first <= lo and hi <= last:
                for column, rows in out.items():
                    rows[...] = columns[column][lo - first : hi - first]
                return True
        return False
