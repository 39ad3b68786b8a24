"""The `Rows` and `Ragged` sample kinds: a sample is one row, or a range of rows, of the main table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import numpy as np

from unistore.data.kinds.columns import UnevenColumn, count_key, is_ragged, row_axes
from unistore.data.kinds.protocol import (
    INDEX,
    MASK_SUFFIX,
    PRESENT_SUFFIX,
    SOURCE,
    RowValues,
    SampleIndices,
    SampleKind,
    SampleReader,
    masks_of,
    require_arrays,
    select_keys,
    source_keys,
    source_numbers,
)
from unistore.data.packed import Allocate, Batch, Packed, offsets_from_lengths, packed_copy, rows_of_ranges
from unistore.errors import InputError
from unistore.order.subset import subset
from unistore.schemas.indices import IndexColumn, require_rule, table_columns
from unistore.schemas.ragged import RAGGED_SUFFIX, TEXT_SUFFIX
from unistore.schemas.tables import SourceForms
from unistore.store.reader import Store
from unistore.system.arguments import Arguments
from unistore.system.types import AnyArray, Int64s
from unistore.zarr3.array import StoredArray


@dataclass(frozen=True, slots=True)
class Rows(SampleKind):
    """Samples of any store: row i of every column of its main table.

    The main table is ``rows`` for plain arrays, ``points`` for point clouds and ``steps`` for episodes.

    Keys of a sample:

    - every column of the main table by its name, in the stored dtype and row shape. A column named ``index``
      or ``source`` gets the name of its table, too: ``rows.index``.
    - ``<key>_present``, a bool, for a column that only some sources have (``--columns union``).
    - ``<key>_mask``, bool with the shape of the row, for a column whose rows differ in shape and are padded
      with zeros (``--columns union``): True for values of the source, False for padding.
    - columns of another table whose rows belong to samples, such as ``notes.text``: (N, …) with N rows of
      that table, which differs between samples, so batches are packed. See `unistore.Ragged`.

    Optional keys, read with ``fields=[…]``: ``source`` (str), and numbers and texts of the source, such as
    ``sources.rate`` or ``sources.facts`` (JSON).

    Examples
    --------
    >>> dataset = unistore.Dataset("arrays.zarr", unistore.Rows(), fields=["data", "label"])  # doctest: +SKIP
    """

    @property
    def whole(self) -> SampleKind | None:
        return self

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        default_keys = [*_paths(store), *_of_sources(store)]
        if store.sample_table == store.root.main_table:
            default_keys += _keys_of_tables(store)
        return select_keys(default_keys, fields, source_keys(store))

    def validity(self, store: Store, key: str) -> tuple[str, ...]:
        known = _of_sources(store)
        return tuple(name for name in (f"{key}{PRESENT_SUFFIX}", f"{key}{MASK_SUFFIX}") if name in known)

    def bind(self, store: Store, fields: Sequence[str], units: Int64s | None) -> RowReader:
        return RowReader(store, fields, units)


class RowReader(SampleReader):
    """Reads batches of `Rows`."""

    def __init__(self, store: Store, fields: Sequence[str], units: Int64s | None) -> None:
        paths = _paths(store)
        columns = {name: paths[name] for name in fields if name in paths}
        self._arrays = {name: store.array(path) for name, path in columns.items() if store.has(path)}
        self._uneven = {
            name: UnevenColumn(store, path) for name, path in columns.items() if name not in self._arrays
        }
        self._axis_names = {name: row_axes(store, columns[name]) for name in self._arrays}
        of_sources = _of_sources(store)
        self._of_sources = {key: of_sources[key] for key in fields if key in of_sources}
        self._padded = {
            key: store.array(paths[key.removesuffix(MASK_SUFFIX)]).shape[1:]
            for key, values in self._of_sources.items()
            if values.ndim > 1
        }
        self._source_of = source_numbers(store, None) if self._of_sources else None
        # the walk of most batches has no sources in it
        self._tables = _columns_of_tables(store, fields)
        further = set(fields) - set(paths) - set(of_sources) - set(_keys_of_tables(store))
        self._sources = RowValues(store, fields, {}, None) if further else None
        self._units = _rows_of(store, units)
        first = next(path for path in paths.values() if store.has(path))
        self._length = len(store.array(first)) if self._units is None else len(self._units)

    def __len__(self) -> int:
        return self._length

    def axis_names(self, key: str) -> Sequence[str]:
        if key in self._uneven:
            return self._uneven[key].axis_names
        for table in self._tables:
            if names := table.axis_names(key):
                return names
        return self._axis_names.get(key, ())

    def read(self, picks: SampleIndices, allocate: Allocate) -> Batch:
        rows = picks.index if self._units is None else self._units[picks.index]
        batch = {}
        for name, array in self._arrays.items():
            out = allocate((len(rows), *array.shape[1:]), array.dtype)
            batch[name] = Packed(array.read_rows(rows, out))
        for name, column in self._uneven.items():
            batch[name], _ = column.read(name, rows, allocate)
        if self._source_of is not None:
            sources = self._source_of(rows)
            for name, values in self._of_sources.items():
                values_of_rows = values[sources]
                if name in self._padded:
                    batch[name] = Packed(masks_of(values_of_rows, self._padded[name], allocate))
                else:
                    batch[name] = packed_copy(values_of_rows, allocate)
        for table in self._tables:
            batch |= table.read(table.spans(rows), allocate)
        if self._sources is None:
            return batch
        return batch | self._sources.read(rows, allocate)


def _paths(store: Store) -> dict[str, str]:
    table = store.root.main_table
    paths = _columns(store, table)
    if not paths:
        message = f"Rows cannot read this store, because its main table '{table}' has no columns"
        raise InputError.at(store.path, message, "leave samples out to use the default sample kind", "fields")
    return paths


def _ragged_keys(store: Store, table: str) -> dict[str, str]:
    """Path of the group of each column with any number of values in a row, by key."""
    keys = {}
    for path in store.paths():
        group = path.removesuffix("/data")
        column = group.removesuffix(TEXT_SUFFIX).removesuffix(RAGGED_SUFFIX)
        if path.startswith(f"{table}/") and column != group != path and store.has(f"{group}/offsets"):
            name = column.removeprefix(f"{table}/")
            keys[f"{table}.{name}" if name in (INDEX, SOURCE) else name] = group
    return keys


def _columns(store: Store, table: str) -> dict[str, str]:
    """Return the path of each column of a table by key; for variable length, the path of its group."""
    return {**_keys(store, table), **_ragged_keys(store, table)}


def _with_counts(columns: Mapping[str, str]) -> list[str]:
    """Return the keys of columns of ragged samples, and of the numbers of values in each row."""
    return [*columns, *[count_key(key) for key, path in columns.items() if is_ragged(path)]]


# Further tables whose rows belong to samples.


def _tables(store: Store) -> list[str]:
    """Return the tables whose rows belong to samples."""
    return [table for table in store.root.tables if store.has(f"{store.sample_table}/{table}/offsets")]


def _columns_of_table(store: Store, table: str) -> dict[str, str]:
    return {f"{table}.{key.removeprefix(f'{table}.')}": path for key, path in _columns(store, table).items()}


def _keys_of_tables(store: Store) -> list[str]:
    """Return the keys of all columns of tables whose rows belong to samples: ``notes.text``."""
    of_tables = [_with_counts(_columns_of_table(store, table)) for table in _tables(store)]
    return list(chain.from_iterable(of_tables))


def _columns_of_tables(store: Store, fields: Sequence[str]) -> list[SpanColumns]:
    """Return readers of tables whose rows belong to samples, of those that have one of the keys."""
    readers = []
    for table in _tables(store):
        columns = _columns_of_table(store, table)
        if not set(fields).isdisjoint(_with_counts(columns)):
            offsets = f"{store.sample_table}/{table}/offsets"
            readers.append(SpanColumns(store, columns, fields, table, offsets))
    return readers


def _of_sources(store: Store) -> dict[str, AnyArray]:
    """Whether sources have a column, (sources,), and how far its rows reach, (sources, axes), by key."""
    # Nothing else has such columns, and a bucket is asked for the document of each array
    if store.root.options.get("columns") != "union":
        return {}
    values: dict[str, AnyArray] = {}
    count = len(store.array("sources/bytes"))
    for key, path in _paths(store).items():
        array = store.array(path if store.has(path) else f"{path}/data")
        forms = SourceForms.of(array.attributes)
        if forms.missing is not None:
            present = np.ones(count, bool)
            present[forms.missing] = False
            values[f"{key}{PRESENT_SUFFIX}"] = present
        for row_shape, sources in forms.sources_by_row_shape():
            extents = values.setdefault(f"{key}{MASK_SUFFIX}", np.zeros((count, len(row_shape)), np.int64))
            extents[sources] = row_shape
    return values


def _rows_of(store: Store, units: Int64s | None) -> Int64s | None:
    if units is None or store.sample_table == store.root.main_table:
        return units
    # Samples of another table are ranges of rows, if there is one range for each of them.
    offsets = IndexColumn(store, _offsets(store)) if store.has(_offsets(store)) else None
    if offsets is None or len(offsets) != store.sample_count + 1:
        message = "Rows cannot select a split of this store, because a row does not belong to a single sample"
        fix = "leave split out, or leave samples out to use the default sample kind"
        raise InputError.at(store.path, message, fix, "split")
    return rows_of_ranges(*offsets.ranges(units))


# Ragged samples: ranges of rows of a table, or a random subset of each range.


@dataclass(frozen=True, slots=True)
class Spans:
    """Rows of a batch of samples with variable length.

    Attributes
    ----------
    lo, hi : int64 array of shape (B,)
        Sample i has rows ``lo[i]:hi[i]`` of the table.
    offsets : int64 array of shape (B + 1,)
        Where each sample begins in the batch.
    rows : int64 array of shape (offsets[-1],), optional
        Rows that are read, relative to `lo` of their sample and ascending in each sample. None: all rows.
    """

    lo: Int64s
    hi: Int64s
    offsets: Int64s
    rows: Int64s | None = None

    @classmethod
    def draw(cls, picks: SampleIndices, lo: Int64s, hi: Int64s, most: int | None = None) -> Spans:
        """Return the rows of samples, or a random subset of the rows of large ones.

        Parameters
        ----------
        picks : SampleIndices
            The samples of the batch. They determine the random subsets.
        lo, hi : int64 array of shape (B,)
            Sample i has rows ``lo[i]:hi[i]``.
        most : int, optional
            Limit for the rows of a sample. A larger sample is reduced to a uniform subset. None: no limit.

        Returns
        -------
        Spans
            The rows to read.
        """
        lengths = hi - lo
        if most is None or not (lengths > most).any():
            return cls(lo, hi, offsets_from_lengths(lengths))
        words = picks.random_words(1)[:, 0].tolist()
        rows = [
            subset(length, most, word) if length > most else np.arange(length)
            for length, word in zip(lengths.tolist(), words, strict=True)
        ]
        return cls.of(lo, hi, rows)

    @classmethod
    def of(cls, lo: Int64s, hi: Int64s, rows: Sequence[Int64s]) -> Spans:
        """Return the given rows of samples.

        Parameters
        ----------
        lo, hi : int64 array of shape (B,)
            Sample i has rows ``lo[i]:hi[i]``.
        rows : sequence of int64 arrays
            Rows of each sample, relative to its `lo` and ascending. They may repeat.

        Returns
        -------
        Spans
            The rows to read.
        """
        lengths = np.array([len(rows_of_sample) for rows_of_sample in rows], np.int64)
        joined = np.concatenate([np.empty(0, np.int64), *rows])
        return cls(lo, hi, offsets_from_lengths(lengths), joined)

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def numbers(self) -> Int64s:
        """Return the numbers of these rows in their table, (offsets[-1],) int64."""
        if self.rows is None:
            return rows_of_ranges(self.lo, self.hi)
        return self.rows + np.repeat(self.lo, np.diff(self.offsets))

    def read(self, array: StoredArray, out: AnyArray | None = None) -> AnyArray:
        """Read the values of these rows.

        Parameters
        ----------
        array : StoredArray
            An array of the table.
        out : array of shape (offsets[-1], …), optional
            Memory to read into, in the dtype of `array`. None: new memory.

        Returns
        -------
        array of shape (offsets[-1], …)
            The values, one sample after another.
        """
        if self.rows is None:
            return array.read_ranges(self.lo, self.hi, out)
        if out is None:
            out = np.empty((len(self), *array.shape[1:]), array.dtype)
        lengths = self.hi - self.lo
        scratch = np.empty((int(lengths.max(initial=0)), *array.shape[1:]), array.dtype)
        for i, (lo, hi) in enumerate(zip(self.lo.tolist(), self.hi.tolist(), strict=True)):
            part = slice(int(self.offsets[i]), int(self.offsets[i + 1]))
            rows = self.rows[part]
            if len(rows) == hi - lo and np.array_equal(rows, np.arange(hi - lo)):  # some may repeat
                array.read_ranges([lo], [hi], out[part])
            elif len(rows) * array.chunk_shape[0] < hi - lo:
                array.read_rows(rows + lo, out[part])
            else:  # nearly every chunk is needed: cheapest in order
                whole = array.read_ranges([lo], [hi], scratch[: hi - lo])
                np.take(whole, rows, axis=0, out=out[part], mode="clip")
        return out

    def take(self, values: AnyArray) -> AnyArray:
        """Return the values of these rows, from `values` of all rows of one sample after another."""
        if self.rows is None:
            return values
        starts = offsets_from_lengths(self.hi - self.lo)[:-1]
        window: AnyArray = values[self.rows + np.repeat(starts, np.diff(self.offsets))]
        return window


class SpanColumns:
    """Reads columns of a table whose rows belong to samples, one range of rows for each sample.

    Parameters
    ----------
    store : Store
        The store.
    columns : mapping of str to str
        Path of each column by key. For a column of variable length, the path of its group.
    fields : sequence of str
        Keys to read.
    group : str
        Name of the table. Empty: the main table.
    offsets : str
        Path of the offsets that assign rows to samples.
    """

    def __init__(
        self,
        store: Store,
        columns: Mapping[str, str],  # see `_columns`
        fields: Sequence[str],
        group: str,  # the table; "" for the main one
        offsets: str,  # path of what divides the rows
    ) -> None:
        require_rule(store, offsets, offsets_of=group or store.root.main_table)
        self._fields = fields
        self._group = group
        self._offsets = IndexColumn(store, offsets)
        plain = {key: path for key, path in columns.items() if store.has(path)}
        self._plain = {key: store.array(path) for key, path in plain.items() if key in fields}
        self._axis_names = {key: row_axes(store, plain[key]) for key in self._plain}
        self._uneven = {}
        for key, path in columns.items():
            if key not in plain and not {key, count_key(key)}.isdisjoint(fields):
                self._uneven[key] = UnevenColumn(store, path)

    def axis_names(self, key: str) -> Sequence[str]:
        """Return the names of the axes of a row of a column, empty if the store records none."""
        return self._uneven[key].axis_names if key in self._uneven else self._axis_names.get(key, ())

    def ranges(self, samples: Int64s) -> tuple[Int64s, Int64s]:
        """Return the first row of each sample, and the row after its last one: two int64 arrays (B,)."""
        return self._offsets.ranges(samples)

    def spans(self, samples: Int64s) -> Spans:
        """Return all rows of these samples."""
        lo, hi = self.ranges(samples)
        return Spans(lo, hi, offsets_from_lengths(hi - lo))

    def read(self, spans: Spans, allocate: Allocate) -> Batch:
        """Read the rows of a batch.

        Parameters
        ----------
        spans : Spans
            Rows of each sample.
        allocate : callable
            Called as ``allocate(shape, dtype)`` for the memory of every array.

        Returns
        -------
        dict of str to Packed
            Variable length, with one set of offsets for the table. Columns with any number of values in a
            row have offsets of their own.
        """
        batch = {}
        for key, array in self._plain.items():
            out = allocate((len(spans), *array.shape[1:]), array.dtype)
            batch[key] = Packed(spans.read(array, out), spans.offsets, self._group)
        for key, column in self._uneven.items():
            by_row, counts = column.read(key, spans.numbers(), allocate)
            if by_row.offsets is None or counts is None:
                batch[key] = Packed(by_row.values, spans.offsets, self._group)
                continue
            batch[key] = Packed(by_row.values, by_row.offsets[spans.offsets], key)
            counted = packed_copy(counts, allocate).values
            batch[count_key(key)] = Packed(counted, spans.offsets, self._group)
        return {key: packed for key, packed in batch.items() if key in self._fields}


class RaggedReader(SampleReader):
    """Reads batches of `Ragged`."""

    def __init__(self, store: Store, kind: Ragged, fields: Sequence[str], units: Int64s) -> None:
        self._most = kind.max_rows
        self._units = units
        main = store.root.main_table
        self._columns = SpanColumns(store, _columns(store, main), fields, "", _offsets(store))
        self._tables = _columns_of_tables(store, fields)
        self._values = RowValues(store, fields, _numbers(store), f"{store.sample_table}/source")

    def __len__(self) -> int:
        return len(self._units)

    def axis_names(self, key: str) -> Sequence[str]:
        for columns in (self._columns, *self._tables):
            if names := columns.axis_names(key):
                return names
        return ()

    def read(self, picks: SampleIndices, allocate: Allocate) -> Batch:
        samples = self._units[picks.index]
        spans = Spans.draw(picks, *self._columns.ranges(samples), self._most)
        batch = self._columns.read(spans, allocate)
        for table in self._tables:
            batch |= table.read(table.spans(samples), allocate)
        return batch | self._values.read(samples, allocate)


@dataclass(frozen=True, slots=True)
class Ragged(SampleKind):
    """Samples of any store whose samples are ranges of rows, such as clips of a recording.

    A sample has N rows, and N differs, so batches are packed: a column of a batch has shape (sum of N, …).

    Keys of a sample:

    - every column of the main table by its name, (N, …), in the stored dtype. A column named ``index`` or
      ``source`` gets the name of its table, too: ``rows.index``. Texts are lists of N str.
    - every number of the table of samples by its name, such as ``label``.
    - every column of another table whose rows belong to samples, with the name of that table:
      ``notes.time``. These have offsets of their own, ``notes_offsets`` in a batch.
    - ``<key>_counts`` (N,), for a column with any number of values in a row. Its key then has the values of
      all rows, one row after another, and offsets of its own.

    Optional keys, read with ``fields=[…]``: ``source`` (str), and numbers and texts of the source, such as
    ``sources.rate`` or ``sources.facts`` (JSON).

    Parameters
    ----------
    max_rows : int, optional
        Limit for the number of rows. A larger sample is reduced to a random subset, in ascending order,
        another one in every epoch. None: all rows.

    Raises
    ------
    InputError
        If `max_rows` is not an integer of at least 1.

    Examples
    --------
    >>> dataset = unistore.Dataset("clips.zarr", unistore.Ragged(max_rows=1024))  # doctest: +SKIP
    """

    reader: ClassVar = RaggedReader

    max_rows: int | None = None

    def __post_init__(self) -> None:
        check = Arguments()
        check.integer("max_rows", self.max_rows, least=1, none=True)
        check.raise_problems()

    @property
    def whole(self) -> SampleKind | None:
        return Ragged()

    def select(self, store: Store, fields: Sequence[str] | None) -> tuple[str, ...]:
        require_arrays(store, self, _offsets(store), f"{store.sample_table}/source")
        of_main = _with_counts(_columns(store, store.root.main_table))
        default_keys = [*of_main, *_keys_of_tables(store), *_numbers(store)]
        return select_keys(default_keys, fields, source_keys(store))


def _offsets(store: Store) -> str:
    return f"{store.sample_table}/offsets"


def _numbers(store: Store) -> dict[str, str]:
    source_path = f"{store.sample_table}/source"
    return {key: path for key, path in _columns(store, store.sample_table).items() if path != source_path}


def _keys(store: Store, table: str) -> dict[str, str]:
    keys = {}
    for path in table_columns(store, table):
        name = path.removeprefix(f"{table}/")
        keys[f"{table}.{name}" if name in (INDEX, SOURCE) else name] = path
    return keys
