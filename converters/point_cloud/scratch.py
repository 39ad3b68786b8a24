"""Columns too long for memory: on disk, written and read a block at a time, and sorted into buckets."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from unistore.errors import ConversionError

__all__ = ["BLOCK", "Buckets", "Column", "Form", "Scratch", "cut", "grouped", "position"]

BLOCK = 1 << 19
"""Points worked on at a time."""

Ints = NDArray[np.int64]
Form = tuple[str, tuple[int, ...]]
"""dtype and row shape of a column."""


class Scratch:
    """Where columns are kept: files without a name, gone when it is left or the process dies.

    Parameters
    ----------
    folder
        Where the files are made; None: columns are held in memory.

    Attributes
    ----------
    held
        Whether columns are held in memory: reading one gives a view of it.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._files = ExitStack()
        self.held = folder is None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.close()

    def another(self) -> Scratch:
        """Another one in the same place, to be left sooner."""
        return Scratch(self._folder)

    def column(self, form: Form, rows: int) -> Column:
        """Make a column of about `rows` rows."""
        if self._folder is None:
            return _Held(np.empty((rows, *form[1]), form[0]))
        with _sorting(self._folder):
            file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
        return _Filed(self._files.enter_context(file), form, self._folder)


class Column:
    """Rows that can be written and read in any order; those never written are undefined."""

    def write(self, at: int, rows: NDArray[Any]) -> None:
        """Put rows from number `at` on.

        Raises
        ------
        ConversionError
            If the disk is full.
        """
        raise NotImplementedError

    def read(self, lo: int, hi: int) -> NDArray[Any]:
        """Rows ``lo:hi``, not to be changed."""
        raise NotImplementedError


class _Held(Column):
    def __init__(self, values: NDArray[Any]) -> None:
        self._values = values

    def write(self, at: int, rows: NDArray[Any]) -> None:
        if at + len(rows) > len(self._values):
            more = np.empty((at + len(rows), *self._values.shape[1:]), self._values.dtype)
            self._values = np.concatenate((self._values, more))
        self._values[at : at + len(rows)] = rows

    def read(self, lo: int, hi: int) -> NDArray[Any]:
        return self._values[lo:hi]


class _Filed(Column):
    def __init__(self, file: IO[bytes], form: Form, folder: Path) -> None:
        self._file, self._row_shape, self._folder = file, form[1], folder
        self._dtype = np.dtype(form[0])
        self._row = self._dtype.itemsize * int(np.prod(form[1], dtype=np.int64))

    def write(self, at: int, rows: NDArray[Any]) -> None:
        rest = np.ascontiguousarray(rows, self._dtype).reshape(-1).view(np.uint8).data
        with _sorting(self._folder):
            self._file.seek(at * self._row)
            while rest:
                rest = rest[self._file.write(rest) :]

    def read(self, lo: int, hi: int) -> NDArray[Any]:
        rows = np.empty((hi - lo, *self._row_shape), self._dtype)
        rest = rows.reshape(-1).view(np.uint8).data
        with _sorting(self._folder):
            self._file.seek(lo * self._row)
            while rest:
                got = self._file.readinto(rest)  # type: ignore[attr-defined]  # raw files have it
                if not got:
                    msg = f"scratch ends {len(rest)} bytes early"
                    raise OSError(msg)
                rest = rest[got:]
        return rows


@contextmanager
def _sorting(folder: Path) -> Iterator[None]:
    """Tell a failure of our own files from one of the source."""
    try:
        yield
    except OSError as error:
        msg = (
            f"{folder}: points cannot be sorted there ({error.strerror or error}); free space "
            "(twice that of the file, uncompressed) or give more --memory, then run the same command"
        )
        raise ConversionError(msg) from error


class Buckets:
    """Columns whose rows are put into buckets, each bucket's in the order in which they came.

    Parameters
    ----------
    scratch
        Where they are kept.
    sizes
        Rows that each bucket will hold.
    forms
        dtype and row shape of each column, by name.
    """

    def __init__(self, scratch: Scratch, sizes: Ints, forms: Mapping[str, Form]) -> None:
        self.bounds = np.concatenate(([0], np.cumsum(sizes)))
        total = int(self.bounds[-1])
        self.columns = {key: scratch.column(form, total) for key, form in forms.items()}
        self._next = {key: self.bounds[:-1].copy() for key in forms}

    def put(self, key: str, rows: NDArray[Any], cuts: Sequence[tuple[int, int, int]]) -> None:
        """Put rows of a column: ``rows[lo:hi]`` into a bucket for each bucket, lo, hi in `cuts`."""
        following, column = self._next[key], self.columns[key]
        for bucket, lo, hi in cuts:
            column.write(int(following[bucket]), rows[lo:hi])
            following[bucket] += hi - lo

    def pieces(self, bucket: int, limit: int) -> Iterator[tuple[int, int]]:
        """Cut a bucket's rows into ranges of at most `limit`, counted as `columns` are read."""
        end = int(self.bounds[bucket + 1])
        for lo in range(int(self.bounds[bucket]), end, limit):
            yield lo, min(lo + limit, end)


def position(rows: int) -> str:
    """Dtype of a position among so many rows."""
    return "<u4" if rows <= 1 << 32 else "<i8"


def cut(buckets: NDArray[np.integer[Any]]) -> tuple[Ints | None, list[tuple[int, int, int]]]:
    """Sort rows by their buckets, keeping the order inside each.

    Returns
    -------
    order, cuts
        Rows in the order of their buckets, None: as they are; and bucket, lo, hi of each, as `Buckets.put`
        takes them.
    """
    if not len(buckets):
        return None, []
    lowest = int(buckets.min())
    spread = int(buckets.max()) - lowest
    order = None
    if spread and (buckets[1:] < buckets[:-1]).any():
        small = (buckets - lowest).astype(np.uint16 if spread < 1 << 16 else np.int64)  # 16 bits: radix sort
        order = np.argsort(small, kind="stable")
        buckets = buckets[order]
    begins = np.flatnonzero(np.diff(buckets, prepend=lowest - 1))
    ends = [*begins[1:].tolist(), len(buckets)]
    return order, list(zip(buckets[begins].tolist(), begins.tolist(), ends, strict=True))


def grouped(counts: Ints, limit: int) -> Ints:
    """Bucket of each of some neighbours: fewer than `limit` rows together, or one of more than half as many.

    Parameters
    ----------
    counts
        Rows of each, (n,).
    """
    half = max(1, limit // 2)
    alone = (counts > half).astype(np.int64)
    buckets = (np.cumsum(counts) - counts) // half + np.cumsum(alone) + np.cumsum(alone) - alone
    return np.asarray(np.unique(buckets, return_inverse=True)[1], np.int64)
