"""Columns of a task as blocks, whole rows or (of large rows) some planes at a time, and their shards.

Writing, comparing and repairing use the same blocks. The bytes of a shard do not depend on the block size:
chunks and blocks are both in C order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from unistore.conversion.plan import ArrayPlan, Plan, TablePlan
from unistore.converters.protocol import Converter
from unistore.converters.registry import get_family
from unistore.errors import ConversionError, Problem
from unistore.schemas.array_specs import ArrayInfo, ArraySpec, ArraySpecs
from unistore.schemas.tables import Field, IndexValues
from unistore.store.manifest import Entry
from unistore.system.hints import AnyArray, Float64s, Int64s, JsonObject, Shape
from unistore.zarr3.durable import Files
from unistore.zarr3.metadata import ArrayMetadata
from unistore.zarr3.writer import (
    OrderedMap,
    array_metadata,
    content_digest,
    iter_shard_buffers,
    little_endian_bytes,
    serial_map,
)

LARGE = 32 << 20
"""Rows of more bytes are read some planes at a time, if the converter can."""
PLANES_BYTES = 16 << 20
"""Bytes of planes read at a time; at least one layer of chunks."""

INDEX_BLOCK_BYTES = 4 << 20
"""Bytes of a block of an index array; at least one chunk."""

ReadPlanes = Callable[[int, int, AnyArray], None]
"""``read(lo, hi, block)``: read planes ``lo:hi`` into a block (1, hi - lo, …) filled with the fill value."""


def in_planes(converter: Converter, table: TablePlan) -> bool:
    """Return whether rows of a table are read some planes at a time, not whole."""
    return (
        converter.reads_planes
        and not table.spilled
        and table.row_bytes > LARGE
        and all(
            len(array.shape) > 1 and array.chunk[0] == 1 and not array.field.statistics
            for array in table.arrays
        )
    )


def planes_at_once(array: ArrayPlan) -> int:
    """Return planes (along axis 1) that are read at a time: whole layers of chunks."""
    layer = array.chunk[1]
    return layer * max(1, PLANES_BYTES // (layer * plane_bytes(array)))


def plane_bytes(array: ArrayPlan) -> int:
    """Return bytes of one plane along axis 1."""
    return max(1, prod(array.shape[2:])) * np.dtype(array.field.dtype).itemsize


class WatchedColumns(Mapping[str, AnyArray]):
    """Memory that a converter reads columns into; `untouched` names those that it never looked at."""

    def __init__(self, columns: Mapping[str, AnyArray]) -> None:
        self._columns = columns
        self.untouched = set(columns)

    def __getitem__(self, column: str) -> AnyArray:
        values = self._columns[column]
        self.untouched.discard(column)
        return values

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


class ColumnRows(Protocol):
    """Rows of one column of a task, iterated as blocks in C order: whole rows, or planes of one row."""

    @property
    def array(self) -> ArrayPlan:
        """Plan of the array."""
        ...

    @property
    def rows(self) -> tuple[int, int]:
        """Range of its rows, (lo, hi)."""
        ...

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], AnyArray]]:
        """Yield the start of each block (on the leading axes that it does not span), and the block.

        Blocks are read-only and valid until the next one.
        """
        ...

    @property
    def content(self) -> str:
        """Digest of all rows, after iteration; see `content_digest`."""
        ...

    def piece(self, number: int) -> str:
        """Return the digest of the rows of one piece (one source), after iteration."""
        ...


@dataclass(frozen=True, slots=True)
class InMemory:
    """Rows in memory: one block."""

    array: ArrayPlan
    rows: tuple[int, int]
    block: AnyArray
    pieces: NDArray[np.bytes_]

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], AnyArray]]:
        yield (self.rows[0],), self.block

    @property
    def content(self) -> str:
        """Digest of all rows."""
        return self.piece(0) if len(self.pieces) == 1 else content_digest(self.block)

    def piece(self, number: int) -> str:
        """Return the digest of the rows of one source."""
        return str(self.pieces[number], "ascii")


class Planes:
    """Large rows, each from one source, read some planes at a time."""

    def __init__(
        self,
        # the array, and the first of its rows
        array: ArrayPlan,
        first: int,
        read: Sequence[ReadPlanes],  # for each row a function that reads planes of it
    ) -> None:
        self.array = array
        self.rows = (first, first + len(read))
        self._read = read
        self._whole = xxhash.xxh3_128()
        self.pieces: list[str] = []

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], AnyArray]]:
        array = self.array
        step = planes_at_once(self.array)
        for row, read in enumerate(self._read, self.rows[0]):
            content = xxhash.xxh3_128()
            for lo in range(0, array.shape[1], step):
                hi = min(lo + step, array.shape[1])
                block = np.full((1, hi - lo, *array.shape[2:]), array.field.fill, array.field.dtype)
                read(lo, hi, block)
                content.update(little_endian_bytes(block))
                if len(self._read) > 1:
                    self._whole.update(little_endian_bytes(block))
                yield (row, lo), block
            self.pieces.append(content.hexdigest())

    @property
    def content(self) -> str:
        """Digest of all rows, after iteration."""
        return self._whole.hexdigest() if len(self._read) > 1 else self.pieces[0]

    def piece(self, number: int) -> str:
        """Return the digest of one row."""
        return self.pieces[number]


class IndexRows:
    """Rows of one shard of an index array."""

    def __init__(
        self,
        # the array, and the number of the shard
        array: ArrayPlan,
        number: int,
        values: IndexValues,  # all rows of the array
    ) -> None:
        self.array = array
        self._values = values
        lo = number * array.shard[0]
        self.rows = lo, min(lo + array.shard[0], len(values))
        self._content = xxhash.xxh3_128()

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], AnyArray]]:
        array = self.array
        step = array.chunk[0] * max(1, INDEX_BLOCK_BYTES // (array.chunk[0] * max(1, array.field.row_bytes)))
        for lo in range(*self.rows, step):
            block = self._values[lo : min(lo + step, self.rows[1])]
            self._content.update(little_endian_bytes(block))
            yield (lo,), block

    @property
    def content(self) -> str:
        """Digest of all rows, after iteration."""
        return self._content.hexdigest()

    def piece(self, number: int) -> str:
        """Not available: index arrays are not read from single sources."""
        raise NotImplementedError


def metadata_of(array: ArrayPlan) -> ArrayMetadata:
    """Return Zarr metadata of a planned array."""
    return array_metadata(
        array.shape,
        np.dtype(array.field.dtype),
        array.chunk,
        array.shard,
        array.codec,
        fill=array.field.fill,
        attributes=array.field.described,
        dimension_names=array.field.axes,
    )


def shard_key(array: ArrayPlan, number: int) -> str:
    """Key of the shard that begins at row ``number * shard[0]``; shards span whole rows."""
    return "/".join([array.field.path, "c", str(number), *("0" for _ in array.shape[1:])])


def write_column(
    files: Files, number: int, column: ColumnRows, ordered_map: OrderedMap = serial_map
) -> Entry:
    """Encode a column's rows block by block and write them as shard `number` of its array."""
    array = column.array
    metadata = metadata_of(array)
    shard_index = (number, *(0 for _ in array.shape[1:]))
    blocks = (block for _, block in column)
    written = files.put(
        shard_key(array, number), iter_shard_buffers(metadata, shard_index, blocks, ordered_map)
    )
    return Entry(
        key=written.key,
        bytes=written.bytes,
        checksum=written.checksum,
        rows=column.rows,
        content=column.content,
    )


_CURE = "correct the file, or the schema of the family"


def check_plan(plan: Plan, samples: int, index: Sequence[tuple[Field, IndexValues]]) -> None:
    """Check the planned arrays, and the values of the index arrays, before anything is written."""
    specs = _specs(plan)
    infos = {
        array.field.path: ArrayInfo(shape=array.shape, dtype=array.field.dtype) for array in plan.arrays()
    }
    problems = specs.problems(infos, samples)
    if not problems:
        problems = [*_unchecked_columns(plan, specs), *_broken_index(plan, specs, samples, index)]
    if problems:
        lines = "\n  ".join(str(problem) for problem in problems)
        msg = f"the planned arrays do not match the schema of {plan.family}; please report it:\n  {lines}"
        raise ConversionError(msg)


def bounded_columns(plan: Plan) -> dict[str, ArraySpec]:
    """Return specs of the columns of tables whose values have bounds, by path."""
    specs = _specs(plan)
    paths = [array.field.path for array in plan.arrays()]
    bounded = {}
    for array in plan.columns():
        spec = specs.of(array.field.path, paths)
        if spec.bounds_values:
            bounded[array.field.path] = spec
    return bounded


def broken_rows(
    plan: Plan,
    bounded: Mapping[str, ArraySpec],
    source: str,
    table: str,
    first_row: int,
    columns: Mapping[str, AnyArray],
) -> Iterator[Problem]:
    """Yield problems of the rows of a source that break the bounds of their columns.

    `first_row` is the number of the first of them in the source.
    """
    shapes: dict[str, Shape] = {}
    for column, values in columns.items():
        spec = bounded.get(f"{table}/{column}")
        if spec is None:
            continue
        shapes = shapes or {array.field.path: array.shape for array in plan.arrays()}
        rows = np.arange(first_row, first_row + len(values))
        for error in spec.row_errors(values, rows, shapes.__getitem__):
            yield Problem(source, error, _CURE, "values", dataset=column)


def _specs(plan: Plan) -> ArraySpecs:
    specs: ArraySpecs = get_family(plan.family).part("specs")
    return specs


def _unchecked_columns(plan: Plan, specs: ArraySpecs) -> Iterator[Problem]:
    """Yield columns whose rule needs all rows at once, which no shard has."""
    paths = [array.field.path for array in plan.arrays()]
    for array in plan.columns():
        spec = specs.of(array.field.path, paths)
        if spec.ascending or spec.offsets_of is not None:
            message = "has a rule over all rows, and is written shard by shard"
            yield Problem(array.field.path, message, "make it an index array", "schema")


def _broken_index(
    plan: Plan, specs: ArraySpecs, samples: int, index: Sequence[tuple[Field, IndexValues]]
) -> Iterator[Problem]:
    shapes = {array.field.path: array.shape for array in plan.arrays()}
    shapes[""] = (samples,)
    for field, values in index:
        spec = specs.of(field.path, shapes)
        if spec.bounds_values:
            for error in spec.value_errors(values[0 : len(values)], shapes.__getitem__):
                yield Problem(field.path, error, kind="schema")


# Moments of a column, in float64, merged over shards in row order.

BLOCK = 1 << 20
"""Values that are converted to float64 at a time."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Count of finite values, mean, sum of squared deviations, minimum and maximum of each row component.

    All arrays have the column's row shape. Values that are not finite are ignored.
    """

    count: Int64s
    mean: Float64s
    deviation: Float64s
    low: Float64s
    high: Float64s

    @classmethod
    def of(cls, rows: AnyArray) -> Moments:
        """Return moments of rows (axis 0); overflow of float64 gives infinity."""
        with np.errstate(over="ignore", invalid="ignore"):
            return cls._of_rows(rows)

    @classmethod
    def _of_rows(cls, rows: AnyArray) -> Moments:
        step = max(1, BLOCK // max(1, int(np.prod(rows.shape[1:], dtype=np.int64))))
        total = cls._of_block(rows[:step])
        for start in range(step, len(rows), step):
            total = total.merge(cls._of_block(rows[start : start + step]))
        return total

    @classmethod
    def _of_block(cls, rows: AnyArray) -> Moments:
        values = rows.astype(np.float64)
        finite = np.isfinite(values)
        not_finite = ~finite
        count = finite.sum(axis=0, dtype=np.int64)
        np.copyto(values, np.inf, where=not_finite)
        low = values.min(axis=0, initial=np.inf)
        np.copyto(values, -np.inf, where=not_finite)
        high = values.max(axis=0, initial=-np.inf)
        np.copyto(values, 0.0, where=not_finite)
        mean = values.sum(axis=0) / np.maximum(count, 1)
        np.subtract(values, mean, out=values)
        np.copyto(values, 0.0, where=not_finite)
        np.square(values, out=values)
        return cls(
            count=np.asarray(count),
            mean=np.asarray(mean),
            deviation=np.asarray(values.sum(axis=0)),
            low=np.asarray(low),
            high=np.asarray(high),
        )

    def merge(self, other: Moments) -> Moments:
        """Return moments of both blocks together (Chan, Golub, LeVeque 1979, eq. 2.1)."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self._merged(other)

    def _merged(self, other: Moments) -> Moments:
        count = self.count + other.count
        shift = other.mean - self.mean
        share = other.count / np.maximum(count, 1)
        return Moments(
            count=count,
            mean=self.mean + shift * share,
            deviation=self.deviation + other.deviation + shift**2 * self.count * share,
            low=np.minimum(self.low, other.low),
            high=np.maximum(self.high, other.high),
        )

    def summary(self) -> JsonObject:
        """Return plain JSON: count, mean, std (ddof 0), min, max.

        None where no value was finite, or a moment overflows float64.
        """
        empty = self.count == 0
        std = np.sqrt(self.deviation / np.maximum(self.count, 1))

        def plain(values: AnyArray) -> Any:
            shown = np.asarray(values).astype(object)  # 0-d moments are numpy scalars
            shown[empty | ~np.isfinite(values)] = None
            return shown.tolist()

        return {
            "count": self.count.tolist(),
            "mean": plain(self.mean),
            "std": plain(std),
            "min": plain(self.low),
            "max": plain(self.high),
            "ddof": 0,
            "accumulator": "float64",
        }

    def to_json(self) -> list[Any]:
        """Return exact JSON for the journal (float64 as hexadecimal text, shape first)."""
        return [
            list(self.mean.shape),
            np.ravel(self.count).tolist(),
            *(
                [v.hex() for v in np.ravel(a).tolist()]
                for a in (self.mean, self.deviation, self.low, self.high)
            ),
        ]

    @classmethod
    def from_json(cls, plain: list[Any]) -> Moments:
        """Return inverse of `to_json`."""
        shape, count, *floats = plain
        mean, deviation, low, high = (
            np.array([float.fromhex(v) for v in values]).reshape(shape) for values in floats
        )
        return cls(np.array(count, dtype=np.int64).reshape(shape), mean, deviation, low, high)
