"""Small arrays that say where samples lie (offsets, origins), and the names of sources."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.store.reader import Store
from unistore.zarr3.array import Array

__all__ = ["Column", "SourceNames"]

_KEPT = 32 << 20
"""Bytes up to which an index array is kept in memory; larger ones are read where needed."""


class Column:
    """An index array, axis 0 first: kept in memory while small, so that finding a sample reads nothing.

    Parameters
    ----------
    array
        Any array of the store.
    """

    def __init__(self, array: Array) -> None:
        self._array = array
        size = int(np.prod(array.shape, dtype=np.int64)) * array.dtype.itemsize
        self._values = array.read() if size <= _KEPT else None

    def __len__(self) -> int:
        return int(self._array.shape[0])

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Values of `rows`, (k, …) for rows (k,)."""
        return self._array.read_rows(rows) if self._values is None else self._values[rows]

    def ranges(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of offsets: where the values of each row begin and end, (k,) each."""
        return self.take(rows), self.take(rows + 1)

    def lengths(self, rows: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Of offsets: how many values each row has; None: all rows."""
        if rows is None:
            return np.diff(self._array.read() if self._values is None else self._values)
        lo, hi = self.ranges(rows)
        return hi - lo


class SourceNames:
    """Names of the sources that samples come from.

    Parameters
    ----------
    store
        The store.
    column
        Path of the array that holds each sample's source number; None: samples are the rows that
        ``sources/first_row`` counts.
    """

    def __init__(self, store: Store, column: str | None = None) -> None:
        self._names = np.array(store.text("sources/path"), np.str_)
        self._column = None if column is None else Column(store.array(column))
        self._first = store.array("sources/first_row").read() if column is None else None

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.str_]:
        """Source name of each row, (k,) of fixed-width unicode."""
        if self._column is not None:
            numbers = self._column.take(rows)
        else:
            assert self._first is not None
            # a source without rows shares its first row with the next one: the last of them owns the row
            numbers = np.searchsorted(self._first, rows, side="right") - 1
        names: NDArray[np.str_] = self._names[numbers]
        return names
