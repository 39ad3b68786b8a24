"""Names of the sources that samples come from."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unistore.schemas.indices import Column, first_rows
from unistore.store.reader import Store


class SourceNames:
    """Reads the names of the sources that samples come from.

    Parameters
    ----------
    store
        The store.
    column
        Path of the array with the source number of each sample; None: samples are rows of the table that
        ``sources/first_row`` refers to.
    """

    def __init__(self, store: Store, column: str | None = None) -> None:
        self._names = np.array(store.text("sources/path"), np.str_)
        self._column = None if column is None else Column(store, column)
        self._first = first_rows(store) if column is None else None

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.str_]:
        """Source name of each row, (k,) of fixed-width unicode."""
        if self._column is not None:
            numbers = self._column.take(rows)
        else:
            assert self._first is not None
            # a source without rows has the same first row as the next one, which the row belongs to
            numbers = np.searchsorted(self._first, rows, side="right") - 1
        names: NDArray[np.str_] = self._names[numbers]
        return names
