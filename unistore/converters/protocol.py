"""The interface between a conversion and the code that reads sources: `SourceReader` and `ParallelMap`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

import numpy as np

from unistore.converters.scan_types import (
    Candidate,
    Finalized,
    Found,
    Parts,
    Scan,
    Scanned,
    Source,
    SourcePart,
    Sources,
)
from unistore.schemas.tables import Field, OwnForm, Table
from unistore.system.types import AnyArray

__all__ = [
    "Candidate",
    "Emit",
    "Finalized",
    "Found",
    "ParallelMap",
    "Parts",
    "Scan",
    "Scanned",
    "Source",
    "SourceArrays",
    "SourcePart",
    "SourceReader",
    "Sources",
    "serial_map",
]

# Small arrays that a source contributes to the index (segment lengths, origins, …)
SourceArrays = Mapping[str, AnyArray]

# ``emit(table, column, rows)`` appends rows, axis 0 first, to a spilled column of this source.  Rows of one
# column may have several dtypes: ``pack`` gets each run of one dtype separately
Emit = Callable[[str, str, AnyArray], None]

T = TypeVar("T")
R = TypeVar("R")

# Items that threads may work ahead
_AT_ONCE = 1024


class ParallelMap(Protocol):
    """Like the built-in ``map``, with any number of processes. Function, items and results must pickle."""

    def __call__(self, function: Callable[[T], R], items: Sequence[T], /, *, threads: int = 1) -> Iterator[R]:
        """Call a function with each item.

        Parameters
        ----------
        function : callable
            Called with one item.
        items : sequence
            The items.
        threads : int, default 1
            Number of threads for a function that is thread-safe.

        Yields
        ------
        object
            The result of each item, in order.
        """
        ...


def serial_map(function: Callable[[T], R], items: Sequence[T], /, *, threads: int = 1) -> Iterator[R]:
    """Call a function with each item, in this process; a `ParallelMap`."""
    if threads < 2 or len(items) < 2:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads, "unistore-scan") as pool:
        for lo in range(0, len(items), _AT_ONCE):
            yield from pool.map(function, items[lo : lo + _AT_ONCE])


class SourceReader(Protocol):
    """Reads rows of scanned sources: everything that a conversion needs to write shards.

    Attributes
    ----------
    thread_safe : bool, default False
        Whether threads may read several sources at the same time. False for HDF5.
    reads_in_place : bool, default False
        Whether `read` needs memory only for a few blocks of rows, in addition to the rows that it fills.
    reads_planes : bool, default False
        Whether `read_planes` is implemented, so that rows larger than memory can be written.
    """

    @property
    def class_name(self) -> str:
        """Name of the class that reads, for messages about its errors."""
        kind = type(self)
        return f"{kind.__module__}.{kind.__qualname__}"

    # Whether `scan` and `read` may run on several sources at once, in threads; false for HDF5, which threads
    # must not share.
    thread_safe: ClassVar[bool] = False
    # Whether `read` holds no more than some blocks of rows beside those that it fills.
    reads_in_place: ClassVar[bool] = False
    # Whether `read_planes` is implemented, so that rows larger than memory can be written.
    reads_planes: ClassVar[bool] = False

    def derive(self, scan: Scan, source: int, emit: Emit, folder: Path | None) -> SourceArrays:
        """Read a source once, emit its rows of every spilled table, and return arrays for the index.

        This is called if the scan has a spilled table or needs these arrays. The default emits nothing.

        Parameters
        ----------
        scan : Scan
            The scan.
        source : int
            Number of the source.
        emit : callable
            ``emit(table, column, rows)`` appends rows to a column of a spilled table.
        folder : Path or None
            Empty folder for scratch files. None: keep everything in memory, which is faster and needs
            `Source.memory_in_core` bytes.

        Returns
        -------
        mapping of str to array
            Small arrays for `finalize`.
        """
        return {}

    def finalize(self, scan: Scan, prepared: Sequence[SourceArrays]) -> Finalized:
        """Return index arrays and the final form of spilled tables.

        By default there are none, and each row of the main table is a sample.

        Parameters
        ----------
        scan : Scan
            The scan.
        prepared : sequence of mapping
            Result of `derive` for each source, in order. May be empty.
        """
        rows = np.array(scan.sources.rows(scan.main_table), np.int64)
        return Finalized(
            arrays=(), samples=int(rows.sum()), sample_source=np.arange(len(rows)), sample_runs=rows
        )

    def read(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, AnyArray]
    ) -> None:
        """Read rows of a source into a table that is not spilled.

        Parameters
        ----------
        scan : Scan
            The scan.
        table : str
            Name of the table.
        source : int
            Number of the source.
        lo, hi : int
            First row, and the row after the last, counted in the source.
        out : mapping of str to array
            Array of shape (hi - lo, …) for each column, filled with its fill value. A smaller row writes
            only a part.
        """
        msg = f"{type(self).__name__} has no table {table!r} that is read"
        raise NotImplementedError(msg)

    def read_planes(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, AnyArray]
    ) -> None:
        """Read planes ``lo:hi`` of axis 1 of the only row that a source has in a table.

        As `read`, into arrays of shape (1, hi - lo, …).
        """
        msg = f"{type(self).__name__} reads whole rows"
        raise NotImplementedError(msg)

    def own(self, scan: Scan, table: str, source: int, fields: Mapping[str, Field]) -> Mapping[str, OwnForm]:
        """Return the form in which a source has its rows of a table, for the hash of the source.

        A form depends only on its source, so that other sources do not change the hash. Columns that the
        source does not have are left out.
        """
        forms = {column: field.own_form(source) for column, field in fields.items()}
        return {column: form for column, form in forms.items() if form is not None}

    def pack(self, scan: Scan, table: Table, column: str, source: int, rows: AnyArray, out: AnyArray) -> None:
        """Copy spilled rows of one dtype to the memory of the shard, in the final dtype."""
        np.copyto(out, rows, casting="same_kind")
