"""Columns of a task as blocks, whole rows or some planes of large rows at a time, and their shards."""

# The bytes of a shard do not depend on the block size: chunks and blocks are both in C order

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from unistore.conversion.plan import ArrayPlan, Plan, TablePlan
from unistore.converters.protocol import SourceReader
from unistore.converters.registry import get_family
from unistore.errors import ConversionError, Problem
from unistore.schemas.array_specs import ArrayInfo, ArraySpec, ArraySpecs
from unistore.schemas.tables import Field, IndexValues
from unistore.store.manifest import Entry
from unistore.system.hints import AnyArray, Float64s, Int64s, JsonObject
from unistore.zarr3.durable import Files
from unistore.zarr3.metadata import ArrayMetadata
from unistore.zarr3.writer import (
    OrderedMap,
    array_metadata,
    iter_shard_buffers,
    little_endian_bytes,
    serial_map,
)

LARGE = 32 << 20  # Rows of more bytes are read some planes at a time, if the converter can
PLANES_BYTES = 16 << 20  # Bytes of planes read at a time; at least one layer of chunks

INDEX_BLOCK_BYTES = 4 << 20  # Bytes of a block of an index array; at least one chunk

# ``read(lo, hi, block)``: read planes ``lo:hi`` into a block (1, hi - lo, …) filled with the fill value
ReadPlanes = Callable[[int, int, AnyArray], None]


def in_planes(converter: SourceReader, table: TablePlan) -> bool:
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


Corner = tuple[int, ...]  # Start of a block on the leading axes that it does not span


class ColumnRows:
    """Rows of a column of a task, as blocks that are iterated once."""

    def __init__(
        self,
        array: ArrayPlan,
        rows: tuple[int, int],
        blocks: Iterable[tuple[Corner, AnyArray]],  # whole rows, or planes of single rows
        block: AnyArray | None = None,  # all rows, if they are in memory
        pieces: NDArray[np.bytes_] | None = None,  # digest of the rows of each source, if they are
    ) -> None:
        self.array = array
        self.rows = rows  # (lo, hi)
        self.block = block
        self._blocks = blocks
        self._pieces = pieces
        self._whole = xxhash.xxh3_128()
        self._large_rows: dict[int, xxhash.xxh3_128] = {}

    def __iter__(self) -> Iterator[tuple[Corner, AnyArray]]:
        for corner, block in self._blocks:
            data = little_endian_bytes(block)
            self._whole.update(data)
            if len(corner) > 1:
                self._large_rows.setdefault(corner[0], xxhash.xxh3_128()).update(data)
            yield corner, block

    @property
    def content(self) -> str:
        """Return the digest of all rows, after iteration."""
        return self._whole.hexdigest()

    def piece(self, number: int) -> str:
        """Return the digest of the rows of one source, after iteration."""
        if self._pieces is not None:
            return str(self._pieces[number], "ascii")
        return self._large_rows[self.rows[0] + number].hexdigest()


def large_rows(array: ArrayPlan, first: int, read: Sequence[ReadPlanes]) -> ColumnRows:
    """Return rows from `first` on, some planes at a time. `read` has a function for each."""

    def blocks() -> Iterator[tuple[Corner, AnyArray]]:
        step = planes_at_once(array)
        for row, read_planes in enumerate(read, first):
            for lo in range(0, array.shape[1], step):
                hi = min(lo + step, array.shape[1])
                block = np.full((1, hi - lo, *array.shape[2:]), array.field.fill, array.field.dtype)
                read_planes(lo, hi, block)
                yield (row, lo), block

    return ColumnRows(array, (first, first + len(read)), blocks())


def index_rows(array: ArrayPlan, number: int, values: IndexValues) -> ColumnRows:
    """Return rows of one shard of an index array, from all its values."""
    first = number * array.shard[0]
    last = min(first + array.shard[0], len(values))
    step = array.chunk[0] * max(1, INDEX_BLOCK_BYTES // (array.chunk[0] * max(1, array.field.row_bytes)))
    blocks = (((lo,), values[lo : min(lo + step, last)]) for lo in range(first, last, step))
    return ColumnRows(array, (first, last), blocks)


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
    """Return the key of the shard that begins at row ``number * shard[0]``. Shards span whole rows."""
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
    shapes = {array.field.path: array.shape for array in plan.arrays()}
    infos = {
        array.field.path: ArrayInfo(shape=array.shape, dtype=array.field.dtype) for array in plan.arrays()
    }
    problems = list(specs.problems(infos, samples))
    if not problems:
        for array in plan.columns():
            spec = specs.of(array.field.path, shapes)
            if spec.ascending or spec.offsets_of is not None:
                message = "has a rule over all rows, and is written shard by shard"
                problems.append(Problem(array.field.path, message, "make it an index array", "schema"))
        shapes[""] = (samples,)
        for field, values in index:
            spec = specs.of(field.path, shapes)
            if spec.bounds_values:
                errors = spec.value_errors(values[0 : len(values)], shapes.__getitem__)
                problems += [Problem(field.path, error, kind="schema") for error in errors]
    if problems:
        lines = "\n  ".join(str(problem) for problem in problems)
        msg = f"the planned arrays do not match the schema of {plan.family}; please report it:\n  {lines}"
        raise ConversionError(msg)


def bounded_columns(plan: Plan) -> dict[str, ArraySpec]:
    """Return specs of the columns of tables whose values have bounds, by path."""
    specs = _specs(plan)
    paths = [array.field.path for array in plan.arrays()]
    every = {array.field.path: specs.of(array.field.path, paths) for array in plan.columns()}
    return {path: spec for path, spec in every.items() if spec.bounds_values}


def broken_rows(
    plan: Plan,
    bounded: Mapping[str, ArraySpec],  # from `bounded_columns`
    source: str,
    table: str,
    first_row: int,  # number of the first of the rows in the source
    columns: Mapping[str, AnyArray],
) -> list[Problem]:
    """Return problems of the rows of a source that break the bounds of their columns."""
    problems: list[Problem] = []
    for column in columns:
        if spec := bounded.get(f"{table}/{column}"):
            shapes = {array.field.path: array.shape for array in plan.arrays()}
            rows = np.arange(first_row, first_row + len(columns[column]))
            errors = spec.row_errors(columns[column], rows, shapes.__getitem__)
            problems += [Problem(source, error, _CURE, "values", dataset=column) for error in errors]
    return problems


def _specs(plan: Plan) -> ArraySpecs:
    specs: ArraySpecs = get_family(plan.family).part("specs")
    return specs


# Moments of a column, in float64, merged over shards in row order.

BLOCK = 1 << 20  # Values that are converted to float64 at a time


@dataclass(frozen=True, slots=True)
class Moments:
    """Moments and range of the finite values of each component of a row."""

    count: Int64s
    mean: Float64s
    deviation: Float64s
    low: Float64s
    high: Float64s

    @classmethod
    @np.errstate(over="ignore", invalid="ignore")
    def of(cls, rows: AnyArray) -> Moments:
        """Return moments of rows (axis 0). Overflow of float64 gives infinity."""
        step = max(1, BLOCK // max(1, prod(rows.shape[1:])))
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
        return cls(*map(np.asarray, (count, mean, values.sum(axis=0), low, high)))

    @np.errstate(over="ignore", invalid="ignore")
    def merge(self, other: Moments) -> Moments:
        """Return moments of both blocks together (Chan, Golub, LeVeque 1979, eq. 2.1)."""
        count = self.count + other.count
        shift = other.mean - self.mean
        share = other.count / np.maximum(count, 1)
        deviation = self.deviation + other.deviation + shift**2 * self.count * share
        low = np.minimum(self.low, other.low)
        return Moments(count, self.mean + shift * share, deviation, low, np.maximum(self.high, other.high))

    def summary(self) -> JsonObject:
        """Return count, mean, std (ddof 0), min and max as JSON, None for what has no finite value."""
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
        """Return exact JSON for the journal."""
        return [values.tolist() for values in (self.count, self.mean, self.deviation, self.low, self.high)]

    @classmethod
    def from_json(cls, plain: list[Any]) -> Moments:
        """Return inverse of `to_json`."""
        return cls(*map(np.array, plain))
