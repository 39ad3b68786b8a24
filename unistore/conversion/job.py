"""Idempotent jobs of a conversion: deriving sources, reading parts of shards, writing shards."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, pairwise
from math import prod
from pathlib import Path
from typing import ClassVar

import numpy as np
import xxhash

from unistore.conversion.columns import (
    ColumnRows,
    Moments,
    broken_rows,
    in_planes,
    large_rows,
    write_column,
)
from unistore.conversion.executors.local import Job, Outcome
from unistore.conversion.keys import Inputs, Keys, check_unchanged
from unistore.conversion.memory import STEP_BUDGET, derive_memory, scan_memory, shard_memory
from unistore.conversion.plan import Piece, Plan, ShardTask, TablePlan, json_digest
from unistore.conversion.spill import Spill, SpillWriter
from unistore.converters.common.exclusion import with_source
from unistore.converters.protocol import Facts
from unistore.errors import ConversionError, InputError, Problem, first_few, writing_failed
from unistore.schemas.array_specs import ArraySpec
from unistore.schemas.tables import Table
from unistore.store.manifest import Entry
from unistore.system.hints import AnyArray, Int64s, JsonObject, Shape
from unistore.zarr3.durable import Folder, Target
from unistore.zarr3.writer import OrderedMap, content_digest, ordered_map, serial_map

MIN_BATCHES = 32  # Least number of batches, if there are as many sources
BATCH_SOURCES = 256  # Most sources of a batch
BATCH_BYTES = 16 << 20  # Most bytes of the files of a batch of several sources
SHOWN = 4  # Sources that a description names
AHEAD = 16  # Pieces of a task that threads may read ahead
SMALL_SOURCE = 64 << 10  # Sources of fewer bytes of rows take longer to open than to read
MAX_PIECES = 256  # Most sources of a part


@dataclass(frozen=True, kw_only=True)
class DeriveJob(Job[Sequence[int]]):
    """Derive sources: ``job(numbers)`` spills rows and facts of a batch. Its folder has the first number."""

    is_journaled: ClassVar[bool] = True
    inputs: Inputs
    keys: Mapping[int, bytes] | Keys  # Key of each source, from `source_keys`
    spill: Path
    budget: int = STEP_BUDGET  # Bytes that a step may use to derive a source in memory

    def __call__(self, sources: Sequence[int]) -> Outcome:
        """Derive sources one by one. The keys of those with problems are None in the batch."""
        problems: list[Problem] = []
        keys: list[str | None] = []
        with SpillWriter(self.spill / str(sources[0])) as writer:
            for number in sources:
                try:
                    with self.inputs.reading(number):
                        facts = self._derive(writer, number)
                        key = self.keys[number].decode()
                except InputError as error:
                    problems += error.problems
                    facts = {}
                    key = None
                writer.end_source(key, facts)
                keys.append(key)
            writer.finish()
        record = {"step": "derive", "batch": sources[0], "sources": len(sources), "of": json_digest(keys)}
        return Outcome(record, tuple(problems))

    def _derive(self, writer: SpillWriter, source: int) -> Facts:
        scan = self.inputs.scan
        derive = partial(self.inputs.converter.derive, scan, source, writer.emit)
        if scan_memory(scan) + scan.sources[source].memory_in_core <= self.budget:
            return derive(None)
        with tempfile.TemporaryDirectory(dir=writer.folder) as folder:
            return derive(Path(folder))

    def describe(self, sources: Sequence[int]) -> str:
        """Return names of the first sources, for messages."""
        names = self.inputs.scan.sources.names
        return f"reading {first_few([names[source] for source in sources], SHOWN)}"

    def alone(self, sources: Sequence[int]) -> DeriveJob:
        """Return the job of these sources alone."""
        keys = {number: bytes(self.keys[number]) for number in sources}
        return replace(self, inputs=self.inputs.only(sources), keys=keys)

    def need(self, sources: Sequence[int]) -> int:
        """Return peak bytes of the largest source, scan included."""
        return int(derive_memory(self.inputs.scan.only(sources), self.budget).max())


def source_batches(
    sources: Sequence[int],  # numbers of the sources
    sizes: Int64s,  # bytes of the files of every source of the scan
) -> list[tuple[int, ...]]:
    """Return batches of consecutive sources, small enough that all workers have work."""
    most = min(max(1, len(sources) // MIN_BATCHES), BATCH_SOURCES)
    nbytes = 0
    batches: list[tuple[int, ...]] = []
    first = 0
    for position, source in enumerate(sources):
        nbytes += int(sizes[source])
        if position > first and (nbytes > BATCH_BYTES or position - first == most):
            batches.append(tuple(sources[first:position]))
            first = position
            nbytes = int(sizes[source])
    return [*batches, tuple(sources[first:])] if sources else []


@dataclass(frozen=True, slots=True)
class RowsRead:
    """Rows of parts of tables that were read before their shards are written."""

    # Nothing is journaled: a continued conversion reads parts again

    folder: Path
    parts: list[ShardTask] = field(default_factory=list)

    def _file(self, part: ShardTask, column: str) -> Path:
        return self.folder / f"{part.table}.{part.lo}.{part.hi}".replace("/", "#") / column.replace("/", "#")

    def write(self, part: ShardTask, columns: Mapping[str, AnyArray]) -> None:
        """Write the rows of a part. The same again gives the same files."""
        try:
            for column, values in columns.items():
                file = self._file(part, column)
                file.parent.mkdir(parents=True, exist_ok=True)
                new_file = file.with_name(f"{file.name}.{os.getpid()}")
                new_file.write_bytes(values.reshape(-1).view(np.uint8).data)
                new_file.replace(file)
        except OSError as error:
            raise writing_failed(error, self.folder) from error

    def fill(self, table: str, lo: int, hi: int, out: Mapping[str, AnyArray]) -> bool:
        """Copy rows ``lo:hi`` of columns into `out`, or return False if some are not here."""
        spans: list[tuple[ShardTask, int, int]] = []
        filled_to = lo
        for part in sorted(self.parts, key=lambda part: part.lo):
            last = min(hi, part.hi)
            if part.table == table and part.lo <= filled_to < last:
                spans.append((part, filled_to, last))
                filled_to = last
        if filled_to < hi:
            return False
        for part, first, last in spans:
            for column, target in out.items():
                self._copy(part, column, first, target[first - lo : last - lo])
        return True

    def _copy(self, part: ShardTask, column: str, first: int, target: AnyArray) -> None:
        file = self._file(part, column)
        offset = (first - part.lo) * prod(target.shape[1:]) * target.itemsize
        try:
            values = np.fromfile(file, target.dtype, target.size, offset=offset)
        except OSError as error:
            msg = f"{file}: rows cannot be read ({error.strerror}); run the same command again"
            raise ConversionError(msg) from error
        if values.size < target.size:
            msg = f"{file}: rows are missing; run the same command again"
            raise ConversionError(msg)
        target[...] = values.reshape(target.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardJob(Job[ShardTask]):
    """Write one shard of every column of a task's table."""

    # With `reads_parts` a step only reads rows of a table, as `rows_read` keeps them

    is_journaled: ClassVar[bool] = True
    inputs: Inputs
    spill: Spill
    target: Target
    plan: Plan
    spilled: Mapping[str, Table]
    reading: int = 0  # From `reading_memory`
    bounded: Mapping[str, ArraySpec] = field(default_factory=dict)  # From `bounded_columns`
    rows_read: RowsRead
    reads_parts: bool = False
    # Pieces of the only task of a job that is alone; None: computed from the plan
    known: Sequence[Piece] | None = None

    def __call__(self, task: ShardTask) -> Outcome:
        """Read the task's rows from its sources, encode, write."""
        return self._write(task, serial_map)

    def threaded(self, task: ShardTask, threads: int) -> Outcome:
        """Run the step with so many threads, which encode."""
        if threads < 2:
            return self(task)
        # not kept longer, as a pool inherited by a forked child hangs there
        pool = ThreadPoolExecutor(threads, "unistore-encode")
        try:
            return self._write(task, partial(ordered_map, pool))
        finally:
            pool.shutdown(cancel_futures=True)

    def _write(self, task: ShardTask, ordered_map: OrderedMap) -> Outcome:
        try:
            columns = self.columns(task, ordered_map)
            if self.reads_parts:
                blocks = {column.array.column: column.block for column in columns}
                rows = {name: block for name, block in blocks.items() if block is not None}
                self.rows_read.write(task, rows)
                return Outcome()
            with self.target.together() as together:
                files = [
                    write_column(together, task.number, column, ordered_map)
                    for column in columns
                    if not column.array.is_empty
                ]
        except InputError as error:
            return Outcome(problems=error.problems)
        return Outcome(self.record(task, files, columns))

    def record(self, task: ShardTask, files: Sequence[Entry], columns: Sequence[ColumnRows]) -> JsonObject:
        """Return the record of a task for the journal, after iteration of all its columns."""
        statistics = {}
        for column in columns:
            if column.block is not None and column.array.field.statistics:
                statistics[column.array.field.path] = Moments.of(column.block).to_json()
        pieces = [
            _joined_digest({column.array.column: column.piece(number) for column in columns})
            for number in range(len(self.pieces_of(task)))
        ]
        return {
            "step": "shard",
            "task": task.id,
            "files": [file.to_json() for file in files],
            "pieces": "".join(pieces),  # digests one after the other
            "statistics": statistics,
        }

    def alone(self, task: ShardTask) -> ShardJob:
        """Return the job with the sources that the rows of a task come from."""
        pieces = self.pieces_of(task)
        numbers = range(pieces[0].source, pieces[-1].source + 1)
        return replace(
            self,
            inputs=self.inputs.only(numbers),
            spill=self.spill.only(numbers.start, numbers.stop),
            plan=self.plan.without_sources(),
            known=pieces,
        )

    def pieces_of(self, task: ShardTask) -> Sequence[Piece]:
        """Return pieces of sources that the rows of a task come from."""
        return self.known or self.plan.table(task.table).pieces(task.lo, task.hi)

    def describe(self, task: ShardTask) -> str:
        """Return the table, rows and sources, for messages."""
        pieces = self.pieces_of(task)
        names = self.inputs.scan.sources.names
        origins = first_few([f"{names[piece.source]} rows {piece.lo}:{piece.hi}" for piece in pieces], SHOWN)
        return f"rows {task.lo}:{task.hi} of table {task.table!r} (from {origins})"

    def need(self, task: ShardTask) -> int:
        """Return peak bytes of the task, scan included."""
        table = self.plan.table(task.table)
        streams = isinstance(self.target, Folder)
        return scan_memory(self.inputs.scan) + shard_memory(
            self.inputs.converter, table, self.reading, streams=streams
        )

    def columns(self, task: ShardTask, ordered_map: OrderedMap = serial_map) -> list[ColumnRows]:
        """Return rows of every column of a task: read now, or some planes at a time while iterated."""
        table = self.plan.table(task.table)
        pieces = self.pieces_of(task)
        if in_planes(self.inputs.converter, table):
            return [
                large_rows(
                    array,
                    task.lo,
                    [partial(self.read_planes, table.name, array.column, piece.source) for piece in pieces],
                )
                for array in table.arrays
            ]
        blocks = self._blank(task)
        digests = np.empty((len(pieces), len(blocks)), "S32")
        is_read = self.rows_read.fill(table.name, task.lo, task.hi, blocks)

        def read(number: int) -> Sequence[Problem]:
            source, lo, hi, at = pieces[number]
            out = {column: block[at:][: hi - lo] for column, block in blocks.items()}
            try:
                if is_read:
                    check_unchanged(self.inputs.fingerprints[source])
                else:
                    self._read(task, pieces[number], out)
            except InputError as error:
                return error.problems
            digests[number] = [content_digest(rows) for rows in out.values()]
            return ()

        turns = ordered_map if self.inputs.converter.thread_safe and not table.spilled else serial_map
        problems = list(chain.from_iterable(turns(read, range(len(pieces)), AHEAD)))
        if problems:
            raise InputError(problems)
        columns = []
        for number, array in enumerate(table.arrays):
            block = blocks[array.column]
            whole = [((task.lo,), block)]
            columns.append(ColumnRows(array, (task.lo, task.hi), whole, block, digests[:, number]))
        return columns

    def cached(self, task: ShardTask) -> dict[str, AnyArray] | None:
        """Return rows of a task by column, if they were read already."""
        blocks = self._blank(task)
        return blocks if self.rows_read.fill(task.table, task.lo, task.hi, blocks) else None

    def _blank(self, task: ShardTask) -> dict[str, AnyArray]:
        return {
            array.column: _filled((task.hi - task.lo, *array.shape[1:]), array.field.dtype, array.field.fill)
            for array in self.plan.table(task.table).arrays
        }

    def _read(self, task: ShardTask, piece: Piece, out: dict[str, AnyArray]) -> None:
        source, lo, hi, at = piece
        with self.inputs.reading(source) as name:
            first = task.lo + at
            if not self.rows_read.fill(task.table, first, first + hi - lo, out):
                self._fill(task.table, source, lo, hi, out)
        self._check_bounds(name, task.table, lo, out)

    def read_planes(self, table: str, column: str, number: int, lo: int, hi: int, block: AnyArray) -> None:
        """Read planes ``lo:hi`` of the row of a source into `block`, (1, hi - lo, …)."""
        with self.inputs.reading(number) as name:
            self.inputs.converter.read_planes(self.inputs.scan, table, number, lo, hi, {column: block})
        self._check_bounds(name, table, 0, {column: block})

    def _check_bounds(self, name: str, table: str, first_row: int, columns: Mapping[str, AnyArray]) -> None:
        if broken := broken_rows(self.plan, self.bounded, name, table, first_row, columns):
            raise InputError(with_source(name, broken))

    def _fill(self, table: str, source: int, lo: int, hi: int, out: dict[str, AnyArray]) -> None:
        spilled = self.spilled.get(table)
        if spilled is None:
            self.inputs.converter.read(self.inputs.scan, table, source, lo, hi, out)
            return
        for column, target in out.items():
            start = 0
            for rows in self.spill.read(table, column, source, lo, hi):
                self.inputs.converter.pack(
                    self.inputs.scan, spilled, column, source, rows, target[start : start + len(rows)]
                )
                start += len(rows)


def _filled(shape: Shape, dtype: str, fill: float | bool) -> AnyArray:
    # Pages of zeros are touched by whoever writes them
    return np.zeros(shape, dtype) if fill == 0 else np.full(shape, fill, dtype)


def _joined_digest(contents: Mapping[str, str]) -> str:
    # xxh3-128 over column names and the digests of their values, columns sorted by name
    digest = xxhash.xxh3_128()
    for column in sorted(contents):
        digest.update(f"{column} {contents[column]}\n".encode())
    return digest.hexdigest()


def source_digest(pieces: Sequence[str]) -> bytes:
    """Return a source's digest: xxh3-128, 16 bytes, over its pieces' digests in table and row order."""
    return xxhash.xxh3_128_digest("\n".join(pieces).encode())


def parts_of(job: ShardJob, table: TablePlan, workers: int) -> list[ShardTask]:
    """Return parts in which all workers read a table, none if it has a shard for each."""
    # Nor if its rows are spilled, or its sources are few or large
    rows = np.array(table.source_rows, np.int64)
    starts = (np.cumsum(rows) - rows)[rows > 0]
    if (
        table.spilled
        or in_planes(job.inputs.converter, table)
        or table.rows > (workers - 1) * table.shard_rows
        or len(starts) < MIN_BATCHES
        or table.rows * table.row_bytes > len(starts) * SMALL_SOURCE
    ):
        return []
    bounds = [*starts[:: min(MAX_PIECES, len(starts) // MIN_BATCHES)].tolist(), table.rows]
    return [ShardTask(table.name, number, *span) for number, span in enumerate(pairwise(bounds))]
