"""The two kinds of work of a conversion, as pure functions of a job and a number: run anywhere, any order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from unistore.converters.exclusion import about
from unistore.converters.protocol import Concurrent, Converter, Facts, Planar, Scan, Source, Spacious
from unistore.errors import ConversionError, InputError, Problem
from unistore.execute.blocks import Blocks
from unistore.execute.memory import ROOM, derive_memory
from unistore.execute.planes import Parts, in_parts, task_memory
from unistore.execute.spill import Spill, SpillWriter
from unistore.execute.statistics import Moments
from unistore.execute.target import Files, Folder, Target
from unistore.plan import ArrayPlan, Piece, Plan, ShardTask, TablePlan
from unistore.schemas.tables import Table
from unistore.store.manifest import Entry
from unistore.zarr3.metadata import ArrayMetadata
from unistore.zarr3.threads import Spread, in_turn
from unistore.zarr3.writer import array_metadata, content_digest, encode_parts, encoded_shard

__all__ = [
    "DeriveJob",
    "Guard",
    "Outcome",
    "ShardJob",
    "guard_of",
    "metadata_of",
    "shard_key",
    "shard_statistics",
    "source_digest",
    "write_array",
    "write_parts",
]

SHOWN = 4
"""Sources that a message names."""
AHEAD = 16
"""Pieces of a task that may be read before the first of them is looked at."""

_Assembled: TypeAlias = tuple[dict[str, NDArray[Any]], list[Any], dict[str, str]]

Guard = tuple[tuple[str, int, int], ...]
"""Path, size and modification time (ns) of every file of a source."""


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
                with _reading(described, self.guards[source]):
                    facts = self._derive(writer, source)
            except InputError as error:
                return Outcome(problems=_problems(error, described))
            writer.finish(facts)
        return Outcome({"step": "derive", "source": source})

    def _derive(self, writer: SpillWriter, source: int) -> Facts:
        if isinstance(self.converter, Spacious):
            folder = writer.folder if self.scan.sources[source].held > self.room else None
            return self.converter.derive_in(folder, self.scan, source, writer.emit)
        return self.converter.derive(self.scan, source, writer.emit)

    def describe(self, source: int) -> str:
        """The source by name."""
        return f"reading {self.scan.sources[source].name}"

    def need(self, source: int) -> int:
        """The source's own estimate."""
        return derive_memory(self.scan.sources[source], self.room)


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
        """Assemble the task's rows from its sources, encode, write."""
        return self.begin(task, in_turn)()

    def begin(self, task: ShardTask, spread: Spread) -> Callable[[], Outcome]:
        """Assemble the task's rows; what is left encodes and writes them, and may run on another thread.

        Rows that are written in parts are read, encoded and written here.
        """
        table = self.plan.table(task.table)
        if parts := self.parts(task):
            outcome = self._write_parts(task, parts, spread)
            return lambda: outcome
        try:
            assembled = self._assemble(task, spread)
        except InputError as error:
            problems = error.problems
            return lambda: Outcome(problems=problems)
        return lambda: self._write(task, table, assembled, spread)

    def _write(self, task: ShardTask, table: TablePlan, assembled: _Assembled, spread: Spread) -> Outcome:
        blocks, digests, contents = assembled
        with self.target.together() as together:
            files = [
                write_array(
                    together,
                    array,
                    self.plan.codec,
                    task.number,
                    task.lo,
                    blocks[array.column],
                    contents.get(array.column),
                    spread,
                )
                for array in table.arrays
                if not array.is_empty
            ]
        record = {
            "step": "shard",
            "task": task.id,
            "files": [file.to_json() for file in files],
            "pieces": digests,
            "statistics": shard_statistics(table, blocks),
        }
        self.blocks.give(table.name, blocks)
        return Outcome(record)

    def describe(self, task: ShardTask) -> str:
        """Table, rows, and the rows of the sources that they come from."""
        pieces = self.plan.table(task.table).pieces(task.lo, task.hi)
        names = [f"{self.scan.sources[piece.source].name} rows {piece.lo}:{piece.hi}" for piece in pieces]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return f"rows {task.lo}:{task.hi} of table {task.table!r} (from {', '.join(names[:SHOWN])}{more})"

    def need(self, task: ShardTask) -> int:
        """All columns' rows, or parts of the one there is, with what encoding them takes."""
        table, reading = self.plan.table(task.table), 0 if task.table in self.spilled else self.reading
        return task_memory(self.converter, table, reading, streams=isinstance(self.target, Folder))

    def assemble(self, task: ShardTask) -> tuple[dict[str, NDArray[Any]], list[Any]]:
        """Rows of every column of a task, (rows, *row_shape), and source and digest of each of its pieces.

        Raises
        ------
        InputError
            With the problems of all its sources that cannot be read.
        """
        blocks, digests, _ = self._assemble(task, in_turn)
        return blocks, digests

    def _assemble(self, task: ShardTask, spread: Spread) -> _Assembled:
        """What `assemble` gives, and the digests of whole blocks as far as they are known: of one piece."""
        table = self.plan.table(task.table)
        rows = task.hi - task.lo
        blocks = {
            array.column: self.blocks.take(
                table.name, array.column, (rows, *array.shape[1:]), array.field.dtype, array.field.fill
            )
            for array in table.arrays
        }
        pieces = list(table.pieces(task.lo, task.hi))

        def read(piece: Piece) -> tuple[dict[str, str], tuple[Problem, ...]]:
            out = {column: block[piece.at :][: piece.hi - piece.lo] for column, block in blocks.items()}
            source = self.scan.sources[piece.source]
            try:
                with _reading(source, self.guards[piece.source]):
                    self._fill(table.name, piece.source, piece.lo, piece.hi, out)
            except InputError as error:
                return {}, _problems(error, source)
            return {column: content_digest(rows) for column, rows in out.items()}, ()

        turns = spread if isinstance(self.converter, Concurrent) and not table.spilled else in_turn
        read_pieces = list(turns(read, pieces, AHEAD))
        if problems := [problem for _, found in read_pieces for problem in found]:
            raise InputError(problems)
        digests = [
            [piece.source, _joined_digest(contents)]
            for piece, (contents, _) in zip(pieces, read_pieces, strict=True)
        ]
        return blocks, digests, read_pieces[0][0] if len(pieces) == 1 else {}

    def parts(self, task: ShardTask) -> list[Parts]:
        """Columns of a task whose rows are read in parts, to be taken one after the other; else none.

        Parts that cannot be read raise an `InputError` with the problems of their source.
        """
        table = self.plan.table(task.table)
        if not in_parts(self.converter, table):
            return []

        def read(number: int, column: str, lo: int, hi: int, block: NDArray[Any]) -> None:
            source = self.scan.sources[number]
            try:
                with _reading(source, self.guards[number]):
                    self._planar.read_planes(self.scan, table.name, number, lo, hi, {column: block})
            except InputError as error:
                raise InputError(_problems(error, source)) from error

        sources = [piece.source for piece in table.pieces(task.lo, task.hi)]
        return [
            Parts(array, [partial(read, source, array.column) for source in sources])
            for array in table.arrays
        ]

    def pieces(self, task: ShardTask, parts: Sequence[Parts]) -> list[Any]:
        """Source and digest of each row, once all parts have been taken; see `assemble`."""
        return [
            [piece.source, _joined_digest({each.array.column: each.contents[at] for each in parts})]
            for at, piece in enumerate(self.plan.table(task.table).pieces(task.lo, task.hi))
        ]

    def _write_parts(self, task: ShardTask, parts: Sequence[Parts], spread: Spread) -> Outcome:
        """Write rows, a column after the other, some planes at a time."""
        try:
            with self.target.together() as together:
                files = [write_parts(together, self.plan.codec, task, each, spread) for each in parts]
        except InputError as error:
            return Outcome(problems=error.problems)
        record = {
            "step": "shard",
            "task": task.id,
            "files": [file.to_json() for file in files],
            "pieces": self.pieces(task, parts),
            "statistics": {},
        }
        return Outcome(record)

    @property
    def _planar(self) -> Planar:
        assert isinstance(self.converter, Planar)
        return self.converter

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


def shard_statistics(table: TablePlan, blocks: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Moments of the columns of a task that have statistics, as JSON for the journal."""
    return {
        array.field.path: Moments.of(blocks[array.column]).to_json()
        for array in table.arrays
        if array.field.statistics
    }


def metadata_of(array: ArrayPlan, codec: str) -> ArrayMetadata:
    """Zarr metadata of a planned array."""
    return array_metadata(
        array.shape,
        np.dtype(array.field.dtype),
        array.chunk,
        array.shard,
        codec,
        fill=array.field.fill,
        attributes=dict(array.field.attributes),
        dimension_names=array.field.axes,
    )


def shard_key(array: ArrayPlan, number: int) -> str:
    """Key of the shard that holds rows ``number * shard rows`` onwards (shards span whole rows)."""
    return "/".join([array.field.path, "c", str(number), *("0" for _ in array.shape[1:])])


def write_array(
    files: Files,
    array: ArrayPlan,
    codec: str,
    number: int,
    lo: int,
    block: NDArray[Any],
    content: str | None = None,
    spread: Spread = in_turn,
) -> Entry:
    """Encode rows from `lo` on as shard `number` of an array and write it.

    `content` is their digest, where it is known.
    """
    metadata = metadata_of(array, codec)
    key = shard_key(array, number)
    at = (number, *(0 for _ in array.shape[1:]))
    written = files.put(key, encoded_shard(metadata, at, block, spread))
    return Entry(
        key=key,
        bytes=written.bytes,
        checksum=written.checksum,
        rows=(lo, lo + len(block)),
        content=content or content_digest(block),
    )


def write_parts(files: Files, codec: str, task: ShardTask, parts: Parts, spread: Spread = in_turn) -> Entry:
    """Encode the rows of a task, given in parts, as a shard of their array and write it."""
    metadata = metadata_of(parts.array, codec)
    written = files.put(shard_key(parts.array, task.number), encode_parts(metadata, parts, spread))
    return Entry(
        key=written.key,
        bytes=written.bytes,
        checksum=written.checksum,
        rows=(task.lo, task.hi),
        content=parts.content,
    )


def guard_of(source: Source) -> Guard:
    """Look at a source's files as they are now."""
    return tuple(
        (str(file), stat.st_size, stat.st_mtime_ns) for file in source.files for stat in [file.stat()]
    )


def check_unchanged(guard: Guard) -> None:
    """Raise if a file is no longer what the scan saw.

    Raises
    ------
    ConversionError
        Naming the file and what changed.
    """
    for path, size, modified in guard:
        try:
            stat = Path(path).stat()
        except OSError as error:
            msg = f"{path}: vanished while it was converted ({error.strerror}); bring it back and run again"
            raise ConversionError(msg) from error
        if (stat.st_size, stat.st_mtime_ns) != (size, modified):
            msg = (
                f"{path}: changed while it was converted ({size} → {stat.st_size} bytes); "
                "run again with --restart when nothing writes to it"
            )
            raise ConversionError(msg)


def _joined_digest(contents: Mapping[str, str]) -> str:
    """xxh3-128 over column names and the digests of their values, columns sorted by name."""
    digest = xxhash.xxh3_128()
    for column in sorted(contents):
        digest.update(f"{column} {contents[column]}\n".encode())
    return digest.hexdigest()


def _problems(error: InputError, source: Source) -> tuple[Problem, ...]:
    return tuple(about(source.name, error.problems or [Problem(source.name, str(error))]))


@contextmanager
def _reading(source: Source, guard: Guard) -> Iterator[None]:
    """Tell a file that changed under the converter from one that is bad, and name the source of an error."""
    try:
        yield
    except Exception as error:  # a file that is replaced while it is read fails in any way
        check_unchanged(guard)
        if not isinstance(error, OSError) or error.filename is not None:
            raise
        msg = f"{source.path}: reading failed ({error}); the same command continues"
        raise ConversionError(msg) from error
    check_unchanged(guard)


def source_digest(pieces: Sequence[str]) -> bytes:
    """Content digest of a source, 16 bytes: xxh3-128 over its pieces' digests in table and row order."""
    return xxhash.xxh3_128_digest("\n".join(pieces).encode())
