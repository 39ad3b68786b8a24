"""One sample = one row of every array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.protocol import INDEX, SOURCE, Picks, select_keys
from unistore.data.kinds.sources import SourceValues, source_keys
from unistore.data.packed import Allocate, Batch, Packed, offsets_from_lengths
from unistore.errors import InputError
from unistore.schemas.indices import Column, table_columns
from unistore.store.reader import Store


@dataclass(frozen=True, slots=True)
class Rows:
    """Samples of any store: row i of every column of its main table, under the column's name.

    The main table is ``rows`` for plain arrays, ``points`` for clouds, ``steps`` for episodes.

    Keys: one per column, with the stored dtype and row shape; columns with reserved names (``index``,
    ``source``) get the table's name before theirs: ``rows.index``, ``rows.source``. On request: ``source``,
    numbers and texts of the source: ``sources.facts`` (JSON).
    """

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Keys of samples; see `SampleKind.select`."""
        return select_keys(_paths(store), fields, source_keys(store))

    def bind(self, store: Store, fields: Sequence[str], units: NDArray[np.int64] | None) -> RowReader:
        """Reader of the rows of the samples `units`."""
        return RowReader(store, fields, units)


class RowReader:
    """Reads rows; see `SampleReader`."""

    def __init__(self, store: Store, fields: Sequence[str], units: NDArray[np.int64] | None) -> None:
        paths = _paths(store)
        self._arrays = {name: store.array(paths[name]) for name in fields if name in paths}
        # the walk of most batches has no sources in it
        self._sources = SourceValues(store, fields) if set(fields) - set(paths) else None
        self._units = _rows_of(store, units)
        self._length = _row_count(store, paths) if self._units is None else len(self._units)

    def __len__(self) -> int:
        return self._length

    def read(self, picks: Picks, allocate: Allocate) -> Batch:
        """Read a batch of rows."""
        rows = picks.index if self._units is None else self._units[picks.index]
        batch = {}
        for name, array in self._arrays.items():
            out = allocate((len(rows), *array.shape[1:]), array.dtype)
            batch[name] = Packed(array.read_rows(rows, out))
        if self._sources is None:
            return batch
        return batch | self._sources.read(rows, allocate)


def _main_table(store: Store) -> str:
    return str(store.attributes.get("main_table", store.sample_table))


def _paths(store: Store) -> dict[str, str]:
    """Path of each column of the main table, by sample key."""
    table = _main_table(store)
    paths = {}
    for path in table_columns(store, table):
        name = path.removeprefix(f"{table}/")
        key = f"{table}.{name}" if name in (INDEX, SOURCE) else name
        paths[key] = path
    if not paths:
        msg = f"{store.path}: its main table {table!r} has no columns for Rows to read"
        raise InputError(msg)
    return paths


def _row_count(store: Store, paths: dict[str, str]) -> int:
    first = next(iter(paths.values()))
    return store.array(first).shape[0]


def _rows_of(store: Store, units: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
    """Rows of the main table that belong to samples; None: all rows."""
    if units is None or store.sample_table == _main_table(store):
        return units
    # Samples of another table are ranges of rows, if there is one range for each of them.
    path = f"{store.sample_table}/offsets"
    offsets = Column(store, path) if store.has(path) else ()
    if not isinstance(offsets, Column) or len(offsets) != store.sample_count + 1:
        msg = (
            f"{store.path}: its rows do not belong to one sample each, so Rows reads no split of it; "
            "leave split out, or leave samples out to get its default kind"
        )
        raise InputError(msg)
    first, stop = offsets.ranges(units)
    lengths = stop - first
    starts = offsets_from_lengths(lengths)
    rows: NDArray[np.int64] = np.arange(starts[-1]) + np.repeat(first - starts[:-1], lengths)
    return rows
