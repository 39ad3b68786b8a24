"""One sample = a range of rows of every column of the main table, or a random subset of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.data.kinds.protocol import INDEX, SOURCE, Picks, require_arrays, select_keys
from unistore.data.kinds.sources import SourceValues, source_keys
from unistore.data.packed import Allocate, Batch, Packed, offsets_from_lengths, packed_copy
from unistore.order.permutation import subset
from unistore.schemas.indices import Column, table_columns
from unistore.store.reader import Store
from unistore.system.arguments import Arguments
from unistore.zarr3.array import StoredArray

# Ragged samples: ranges of rows of a table, or a random subset of each range.


@dataclass(frozen=True, slots=True)
class Spans:
    """Rows of a batch of ragged samples.

    Attributes
    ----------
    lo, hi
        (B,) int64: sample i has rows ``lo[i]:hi[i]``.
    offsets
        (B + 1,) int64: offset of each sample in the batch.
    rows
        None: all rows. Else the rows of all samples, ``(offsets[-1],)``, relative to the sample's ``lo`` and
        ascending in each sample.
    """

    lo: NDArray[np.int64]
    hi: NDArray[np.int64]
    offsets: NDArray[np.int64]
    rows: NDArray[np.int64] | None = None

    @classmethod
    def draw(
        cls, picks: Picks, lo: NDArray[np.int64], hi: NDArray[np.int64], most: int | None = None
    ) -> Spans:
        """Rows ``lo:hi`` of each sample; of samples with more than `most` rows, a uniform subset."""
        lengths = hi - lo
        if most is None or not (lengths > most).any():
            return cls(lo, hi, offsets_from_lengths(lengths))
        offsets = offsets_from_lengths(np.minimum(lengths, most))
        rows = np.empty(int(offsets[-1]), np.int64)
        for i, length in enumerate(lengths.tolist()):
            part = rows[offsets[i] : offsets[i + 1]]
            part[:] = subset(length, most, picks.generator(i)) if length > most else np.arange(length)
        return cls(lo, hi, offsets, rows)

    def __len__(self) -> int:
        """Number of rows of the whole batch."""
        return int(self.offsets[-1])

    def read(self, array: StoredArray, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read the values of these rows, ``(offsets[-1], …)``, into `out` if given."""
        if self.rows is None:
            return array.read_ranges(self.lo, self.hi, out)
        if out is None:
            out = np.empty((len(self), *array.shape[1:]), array.dtype)
        lengths = self.hi - self.lo
        scratch = np.empty((int(lengths.max()), *array.shape[1:]), array.dtype)
        for i, (lo, hi) in enumerate(zip(self.lo.tolist(), self.hi.tolist(), strict=True)):
            part = slice(int(self.offsets[i]), int(self.offsets[i + 1]))
            rows = self.rows[part]
            if len(rows) == hi - lo:
                array.read_ranges([lo], [hi], out[part])
            elif len(rows) * array.chunk_shape[0] < hi - lo:
                array.read_rows(rows + lo, out[part])
            else:  # nearly every chunk is needed: cheapest in order
                whole = array.read_ranges([lo], [hi], scratch[: hi - lo])
                np.take(whole, rows, axis=0, out=out[part], mode="clip")
        return out


@dataclass(frozen=True, slots=True)
class Ragged:
    """Samples of any store whose samples are ranges of rows: clips of a recording, events of a window.

    Keys: one per column of the main table, (N, …) with the sample's own number of rows N, and one per number
    of the table of samples, (…). Columns with reserved names (``index``, ``source``) get the table's name
    before theirs. On request: ``source``,
    numbers and texts of the source: ``sources.rate``, ``sources.facts`` (JSON).

    Parameters
    ----------
    max_rows
        Take a random subset of so many rows of a larger sample, ascending, another in each epoch; None: all.

    Raises
    ------
    InputError
        If `max_rows` is not a whole number of at least 1.
    """

    max_rows: int | None = None

    def __post_init__(self) -> None:
        check = Arguments()
        check.integer("max_rows", self.max_rows, least=1, none=True)
        check.raise_problems()

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        """Keys of samples; see `SampleKind.select`."""
        require_arrays(store, self, _offsets(store), f"{store.sample_table}/source")
        return select_keys([*_columns(store), *_numbers(store)], fields, source_keys(store))

    def bind(self, store: Store, fields: Sequence[str], units: NDArray[np.int64] | None) -> RaggedReader:
        """Reader of the samples `units`."""
        return RaggedReader(self, store, fields, units)


class RaggedReader:
    """Reads ranges of rows; see `SampleReader`."""

    def __init__(
        self, kind: Ragged, store: Store, fields: Sequence[str], units: NDArray[np.int64] | None
    ) -> None:
        columns, numbers = _columns(store), _numbers(store)
        self._most = kind.max_rows
        self._units = units
        self._length = store.sample_count if units is None else len(units)
        self._offsets = Column(store, _offsets(store))
        self._columns = {key: store.array(columns[key]) for key in fields if key in columns}
        self._numbers = {key: Column(store, numbers[key]) for key in fields if key in numbers}
        self._sources = SourceValues(store, fields, f"{store.sample_table}/source")

    def __len__(self) -> int:
        return self._length

    def read(self, picks: Picks, allocate: Allocate) -> Batch:
        """Read a batch of samples."""
        samples = picks.index if self._units is None else self._units[picks.index]
        lo, hi = self._offsets.ranges(samples)
        spans = Spans.draw(picks, lo, hi, self._most)
        batch = {}
        for key, array in self._columns.items():
            out = allocate((len(spans), *array.shape[1:]), array.dtype)
            batch[key] = Packed(spans.read(array, out), spans.offsets)
        for key, column in self._numbers.items():
            batch[key] = packed_copy(column.take(samples), allocate)
        return batch | self._sources.read(samples, allocate)


def _offsets(store: Store) -> str:
    return f"{store.sample_table}/offsets"


def _columns(store: Store) -> dict[str, str]:
    """Path of each column of the main table, by sample key."""
    return _keys(store, str(store.attributes.get("main_table", "")))


def _numbers(store: Store) -> dict[str, str]:
    """Path of each number of the table of samples, by sample key."""
    own = f"{store.sample_table}/source"
    return {key: path for key, path in _keys(store, store.sample_table).items() if path != own}


def _keys(store: Store, table: str) -> dict[str, str]:
    keys = {}
    for path in table_columns(store, table):
        name = path.removeprefix(f"{table}/")
        keys[f"{table}.{name}" if name in (INDEX, SOURCE) else name] = path
    return keys
