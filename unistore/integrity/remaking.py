"""Single files of a store made again by the conversion that made it: shards, index arrays, documents."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from unistore.conversion.columns import LARGE, IndexRows, part_planes
from unistore.conversion.executors.local import Executor
from unistore.conversion.finish import metadata_documents, source_digests
from unistore.conversion.job import Outcome, ShardJob, statistics_of
from unistore.conversion.plan import ArrayPlan, ShardTask
from unistore.conversion.shards import metadata_of, shard_key, write_column
from unistore.conversion.target import Folder
from unistore.converters.common.stored import row_blocks
from unistore.integrity.rebuilt import Rebuilt
from unistore.integrity.steps import in_order
from unistore.store.manifest import Entry
from unistore.system.progress import Progress
from unistore.zarr3.array import Array
from unistore.zarr3.local import LocalStorage
from unistore.zarr3.writer import content_bytes, write_shard

__all__ = ["Part", "Remade", "parts_of", "read_entry", "remake"]

_DIGESTS = "sources/digest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One file of a store.

    Attributes
    ----------
    key
        Its path.
    array, lo, hi
        For a shard: its array and its rows.
    task
        For a shard of a table: the task that writes it.
    document
        For a ``zarr.json``: its bytes.
    """

    key: str
    array: ArrayPlan | None = None
    lo: int = 0
    hi: int = 0
    task: ShardTask | None = None
    document: bytes = b""


@dataclass(slots=True)
class Remade:
    """What was made again.

    Attributes
    ----------
    entries
        Lines of the manifest of the files that were written, by key.
    contents
        Content digests of all shards of the tasks that were run, by key.
    records
        Pieces and statistics of those tasks, as their records in a journal hold them.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    contents: dict[str, str] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)


def parts_of(made: Rebuilt) -> dict[str, Part]:
    """Every file that the conversion writes, but the manifest and the root, by key."""
    plan = made.planned.plan
    parts = [
        Part(key=shard_key(array, task.number), array=array, lo=task.lo, hi=task.hi, task=task)
        for task in plan.tasks()
        for array in plan.table(task.table).arrays
        if not array.is_empty
    ]
    for array in plan.index:
        parts += _shards(array)
    documents = metadata_documents(plan, made.planned.attributes, made.planned.groups)
    parts += [Part(key=key, document=document) for key, document in documents.items()]
    return {part.key: part for part in parts}


def _shards(array: ArrayPlan) -> Iterator[Part]:
    if array.is_empty:
        return
    rows = array.shard[0]
    for number, lo in enumerate(range(0, array.shape[0], rows)):
        yield Part(key=shard_key(array, number), array=array, lo=lo, hi=min(array.shape[0], lo + rows))


def remake(
    made: Rebuilt,
    parts: Mapping[str, Part],
    wanted: Collection[str],
    root: Path,
    progress: Progress,
    executor: Executor,
    *,
    whole: bool,
) -> Remade:
    """Write files again below `root`.

    Parameters
    ----------
    made
        The conversion.
    parts
        All its files.
    wanted
        Keys of those to write.
    root
        Folder to write to.
    progress
        Told how far it is.
    executor
        Where tasks run.
    whole
        Run every task, also those of which nothing is written: for statistics and digests of the sources,
        which need all of them. The sources' digests always do.
    """
    plan = made.planned.plan
    remade = Remade()
    whole = whole or any(key.startswith(f"{_DIGESTS}/c/") for key in wanted)
    owners = {part.task.id for key, part in parts.items() if key in wanted and part.task is not None}
    tasks = [task for task in plan.tasks() if whole or task.id in owners]
    progress.begin("re-making", sum(map(plan.task_bytes, tasks)))
    step = _RemakeStep(made.job(root), frozenset(wanted), whole)
    for task, outcome in zip(tasks, in_order(executor, step, tasks), strict=True):
        remade.entries |= outcome.record["entries"]
        remade.contents |= outcome.record["contents"]
        remade.records.append(outcome.record["record"])
        progress.advance(plan.task_bytes(task))
    _remake_index(made, remade, wanted, root, whole=whole)
    for key in wanted:
        if parts[key].document:
            written = write_shard(root, key, [parts[key].document])
            remade.entries[key] = Entry(key=key, bytes=written.bytes, checksum=written.checksum)
    return remade


@dataclass(frozen=True, slots=True)
class _RemakeStep:
    """Run one task again, and write what is wanted of it."""

    job: ShardJob
    wanted: frozenset[str]
    whole: bool

    def __call__(self, task: ShardTask) -> Outcome:
        columns = self.job.columns(task)
        entries, contents = {}, {}
        for column in columns:
            key = shard_key(column.array, task.number)
            if key in self.wanted:
                entries[key] = write_column(self.job.target, task.number, column)
            elif self.whole:
                deque(column, maxlen=0)
            if self.whole and not column.array.is_empty:
                contents[key] = column.content
        record: dict[str, Any] = {"task": task.id, "pieces": [], "statistics": {}}
        if self.whole:
            record |= {"pieces": self.job.pieces(task, columns), "statistics": statistics_of(columns)}
        return Outcome({"entries": entries, "contents": contents, "record": record})

    def describe(self, task: ShardTask) -> str:
        return self.job.describe(task)


def _remake_index(made: Rebuilt, remade: Remade, wanted: Collection[str], root: Path, *, whole: bool) -> None:
    plan, target = made.planned.plan, Folder(root)
    digests: NDArray[np.uint8] = np.zeros((len(plan.sources), 16), np.uint8)
    if whole:
        digests = source_digests(plan, remade.records)
    arrays = {array.field.path: array for array in plan.index}
    for described, values in made.planned.index(digests):
        array = arrays[described.path]
        for part in _shards(array):
            number = part.lo // array.shard[0]
            rows = IndexRows(array, number, values)
            if part.key in wanted:
                remade.entries[part.key] = write_column(target, number, rows)
            elif whole:
                deque(rows, maxlen=0)
            if whole:
                remade.contents[part.key] = rows.content


def read_entry(folder: Path, part: Part, line: Entry) -> Entry:
    """Line of the manifest of a file that stands in a store, whose size and checksum are known to be right.

    Parameters
    ----------
    folder
        The store.
    part
        The file.
    line
        What its size and checksum are.

    Raises
    ------
    CorruptionError
        If a shard does not decode.
    """
    if part.array is None:
        return Entry(key=part.key, bytes=line.bytes, checksum=line.checksum)
    path = part.array.field.path
    array = Array(LocalStorage(folder), path, metadata_of(part.array), sealed=True)
    content = xxhash.xxh3_128()
    for block in _blocks(array, part.array, part.lo, part.hi):
        content.update(content_bytes(block))
    return Entry(
        key=part.key,
        bytes=line.bytes,
        checksum=line.checksum,
        rows=(part.lo, part.hi),
        content=content.hexdigest(),
    )


def _blocks(array: Array, plan: ArrayPlan, lo: int, hi: int) -> Iterator[NDArray[Any]]:
    """Rows ``lo:hi`` in C order, some at a time, or some planes of one where rows are large."""
    if plan.field.row_bytes <= LARGE:
        yield from row_blocks(array, lo, hi)
        return
    step, (planes, *rest) = part_planes(plan), plan.shape[1:]
    for row in range(lo, hi):
        for plane in range(0, planes, step):
            low, high = [row, plane, *(0 for _ in rest)], [row + 1, min(planes, plane + step), *rest]
            yield array.read_box(low, high)
