"""Temporary columns while points are sorted: in memory up to a block of rows, larger ones in files."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from unistore.errors import ConversionError

STEP = 1 << 19
"""Points that are processed at a time."""

ColumnType = tuple[str, tuple[int, ...]]
"""dtype and row shape of a column."""


class FileColumn:
    """Rows in a file, written and read by slices like an array; rows never written are undefined.

    Raises
    ------
    ConversionError
        If the disk is full.
    """

    def __init__(self, file: IO[bytes], form: ColumnType, folder: Path) -> None:
        self._file, self._row_shape, self._folder = file, form[1], folder
        self._dtype = np.dtype(form[0])
        self._row = self._dtype.itemsize * int(np.prod(form[1], dtype=np.int64))

    def __setitem__(self, where: slice, rows: NDArray[Any]) -> None:
        rest = np.ascontiguousarray(rows, self._dtype).reshape(-1).view(np.uint8).data
        with _sorting(self._folder):
            self._file.seek(where.start * self._row)
            while rest:
                rest = rest[self._file.write(rest) :]

    def __getitem__(self, where: slice) -> NDArray[Any]:
        rows = np.empty((where.stop - where.start, *self._row_shape), self._dtype)
        rest = rows.reshape(-1).view(np.uint8).data
        with _sorting(self._folder):
            self._file.seek(where.start * self._row)
            while rest:
                got = self._file.readinto(rest)  # type: ignore[attr-defined]  # raw files have it
                if not got:
                    msg = f"a file of points ends {len(rest)} bytes early"
                    raise OSError(msg)
                rest = rest[got:]
        return rows


Column = NDArray[Any] | FileColumn
"""Rows that are written and read by ``[lo:hi]``; do not modify what is read."""


class Workspace(ExitStack):
    """Creates temporary columns; their files are unnamed, and deleted on exit or when the process dies.

    Parameters
    ----------
    folder
        Folder for the files; None: all columns are in memory.

    Attributes
    ----------
    step
        Points that are processed at a time.
    block
        Rows of a column that may be in memory: one step, or all rows if there is no folder.
    """

    def __init__(self, folder: Path | None) -> None:
        super().__init__()
        self.step = STEP
        self.block = sys.maxsize if folder is None else STEP
        self._folder = folder

    def nested(self) -> Workspace:
        """A workspace in the same folder, whose files are deleted earlier."""
        return Workspace(self._folder)

    def column(self, form: ColumnType, rows: int) -> Column:
        """Create a column of `rows` rows: an array, or a file if there are more rows than a block."""
        if self._folder is None or rows <= self.block:
            return np.empty((rows, *form[1]), form[0])
        with _sorting(self._folder):
            file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
        return FileColumn(self.enter_context(file), form, self._folder)


@contextmanager
def _sorting(folder: Path) -> Iterator[None]:
    """Raise `ConversionError` for an `OSError` of a temporary file."""
    try:
        yield
    except OSError as error:
        msg = (
            f"{folder}: points cannot be sorted there ({error.strerror or error}); free space "
            "(twice that of the file, uncompressed) or give more --memory, then run the same command"
        )
        raise ConversionError(msg) from error
