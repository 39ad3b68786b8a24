"""The identity of sources: digests of their values, and sources that have the values of others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from unistore.conversion.job import PieceDigests, ShardRecord
from unistore.conversion.keys import ColumnDigest, joined_digest
from unistore.conversion.plan import Plan, ShardTask
from unistore.errors import first_few, printable
from unistore.system.types import Int64s, UInt8s

_LISTED_COPIES = 3  # that a note names


def source_digests(plan: Plan, records: Callable[[], Iterable[ShardRecord]]) -> UInt8s:
    """Return digests of the sources, (sources, 16) uint8, from the journal's records of all tasks."""
    last = {record.task: number for number, record in enumerate(records())}
    tasks = plan.tasks()
    numbers = {task.id: number for number, task in enumerate(tasks)}
    joining = _SourceDigests(plan)
    waiting: dict[int, PieceDigests] = {}  # of tasks whose rows follow those of tasks to come
    position = 0
    for number, record in enumerate(records()):
        task = numbers.get(record.task)  # None: of an earlier round, with other sources
        if task is not None and last[record.task] == number:
            waiting[task] = record.digests
        while position in waiting:
            joining.add(tasks[position], waiting.pop(position))
            position += 1
    return joining.digests()


class _SourceDigests:
    """Joins the digests of sources from tasks in the order of their rows."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._sums = [0] * len(plan.sources)
        self._table = ""
        self._open: dict[str, ColumnDigest] = {}  # columns of the source that may go on, by form
        self._source = -1

    def add(self, task: ShardTask, digests: PieceDigests) -> None:
        """Take the digests of the next task."""
        if task.table != self._table:
            self._close()
            self._table = task.table
        sources = self._plan.table(task.table).pieces(task.lo, task.hi).sources
        for number, source in enumerate(sources):
            if source != self._source:
                self._close()
                self._source = source
            for column in digests.cut_columns(number):
                if column.form in self._open:
                    self._open[column.form].follow(column)
                else:
                    self._open[column.form] = column
            self._sums[source] += digests.whole_piece(number)

    def digests(self) -> UInt8s:
        """Return the digests of all sources, (sources, 16) uint8."""
        self._close()
        data = b"".join(joined_digest([total]).to_bytes(16) for total in self._sums)
        return np.frombuffer(data, np.uint8).reshape(-1, 16)

    def _close(self) -> None:
        for column in self._open.values():
            self._sums[self._source] += column.finish()
        self._open = {}
        self._source = -1


def equal_sources(digests: UInt8s, rows: Int64s) -> Iterator[tuple[int, int]]:
    """Yield the number of each source that has the values of one before it, and the number of that one.

    Parameters
    ----------
    digests
        Of the values of each source, (sources, 16) uint8.
    rows
        Number of rows of each source, (sources,) int64. Sources without rows are not compared.
    """
    numbers = np.flatnonzero(rows)
    keys = np.ascontiguousarray(digests[numbers]).view("V16").reshape(-1)
    _, first, key_of = np.unique(keys, return_index=True, return_inverse=True)
    earliest = numbers[first[key_of]]
    for place in np.flatnonzero(earliest != numbers).tolist():
        yield int(numbers[place]), int(earliest[place])


def equal_sources_note(
    pairs: Sequence[tuple[str, str]], *, are_split: bool, where: str = "", fix: str = ""
) -> str:
    """Return the note on pairs of names of sources: the first has the values of the second.

    `where` says where the second is. `fix` replaces the advice to skip the first with ``--exclude``.
    """
    shown = first_few([f"{printable(name)} = {printable(other)}" for name, other in pairs], _LISTED_COPIES)
    one = len(pairs) == 1
    count = "a source has" if one else f"{len(pairs):,} sources have"
    parted = ", and the split may separate them"
    is_parted = parted if are_split else ""
    fix = fix or f"--exclude {printable(pairs[0][0])} skips {'it' if one else 'the first'}"
    return f"{count} the same values as another one{where}: {shown}; both are stored{is_parted}; {fix}"
