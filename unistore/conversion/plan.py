"""The plan of a conversion: the final form of every array, and tasks that each write whole shards."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import accumulate, chain, islice
from typing import Any, NamedTuple

import numpy as np
import xxhash

from unistore.conversion.layout import lay_out_table
from unistore.schemas.tables import Field, Table
from unistore.system.packed import Items

_BLOCK = 1024
"""Items of a long sequence that are JSON text at once."""


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


class Pieces(Items[Piece]):
    """Pieces that make up rows ``lo:hi`` of a table, in order.

    Parameters
    ----------
    starts
        First row of each source of the table, and the end of the last.
    lo, hi
        Rows of the table.

    Attributes
    ----------
    sources
        Source of each piece.
    """

    def __init__(self, starts: array[int], lo: int, hi: int) -> None:
        first, last = bisect_right(starts, lo) - 1, bisect_left(starts, hi)
        bounds = np.array(starts[first : last + 1], np.int64)
        numbers = np.flatnonzero(np.diff(bounds)) if lo < hi else np.zeros(0, np.int64)
        self.sources = array("q", (numbers + first).tobytes())
        self._starts = array("q", bounds[numbers].tobytes())
        self._lo, self._hi = lo, hi

    def __len__(self) -> int:
        return len(self.sources)

    def _item(self, number: int) -> Piece:
        start = self._starts[number]
        end = self._starts[number + 1] if number + 1 < len(self) else self._hi
        lo = max(start, self._lo)
        return Piece(self.sources[number], lo - start, end - start, lo - self._lo)


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
    source_rows: Sequence[int]
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

    def pieces(self, lo: int, hi: int) -> Pieces:
        """Row ranges of the sources that make up rows ``lo:hi``, in order."""
        return Pieces(self._starts, lo, hi)


def plan_table(table: Table, source_rows: Iterable[int]) -> TablePlan:
    """Plan a table from the rows of each source."""
    counts = array("q", source_rows)
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
    sources: Sequence[str]
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
        plain = self._members
        for described in plain["tables"]:
            described["source_rows"] = list(described["source_rows"])
        return {**plain, "sources": list(self.sources)}

    @property
    def digest(self) -> str:
        """Digest of the plan as JSON."""
        return long_json_digest(self._members)

    @property
    def _members(self) -> dict[str, Any]:
        """Plain JSON values, but for sequences with an item for each source, which are those of the plan."""
        bare = replace(
            self, sources=(), tables=tuple(replace(table, source_rows=()) for table in self.tables)
        )
        plain: dict[str, Any] = json.loads(json.dumps(asdict(bare), sort_keys=True))
        for table, described in zip(self.tables, plain["tables"], strict=True):
            described["source_rows"] = table.source_rows
        plain["sources"] = self.sources
        return plain


def json_digest(value: Any) -> str:
    """xxh3-128 of a value's canonical JSON."""
    return xxhash.xxh3_128_hexdigest(_canonical(value).encode())


def long_json_digest(value: Any) -> str:
    """`json_digest` of a value whose long sequences are no lists: their text is made in blocks."""
    digest = xxhash.xxh3_128()
    for text in _canonical_parts(value):
        digest.update(text.encode())
    return digest.hexdigest()


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _canonical_parts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        parts = ((f"{_canonical(key)}:", _canonical_parts(value[key])) for key in sorted(value))
        yield from _joined("{}", (chain([key], of) for key, of in parts))
    elif isinstance(value, list):
        yield from _joined("[]", map(_canonical_parts, value))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        items = iter(value)
        blocks = iter(lambda: list(islice(items, _BLOCK)), [])
        yield from _joined("[]", ([_canonical(block)[1:-1]] for block in blocks))
    else:
        yield _canonical(value)


def _joined(brackets: str, items: Iterable[Iterable[str]]) -> Iterator[str]:
    yield brackets[0]
    for number, item in enumerate(items):
        yield "," * (number > 0)
        yield from item
    yield brackets[1]
