"""``codec="auto"``: choose the codec of each column by encoding some of its chunks; deterministic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.conversion.columns import in_planes
from unistore.conversion.executors.asking import asking
from unistore.conversion.executors.local import Executor
from unistore.conversion.job import ShardJob
from unistore.conversion.part_job import read_parts
from unistore.conversion.plan import ArrayPlan, ShardTask, TablePlan
from unistore.converters.common.faults import UNREADABLE
from unistore.errors import InputError, Problem
from unistore.zarr3.codecs import encoder
from unistore.zarr3.presets import choose_codec, compressor_of
from unistore.zarr3.writer import chunk_slices, pad_chunk

SAMPLE = 1 << 20
"""Bytes of a column that are encoded with each codec; at least one chunk."""
READ = 16 << 20
"""Bytes of a table that are read; at least one row."""
MAX_RANGES = 4
"""Most row ranges that are read, evenly spaced from the first row to the last."""
MIN_SAMPLE = 4 << 10
"""Columns with fewer sampled bytes get ``fast``."""

Blocks = Mapping[str, NDArray[Any]]
"""Rows by column."""


def choose_codecs(
    job: ShardJob, executor: Executor, folder: Path, *, bad_sources: bool = False
) -> dict[str, str]:
    """Codec of every column of the tables of a plan, by the path of its array.

    Parameters
    ----------
    job
        Reads the rows; its row cache keeps them for writing.
    executor, folder
        Where rows are read, and where files of them are kept.
    bad_sources
        Whether to leave out row ranges whose sources cannot be read: writing the shards reports all of
        these sources, and plans again without them. Not those that could not be read, as they may be read
        then, and written as no undisturbed conversion would.

    Raises
    ------
    InputError
        If sources cannot be read: all that the trial meets.
    """
    ranges = {table.name: _ranges(table) for table in job.plan.tables}
    in_rows = [table.name for table in job.plan.tables if not in_planes(job.converter, table)]
    missing = [task for name in in_rows for task in ranges[name] if job.cached(task) is None]
    problems = read_parts(job, executor, folder, missing)
    chosen: dict[str, str] = {}
    for table in job.plan.tables:
        samples: dict[str, list[NDArray[Any]]] = defaultdict(list)
        for task in ranges[table.name]:
            blocks: Blocks = {}
            if table.name in in_rows:
                blocks = job.cached(task) or {}
            else:
                blocks, wrong = _layers(job, executor, task)
                problems += wrong
            for array in table.arrays if blocks else ():
                least = array.chunk[0] if task.hi - task.lo < table.rows else 1
                nbytes = SAMPLE // len(ranges[table.name])
                samples[array.column] += _some_chunks(array, blocks[array.column], least, nbytes)
        for array in table.arrays:
            chosen[array.field.path] = _chosen(array, samples[array.column])
    unreadable = any(problem.kind == UNREADABLE for problem in problems)
    if problems and (unreadable or not bad_sources):
        raise InputError(list(dict.fromkeys(problems)))
    return chosen


def _chosen(array: ArrayPlan, chunks: list[NDArray[Any]]) -> str:
    if sum(chunk.nbytes for chunk in chunks) < MIN_SAMPLE:
        return "fast"
    dtype = np.dtype(array.field.dtype)

    def size(codec: str) -> int:
        encode = encoder(compressor_of(codec, dtype, array.chunk))
        return sum(len(buffer) for chunk in chunks for buffer in encode(chunk))

    return choose_codec(dtype, array.chunk, size)


def _ranges(table: TablePlan) -> list[ShardTask]:
    """Ranges of rows to sample, evenly spaced."""
    sampled = max(
        max(array.chunk[0], SAMPLE // MAX_RANGES // max(1, array.field.row_bytes)) for array in table.arrays
    )
    rows = min(max(1, READ // MAX_RANGES // max(1, table.row_bytes)), sampled, table.rows)
    if not rows:
        return []
    count = max(1, min(MAX_RANGES, READ // max(1, rows * table.row_bytes), table.rows // rows))
    starts = np.linspace(0, table.rows - rows, count).astype(int).tolist()
    return [ShardTask(table.name, number, lo, lo + rows) for number, lo in enumerate(starts)]


def _layers(job: ShardJob, executor: Executor, task: ShardTask) -> tuple[Blocks, Sequence[Problem]]:
    """Middle chunks of the first row of a task, by column; none, and problems, if it is unreadable."""
    alone = replace(job.bare(), **job.slice(task))
    (answer,) = asking(executor)(_read_layers, [(alone, task)])
    return answer


def _read_layers(question: tuple[ShardJob, ShardTask]) -> tuple[Blocks, Sequence[Problem]]:
    job, task = question
    source, blocks = job.pieces_of(task)[0].source, {}
    try:
        for array in job.plan.table(task.table).arrays:
            layer = array.chunk[1]
            first = array.shape[1] // layer // 2 * layer
            last = min(array.shape[1], first + layer)
            block = np.full((1, last - first, *array.shape[2:]), array.field.fill, array.field.dtype)
            job.read_planes(task.table, array.column, source, first, last, block)
            blocks[array.column] = block
    except InputError as error:
        return {}, error.problems_at(task.table)
    return blocks, ()


def _some_chunks(array: ArrayPlan, block: NDArray[Any], least: int, nbytes: int) -> Iterator[NDArray[Any]]:
    """Chunks of at least so many rows, evenly spaced in a block: `nbytes` of them, or one."""
    blank = np.full(array.chunk, array.field.fill, array.field.dtype)
    every = [
        box
        for box in chunk_slices(block.shape, array.chunk)
        if min(box[0].stop, len(block)) - box[0].start >= least
    ]
    wanted = max(1, nbytes // blank.nbytes)
    chunks = (pad_chunk(block[box], blank) for box in every[:: max(1, len(every) // wanted)])
    return islice((chunk for chunk in chunks if (chunk != blank).any()), wanted)
