"""``codec="auto"``: choose the codec of each column by encoding some of its chunks; deterministic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.conversion.columns import in_planes
from unistore.conversion.job import ShardJob
from unistore.conversion.plan import ArrayPlan, ShardTask, TablePlan
from unistore.conversion.row_cache import HeldRows
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


def choose_codecs(job: ShardJob, *, bad_sources: bool = False) -> dict[str, str]:
    """Codec of every column of the tables of a plan, by the path of its array.

    Parameters
    ----------
    job
        Reads the rows, and caches them for writing.
    bad_sources
        Whether to leave out row ranges whose sources cannot be read: writing the shards reports all of
        these sources, and plans again without them. Not those that could not be read, as they may be read
        then, and written as no undisturbed conversion would.

    Raises
    ------
    InputError
        If sources cannot be read: all that the trial meets.
    """
    chosen: dict[str, str] = {}
    problems: list[Problem] = []
    for table in job.plan.tables:
        samples = _samples(job, table, problems)
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


def _samples(job: ShardJob, table: TablePlan, problems: list[Problem]) -> dict[str, list[NDArray[Any]]]:
    """Sampled chunks of each column as they would be written: padded, and not only fill values."""
    found: dict[str, list[NDArray[Any]]] = defaultdict(list)
    sampled = max(
        max(array.chunk[0], SAMPLE // MAX_RANGES // max(1, array.field.row_bytes)) for array in table.arrays
    )
    rows = min(max(1, READ // MAX_RANGES // max(1, table.row_bytes)), sampled, table.rows)
    ranges = min(MAX_RANGES, READ // max(1, rows * table.row_bytes), table.rows // max(1, rows))
    starts = np.linspace(0, table.rows - rows, max(1, ranges)).astype(int).tolist() if rows else []
    for lo in starts:
        try:
            for array, block in _blocks(job, table, lo, lo + rows):
                whole = array.chunk[0] if rows < table.rows else 1
                found[array.column] += _some_chunks(array, block, whole, SAMPLE // len(starts))
        except InputError as error:
            problems += error.problems_at(table.name)
    return found


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


def _blocks(job: ShardJob, table: TablePlan, lo: int, hi: int) -> Iterator[tuple[ArrayPlan, NDArray[Any]]]:
    """Rows ``lo:hi`` of every column; if they are read in planes, only the middle chunks of row `lo`."""
    if not in_planes(job.converter, table):
        columns = job.columns(ShardTask(table.name, 0, lo, hi))
        blocks = {column.array.column: block for column in columns for _, block in column}
        job.row_cache.add(HeldRows(table.name, lo, hi, blocks))
        yield from ((array, blocks[array.column]) for array in table.arrays)
        return
    (piece,) = table.pieces(lo, lo + 1)
    for array in table.arrays:
        layer = array.chunk[1]
        first = array.shape[1] // layer // 2 * layer
        last = min(array.shape[1], first + layer)
        block = np.full((1, last - first, *array.shape[2:]), array.field.fill, array.field.dtype)
        job.read_planes(table.name, array.column, piece.source, first, last, block)
        yield array, block
