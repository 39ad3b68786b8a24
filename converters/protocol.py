"""What a converter is: options in the constructor, then scan, read or derive, settle.

The runner (`unistore.conversion`) calls, in this order:

1. ``scan(paths)`` once: look at every source, report every problem of every file together.
2. ``derive(scan, source, emit)`` once a source, only if a table of the scan is spilled or facts are needed.
3. ``settle(scan, facts)`` once: index arrays, final dtypes of spilled tables, attributes.
4. ``read(...)`` / ``pack(...)`` for row ranges of direct / spilled tables, in any order, in any process.

A converter is a picklable, frozen dataclass of its options; it keeps no open file between calls and opens
sources itself (h5py handles never cross a process). It imports neither the store nor the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from unistore.schemas.tables import Field, Table

__all__ = ["Concurrent", "Converter", "Emit", "Facts", "Planar", "Scan", "Settled", "Source", "Spacious"]

Facts = Mapping[str, NDArray[Any]]
"""Small arrays that a source contributes to the index (segment lengths, origins, …)."""

Emit = Callable[[str, str, NDArray[Any]], None]
"""``emit(table, column, rows)`` appends rows, axis 0 first, to a spilled column of this source.

Rows of one column may come in several dtypes: ``pack`` is given each run of the same as it came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file, case or episode file that contributes rows.

    Attributes
    ----------
    path
        The file (or folder) itself.
    name
        Path relative to the common root of all sources, with ``/``; unique; stored in ``sources/path``.
    files
        Every file that is read for it; size and modification time guard the run.
    rows
        Rows it contributes to each direct table.
    split
        Name of the split it belongs to, or None.
    detail
        What ``read`` and ``derive`` need to know again (JSON values only).
    memory
        Bytes that ``derive`` of this source holds at its peak, estimated; 0 where nothing is derived.
    held
        The same if it is derived without a folder, where it may be derived in one (`Spacious`).
    reading
        Bytes that ``read`` of any row range holds besides its output and a copy of one of its columns,
        estimated: a bit mask, a chunk of the file larger than what is asked of it, a decoded image.
    """

    path: Path
    name: str
    files: tuple[Path, ...]
    rows: Mapping[str, int] = field(default_factory=dict)
    split: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    memory: int = 0
    held: int = 0
    reading: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What was found: sources in natural order, tables, options, and remarks for the user.

    ``tables`` of spilled kind are provisional: ``settle`` gives their final dtypes. ``sample_table`` is the
    table whose rows (or, for ragged ones, whose index entries) are the samples: ``"rows"``, ``"segments"``.
    ``main_table`` is the table that ``sources/first_row`` and ``sources/rows`` count in.
    ``needs_facts`` asks for ``derive`` although no table is spilled (counts, checks over all values).
    ``options`` are all options that decide the content (JSON): the converter's own fields, so that it can be
    made again from them, and in ``found`` what the sources decided where options left it open. ``notes`` are
    one-line remarks: what was taken, and why. ``estimated_rows`` guesses the rows of spilled tables for
    ``--dry-run``, and ``possible`` lists the tables that ``settle`` may add, each with the most rows that it
    may have: what both take is estimated before anything is read.
    """

    family: str
    sources: tuple[Source, ...]
    tables: tuple[Table, ...]
    sample_table: str
    main_table: str
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    estimated_rows: Mapping[str, int] = field(default_factory=dict)
    possible: tuple[tuple[Table, int], ...] = ()
    needs_facts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What is known once every source has been derived.

    Attributes
    ----------
    arrays
        Index arrays, each written whole: pairs of a field and its values (rows on axis 0).
    spilled
        Final form of the spilled tables (dtypes settled); tables dropped here are not written.
    direct
        Further direct tables whose rows are known only now; rows are fetched with ``read``.
    rows
        Rows a source contributes to each table of ``direct``: ``{"windows/lung": (812, 0, 97)}``.
    samples
        Number of samples of the natural kind.
    splits
        Split code a sample, (samples,) u1, or None to take each source's own split.
    split_names
        Names by code.
    sample_source
        Source index a sample, (samples,) int, or a run of samples, (runs,): splits are given by source.
    sample_runs
        Consecutive samples that each entry of ``sample_source`` stands for, (runs,) int; None: one.
    groups
        Attributes of groups below the root, by path: ``{"windows/lung": {"width": 1500, …}}`` (JSON).
    """

    arrays: Sequence[tuple[Field, NDArray[Any]]]
    spilled: tuple[Table, ...] = ()
    direct: tuple[Table, ...] = ()
    rows: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    samples: int
    splits: NDArray[np.uint8] | None = None
    split_names: tuple[str, ...] = ()
    sample_source: NDArray[np.int64]
    sample_runs: NDArray[np.int64] | None = None
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class Converter(Protocol):
    """Reads one family of sources: base of frozen dataclasses whose fields are the options."""

    family: ClassVar[str]

    def scan(self, paths: Sequence[Path]) -> Scan:
        """Look at every source without reading all values.

        Raises
        ------
        InputError
            With every problem of every file.
        """
        ...

    def read(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, NDArray[Any]]
    ) -> None:
        """Read rows ``lo:hi`` (counted inside the source) of a direct table.

        ``out[column]`` has shape ``(hi - lo, *row_shape)``, is already filled with the field's fill value
        and is written in place, so that smaller rows are padded without a copy.
        """
        ...

    def derive(self, scan: Scan, source: int, emit: Emit) -> Facts:
        """Read a source once, emit its rows of every spilled table, and return its index facts."""
        return {}

    def settle(self, scan: Scan, facts: Sequence[Facts]) -> Settled:
        """Index arrays and final spilled tables; ``facts`` in source order (empty if nothing is derived)."""
        ...

    def pack(
        self, scan: Scan, table: Table, column: str, source: int, rows: NDArray[Any], out: NDArray[Any]
    ) -> None:
        """Copy spilled rows of one dtype into the shard's memory, converting to the settled one."""
        np.copyto(out, rows, casting="same_kind")


@runtime_checkable
class Planar(Protocol):
    """A converter that can read a part of a row, so that rows larger than memory can be written."""

    def read_planes(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, NDArray[Any]]
    ) -> None:
        """Read planes ``lo:hi`` (of axis 1) of the only row that a source has in a direct table.

        ``out[column]``, any of the table's columns, has shape ``(1, hi - lo, …)``, is already filled with the
        field's fill value, and becomes what these planes of the row are after ``read``.
        """
        ...


@runtime_checkable
class Spacious(Protocol):
    """A converter that derives sources larger than memory, if it is given room on disk, to the same end."""

    def derive_in(self, folder: Path | None, scan: Scan, source: int, emit: Emit) -> Facts:
        """Derive a source, see `Converter.derive`, with files in a folder: none of them is left there.

        None: everything is held in memory, which is faster.
        """
        ...


@runtime_checkable
class Concurrent(Protocol):
    """A converter of sources that share no file: ``read`` may be at work on several of them at once.

    For files that are opened and decoded without HDF5, which threads may not share.
    """

    concurrent: ClassVar[bool]
