"""What a converter tells of its sources: before their values are read (`Scan`), and after (`Settled`)."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.schemas.tables import Field, Table
from unistore.system.packed import Packed

__all__ = ["Scan", "Settled", "Source", "Sources"]


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
    memory_in_core
        The same if it is derived without a folder; 0 where no folder is ever used.
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
    memory_in_core: int = 0
    reading: int = 0


class Sources(Packed[Source]):
    """All sources of a scan, and in columns what is asked of all of them.

    Attributes
    ----------
    names, splits
        Of each source.
    numbers
        ``memory``, ``memory_in_core`` and ``reading`` of each source, (sources,) int64 each.
    """

    def __init__(self, items: Iterable[Source] = ()) -> None:
        self.names: list[str] = []
        self.splits: list[str | None] = []
        self._numbers = {name: array("q") for name in ("memory", "memory_in_core", "reading")}
        self._rows: dict[str, array[int]] = {}
        super().__init__(items)

    def append(self, item: Source) -> None:
        """Add one more source."""
        for name, values in self._numbers.items():
            values.append(getattr(item, name))
        for table, rows in item.rows.items():
            column = self._rows.setdefault(table, array("q"))
            column.extend([0] * (len(self.names) - len(column)))
            column.append(rows)
        self.names.append(item.name)
        self.splits.append(item.split)
        super().append(item)

    @property
    def numbers(self) -> dict[str, NDArray[np.int64]]:
        """See above."""
        return {name: np.array(values, np.int64) for name, values in self._numbers.items()}

    def rows(self, table: str) -> list[int]:
        """Rows of each source in a direct table."""
        rows = self._rows.get(table, array("q")).tolist()
        return rows + [0] * (len(self.names) - len(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What was found: sources in natural order, tables, options, and remarks for the user.

    ``tables`` of spilled kind are provisional: ``settle`` gives their final dtypes. ``sample_table`` is the
    table whose rows (or, for ragged ones, whose index entries) are the samples: ``"rows"``, ``"segments"``.
    ``main_table`` is the table that ``sources/first_row`` and ``sources/rows`` count in.
    ``left_out`` are files that were found in folders and belong to no source, each with the reason.
    ``needs_facts`` asks for ``derive`` although no table is spilled (counts, checks over all values).
    ``options`` are all options that decide the content (JSON): the converter's own fields, so that it can be
    made again from them, and in ``found`` what the sources decided where options left it open. ``notes`` are
    one-line remarks: what was taken, and why. ``estimated_rows`` guesses the rows of spilled tables for
    ``--dry-run``, and ``possible`` lists the tables that ``settle`` may add, each with the most rows that it
    may have: what both take is estimated before anything is read. ``shared`` is what ``derive`` and ``read``
    need to know again of all sources together.
    """

    family: str
    sources: Sources
    tables: tuple[Table, ...]
    sample_table: str
    main_table: str
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    estimated_rows: Mapping[str, int] = field(default_factory=dict)
    possible: tuple[tuple[Table, int], ...] = ()
    left_out: tuple[tuple[Path, str], ...] = ()
    needs_facts: bool = False
    shared: Mapping[str, Any] = field(default_factory=dict)

    def only(self, numbers: Collection[int]) -> Scan:
        """The same for whoever looks at some sources alone, which keep their numbers."""
        return replace(self, sources=self.sources.only(numbers), notes=(), left_out=())

    @property
    def is_derived(self) -> bool:
        """Whether every source is derived before anything is planned."""
        return self.needs_facts or any(table.spilled for table in self.tables)


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
        Further direct tables whose rows are known only now, and the final form of direct ones of the scan;
        rows are fetched with ``read``.
    rows
        Rows a source contributes to each further table of ``direct``: ``{"windows/lung": (812, 0, 97)}``.
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
    sample_names
        Name of every sample inside its source, by which ``--split-by`` deals them out; empty: their numbers.
    groups
        Attributes of groups below the root, by path: ``{"windows/lung": {"width": 1500, …}}`` (JSON).
    notes
        One-line remarks for the user about what was found in values.
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
    sample_names: tuple[str, ...] = ()
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
