"""Job that writes the shards of tables, or reads parts of them before: rows as blocks, and their encoding."""

# The bytes of a shard do not depend on the block size: chunks and blocks are both in C order

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, pairwise
from math import prod
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import xxhash

from unistore.conversion.executors.local import Job, Outcome
from unistore.conversion.keys import ColumnDigest, Inputs, check_unchanged, joined_digest
from unistore.conversion.memory import scan_memory, shard_memory
from unistore.conversion.plan import ArrayPlan, Piece, Plan, ShardTask, TablePlan
from unistore.conversion.running_statistics import Moments
from unistore.conversion.spill import MIN_BATCHES, SHOWN, Spill
from unistore.errors import ConversionError, InputError, Problem, first_few, with_source, writing_failed
from unistore.schemas.array_specs import ArraySpec
from unistore.schemas.tables import IndexValues, OwnForm, Table
from unistore.store.manifest import Entry
from unistore.system.progress import listener, listening, portion
from unistore.system.types import AnyArray, JsonObject
from unistore.zarr3.durable import Files, Folder, Target
from unistore.zarr3.metadata import ArrayMetadata
from unistore.zarr3.writer import (
    OrderedMap,
    array_metadata,
    iter_shard_buffers,
    little_endian_bytes,
    ordered_map,
    serial_map,
)

INDEX_BLOCK_BYTES = 4 << 20  # Bytes of a block of an index array; at least one chunk
_FIX = "correct the file, or the schema of the family"
_WRITING = 0.5  # Share of a step that is encoding and writing, for its progress; the rest is reading
AHEAD = 16  # Pieces of a task that threads may read ahead
SMALL_SOURCE = 64 << 10  # Sources of fewer bytes of rows take longer to open than to read
MAX_PIECES = 256  # Most sources of a part


SHARD = "shard"  # Step of the journal

# ``read(lo, hi, block)``: read planes ``lo:hi`` into a block (1, hi - lo, …) filled with the fill value
ReadPlanes = Callable[[int, int, AnyArray], None]
Corner = tuple[int, ...]  # Start of a block on the leading axes that it does not span
# Of the rows of a source in a task: the digest of its columns, or those of single columns that go on
PieceDigest = int | list[ColumnDigest]


@dataclass(frozen=True, slots=True)
class PieceDigests:
    """The digests of the pieces of sources in a task, by their number in the task.

    Attributes
    ----------
    whole : str
        Digests of 32 hexadecimal digits, one after the other. 0 for a piece of a source that may go on.
    cut : mapping of str to list
        JSON of the digests of the columns of these pieces, by number.
    """

    whole: str
    cut: Mapping[str, list[JsonObject]]

    @classmethod
    def of(cls, digests: Sequence[PieceDigest]) -> PieceDigests:
        """Return these digests."""
        whole = [piece if isinstance(piece, int) else 0 for piece in digests]
        cut = {
            str(number): [column.to_json() for column in piece]
            for number, piece in enumerate(digests)
            if not isinstance(piece, int)
        }
        return cls("".join([f"{piece:032x}" for piece in whole]), cut)

    def whole_piece(self, number: int) -> int:
        """Return the digest of a piece, 0 if its source may go on."""
        return int(self.whole[32 * number : 32 * number + 32], 16)

    def cut_columns(self, number: int) -> list[ColumnDigest]:
        """Return the digests of the columns of a piece whose source may go on."""
        return list(map(ColumnDigest.from_json, self.cut.get(str(number), ())))


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """The record of a finished task in the journal.

    Its members are parsed when they are asked for: a journal is read once for each of them, and may have
    records of a hundred thousand tasks.
    """

    document: JsonObject

    @classmethod
    def of(
        cls,
        task: ShardTask,
        files: Sequence[Entry],
        digests: Sequence[PieceDigest],
        statistics: Mapping[str, Moments],
    ) -> ShardRecord:
        """Return the record of a task, with the moments of columns by path."""
        pieces = PieceDigests.of(digests)
        return cls(
            {
                "step": SHARD,
                "task": task.id,
                "files": [file.to_json() for file in files],
                "pieces": pieces.whole,
                "cut": pieces.cut,
                "statistics": {path: moments.to_json() for path, moments in statistics.items()},
            }
        )

    @property
    def task(self) -> str:
        """Name of the task."""
        return str(self.document["task"])

    @property
    def files(self) -> list[Entry]:
        """The shards that were written."""
        return list(map(Entry.from_json, self.document["files"]))

    @property
    def digests(self) -> PieceDigests:
        """Digests of the pieces of sources."""
        return PieceDigests(self.document["pieces"], self.document["cut"])

    @property
    def statistics(self) -> dict[str, Moments]:
        """Moments of columns, by path."""
        return {path: Moments.from_json(plain) for path, plain in self.document["statistics"].items()}


class ColumnRows:
    """Rows of a column of a task, as blocks that are iterated once."""

    def __init__(
        self,
        array: ArrayPlan,
        rows: tuple[int, int],
        blocks: Iterable[tuple[Corner, AnyArray]],  # whole rows, or planes of single rows
        block: AnyArray | None = None,  # all rows, if they are in memory
    ) -> None:
        self.array = array
        self.rows = rows  # (lo, hi)
        self.block = block
        self._blocks = blocks
        self._whole = xxhash.xxh3_128()

    def __iter__(self) -> Iterator[tuple[Corner, AnyArray]]:
        for corner, block in self._blocks:
            self._whole.update(little_endian_bytes(block))
            yield corner, block

    @property
    def content(self) -> str:
        """Return the digest of all rows, after iteration."""
        return self._whole.hexdigest()


class PieceRows(NamedTuple):
    """The digest of a column in a source, of which rows are taken as they are read."""

    form: OwnForm
    digest: ColumnDigest

    def take(self, stored: AnyArray, plane: int = 0) -> None:
        """Take stored rows, or planes of one."""
        for data in self.form.bytes_of(stored, plane):
            self.digest.add(data)


def large_rows(
    array: ArrayPlan, first: int, read: Sequence[ReadPlanes], taking: Sequence[PieceRows | None]
) -> ColumnRows:
    """Return rows from `first` on, some planes at a time. `read` has a function for each."""

    def blocks() -> Iterator[tuple[Corner, AnyArray]]:
        step = array.planes_at_once
        for row, (read_planes, piece) in enumerate(zip(read, taking, strict=True), first):
            for lo in range(0, array.shape[1], step):
                hi = min(lo + step, array.shape[1])
                block = array.blank(1, hi - lo)
                read_planes(lo, hi, block)
                if piece is not None:
                    piece.take(block, lo)
                yield (row, lo), block

    return ColumnRows(array, (first, first + len(read)), blocks())


def index_rows(array: ArrayPlan, number: int, values: IndexValues) -> ColumnRows:
    """Return rows of one shard of an index array, from all its values."""
    first = number * array.shard[0]
    last = min(first + array.shard[0], len(values))
    chunk_rows = array.chunk[0]
    chunk_bytes = chunk_rows * max(1, array.field.row_bytes)
    step = chunk_rows * max(1, INDEX_BLOCK_BYTES // chunk_bytes)
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
    return f"{array.field.path}/c/{number}" + "/0" * (len(array.shape) - 1)


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


def broken_rows(
    plan: Plan,
    bounded: Mapping[str, ArraySpec],  # from `Plan.bounded_columns`
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
            problems += [Problem(source, error, _FIX, "values", dataset=column) for error in errors]
    return problems


@dataclass(frozen=True, slots=True)
class RowsRead:
    """Rows of parts of tables that were read before their shards are written.

    They are not in the journal: a continued conversion reads parts again.
    """

    folder: Path
    parts: list[ShardTask] = field(default_factory=list)

    def _file(self, part: ShardTask, column: str) -> Path:
        folder = f"{part.table}.{part.lo}.{part.hi}".replace("/", "#")
        return self.folder / folder / column.replace("/", "#")

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
            msg = f"{file}: cannot be read: {error.strerror}. Fix: run the same command again"
            raise ConversionError(msg) from error
        if values.size < target.size:
            msg = f"{file}: has fewer rows than were written. Fix: run the same command again"
            raise ConversionError(msg)
        target[...] = values.reshape(target.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardJob(Job[ShardTask]):
    """Write one shard of every column of a task's table.

    With `reads_parts`, a step only reads rows of a table, which `rows_read` keeps.
    """

    is_journaled: ClassVar[bool] = True
    inputs: Inputs
    spill: Spill
    target: Target
    plan: Plan
    spilled: Mapping[str, Table]
    reading: int = 0  # From `reading_memory`
    bounded: Mapping[str, ArraySpec] = field(default_factory=dict)  # From `Plan.bounded_columns`
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
            columns, digests = self.columns(task, ordered_map)
            if self.reads_parts:
                blocks = {column.array.column: column.block for column in columns}
                rows = {name: block for name, block in blocks.items() if block is not None}
                self.rows_read.write(task, rows)
                return Outcome()
            table = self.plan.table(task.table)
            nbytes = self.plan.task_bytes(task)
            weight = 1.0 if self.in_planes(table) else _WRITING
            with self.target.together() as together, portion(int(nbytes * weight), weight):
                files = [
                    write_column(together, task.number, column, ordered_map)
                    for column in columns
                    if not column.array.is_empty
                ]
        except InputError as error:
            return Outcome(problems=error.problems)
        return Outcome(self.record(task, files, columns, digests).document)

    def record(
        self,
        task: ShardTask,
        files: Sequence[Entry],
        columns: Sequence[ColumnRows],
        digests: Sequence[PieceDigest],
    ) -> ShardRecord:
        """Return the record of a task for the journal, after iteration of all its columns."""
        statistics = {}
        for column in columns:
            if column.block is not None and column.array.field.statistics:
                statistics[column.array.field.path] = Moments.of(column.block)
        return ShardRecord.of(task, files, digests, statistics)

    def parts(self, workers: int) -> list[ShardTask]:
        """Return parts in which all workers read the tables that have fewer shards than there are workers."""
        return list(chain.from_iterable(_parts_of(table, workers) for table in self.plan.tables))

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
        origins = [f"{names[piece.source]} rows {piece.lo}:{piece.hi}" for piece in pieces]
        return f"rows {task.lo}:{task.hi} of table {task.table!r} (from {first_few(origins, SHOWN)})"

    def need(self, task: ShardTask) -> int:
        """Return peak bytes of the task, scan included."""
        table = self.plan.table(task.table)
        streams = isinstance(self.target, Folder)
        return scan_memory(self.inputs.scan) + shard_memory(
            self.inputs.converter, table, self.reading, streams=streams
        )

    def columns(
        self, task: ShardTask, ordered_map: OrderedMap = serial_map
    ) -> tuple[list[ColumnRows], list[PieceDigest]]:
        """Return rows of every column of a task, read now, or some planes at a time while iterated.

        And the digests of the sources of these rows, which are known after iteration.
        """
        table = self.plan.table(task.table)
        pieces = self.pieces_of(task)
        if self.in_planes(table):
            return self._large_columns(task, table, pieces)
        blocks = self._blank(task)
        digests: list[PieceDigest] = [0] * len(pieces)
        is_read = self.rows_read.fill(table.name, task.lo, task.hi, blocks)
        weight = 1.0 if self.reads_parts else 1.0 - _WRITING
        of_step = listener()  # which threads of the step tell, too

        def read(number: int) -> Sequence[Problem]:
            source, lo, hi, at = pieces[number]
            out = {column: block[at:][: hi - lo] for column, block in blocks.items()}
            try:
                if is_read:
                    check_unchanged(self.inputs.fingerprints[source])
                else:
                    with listening(of_step), portion(int((hi - lo) * table.row_bytes * weight), weight):
                        self._read(task, pieces[number], out)
            except InputError as error:
                return error.problems
            rows = self._identified(table, pieces[number])
            for column, piece in rows.items():
                piece.take(out[column])
            columns = [piece.digest for piece in rows.values()]
            # a source may begin before its first piece here, and go on behind the last
            is_cut = lo > 0 or number == len(pieces) - 1
            digests[number] = columns if is_cut else joined_digest(column.finish() for column in columns)
            return ()

        turns = ordered_map if self.inputs.converter.thread_safe and not table.spilled else serial_map
        problems = list(chain.from_iterable(turns(read, range(len(pieces)), AHEAD)))
        if problems:
            raise InputError(problems)
        columns = []
        for array in table.arrays:
            block = blocks[array.column]
            columns.append(ColumnRows(array, (task.lo, task.hi), [((task.lo,), block)], block))
        return columns, digests

    def in_planes(self, table: TablePlan) -> bool:
        """Return whether the rows of a table are read some planes at a time."""
        return self.inputs.converter.reads_planes and table.has_planes

    def _large_columns(
        self, task: ShardTask, table: TablePlan, pieces: Sequence[Piece]
    ) -> tuple[list[ColumnRows], list[PieceDigest]]:
        identified = [self._identified(table, piece) for piece in pieces]
        columns = []
        for array in table.arrays:
            read = [partial(self.read_planes, table.name, array.column, piece.source) for piece in pieces]
            taking = [rows.get(array.column) for rows in identified]
            columns.append(large_rows(array, task.lo, read, taking))
        return columns, [[piece.digest for piece in rows.values()] for rows in identified]

    def _identified(self, table: TablePlan, piece: Piece) -> dict[str, PieceRows]:
        """Return the digests of the columns that a source has itself, whose rows are to be taken."""
        if self.reads_parts:
            return {}
        fields = {array.column: array.field for array in table.arrays}
        forms = self.inputs.converter.own(self.inputs.scan, table.name, piece.source, fields)
        rows = {}
        for column, form in forms.items():
            digest = ColumnDigest(f"{form.path or fields[column].path} {form}", piece.lo * form.row_bytes)
            digest.rows = piece.hi - piece.lo
            rows[column] = PieceRows(form, digest)
        return rows

    def cached(self, task: ShardTask) -> dict[str, AnyArray] | None:
        """Return rows of a task by column, if they were read already."""
        blocks = self._blank(task)
        return blocks if self.rows_read.fill(task.table, task.lo, task.hi, blocks) else None

    def _blank(self, task: ShardTask) -> dict[str, AnyArray]:
        arrays = self.plan.table(task.table).arrays
        return {array.column: array.blank(task.hi - task.lo) for array in arrays}

    def _read(self, task: ShardTask, piece: Piece, out: dict[str, AnyArray]) -> None:
        source, lo, hi, at = piece
        with self.inputs.reading(source) as name:
            first = task.lo + at
            if not self.rows_read.fill(task.table, first, first + hi - lo, out):
                self._fill(task.table, source, lo, hi, out)
        self._check_bounds(name, task.table, lo, out)

    def read_planes(self, table: str, column: str, number: int, lo: int, hi: int, block: AnyArray) -> None:
        """Read planes ``lo:hi`` of the row of a source into `block`, (1, hi - lo, …)."""
        with self.inputs.reading(number) as name, portion(0):  # counted once written
            watched = WatchedColumns({column: block})
            self.inputs.converter.read_planes(self.inputs.scan, table, number, lo, hi, watched)
            if lo == 0:  # planes behind the end of a smaller volume are fill
                self._check_all_read(name, table, watched)
        self._check_bounds(name, table, 0, {column: block})

    def _check_bounds(self, name: str, table: str, first_row: int, columns: Mapping[str, AnyArray]) -> None:
        if broken := broken_rows(self.plan, self.bounded, name, table, first_row, columns):
            raise InputError(with_source(name, broken))

    def _fill(self, table: str, source: int, lo: int, hi: int, out: dict[str, AnyArray]) -> None:
        spilled = self.spilled.get(table)
        if spilled is None:
            watched = WatchedColumns(out)
            self.inputs.converter.read(self.inputs.scan, table, source, lo, hi, watched)
            self._check_all_read(self.inputs.scan.sources.names[source], table, watched)
            return
        for column, target in out.items():
            start = 0
            for rows in self.spill.read(table, column, source, lo, hi):
                stop = start + len(rows)
                out_rows = target[start:stop]
                self.inputs.converter.pack(self.inputs.scan, spilled, column, source, rows, out_rows)
                start = stop

    def _check_all_read(self, name: str, table: str, watched: WatchedColumns) -> None:
        # Fill must not be stored for columns that the converter forgot
        if watched.untouched:
            forgotten = ", ".join(sorted(watched.untouched))
            reader = self.inputs.converter.class_name
            msg = f"{name}: {reader} did not read {forgotten} of the table '{table}'. Fix: please report it"
            raise ConversionError(msg)


class WatchedColumns(Mapping[str, AnyArray]):
    """Memory that a converter reads columns into. `untouched` names those that it never looked at."""

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


def _parts_of(table: TablePlan, workers: int) -> list[ShardTask]:
    """Return parts in which all workers read a table, none if it has a shard for each.

    There are none, either, if its rows are spilled, or its sources are few or large.
    """
    rows = np.array(table.source_rows, np.int64)
    starts = (np.cumsum(rows) - rows)[rows > 0]
    if (
        table.spilled
        or table.rows > (workers - 1) * table.shard_rows
        or len(starts) < MIN_BATCHES
        or table.rows * table.row_bytes > len(starts) * SMALL_SOURCE
    ):
        return []
    sources = min(MAX_PIECES, len(starts) // MIN_BATCHES)
    bounds = [*starts[::sources].tolist(), table.rows]
    return [ShardTask(table.name, number, *span) for number, span in enumerate(pairwise(bounds))]
