"""Rows of numbers in text, which are read at once: their lines have no fixed length."""

from __future__ import annotations

from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.formats.lazy import LazyRows
from unistore.converters.plugin import SourceFile
from unistore.errors import printable

_SHOWN = 60


class TextRows:
    """Lines of a file from `first` on, as records of a dtype.

    Parameters
    ----------
    count
        How many there are; None: all to the end.
    separator
        What stands between numbers; None: any white space.
    """

    def __init__(
        self,
        file: SourceFile,
        dtype: np.dtype[Any],
        first: int = 0,
        count: int | None = None,
        separator: str | None = None,
    ) -> None:
        self._file, self._dtype = file, dtype
        self._first, self._count, self._separator = first, count, separator

    @cached_property
    def records(self) -> NDArray[Any]:
        """All records, (n,).

        Raises
        ------
        InputError
            Naming the first line that is wrong, or how many there are.
        """
        try:
            rows = self._parse(self._first, self._count)
        except ValueError:
            raise self._wrong_line() from None
        if self._count is not None and len(rows) != self._count:
            message = f"holds {len(rows)} lines of points, its header tells of {self._count}"
            raise self._file.problem(message, "copy it again", "truncated")
        return rows

    def _parse(self, first: int, count: int | None) -> NDArray[Any]:
        with self._file.path.open(encoding="latin-1") as file:
            written = (line for line in islice(file, first, None) if line.strip())
            lines = list(islice(written, count))
        if not lines:
            return np.empty(0, self._dtype)
        return np.loadtxt(lines, self._dtype, delimiter=self._separator, comments=None, ndmin=1)

    def _wrong_line(self) -> Exception:
        """Find the first line that is no record."""
        with self._file.path.open(encoding="latin-1") as file:
            for number, line in enumerate(file):
                if number < self._first or not line.strip():
                    continue
                try:
                    np.loadtxt([line], self._dtype, delimiter=self._separator, comments=None, ndmin=1)
                except ValueError:
                    message = f"line {number + 1} is no point: {printable(line.strip()[:_SHOWN])!r}"
                    return self._file.problem(message, "correct that line", "damaged")
        return self._file.problem("cannot be read as numbers", "write it again", "damaged")


def text_column(rows: TextRows, field: str, count: int, dtype: np.dtype[Any]) -> LazyRows:
    """Return a field of the records of a text."""
    return LazyRows((count, *dtype.shape), dtype.base, lambda lo, hi: rows.records[field][lo:hi])
