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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.paths import is_inside
from unistore.converters.options import Options, option
from unistore.errors import InputError, Problem, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "API",
    "Array",
    "Claim",
    "Column",
    "Cut",
    "Facts",
    "Family",
    "Format",
    "Head",
    "InputError",
    "Opened",
    "Problem",
    "Restored",
    "Schema",
    "SourceFile",
    "maybe",
    "no",
    "option",
    "sure",
]

API = 1
"""Version of this interface; a package of another one is left out with a line that says so."""

Facts: TypeAlias = Mapping[str, Any]
"""What a file says beside its arrays, as JSON values: a sample rate, a unit, a header."""

HEAD_BYTES = 4096


class Claim(NamedTuple):
    """Whether a file is one of a format's or a family's, and why; made by `sure`, `maybe` and `no`."""

    certainty: Literal["sure", "maybe", "no"]
    reason: str


def sure(reason: str) -> Claim:
    """Claim a file: ``sure("begins with RIFF")``."""
    return Claim("sure", reason)


def maybe(reason: str) -> Claim:
    """Claim a file only if the user names the family: ``maybe("is headerless")``."""
    return Claim("maybe", reason)


def no(reason: str) -> Claim:
    """Leave a file to others: ``no("has 2 axes, a volume 3")``."""
    return Claim("no", reason)


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
    """

    path: Path
    name: str
    roots: tuple[Path, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.path.stat().st_size

    def head(self, count: int = HEAD_BYTES) -> bytes:
        """Return its first `count` bytes, or all if it has fewer."""
        with self.path.open("rb") as file:
            return file.read(count)

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


@dataclass(frozen=True, eq=False)
class Array:
    """An array of an open file; values are read when it is sliced.

    Attributes
    ----------
    values
        Anything with ``shape``, ``dtype`` and slices of axis 0: a NumPy array, a memory map, an HDF5 dataset.
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

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return np.asarray(self.values[rows])

    def __len__(self) -> int:
        return self.shape[0]


@dataclass(frozen=True)
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
    """

    arrays: Mapping[str, Array]
    facts: Facts = field(default_factory=dict)
    further: tuple[SourceFile, ...] = ()
    forward_only: bool = False
    memory: int = 0


class Format(ABC):
    """A kind of file, for every family that can use its arrays. An instance has no state.

    Attributes
    ----------
    name
        As stores record it: ``"wav"``.
    suffixes
        Lower-case endings of its files, with the dot.
    library
        The library whose reading is the reference for ``verify --against``: ``"wave"``; empty where the
        format's own code reads.
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]
    library: ClassVar[str] = ""

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
        Names of the axes after the first: ``("channel",)``.
    unit
        Unit of the values; None: the file's.
    description
        One sentence.
    source
        Name of the array, or of the fact, in the file; empty: that of the column.
    least
        Smallest value that is allowed.
    statistics
        Whether mean, standard deviation, minimum and maximum are computed while converting.
    """

    kinds: str = "biuf"
    axes: tuple[str, ...] = ()
    unit: str | None = None
    description: str = ""
    source: str = ""
    least: int | None = None
    statistics: bool = False


@dataclass(frozen=True, kw_only=True)
class Schema:
    """What a store of a family holds. Arrays, their checks and the kind of samples follow from it.

    Attributes
    ----------
    table
        Name of the table that rows of the files go into: ``"frames"``.
    columns
        Its columns by name; the first one decides how many rows a file has.
    samples
        Name of the table of samples, each a range of rows: ``"clips"``. Empty: each row is a sample.
    per_sample
        Numbers of each sample, by name.
    per_source
        Numbers of each file, taken from its facts, by name.
    """

    table: str
    columns: Mapping[str, Column]
    samples: str = ""
    per_sample: Mapping[str, Column] = field(default_factory=dict)
    per_source: Mapping[str, Column] = field(default_factory=dict)

    def source_of(self, column: str) -> str:
        """Return the name that a column has in a file."""
        return self.columns[column].source or column


class Head(NamedTuple):
    """What an open file holds, without values: shape and dtype of each array, and its facts."""

    file: SourceFile
    format: str
    arrays: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
    facts: Facts


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
        Formats of its files, by class or by name (``"hdf5"``, ``"npy"``, ``"npz"``).
    schema
        What its stores hold.
    batch_size
        Suggested by ``inspect``.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    examples: ClassVar[tuple[str, ...]] = ()
    formats: ClassVar[tuple[type[Format] | str, ...]]
    schema: ClassVar[Schema]
    batch_size: ClassVar[int] = 8

    def match(self, head: Head) -> Claim:
        """Say whether an open file is one of the family's; by default if it has every column."""
        missing = [
            self.schema.source_of(column)
            for column in self.schema.columns
            if self.schema.source_of(column) not in head.arrays
        ]
        if missing:
            return no(f"holds no {', '.join(missing)}")
        return sure(f"holds {', '.join(map(self.schema.source_of, self.schema.columns))}")

    def group(self, files: Sequence[SourceFile]) -> Iterable[SourceFile]:
        """Choose the files that are sources; by default all. What else they need, `Opened.further` names."""
        return files

    def cut(self, opened: Opened) -> Iterator[Cut]:
        """Divide the rows of a file into samples, in order, where the schema names a table of samples."""
        raise NotImplementedError

    def typical_rows(self, heads: Sequence[Head]) -> int:
        """Return how many rows a sample has, about: chunks are laid out for it."""
        return 1

    def rows(self, opened: Opened, lo: int, hi: int) -> Mapping[str, NDArray[Any]]:
        """Read rows ``lo:hi`` of a file, one array a column; by default slices of the file's arrays."""
        return {column: opened.arrays[self.schema.source_of(column)][lo:hi] for column in self.schema.columns}

    def restore(self, columns: Mapping[str, Array], facts: Facts) -> Restored:
        """Return a file's arrays from its columns in a store: the inverse of `rows`."""
        return Restored({self.schema.source_of(name): column for name, column in columns.items()}, facts)

    def draw(self, sample: Mapping[str, NDArray[Any]], axes: Axes) -> None:
        """Draw a sample; by default the first column as lines."""
        first = next(iter(self.schema.columns))
        axes.plot(sample[first].reshape(len(sample[first]), -1))
