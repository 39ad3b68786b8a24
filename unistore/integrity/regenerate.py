"""Generate single files of a store again from its sources: shards of tables, index arrays, documents."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from unistore.conversion.columns import LARGE, Column, IndexRows, planes_at_once
from unistore.conversion.executors.asking import run_in_order
from unistore.conversion.executors.local import Executor, Outcome
from unistore.conversion.finish import metadata_documents, source_digests
from unistore.conversion.job import ShardJob, statistics_of
from unistore.conversion.plan import ArrayPlan, ShardTask
from unistore.conversion.shards import metadata_of, shard_key, write_column
from unistore.converters.common.exported import row_blocks
from unistore.integrity.recorded import RecordedConversion
from unistore.store.manifest import Entry
from unistore.system.progress import Progress
from unistore.zarr3.array import Array
from unistore.zarr3.durable import write_file
from unistore.zarr3.local import LocalStorage
from unistore.zarr3.writer import little_endian_bytes

_DIGESTS = "sources/digest"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFile:
    """One file of a store: rows ``lo:hi`` of an array as a shard, or a ``zarr.json`` (`document`)."""

    key: str
    array: ArrayPlan | None = None
    lo: int = 0
    hi: int = 0
    task: ShardTask | None = None
    """Writes the shard, if its array is a column of a table."""
    document: bytes = b""


@dataclass(slots=True)
class Regenerated:
    """Result of `regenerate`."""

    entries: dict[str, Entry] = field(default_factory=dict)
    """Manifest entries of the files that were written, by key."""
    content_digests: dict[str, str] = field(default_factory=dict)
    """With ``run_all``: of all shards, by key."""
    records: list[dict[str, Any]] = field(default_factory=list)
    """Journal record of each task that was run."""

    def add(self, entries: Mapping[str, Entry], contents: Mapping[str, str]) -> None:
        """Add shards, as `_RegenerateStep.shards` gives them."""
        self.entries.update(entries)
        self.content_digests.update(contents)


def store_files(conversion: RecordedConversion) -> dict[str, StoreFile]:
    """Every file that the conversion writes except the manifest and the root document, by key."""
    plan = conversion.planned.plan
    files = [
        StoreFile(key=shard_key(array, task.number), array=array, lo=task.lo, hi=task.hi, task=task)
        for task in plan.tasks()
        for array in plan.table(task.table).arrays
        if not array.is_empty
    ]
    for array in plan.index:
        files += _shards(array)
    documents = metadata_documents(plan, conversion.planned.attributes, conversion.planned.groups)
    files += [StoreFile(key=key, document=document) for key, document in documents.items()]
    return {file.key: file for file in files}


def _shards(array: ArrayPlan) -> Iterator[StoreFile]:
    if array.is_empty:
        return
    rows = array.shard[0]
    for number, lo in enumerate(range(0, array.shape[0], rows)):
        yield StoreFile(key=shard_key(array, number), array=array, lo=lo, hi=min(array.shape[0], lo + rows))


def regenerate(
    conversion: RecordedConversion,
    files: Mapping[str, StoreFile],
    wanted: Collection[str],
    root: Path,
    progress: Progress,
    executor: Executor,
    *,
    run_all: bool,
) -> Regenerated:
    """Write the files of a store with the keys `wanted` again, below the folder `root`.

    Parameters
    ----------
    files
        All files of the store, by key.
    run_all
        Run every task, even if none of its files is wanted: statistics and the digests of the sources
        need all tasks. Implied where a shard of ``sources/digest`` is wanted.

    Raises
    ------
    InputError
        If a source cannot be read.
    ConversionError
        If a file cannot be written.
    """
    plan = conversion.planned.plan
    result = Regenerated()
    run_all = run_all or any(key.startswith(f"{_DIGESTS}/c/") for key in wanted)
    owners = {file.task.id for key, file in files.items() if key in wanted and file.task is not None}
    tasks = [task for task in plan.tasks() if run_all or task.id in owners]
    progress.begin("repairing", sum(map(plan.task_bytes, tasks)))
    step = _RegenerateStep(conversion.job(root), frozenset(wanted), run_all)
    for task, outcome in run_in_order(executor, step, tasks):
        result.add(*outcome.record["shards"])
        result.records.append(outcome.record["record"])
        progress.advance(plan.task_bytes(task))
    digests: NDArray[np.uint8] = np.zeros((len(plan.sources), 16), np.uint8)
    if run_all:
        digests = source_digests(plan, result.records)
    index = {array.field.path: array for array in plan.index}
    for described, values in conversion.planned.index(digests):
        array = index[described.path]
        for number, _ in enumerate(_shards(array)):
            result.add(*step.shards(number, [IndexRows(array, number, values)]))
    for key in wanted:
        if files[key].document:
            written = write_file(root, key, [files[key].document])
            result.entries[key] = Entry(key=key, bytes=written.bytes, checksum=written.checksum)
    return result


@dataclass(frozen=True, slots=True)
class _RegenerateStep:
    """Run one task and write the wanted files of it."""

    job: ShardJob
    wanted: frozenset[str]
    run_all: bool

    def __call__(self, task: ShardTask) -> Outcome:
        columns = self.job.columns(task)
        shards = self.shards(task.number, columns)
        record: dict[str, Any] = {"task": task.id, "pieces": "", "statistics": {}}
        if self.run_all:
            record |= {"pieces": self.job.pieces(task, columns), "statistics": statistics_of(columns)}
        return Outcome({"shards": shards, "record": record})

    def shards(self, number: int, columns: Sequence[Column]) -> tuple[dict[str, Entry], dict[str, str]]:
        """Write the wanted ones of shards `number` of columns: their entries, and all content digests."""
        entries, contents = {}, {}
        for column in columns:
            key = shard_key(column.array, number)
            if key in self.wanted:
                entries[key] = write_column(self.job.target, number, column)
            elif self.run_all:
                deque(column, maxlen=0)
            if self.run_all and not column.array.is_empty:
                contents[key] = column.content
        return entries, contents

    def describe(self, task: ShardTask) -> str:
        return self.job.describe(task)


def entry_of_file(folder: Path, file: StoreFile, entry: Entry) -> Entry:
    """Manifest entry of a file in `folder`, with the rows and the content digest of a shard.

    `entry` has its size and checksum, which are right. `CorruptionError` if a shard does not decode.
    """
    if file.array is None:
        return replace(entry, rows=None, content=None)
    path = file.array.field.path
    array = Array(LocalStorage(folder), path, metadata_of(file.array))
    content = xxhash.xxh3_128()
    for block in _blocks(array, file.array, file.lo, file.hi):
        content.update(little_endian_bytes(block))
    return replace(entry, rows=(file.lo, file.hi), content=content.hexdigest())


def _blocks(array: Array, plan: ArrayPlan, lo: int, hi: int) -> Iterator[NDArray[Any]]:
    """Rows ``lo:hi`` in C order, in blocks of rows, or of planes of one row if rows are large."""
    if plan.field.row_bytes <= LARGE:
        yield from row_blocks(array, lo, hi)
        return
    step, (planes, *rest) = planes_at_once(plan), plan.shape[1:]
    for row in range(lo, hi):
        for plane in range(0, planes, step):
            low, high = [row, plane, *(0 for _ in rest)], [row + 1, min(planes, plane + step), *rest]
            yield array.read_box(low, high)
