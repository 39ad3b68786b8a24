"""Parquet: columns of numbers, read a row group at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from unistore.converters.common.faults import is_read_error
from unistore.converters.files.paths import is_inside
from unistore.converters.plugin import Array, Claim, Facts, Format, Opened, SourceFile, no, sure
from unistore.errors import InputError
from unistore.system.foreign import opening
from unistore.system.hints import AnyArray, Dtype, JsonObject, Shape

LIBRARY = "Arrow"
_AGAIN = "get the file again"
# Folders up from a table of a LeRobot dataset, the dataset's own among them
_LEROBOT_DEPTH = 4


class ParquetFile:
    """An open Parquet file. Of each column the row group that was read last is kept."""

    def __init__(self, file: SourceFile, handle: Any) -> None:
        metadata = handle.metadata
        rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        self.file = file
        self.row_count = metadata.num_rows
        self.columns = {field.name: field.type for field in handle.schema_arrow}
        self._handle = handle
        self._starts = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)])
        if sum(rows) != self.row_count:
            raise file.problem(
                f"has {sum(rows)} rows in its row groups and states {self.row_count}", _AGAIN, "damaged"
            )
        self._last: dict[str, tuple[int, Any]] = {}

    @property
    def largest_column(self) -> int:
        """Bytes of the largest column of a row group, as it is held in memory."""
        metadata = self._handle.metadata
        sizes = [0]
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            sizes += [group.column(column).total_uncompressed_size for column in range(group.num_columns)]
        return max(sizes)

    def rows(self, is_wanted: Callable[[str], bool]) -> list[JsonObject]:
        columns = sorted(filter(is_wanted, self.columns))
        with _reading(self.file):
            records: list[JsonObject] = self._handle.read(columns, use_threads=False).to_pylist()
        return records

    def stretches(self, column: str, lo: int, hi: int) -> Iterator[Any]:
        """Read rows ``lo:hi`` of a column, as Arrow arrays that follow each other."""
        if column not in self.columns:
            raise self.file.problem(f"has no column {column!r}", _AGAIN, "missing")
        if hi > self.row_count:
            raise self.file.problem(f"has {self.row_count} rows, and {hi} are needed", _AGAIN, "truncated")
        while lo < hi:
            group = int(np.searchsorted(self._starts, lo, "right")) - 1
            start = int(self._starts[group])
            stop = min(hi, int(self._starts[group + 1]))
            yield self._row_group(group, column).slice(lo - start, stop - lo)
            lo = stop

    def _row_group(self, group: int, column: str) -> Any:
        number, values = self._last.get(column, (-1, None))
        if number != group:
            with _reading(self.file):
                table = self._handle.read_row_group(group, [column], use_threads=False)
                values = table.column(0).combine_chunks()
            if len(values) != self._starts[group + 1] - self._starts[group]:
                stated = self._starts[group + 1] - self._starts[group]
                message = (
                    f"has {len(values)} values of {column!r} in row group {group}, which states {stated} rows"
                )
                raise self.file.problem(message, _AGAIN, "damaged")
            self._last[column] = group, values
        return values


@contextmanager
def open_parquet(file: SourceFile) -> Iterator[ParquetFile]:
    """Open a file, and verify checksums of its pages where they are read, if it has them."""
    parquet = file.library("pyarrow.parquet", "robots")
    with opening(file.path, file.name, LIBRARY):
        with _reading(file):
            handle = parquet.ParquetFile(file.path, page_checksum_verification=True)
        with handle:
            yield ParquetFile(file, handle)


@contextmanager
def _reading(file: SourceFile) -> Iterator[None]:
    """Make what Arrow says of a damaged file a problem of it. What the system cannot read passes."""
    arrow = import_module("pyarrow")
    try:
        yield
    except (arrow.ArrowException, OSError) as error:
        if is_read_error(error):
            raise
        text = str(error).partition("\n")[0]
        raise file.problem(f"is damaged: {text}", _AGAIN, "damaged") from error


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
                raise self._wrong("misses values", "fill or drop them")
            lengths = np.asarray(values.value_lengths())
            if extent is None or (lengths != extent).any():
                raise self._wrong(f"has lists of other lengths than its shape {self.row_shape}")
            values = values.flatten()
        if hasattr(values.type, "num_fields") and values.type.num_fields:
            values = values.field("bytes")
        if values.null_count:
            raise self._wrong("misses values", "fill or drop them")
        if len(values) != count * prod(self.row_shape):
            raise self._wrong(f"has {len(values)} values in {count} rows of shape {self.row_shape}")
        numbers: AnyArray = values.to_numpy(zero_copy_only=False)
        if not np.can_cast(numbers.dtype, self.dtype, "safe"):
            raise self._wrong(f"holds {numbers.dtype}, and should hold {self.dtype}")
        return numbers.reshape(count, *self.row_shape)

    def _wrong(self, message: str, fix: str = _AGAIN) -> InputError:
        return self.open().file.problem(f"column {self.column!r} {message}", fix, "damaged")


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
            return no(f"is of the LeRobot dataset {dataset}")
        beginning = file.head(4)
        if beginning == b"PARE":
            return no("is encrypted Parquet, which is not read")
        if beginning != b"PAR1":
            raise file.wrong_beginning("with PAR1")
        return sure("begins with PAR1")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[Opened]:
        """Read the schema. Columns of texts, times and lists of any length are left out by name."""
        with open_parquet(file) as table:
            arrays: dict[str, Array] = {}
            left_out: dict[str, str] = {}
            for name, kind in table.columns.items():
                form = _form(kind)
                if form is None:
                    left_out[name] = f"is of the type {kind}, which no array has"
                else:
                    arrays[name] = Array(ParquetColumn(lambda: table, name, 0, table.row_count, *form))
            yield Opened(arrays, left_out=left_out, memory=table.largest_column)

    def write(self, path: Path, arrays: Mapping[str, Array], facts: Facts) -> None:
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
