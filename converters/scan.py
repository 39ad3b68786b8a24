"""What a converter says about its sources: before their values are read (`Scan`), and after (`Finalized`)."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.parts import Columns
from unistore.schemas.tables import Field, IndexValues, Table


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
        Every file that is read for it; none may change during the conversion.
    rows
        Rows it contributes to each direct table.
    split
        Name of the split it belongs to, or None.
    detail
        What ``read`` and ``derive`` need to know about it (JSON values only).
    memory
        Estimated peak bytes of ``derive`` of this source; 0 where nothing is derived.
    memory_in_core
        The same if it is derived in memory, without a scratch folder; 0 where none is ever used.
    reading
        Estimated peak bytes of ``read`` of any row range besides its output and a copy of one of its columns:
        a bit mask, a chunk of the file larger than the range, a decoded image.
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


class Sources(Columns[Source]):
    """All sources of a scan; their numbers are available as columns, too.

    Attributes
    ----------
    splits
        Split of each source.
    """

    def __init__(self, items: Iterable[Source] = ()) -> None:
        self.splits: list[str | None] = []
        self._numbers = {name: array("q") for name in ("memory", "memory_in_core", "reading")}
        self._rows: dict[str, array[int]] = {}
        self._first = 0
        super().__init__(items)

    def append(self, item: Source) -> None:
        """Add a source."""
        self.add(**{each.name: getattr(item, each.name) for each in fields(item)})

    def add(
        self,
        *,
        name: str,
        files: Sequence[str | Path],
        path: str | Path | None = None,
        rows: Mapping[str, int] | None = None,
        split: str | None = None,
        detail: Mapping[str, Any] | None = None,
        **numbers: int,
    ) -> None:
        """Add a source by the fields of `Source`; its path is its first file by default."""
        for which, values in self._numbers.items():
            values.append(numbers.get(which, 0))
        for table, count in (rows or {}).items():
            column = self._rows.setdefault(table, array("q"))
            column.extend([-1] * (len(self.names) - len(column)))
            column.append(count)
        self.splits.append(split)
        is_first = path is None or (files and str(path) == str(files[0]))
        self._add(name, ("" if is_first else str(path), *files), detail or {})

    def files(self) -> Iterator[list[str]]:
        """See `Columns.files`."""
        return (files[1:] for files in super().files())

    def paths(self, number: int) -> list[str]:
        """Paths of the files of a source."""
        return super().paths(number)[1:]

    def only(self, numbers: Collection[int]) -> Sources:
        """See `Columns.only`; all sources are not copied."""
        if len(numbers) == len(self):
            return self
        found, lo = super().only(numbers), min(numbers, default=0)
        there = slice(lo - self._first, max(numbers, default=-1) + 1 - self._first)
        found._first, found.splits = lo, self.splits[there]
        found._numbers = {name: values[there] for name, values in self._numbers.items()}
        found._rows = {table: rows[there] for table, rows in self._rows.items()}
        return found

    def _made(self, number: int, name: str, files: list[str], detail: Any) -> Source:
        at, paths = number - self._first, tuple(map(Path, files[1:]))
        return Source(
            path=Path(files[0]) if files[0] else paths[0],
            name=name,
            files=paths,
            rows=self._rows_of(at),
            split=self.splits[at],
            detail=detail,
            **{which: values[at] for which, values in self._numbers.items()},
        )

    def _rows_of(self, at: int) -> dict[str, int]:
        return {table: rows[at] for table, rows in self._rows.items() if at < len(rows) and rows[at] >= 0}

    def each_rows(self) -> Iterator[Mapping[str, int]]:
        """``rows`` of each source."""
        return map(self._rows_of, range(len(self)))

    @property
    def numbers(self) -> dict[str, NDArray[np.int64]]:
        """``memory``, ``memory_in_core`` and ``reading`` of each source, (sources,) int64 each."""
        return {name: np.array(values, np.int64) for name, values in self._numbers.items()}

    def rows(self, table: str) -> list[int]:
        """Rows of each source in a direct table."""
        rows = [max(0, count) for count in self._rows.get(table, ())]
        return rows + [0] * (len(self) - len(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What a scan found.

    Attributes
    ----------
    family
        Name of the family.
    sources
        In natural order of their names.
    tables
        Tables to write; dtypes of spilled ones are provisional until ``finalize``.
    sample_table
        Table whose rows (or, if ragged, whose index entries) are the samples: ``"rows"``, ``"segments"``.
    main_table
        Table that ``sources/first_row`` and ``sources/rows`` count in.
    options
        All options that decide the content (JSON): the converter's fields, so that it can be made again from
        them, and in ``found`` what the sources decided where options left it open.
    notes
        One-line remarks for the user: what was taken, and why.
    estimated_rows
        Estimated rows of spilled tables, by name.
    possible
        Tables that ``finalize`` may add, each with its maximum number of rows, for estimates of memory.
    left_out
        Files found in folders that belong to no source, each with the reason.
    units
        What each source is part of and must not be divided between splits (the sequence of a frame), by a
        name that does not depend on other sources; empty: each source is a whole.
    needs_facts
        Whether ``derive`` is called although no table is spilled (counts, checks over all values).
    shared
        What ``derive`` and ``read`` need to know about all sources together.
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
    units: Sequence[str] = ()
    needs_facts: bool = False
    shared: Mapping[str, Any] = field(default_factory=dict)

    def only(self, numbers: Collection[int]) -> Scan:
        """The scan of some sources alone, which keep their numbers; without notes."""
        return replace(self, sources=self.sources.only(numbers), units=(), notes=(), left_out=())

    @property
    def is_derived(self) -> bool:
        """Whether every source is derived before anything is planned."""
        return self.needs_facts or any(table.spilled for table in self.tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalized:
    """What is known once every source has been derived.

    Attributes
    ----------
    arrays
        Index arrays, each written whole: pairs of a field and its values (rows on axis 0).
    spilled
        Final form of the spilled tables; those missing here are not written.
    direct
        Direct tables whose number of rows is known only now, and the final form of those of the scan; their
        rows are read with ``read``.
    rows
        Rows of each source in each new table of ``direct``: ``{"windows/lung": (812, 0, 97)}``.
    samples
        Number of samples.
    splits
        Split code of each sample, (samples,) uint8; None: that of its source.
    split_names
        Names by code.
    sample_source
        Source of each sample, (samples,) int, or of each run of consecutive samples, (runs,) int.
    sample_runs
        Length of each run in samples, (runs,) int; None: ``sample_source`` has one entry a sample.
    sample_names
        Name of each sample in its source, by which ``--split-by`` assigns splits; empty: their numbers.
    groups
        Attributes of groups below the root, by path: ``{"windows/lung": {"width": 1500, …}}`` (JSON).
    notes
        One-line remarks for the user about the values.
    """

    arrays: Sequence[tuple[Field, IndexValues]]
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
