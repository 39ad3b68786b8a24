"""What is known of sources: files, verdicts and parts before a scan, `Scan` and `Finalized` after it."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from copy import copy
from dataclasses import dataclass, field, fields, replace
from itertools import starmap
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.folders import Folders
from unistore.errors import Problem
from unistore.schemas.tables import Field, IndexValues, Table
from unistore.system.packed import Items, PackedObjects

# Values between converters and the scan: files to look at, verdicts on them, parts, scanned parts.

Opened = TypeVar("Opened")
T = TypeVar("T")


class Candidate:
    """A file that every family looks at in turn; what one family opens, the next reuses.

    Attributes
    ----------
    path
        The file.
    roots
        Where links may lead: the paths that the user gave.
    name
        Its name in messages; the path by default.
    folders
        What lies near it.
    """

    def __init__(
        self, path: Path, roots: Sequence[Path], name: str = "", folders: Folders | None = None
    ) -> None:
        self.path = path
        self.roots = tuple(roots)
        self.name = name or str(path)
        self.folders = folders or Folders(roots)
        self._stack = ExitStack()
        self._opened: dict[Hashable, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def opened(self, kind: Hashable, opening: Callable[[], AbstractContextManager[Opened]]) -> Opened:
        """Open the file as one of a kind, once; it is closed with the candidate.

        An exception from opening is raised again by each call.
        """
        if kind not in self._opened:
            try:
                self._opened[kind] = self._stack.enter_context(opening())
            except Exception as error:  # noqa: BLE001  kept to be raised again
                self._opened[kind] = error
        outcome = self._opened[kind]
        if isinstance(outcome, Exception):
            raise outcome
        opened: Opened = outcome
        return opened


@dataclass(frozen=True, slots=True)
class Taken:
    """A file of the family.

    Attributes
    ----------
    layout
        Name of the layout inside the family: ``"pointsuite_indices"``, ``"robomimic"``, ….
    reason
        What decided; continues a sentence that begins with the file's name:
        ``"holds segments/segment_0000/indices"``.
    """

    layout: str
    reason: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file that is not one of the family's, and why: ``"has 2 axes, a volume 3"``."""

    reason: str


# Kind of the problem of a file that a general family could read as well: neither takes it unless named
TWO_FAMILIES = "two families"


@dataclass(frozen=True, slots=True)
class Refused:
    """A file that cannot be read, or contradicts itself."""

    problem: Problem


Verdict = Taken | LeftOut | Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The files that make up one source; can be pickled.

    Attributes
    ----------
    name
        Path relative to the common root of all sources, with ``/``; unique; becomes ``Source.name``.
    files
        The files, the one that names the source first.
    roots
        Where links may lead: the paths that the user gave, the same for every part.
    detail
        What the family found out from names: the role of each file, the recording it belongs to, ….
    """

    name: str
    files: tuple[Path, ...]
    roots: tuple[Path, ...]
    detail: Any = None


class Columns(Items[T]):
    """Millions of objects that consist of files, as columns: each is made again when it is asked for.

    Attributes
    ----------
    names
        Name of each.
    details
        What the family knows of each, ``detail``.
    """

    def __init__(self, items: Iterable[T] = ()) -> None:
        self.names: PackedObjects[str] = PackedObjects()
        self.details: PackedObjects[Any] = PackedObjects()
        self._files: PackedObjects[str] = PackedObjects()
        for item in items:
            self.append(item)

    @abstractmethod
    def append(self, item: T) -> None:
        """Add one more object."""

    @abstractmethod
    def _made(self, number: int, name: str, files: list[str], detail: Any) -> T:
        """The object of a number."""

    def _add(self, name: str, files: Iterable[str | Path], detail: Any) -> None:
        self.names.append(name)
        self._files.append("\0".join(map(str, files)))
        self.details.append(detail)

    def files(self) -> Iterator[list[str]]:
        """Paths of the files of each."""
        return map(_split, self._files)

    def paths(self, number: int) -> list[str]:
        """Paths of the files of one."""
        return _split(self._files[number])

    def only(self, numbers: Collection[int]) -> Self:
        """As `PackedObjects.only`."""
        selected = copy(self)
        selected.names, selected._files = self.names.only(numbers), self._files.only(numbers)
        selected.details = self.details.only(numbers)
        return selected

    def __iter__(self) -> Iterator[T]:
        columns = range(len(self)), self.names, map(_split, self._files), self.details
        return starmap(self._made, zip(*columns, strict=True))

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.names)

    def _item(self, number: int) -> T:
        return self._made(number, self.names[number], Columns.paths(self, number), self.details[number])


def _split(files: str) -> list[str]:
    return files.split("\0") if files else []


class Parts(Columns[Part]):
    """All parts of a scan; `roots` as in `Part`."""

    def __init__(self, items: Iterable[Part] = (), roots: tuple[Path, ...] = ()) -> None:
        self.roots = roots
        super().__init__(items)

    def append(self, item: Part) -> None:
        """See `Columns.append`."""
        self.add(item.name, item.files, item.detail)
        self.roots = item.roots

    def add(self, name: str, files: Iterable[str | Path], detail: Any = None) -> None:
        """Add a part."""
        self._add(name, files, detail)

    def _made(self, number: int, name: str, files: list[str], detail: Any) -> Part:
        return Part(name=name, files=tuple(map(Path, files)), roots=self.roots, detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Sources under the given paths, by names alone.

    Attributes
    ----------
    parts
        In natural order of their names.
    left_out
        Files that belong to no source, each with the reason.
    notes, problems
        Remarks, and what is wrong with names.
    """

    parts: Sequence[Part]
    left_out: Sequence[tuple[Path, str]] = ()
    notes: Sequence[str] = ()
    problems: Sequence[Problem] = ()


@dataclass(frozen=True, kw_only=True)
class Scanned:
    """Result of scanning one part; families add fields of their own (plain values and flat arrays).

    Attributes
    ----------
    problems
        What is wrong with some episodes or items of the source; the rest is valid. What is wrong with the
        whole source is raised instead.
    excluded
        Names of items of the source (episodes) that the options exclude.
    certain
        Whether ``look`` would take the file too; used if `Converter.scan_identifies`.
    """

    problems: Sequence[Problem] = ()
    excluded: Sequence[str] = ()
    certain: bool = False


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
        What ``read`` and ``derive`` need to know about it: a frozen dataclass of JSON values, or those.
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
    detail: Any = field(default_factory=dict)
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
        self.add(**{item_field.name: getattr(item, item_field.name) for item_field in fields(item)})

    def add(
        self,
        *,
        name: str,
        files: Sequence[str | Path],
        path: str | Path | None = None,
        rows: Mapping[str, int] | None = None,
        split: str | None = None,
        detail: Any = None,
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
        selected = super().only(numbers)
        lo = min(numbers, default=0)
        span = slice(lo - self._first, max(numbers, default=-1) + 1 - self._first)
        selected._first = lo
        selected.splits = self.splits[span]
        selected._numbers = {name: values[span] for name, values in self._numbers.items()}
        selected._rows = {table: rows[span] for table, rows in self._rows.items()}
        return selected

    def _made(self, number: int, name: str, files: list[str], detail: Any) -> Source:
        row = number - self._first
        paths = tuple(map(Path, files[1:]))
        return Source(
            path=Path(files[0]) if files[0] else paths[0],
            name=name,
            files=paths,
            rows=self._rows_of(row),
            split=self.splits[row],
            detail=detail,
            **{which: values[row] for which, values in self._numbers.items()},
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
    unnamed
        Whether names of files may tell whom the sources are of, so that none is stored.
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
    unnamed: bool = False
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
