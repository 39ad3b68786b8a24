"""Rows of tables that were read before they are written: in memory, or in files of the build folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.conversion.failure import writing_failed
from unistore.errors import ConversionError


@dataclass(frozen=True, slots=True)
class HeldRows:
    """Rows ``lo:hi`` of all columns of a table in memory; the arrays must not change."""

    table: str
    lo: int
    hi: int
    columns: Mapping[str, NDArray[Any]]

    def copy(self, column: str, lo: int, out: NDArray[Any]) -> None:
        """Copy rows of a column, from `lo` on, counted in the table, into `out`, which is C-contiguous."""
        out[...] = self.columns[column][lo - self.lo :][: len(out)]


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows ``lo:hi`` of all columns of a table in a scratch file, one column after the other.

    Attributes
    ----------
    row_bytes
        Bytes of a row of each column, in the order of the file.
    """

    table: str
    lo: int
    hi: int
    path: Path
    row_bytes: Mapping[str, int]

    def write(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Write the rows of each column, C-contiguous; the file appears once it is whole.

        Raises
        ------
        ConversionError
            If it cannot be written.
        """
        part = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                for column in self.row_bytes:
                    file.write(columns[column].reshape(-1).view(np.uint8).data)
            part.replace(self.path)
        except OSError as error:
            raise writing_failed(error, self.path) from error

    def copy(self, column: str, lo: int, out: NDArray[Any]) -> None:
        """As `HeldRows.copy`.

        Raises
        ------
        ConversionError
            If the file cannot be read.
        """
        before = takewhile(lambda name: name != column, self.row_bytes)
        start = (self.hi - self.lo) * sum(self.row_bytes[name] for name in before)
        wanted = out.reshape(-1).view(np.uint8).data
        try:
            with self.path.open("rb") as file:
                file.seek(start + (lo - self.lo) * self.row_bytes[column])
                missing = len(wanted) - file.readinto(wanted)
        except OSError as error:
            msg = f"{self.path}: rows cannot be read ({error.strerror}); run the same command again"
            raise ConversionError(msg) from error
        if missing:
            msg = f"{self.path}: {missing} bytes of rows are missing; run the same command again"
            raise ConversionError(msg)


Rows = HeldRows | StoredRows


class RowCache:
    """Rows that were read already. Pickles without those in memory.

    Parameters
    ----------
    rows
        Ranges of rows.
    hold
        Whether to keep rows in memory: they serve this process alone.
    """

    def __init__(self, rows: Sequence[Rows] = (), *, hold: bool = True) -> None:
        self._rows, self._hold = list(rows), hold

    def __reduce__(self) -> tuple[type[RowCache], tuple[list[Rows]]]:
        return RowCache, ([each for each in self._rows if isinstance(each, StoredRows)],)

    def add(self, rows: Rows) -> None:
        """Keep more rows."""
        if self._hold or isinstance(rows, StoredRows):
            self._rows.append(rows)

    def fill(self, table: str, lo: int, hi: int, out: Mapping[str, NDArray[Any]]) -> bool:
        """Copy rows ``lo:hi`` of columns into `out`; returns False if some are not here."""
        found: list[tuple[Rows, int, int]] = []
        at = lo
        near = (each for each in self._rows if each.table == table and each.lo < hi and lo < each.hi)
        for each in sorted(near, key=lambda rows: rows.lo):
            if each.lo > at:
                return False
            if each.hi > at:
                found.append((each, at, min(hi, each.hi)))
                at = found[-1][2]
        if at < hi:
            return False
        for each, first, last in found:
            for column, target in out.items():
                each.copy(column, first, target[first - lo : last - lo])
        return True
