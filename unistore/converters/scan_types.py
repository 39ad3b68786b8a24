"""What is known of sources: files and parts before a scan, `Scan` and `Finalized` after it."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from copy import copy
from dataclasses import dataclass, field, fields, replace
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import numpy as np

from unistore.converters.files.folders import Folders
from unistore.converters.opened import Origin
from unistore.errors import InputError, Problem
from unistore.schemas.tables import Field, IndexValues, Table
from unistore.system.foreign import NO_FAULTS
from unistore.system.packed import Items, PackedObjects
from unistore.system.types import Int64s, UInt8s

if TYPE_CHECKING:  # few sources are HDF5
    from unistore.converters.files.hdf5.attributes import Attributes

# Values between converters and the scan: files to look at, parts, scanned parts.

AnyOpened = TypeVar("AnyOpened")
T = TypeVar("T")


class Candidate(ExitStack):
    """A file that every family looks at in turn, where what one family opens, the next reuses."""

    def __init__(self, path: Path, roots: Sequence[Path], folders: Folders | None = None) -> None:
        super().__init__()
        self.path = path
        self.roots = tuple(roots)  # where links may lead: the paths that the user gave
        self.name = str(path)  # its name in messages
        self.folders = folders or Folders(roots)  # what lies near it
        self._opened: dict[Hashable, Any] = {}

    def opened(self, kind: Hashable, opening: Callable[[], AbstractContextManager[AnyOpened]]) -> AnyOpened:
        """Open the file as one of a kind, once, and close it with the candidate."""
        # An exception from opening is raised again by each call.
        if kind not in self._opened:
            try:
                self._opened[kind] = self.enter_context(opening())
            except NO_FAULTS:
                raise
            except BaseException as error:  # noqa: BLE001  kept to be raised again
                self._opened[kind] = error
        outcome = self._opened[kind]
        if isinstance(outcome, BaseException):
            raise outcome
        opened: AnyOpened = outcome
        return opened


_MOST = (1 << 63) - 1  # what an int64 holds

# Kind of the problem of a file that a general family could read as well: neither takes it unless named
TWO_FAMILIES = "two families"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePart:
    """The files that make up one source, which can be pickled."""

    name: str  # path relative to the common root of all sources, with `/`; unique; becomes `Source.name`
    files: tuple[Path, ...]
    roots: tuple[Path, ...]  # where links may lead: the paths that the user gave, the same for every part
    # What the family found out from names: the role of each file, the recording it belongs to, ….
    detail: Any = None


class ObjectColumns(Items[T]):
    """Objects that consist of files, as columns: each is made again when it is asked for."""

    # There may be millions.

    def __init__(self, items: Iterable[T] = ()) -> None:
        self.names: PackedObjects[str] = PackedObjects()
        self.details: PackedObjects[Any] = PackedObjects()  # what the family knows of each, `detail`
        self._files: PackedObjects[str] = PackedObjects()
        for item in items:
            self.append(item)

    @abstractmethod
    def append(self, item: T) -> None:
        """Add one more object."""

    @abstractmethod
    def _made(self, number: int, name: str, files: list[str], detail: Any) -> T:
        """Return the object of a number."""

    def _add(self, name: str, files: Iterable[str | Path], detail: Any) -> None:
        self.names.append(name)
        self._files.append("\0".join(map(str, files)))
        self.details.append(detail)

    def files(self) -> Iterator[list[str]]:
        return map(_split, self._files)

    def paths(self, number: int) -> list[str]:
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
        return self._made(number, self.names[number], ObjectColumns.paths(self, number), self.details[number])


def _split(files: str) -> list[str]:
    return files.split("\0") if files else []


class Parts(ObjectColumns[SourcePart]):
    """All parts of a scan. `roots` as in `SourcePart`."""

    def __init__(self, items: Iterable[SourcePart] = (), roots: tuple[Path, ...] = ()) -> None:
        self.roots = roots
        super().__init__(items)

    def append(self, item: SourcePart) -> None:
        self.add(item.name, item.files, item.detail)
        self.roots = item.roots

    def add(self, name: str, files: Iterable[str | Path], detail: Any = None) -> None:
        self._add(name, files, detail)

    def _made(self, number: int, name: str, files: list[str], detail: Any) -> SourcePart:
        return SourcePart(name=name, files=tuple(map(Path, files)), roots=self.roots, detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Sources under the given paths, by names alone."""

    parts: Sequence[SourcePart]
    left_out: Sequence[tuple[Path, str]] = ()  # files that belong to no source, each with the reason
    # `notes` and `problems`: remarks, and what is wrong with names.
    notes: Sequence[str] = ()
    problems: Sequence[Problem] = ()


class Stored(NamedTuple):
    """What a store has already of the given sources, so that it is left out."""

    names: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()  # names that its options exclude, which may be absent now
    found: Found = Found(parts=())  # all sources, where none is excluded or left to other families
    # Whether it has a file of this name, in whatever folder, and of so many bytes.
    has_like: Callable[[str, int], bool] = lambda *_: False


@dataclass(frozen=True, kw_only=True)
class Scanned:
    """What the scan of one source found. Families add fields of their own: plain values and flat arrays.

    Attributes
    ----------
    problems
        What is wrong with some episodes or items of the source; the rest is valid. What is wrong with the
        whole source is raised instead.
    excluded
        Names of items of the source (episodes) that the options exclude.
    certain
        Whether the family would have claimed the file, too; asked if `Family.scan_identifies`.
    origins
        Where the values of its arrays lie, if some lie in files that may be sources themselves.
    attributes
        Of its HDF5 file, to the last bit. None: they are not kept, or there are none.
    """

    problems: Sequence[Problem] = ()
    excluded: Sequence[str] = ()
    certain: bool = False
    origins: tuple[Origin, ...] = ()
    attributes: Attributes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file, case or episode file that contributes rows."""

    path: Path
    name: str  # path relative to the common root of all sources, with `/`; unique; stored in `sources/path`
    files: tuple[Path, ...]  # every file that is read for it; none may change during the conversion
    rows: Mapping[str, int] = field(default_factory=dict)  # rows it contributes to each direct table
    split: str | None = None  # name of the split it belongs to, or None
    # Splits of its samples, if it says them, each with the number of successive ones that it has
    row_splits: tuple[tuple[str, int], ...] = ()
    # What `read` and `derive` need to know about it: a frozen dataclass of JSON values, or those.
    detail: Any = field(default_factory=dict)
    memory: int = 0  # estimated peak bytes of `derive` of this source; 0 where nothing is derived
    # The same if it is derived in memory, without a scratch folder; 0 where none is ever used.
    memory_in_core: int = 0
    # Estimated peak bytes of `read` of any row range besides its output and a copy of one of its columns: a
    # bit mask, a chunk of the file larger than the range, a decoded image.
    reading: int = 0


class Sources(ObjectColumns[Source]):
    """Sources of a scan, whose numbers are available as columns, too."""

    def __init__(self, items: Iterable[Source] = ()) -> None:
        self.splits: list[str | None] = []  # split of each source
        self.row_splits: dict[int, tuple[tuple[str, int], ...]] = {}  # of those that have them, by number
        self._numbers = {name: array("q") for name in ("memory", "memory_in_core", "reading")}
        self._rows: dict[str, array[int]] = {}
        self._first = 0
        super().__init__(items)

    def append(self, item: Source) -> None:
        self.add(**{item_field.name: getattr(item, item_field.name) for item_field in fields(item)})

    def add(
        self,
        *,
        name: str,
        files: Sequence[str | Path],
        path: str | Path | None = None,
        rows: Mapping[str, int] | None = None,
        split: str | None = None,
        row_splits: tuple[tuple[str, int], ...] = (),
        detail: Any = None,
        **numbers: int,
    ) -> None:
        """Add a source by the fields of `Source`. Its path is its first file by default.

        Raises
        ------
        InputError
            If a header makes one of its numbers larger than any file.
        """
        largest = max([*numbers.values(), *(rows or {}).values()], default=0)
        if largest > _MOST:
            message = f"states sizes that no file has: {largest:,} rows or bytes"
            raise InputError(Problem(name, message, "get or write it again", "damaged", name))
        for which, values in self._numbers.items():
            values.append(numbers.get(which, 0))
        for table, count in (rows or {}).items():
            column = self._rows.setdefault(table, array("q"))
            column.extend([-1] * (len(self.names) - len(column)))
            column.append(count)
        if row_splits:
            self.row_splits[len(self.splits)] = row_splits
        self.splits.append(split)
        is_first = path is None or (files and str(path) == str(files[0]))
        self._add(name, ("" if is_first else str(path), *files), detail or {})

    def files(self) -> Iterator[list[str]]:
        return (files[1:] for files in super().files())

    def paths(self, number: int) -> list[str]:
        return super().paths(number)[1:]

    def only(self, numbers: Collection[int]) -> Sources:
        """See `Columns.only`. All sources are not copied."""
        if len(numbers) == len(self):
            return self
        selected = super().only(numbers)
        lo = min(numbers, default=0)
        span = slice(lo - self._first, max(numbers, default=-1) + 1 - self._first)
        selected._first = lo
        selected.splits = self.splits[span]
        selected.row_splits = self.row_splits
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
            row_splits=self.row_splits.get(number, ()),
            detail=detail,
            **{which: values[row] for which, values in self._numbers.items()},
        )

    def _rows_of(self, at: int) -> dict[str, int]:
        counts = {}
        for table, rows in self._rows.items():
            if at < len(rows) and rows[at] >= 0:
                counts[table] = rows[at]
        return counts

    def each_rows(self) -> Iterator[Mapping[str, int]]:
        """``rows`` of each source."""
        return map(self._rows_of, range(len(self)))

    @property
    def numbers(self) -> dict[str, Int64s]:
        """``memory``, ``memory_in_core`` and ``reading`` of each source, (sources,) int64 each."""
        return {name: np.array(values, np.int64) for name, values in self._numbers.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(Path(file).stat().st_size for files in self.files() for file in files)

    def rows(self, table: str) -> list[int]:
        rows = [max(0, count) for count in self._rows.get(table, ())]
        return rows + [0] * (len(self) - len(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What a scan found: all sources, the tables to write, and the options.

    Attributes
    ----------
    family
        Its name, as stores record it.
    sources
        In natural order of their names.
    tables
        Tables to write. Dtypes of spilled ones are provisional until `Family.finish`.
    sample_table
        Table whose rows are the samples, or whose index entries, if samples are ranges of rows: ``"rows"``,
        ``"segments"``.
    main_table
        Table of the values that the sources have.
    options
        All options that decide the content, JSON: the fields of the family, so that it can be made again from
        them, and in ``found`` what the sources decided where options left it open.
    notes
        Notes for the user, one line each: the layout that was read, and the reason.
    estimated_rows
        Rows of spilled tables, about, by name.
    possible
        Tables that `Family.finish` may add, each with its most rows, for estimates of memory.
    left_out
        Files of folders that belong to no source, each with the reason.
    units
        What each source is a part of that no split divides (the sequence of a frame), by a name that does not
        depend on other sources. Empty: each source is a whole.
    needs_facts
        Whether `Family.prepare` is called although no table is spilled: for counts, checks over all values.
    numbered
        Whether names of sources are numbers that further sources change, so that the store cannot grow.
    unnamed
        Whether names of files may tell whom the sources are of, so that none is stored.
    shared
        What `Family.prepare` and `Family.read` need to know of all sources together.
    recorded
        ``kinds`` and ``package`` as roots record them, of sources in stores, whose fields have their rules.
        Empty: sources are files, and their family says these.
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
    numbered: bool = False
    unnamed: bool = False
    shared: Mapping[str, Any] = field(default_factory=dict)
    recorded: Mapping[str, Any] = field(default_factory=dict)

    def only(self, numbers: Collection[int]) -> Scan:
        """Return the scan of some sources alone, which keep their numbers. Without notes."""
        return replace(self, sources=self.sources.only(numbers), units=(), notes=(), left_out=())

    @property
    def is_derived(self) -> bool:
        """Whether every source is derived before anything is planned."""
        return self.needs_facts or any(table.spilled for table in self.tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalized:
    """What is known once every source was read once, see `Family.prepare`.

    Attributes
    ----------
    arrays
        Index arrays, each written whole: a field, and its values with the rows on axis 0.
    spilled
        Final form of the spilled tables. Those that are missing here are not written.
    direct
        Tables whose number of rows is known only now, and the final form of those of the scan; their rows
        are read with `Family.read`.
    rows
        Rows of each source in each new table of `direct`, ``{"windows/lung": (812, 0, 97)}``, and in the
        table of the samples if it has other rows than these.
    by_source
        Rows of each source in every table of the store, if they are copied from stores. None: as of its
        tables.
    samples
        How many there are.
    splits
        Split code of each sample, (samples,) uint8. None: that of its source.
    split_names
        Names of these codes.
    sample_source
        Source of each sample, (samples,) int, or of each run of successive samples, (runs,) int.
    sample_runs
        Length of each run in samples, (runs,) int. None: `sample_source` has one entry a sample.
    sample_names
        Name of each sample in its source, by which ``--split-by`` assigns splits. Empty: their numbers.
    digests
        Of the sources, (sources, 16) uint8, if they are copied from stores. None: they are computed.
    groups
        Attributes of groups below the root, JSON by path: ``{"windows/lung": {"width": 1500}}``.
    notes
        Notes for the user on the values, one line each.
    """

    arrays: Sequence[tuple[Field, IndexValues]]
    spilled: tuple[Table, ...] = ()
    direct: tuple[Table, ...] = ()
    rows: Mapping[str, Sequence[int] | Int64s] = field(default_factory=dict)
    by_source: Mapping[str, Int64s] | None = None
    samples: int
    splits: UInt8s | None = None
    split_names: tuple[str, ...] = ()
    sample_source: Int64s
    sample_runs: Int64s | None = None
    sample_names: tuple[str, ...] = ()
    digests: UInt8s | None = None
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
