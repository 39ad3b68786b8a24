"""Columns of Parquet files, read a row group at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.formats.extras import needed
from unistore.converters.plugin import Array, SourceFile
from unistore.errors import InputError
from unistore.system.foreign import opening

LIBRARY = "Arrow"
_AGAIN = "get the file again"


class ParquetFile:
    """An open Parquet file; of each column the row group that was read last is kept."""

    def __init__(self, file: SourceFile, handle: Any) -> None:
        metadata = handle.metadata
        rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        self.file = file
        self.row_count = metadata.num_rows
        self.names = set(handle.schema_arrow.names)
        self._handle = handle
        self._starts = np.concatenate([[0], np.cumsum(rows, dtype=np.int64)])
        self._last: dict[str, tuple[int, Any]] = {}

    def rows(self, is_wanted: Callable[[str], bool]) -> list[dict[str, Any]]:
        """Read the whole file, each row by column."""
        columns = sorted(filter(is_wanted, self.names))
        records: list[dict[str, Any]] = self._handle.read(columns, use_threads=False).to_pylist()
        return records

    def stretches(self, column: str, lo: int, hi: int) -> Iterator[Any]:
        """Read rows ``lo:hi`` of a column, as Arrow arrays that follow each other."""
        if column not in self.names:
            message = f"has no column {column!r}"
            raise self.file.problem(message, _AGAIN, "missing")
        if hi > self.row_count:
            message = f"has {self.row_count} rows, and {hi} are needed"
            raise self.file.problem(message, _AGAIN, "truncated")
        while lo < hi:
            group = int(np.searchsorted(self._starts, lo, "right")) - 1
            start = int(self._starts[group])
            stop = min(hi, int(self._starts[group + 1]))
            yield self._row_group(group, column).slice(lo - start, stop - lo)
            lo = stop

    def _row_group(self, group: int, column: str) -> Any:
        number, values = self._last.get(column, (-1, None))
        if number != group:
            table = self._handle.read_row_group(group, [column], use_threads=False)
            values = table.column(0).combine_chunks()
            self._last[column] = group, values
        return values


@contextmanager
def open_parquet(file: SourceFile) -> Iterator[ParquetFile]:
    """Open a file; what Arrow says of a damaged one becomes a problem of it."""
    parquet = needed("pyarrow.parquet", "robots", file)
    arrow = needed("pyarrow", "robots", file)
    with opening(file.path, file.name, LIBRARY):
        try:
            with parquet.ParquetFile(file.path) as handle:
                yield ParquetFile(file, handle)
        except (arrow.ArrowException, OSError) as error:
            text = str(error).partition("\n")[0]
            message = f"is damaged: {text}"
            raise file.problem(message, _AGAIN, "damaged") from error


class ParquetColumn(Array):
    """Rows of one column, numbers of one shape or bytes of any length.

    Parameters
    ----------
    open
        Opens the file, or returns it if it is open.
    column
        Name of the column.
    first, count
        Which rows of the file.
    dtype, row_shape
        Form of a row; objects for bytes.
    """

    __slots__ = ("_column", "_dtype", "_first", "_open", "_shape")

    def __init__(
        self,
        open: Callable[[], ParquetFile],
        column: str,
        first: int,
        count: int,
        dtype: np.dtype[Any],
        row_shape: tuple[int, ...],
    ) -> None:
        super().__init__(None)
        self._open = open
        self._column = column
        self._first = first
        self._dtype = dtype
        self._shape = (count, *row_shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """See `Array`."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """See `Array`."""
        return self._dtype

    def item(self, row: int | None = None) -> Any:
        """See `Array`."""
        if row is None:
            return self.read(0, len(self))
        return self.read(row, row + 1)[0]

    def read(self, lo: int, hi: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Array`."""
        del out
        rows = np.empty((hi - lo, *self._shape[1:]), self._dtype)
        filled = 0
        for values in self._open().stretches(self._column, self._first + lo, self._first + hi):
            rows[filled : filled + len(values)] = self._as_numpy(values)
            filled += len(values)
        return rows

    def _as_numpy(self, values: Any) -> NDArray[Any]:
        count = len(values)
        while hasattr(values.type, "value_type"):
            if values.null_count:
                raise self._wrong("misses values")
            values = values.flatten()
        if hasattr(values.type, "num_fields") and values.type.num_fields:
            values = values.field("bytes")
        if values.null_count:
            raise self._wrong("misses values")
        if len(values) != count * prod(self._shape[1:]):
            message = f"has {len(values)} values in {count} rows of shape {self._shape[1:]}"
            raise self._wrong(message)
        numbers: NDArray[Any] = values.to_numpy(zero_copy_only=False)
        if not np.can_cast(numbers.dtype, self._dtype, "safe"):
            message = f"holds {numbers.dtype}, and should hold {self._dtype}"
            raise self._wrong(message)
        return numbers.reshape(count, *self._shape[1:])

    def _wrong(self, message: str) -> InputError:
        return self._open().file.problem(f"column {self._column!r} {message}", _AGAIN, "damaged")


class Tables:
    """Parquet files that are read one after the other; the last one stays open."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._last: ParquetFile | None = None

    def open(self, file: SourceFile) -> ParquetFile:
        """Open a file and close the one before."""
        if self._last is None or self._last.file.path != file.path:
            self._stack.close()
            self._last = self._stack.enter_context(open_parquet(file))
        return self._last
