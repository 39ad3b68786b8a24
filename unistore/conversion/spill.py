"""Scratch files of rows of tables whose length is known once the sources are read, and the job that reads."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar, Self

import numpy as np

from unistore.conversion.executors.local import Job, Outcome
from unistore.conversion.keys import Inputs, Keys
from unistore.conversion.memory import STEP_BUDGET, derive_memory, scan_memory
from unistore.conversion.plan import json_digest
from unistore.converters.protocol import SourceArrays
from unistore.errors import ConversionError, InputError, Problem, first_few, writing_failed
from unistore.system.packed import Items
from unistore.system.progress import advanced, portion
from unistore.system.types import AnyArray, Int64s, JsonObject, UInt8s
from unistore.zarr3.durable import sync_files, sync_folders

DESCRIPTION = "rows.json"
PREPARED = "facts.bin"
MIN_BATCHES = 32  # Least number of batches, if there are as many sources
BATCH_SOURCES = 256  # Most sources of a batch
BATCH_BYTES = 16 << 20  # Most bytes of the files of a batch of several sources
SHOWN = 4  # Sources that a description names
AHEAD = 64 << 10  # Bytes that are read at a time, at least
OPEN = 4  # Batches that a process keeps open


@dataclass(slots=True)
class SpilledColumn:
    """A column of a table in a batch, as the description of the batch has it.

    Attributes
    ----------
    table, column : str
        Names of the table and of the column.
    row_shape : list of int
        Shape of a row.
    file : str
        File of the rows of all sources.
    runs : dict of int to list
        By source of the batch, runs of rows of one dtype: its name, their number, and where they begin in
        the file.
    """

    table: str
    column: str
    row_shape: list[int]
    file: str
    runs: dict[int, list[tuple[str, int, int]]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, described: JsonObject) -> SpilledColumn:
        """Return the column of its JSON object, which has texts as numbers of sources."""
        runs = {int(source): runs for source, runs in described["runs"].items()}
        return cls(described["table"], described["column"], described["row_shape"], described["file"], runs)

    def add(self, source: int, dtype: str, rows: int, position: int) -> None:
        """Take rows of a source that begin at `position` in the file."""
        runs = self.runs.setdefault(source, [])
        if runs and runs[-1][0] == dtype:
            _, before, position = runs.pop()
            rows += before
        runs.append((dtype, rows, position))


class SpillWriter:
    """Writes the rows and prepared arrays of a batch of sources, one source after the other."""

    def __init__(
        self,
        folder: Path,  # the batch's folder; emptied first, as a killed run may have left files
    ) -> None:
        self.folder = folder
        self._files: dict[tuple[str, str], IO[bytes]] = {}
        self._columns: dict[tuple[str, str], SpilledColumn] = {}
        self._sources: list[tuple[str | None, list[Any]]] = []
        self._prepared = bytearray()

    def __enter__(self) -> Self:
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(*([OSError] if error is not None else [])):  # keep the first error
            for file in self._files.values():
                file.close()

    def emit(self, table: str, column: str, rows: AnyArray) -> None:
        """Append rows (axis 0) to a column. The dtype may differ from that of earlier rows."""
        advanced(rows.nbytes)
        key = (table, column)
        row_shape = list(rows.shape[1:])
        if key not in self._columns:
            self._columns[key] = SpilledColumn(table, column, row_shape, f"{len(self._columns)}.bin")
        spilled = self._columns[key]
        if spilled.row_shape != row_shape:
            msg = f"{table}/{column}: emitted {rows.shape[1:]} after {spilled.row_shape}"
            raise ValueError(msg)
        try:
            if key not in self._files:
                self._files[key] = (self.folder / spilled.file).open("wb")
            position = self._files[key].tell()
            self._files[key].write(np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data)
        except OSError as error:
            raise writing_failed(error, self.folder) from error
        spilled.add(len(self._sources), rows.dtype.str, len(rows), position)

    def end_source(self, key: str | None, prepared: SourceArrays) -> None:
        """End a source, whose rows were emitted since the last call. `key` None marks it as invalid."""
        forms = []
        for name, value in prepared.items():
            array = np.asarray(value)
            if array.dtype.hasobject:
                msg = f"array {name}: {array.dtype} values are objects"
                raise ValueError(msg)
            forms.append((name, array.dtype.str, array.shape))
            self._prepared += array.tobytes()
        self._sources.append((key, forms))

    def finish(self) -> None:
        """Write the prepared arrays and sync all files, then write and sync the description."""
        described = {"columns": list(map(asdict, self._columns.values())), "sources": self._sources}
        try:
            with (self.folder / PREPARED).open("wb") as values:
                values.write(self._prepared)
                sync_files([*self._files.values(), values])
            with (self.folder / DESCRIPTION).open("wb") as file:
                file.write(json.dumps(described).encode())
                sync_files([file])
            sync_folders([self.folder, self.folder.parent])
        except OSError as error:
            raise writing_failed(error, self.folder) from error


class SpilledBatch:
    """Reads the rows and prepared arrays of a batch. Sources are numbered inside the batch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        described = json.loads((folder / DESCRIPTION).read_text())
        columns = map(SpilledColumn.from_json, described["columns"])
        self._columns = {(column.table, column.column): column for column in columns}
        self._ahead: dict[str, tuple[int, UInt8s]] = {}
        self._forms = [forms for _, forms in described["sources"]]
        self.keys: list[str | None] = [key for key, _ in described["sources"]]

    @staticmethod
    def is_complete(folder: Path) -> bool:
        """Return whether the batch in a folder was finished."""
        return (folder / DESCRIPTION).exists()

    def prepared(self) -> list[SourceArrays]:
        """Return the prepared arrays of each source."""
        data = (self._folder / PREPARED).read_bytes()
        position = 0
        arrays_of_sources: list[SourceArrays] = []
        for forms in self._forms:
            values = {}
            for name, form, shape in forms:
                dtype = np.dtype(form)
                count = math.prod(shape)
                values[name] = np.frombuffer(data, dtype, count, position).reshape(shape)
                position += count * dtype.itemsize
            arrays_of_sources.append(values)
        return arrays_of_sources

    def rows(self, table: str, source: int) -> int:
        """Return rows that a source spilled for a table."""
        lengths = {}
        for (owner, name), column in self._columns.items():
            if owner == table:
                lengths[name] = sum(rows for _, rows, _ in column.runs.get(source, ()))
        if len(set(lengths.values())) > 1:
            msg = f"{self._folder}: spilled columns of table {table!r} differ in length: {lengths}"
            raise ConversionError(msg)
        return next(iter(lengths.values()), 0)

    def read(self, table: str, column: str, source: int, lo: int, hi: int) -> Iterator[AnyArray]:
        """Yield rows ``lo:hi`` of a source's column, one array (n, *row_shape) for each run of one dtype."""
        spilled = self._columns[table, column]
        row_shape = spilled.row_shape
        start = 0
        for form, rows, position in spilled.runs.get(source, ()):
            first = max(lo, start)
            last = min(hi, start + rows)
            if first < last:
                row_bytes = math.prod(row_shape) * np.dtype(form).itemsize
                begin = position + (first - start) * row_bytes
                block = self._bytes(spilled.file, begin, (last - first) * row_bytes)
                yield block.view(form).reshape(last - first, *row_shape)
            start += rows

    def _bytes(self, name: str, position: int, count: int) -> UInt8s:
        # What follows is kept, as the next source's bytes are asked for next
        start, block = self._ahead.get(name, (0, np.empty(0, np.uint8)))
        if not start <= position <= position + count <= start + len(block):
            file = self._folder / name
            start = position
            try:
                block = np.fromfile(file, np.uint8, max(count, AHEAD), offset=position)
            except OSError as error:
                msg = f"{file}: these rows cannot be read: {error.strerror}. Fix: add --restart to start over"
                raise ConversionError(msg) from error
            if len(block) < count:
                msg = f"{file}: has fewer rows than were written. Fix: add --restart to start over"
                raise ConversionError(msg)
            if count < AHEAD:
                self._ahead[name] = start, block
        return block[position - start :][:count]


class Spill(Items[SourceArrays]):
    """Spilled rows of all sources, and a sequence of their prepared arrays."""

    def __init__(
        self,
        root: Path,  # folder of the batches' folders
        sources: int,  # number of sources
    ) -> None:
        self._root = root
        self._batches: list[str] = []
        self._batch = np.full(sources, -1, np.int32)
        self._at = np.zeros(sources, np.int32)
        self._first = 0
        self._open: dict[int, tuple[SpilledBatch, list[SourceArrays]]] = {}

    @classmethod
    def recorded(cls, root: Path, keys: Keys, records: Iterable[JsonObject]) -> Spill:
        """Return the rows of sources that have the same keys as when they were derived.

        Parameters
        ----------
        root : Path
            Folder of the batches' folders.
        keys : array of bytes, (sources,)
            Key of each source.
        records : iterable of dict
            Records of `DeriveJob` in the journal, each with the ``round`` of its batch.
        """
        spill = cls(root, len(keys))
        order = np.argsort(keys)
        for record in records:
            batch = f"{record['round']}/{record['batch']}"
            if not SpilledBatch.is_complete(root / batch):
                continue
            batch_keys = SpilledBatch(root / batch).keys
            if json_digest(batch_keys) != record["of"]:
                continue
            spilled_keys = np.array([key or "" for key in batch_keys], "S32")
            places = np.searchsorted(keys, spilled_keys, sorter=order)
            number = order[places.clip(max=len(keys) - 1)]
            unchanged = np.flatnonzero(keys[number] == spilled_keys)
            spill.add(batch, number[unchanged].tolist(), unchanged.tolist())
        return spill

    def only(self, lo: int, hi: int) -> Spill:
        """Return the part for sources ``lo:hi``, which keep their numbers, to be sent to another process."""
        part = Spill(self._root, 0)
        part._first = lo
        present = slice(lo - self._first, hi - self._first)
        part._at = self._at[present]
        names, numbers = np.unique(self._batch[present], return_inverse=True)
        part._batch = numbers.astype(np.int32)
        part._batches = [self._batches[name] for name in names.tolist()]
        return part

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}

    def __len__(self) -> int:
        return len(self._batch)

    def add(self, batch: str, sources: Sequence[int], numbers: Sequence[int]) -> None:
        """Register the sources of a batch folder. `numbers` are their numbers inside the batch."""
        self._batch[list(sources)] = len(self._batches)
        self._at[list(sources)] = numbers
        self._batches.append(batch)

    @property
    def missing(self) -> list[int]:
        """Return the numbers of the sources that are in no batch."""
        numbers: list[int] = np.flatnonzero(self._batch < 0).tolist()
        return numbers

    def _item(self, number: int) -> SourceArrays:
        batch, prepared = self._batch_of(number)
        if not prepared:
            prepared += batch.prepared()
        return prepared[self._number(number)]

    def rows(self, table: str) -> Iterator[int]:
        """Yield rows that each source spilled for a table."""
        for source in range(len(self)):
            yield self._batch_of(source)[0].rows(table, self._number(source))

    def read(self, table: str, column: str, source: int, lo: int, hi: int) -> Iterator[AnyArray]:
        """Yield rows of a source."""
        return self._batch_of(source)[0].read(table, column, self._number(source), lo, hi)

    def _number(self, source: int) -> int:
        return int(self._at[source - self._first])

    def _batch_of(self, source: int) -> tuple[SpilledBatch, list[SourceArrays]]:
        number = int(self._batch[source - self._first])
        if number not in self._open:
            while len(self._open) >= OPEN:
                del self._open[next(iter(self._open))]
            self._open[number] = SpilledBatch(self._root / self._batches[number]), []
        return self._open[number]


@dataclass(frozen=True, kw_only=True)
class DeriveJob(Job[Sequence[int]]):
    """Derive sources: ``job(numbers)`` spills rows and arrays of a batch. Its folder has the first number."""

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
                nbytes = sum(file.size for file in self.inputs.fingerprints[number])
                try:
                    with self.inputs.reading(number), portion(nbytes):
                        prepared = self._derive(writer, number)
                        key = self.keys[number].decode()
                except InputError as error:
                    problems += error.problems
                    prepared = {}
                    key = None
                writer.end_source(key, prepared)
                keys.append(key)
            writer.finish()
        record = {"step": "derive", "batch": sources[0], "sources": len(sources), "of": json_digest(keys)}
        return Outcome(record, tuple(problems))

    def _derive(self, writer: SpillWriter, source: int) -> SourceArrays:
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
