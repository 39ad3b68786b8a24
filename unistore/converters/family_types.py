"""What the methods of a `Family` get and return: file sets, columns, samples, files to open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:  # numpy takes a fifth of a second, and help needs none
    from contextlib import AbstractContextManager
    from pathlib import Path

    from unistore.converters.array import Array
    from unistore.converters.claims import Claim
    from unistore.converters.common.columns import Merged
    from unistore.converters.common.exported import File
    from unistore.converters.opened import Format, Metadata, OpenFile, SourceFile
    from unistore.converters.schema import Column
    from unistore.errors import Problem
    from unistore.schemas.indices import StoreView
    from unistore.schemas.tables import Field, IndexValues
    from unistore.system.types import Int64s

# Yields the files of a store. Further parameters, which have defaults, are options of the export
Exporter: TypeAlias = "Callable[..., Iterator[File]]"
# Arrays that a store lacks or has in another form, by path; None: it has one too many
ArraysOfStore: TypeAlias = "Mapping[str, tuple[Field, IndexValues] | None]"


class Group(NamedTuple):
    """Files that form one source (a file set).

    Attributes
    ----------
    name : str
        Name of the source in messages and stores.
    files : tuple of SourceFile
        The files. The first one gives the source its path.
    arrays : tuple of str, default ()
        Name for the only array of each file. Empty: the files name their arrays.
    roles : tuple of str, default ()
        Role of each file in the source: ``("image", "mask")``. Empty: all files have the same role.
    unit : str, default ""
        Whole that the source is a part of, and that no split divides, such as the recording of a frame.
        Empty: the source is a whole.
    detail : default None
        Anything else that the family learned from the names. It must pickle.
    """

    name: str
    files: tuple[SourceFile, ...]
    arrays: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    unit: str = ""
    detail: Any = None


@dataclass(kw_only=True, eq=False)
class Grouping:
    """How files form sources: the result of `Family.group`.

    Attributes
    ----------
    sources : list of SourceFile or Group
        The sources. Files in them are not skipped.
    left_out : list of (SourceFile, str)
        Files that belong to no source, each with the reason.
    problems : list of Problem
        Problems of names, or of files that do not fit together.
    notes : list of str
        Notes for the user.
    """

    sources: list[SourceFile | Group] = field(default_factory=list)
    left_out: list[tuple[SourceFile, str]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Chosen(NamedTuple):
    """The columns of a file: the result of `Family.choose`.

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
    metadata
        What the family says of the file, beside the metadata of its format: `Schema.per_source` and
        `Family.restore` find them among these.
    splits
        Splits of the rows of the main table, each with the number of successive rows that it has, if each row
        is a sample. Empty: all are in the split that the name of the source says, if it does.
    """

    columns: Mapping[str, Column]
    left_out: Mapping[str, str] = {}
    notes: Sequence[str] = ()
    problems: Sequence[Problem] = ()
    tables: Mapping[str, Mapping[str, Column]] = {}
    metadata: Mapping[str, Any] = {}
    splits: Sequence[tuple[str, int]] = ()


class Cut(NamedTuple):
    """One sample of a file: an item of `Family.cut`.

    Attributes
    ----------
    rows : int
        Number of rows, beginning after the previous sample. 1 if each row is a sample.
    numbers : mapping
        One value for each column of `Schema.per_sample`, by name: a Python or NumPy number. It is stored
        as int64 if the column allows ``"i"``, otherwise as uint64 for ``"u"``, float64 for ``"f"`` and
        bool for ``"b"``. For a column with classes, the name of a class or its number; for a name that
        ends with ``_utf8``, a text; for one that ends with ``_ragged``, a list of numbers.
    tables : mapping of str to int
        Number of rows of each table of `Schema.per` that belongs to samples, beginning after the previous
        sample.
    """

    rows: int
    numbers: Mapping[str, Any] = {}
    tables: Mapping[str, int] = {}


class Restored(NamedTuple):
    """Arrays and metadata of a file, restored from a store.

    Attributes
    ----------
    arrays : mapping of str to Array
        Arrays by their name in the file.
    metadata : mapping
        Metadata of the file.
    """

    arrays: Mapping[str, Array]
    metadata: Metadata


class Openable(Protocol):
    """A file of a source. It can be opened any number of times, in any process."""

    @property
    def format(self) -> Format:
        """Format of the file. In a scan, it is recognised by the first bytes.

        Raises
        ------
        InputError
            If no format of the family recognises the file.
        """
        ...

    def recognised(self) -> Claim:
        """Return the `Claim` of the format for the first bytes of the file. Only in a scan."""
        ...

    @property
    def file(self) -> SourceFile:
        """The file. Use it to make problems that name it."""
        ...

    def followed_by(self, parts: Sequence[Path], known: Any = None) -> Openable:
        """Return the same file with files that continue it, as slices continue a volume.

        Parameters
        ----------
        parts : sequence of Path
            The files that follow.
        known : default None
            Result of an earlier look of the format at all of them; see `SourceFile.known`.
        """
        ...

    def open(self) -> AbstractContextManager[OpenFile]:
        """Open the file, as a context manager. Errors of the format become problems of the file."""
        ...


class Alike(Protocol):
    """How columns of samples are joined, so that several stores equal one store of all sources."""

    def arrays(self, stores: Sequence[StoreView]) -> Sequence[ArraysOfStore]:
        """Return the arrays of each store that differ in the joined store.

        Returns
        -------
        sequence of mapping
            For each store, its changed arrays by path: field and values, or None if the joined store does
            not have the array.
        """
        ...

    def column(self, field: Field, form: Merged) -> Field:
        """Return the field of a column, given the form that all its sources merge into."""
        ...

    def missing(self, store: StoreView, path: str) -> Int64s:
        """Return the ranges of rows of a column of samples without values, (ranges, 2) int64."""
        ...
