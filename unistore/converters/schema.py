"""The content of a family's stores: tables and their columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # numpy takes a fifth of a second, and help needs none
    from unistore.system.types import Shape

MOST_CLASSES = 256  # Their numbers are bytes


@dataclass(frozen=True, kw_only=True)
class Column:
    """What an array of a store must be.

    Attributes
    ----------
    kinds : str, default "biuf"
        Allowed kinds of dtypes, as NumPy's letters: ``"iuf"`` for integers and floats. ``"S"``, for a
        column of variable length whose name ends with ``_ragged``: texts or bytes, stored as bytes, such
        as PNG images.
    axes : tuple of str or None, default ()
        Names of the axes after the first: ``("channel",)``. None: any number of axes, which are numbered.
    unit : str, optional
        Unit of the values. None: the unit that the file states.
    description : str, default ""
        One sentence.
    source : str, default ""
        Name of the array, or of the metadata, in the file. Empty: the name of the column, without
        ``_utf8`` or ``_ragged``.
    field : str, default ""
        Field of an array of records. Empty: the array is not an array of records.
    least : int, optional
        Smallest allowed value. None: any value.
    statistics : bool, default False
        Whether to compute mean, standard deviation, minimum and maximum while converting.
    spatial : bool, default False
        Whether the axes are depth, height and width, so that each row is a volume and samples are
        volumes. Files may differ in extent: the store pads rows to the largest, and ``<table>/extent``
        has the extent of each.
    ragged : bool, default False
        Whether rows have any number of values, or are texts. The name of a column of texts must end with
        ``_utf8``, of any other with ``_ragged``; keys of samples do not have the ending. Arrays come from
        `OpenFile.of_any_length`.
    classes : tuple of str, default ()
        Names of the values, which are stored as numbers from 0. The file may have names or numbers. The array
        records the names in its attribute ``classes``. Not for columns of variable length.
    codec : str, default ""
        Codec for ``--codec auto``: ``"lz4 bitshuffle 2"`` (shuffled bits of elements of 2 bytes) or
        ``"none"``. Empty: the smallest result of a trial, which may not be the fastest to decode.
    dtype : str, default ""
        For a column that `Family.derive` computes: its dtype. In `Schema.columns`: the dtype that
        `Family.rows` returns, whatever the files have. Empty: the dtype of the array in the file.
    shape : tuple of int, default ()
        For a column that `Family.derive` computes: shape of a row.

    Examples
    --------
    >>> echoes = Column(kinds="f", axes=("beam",), unit="dB", description="Echoes")  # doctest: +SKIP
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
    ragged: bool = False
    classes: tuple[str, ...] = ()
    codec: str = ""
    dtype: str = ""
    shape: Shape = ()


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The content of a family's stores. Arrays, their checks and the default sample kind follow from it.

    Attributes
    ----------
    table : str
        Name of the main table, which gets the rows of the files: ``"frames"``.
    columns : mapping of str to Column
        Columns of the main table by name. The first one determines the number of rows of a file. Columns that
        differ from file to file are named by `Family.choose`.
    samples : str, default ""
        Name of the table of samples, if each sample is a range of rows: ``"clips"``. Empty: each row is a
        sample.
    per_sample : mapping of str to Column
        Values of each sample, by name. Columns of variable length are texts, or lists of numbers.
        `Family.cut` returns them.
    per_source : mapping of str to Column
        Values of each file, by name, taken from its metadata.
    tables : mapping of str to mapping of str to Column
        Columns of further tables. A file may have any number of rows in each, which
        ``sources/<table>/offsets`` records. If the columns have a `Column.dtype`, `Family.derive`
        computes them; otherwise they are arrays of the file.
    per : mapping of str to {"source", "sample"}
        Tables of `tables` whose rows also belong to samples: ``{"notes": "sample"}``. `Cut.tables` states
        the number of rows of each sample, and ``<samples>/<table>/offsets`` records it. Samples have the
        columns as ``notes.text``.

    Examples
    --------
    >>> schema = Schema(  # doctest: +SKIP
    ...     table="pings",
    ...     columns={"echoes": Column(kinds="f", axes=("beam",), unit="dB")},
    ...     samples="tracks",
    ...     per_source={"rate": Column(kinds="f", unit="Hz")},
    ... )
    """

    table: str
    columns: Mapping[str, Column] = field(default_factory=dict)
    samples: str = ""
    per_sample: Mapping[str, Column] = field(default_factory=dict)
    per_source: Mapping[str, Column] = field(default_factory=dict)
    tables: Mapping[str, Mapping[str, Column]] = field(default_factory=dict)
    per: Mapping[str, Literal["source", "sample"]] = field(default_factory=dict)

    @property
    def sample_table(self) -> str:
        """Name of the table with one row per sample."""
        return self.samples or self.table

    @property
    def of_samples(self) -> Sequence[str]:
        """Names of the further tables whose rows belong to samples."""
        return [table for table in self.tables if self.per.get(table) == "sample"]

    @property
    def is_cut(self) -> bool:
        """Whether `Family.cut` divides rows into samples."""
        return bool(self.samples or self.of_samples)

    @property
    def every_table(self) -> Mapping[str, Mapping[str, Column]]:
        """Columns of each table, the main table first."""
        return {self.table: self.columns, **self.tables}

    @property
    def ragged(self) -> Mapping[str, tuple[str, str]]:
        """Table and name of each column of variable length, by path."""
        return {
            f"{table}/{name}": (table, name)
            for table, columns in self.every_table.items()
            for name, column in columns.items()
            if column.ragged
        }

    @property
    def spatial(self) -> Sequence[str]:
        """Names of the columns whose rows are volumes."""
        return [name for name, column in self.columns.items() if column.spatial]

    @property
    def direct(self) -> Mapping[str, Mapping[str, Column]]:
        """Further tables whose columns are arrays of the file."""
        return {name: table for name, table in self.tables.items() if not is_derived(table)}

    @property
    def derived(self) -> Mapping[str, Mapping[str, Column]]:
        """Further tables that `Family.derive` computes."""
        return {name: table for name, table in self.tables.items() if is_derived(table)}

    def column_of(self, path: str) -> tuple[str, Column]:
        """Return the name and the column of a path: a column of the main table, or ``table/name``."""
        if path in self.columns:
            return path, self.columns[path]
        table, _, name = path.partition("/")
        known = self.tables.get(table, {}).get(name)
        return (path, Column()) if known is None else (name, known)

    def source_of(self, path: str) -> str:
        """Return the name of a column in the file. For further tables, the path is ``table/name``."""
        name, column = self.column_of(path)
        return column.source or bare_name(name)

    def field_of(self, path: str) -> str:
        """Return the field of records of a column. Empty: it is not a field."""
        return self.column_of(path)[1].field

    @property
    def sources(self) -> Sequence[str]:
        """Names of the stored arrays of a file, including those of further tables."""
        tables = (self.columns, *self.direct.values())
        return [array_of(name, column) for columns in tables for name, column in columns.items()]

    @property
    def texts(self) -> AbstractSet[str]:
        """Names of `sources` that may be texts, or have any number of values in a row."""
        tables = (self.columns, *self.direct.values())
        columns = chain.from_iterable(columns.items() for columns in tables)
        return {array_of(name, column) for name, column in columns if column.ragged or column.classes}


def array_of(name: str, column: Column) -> str:
    """Return the name of the array, or of the metadata, of a column in the file."""
    return column.source or (bare_name(name) if column.ragged else name)


def bare_name(name: str) -> str:
    """Return the name of a column without the ending ``_utf8`` or ``_ragged``."""
    from unistore.schemas.ragged import RAGGED_SUFFIX, TEXT_SUFFIX

    return name.removesuffix(TEXT_SUFFIX).removesuffix(RAGGED_SUFFIX)


def is_derived(columns: Mapping[str, Column]) -> bool:
    """Return whether the columns of a table are computed."""
    return any(column.dtype for column in columns.values())
