"""Reused memory for the rows of a step: touching fresh memory costs as much as reading the rows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray


class BlockPool:
    """Memory blocks of rows that steps of the same table reuse. Thread-safe; pickles without its memory."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._table = ""
        self._free: dict[str, list[NDArray[np.uint8]]] = defaultdict(list)

    def __reduce__(self) -> tuple[type[BlockPool], tuple[()]]:
        return BlockPool, ()

    def acquire(
        self, table: str, column: str, shape: tuple[int, ...], dtype: str, fill: float | bool
    ) -> NDArray[Any]:
        """Return a block of a column, filled with `fill`; frees the memory of any other table first.

        Parameters
        ----------
        table, column
            Names of the table and the column.
        shape, dtype
            (rows, *row_shape), and the column's dtype.
        fill
            Fill value.
        """
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        memory = self._pop(table, column, nbytes)
        fresh = memory is None
        if memory is None:
            memory = np.zeros(nbytes, np.uint8)
        block: NDArray[Any] = memory[:nbytes].view(dtype).reshape(shape)
        if not fresh or fill != 0:
            block[...] = fill
        return block

    def release(self, table: str, blocks: Mapping[str, NDArray[Any]]) -> None:
        """Return blocks, by column, to the pool; the caller must not use them afterwards."""
        with self._lock:
            if table == self._table:
                for column, block in blocks.items():
                    self._free[column].append(_base_memory(block))

    def _pop(self, table: str, column: str, nbytes: int) -> NDArray[np.uint8] | None:
        with self._lock:
            if table != self._table:
                self._table = table
                self._free.clear()
            free = self._free[column]
            memory = free.pop() if free else None
        return memory if memory is not None and len(memory) >= nbytes else None


def _base_memory(block: NDArray[Any]) -> NDArray[np.uint8]:
    while isinstance(block.base, np.ndarray):
        block = block.base
    return block
