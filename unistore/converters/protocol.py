"""Define what reads sources for a conversion, and how functions are run in any process."""

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
    "Facts",
    "Finalized",
    "Found",
    "ParallelMap",
    "Parts",
    "Scan",
    "Scanned",
    "Source",
    "SourcePart",
    "SourceReader",
    "Sources",
    "ask_here",
]

# Small arrays that a source contributes to the index (segment lengths, origins, …)
Facts = Mapping[str, AnyArray]

# ``emit(table, column, rows)`` appends rows, axis 0 first, to a spilled column of this source.  Rows of one
# column may have several dtypes: ``pack`` gets each run of one dtype separately
Emit = Callable[[str, str, AnyArray], None]

T = TypeVar("T")
R = TypeVar("R")

# Items that threads may work ahead
_AT_ONCE = 1024


class ParallelMap(Protocol):
    """Like the built-in ``map``, in any process: function, items and results can be pickled."""

    def __call__(self, function: Callable[[T], R], items: Sequence[T], /, *, threads: int = 1) -> Iterator[R]:
        """Yield the result of each item, in order. A thread-safe function runs on so many threads."""
        ...


def ask_here(function: Callable[[T], R], items: Sequence[T], /, *, threads: int = 1) -> Iterator[R]:
    """Ask in this process."""
    if threads < 2 or len(items) < 2:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads, "unistore-scan") as pool:
        for lo in range(0, len(items), _AT_ONCE):
            yield from pool.map(function, items[lo : lo + _AT_ONCE])


class SourceReader(Protocol):
    """Reads rows of sources that are scanned: all that a conversion needs to write shards."""

    @property
    def class_name(self) -> str:
        """Name of the class that reads, for errors of its code."""
        kind = type(self)
        return f"{kind.__module__}.{kind.__qualname__}"

    # Whether `scan` and `read` may run on several sources at once, in threads; false for HDF5, which threads
    # must not share.
    thread_safe: ClassVar[bool] = False
    # Whether `read` holds no more than some blocks of rows beside those that it fills.
    reads_in_place: ClassVar[bool] = False
    # Whether `read_planes` is implemented, so that rows larger than memory can be written.
    reads_planes: ClassVar[bool] = False

    def derive(self, scan: Scan, source: int, emit: Emit, folder: Path | None) -> Facts:
        """Read a source once, emit its rows of every spilled table, and return its index facts."""
        # Called if the scan has a spilled table or needs facts. `folder` is an empty scratch folder for what
        # does not fit into memory; None: keep everything in memory, which is faster and takes
        # `Source.memory_in_core` bytes.
        return {}

    def finalize(self, scan: Scan, facts: Sequence[Facts]) -> Finalized:
        """Return index arrays and final spilled tables, from facts in source order (may be empty)."""
        # By default there are none, and each row of the main table is a sample.
        rows = np.array(scan.sources.rows(scan.main_table), np.int64)
        return Finalized(
            arrays=(), samples=int(rows.sum()), sample_source=np.arange(len(rows)), sample_runs=rows
        )

    def read(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, AnyArray]
    ) -> None:
        """Read rows ``lo:hi`` (counted inside the source) of a direct table into ``out``."""
        # `out[column]` has shape (hi - lo, *row_shape) and is filled with the field's fill value: smaller
        # rows are padded by writing only a part.
        msg = f"{type(self).__name__} has no table {table!r} that is read"
        raise NotImplementedError(msg)

    def read_planes(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, AnyArray]
    ) -> None:
        """Read planes ``lo:hi`` (of axis 1) of the only row that a source has in a direct table."""
        # `out[column]` has shape (1, hi - lo, …), is filled with the field's fill value, and gets what `read`
        # gives.
        msg = f"{type(self).__name__} reads whole rows"
        raise NotImplementedError(msg)

    def own(self, scan: Scan, table: str, source: int, fields: Mapping[str, Field]) -> Mapping[str, OwnForm]:
        """Return the form in which a source has its rows of a table, for its digest, by column."""
        # Without columns that it lacks, and those that other sources decide. Each form is known from the
        # source alone: no other source changes the digest.
        forms = {column: field.own_form(source) for column, field in fields.items()}
        return {column: form for column, form in forms.items() if form is not None}

    def pack(self, scan: Scan, table: Table, column: str, source: int, rows: AnyArray, out: AnyArray) -> None:
        """Copy spilled rows of one dtype into the shard's memory, converting to the final dtype."""
        np.copyto(out, rows, casting="same_kind")
