"""The two kinds of work of a conversion, as pure functions of a job and a number: run anywhere, any order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import xxhash
from numpy.typing import NDArray

from unistore.conversion.blocks import Blocks
from unistore.conversion.columns import Column, InMemory, Planes, in_planes
from unistore.conversion.guard import Guard, reading
from unistore.conversion.memory import ROOM, derive_memory, derived_in_core, scan_memory, shard_memory
from unistore.conversion.plan import Piece, Plan, ShardTask
from unistore.conversion.shards import write_column
from unistore.conversion.spill import Spill, SpillWriter
from unistore.conversion.statistics import Moments
from unistore.conversion.target import Folder, Target
from unistore.converters.common.exclusion import with_source
from unistore.converters.protocol import Converter, Facts, Scan, Source
from unistore.errors import InputError, Problem
from unistore.schemas.tables import Table
from unistore.zarr3.threads import Spread, in_turn
from unistore.zarr3.writer import content_digest

__all__ = [
    "DeriveJob",
    "Outcome",
    "ShardJob",
    "source_digest",
    "statistics_of",
]

SHOWN = 4
"""Sources that a message names."""
AHEAD = 16
"""Pieces of a task that may be read before the first of them is looked at."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one step did: a record for the journal, or the problems that its source has."""

    record: dict[str, Any] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeriveJob:
    """Derive sources: ``job(source)`` spills its rows and facts."""

    converter: Converter
    scan: Scan
    guards: tuple[Guard, ...]
    spill: Path
    room: int = ROOM
    """Bytes that a step may hold: a source that does with them is not sorted on disk."""

    def __call__(self, source: int) -> Outcome:
        """Derive one source, given by its index."""
        described = self.scan.sources[source]
        with SpillWriter(self.spill / str(source)) as writer:
            try:
                with reading(described, self.guards[source]):
                    facts = self._derive(writer, source)
            except InputError as error:
                return Outcome(problems=_problems(error, described))
            writer.finish(facts)
        return Outcome({"step": "derive", "source": source})

    def _derive(self, writer: SpillWriter, source: int) -> Facts:
        in_core = derived_in_core(self.scan, self.scan.sources[source], self.room)
        return self.converter.derive(self.scan, source, writer.emit, None if in_core else writer.folder)

    def describe(self, source: int) -> str:
        """The source by name."""
        return f"reading {self.scan.sources[source].name}"

    def need(self, source: int) -> int:
        """The source's own estimate, beside the scan."""
        return derive_memory(self.scan, self.scan.sources[source], self.room)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardJob:
    """Write shards: ``job(task)`` writes one shard of every column of the task's table."""

    converter: Converter
    scan: Scan
    guards: tuple[Guard, ...]
    spill: Path
    target: Target
    plan: Plan
    spilled: Mapping[str, Table]
    reading: int = 0
    """The most that reading a source takes besides its rows, in bytes."""
    blocks: Blocks = field(default_factory=Blocks, compare=False)
    """Memory of the rows of tasks that are written."""

    def __call__(self, task: ShardTask) -> Outcome:
        """Read the task's rows from its sources, encode, write."""
        return self.read(task, in_turn)()

    def read(self, task: ShardTask, spread: Spread) -> Callable[[], Outcome]:
        """Read the task's rows; what is left encodes and writes them, and may run on another thread.

        Rows that are read some planes at a time are encoded and written here.
        """
        try:
            columns = self.columns(task, spread)
        except InputError as error:
            problems = error.problems
            return lambda: Outcome(problems=problems)
        if all(isinstance(column, InMemory) for column in columns):
            return lambda: self._write(task, columns, spread)
        outcome = self._write(task, columns, spread)
        return lambda: outcome

    def _write(self, task: ShardTask, columns: Sequence[Column], spread: Spread) -> Outcome:
        codec, table = self.plan.codec, task.table
        try:
            with self.target.together() as together:
                files = [
                    write_column(together, codec, task.number, column, spread)
                    for column in columns
                    if not column.array.is_empty
                ]
        except InputError as error:
            return Outcome(problems=error.problems)
        record = {
            "step": "shard",
            "task": task.id,
            "files": [file.to_json() for file in files],
            "pieces": self.pieces(task, columns),
            "statistics": statistics_of(columns),
        }
        held = {column.array.column: column.block for column in columns if isinstance(column, InMemory)}
        self.blocks.give(table, held)
        return Outcome(record)

    def describe(self, task: ShardTask) -> str:
        """Table, rows, and the rows of the sources that they come from."""
        pieces = self.plan.table(task.table).pieces(task.lo, task.hi)
        names = [f"{self.scan.sources[piece.source].name} rows {piece.lo}:{piece.hi}" for piece in pieces]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return f"rows {task.lo}:{task.hi} of table {task.table!r} (from {', '.join(names[:SHOWN])}{more})"

    def need(self, task: ShardTask) -> int:
        """All columns' rows, or parts of the one there is, with what encoding them takes, beside the scan."""
        table, streams = self.plan.table(task.table), isinstance(self.target, Folder)
        return scan_memory(self.scan) + shard_memory(self.converter, table, self.reading, streams=streams)

    def columns(self, task: ShardTask, spread: Spread = in_turn) -> list[Column]:
        """Rows of every column of a task: read now, or some planes at a time as they are taken.

        Raises
        ------
        InputError
            With the problems of all its sources that cannot be read; from the columns, too.
        """
        table = self.plan.table(task.table)
        pieces = list(table.pieces(task.lo, task.hi))
        if in_planes(self.converter, table):
            return [
                Planes(
                    array,
                    task.lo,
                    [partial(self._planes, table.name, array.column, piece.source) for piece in pieces],
                )
                for array in table.arrays
            ]
        rows = task.hi - task.lo
        blocks = {
            array.column: self.blocks.take(
                table.name, array.column, (rows, *array.shape[1:]), array.field.dtype, array.field.fill
            )
            for array in table.arrays
        }

        def read(piece: Piece) -> tuple[dict[str, str], tuple[Problem, ...]]:
            out = {column: block[piece.at :][: piece.hi - piece.lo] for column, block in blocks.items()}
            source = self.scan.sources[piece.source]
            try:
                with reading(source, self.guards[piece.source]):
                    self._fill(table.name, piece.source, piece.lo, piece.hi, out)
            except InputError as error:
                return {}, _problems(error, source)
            return {column: content_digest(rows) for column, rows in out.items()}, ()

        turns = spread if self.converter.concurrent and not table.spilled else in_turn
        contents = list(turns(read, pieces, AHEAD))
        if problems := [problem for _, found in contents for problem in found]:
            raise InputError(problems)
        return [
            InMemory(
                array,
                (task.lo, task.hi),
                blocks[array.column],
                [content[array.column] for content, _ in contents],
            )
            for array in table.arrays
        ]

    def _planes(self, table: str, column: str, number: int, lo: int, hi: int, block: NDArray[Any]) -> None:
        source = self.scan.sources[number]
        try:
            with reading(source, self.guards[number]):
                self.converter.read_planes(self.scan, table, number, lo, hi, {column: block})
        except InputError as error:
            raise InputError(_problems(error, source)) from error

    def pieces(self, task: ShardTask, columns: Sequence[Column]) -> list[Any]:
        """Source and digest of each piece of a task, once all its columns have been taken."""
        return [
            [piece.source, _joined_digest({column.array.column: column.pieces[at] for column in columns})]
            for at, piece in enumerate(self.plan.table(task.table).pieces(task.lo, task.hi))
        ]

    def _fill(self, table: str, source: int, lo: int, hi: int, out: dict[str, NDArray[Any]]) -> None:
        spilled = self.spilled.get(table)
        if spilled is None:
            self.converter.read(self.scan, table, source, lo, hi, out)
            return
        spill = Spill(self.spill / str(source))
        for column, target in out.items():
            at = 0
            for rows in spill.read(table, column, lo, hi):
                self.converter.pack(self.scan, spilled, column, source, rows, target[at : at + len(rows)])
                at += len(rows)


def statistics_of(columns: Sequence[Column]) -> dict[str, Any]:
    """Moments of the columns of a task that have statistics, as JSON for the journal."""
    return {
        column.array.field.path: Moments.of(column.block).to_json()
        for column in columns
        if isinstance(column, InMemory) and column.array.field.statistics
    }


def _joined_digest(contents: Mapping[str, str]) -> str:
    """xxh3-128 over column names and the digests of their values, columns sorted by name."""
    digest = xxhash.xxh3_128()
    for column in sorted(contents):
        digest.update(f"{column} {contents[column]}\n".encode())
    return digest.hexdigest()


def _problems(error: InputError, source: Source) -> tuple[Problem, ...]:
    return tuple(with_source(source.name, error.problems or [Problem(source.name, str(error))]))


def source_digest(pieces: Sequence[str]) -> bytes:
    """Content digest of a source, 16 bytes: xxh3-128 over its pieces' digests in table and row order."""
    return xxhash.xxh3_128_digest("\n".join(pieces).encode())
