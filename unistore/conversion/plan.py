"""The plan of a conversion: the final form of every array, and tasks that each write whole shards."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from dataclasses import field as dataclass_field
from functools import cache, cached_property
from importlib.metadata import version
from itertools import accumulate, chain
from math import prod
from typing import Any, NamedTuple

import numpy as np
import xxhash

from unistore.schemas.array_specs import ArraySpec
from unistore.schemas.tables import Field, Table
from unistore.system.packed import Items
from unistore.system.types import AnyArray, JsonObject, Shape

# Chunk and shard shapes from shape, dtype and access pattern.
#
# A chunk holds about what one sample needs, 16–256 KiB uncompressed; a shard holds many chunks and is the
# unit of writing. All columns of a table have the same rows in each shard, so that one task reads each
# source block once and writes whole shards.

KIB = 1 << 10
MIB = 1 << 20

# Below this the cost of a chunk (index, checksum, decoder call) outweighs its bytes
SMALLEST_CHUNK = 16 * KIB
# Bytes of a chunk of rows that samples read one at a time. Measured with rows of 64 to 1,024 bytes: a
# random row costs the same from chunks of 4 to 32 KiB (9 µs), three times that from 64 KiB; blocks of rows
# are read three to four times as fast from 32 as from 4 KiB.
ROW_CHUNK = 32 * KIB
LARGEST_CHUNK = 256 * KIB
LARGEST_ROW = 4 * MIB  # Rows above this are split along their leading axes
LARGE = 32 * MIB  # Rows of more bytes are read some planes at a time, if the converter can
PLANES_BYTES = 16 * MIB  # Bytes of planes read at a time; at least one layer of chunks
SHARD = 128 * MIB  # Uncompressed bytes of one shard row over all columns of a table: the memory of one task


def chunk_shape(field: Field) -> Shape:
    """Return the inner chunk shape of a field, axis 0 first."""
    if field.tile is not None:
        tile = [min(t, max(1, e)) for t, e in zip(field.tile, field.row_shape, strict=True)]
        return (field.run, *tile)
    row_bytes = max(1, field.row_bytes)
    if row_bytes > LARGEST_ROW:
        return (1, *_split_row(field.row_shape, row_bytes))
    if field.run <= 1:
        rows = ROW_CHUNK // row_bytes
    else:
        least = SMALLEST_CHUNK // row_bytes
        rows = min(max(field.run // 2, least), LARGEST_CHUNK // row_bytes)
    return (_power_of_two(rows), *(max(1, extent) for extent in field.row_shape))


def amplification(field: Field, chunk: Sequence[int]) -> float:
    """Return bytes decoded over bytes needed to read one sample, averaged over positions."""
    # A run of n rows in chunks of c rows touches (n + c − 1)/c chunks on average. A box of one tile a side,
    # placed anywhere, touches 2 − 1/t tiles an axis of t cells
    if field.tile is None:
        return (field.run + chunk[0] - 1) / field.run
    factor = 1.0
    for tile, extent in zip(chunk[1:], field.row_shape, strict=True):
        factor *= 1.0 if tile >= extent else 2 - 1 / tile
    return factor


def _split_row(shape: Shape, row_bytes: int) -> Shape:
    # Pieces of at most 1 MiB, contiguous in the row
    chunk = list(shape)
    for axis, extent in enumerate(shape):
        parts = min(extent, -(-row_bytes // MIB))
        chunk[axis] = -(-extent // parts)
        row_bytes = -(-row_bytes // parts)
        if row_bytes <= MIB:
            break
    return tuple(chunk)


def _power_of_two(rows: int) -> int:
    return 1 << (max(1, rows).bit_length() - 1)


def _round_up(extent: int, step: int) -> int:
    return max(step, -(-extent // step) * step)


@dataclass(frozen=True, slots=True)
class ArrayPlan:
    """Final shape, inner chunk, shard and codec of one array. `column` is its name in its table."""

    field: Field
    column: str
    shape: Shape
    chunk: Shape
    shard: Shape
    amplification: float
    codec: str = "auto"

    @property
    def is_empty(self) -> bool:
        """Return whether the array has no values (an axis of extent 0), and so no shard."""
        return 0 in self.shape

    def blank(self, *rows: int) -> AnyArray:
        """Return a block of fill values, of these extents along the first axes."""
        shape = (*rows, *self.shape[len(rows) :])
        if self.field.fill == 0:  # pages of zeros are touched by whoever writes them
            return np.zeros(shape, self.field.dtype)
        return np.full(shape, self.field.fill, self.field.dtype)

    @property
    def plane_bytes(self) -> int:
        """Return bytes of one plane along axis 1."""
        values = max(1, prod(self.shape[2:]))
        return values * np.dtype(self.field.dtype).itemsize

    @property
    def planes_at_once(self) -> int:
        """Return planes (along axis 1) that are read at a time: whole layers of chunks."""
        layer = self.chunk[1]
        return layer * max(1, PLANES_BYTES // (layer * self.plane_bytes))


class Piece(NamedTuple):
    """Rows ``lo:hi`` of one source (counted inside the source), at row `at` of the task's block."""

    source: int
    lo: int
    hi: int
    at: int


class Pieces(Items[Piece]):
    """Pieces that make up rows ``lo:hi`` of a table, in order. `sources` has the source of each."""

    def __init__(
        self,
        starts: array[int],  # first row of each source of the table, and the end of the last
        # rows of the table
        lo: int,
        hi: int,
    ) -> None:
        first = bisect_right(starts, lo) - 1
        last = bisect_left(starts, hi)
        bounds = np.array(starts[first : last + 1], np.int64)
        numbers = np.flatnonzero(np.diff(bounds)) if lo < hi else np.zeros(0, np.int64)
        self.sources = array("q", (numbers + first).tobytes())
        self._starts = array("q", bounds[numbers].tobytes())
        self._lo = lo
        self._hi = hi

    def __len__(self) -> int:
        return len(self.sources)

    def _item(self, number: int) -> Piece:
        start = self._starts[number]
        end = self._hi
        if number + 1 < len(self):
            end = self._starts[number + 1]
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
        """Return the name in the journal."""
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
        return array("q", accumulate(self.source_rows, initial=0))

    @property
    def rows(self) -> int:
        """Return rows of the table."""
        return self._starts[-1]

    @property
    def shard_rows(self) -> int:
        """Return rows of one shard of every column."""
        return self.arrays[0].shard[0]

    @property
    def row_bytes(self) -> int:
        """Return the uncompressed bytes of one row over all columns."""
        return sum(array.field.row_bytes for array in self.arrays)

    @property
    def has_planes(self) -> bool:
        """Return whether rows are so large that they are read some planes at a time, if the converter can."""
        if self.spilled or self.row_bytes <= LARGE:
            return False
        return all(
            len(array.shape) > 1 and array.chunk[0] == 1 and not array.field.statistics
            for array in self.arrays
        )

    def with_codecs(self, codec_of: Callable[[ArrayPlan], str]) -> TablePlan:
        """Return the table with the codec of each column."""
        arrays = [replace(array, codec=codec_of(array)) for array in self.arrays]
        return replace(self, arrays=tuple(arrays))

    def tasks(self) -> Iterator[ShardTask]:
        """Yield tasks of the table in row order. Together they cover every row once."""
        for number, lo in enumerate(range(0, self.rows, self.shard_rows)):
            yield ShardTask(self.name, number, lo, min(lo + self.shard_rows, self.rows))

    def pieces(self, lo: int, hi: int) -> Pieces:
        """Return row ranges of the sources that make up rows ``lo:hi``, in order."""
        return Pieces(self._starts, lo, hi)


def plan_table(table: Table, source_rows: Iterable[int]) -> TablePlan:
    """Plan a table from the rows of each source."""
    counts = array("q", source_rows)
    arrays = lay_out_table(table, sum(counts))
    return TablePlan(name=table.name, spilled=table.spilled, source_rows=counts, arrays=arrays)


def lay_out_table(table: Table, rows: int) -> tuple[ArrayPlan, ...]:
    """Lay out all columns of a table of `rows` rows. Every shard shape starts with the same row count."""
    row_bytes = max(1, sum(field.row_bytes for field in table.fields))
    most = _power_of_two(SHARD // row_bytes)
    preferred = [chunk_shape(field) for field in table.fields]
    chunks = [(min(chunk[0], most), *chunk[1:]) for chunk in preferred]
    group = max(chunk[0] for chunk in chunks)
    if any(group % chunk[0] for chunk in chunks):  # frames of 301 steps beside flags in chunks of 1,024
        chunks = [(_power_of_two(chunk[0]), *chunk[1:]) for chunk in chunks]
        group = max(chunk[0] for chunk in chunks)
    groups = max(1, SHARD // (row_bytes * group))
    present = max(1, -(-rows // group))
    shard_rows = group * min(groups, present)
    arrays = []
    for field, chunk in zip(table.fields, chunks, strict=True):
        arrays.append(
            ArrayPlan(
                field=field,
                column=table.column(field),
                shape=(rows, *field.row_shape),
                chunk=chunk,
                shard=(shard_rows, *map(_round_up, field.row_shape, chunk[1:])),
                amplification=amplification(field, chunk),
            )
        )
    return tuple(arrays)


def index_plan(field: Field, rows: int) -> ArrayPlan:
    """Plan an array that is a table of its own."""
    table = Table(name=field.path.rpartition("/")[0], fields=(field,))
    return plan_table(table, [rows]).arrays[0]


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that decides a store's bytes."""

    # as in the store's root attributes
    family: str
    sample_table: str
    sources: Sequence[str]  # relative names, in order
    tables: tuple[TablePlan, ...]  # tables filled by tasks
    # index arrays, which are written at the end; only their form, not their values
    index: tuple[ArrayPlan, ...]
    options: Mapping[str, Any]  # the converter's options that decide the content
    versions: Mapping[str, str]  # versions of the libraries that encode
    rules: Mapping[str, ArraySpec] = dataclass_field(default_factory=dict)  # of every array, by path

    def tasks(self) -> list[ShardTask]:
        """Return every task of every table, in order."""
        return list(chain.from_iterable(table.tasks() for table in self.tables))

    def table(self, name: str) -> TablePlan:
        """Return a table by name."""
        return next(table for table in self.tables if table.name == name)

    def task_bytes(self, task: ShardTask) -> int:
        """Return uncompressed bytes of a task's rows."""
        return (task.hi - task.lo) * self.table(task.table).row_bytes

    def columns(self) -> list[ArrayPlan]:
        """Return every array that tasks write."""
        return list(chain.from_iterable(table.arrays for table in self.tables))

    def arrays(self) -> list[ArrayPlan]:
        """Return every array of the store."""
        return [*self.columns(), *self.index]

    @property
    def raw_bytes(self) -> int:
        """Return the uncompressed bytes of every array."""
        return sum(array.shape[0] * array.field.row_bytes for array in self.arrays())

    def without_sources(self) -> Plan:
        """Return the plan without what it has for each source."""
        # `asdict` would copy the packed sequences of a value for each source, item by item.
        tables = tuple(replace(table, source_rows=()) for table in self.tables)
        return replace(self, sources=(), tables=tables)

    def to_json(self) -> JsonObject:
        """Return plain JSON values, the same on every machine."""
        described = asdict(replace(self.without_sources(), rules={}))
        del described["rules"]  # which follow from the fields
        plain: JsonObject = json.loads(json.dumps(described, sort_keys=True))
        for table, described in zip(self.tables, plain["tables"], strict=True):
            described["source_rows"] = list(table.source_rows)
        # stores from before fields had these members keep their digest
        arrays = list(plain["index"])
        for table in plain["tables"]:
            arrays += table["arrays"]
        for planned in arrays:
            for later in ("codec", "rule"):
                if not planned["field"][later]:
                    del planned["field"][later]
        plain["sources"] = list(self.sources)
        return plain

    @property
    def digest(self) -> str:
        """Return the digest of the plan as JSON."""
        return json_digest(self.to_json())

    def bounded_columns(self) -> dict[str, ArraySpec]:
        """Return the specs of the columns of tables whose values have bounds, by path."""
        specs = {array.field.path: self.rules[array.field.path] for array in self.columns()}
        return {path: spec for path, spec in specs.items() if spec.bounds_values}

    def axes(self) -> dict[str, tuple[str, ...]]:
        """Return the names of the axes of every array, by path."""
        return {array.field.path: array.field.axes for array in self.arrays()}

    def with_codecs(self, codecs: Mapping[str, str]) -> Plan:
        """Return the plan with a codec for each column, by path. Other columns get ``fast``."""
        tables = tuple(
            table.with_codecs(lambda array: codecs.get(array.field.path, "fast")) for table in self.tables
        )
        found_in_values = {**self.options.get("found", {}), "codecs": dict(sorted(codecs.items()))}
        return replace(self, tables=tables, options={**self.options, "found": found_in_values})


def unique_dimension_names(
    tables: Iterable[TablePlan], index: Iterable[ArrayPlan]
) -> tuple[tuple[TablePlan, ...], tuple[ArrayPlan, ...]]:
    """Rename the axes whose name another array uses for another extent.

    Axes of rows get the name of their table as a prefix (``points_row``), other axes the name of their
    array (``rows_a_x_axis``).
    """
    # Families choose distinct names: columns like ``a/x`` and ``x`` remain. xarray rejects a group in which
    # one dimension name has two extents.
    names = _Names()
    named = []
    for table in tables:
        arrays = tuple(map(names.renamed, table.arrays))
        named.append(replace(table, arrays=arrays))
    return tuple(named), tuple(map(names.renamed, index))


class _Names:
    def __init__(self) -> None:
        self._used: dict[str, dict[str, int]] = defaultdict(dict)

    def renamed(self, array: ArrayPlan) -> ArrayPlan:
        path = array.field.path
        axes = list(array.field.axes)
        group = path.rpartition("/")[0]
        table = path.removesuffix(f"/{array.column}")
        for number, extent in enumerate(array.shape):
            owner = (table if number == 0 else path).replace("/", "_")
            while axes[number] in axes[:number] or self._conflicts(group, axes[number], extent):
                axes[number] = f"{owner}_{axes[number]}"
            self._used[axes[number]][group] = extent
        return replace(array, field=replace(array.field, axes=tuple(axes)))

    def _conflicts(self, group: str, name: str, extent: int) -> bool:
        inside = f"{group}/"
        for place, other in self._used[name].items():
            around = f"{place}/"
            if other != extent and (inside.startswith(around) or around.startswith(inside)):
                return True
        return False


@cache
def versions() -> dict[str, str]:
    """Return versions of the libraries that encode."""
    return {name: version(name) for name in ("unistore", "numcodecs")}


def json_digest(value: Any) -> str:
    """Return xxh3-128 of a value's canonical JSON. Sequences of any class are lists there."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=list)
    return xxhash.xxh3_128_hexdigest(text.encode())
