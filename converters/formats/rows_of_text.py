"""Rows of numbers in files: text, which is read at once as lines have no fixed length, and records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.formats.extras import check_size
from unistore.converters.formats.lazy import LazyRows
from unistore.converters.plugin import SourceFile

_SHOWN = 60
_LINE = 80  # bytes of a line in memory, beside its text


class TextRows:
    """Lines of a file from `first` on, as records of a dtype."""

    def __init__(
        self, file: SourceFile, dtype: np.dtype[Any], first: int, count: int, separator: str | None = None
    ) -> None:
        self._file = file
        self._dtype = dtype
        self._first = first
        self._count = count  # how many there are, without blank ones
        self._separator = separator  # what stands between numbers; None: any white space

    @property
    def memory(self) -> int:
        """Bytes of the lines, of which each is a string, and of the records."""
        return 2 * self._file.size + self._count * (_LINE + self._dtype.itemsize)

    def columns(self) -> dict[str, LazyRows]:
        """Return the fields, which are read with the first that is sliced."""
        return {name: self._column(name) for name in self._dtype.names or ()}

    def _column(self, name: str) -> LazyRows:
        dtype = self._dtype[name]
        return LazyRows((self._count, *dtype.shape), dtype.base, lambda lo, hi: self.records[name][lo:hi])

    @cached_property
    def records(self) -> NDArray[Any]:
        """Return all records, (n,), or name the first line that is wrong."""
        with self._file.path.open(encoding="latin-1") as file:
            lines = [line for _, line in islice(self._lines(file), self._count)]
        try:
            rows = self._parsed(lines)
        except ValueError:
            raise self._wrong_line() from None
        if len(rows) != self._count:
            message = f"holds {len(rows)} lines of points, its header tells of {self._count}"
            raise self._file.problem(message, "copy it again", "truncated")
        return rows

    def _lines(self, file: IO[str]) -> Iterator[tuple[int, str]]:
        """Lines that are not blank, with their numbers."""
        for number, line in enumerate(file, 1):
            if number > self._first and line.strip():
                yield number, line

    def _parsed(self, lines: list[str]) -> NDArray[Any]:
        if not lines:
            return np.empty(0, self._dtype)
        return np.loadtxt(lines, self._dtype, delimiter=self._separator, comments=None, ndmin=1)

    def _wrong_line(self) -> Exception:
        """Find the first line that is no record."""
        with self._file.path.open(encoding="latin-1") as file:
            for number, line in self._lines(file):
                try:
                    self._parsed([line])
                except ValueError:
                    message = f"line {number} is no point: {line.strip()[:_SHOWN]!r}"
                    return self._file.problem(message, "correct that line", "damaged")
        return self._file.problem("cannot be read as numbers", "write it again", "damaged")


def mapped_records(
    file: SourceFile, dtype: np.dtype[Any], start: int, count: int
) -> Mapping[str, NDArray[Any]]:
    """Return the fields of `count` records that follow a byte, which must all be there."""
    check_size(file, start + count * dtype.itemsize)
    records = np.memmap(file.path, dtype, "r", start, (count,)) if count else np.empty(0, dtype)
    return {name: records[name] for name in dtype.names or ()}
