"""``codec="auto"``: choose the codec of each column by encoding some of its chunks; deterministic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.conversion.columns import in_planes
from unistore.conversion.job import ShardJob
from unistore.conversion.plan import ArrayPlan, ShardTask, TablePlan
from unistore.conversion.row_cache import HeldRows
from unistore.errors import InputError
from unistore.zarr3.presets import choose_codec, codec_chain
from unistore.zarr3.writer import Box, chunk_slices, pad_chunk

SAMPLE = 1 << 20
"""Bytes of a column that are encoded with each codec; at least one chunk."""
READ = 16 << 20
"""Bytes of a table that are read; at least one row."""
MAX_RANGES = 4
"""Most row ranges that are read, evenly spaced from the first row to the last."""
LAZY_SOURCES = 64
"""Ranges with rows of more sources are read lazily: only the rows of encoded chunks."""
MIN_SAMPLE = 4 << 10
"""Columns with fewer sampled bytes get ``fast``."""


def choose_codecs(job: ShardJob, *, bad_sources: bool = False) -> dict[str, str]:
    """Codec of every column of the tables of a plan, by the path of its array.

    Parameters
    ----------
    job
        Reads the rows, and caches them for writing.
    bad_sources
        Whether to ignore sources that cannot be read: writing the shards reports all of them. Their tables
        get ``fast``, and are planned again without these sources.

    Raises
    ------
    InputError
        If a source cannot be read.
    """
    chosen = {}
    for table in job.plan.tables:
        try:
            samples = _samples(job, table)
        except InputError:
            if not bad_sources:
                raise
            samples = {}
        for array in table.arrays:
            chosen[array.field.path] = _chosen(array, samples.get(array.column, []))
    return chosen


def _chosen(array: ArrayPlan, chunks: list[NDArray[Any]]) -> str:
    if sum(chunk.nbytes for chunk in chunks) < MIN_SAMPLE:
        return "fast"
    dtype = np.dtype(array.field.dtype)

    def size(codec: str) -> int:
        encode = codec_chain(codec, dtype, array.chunk).encoder(dtype)
        return sum(len(buffer) for chunk in chunks for buffer in encode(chunk))

    return choose_codec(dtype, array.chunk, size)


def _samples(job: ShardJob, table: TablePlan) -> dict[str, list[NDArray[Any]]]:
    """Sampled chunks of each column as they would be written: padded, and not only fill values."""
    found: dict[str, list[NDArray[Any]]] = defaultdict(list)
    sampled = max(
        max(array.chunk[0], SAMPLE // MAX_RANGES // max(1, array.field.row_bytes)) for array in table.arrays
    )
    rows = min(max(1, READ // MAX_RANGES // max(1, table.row_bytes)), sampled, table.rows)
    ranges = min(MAX_RANGES, READ // max(1, rows * table.row_bytes), table.rows // max(1, rows))
    starts = np.linspace(0, table.rows - rows, max(1, ranges)).astype(int).tolist() if rows else []
    for lo in starts:
        for array, block in _blocks(job, table, lo, lo + rows):
            blank = np.full(array.chunk, array.field.fill, array.field.dtype)
            whole = array.chunk[0] if rows < table.rows else 1
            every = [
                box
                for box in chunk_slices(block.shape, array.chunk)
                if min(box[0].stop, len(block)) - box[0].start >= whole
            ]
            wanted = max(1, SAMPLE // len(starts) // blank.nbytes)
            # copies, so that the block can be freed
            chunks = (pad_chunk(block[box], blank).copy() for box in every[:: max(1, len(every) // wanted)])
            found[array.column] += islice((chunk for chunk in chunks if (chunk != blank).any()), wanted)
    return found


class _LazyRows:
    """Rows of a column that are read when they are indexed."""

    def __init__(
        self, array: ArrayPlan, rows: int, read: Callable[[int, int], Mapping[str, NDArray[Any]]]
    ) -> None:
        self.shape = (rows, *array.shape[1:])
        self._column, self._read = array.column, read

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, box: Box) -> NDArray[Any]:
        rows = self._read(box[0].start, min(box[0].stop, len(self)))[self._column]
        return rows[(slice(None), *box[1:])]


def _blocks(
    job: ShardJob, table: TablePlan, lo: int, hi: int
) -> Iterator[tuple[ArrayPlan, NDArray[Any] | _LazyRows]]:
    """Rows ``lo:hi`` of every column; if they are read in planes, only the middle chunks of row `lo`."""
    if not in_planes(job.converter, table):

        def read(first: int, last: int) -> dict[str, NDArray[Any]]:
            columns = job.columns(ShardTask(table.name, 0, lo + first, lo + last))
            return {column.array.column: block for column in columns for _, block in column}

        if (hi - lo) * table.row_bytes > 2 * SAMPLE * len(table.arrays) and sum(
            1 for _ in table.pieces(lo, hi)
        ) > LAZY_SOURCES:
            some = cache(read)
            yield from ((array, _LazyRows(array, hi - lo, some)) for array in table.arrays)
            return
        blocks = read(0, hi - lo)
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
