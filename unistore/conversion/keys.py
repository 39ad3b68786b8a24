"""Keys of steps: digests of what decides a step's result, so that no step is repeated."""

# Keys change when sources are left out (sources are renumbered, rows move, columns may change dtype), but
# those of steps that this does not affect stay

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from unistore.conversion.plan import Piece, Plan, json_digest
from unistore.converters.common.faults import as_problem
from unistore.converters.protocol import Scan, SourceReader
from unistore.errors import ConversionError, InputError, UnistoreError, with_source
from unistore.store.names import SOURCES
from unistore.system.packed import PackedObjects, view
from unistore.system.types import Int64s, JsonObject, PathLike
from unistore.zarr3.documents import DocumentError, is_list_of, parse_document
from unistore.zarr3.storage import AbsentError, Storage

# Fingerprints of source files (size and times), to detect changes during a conversion.


class FileState(NamedTuple):
    """Path, size in bytes, and times of modification and status change in ns of a file."""

    # A writer can reset the modification time, but not the status change time, which also changes with
    # permissions and links

    path: str
    size: int
    modified: int
    changed: int


Fingerprint = tuple[FileState, ...]  # State of every file of a source


Fingerprints = PackedObjects[Fingerprint]  # Fingerprints of all sources


def _state_of(file: str) -> FileState:
    stat = os.stat(file)  # noqa: PTH116  twice as fast as Path.stat
    return FileState(file, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


# What the files of each source were when a conversion scanned them, kept with its sealed store. The manifest
# does not list the document, and the digest of a store does not depend on it: times differ between two
# conversions of the same files. Without it nobody knows which sources are as they were, and values are read.

_SECOND = 1_000_000_000
# File systems that keep whole seconds, or every other one, give the same time to what is written later in it
_COARSE = 2 * _SECOND


class FileTime(NamedTuple):
    """Size of a file in bytes, and the later of its times of modification and status change in ns."""

    size: int
    changed: int

    @classmethod
    def of(cls, path: PathLike) -> FileTime:
        """Return that of a file as it is now."""
        state = os.stat(path)  # noqa: PTH116  twice as fast as Path.stat
        return cls(state.st_size, max(state.st_mtime_ns, state.st_ctime_ns))


class SourceState(NamedTuple):
    """The files of a source, and when the scan began that found them so, in ns since 1970."""

    scanned: int
    files: tuple[FileTime, ...]

    def is_now(self, paths: Iterable[PathLike]) -> bool:
        """Return whether files are surely these, unchanged. False where they may be."""
        if not self.files or not all(map(self._is_settled, self.files)):
            return False
        try:
            return sorted(map(FileTime.of, paths)) == sorted(self.files)
        except OSError:  # told by whoever reads them
            return False

    def _is_settled(self, file: FileTime) -> bool:
        # One that changed after the scan began may have changed once more within the same time stamp
        margin = 0 if file.changed % _SECOND else _COARSE
        return file.changed < self.scanned - margin


UNKNOWN = SourceState(0, ())


@dataclass(frozen=True, slots=True)
class SourceStates:
    """The states of all sources of a store, by number."""

    states: Sequence[SourceState]

    @property
    def scanned(self) -> int:
        """Return when the earliest scan began, 0 if that is unknown of any source."""
        return min((state.scanned for state in self.states), default=0)

    def to_bytes(self, seal: str) -> bytes:
        """Return the document of a store, by the digest of its seal."""
        scans = sorted({state.scanned for state in self.states})
        files = [file for state in self.states for file in state.files]
        document = {
            "seal": seal,
            "scans": scans,
            "scan": [scans.index(state.scanned) for state in self.states],
            "files": [len(state.files) for state in self.states],
            "sizes": [file.size for file in files],
            "changed": [file.changed for file in files],
        }
        return json.dumps(document, separators=(",", ":")).encode()


def read_states(storage: Storage, seal: str, sources: int) -> SourceStates:
    """Return the states of the sources of a store, unknown where it has none, or those of another store.

    Raises a `StoreError` where the file is there and cannot be read.
    """
    unknown = SourceStates([UNKNOWN] * sources)
    try:
        document = parse_document(storage.get(SOURCES))
    except (AbsentError, DocumentError):
        return unknown
    columns = [document.get(name) for name in ("scans", "scan", "files", "sizes", "changed")]
    lists = [column for column in columns if is_list_of(column, int)]
    if document.get("seal") != seal or len(lists) != len(columns):
        return unknown
    scans, scan, counts, sizes, changed = lists
    is_whole = len(scan) == len(counts) == sources and len(sizes) == len(changed) == sum(counts)
    if not is_whole or min(counts, default=0) < 0 or not {*scan} <= {*range(len(scans))}:
        return unknown
    files = [FileTime(*file) for file in zip(sizes, changed, strict=True)]
    ends = accumulate(counts)
    return SourceStates(
        [
            SourceState(scans[number], tuple(files[end - count : end]))
            for number, count, end in zip(scan, counts, ends, strict=True)
        ]
    )


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is converted: a converter, the sources that it found, and the state of their files."""

    converter: SourceReader
    scan: Scan
    fingerprints: Fingerprints

    @classmethod
    def of(cls, converter: SourceReader, scan: Scan) -> Inputs:
        """Return the inputs with their files as they are now."""
        files = (tuple(map(_state_of, files)) for files in scan.sources.files())
        return cls(converter, scan, PackedObjects(files))

    def only(self, numbers: Collection[int]) -> Inputs:
        """Return some sources, which keep their numbers, to be sent to another process."""
        return Inputs(self.converter, self.scan.only(numbers), self.fingerprints.only(numbers))

    def sizes(self) -> Int64s:
        """Return bytes of the files of each source."""
        sizes = (sum(file.size for file in fingerprint) for fingerprint in self.fingerprints)
        return np.fromiter(sizes, np.int64, len(self.fingerprints))

    def states(self, scanned: int) -> SourceStates:
        """Return what a store keeps of the files. `scanned` is when the scan began, in ns since 1970."""
        states = []
        for fingerprint in self.fingerprints:
            files = [FileTime(file.size, max(file.modified, file.changed)) for file in fingerprint]
            states.append(SourceState(scanned, tuple(files)))
        return SourceStates(states)

    def check_unchanged(self) -> None:
        """Refuse sources that changed since the scan."""
        for fingerprint in self.fingerprints:
            check_unchanged(fingerprint)

    @contextmanager
    def reading(self, number: int) -> Iterator[str]:
        """Read a source, of the name that is yielded: exceptions become its problems, unless it changed."""
        name = self.scan.sources.names[number]
        try:
            with as_problem(name, name):
                yield name
        except UnistoreError as error:  # may be a consequence of the change
            check_unchanged(self.fingerprints[number])
            if isinstance(error, InputError):
                raise InputError(with_source(name, error.problems_at(name))) from error
            raise
        check_unchanged(self.fingerprints[number])


def check_unchanged(fingerprint: Fingerprint) -> None:
    """Refuse a source that changed since the scan."""
    for before in fingerprint:
        try:
            now = _state_of(before.path)
        except OSError as error:
            msg = (
                f"{before.path}: disappeared during the conversion: {error.strerror}. "
                "Fix: put it back and run the same command"
            )
            raise ConversionError(msg) from error
        if (now.size, now.modified) != (before.size, before.modified):
            msg = (
                f"{before.path}: changed during the conversion, from {before.size:,} to {now.size:,} bytes. "
                "Fix: wait until no program writes to it, then run the same command with --restart"
            )
            raise ConversionError(msg)
        if now.changed != before.changed:
            msg = (
                f"{before.path}: its content, permissions or links changed during the conversion, although "
                "its size and modification time did not. Fix: run the same command, which reads it again"
            )
            raise ConversionError(msg)


# Raised by every change of what a source's derived rows, their files or the record of a shard hold. An
# unfinished conversion begun under another number is done again: its shards are those of older code.
CONTENT = 11

Keys = NDArray[np.bytes_]  # Keys of all sources, (sources,) of 32 bytes

# Options that select sources, without effect on the rows of the others
_SELECTING = ("exclude", "skipped")


def source_keys(inputs: Inputs) -> Keys:
    """Return a key for every source, (sources,)."""
    # The fingerprint has the status change time: a file rewritten with its old size and modification time
    # is read again
    scan = inputs.scan
    options = {name: value for name, value in scan.options.items() if name not in _SELECTING}
    shared = json_digest([CONTENT, scan.family, options, [asdict(table) for table in scan.tables]])
    sources = scan.sources
    columns = sources.names, inputs.fingerprints, sources.each_rows(), sources.details
    keys = (json_digest([shared, *columns_of_source]) for columns_of_source in zip(*columns, strict=True))
    return np.fromiter(keys, "S32", len(sources))


def task_keys(plan: Plan, sources: Keys) -> dict[str, str]:
    """Return key of every task by id: the form of its columns, and the pieces of sources, by their keys."""
    keys = {}
    for table in plan.tables:
        form = json_digest(
            [
                dict(plan.versions),
                [
                    [asdict(array.field), array.column, array.chunk, array.shard, array.codec]
                    for array in table.arrays
                ],
            ]
        )
        for task in table.tasks():
            pieces = view(table.pieces(task.lo, task.hi), partial(_key_of_piece, sources))
            keys[task.id] = json_digest([form, pieces])
    return keys


def _key_of_piece(sources: Keys, piece: Piece) -> list[Any]:
    return [sources[piece.source].decode(), piece.lo, piece.hi, piece.at]


# Identity of a source: a digest of its values as the file has them, see docs/format.md.

IDENTITY_BLOCK = 16 << 10  # bytes of a column that are hashed together
_MOST = 1 << 128


class ColumnDigest:
    """Digest of a column in a source, from the bytes of its values in order.

    Rows of which a task has a part are `follow`ed by those of the next: bytes of blocks that lie in both are
    kept until then.
    """

    __slots__ = ("edge", "form", "head", "rows", "start", "stop", "sum")

    def __init__(self, form: str, start: int = 0) -> None:
        self.form = form  # path, dtype and row shape
        self.start = self.stop = start  # where bytes begin and end in the column
        self.rows = 0
        self.sum = 0  # of the digests of whole blocks
        self.head = b""  # bytes of the block that begins before `start`
        self.edge = b""  # bytes of the block that ends behind `stop`

    def add(self, data: memoryview | bytes) -> None:
        """Take the bytes that follow."""
        rest = self.stop % IDENTITY_BLOCK
        begin = 0
        if rest:
            begin = min(len(data), IDENTITY_BLOCK - rest)
            self.edge += data[:begin]
            self.stop += begin
            if self.stop % IDENTITY_BLOCK:
                return
            if len(self.edge) == IDENTITY_BLOCK:
                self.sum += xxhash.xxh3_128_intdigest(self.edge, self.stop // IDENTITY_BLOCK - 1)
            else:
                self.head = self.edge
            self.edge = b""
        number = self.stop // IDENTITY_BLOCK
        end = len(data) - (len(data) - begin) % IDENTITY_BLOCK
        for at in range(begin, end, IDENTITY_BLOCK):
            self.sum += xxhash.xxh3_128_intdigest(data[at : at + IDENTITY_BLOCK], number)
            number += 1
        self.edge = bytes(data[end:])
        self.stop += len(data) - begin

    def follow(self, later: ColumnDigest) -> None:
        """Take the rows that another digest has, which begin where these end."""
        is_inside = later.start // IDENTITY_BLOCK == later.stop // IDENTITY_BLOCK  # reaches no border
        self.rows += later.rows
        self.add(later.edge if is_inside else later.head)
        if not is_inside:
            self.sum += later.sum
            self.stop = later.stop
            self.edge = later.edge

    def finish(self) -> int:
        """Return the digest, once all rows are there."""
        total = self.sum
        if self.edge:
            total += xxhash.xxh3_128_intdigest(self.edge, self.stop // IDENTITY_BLOCK)
        line = f"{self.form} {self.rows}\n".encode()
        return xxhash.xxh3_128_intdigest(line + (total % _MOST).to_bytes(16))

    def to_json(self) -> JsonObject:
        ends = [b64encode(end).decode() for end in (self.head, self.edge)]
        return {
            "form": self.form,
            "rows": self.rows,
            "bytes": [self.start, self.stop],
            "sum": f"{self.sum % _MOST:x}",
            "ends": ends,
        }

    @classmethod
    def from_json(cls, plain: JsonObject) -> ColumnDigest:
        start, stop = plain["bytes"]
        digest = cls(plain["form"], start)
        digest.stop = stop
        digest.rows = plain["rows"]
        digest.sum = int(plain["sum"], 16)
        digest.head, digest.edge = map(b64decode, plain["ends"])
        return digest


def joined_digest(columns: Iterable[int]) -> int:
    """Return the digest of a source from those of its columns, or of some and those of the others."""
    return sum(columns) % _MOST
