"""What is known of the sources that samples come from: their names, and what they say of themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.protocol import SOURCE, SourceNumbers
from unistore.data.packed import Allocate, Batch, packed_copy
from unistore.store.reader import Store

_PREFIX = "sources/"
_OF_EVERY_STORE = ("path", "bytes", "digest", "first_row", "rows", "format")
"""What every store keeps of its sources, and no source says."""


def source_keys(store: Store) -> dict[str, str]:
    """Path of each value of a source, by sample key: ``source``, and ``sources.rate`` of ``sources/rate``."""
    keys = {SOURCE: f"{_PREFIX}path"}
    for path in store.paths():
        name = path.removeprefix(_PREFIX).removesuffix("/data")
        if path.startswith(_PREFIX) and "/" not in name and name not in _OF_EVERY_STORE:
            keys[f"sources.{name}"] = f"{_PREFIX}{name}"
    return keys


class SourceValues:
    """Reads values of the sources that samples come from.

    Parameters
    ----------
    store
        The store.
    fields
        Keys of samples; others than those of `source_keys` are ignored.
    column
        As in `SourceNumbers`.
    """

    def __init__(self, store: Store, fields: Sequence[str], column: str | None = None) -> None:
        known = source_keys(store)
        paths = {key: known[key] for key in fields if key in known}
        self._numbers = SourceNumbers(store, column) if paths else None
        self._values = {key: _values_of(store, path) for key, path in paths.items()}

    def read(self, rows: NDArray[np.int64], allocate: Allocate) -> Batch:
        """Values of the sources of a batch of rows."""
        if self._numbers is None:
            return {}
        numbers = self._numbers.take(rows)
        return {key: packed_copy(values[numbers], allocate) for key, values in self._values.items()}


def _values_of(store: Store, path: str) -> NDArray[Any]:
    """All values of the sources: numbers, or texts of fixed width."""
    if store.has(path):
        return store.array(path).read()
    return np.array(store.text(path), np.str_)
