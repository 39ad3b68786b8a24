"""Describe what a store of a family holds: its tables, and of each its columns."""

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
    kinds
        Allowed kinds of dtypes, as NumPy's letters: ``"iuf"`` for integers and floats. ``"S"`` of a ragged
        column whose name ends in ``_ragged``: texts or bytes, kept as bytes, such as pictures in PNG.
    axes
        Names of the axes after the first: ``("channel",)``. None: any number of axes, which are numbered.
    unit
        Unit of the values; None: the file's.
    description
        One sentence.
    source
        Name of the array, or of the fact, in the file; empty: that of the column, without the ending of a
        ragged one.
    field
        Which field of an array of records it is; empty: the array is no such array.
    least
        Smallest value that is allowed.
    statistics
        Whether mean, standard deviation, minimum and maximum are computed while converting.
    spatial
        Whether the axes are depth, height and width: each row is a volume. Files may differ in extent; the
        store pads rows to the largest, ``<table>/extent`` says how far each reaches, samples are volumes.
    ragged
        Whether rows have any number of values, or are texts. The name of a column of texts ends in ``_utf8``,
        that of any other ``_ragged``; samples have it without. Arrays are those of `OpenFile.of_any_length`.
    classes
        Names of the values, which are stored as numbers: of the first name as 0. The file has names, or
        numbers. The array records them (attribute ``classes``). A ragged column has no classes.
    codec
        Codec that ``--codec auto`` takes: ``"lz4 bitshuffle 2"`` (shuffled bits of elements of 2 bytes) or
        ``"none"``. Empty: the smallest of a trial, which is not always the fastest to decode.
    dtype, shape
        Of a column that `Family.derive` computes: its dtype, and the shape of a row. An empty dtype: the
        column is an array of the file. In `Schema.columns`, the dtype that `Family.rows` gives, whatever the
        files have.
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
        Numbers of each sample, by name; ragged ones are texts, or lists of numbers. `Family.cut` gives them.
    per_source
        The same of each file, taken from its facts.
    tables
        Further tables, by name: the columns of each. A file has any number of rows in each of them, and
        ``sources/<table>/offsets`` says which. If its columns have a `Column.dtype`, `Family.derive` computes
        them; else they are arrays of the file, which are stored as they are.
    per
        Those of `tables` whose rows belong to samples, too: ``{"notes": "sample"}``. `Cut.tables` says how
        many rows each sample has. ``<samples>/<table>/offsets`` divides them, and samples have the columns as
        ``notes.text``.
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
        """Name of the table with a row for each sample."""
        return self.samples or self.table

    @property
    def of_samples(self) -> Sequence[str]:
        """Those of `tables` whose rows belong to samples."""
        return [table for table in self.tables if self.per.get(table) == "sample"]

    @property
    def is_cut(self) -> bool:
        """Whether `Family.cut` says which rows a sample has."""
        return bool(self.samples or self.of_samples)

    @property
    def every_table(self) -> Mapping[str, Mapping[str, Column]]:
        """Columns of each table, the main one first."""
        return {self.table: self.columns, **self.tables}

    @property
    def ragged(self) -> Mapping[str, tuple[str, str]]:
        """Table and name of each column whose rows are texts or have any number of values, by its path."""
        return {
            f"{table}/{name}": (table, name)
            for table, columns in self.every_table.items()
            for name, column in columns.items()
            if column.ragged
        }

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

    def column_of(self, path: str) -> tuple[str, Column]:
        """Return the name and column of a path: that of a column, or ``table/name`` of further tables."""
        if path in self.columns:
            return path, self.columns[path]
        table, _, name = path.partition("/")
        known = self.tables.get(table, {}).get(name)
        return (path, Column()) if known is None else (name, known)

    def source_of(self, path: str) -> str:
        """Return the name that a column has in a file. Of further tables, the path is ``table/name``."""
        name, column = self.column_of(path)
        return column.source or bare_name(name)

    def field_of(self, path: str) -> str:
        """Return the field of records that a column has in a file, empty if the array has none."""
        return self.column_of(path)[1].field

    @property
    def sources(self) -> Sequence[str]:
        """Names of the arrays of a file that are stored, those of further tables included."""
        tables = (self.columns, *self.direct.values())
        return [array_of(name, column) for columns in tables for name, column in columns.items()]

    @property
    def texts(self) -> AbstractSet[str]:
        """Those of `sources` that may be texts, or have any number of values in a row."""
        tables = (self.columns, *self.direct.values())
        columns = chain.from_iterable(columns.items() for columns in tables)
        return {array_of(name, column) for name, column in columns if column.ragged or column.classes}


def array_of(name: str, column: Column) -> str:
    """Return the name of a column's array in the file, or of its fact."""
    return column.source or (bare_name(name) if column.ragged else name)


def bare_name(name: str) -> str:
    """Return the name of a ragged column without its ending."""
    from unistore.schemas.ragged import RAGGED_SUFFIX, TEXT_SUFFIX

    return name.removesuffix(TEXT_SUFFIX).removesuffix(RAGGED_SUFFIX)


def is_derived(columns: Mapping[str, Column]) -> bool:
    """Whether the columns of a table are computed, not read."""
    return any(column.dtype for column in columns.values())
