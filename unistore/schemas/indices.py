"""Read a store: the read-only view that families get, and its checked index arrays."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any, Protocol, cast

import numpy as np

from unistore.errors import InputError, Problem, StoreError
from unistore.schemas.array_specs import SAMPLES, SOURCE_BOUNDS, ArrayInfo, ArraySpec, Limit, offsets_errors
from unistore.schemas.recorded_rules import RecordedSpecs, StoreRoot
from unistore.schemas.table_rows import source_offsets
from unistore.schemas.tables import offsets_of, text_values
from unistore.system.sizes import count_of
from unistore.system.types import AnyArray, Dtype, Int64s, JsonObject, Shape, UInt8s

# Read-only interface of an open store, for families and rules.

Rows = AnyArray | Sequence[int]


class ArrayView(Protocol):
    """An array of a store, read-only."""

    @property
    def path(self) -> str:
        """Path in the store: ``"points/xyz"``."""

    @property
    def shape(self) -> Shape:
        """Length of each axis, rows first."""

    @property
    def dtype(self) -> Dtype:
        """Dtype of the values."""

    @property
    def chunk_shape(self) -> Shape:
        """Shape of a chunk."""

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Attributes of the array."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def read(self, lo: int = 0, hi: int | None = None) -> AnyArray:
        """Read rows ``lo:hi``.

        Parameters
        ----------
        lo : int, default 0
            First row.
        hi : int, optional
            Row after the last. None: to the end.
        """

    def read_box(self, lo: Sequence[int], hi: Sequence[int]) -> AnyArray:
        """Read the part ``lo <= i < hi`` of the array.

        Parameters
        ----------
        lo, hi : sequence of int
            One number per axis.

        Returns
        -------
        array of shape ``hi - lo``
            The values.
        """

    def read_rows(self, rows: Rows, out: AnyArray | None = None) -> AnyArray:
        """Read single rows.

        Parameters
        ----------
        rows : int array or sequence of int, (n,)
            Numbers of the rows, in any order. They may repeat.
        out : array of shape (n, …), optional
            Memory to read into. None: new memory.

        Returns
        -------
        array of shape (n, …)
            The rows, in the given order.
        """

    def read_ranges(self, lo: Rows, hi: Rows, out: AnyArray | None = None) -> AnyArray:
        """Read ranges of rows.

        Parameters
        ----------
        lo, hi : int arrays or sequences of int, (n,)
            Range i has rows ``lo[i]:hi[i]``.
        out : array of shape (rows, …), optional
            Memory to read into. None: new memory.

        Returns
        -------
        array of shape (rows, …)
            The rows of all ranges, one range after another.
        """


class ValuesByRow(Protocol):
    """Values of an index array, which are read when you ask for rows."""

    def __getitem__(self, rows: Int64s) -> AnyArray:
        """Return the values (k, …) of rows (k,)."""


class StoreView(Protocol):
    """A finished store, read-only. `unistore.Store` is one."""

    @property
    def path(self) -> str:
        """Folder or URL of the store, as the user gave it."""

    @property
    def family(self) -> str:
        """Name of the family: ``"point_cloud"``."""

    @property
    def specs(self) -> RecordedSpecs:
        """Rules for the arrays, as the root of the store states them."""

    @property
    def root(self) -> StoreRoot:
        """What the root of the store states: fields, tables, options, the seal."""

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The same as JSON: the ``unistore`` object of the root."""

    @property
    def sample_count(self) -> int:
        """Number of samples."""

    @property
    def cached_indices(self) -> dict[str, AnyArray]:
        """Small index arrays that were read and checked, by path."""

    def has(self, path: str) -> bool:
        """Return whether the store has an array at `path`."""

    def paths(self) -> list[str]:
        """Return the paths of all arrays, sorted."""

    def array(self, path: str) -> ArrayView:
        """Return the array at `path`. It is opened once.

        Raises
        ------
        StoreError
            If there is no such array, or it violates the rules of the store.
        """

    def index_values(self, path: str) -> ValuesByRow:
        """Return the values of a small index array, by row."""

    def group(self, path: str) -> JsonObject:
        """Return the attributes of the group at `path`: ``"windows/lung"``."""

    def text(self, path: str) -> list[str]:
        """Return the texts of a column, stored as UTF-8 bytes ``path/data`` and ``path/offsets``."""

    def split_names(self) -> list[str]:
        """Return the names of the splits, by code. Empty: there are no splits."""


# Bytes read at a time
BLOCK = 32 << 20


def rows_of_a_block(array: ArrayView) -> int:
    """Return the number of rows of about 32 MiB, in whole chunks if possible."""
    rows = _rows_within(array)
    chunk = array.chunk_shape[0]
    return rows // chunk * chunk or rows


def _rows_within(array: ArrayView) -> int:
    row_bytes = prod(array.shape[1:]) * array.dtype.itemsize
    return max(1, BLOCK // max(1, row_bytes))


def parts_between(array: ArrayView, bounds: Int64s) -> Iterator[AnyArray]:
    """Iterate over the ranges of rows between successive bounds. Many ranges are read together.

    Parameters
    ----------
    array : ArrayView
        The array.
    bounds : int64 array of shape (n + 1,)
        Bounds of the ranges, ascending.
    """
    step = _rows_within(array)
    start = 0
    while start < len(bounds) - 1:
        last = int(np.searchsorted(bounds, bounds[start] + step, side="right")) - 1
        end = max(start + 1, last)
        first = int(bounds[start])
        block = array.read(first, int(bounds[end]))
        for lo, hi in pairwise((bounds[start : end + 1] - first).tolist()):
            yield block[lo:hi]
        start = end


# Index arrays of up to so many bytes are cached in memory
_CACHED_BYTES = 32 << 20


def contradiction(store: StoreView, path: str, message: str) -> StoreError:
    """Return an error about a store whose arrays or documents contradict each other, for you to raise.

    Parameters
    ----------
    store : StoreView
        The store.
    path : str
        Path of one of these arrays or documents.
    message : str
        The problem, in words that follow the path: ``"has offsets of 2 ranges, expected 3"``.
    """
    return StoreError(f"{store.path}: {path}: {message}. Fix: unistore verify {store.path}")


def check_array(store: StoreView, array: ArrayView) -> None:
    """Raise StoreError if axes, dtype or rows of an array violate its rule."""
    spec = _spec(store, array.path)
    error = spec.array_error(ArrayInfo(array.shape, array.dtype.name), lambda path: _shape(store, path))
    if error is not None:
        raise contradiction(store, array.path, error)


def whole(store: StoreView, path: str) -> AnyArray:
    """Return all values of an index array, read-only. A small array is read once per open store.

    Raises
    ------
    StoreError
        If values violate the rule of the array, or do not fit into memory.
    """
    cached: AnyArray | None = store.cached_indices.get(path)
    if cached is not None:
        return cached
    array = store.array(path)
    try:
        values = array.read()
    except MemoryError as error:
        form = f"shape {array.shape} and dtype {array.dtype}"
        fix = f"use a machine with more memory, or run unistore verify {store.path} if this shape is wrong"
        msg = f"{store.path}: {path}: does not fit into memory with {form}. Fix: {fix}"
        raise StoreError(msg) from error
    _raise_first(store, path, _spec(store, path).value_errors(values, lambda other: _shape(store, other)))
    values.flags.writeable = False
    if values.nbytes <= _CACHED_BYTES:
        store.cached_indices[path] = values
    return values


class IndexColumn:
    """An index array. A small one is kept in memory, so that finding a sample reads no file.

    Parameters
    ----------
    store : StoreView
        The store.
    path : str
        Path of the array.
    """

    def __init__(self, store: StoreView, path: str) -> None:
        self._store = store
        self._path = path
        self._array = store.array(path)
        self._spec = _spec(store, path)
        self._shape_of = partial(_shape, store)
        size = prod(self._array.shape) * self._array.dtype.itemsize
        self._values = store.index_values(path) if size <= _CACHED_BYTES else None

    def __len__(self) -> int:
        return int(self._array.shape[0])

    def take(self, rows: Int64s) -> AnyArray:
        """Return the values (k, …) of rows (k,). StoreError if they violate the rule of the array."""
        if self._values is not None:
            return self._values[rows]
        values = self._array.read_rows(rows)
        _raise_first(self._store, self._path, self._spec.row_errors(values, rows, self._shape_of))
        return values

    def ranges(self, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Return the range of rows that offsets assign to each row.

        Parameters
        ----------
        rows : int64 array of shape (k,)
            Numbers of the ranges.

        Returns
        -------
        lo, hi : int64 arrays of shape (k,)
            First row, and the row after the last.
        """
        if self._spec.offsets_of is None:
            raise contradiction(
                self._store, self._path, "its rule does not state the array that its offsets divide"
            )
        lo = self.take(rows)
        hi = self.take(rows + 1)
        if self._values is None:
            error = self._spec.span_error(lo, hi, rows, self._shape_of)
            if error is not None:
                raise contradiction(self._store, self._path, error)
        return lo, hi

    def lengths(self) -> Int64s:
        """Return the lengths of all ranges of offsets, (n,) int64."""
        return np.diff(whole(self._store, self._path))


def require_rule(
    store: StoreView, path: str, *, offsets_of: str = "", indexes: str = "", limits: str = ""
) -> None:
    """Raise StoreError if the rule of an array does not state what its reader relies on.

    Parameters
    ----------
    store : StoreView
        The store.
    path : str
        Path of the array.
    offsets_of : str, default ""
        Table whose rows, or bits, the values divide. Empty: not required.
    indexes : str, default ""
        Array whose rows the values number. Empty: not required.
    limits : str, default ""
        Array whose shape limits the values. Empty: not required.
    """
    rule = _spec(store, path)
    divided = rule.offsets_of.path if isinstance(rule.offsets_of, Limit) else rule.offsets_of or ""
    if offsets_of and not divided.startswith(f"{offsets_of}/"):
        found = f"states offsets of {divided}" if divided else "does not state offsets"
        raise contradiction(store, path, f"its rule {found}, expected offsets of {offsets_of}")
    if indexes and (rule.indexes is None or rule.indexes[0] != indexes):
        raise contradiction(store, path, f"its rule does not state that its values are rows of {indexes}")
    if limits and limits not in [limit.path for limit in rule.limits]:
        raise contradiction(store, path, f"its rule does not limit its values by the shape of {limits}")


def texts(store: StoreView, path: str) -> list[str]:
    """Return the texts of the column at `path`."""
    offsets = whole(store, f"{path}/offsets")
    array = store.array(f"{path}/data")
    _raise_first(store, f"{path}/offsets", offsets_errors(offsets, array.shape[0], "bytes of text"))
    try:
        return text_values(array.read(), offsets)
    except UnicodeDecodeError as error:
        raise contradiction(store, f"{path}/data", f"is not valid UTF-8: {error}") from error


def source_bounds(store: StoreView, table: str) -> Int64s:
    """Return the offsets of the rows of each source in a table, (sources + 1,) int64."""
    path = source_offsets(table)
    if not store.has(path):
        why = "because the store was made before unistore 0.1.0"
        msg = f"{store.path}: {path} is missing, {why}. Fix: convert its sources again"
        raise StoreError(msg)
    require_rule(store, path, offsets_of=table)
    return cast("Int64s", whole(store, path))


def source_rows(store: StoreView, table: str) -> Int64s:
    """Return the number of rows of each source in a table, (sources,) int64."""
    return np.diff(source_bounds(store, table))


def main_bounds(store: StoreView) -> Int64s:
    """Return the offsets of the rows of each source in the main table, (sources + 1,) int64."""
    return source_bounds(store, main_table(store))


def main_table(store: StoreView) -> str:
    """Return the name of the table with the values of the sources; in some families, the table of samples."""
    return store.root.main_table


class RowsOfSources:
    """The number of rows of each source in the arrays of a store, derived from its rules.

    Rows are counted by another array, by the sources, by the samples, or by offsets that divide them.

    Parameters
    ----------
    store : StoreView
        The store.
    ignored : collection of str, default ()
        Paths of offsets that are not used.
    """

    def __init__(self, store: StoreView, ignored: Collection[str] = ()) -> None:
        self._store = store
        self._rules = store.specs.rules()
        self._counts: dict[str, Int64s] = {}
        self._offsets: dict[str, str] = {}  # by the path of what they divide
        for path, rule in self._rules.items():
            if rule.divides is not None and path not in ignored:
                by_sources = rule.rows is not None and rule.rows[0] == SOURCE_BOUNDS
                if by_sources or rule.divides not in self._offsets:
                    self._offsets[rule.divides] = path

    def of(self, path: str) -> Int64s:
        """Return the number of rows, or of ranges of offsets, of each source, (sources,) int64.

        Raises
        ------
        InputError
            If no rule states which rows belong to which source.
        StoreError
            If arrays contradict each other.
        """
        if path not in self._counts:
            offsets = self._offsets.pop(path, "")  # which no circle of rules leads to again
            self._counts[path] = self._counted(path, offsets)
        return self._counts[path]

    def _counted(self, path: str, offsets: str) -> Int64s:
        rule = self._rules[path]
        if path == SOURCE_BOUNDS or (rule.rows is not None and rule.rows[0] == SOURCE_BOUNDS):
            return np.ones(len(self._store.array(SOURCE_BOUNDS)) - 1, np.int64)
        if rule.rows is not None:
            owner, more = rule.rows
            counts = self._of_samples() if owner == SAMPLES else self.of(owner)
            rows = len(self._store.array(path)) - more
            return counts * (rows // max(1, int(counts.sum()))) if rule.repeated else counts
        if not offsets:
            message = "no rule states which of its rows belong to which source"
            fix = "convert all sources together into a new store"
            raise InputError(Problem(f"{self._store.path}: {path}", message, fix, "compact"))
        bounds = offsets_of(self.of(offsets))
        values = whole(self._store, offsets)
        if bounds[-1] != len(values) - 1:
            message = f"has offsets of {len(values) - 1:,} ranges, expected {bounds[-1]:,}"
            raise contradiction(self._store, offsets, message)
        return np.diff(values[bounds])

    def _of_samples(self) -> Int64s:
        if SAMPLES not in self._counts:
            sources = len(self._store.array(SOURCE_BOUNDS)) - 1
            self._counts[SAMPLES] = np.bincount(sample_sources(self._store), minlength=sources)
        return self._counts[SAMPLES]


def sample_rows(store: StoreView) -> Int64s:
    """Return the row of every sample in its table, (samples,) int64.

    Rows outside all samples, such as points outside all segments, are not included.
    """
    rows = np.arange(store.sample_count)
    path = f"{store.root.sample_table}/number"
    if store.has(path) and "no_sample" in store.array(path).attributes:
        rows = np.flatnonzero(whole(store, path) != store.array(path).attributes["no_sample"])
    return rows


def sample_ranges(store: StoreView, table: str) -> tuple[Int64s, Int64s] | None:
    """Return the range of rows of every sample in a table.

    Returns
    -------
    (lo, hi) : int64 arrays of shape (samples,), or None
        First row, and the row after the last. None: rows of the table do not belong to one sample each.
    """
    samples = sample_rows(store)
    root = store.root
    if table == root.sample_table:
        return samples, samples + 1
    offsets = f"{root.sample_table}/offsets"
    if table != root.main_table or not store.has(offsets):
        return None
    return IndexColumn(store, offsets).ranges(samples)


def sample_sources(store: StoreView) -> Int64s:
    """Return the number of the source of every sample, (samples,) int64."""
    table = store.root.sample_table
    counts = source_rows(store, table)
    of_rows = np.repeat(np.arange(len(counts)), counts)
    rows = sample_rows(store)
    numbers = of_rows[rows[rows < len(of_rows)]]
    if len(numbers) != store.sample_count:
        message = f"has a source for {len(numbers):,} samples, but the store has {store.sample_count:,}"
        raise contradiction(store, table, message)
    return numbers


def check_codes(store: StoreView, codes: UInt8s, names: list[str]) -> None:
    """Raise StoreError if a split code has no name."""
    wrong = codes >= max(1, len(names))
    if wrong.any():
        sample = int(np.argmax(wrong))
        splits = count_of(len(names), "split")
        message = f"row {sample:,} is {codes[sample]}, but the store has only {splits}, numbered from 0"
        raise contradiction(store, "splits/code", message)


def table_columns(store: StoreView, table: str) -> list[str]:
    """Return the paths of the columns of a table. Empty: there is no such table."""
    return [f"{table}/{name}" for name in store.root.tables.get(table, ())]


def _spec(store: StoreView, path: str) -> ArraySpec:
    if path not in store.specs.rules():
        store.array(path)  # says which arrays there are
    return store.specs.of(path)


def _shape(store: StoreView, path: str) -> Shape:
    return (store.sample_count,) if path == SAMPLES else store.array(path).shape


def _raise_first(store: StoreView, path: str, errors: Any) -> None:
    message = next(errors, None)
    if message is not None:
        raise contradiction(store, path, message)
