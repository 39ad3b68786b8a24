"""One sample = one row of every array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.columns import SourceNames
from unistore.data.kinds.protocol import INDEX, SOURCE, Picks, require_family, select_keys
from unistore.data.packed import Allocate, Batch, Packed, packed_copy
from unistore.store.reader import Store

_TABLE = "rows/"


@dataclass(frozen=True, slots=True)
class Rows:
    """Samples of a store with a table ``rows``: row i of every array, under the array's name.

    Keys: one per array, with the stored dtype and row shape; arrays with reserved names (``index``,
    ``source``) get the keys ``rows.index``, ``rows.source``. On request: ``source``.
    """

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Keys of samples; see `SampleKind.select`."""
        paths = _paths(store)
        if not paths:
            require_family(store, "rows", self)
        return select_keys(paths, fields, (SOURCE,))

    def bind(self, store: Store, fields: Sequence[str], units: NDArray[np.int64] | None) -> RowReader:
        """Reader of the rows `units`."""
        return RowReader(store, fields, units)


class RowReader:
    """Reads rows; see `SampleReader`."""

    def __init__(self, store: Store, fields: Sequence[str], units: NDArray[np.int64] | None) -> None:
        paths = _paths(store)
        self._arrays = {name: store.array(paths[name]) for name in fields if name != SOURCE}
        self._names = SourceNames(store) if SOURCE in fields else None
        self._units = units
        self._length = store.sample_count if units is None else len(units)

    def __len__(self) -> int:
        return self._length

    def read(self, picks: Picks, allocate: Allocate) -> Batch:
        """Read a batch of rows."""
        rows = picks.index if self._units is None else self._units[picks.index]
        batch = {}
        for name, array in self._arrays.items():
            out = allocate((len(rows), *array.shape[1:]), array.dtype)
            batch[name] = Packed(array.read_rows(rows, out))
        if self._names is not None:
            batch[SOURCE] = packed_copy(self._names.take(rows), allocate)
        return batch


def _paths(store: Store) -> dict[str, str]:
    """Path of each array, by sample key."""
    names = {path: path.removeprefix(_TABLE) for path in store.paths() if path.startswith(_TABLE)}
    return {f"rows.{name}" if name in (INDEX, SOURCE) else name: path for path, name in names.items()}
