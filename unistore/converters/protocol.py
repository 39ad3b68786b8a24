"""Define what a converter is: options in the constructor, and methods from ``look`` to ``read``."""

# ``look(file)``          once a file                     whether it is one of the family's, by its content
# ``find(listing)``       once                            which files make up each source, by their names
# ``scan(part)``          once a source                   its headers: shapes and dtypes
# ``gather(scanned)``     once                            what all sources share: tables and their columns
# ``derive(source)``      once a source, if needed        reads all its values: facts, and rows to spill
# ``finalize(facts)``     once                            index arrays, and the final form of derived tables
# ``read(rows)``          in any order, any process       rows that a shard needs
#
# A converter is a frozen dataclass of its options and can be pickled. It opens sources itself and keeps no
# file open between calls (h5py handles must not cross processes). It imports neither the store nor the
# engine. `unistore.converters.survey` calls ``look``, `unistore.converters.scanning` the next three,
# `unistore.conversion` the others.

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from unistore.converters.claims import Claim
from unistore.converters.common.columns import SourceColumn
from unistore.converters.common.exclusion import Exclusion
from unistore.converters.files.paths import Listing
from unistore.converters.opened import Origin
from unistore.converters.scan import (
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
from unistore.errors import InputError, Problem
from unistore.schemas.tables import Field, OwnForm, Table
from unistore.system.hints import AnyArray

__all__ = [
    "Ask",
    "Candidate",
    "Converter",
    "Emit",
    "Facts",
    "Finalized",
    "Found",
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


class Ask(Protocol):
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


class Converter(SourceReader, Protocol):
    """Reads the sources of one family: base of frozen dataclasses whose fields are the options."""

    family: ClassVar[str]  # name of the family: "point_cloud"
    # Whether `scan` says in `Scanned.certain` that a file is of the family for sure, so that no other family
    # is asked about it.
    scan_identifies: ClassVar[bool] = False
    # Endings of formats that the family takes and does not name: those that do are asked before it.
    further_suffixes: tuple[str, ...] = ()
    exclude: tuple[str, ...]

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Lower-case endings of the files that are taken from folders. Mostly a constant of the class."""
        ...

    def look(self, file: Candidate) -> Claim:
        """Return whether a file is one of the family's, by its name and content."""
        # An exception becomes the file's Problem. The verdict may depend on whether a partner file exists
        # (the mask of an image), not on the content of other files.
        ...

    def find(self, listing: Listing, exclusion: Exclusion) -> Found:
        """Return which files make up each source, by names alone, without those left to other families."""
        # Parts whose names the exclusion covers may be returned.
        ...

    def scan(self, part: SourcePart) -> Scanned:
        """Read the headers of a source, not all its values, in any order, in any process."""
        # An `InputError` has every problem of the source.
        ...

    def gather(self, parts: Parts, scanned: Sequence[Any]) -> Scan:
        """Merge all sources into one scan, where `scanned` has what ``scan`` returned for each of `parts`."""
        # If some sources have problems, this is called with the others, to report what these disagree on.
        ...

    def forms(self, parts: Parts, scanned: Sequence[Any]) -> Iterable[tuple[str, Mapping[str, SourceColumn]]]:
        """Return the name and columns of each source, for ``--one-store-per-shape``."""
        message = f"is not for {self.family.replace('_', ' ')}"
        raise InputError(Problem("--one-store-per-shape", message, "convert them apart", "option"))

    def origins(self, part: SourcePart, scanned: Any) -> Sequence[Origin]:
        """Return where the values of a source that was scanned lie, see `Opened.shows`."""
        return ()

    def twins(self) -> Sequence[tuple[str, ...]]:
        """Return the endings that a file may have in two compressions or containers, see `Format.twins`."""
        return ()

    def excluding(self, names: tuple[str, ...]) -> Converter:
        """Return the same converter that leaves out these names."""
        ...
