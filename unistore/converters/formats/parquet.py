"""Parquet: columns of numbers, of which some rows are decoded at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from unistore.converters.array import Array
from unistore.converters.claims import Claim, no, sure
from unistore.converters.common.faults import WRITE_AGAIN, is_out_of_memory, is_read_error
from unistore.converters.files.paths import is_inside
from unistore.converters.formats.parquet_pages import Pages, largest_pages
from unistore.converters.opened import Format, Metadata, OpenFile, SourceFile
from unistore.errors import InputError
from unistore.system.foreign import opening
from unistore.system.types import AnyArray, Dtype, JsonObject, Shape

LIBRARY = "Arrow"
_BATCH = 1 << 20  # bytes of rows of a column that are decoded at a time
_LISTS = 256  # and rows, of lists and of texts or files of any length
_TEXTS = 16
# Bytes of a value as Arrow decodes it, and of its two levels: how deep it is in lists that are there
_PHYSICAL = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_LEVELS = 4
_BUFFER = 1 << 18  # bytes of a column that are read at a time
_MOST_ROWS = 1 << 16  # rows of any table that is read as a whole; larger ones have a byte a row, at least

# Folders up from a table of a LeRobot dataset, the dataset's own among them
_LEROBOT_DEPTH = 4


class ParquetFile:
    """An open Parquet file. Of each column the rows that were read last are kept, some of a row group."""

    # A page of a few bytes may hold any number of equal rows: they are decoded some at a time.

    def __init__(self, file: SourceFile, handle: Any) -> None:
        metadata = handle.metadata
        rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        self.file = file
        self.row_count = metadata.num_rows
        self.columns = {field.name: field.type for field in handle.schema_arrow}
        if len(self.columns) < len(handle.schema_arrow):
            names = handle.schema_arrow.names
            doubled = next(name for name in names if names.count(name) > 1)
            raise file.problem(
                f"has {names.count(doubled)} columns called {doubled!r}",
                "give each column a name of its own: table.rename_columns([…])",
                "name",
            )
        self._handle = handle
        self._starts = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)])
        if sum(rows) != self.row_count:
            raise file.problem(
                f"states {self.row_count:,} rows, but its row groups have {sum(rows):,}",
                WRITE_AGAIN,
                "damaged",
            )
        self._readers: dict[str, _ColumnRows] = {}

    @property
    def held(self) -> int:
        """Most bytes that are held while all columns are read: pages and rows of each."""
        metadata = self._handle.metadata
        held: dict[str, int] = {}
        with self.file.path.open("rb") as raw, self._damages():
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                for chunk in map(group.column, range(group.num_columns)):
                    path = chunk.path_in_schema
                    pages = largest_pages(raw, chunk)
                    size = 3 * pages.size + self._batch_bytes(path, group.num_rows, chunk, pages)
                    held[path] = max(held.get(path, 0), size + 2 * _BUFFER)
        return sum(held.values())

    def _batch_bytes(self, path: str, group_rows: int, chunk: Any, pages: Pages) -> int:
        """Return the bytes of rows of a leaf of a column that are held: Arrow's, its numbers, and a copy."""
        name = next((name for name in self.columns if f"{path}.".startswith(f"{name}.")), "")
        kind = self.columns.get(name)
        rows = min(group_rows, _batch_rows(kind))
        physical = _PHYSICAL.get(chunk.physical_type)
        row_bytes = _row_bytes(kind)
        # Rows of any length are as long as they are on average, more or less
        if physical is None:
            average = chunk.total_uncompressed_size // max(1, group_rows)
            return 3 * rows * (row_bytes or max(1, 2 * average, pages.dictionary))
        if row_bytes:
            values = rows * _row_values(kind)
            numbers = rows * row_bytes
        else:
            values = max(2 * rows * chunk.num_values // max(1, group_rows), pages.values)
            numbers = values * physical
        # Values and levels grow by doubling, and values become numbers of the dtype
        return 2 * values * (physical + _LEVELS) + 3 * numbers

    @contextmanager
    def _damages(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise self.file.problem(f"is damaged: {error}", WRITE_AGAIN, "damaged") from error

    def rows(self, is_wanted: Callable[[str], bool]) -> list[JsonObject]:
        """Read all rows of a table that has a few, as those of ``meta/`` in a LeRobot dataset."""
        if self.row_count > max(_MOST_ROWS, self.file.size):
            raise self.file.problem(
                f"states {self.row_count:,} rows, more than its {self.file.size:,} bytes can contain",
                WRITE_AGAIN,
                "damaged",
            )
        columns = sorted(filter(is_wanted, self.columns))
        with _reading(self.file):
            records: list[JsonObject] = self._handle.read(columns, use_threads=False).to_pylist()
        return records

    def stretches(self, column: str, lo: int, hi: int) -> Iterator[Any]:
        """Read rows ``lo:hi`` of a column, as Arrow arrays that follow each other."""
        if column not in self.columns:
            raise self.file.problem(f"has no column {column!r}", WRITE_AGAIN, "missing")
        if hi > self.row_count:
            message = f"has {self.row_count:,} rows, but {hi:,} are needed"
            raise self.file.problem(message, WRITE_AGAIN, "truncated")
        while lo < hi:
            reader = self._readers.get(column)
            if reader is None or not reader.start <= lo < reader.end:
                group = int(np.searchsorted(self._starts, lo, "right")) - 1
                self._readers.pop(column, None)
                reader = self._reader(column, group)
                self._readers[column] = reader
            with _reading(self.file):
                is_sound = reader.reach(lo)
            if not is_sound:
                message = f"has a row group with other rows of {column!r} than the {reader.count:,} it states"
                raise self.file.problem(message, WRITE_AGAIN, "damaged")
            stop = min(hi, reader.start + len(reader.values))
            yield reader.values.slice(lo - reader.start, stop - lo)
            lo = stop

    def _reader(self, column: str, group: int) -> _ColumnRows:
        rows = _batch_rows(self.columns[column])
        batches = self._handle.iter_batches(rows, [group], [column], use_threads=False)
        return _ColumnRows(column, batches, int(self._starts[group]), int(self._starts[group + 1]))


@dataclass(eq=False)
class _ColumnRows:
    """Rows of a column of a row group, which are decoded one batch after the other."""

    column: str
    batches: Iterator[Any]
    start: int  # row of the file of the first of `values`
    end: int  # and the one behind the last of the row group
    values: Any = ()

    def __post_init__(self) -> None:
        self.count = self.end - self.start

    def reach(self, row: int) -> bool:
        """Decode up to a row, at `start` or behind it. False: there are fewer than stated, or more."""
        while row >= self.start + len(self.values):
            self.start += len(self.values)
            self.values = ()
            batch = next(self.batches, None)
            if batch is None:
                return False
            # By its name: Arrow takes `a.b` for the field b of a column a, too, and decodes both
            self.values = batch.column(self.column)
            if self.start + len(self.values) >= self.end and self._rows_behind():
                return False
        return True

    def _rows_behind(self) -> int:
        """Count rows behind the end that is stated, as far as they are decoded next."""
        further = next(self.batches, ())
        return self.start + len(self.values) + len(further) - self.end


def _row_values(kind: Any) -> int:
    """Return how many values a row has, in lists of one length."""
    count = 1
    while hasattr(kind, "list_size"):
        count *= kind.list_size
        kind = kind.value_type
    return count


def _row_bytes(kind: Any) -> int:
    """Return the bytes of a row in memory, 0 if rows have any length."""
    count = _row_values(kind)
    while hasattr(kind, "list_size"):
        kind = kind.value_type
    try:
        bits = int(kind.bit_width)
    except (AttributeError, ValueError):  # as Arrow says that a type has no width
        return 0
    return max(1, count * bits // 8)


def _batch_rows(kind: Any) -> int:
    """Return how many rows are decoded at a time."""
    row_bytes = _row_bytes(kind)
    if row_bytes:
        return max(1, _BATCH // row_bytes)
    return _LISTS if hasattr(kind, "value_type") else _TEXTS


@contextmanager
def open_parquet(file: SourceFile) -> Iterator[ParquetFile]:
    """Open a file, and verify checksums of its pages where they are read, if it has them."""
    parquet = file.library("pyarrow.parquet", "robots")
    with opening(file.path, file.name, LIBRARY):
        with _reading(file):
            handle = parquet.ParquetFile(
                file.path, page_checksum_verification=True, buffer_size=_BUFFER, pre_buffer=False
            )
        with handle:
            yield ParquetFile(file, handle)


@contextmanager
def _reading(file: SourceFile) -> Iterator[None]:
    """Make what Arrow says of a damaged file a problem of it. What the system cannot read passes."""
    arrow = import_module("pyarrow")
    try:
        yield
    except (arrow.ArrowException, OSError) as error:
        if is_read_error(error) or is_out_of_memory(error):
            raise
        text = str(error).partition("\n")[0]
        raise file.problem(f"is damaged: {text}", WRITE_AGAIN, "damaged") from error


@dataclass(frozen=True, eq=False)
class ParquetColumn:
    """Rows of one column, numbers of one shape or bytes of any length."""

    open: Callable[[], ParquetFile]  # opens the file, or returns it if it is open
    column: str
    first: int  # row of the file
    count: int
    dtype: Dtype  # objects for bytes
    row_shape: Shape

    @property
    def shape(self) -> Shape:
        return (self.count, *self.row_shape)

    def __getitem__(self, rows: slice) -> AnyArray:
        values = np.empty((rows.stop - rows.start, *self.row_shape), self.dtype)
        filled = 0
        for part in self.open().stretches(self.column, self.first + rows.start, self.first + rows.stop):
            values[filled : filled + len(part)] = self._as_numpy(part)
            filled += len(part)
        return values

    def _as_numpy(self, values: Any) -> AnyArray:
        count = len(values)
        for extent in (*self.row_shape, None):
            if not hasattr(values.type, "value_type"):
                break
            if values.null_count:
                raise self._wrong("has missing values", "fill in or drop these values")
            lengths = np.asarray(values.value_lengths())
            if extent is None or (lengths != extent).any():
                raise self._wrong(f"has lists whose lengths do not fit its shape {self.row_shape}")
            values = values.flatten()
        if hasattr(values.type, "num_fields") and values.type.num_fields:
            values = values.field("bytes")
        if values.null_count:
            raise self._wrong("has missing values", "fill in or drop these values")
        if len(values) != count * prod(self.row_shape):
            raise self._wrong(f"has {len(values):,} values in {count:,} rows of the shape {self.row_shape}")
        numbers: AnyArray = values.to_numpy(zero_copy_only=False)
        if not np.can_cast(numbers.dtype, self.dtype, "safe"):
            raise self._wrong(f"has the dtype {numbers.dtype}, not {self.dtype}")
        return numbers.reshape(count, *self.row_shape)

    def _wrong(self, message: str, fix: str = WRITE_AGAIN) -> InputError:
        return self.open().file.problem(f"its column {self.column!r} {message}", fix, "damaged")


class Tables:
    """Parquet files that are read one after the other. The last one stays open."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._last: ParquetFile | None = None

    def open(self, file: SourceFile) -> ParquetFile:
        if self._last is None or self._last.file.path != file.path:
            self._stack.close()
            self._last = self._stack.enter_context(open_parquet(file))
        return self._last


class Parquet(Format):
    """A table: numbers, truth values, and lists of one length of them, a column each."""

    name = "parquet"
    suffixes = (".parquet",)
    library = LIBRARY
    offered = False

    def recognise(self, file: SourceFile) -> Claim:
        """Look for the mark of Parquet, in files that are no part of a LeRobot dataset."""
        dataset = _dataset_of(file)
        if dataset:
            return no(f"belongs to the LeRobot dataset {dataset}")
        beginning = file.head(4)
        if beginning == b"PARE":
            return no("is encrypted Parquet, which is not supported")
        if beginning != b"PAR1":
            raise file.wrong_beginning("with PAR1")
        return sure("begins with PAR1")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        """Read the schema. Columns of texts, times and lists of any length are left out by name."""
        with open_parquet(file) as table:
            arrays: dict[str, Array] = {}
            left_out: dict[str, str] = {}
            for name, kind in table.columns.items():
                form = _form(kind)
                if form is None:
                    left_out[name] = f"because its type {kind} is not supported"
                else:
                    arrays[name] = Array(ParquetColumn(lambda: table, name, 0, table.row_count, *form))
            yield OpenFile(arrays, left_out=left_out, memory=table.held)

    def write(self, path: Path, arrays: Mapping[str, Array], metadata: Metadata) -> None:
        pa = import_module("pyarrow")
        parquet = import_module("pyarrow.parquet")
        columns = {name: _arrow_column(array[0 : len(array)]) for name, array in arrays.items()}
        parquet.write_table(pa.table(columns), path)


def _dataset_of(file: SourceFile) -> str:
    """Return the name of the LeRobot dataset that a file is a table of, if it is given with it."""
    for folder in list(file.path.parents)[:_LEROBOT_DEPTH]:
        info = folder / "meta" / "info.json"
        if info.is_file() and is_inside(info, file.roots):
            return folder.name
    return ""


def _form(kind: Any) -> tuple[Dtype, Shape] | None:
    """Return dtype and row shape of an Arrow type, or None for one that is no array of numbers."""
    types = import_module("pyarrow.types")
    row_shape: list[int] = []
    while types.is_fixed_size_list(kind):
        row_shape.append(kind.list_size)
        kind = kind.value_type
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    return (np.dtype(kind.to_pandas_dtype()), tuple(row_shape)) if is_number else None


def _arrow_column(values: AnyArray) -> Any:
    """Return values as an Arrow array: lists of one length for each further axis."""
    pa = import_module("pyarrow")
    column = pa.array(values.reshape(-1))
    for extent in reversed(values.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, extent)
    return column
