"""Rows of tables that were read before they are written, in files of the build folder."""

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
        """Copy rows of a column, from `lo` on, counted in the table, into `out`, which is C-contiguous.

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


class RowCache:
    """Ranges of rows that were read already."""

    def __init__(self, rows: Sequence[StoredRows] = ()) -> None:
        self._rows = list(rows)

    def add(self, rows: StoredRows) -> None:
        """Keep more rows."""
        self._rows.append(rows)

    def fill(self, table: str, lo: int, hi: int, out: Mapping[str, NDArray[Any]]) -> bool:
        """Copy rows ``lo:hi`` of columns into `out`; returns False if some are not here."""
        found: list[tuple[StoredRows, int, int]] = []
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
