"""Rows of shards that consist of many small sources, read in parts: a job of many steps for few shards."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from unistore.conversion.columns import InMemory, in_planes
from unistore.conversion.executors.local import Executor, Job, Outcome
from unistore.conversion.job import MIN_BATCHES, ShardJob
from unistore.conversion.plan import ShardTask, TablePlan
from unistore.conversion.row_cache import StoredRows
from unistore.errors import InputError, Problem

SMALL_SOURCE = 64 << 10
"""Sources of fewer bytes of rows take longer to open than to read."""
MAX_PIECES = 256
"""Most sources of a part."""


@dataclass(frozen=True, slots=True)
class PartJob(Job[ShardTask]):
    """Read parts of shards: ``job(part)`` writes the rows of all columns of a part into a file.

    Nothing is recorded in the journal: a continued conversion reads parts again.
    """

    job: ShardJob
    """Reads the rows."""
    folder: Path
    """Where the files are written."""

    def __call__(self, part: ShardTask) -> Outcome:
        """Read the rows of a part; the same again gives the same file."""
        try:
            columns = self.job.columns(part)
        except InputError as error:
            return Outcome(problems=error.problems)
        rows = {column.array.column: column.block for column in columns if isinstance(column, InMemory)}
        self.rows(part).write(rows)
        return Outcome()

    def rows(self, part: ShardTask) -> StoredRows:
        """The rows of a part, once they are read."""
        arrays = self.job.plan.table(part.table).arrays
        path = self.folder / part.id.replace("/", "#")
        row_bytes = {array.column: array.field.row_bytes for array in arrays}
        return StoredRows(part.table, part.lo, part.hi, path, row_bytes)

    def bare(self) -> PartJob:
        """See `Job`."""
        return replace(self, job=self.job.bare())

    def slice(self, part: ShardTask) -> dict[str, Any]:
        """See `Job`."""
        return {"job": replace(self.job.bare(), **self.job.slice(part))}

    def describe(self, part: ShardTask) -> str:
        """See `ShardJob.describe`."""
        return self.job.describe(part)

    def need(self, part: ShardTask) -> int:
        """Peak bytes, those of the whole shard: nothing is refused here that could be written later."""
        return self.job.need(part)


def read_parts(job: ShardJob, executor: Executor, folder: Path, parts: Sequence[ShardTask]) -> list[Problem]:
    """Read parts into the row cache of a job; returns the problems of those that cannot be read."""
    reading = PartJob(job, folder)
    problems: list[Problem] = []
    with closing(executor.run(reading, parts)) as steps:
        for part, outcome in steps:
            problems += outcome.problems
            if not outcome.problems:
                job.row_cache.add(reading.rows(part))
    return problems


def parts_of(job: ShardJob, table: TablePlan, workers: int) -> list[ShardTask]:
    """Parts that a table is to be read in, so that all workers read: none if it has a shard for each.

    Nor if its rows are spilled, or its sources are few or large.
    """
    rows = np.array(table.source_rows, np.int64)
    starts = (np.cumsum(rows) - rows)[rows > 0]
    if (
        table.spilled
        or in_planes(job.converter, table)
        or table.rows > (workers - 1) * table.shard_rows
        or len(starts) < MIN_BATCHES
        or table.rows * table.row_bytes > len(starts) * SMALL_SOURCE
    ):
        return []
    bounds = [*starts[:: min(MAX_PIECES, len(starts) // MIN_BATCHES)].tolist(), table.rows]
    return [ShardTask(table.name, number, *span) for number, span in enumerate(pairwise(bounds))]
