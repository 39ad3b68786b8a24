"""Values of a conversion: files and parts before a scan, `Scan` after it, `Finalized` after reading."""

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

from unistore.converters.common.faults import WRITE_AGAIN
from unistore.converters.files.paths import Folders
from unistore.converters.opened import Origin
from unistore.errors import InputError, Problem
from unistore.schemas.recorded_rules import StatedFamily
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
    """A file that every family looks at in turn. A file that one family opened is open for the next.

    It is a context manager; leaving it closes the file.

    Parameters
    ----------
    path : Path
        The file.
    roots : sequence of Path
        The paths that the user gave. Links may not lead outside of them.
    folders : Folders, optional
        The other files. None: those below `roots`.

    Attributes
    ----------
    name : str
        Name of the file in messages.
    """

    def __init__(self, path: Path, roots: Sequence[Path], folders: Folders | None = None) -> None:
        super().__init__()
        self.path = path
        self.roots = tuple(roots)  # where links may lead: the paths that the user gave
        self.name = str(path)  # its name in messages
        self.folders = folders or Folders(roots)  # what lies near it
        self._opened: dict[Hashable, Any] = {}

    def opened(self, kind: Hashable, opening: Callable[[], AbstractContextManager[AnyOpened]]) -> AnyOpened:
        """Open the file in one way, once.

        Parameters
        ----------
        kind : hashable
            Identifies the way of opening.
        opening : callable
            Returns a context manager that opens the file. An exception is raised again by each later call.

        Returns
        -------
        object
            The open file. It is closed with the candidate.
        """
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
    """The files that form one source. It pickles.

    Attributes
    ----------
    name : str
        Path relative to the common folder of all sources, with ``/``, unique. It becomes `Source.name`.
    files : tuple of Path
        The files.
    roots : tuple of Path
        The paths that the user gave, the same for every part. Links may not lead outside of them.
    detail
        Anything else that the family learned from the names, such as the role of each file.
    """

    name: str
    files: tuple[Path, ...]
    roots: tuple[Path, ...]
    detail: Any = None


class ObjectColumns(Items[T]):
    """A sequence of objects that have files, stored as columns. There may be millions of them.

    An object is created when you ask for it.

    Attributes
    ----------
    names : sequence of str
        Name of each object.
    details : sequence
        Detail of each object.
    """

    # There may be millions.

    def __init__(self, items: Iterable[T] = ()) -> None:
        self.names: PackedObjects[str] = PackedObjects()
        self.details: PackedObjects[Any] = PackedObjects()  # what the family knows of each, `detail`
        self._files: PackedObjects[str] = PackedObjects()
        for item in items:
            self.append(item)

    @abstractmethod
    def append(self, item: T) -> None:
        """Add an object."""

    @abstractmethod
    def _made(self, number: int, name: str, files: list[str], detail: Any) -> T:
        """Return the object of a number."""

    def _add(self, name: str, files: Iterable[str | Path], detail: Any) -> None:
        self.names.append(name)
        self._files.append("\0".join(map(str, files)))
        self.details.append(detail)

    def files(self) -> Iterator[list[str]]:
        """Iterate over the paths of the files of each object."""
        return map(_split, self._files)

    def paths(self, number: int) -> list[str]:
        """Return the paths of the files of one object."""
        return _split(self._files[number])

    def only(self, numbers: Collection[int]) -> Self:
        """Return some of the objects, which keep their numbers."""
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
    """All parts of a scan.

    Attributes
    ----------
    roots : tuple of Path
        The paths that the user gave.
    """

    def __init__(self, items: Iterable[SourcePart] = (), roots: tuple[Path, ...] = ()) -> None:
        self.roots = roots
        super().__init__(items)

    def append(self, item: SourcePart) -> None:
        self.add(item.name, item.files, item.detail)
        self.roots = item.roots

    def add(self, name: str, files: Iterable[str | Path], detail: Any = None) -> None:
        """Add a part by its name, files and detail."""
        self._add(name, files, detail)

    def _made(self, number: int, name: str, files: list[str], detail: Any) -> SourcePart:
        return SourcePart(name=name, files=tuple(map(Path, files)), roots=self.roots, detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Sources below the given paths, found by names only.

    Attributes
    ----------
    parts : sequence of SourcePart
        The files of each source.
    left_out : sequence of (Path, str)
        Files that belong to no source, each with the reason.
    notes : sequence of str
        Notes for the user.
    problems : sequence of Problem
        Problems of names.
    """

    parts: Sequence[SourcePart]
    left_out: Sequence[tuple[Path, str]] = ()
    notes: Sequence[str] = ()
    problems: Sequence[Problem] = ()


class Stored(NamedTuple):
    """The given sources that a store already has, so that they are not converted again.

    Attributes
    ----------
    names : frozenset of str
        Names of the sources.
    files : frozenset of str
        Paths of their files.
    excluded : frozenset of str
        Names that the options of the store exclude. They need not exist now.
    found : Found
        All sources, including excluded ones and those of other families.
    has_like : callable
        ``has_like(name, size)`` returns whether the store has a file of this name and size, from any folder.
    """

    names: frozenset[str] = frozenset()
    files: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()
    found: Found = Found(parts=())
    has_like: Callable[[str, int], bool] = lambda *_: False


@dataclass(frozen=True, kw_only=True)
class Scanned:
    """Result of the scan of one source. A family adds fields of its own: plain values and flat arrays.

    Attributes
    ----------
    problems : sequence of Problem
        Problems of items of the source, such as episodes; the other items are valid. A problem of the whole
        source is raised instead.
    excluded : sequence of str
        Names of items of the source that the options exclude.
    certain : bool, default False
        Whether the family would also have claimed the file. Used with `Family.scan_identifies`.
    origins : tuple of Origin
        Places of the values of its arrays, if some are in files that may be sources themselves.
    attributes : Attributes, optional
        Attributes of its HDF5 file, exactly. None: there are none, or they are not stored.
    """

    problems: Sequence[Problem] = ()
    excluded: Sequence[str] = ()
    certain: bool = False
    origins: tuple[Origin, ...] = ()
    attributes: Attributes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file, case or episode file that contributes rows.

    Attributes
    ----------
    path : Path
        Path of its first file.
    name : str
        Path relative to the common folder of all sources, with ``/``, unique. Stored in ``sources/path``.
    files : tuple of Path
        Every file that is read for it. None of them may change during the conversion.
    rows : mapping of str to int
        Number of rows that it contributes to each table that is not spilled.
    split : str, optional
        Name of its split. None: no split.
    row_splits : tuple of (str, int), default ()
        Splits of its samples, in their order: the name of a split, and how many successive samples have it.
        Empty: all samples have `split`.
    detail
        What `Family.read` and `Family.prepare` need to know about it: JSON values, or a frozen dataclass of
        them.
    memory : int, default 0
        Estimated peak memory of `Family.prepare` in bytes. 0: nothing is prepared.
    memory_in_core : int, default 0
        The same without a scratch folder. 0: no scratch folder is ever used.
    reading : int, default 0
        Estimated peak memory of `Family.read` in bytes, beyond its output and a copy of one column: for
        example for a decoded image, or a chunk of the file that is larger than the rows.
    """

    path: Path
    name: str  # path relative to the common root of all sources, with `/`; unique; stored in `sources/path`
    files: tuple[Path, ...]  # every file that is read for it; none may change during the conversion
    rows: Mapping[str, int] = field(default_factory=dict)  # rows it contributes to each direct table
    split: str | None = None  # name of the split it belongs to, or None
    # Splits of its samples, if it says them, each with the number of successive ones that it has
    row_splits: tuple[tuple[str, int], ...] = ()
    # What `read` and `derive` need to know about it: a frozen dataclass of JSON values, or those.
    detail: Any = field(default_factory=dict)
    memory: int = 0
    memory_in_core: int = 0
    reading: int = 0


class Sources(ObjectColumns[Source]):
    """The sources of a scan, stored as columns.

    Attributes
    ----------
    splits : list of str or None
        Split of each source.
    """

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
        """Add a source by the fields of `Source`.

        Parameters
        ----------
        name : str
            Name of the source.
        files : sequence of path
            Its files.
        path : path, optional
            Its path. None: the first file.
        rows, split, detail, **numbers
            As the attributes of `Source`; `numbers` are `memory`, `memory_in_core` and `reading`.

        Raises
        ------
        InputError
            If a header makes one of the numbers larger than any file can be.
        """
        largest = max([*numbers.values(), *(rows or {}).values()], default=0)
        if largest > _MOST:
            message = f"states {largest:,} rows or bytes, more than any file has"
            raise InputError(Problem(name, message, WRITE_AGAIN, "damaged", name))
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
        """Iterate over the paths of the files of each source."""
        return (files[1:] for files in super().files())

    def paths(self, number: int) -> list[str]:
        """Return the paths of the files of one source."""
        return super().paths(number)[1:]

    def only(self, numbers: Collection[int]) -> Sources:
        """Return some of the sources, which keep their numbers. For all of them, this is the same object."""
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
        """Iterate over the number of rows of each source, by table."""
        return map(self._rows_of, range(len(self)))

    @property
    def numbers(self) -> dict[str, Int64s]:
        """`memory`, `memory_in_core` and `reading` of each source: int64 arrays (sources,) by name."""
        return {name: np.array(values, np.int64) for name, values in self._numbers.items()}

    @property
    def nbytes(self) -> int:
        """Size of all files in bytes."""
        return sum(Path(file).stat().st_size for files in self.files() for file in files)

    def rows(self, table: str) -> list[int]:
        """Return the number of rows of each source in a table."""
        rows = [max(0, count) for count in self._rows.get(table, ())]
        return rows + [0] * (len(self) - len(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """Result of a scan: all sources, the tables to write, and the options.

    Attributes
    ----------
    family : str
        Name of the family, as stores record it.
    sources : Sources
        The sources, in natural order of their names.
    tables : tuple of Table
        Tables to write. Dtypes of spilled tables are provisional until `Family.finish`.
    sample_table : str
        Table whose rows are the samples, or index entries of samples that are ranges of rows: ``"rows"``,
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
    needs_prepare
        Whether `Family.prepare` is called although no table is spilled: for counts, checks over all values.
    numbered
        Whether names of sources are numbers that further sources change, so that the store cannot grow.
    unnamed
        Whether names of files may tell whom the sources are of, so that none is stored.
    shared
        What `Family.prepare` and `Family.read` need to know of all sources together.
    recorded
        What roots state about the family, of sources in stores, whose fields have their rules. None: sources
        are files, and their family says these.
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
    needs_prepare: bool = False
    numbered: bool = False
    unnamed: bool = False
    shared: Mapping[str, Any] = field(default_factory=dict)
    recorded: StatedFamily | None = None

    def only(self, numbers: Collection[int]) -> Scan:
        """Return the scan of some sources, which keep their numbers, without notes."""
        return replace(self, sources=self.sources.only(numbers), units=(), notes=(), left_out=())

    @property
    def is_derived(self) -> bool:
        """Whether every source is prepared before tables are planned."""
        return self.needs_prepare or any(table.spilled for table in self.tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalized:
    """Everything that is known after every source was read once: the result of `Family.finish`.

    Attributes
    ----------
    arrays : sequence of (Field, array)
        Index arrays: a field and its values, with rows on axis 0.
    samples : int
        Number of samples.
    sample_source : int array of shape (samples,) or (runs,)
        Source of each sample, or of each run of consecutive samples.
    sample_runs : int array of shape (runs,), optional
        Number of samples of each run. None: `sample_source` has one entry per sample.
    spilled : tuple of Table
        Final form of the spilled tables. Tables that are missing here are not written.
    direct : tuple of Table
        Tables whose number of rows is known only now, and the final form of the tables of the scan. Their
        rows are read with `Family.read`.
    rows : mapping of str to sequence of int
        Number of rows of each source in each new table of `direct`, ``{"windows/lung": (812, 0, 97)}``,
        and in the table of samples if it differs from these.
    by_source : mapping of str to int64 array, optional
        Number of rows of each source in every table, if sources are copied from stores. None: as in the
        tables.
    splits : uint8 array of shape (samples,), optional
        Code of the split of each sample. None: the split of its source.
    split_names : tuple of str
        Name of each code.
    sample_names : tuple of str
        Name of each sample in its source, which ``--split-by`` uses. Empty: samples are numbered.
    digests : uint8 array of shape (sources, 16), optional
        Hashes of the sources, if they are copied from stores. None: they are computed.
    groups : mapping of str to mapping
        Attributes of groups, as JSON by path: ``{"windows/lung": {"width": 1500}}``.
    notes : tuple of str
        Notes for the user about the values, one line each.
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
