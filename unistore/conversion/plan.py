"""The plan of a conversion: the final form of every array, and tasks that each write whole shards."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import xxhash

from unistore.conversion.layout import lay_out_table
from unistore.schemas.tables import Field, Table


@dataclass(frozen=True, slots=True)
class ArrayPlan:
    """Final shape, inner chunk, shard and codec of one array; `column` is its name in its table."""

    field: Field
    column: str
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    shard: tuple[int, ...]
    amplification: float
    codec: str = "auto"

    @property
    def is_empty(self) -> bool:
        """Whether the array has no values (an axis of extent 0), and so no shard."""
        return 0 in self.shape


class Piece(NamedTuple):
    """Rows ``lo:hi`` of one source (counted inside the source), at row `at` of the task's block."""

    source: int
    lo: int
    hi: int
    at: int


class ShardTask(NamedTuple):
    """Rows ``lo:hi`` of a table: one shard of every column."""

    table: str
    number: int
    lo: int
    hi: int

    @property
    def id(self) -> str:
        """Name in the journal."""
        return f"{self.table}#{self.number}"


@dataclass(frozen=True)
class TablePlan:
    """One table: its columns, and the rows of each source in source order."""

    name: str
    spilled: bool
    source_rows: tuple[int, ...]
    arrays: tuple[ArrayPlan, ...]

    @cached_property
    def _starts(self) -> array[int]:
        """First row of each source, and the end of the last."""
        return array("q", accumulate(self.source_rows, initial=0))

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return self._starts[-1]

    @property
    def shard_rows(self) -> int:
        """Rows of one shard of every column."""
        return self.arrays[0].shard[0]

    @property
    def row_bytes(self) -> int:
        """Uncompressed bytes of one row over all columns."""
        return sum(array.field.row_bytes for array in self.arrays)

    def tasks(self) -> Iterator[ShardTask]:
        """Tasks of the table in row order; together they cover every row once."""
        for number, lo in enumerate(range(0, self.rows, self.shard_rows)):
            yield ShardTask(self.name, number, lo, min(lo + self.shard_rows, self.rows))

    def pieces(self, lo: int, hi: int) -> Iterator[Piece]:
        """Row ranges of the sources that make up rows ``lo:hi``, in order."""
        starts = self._starts
        source = bisect_right(starts, lo) - 1
        while source < len(self.source_rows) and starts[source] < hi:
            first, last = max(lo, starts[source]), min(hi, starts[source + 1])
            if first < last:
                yield Piece(source, first - starts[source], last - starts[source], first - lo)
            source += 1


def plan_table(table: Table, source_rows: Sequence[int]) -> TablePlan:
    """Plan a table from the rows of each source."""
    counts = tuple(int(count) for count in source_rows)
    rows = sum(counts)
    layouts = lay_out_table(table.fields, rows)
    return TablePlan(
        name=table.name,
        spilled=table.spilled,
        source_rows=counts,
        arrays=tuple(
            ArrayPlan(
                field, table.column(field), (rows, *field.row_shape), lay.chunk, lay.shard, lay.amplification
            )
            for field, lay in zip(table.fields, layouts, strict=True)
        ),
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that decides a store's bytes.

    Attributes
    ----------
    family, sample_table
        As in the store's root attributes.
    sources
        Relative names, in order.
    tables
        Tables filled by tasks.
    index
        Index arrays, which are written at the end; only their form, not their values.
    options
        The converter's options that decide the content.
    versions
        Versions of the libraries that encode.
    """

    family: str
    sample_table: str
    sources: tuple[str, ...]
    tables: tuple[TablePlan, ...]
    index: tuple[ArrayPlan, ...]
    options: Mapping[str, Any]
    versions: Mapping[str, str]

    def tasks(self) -> list[ShardTask]:
        """Every task of every table, in order."""
        return [task for table in self.tables for task in table.tasks()]

    def table(self, name: str) -> TablePlan:
        """Table by name."""
        return next(table for table in self.tables if table.name == name)

    def task_bytes(self, task: ShardTask) -> int:
        """Uncompressed bytes of a task's rows."""
        return (task.hi - task.lo) * self.table(task.table).row_bytes

    def arrays(self) -> list[ArrayPlan]:
        """Every array of the store."""
        return [array for table in self.tables for array in table.arrays] + list(self.index)

    @property
    def raw_bytes(self) -> int:
        """Uncompressed bytes of every array."""
        return sum(array.shape[0] * array.field.row_bytes for array in self.arrays())

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, the same on every machine."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self), sort_keys=True))
        return plain

    @property
    def digest(self) -> str:
        """Digest of the plan as JSON."""
        return json_digest(self.to_json())


def json_digest(value: Any) -> str:
    """xxh3-128 of a value's canonical JSON."""
    return xxhash.xxh3_128_hexdigest(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())
