"""Describe what a store of a family holds: its tables, and of each its columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # numpy takes a fifth of a second, and help needs none
    from unistore.system.hints import Shape


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
    ragged
        Whether rows are texts or have any number of values: the array is one of `Opened.of_any_length`, and
        the name ends in ``_utf8`` or ``_ragged``.
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
    def ragged(self) -> Sequence[str]:
        """Those of `columns` whose rows are texts or have any number of values."""
        return [name for name, column in self.columns.items() if column.ragged]

    def is_ragged(self, table: str) -> bool:
        """Return whether a table holds the values of such a column."""
        return table.startswith(f"{self.table}/") and table.removeprefix(f"{self.table}/") in self.ragged

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
        """Return the name that a column has in a file. Of further tables, the column is ``table/name``."""
        if column in self.columns:
            return self.columns[column].source or column
        table, _, name = column.partition("/")
        known = self.tables.get(table, {}).get(name)
        if known is None:
            return column
        return known.source or name

    def field_of(self, column: str) -> str:
        """Return the field of records that a column has in a file, empty if the array has none."""
        table, _, name = column.partition("/")
        known = self.columns.get(column) or self.tables.get(table, {}).get(name)
        return "" if known is None else known.field

    @property
    def sources(self) -> Sequence[str]:
        """Names of the arrays of a file that are stored, those of further tables included."""
        names = list(self.columns)
        for table, columns in self.direct.items():
            names += [f"{table}/{name}" for name in columns]
        return list(map(self.source_of, names))


def is_derived(columns: Mapping[str, Column]) -> bool:
    """Whether the columns of a table are computed, not read."""
    return any(column.dtype for column in columns.values())
