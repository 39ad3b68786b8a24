"""The two kinds of work of a conversion, as pure functions of a job and a number: run anywhere, any order."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from unistore.conversion.blocks import Blocks, Kept
from unistore.conversion.columns import Column, InMemory, Planes, in_planes
from unistore.conversion.guard import Guards, reading
from unistore.conversion.keys import shared_key, source_key
from unistore.conversion.memory import ROOM, derive_memory, derived_in_core, scan_memory, shard_memory
from unistore.conversion.plan import Piece, Plan, ShardTask, json_digest
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
    "lots",
    "source_digest",
    "statistics_of",
]

LOTS = 32
"""Lots that sources are dealt out to, at the least, where there are as many sources."""
LOT = 256
"""Sources of a lot, at the most."""
LOT_BYTES = 16 << 20
"""Bytes of their files, at the most, unless it is one."""
SHOWN = 4
"""Sources that a message names."""
AHEAD = 16
"""Pieces of a task that may be read before the first of them is looked at."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one step did: a record for the journal, or the problems that its source has."""

    record: dict[str, Any] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DeriveJob:
    """Derive sources: ``job(sources)`` spills the rows and facts of a lot of them, given by their numbers.

    The lot's folder has the number of the first.
    """

    converter: Converter
    scan: Scan
    guards: Guards
    spill: Path
    room: int = ROOM
    """Bytes that a step may hold: a source that does with them is not sorted on disk."""

    def __call__(self, sources: Sequence[int]) -> Outcome:
        """Derive sources one by one; those with problems are marked in the lot."""
        problems: list[Problem] = []
        keys: list[str | None] = []
        shared = shared_key(self.scan)
        with SpillWriter(self.spill / str(sources[0])) as writer:
            for number in sources:
                source, guard = self.scan.sources[number], self.guards[number]
                try:
                    with reading(source, guard):
                        facts, key = self._derive(writer, number), source_key(shared, source, guard)
                except InputError as error:
                    problems += _problems(error, source)
                    facts, key = {}, None
                writer.end_source(key, facts)
                keys.append(key)
            writer.finish()
        record = {"step": "derive", "lot": sources[0], "sources": len(sources), "of": json_digest(keys)}
        return Outcome(record, tuple(problems))

    def _derive(self, writer: SpillWriter, source: int) -> Facts:
        if derived_in_core(self.scan, self.scan.sources[source], self.room):
            return self.converter.derive(self.scan, source, writer.emit, None)
        with tempfile.TemporaryDirectory(dir=writer.folder) as folder:
            return self.converter.derive(self.scan, source, writer.emit, Path(folder))

    def describe(self, sources: Sequence[int]) -> str:
        """The sources by name."""
        names = [self.scan.sources[source].name for source in sources[:SHOWN]]
        more = f" and {len(sources) - SHOWN} more" if len(sources) > SHOWN else ""
        return f"reading {', '.join(names)}{more}"

    def bare(self) -> DeriveJob:
        """See `SlicedJob`: without sources."""
        return replace(self, scan=self.scan.only(()), guards=self.guards.only(()))

    def slice(self, sources: Sequence[int]) -> dict[str, Any]:
        """See `SlicedJob`: the sources' own part of the scan."""
        return {"scan": self.scan.only(sources), "guards": self.guards.only(sources)}

    def need(self, sources: Sequence[int]) -> int:
        """The largest source's own estimate, beside the scan."""
        return int(self._needs[list(sources)].max())

    @cached_property
    def _needs(self) -> NDArray[np.int64]:
        return derive_memory(self.scan, self.room)


def lots(sources: Sequence[int], sizes: NDArray[np.int64]) -> list[tuple[int, ...]]:
    """Sources dealt out to lots of consecutive ones: few and small, so that all workers have some.

    Parameters
    ----------
    sources
        Their numbers.
    sizes
        Bytes of the files of each source there is.
    """
    most, held = min(max(1, len(sources) // LOTS), LOT), 0
    found: list[tuple[int, ...]] = []
    first = 0
    for at, source in enumerate(sources):
        held += int(sizes[source])
        if at > first and (held > LOT_BYTES or at - first == most):
            found.append(tuple(sources[first:at]))
            first, held = at, int(sizes[source])
    return [*found, tuple(sources[first:])] if sources else []


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardJob:
    """Write shards: ``job(task)`` writes one shard of every column of the task's table."""

    converter: Converter
    scan: Scan
    guards: Guards
    spill: Spill
    target: Target
    plan: Plan
    spilled: Mapping[str, Table]
    reading: int = 0
    """The most that reading a source takes besides its rows, in bytes."""
    blocks: Blocks = field(default_factory=Blocks, compare=False)
    """Memory of the rows of tasks that are written."""
    kept: Kept = field(default_factory=Kept, compare=False)
    """Rows that need not be read again in this process."""
    known: Sequence[Piece] | None = None
    """Pieces of the one task that this is for; None: of any."""

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
        table = task.table
        try:
            with self.target.together() as together:
                files = [
                    write_column(together, task.number, column, spread)
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

    def bare(self) -> ShardJob:
        """See `SlicedJob`: without sources."""
        tables = tuple(replace(table, source_rows=()) for table in self.plan.tables)
        return replace(
            self,
            scan=self.scan.only(()),
            guards=self.guards.only(()),
            spill=self.spill.only(0, 0),
            plan=replace(self.plan, sources=(), tables=tables),
        )

    def slice(self, task: ShardTask) -> dict[str, Any]:
        """See `SlicedJob`: the sources that its rows come from."""
        pieces = self._pieces(task)
        numbers = range(pieces[0].source, pieces[-1].source + 1)
        return {
            "scan": self.scan.only(numbers),
            "guards": self.guards.only(numbers),
            "spill": self.spill.only(numbers.start, numbers.stop),
            "known": pieces,
        }

    def _pieces(self, task: ShardTask) -> Sequence[Piece]:
        return self.known or list(self.plan.table(task.table).pieces(task.lo, task.hi))

    def describe(self, task: ShardTask) -> str:
        """Table, rows, and the rows of the sources that they come from."""
        pieces = self._pieces(task)
        names = [f"{self.scan.sources[each.source].name} rows {each.lo}:{each.hi}" for each in pieces[:SHOWN]]
        more = f" and {len(pieces) - SHOWN} more" if len(pieces) > SHOWN else ""
        return f"rows {task.lo}:{task.hi} of table {task.table!r} (from {', '.join(names)}{more})"

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
        pieces = self._pieces(task)
        if in_planes(self.converter, table):
            return [
                Planes(
                    array,
                    task.lo,
                    [partial(self.read_planes, table.name, array.column, piece.source) for piece in pieces],
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

        digests = np.empty((len(pieces), len(blocks)), "S32")

        def read(at: int) -> tuple[Problem, ...]:
            piece = pieces[at]
            out = {column: block[piece.at :][: piece.hi - piece.lo] for column, block in blocks.items()}
            source = self.scan.sources[piece.source]
            try:
                with reading(source, self.guards[piece.source]):
                    first = task.lo + piece.at
                    if not self.kept.fill(table.name, first, first + piece.hi - piece.lo, out):
                        self._fill(table.name, piece.source, piece.lo, piece.hi, out)
            except InputError as error:
                return _problems(error, source)
            digests[at] = [content_digest(rows) for rows in out.values()]
            return ()

        turns = spread if self.converter.thread_safe and not table.spilled else in_turn
        if problems := [each for found in turns(read, range(len(pieces)), AHEAD) for each in found]:
            raise InputError(problems)
        return [
            InMemory(array, (task.lo, task.hi), blocks[array.column], digests[:, at])
            for at, array in enumerate(table.arrays)
        ]

    def read_planes(
        self, table: str, column: str, number: int, lo: int, hi: int, block: NDArray[Any]
    ) -> None:
        """Read planes ``lo:hi`` of the row of a source into `block`, (1, hi - lo, …)."""
        source = self.scan.sources[number]
        try:
            with reading(source, self.guards[number]):
                self.converter.read_planes(self.scan, table, number, lo, hi, {column: block})
        except InputError as error:
            raise InputError(_problems(error, source)) from error

    def pieces(self, task: ShardTask, columns: Sequence[Column]) -> list[Any]:
        """Source and digest of each piece of a task, once all its columns have been taken."""
        return [
            [piece.source, _joined_digest({column.array.column: column.piece(at) for column in columns})]
            for at, piece in enumerate(self._pieces(task))
        ]

    def _fill(self, table: str, source: int, lo: int, hi: int, out: dict[str, NDArray[Any]]) -> None:
        spilled = self.spilled.get(table)
        if spilled is None:
            self.converter.read(self.scan, table, source, lo, hi, out)
            return
        for column, target in out.items():
            at = 0
            for rows in self.spill.read(table, column, source, lo, hi):
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
