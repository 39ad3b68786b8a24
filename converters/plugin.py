"""The one import of whoever adds a format or a family of sources.

A package declares what it adds by entry points::

    [project.entry-points."unistore.formats"]
    wav = "unistore_audio:Wav"

    [project.entry-points."unistore.families"]
    audio = "unistore_audio:Audio"

A `Format` opens a file as named arrays. A `Family` says which arrays make a sample, and its `Schema` says
what a store of them holds. unistore does the rest: detection, conversion by many workers, checks, resuming,
``verify``, ``export``, pictures, and reading.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.formats import lfs_pointer_problem
from unistore.converters.files.paths import is_inside, natural_key
from unistore.converters.files.raw import FileBytes
from unistore.converters.options import Options, option
from unistore.errors import InputError, Problem, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from unistore.converters.files.hdf5.attributes import Attributes

__all__ = [
    "API",
    "Array",
    "Chosen",
    "Claim",
    "Column",
    "Cut",
    "Facts",
    "Family",
    "Format",
    "Group",
    "Head",
    "InputError",
    "Opened",
    "Problem",
    "Restored",
    "Schema",
    "SourceFile",
    "as_json",
    "maybe",
    "no",
    "option",
    "sure",
]

API = 1
"""Version of this interface; a package of another one is left out with a line that says so."""

Facts: TypeAlias = Mapping[str, Any]
"""What a file says beside its arrays, as JSON values: a sample rate, a unit, a header."""

Member: TypeAlias = Literal["array", "group"]
"""What a group of a file holds under a name."""

HEAD_BYTES = 4096
BLOCK_BYTES = 16 << 20
"""Bytes of an array that are read at a time where all of it is read."""


class Claim(NamedTuple):
    """Whether a file is one of a format's or a family's, and why; made by `sure`, `maybe` and `no`."""

    certainty: Literal["sure", "maybe", "no"]
    reason: str
    layout: str = ""
    """Which of the family's layouts the file has; empty: the family has one."""


def as_json(value: Any) -> Any:
    """Return a value, or an array, of a file as JSON: what JSON lacks becomes text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        return [as_json(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value if isinstance(value, (bool, int, float, str)) else str(value)


def sure(reason: str, layout: str = "") -> Claim:
    """Claim a file: ``sure("begins with RIFF")``."""
    return Claim("sure", reason, layout)


def maybe(reason: str) -> Claim:
    """Claim a file only if the user names the family: ``maybe("is headerless")``."""
    return Claim("maybe", reason)


def no(reason: str) -> Claim:
    """Leave a file to others: ``no("has 2 axes, a volume 3")``."""
    return Claim("no", reason)


class Near(Protocol):
    """What lies near a file, among the paths that the user gave."""

    def has(self, path: str) -> bool:
        """Whether there is a file."""
        ...

    def holds(self, folder: Path, fits: Callable[[Path], bool]) -> bool:
        """Whether a file of a folder fits; each folder is searched once."""
        ...

    def head(self, path: Path) -> Head | None:
        """What another file holds; None if it is damaged, which is told of that file."""
        ...


@dataclass(frozen=True)
class SourceFile:
    """A file of the user's.

    Attributes
    ----------
    path
        Where it is.
    name
        What messages call it: its path below the folder that the user gave.
    roots
        The paths that the user gave; no file outside them is read.
    near
        In `Family.match` and `Family.group`: what lies near it.
    format
        Name of the first of the family's formats that has its ending; empty: none has.
    """

    path: Path
    name: str
    roots: tuple[Path, ...] = ()
    near: Near | None = field(default=None, compare=False, repr=False)
    format: str = ""

    @property
    def is_given(self) -> bool:
        """Whether the user named the file itself, not its folder."""
        alike = [root for root in self.roots if root.name == self.path.name]
        return any(root.parent.resolve() == self.path.parent for root in alike)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.path.stat().st_size

    def head(self, count: int = HEAD_BYTES) -> bytes:
        """Return its first `count` bytes, or all if it has fewer."""
        with self.path.open("rb") as file:
            return file.read(count)

    def bytes(self) -> Array:
        """Return the file as it stands, (n,) uint8, which is read where it is sliced."""
        return Array(FileBytes(self.path, self.name))

    def check_whole(self) -> None:
        """Refuse an empty file and a Git LFS pointer, as formats do that nothing in a file tells."""
        if self.size == 0:
            raise self.problem("is empty (0 bytes)", "copy or write it again", "empty")
        pointer = lfs_pointer_problem(self.head(64), self.name)
        if pointer is not None:
            raise InputError(pointer)

    def beside(self, name: str) -> SourceFile:
        """Return another file, by its path relative to this file's folder.

        Raises
        ------
        InputError
            If it does not exist, or lies outside the paths that the user gave.
        """
        path = self.path.parent / name
        if not path.is_file():
            message = f"needs {printable(name)}, which is not there"
            raise self.problem(message, "copy it beside", "missing")
        if self.roots and not is_inside(path, self.roots):
            message = f"needs {printable(name)}, outside the given paths"
            raise self.problem(message, "give its folder too", "link")
        return SourceFile(path, str(Path(self.name).parent / name), self.roots)

    def problem(self, message: str, cure: str = "", kind: str = "format") -> InputError:
        """Return an error about this file, to be raised: ``raise file.problem("is truncated")``."""
        return InputError(Problem(printable(self.name), message, cure, kind))


class Group(NamedTuple):
    """Files that are one source.

    Attributes
    ----------
    name
        What messages and stores call it.
    files
        Its files, the one that it is named after first.
    arrays
        What the only array of each file is called; empty: the files name their arrays.
    roles
        What each file is to the source: ``("image", "mask")``; empty: all are alike.
    unit
        What the source is a part of that no split divides: the recording of a frame; empty: it is a whole.
    detail
        What else the names say, for the family itself; it can be pickled.
    """

    name: str
    files: tuple[SourceFile, ...]
    arrays: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    unit: str = ""
    detail: Any = None


@dataclass(slots=True, eq=False)
class Array:
    """An array of an open file; values are read when it is sliced.

    Attributes
    ----------
    values
        Anything with ``shape``, ``dtype`` and slices of axis 0: a NumPy array, a memory map, an HDF5 dataset.
        If they have a method ``read_into(lo, hi, out)``, rows are read into the shard itself where they fit.
    unit
        Unit of the values, or None.
    description
        One sentence.
    """

    values: Any
    unit: str | None = None
    description: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of every axis."""
        return tuple(self.values.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values as they are in the file."""
        dtype: np.dtype[Any] = np.dtype(self.values.dtype)
        return dtype

    @property
    def chunk_rows(self) -> int:
        """Rows that are read together at least; 0: all of them."""
        together: int = getattr(self.values, "chunk_rows", 1)
        return together

    def problems(self, *, as_objects: bool = False) -> Sequence[Problem]:
        """Say what keeps the values from being read, without reading them.

        `as_objects`: texts and bytes of any length are wanted, too, see `item`.
        """
        return ()

    def item(self, row: int | None = None) -> Any:
        """Read one row, or all of it, whatever it is: a text, bytes of any length, a number."""
        if row is not None:
            return self[row : row + 1][0]
        whole = getattr(self.values, "whole", None)
        return (self.values if whole is None else whole())[()]

    @property
    def fortran_order(self) -> bool:
        """Whether the last axis varies slowest in the file, so that `T` is read faster."""
        is_reversed: bool = getattr(self.values, "fortran_order", False)
        return is_reversed

    @property
    def T(self) -> Array:  # noqa: N802  as of an array
        """The same array with reversed axes."""
        return Array(self.values.T, self.unit, self.description)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        lo, hi, step = rows.indices(len(self))
        return self.read(lo, max(lo, hi))[::step]

    def __len__(self) -> int:
        return self.shape[0]

    def blocks(self) -> Iterator[tuple[int, NDArray[Any]]]:
        """Read all rows some at a time, each time with the number of the first."""
        row_bytes = prod(self.shape[1:]) * self.dtype.itemsize
        step = max(1, BLOCK_BYTES // max(1, row_bytes))
        for lo in range(0, len(self), step):
            yield lo, self[lo : min(len(self), lo + step)]

    def read(self, lo: int, hi: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read rows ``lo:hi``, in `out` if the values can and its dtype is theirs, else in another array."""
        read_into = getattr(self.values, "read_into", None)
        if read_into is None:
            return np.asarray(self.values[lo:hi])
        rows: NDArray[Any] = read_into(lo, hi, out)
        return rows


@dataclass(frozen=True, eq=False)
class Opened:
    """An open file.

    Attributes
    ----------
    arrays
        Its arrays by name.
    facts
        What else it says.
    further
        Other files that are read for it.
    forward_only
        Whether rows can only be read from the first to the last: each is then read once and kept in scratch
        space until it is written.
    memory
        Bytes of memory that reading takes beside the rows themselves.
    problems
        What is wrong with arrays that cannot be read and are not among `arrays`; no problem of a family that
        does not want them.
    left_out
        What else the file holds and nobody wants, by name, with the reason.
    notes
        Remarks on arrays, by name; those of arrays that a family takes are printed, each once.
    file
        The file itself; unistore fills it in.
    """

    arrays: Mapping[str, Array]
    facts: Facts = field(default_factory=dict)
    further: Sequence[SourceFile] = ()
    forward_only: bool = False
    memory: int = 0
    problems: Sequence[Problem] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    file: SourceFile | None = None

    @property
    def name(self) -> str:
        """What messages call the file."""
        assert self.file is not None
        return self.file.name

    def bytes(self) -> Array:
        """Return the file as it stands, for families that keep it: (n,) uint8, read where it is sliced."""
        assert self.file is not None
        return self.file.bytes()

    # A file of groups (HDF5) says more; of others, names with slashes are taken for groups.

    @property
    def all_arrays(self) -> Mapping[str, Array]:
        """`arrays`, and texts, single values and what cannot be read, see `Array.problems`."""
        return self.arrays

    @property
    def groups(self) -> Sequence[str]:
        """Paths of all groups, in natural order."""
        paths = [name.split("/") for name in self.arrays]
        found = {"/".join(path[:depth]) for path in paths for depth in range(1, len(path))}
        return sorted(found, key=natural_key)

    @property
    def unreachable(self) -> Sequence[Problem]:
        """Those of `problems` that say why something cannot be opened, as a link out of the folder."""
        return ()

    def members(self, group: str = "") -> Mapping[str, Member]:
        """Return what a group holds, in natural order of the names, without what links lead to.

        No more of the file is read for it. A group that is not there holds nothing.
        """
        start = f"{group}/" if group else ""
        inside = [name.removeprefix(start) for name in self.arrays if name.startswith(start)]
        found: dict[str, Member] = {}
        for name in sorted(inside, key=natural_key):
            head, below, _ = name.partition("/")
            found[head] = "group" if below else "array"
        return found

    def without(self, groups: Collection[str]) -> Opened:
        """Return the same open file as if these groups, which may be many, held nothing."""
        del groups
        return self

    def group_facts(self, group: str = "") -> Facts:
        """Return what a group says beside its arrays, as JSON values."""
        del group
        return {}

    def attributes(
        self, is_wanted: Callable[[str], bool], is_told: Callable[[str, str, bool], bool] | None = None
    ) -> Attributes | None:
        """Read the attributes of a file of groups to the last bit: its own, those of its groups and arrays.

        Parameters
        ----------
        is_wanted
            Of the name of an array: whether its attributes are wanted. Single values are always.
        is_told
            ``(path, name, is_plain)``: whether the family says an attribute in its own words. `is_plain`:
            its value alone, as JSON has it, makes it again.
        """
        del is_wanted, is_told
        return None


class Format(ABC):
    """A kind of file, for every family that can use its arrays. An instance has no state.

    Attributes
    ----------
    name
        As stores record it: ``"wav"``.
    suffixes
        Lower-case endings of its files, with the dot.
    library
        The native library that reads the files: ``"LibRaw"``. It is then called in worker processes alone,
        and a file that crashes or hangs it is refused by name. Empty where Python and NumPy read.
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    library: ClassVar[str] = ""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    @abstractmethod
    def recognise(self, file: SourceFile) -> Claim:
        """Say whether a file with one of the suffixes is of this format, from its first bytes."""

    @abstractmethod
    def open(self, file: SourceFile) -> AbstractContextManager[Opened]:
        """Open a file: read its header now, and values when arrays are sliced.

        Raises
        ------
        InputError
            If the file is truncated, damaged, or of a form that is not read.
        """

    def write(self, path: Path, arrays: Mapping[str, Array], facts: Facts) -> None:
        """Write a file that opens as these arrays and facts; a format without it is not exported."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Column:
    """What an array of a store must be.

    Attributes
    ----------
    kinds
        Allowed kinds of dtypes, as NumPy's letters: ``"iuf"`` for integers and floats.
    axes
        Names of the axes after the first: ``("channel",)``. None: any number of axes, which are numbered.
    unit
        Unit of the values; None: the file's.
    description
        One sentence.
    source
        Name of the array, or of the fact, in the file; empty: that of the column.
    field
        Which field of an array of records it is; empty: the array is no such array.
    least
        Smallest value that is allowed.
    statistics
        Whether mean, standard deviation, minimum and maximum are computed while converting.
    spatial
        Whether the axes are depth, height and width: each row is a volume. Files may differ in extent; the
        store pads rows to the largest, ``<table>/extent`` says how far each reaches, samples are volumes.
    dtype, shape
        Of a column that `Family.derive` computes: its dtype, and the shape of a row. An empty dtype: the
        column is an array of the file.
    """

    kinds: str = "biuf"
    axes: tuple[str, ...] | None = ()
    unit: str | None = None
    description: str = ""
    source: str = ""
    field: str = ""
    least: int | None = None
    statistics: bool = False
    spatial: bool = False
    dtype: str = ""
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Schema:
    """What a store of a family holds. Arrays, their checks and the kind of samples follow from it.

    Attributes
    ----------
    table
        Name of the table that rows of the files go into: ``"frames"``.
    columns
        Its columns by name; the first one decides how many rows a file has. Those that depend on the files,
        `Family.choose` names.
    samples
        Name of the table of samples, each a range of rows: ``"clips"``. Empty: each row is a sample.
    per_sample
        Numbers of each sample, by name.
    per_source
        Numbers of each file, taken from its facts, by name.
    tables
        Further tables, by name: the columns of each. A file has any number of rows in each of them, and
        ``sources/<table>/offsets`` says which. If its columns have a `Column.dtype`, `Family.derive` computes
        them; else they are arrays of the file, which are stored as they are.
    """

    table: str
    columns: Mapping[str, Column] = field(default_factory=dict)
    samples: str = ""
    per_sample: Mapping[str, Column] = field(default_factory=dict)
    per_source: Mapping[str, Column] = field(default_factory=dict)
    tables: Mapping[str, Mapping[str, Column]] = field(default_factory=dict)

    @property
    def spatial(self) -> Sequence[str]:
        """Those of `columns` whose rows are volumes."""
        return [name for name, column in self.columns.items() if column.spatial]

    @property
    def direct(self) -> Mapping[str, Mapping[str, Column]]:
        """Those of `tables` whose columns are arrays of the file."""
        return {name: table for name, table in self.tables.items() if not is_derived(table)}

    @property
    def derived(self) -> Mapping[str, Mapping[str, Column]]:
        """Those of `tables` that `Family.derive` computes."""
        return {name: table for name, table in self.tables.items() if is_derived(table)}

    def source_of(self, column: str) -> str:
        """Return the name that a column has in a file; of further tables, the column is ``table/name``."""
        if column in self.columns:
            return self.columns[column].source or column
        table, _, name = column.partition("/")
        return self.tables[table][name].source or name

    @property
    def sources(self) -> Sequence[str]:
        """Names of the arrays of a file that are stored, those of further tables included."""
        further = [f"{table}/{name}" for table, columns in self.direct.items() for name in columns]
        return [self.source_of(column) for column in (*self.columns, *further)]


def is_derived(columns: Mapping[str, Column]) -> bool:
    """Whether the columns of a table are computed, not read."""
    return any(column.dtype for column in columns.values())


@dataclass(frozen=True, eq=False)
class Head:
    """What an open file, or a group of files, holds, without values.

    Attributes
    ----------
    file
        The file; the first of a group, with the name of the group.
    format
        Name of its format.
    opened
        The open file, for families that look at what is no array; its values are not to be read.
    """

    file: SourceFile
    format: str
    opened: Opened

    @cached_property
    def arrays(self) -> Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and dtype of each array."""
        return {name: (array.shape, array.dtype) for name, array in self.opened.arrays.items()}

    @property
    def facts(self) -> Facts:
        """See `Opened`."""
        return self.opened.facts

    @property
    def problems(self) -> Sequence[Problem]:
        """See `Opened`."""
        return self.opened.problems

    @property
    def left_out(self) -> Mapping[str, str]:
        """See `Opened`."""
        return self.opened.left_out

    def members(self, group: str = "") -> Mapping[str, Member]:
        """See `Opened.members`; asked by families that look at millions of files."""
        return self.opened.members(group)


class Chosen(NamedTuple):
    """Columns that a file has, and what is said of it.

    Attributes
    ----------
    columns
        By their names in the store.
    left_out
        Arrays that are not stored, with the reason.
    notes
        Remarks on the file; the same remark on several is printed once.
    problems
        What is wrong with the file.
    tables
        Columns of further tables, by their names.
    """

    columns: Mapping[str, Column]
    left_out: Mapping[str, str] = {}
    notes: Sequence[str] = ()
    problems: Sequence[Problem] = ()
    tables: Mapping[str, Mapping[str, Column]] = {}


class Cut(NamedTuple):
    """One sample of a file: how many rows it takes from where the last one ended, and its numbers."""

    rows: int
    numbers: Mapping[str, int | float] = {}


class Restored(NamedTuple):
    """A file's arrays and facts, as they are in a store."""

    arrays: Mapping[str, Array]
    facts: Facts


class Family(Options, ABC):
    """A kind of sources, and the stores made of them: a frozen dataclass whose fields are its options.

    Attributes
    ----------
    name
        As stores record it: ``"audio"``.
    summary
        One line for lists of families.
    examples
        Command lines for its help.
    formats
        Formats of its files, by class or by name: ``"hdf5"``, ``"npy"``, ``"npz"``, ``"png"``, ``"jpeg"``,
        and ``"raw"`` for files without a header.
    schema
        What its stores hold.
    batch_size
        Suggested by ``inspect``.
    general
        Whether it takes what no other family takes: it is asked last, and refuses what it cannot read.
    keeps_attributes
        Whether attributes and single values of HDF5 files are stored as they are, and no facts.
    follows_links
        Whether links to folders are followed, and their files called by the names that the links give.

    An option ``columns`` with the values ``"exact"``, ``"union"`` and ``"intersection"`` says what becomes of
    columns that only some files have; without it, they are refused.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    examples: ClassVar[tuple[str, ...]] = ()
    formats: ClassVar[tuple[type[Format] | str, ...]]
    schema: ClassVar[Schema]
    batch_size: ClassVar[int] = 8
    general: ClassVar[bool] = False
    keeps_attributes: ClassVar[bool] = False
    follows_links: ClassVar[bool] = False

    def declines(self, file: SourceFile) -> str:
        """Say why a file is none of the family's by its name, so that it is not opened; empty: it may be."""
        return ""

    def match(self, head: Head) -> Claim:
        """Say whether an open file is one of the family's; by default if it has every column.

        A family is as sure of a file as its format, but of bytes without a header as sure as it says.
        """
        sources = self.schema.sources
        missing = [name for name in sources if name not in head.arrays]
        if missing:
            return no(f"holds no {', '.join(missing)}")
        claim = maybe if head.format == "raw" else sure
        return claim(f"holds {', '.join(sources)}")

    def group(
        self, files: Sequence[SourceFile]
    ) -> Iterable[SourceFile | Group | tuple[SourceFile, str] | Problem | str]:
        """Choose the files and groups of files that are sources; by default every file.

        What else a file needs, `Opened.further` names. Among them may be files that are in no source, each
        with the reason, problems, and remarks for the user. A family that follows links is given files of any
        ending.
        """
        return files

    def choose(self, head: Head) -> Chosen:
        """Say which columns a file has; by default those of the schema.

        Asked in any process, once a file. dtypes of the same column in several files are reconciled: the
        smallest that holds all values exactly.
        """
        problems = [problem for problem in head.problems if problem.dataset in self.schema.sources]
        return Chosen(self.schema.columns, problems=problems, tables=self.schema.direct)

    def plan(self, columns: Mapping[str, Column]) -> Schema:
        """Return the schema of a store with these columns, which all files together have."""
        return replace(self.schema, columns=columns)

    def cut(self, opened: Opened) -> Iterator[Cut]:
        """Divide the rows of a file into samples, in order, where the schema names a table of samples."""
        raise NotImplementedError

    def typical_rows(self, head: Head) -> int:
        """Return how many rows a sample of a file has, about: chunks are laid out for that of the first."""
        return 1

    def memory(self, head: Head) -> int:
        """Return the bytes of memory that `cut` and `rows` take for a file, beside the rows that they read.

        A conversion whose ``--memory`` is less is refused before it reads values. By default 0: some blocks
        of 16 MiB are counted anyway.
        """
        return 0

    def rows(self, opened: Opened, lo: int, hi: int) -> Mapping[str, NDArray[Any]]:
        """Read rows ``lo:hi`` of a file, one array a column; by default slices of the file's arrays."""
        return {column: opened.arrays[self.schema.source_of(column)][lo:hi] for column in self.schema.columns}

    def derive(self, opened: Opened) -> Iterator[tuple[str, Mapping[str, NDArray[Any]]]]:
        """Compute the tables of `Schema.derived` for a file, which is read once for it.

        Yields the name of a table and some rows of all its columns, in their order, as often as it takes.
        """
        raise NotImplementedError

    def restore(self, columns: Mapping[str, Array], facts: Facts) -> Restored:
        """Return a file's arrays from its columns in a store: the inverse of `rows`.

        Columns of further tables are called ``table/name``; those that were derived are not among them.
        """
        return Restored({self.schema.source_of(name): column for name, column in columns.items()}, facts)

    def draw(self, sample: Mapping[str, NDArray[Any]], axes: Axes) -> None:
        """Draw a sample; by default the first column as lines."""
        first = next(iter(self.schema.columns))
        axes.plot(sample[first].reshape(len(sample[first]), -1))
