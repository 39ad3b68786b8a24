"""Columns with any number of values in a row, and columns of texts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from unistore.data.packed import Allocate, Packed, offsets_from_lengths
from unistore.schemas.indices import IndexColumn
from unistore.schemas.ragged import RAGGED_SUFFIX, TEXT_SUFFIX
from unistore.store.reader import Store
from unistore.system.hints import Int64s


class RaggedColumn:
    """A column with any number of values, (*row_shape) each, in a row."""

    def __init__(self, store: Store, group: str) -> None:
        self._data = store.array(f"{group}/data")
        self._offsets = IndexColumn(store, f"{group}/offsets")

    def read(
        self, key: str, rows: Int64s, allocate: Allocate, is_wanted: NDArray[np.bool_] | None = None
    ) -> tuple[Packed, Int64s]:
        """Return the values of rows (B, k), one after the other, and how many each row has, (B, k)."""
        # None where a row is not wanted
        lo, hi = self._offsets.ranges(rows.reshape(-1))
        if is_wanted is not None:
            hi = np.where(is_wanted.reshape(-1), hi, lo)
        counts = (hi - lo).reshape(rows.shape)
        out = allocate((int(counts.sum()), *self._data.shape[1:]), self._data.dtype)
        self._data.read_ranges(lo, hi, out)
        return Packed(out, offsets_from_lengths(counts.sum(axis=1)), group=key), counts


class RowTexts:
    """A column of texts."""

    def __init__(self, store: Store, group: str) -> None:
        self._data = store.array(f"{group}/data")
        self._offsets = IndexColumn(store, f"{group}/offsets")

    def read(self, rows: Int64s, is_wanted: NDArray[np.bool_] | None = None) -> NDArray[np.str_]:
        """Return the texts of rows of any shape, empty where a row is not wanted."""
        # Bytes that are not UTF-8 become lone surrogates, as Python has them in names of files
        flat, places = np.unique(rows, return_inverse=True)
        lo, hi = self._offsets.ranges(flat)
        raw = self._data.read_ranges(lo, hi).tobytes()
        bounds = offsets_from_lengths(hi - lo).tolist()
        texts = [raw[start:stop].decode("utf-8", "surrogateescape") for start, stop in pairwise(bounds)]
        values: NDArray[np.str_] = np.array(texts, np.str_)[places.reshape(rows.shape)]
        if is_wanted is not None:
            values[~is_wanted] = ""
        return values


def is_ragged(path: str) -> bool:
    """Return whether a column, by its path in `step_paths`, has any number of values in a row."""
    return path.endswith(RAGGED_SUFFIX)


def is_text(path: str) -> bool:
    """Return whether a column, by its path in `step_paths`, holds texts."""
    return path.endswith(TEXT_SUFFIX)


def count_key(key: str) -> str:
    """Return the key of how many values each row of a ragged key has."""
    return f"{key}_counts"
