"""``codec="auto"``: the codec of each column, chosen by encoding some of its chunks. Deterministic."""

# Chosen by sizes and fixed costs, never by time, so that every machine, job and shard size chooses alike

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

import numpy as np

from unistore.conversion.job import ShardJob
from unistore.conversion.plan import ArrayPlan, ShardTask, TablePlan
from unistore.converters.protocol import ParallelMap
from unistore.schemas.tables import IndexValues
from unistore.system.types import AnyArray, Dtype
from unistore.zarr3.codecs import encoder
from unistore.zarr3.writer import (
    MAX_VECTOR,
    READ_AT_RANDOM,
    chunk_slices,
    compressor_of,
    pad_chunk,
    usual_shuffle,
)

# Nanoseconds of processor time for each decoded byte, by compressor: medians of real columns in
# `benchmarks/codecs.py`. The usual shuffle of a column is mostly the fastest, by up to 0.2.
DECODING: Mapping[str, float] = {"none": 0.0, "lz4": 0.4, "zstd": 1.8}
UNUSUAL_SHUFFLE = 0.2
# Nanoseconds that a stored byte is worth: on a disk, lz4 must save about an eighth; a bucket gives a worker
# about 100 MB/s.
DISK = 3.2
BUCKET = 10.0

# On a disk, columns that samples read at random are stored uncompressed while the store grows by at most this
# share of its bytes, and if compression saves at most that share of theirs.
MOST_GROWTH = 1 / 10
MOST_SAVING = 3 / 4

SAMPLE = 1 << 20  # Bytes of a column that are encoded with each codec; at least one chunk
READ = 16 << 20  # Bytes of a table that are read; at least one row
MAX_RANGES = 4  # Most row ranges that are read, evenly spaced from the first row to the last
MIN_SAMPLE = 4 << 10  # Columns with fewer sampled bytes get ``fast``


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The codec of one column, and its estimated bytes."""

    array: ArrayPlan
    codec: str
    stored: float = 0.0
    uncompressed: float = 0.0

    @property
    def growth(self) -> float:
        """Return how many bytes the column would grow by without compression."""
        return self.uncompressed - self.stored

    @property
    def may_stay_uncompressed(self) -> bool:
        """Return whether samples read single chunks of the column, and compression is no large gain."""
        is_read_at_random = self.array.field.tile is not None or self.array.chunk[0] == 1
        saves_little = 0 < self.growth <= MOST_SAVING * self.uncompressed
        return is_read_at_random and not self.array.field.codec and saves_little


def choose_codecs(
    job: ShardJob,  # which has read the rows of `unread_rows`
    ask: ParallelMap,  # reads the others
    *,
    in_bucket: bool = False,  # whether the store is written to a bucket
) -> dict[str, str]:
    """Return the codec of every column of the tables of a plan, by the path of its array."""
    choices = []
    for table in job.plan.tables:
        samples: dict[str, list[AnyArray | None]] = defaultdict(list)
        ranges = sampled_rows(table)
        for task in ranges:
            blocks = job.cached(task)
            if blocks is None:
                (blocks,) = ask(_read_layers, [(job.alone(task), task)])
            for array in table.arrays:
                least = array.chunk[0] if task.hi - task.lo < table.rows else 1
                samples[array.column] += _some_chunks(
                    array, blocks[array.column], least, SAMPLE // len(ranges)
                )
        price = BUCKET if in_bucket else DISK
        choices += [_choice(array, samples[array.column], price) for array in table.arrays]
    codecs = {choice.array.field.path: choice.codec for choice in choices}
    return codecs if in_bucket else {**codecs, **uncompressed_columns(choices)}


def uncompressed_columns(choices: Sequence[Choice]) -> dict[str, str]:
    """Return the columns, by path, that stay uncompressed as samples read them at random."""
    room = MOST_GROWTH * sum(choice.stored for choice in choices)
    chosen = {}
    candidates = [choice for choice in choices if choice.may_stay_uncompressed]
    # those that compression saves the least of first
    for choice in sorted(candidates, key=lambda choice: choice.growth / choice.uncompressed):
        if choice.growth <= room:
            room -= choice.growth
            chosen[choice.array.field.path] = READ_AT_RANDOM
    return chosen


def choose_codec(dtype: Dtype, chunk: Sequence[int], size: Callable[[str], int], price: float = DISK) -> str:
    """Choose the codec with the least cost: decoding, and the stored bytes at `price`.

    `size(codec)` returns the encoded bytes of some chunks of a column.
    """
    plain = size("none")
    usual, *others = shuffles(dtype, chunk)

    def cost(codec: str) -> float:
        compressor, _, shuffle = codec.partition(" ")
        decoding = DECODING[compressor] + (UNUSUAL_SHUFFLE if shuffle in others else 0.0)
        return decoding + price * size(codec) / plain

    best = min((f"lz4 {shuffle}" for shuffle in (usual, *others)), key=cost)
    # zstd with the shuffle that serves lz4, as trying each would take long
    return min(("none", best, best.replace("lz4", "zstd")), key=cost)


def shuffles(dtype: Dtype, chunk: Sequence[int]) -> list[str]:
    """Return the shuffles to try, each with the bytes of an element: first that of the presets."""
    number = dtype.itemsize
    usual = "{} {}".format(*usual_shuffle(dtype, chunk))
    tried = [f"noshuffle {number}", f"bitshuffle {number}"]
    if number > 1:
        tried.append(f"shuffle {number}")
    if len(chunk) == 2 and 1 < chunk[1] <= MAX_VECTOR:  # short rows may be elements
        row = number * chunk[1]
        tried += [f"shuffle {row}", f"bitshuffle {row}"]
    return [usual, *(shuffle for shuffle in tried if shuffle != usual)]


def index_codec(array: ArrayPlan, values: IndexValues) -> str:
    """Return the codec of an array from its first rows."""
    rows = max(array.chunk[0], SAMPLE // max(1, array.field.row_bytes))
    return _choice(array, list(_some_chunks(array, values[:rows], 1, SAMPLE)), DISK).codec


def sampled_rows(table: TablePlan) -> list[ShardTask]:
    """Return ranges of rows to sample, evenly spaced."""
    sampled = 0
    for array in table.arrays:
        rows_of_sample = SAMPLE // MAX_RANGES // max(1, array.field.row_bytes)
        sampled = max(sampled, array.chunk[0], rows_of_sample)
    most = max(1, READ // MAX_RANGES // max(1, table.row_bytes))
    rows = min(most, sampled, table.rows)
    if not rows:
        return []
    readable = READ // max(1, rows * table.row_bytes)
    count = max(1, min(MAX_RANGES, readable, table.rows // rows))
    starts = np.linspace(0, table.rows - rows, count).astype(int).tolist()
    return [ShardTask(table.name, number, lo, lo + rows) for number, lo in enumerate(starts)]


def unread_rows(job: ShardJob) -> list[ShardTask]:
    """Return the sampled rows that a job has not read, of tables whose rows are not read in planes."""
    tasks = chain.from_iterable(sampled_rows(table) for table in job.plan.tables if not job.in_planes(table))
    return [task for task in tasks if job.cached(task) is None]


def _choice(array: ArrayPlan, sampled: Sequence[AnyArray | None], price: float) -> Choice:
    chunks = [chunk for chunk in sampled if chunk is not None]
    dtype = np.dtype(array.field.dtype)

    @cache  # each codec encodes the chunks once
    def size(codec: str) -> int:
        encode = encoder(compressor_of(codec, dtype, array.chunk))
        buffers = chain.from_iterable(map(encode, chunks))
        return sum(map(len, buffers))

    if array.field.codec:
        codec = array.field.codec
    elif sum(chunk.nbytes for chunk in chunks) < MIN_SAMPLE:
        return Choice(array=array, codec="fast")
    else:
        codec = choose_codec(dtype, array.chunk, size, price)
    # of every chunk; those of fill values alone are not stored
    scale = _chunk_count(array) / max(1, len(sampled))
    return Choice(array=array, codec=codec, stored=scale * size(codec), uncompressed=scale * size("none"))


def _chunk_count(array: ArrayPlan) -> int:
    axes = zip(array.shape, array.chunk, strict=True)
    return math.prod(-(-extent // step) for extent, step in axes)


def _read_layers(question: tuple[ShardJob, ShardTask]) -> dict[str, AnyArray]:
    job, task = question
    source = job.pieces_of(task)[0].source
    blocks = {}
    for array in job.plan.table(task.table).arrays:
        layer = array.chunk[1]
        first = array.shape[1] // layer // 2 * layer
        last = min(array.shape[1], first + layer)
        block = array.blank(1, last - first)
        job.read_planes(task.table, array.column, source, first, last, block)
        blocks[array.column] = block
    return blocks


def _some_chunks(array: ArrayPlan, block: AnyArray, least: int, nbytes: int) -> Iterator[AnyArray | None]:
    """Yield chunks, evenly spread, until `nbytes` of them have values. None: a chunk of fill values."""
    blank = np.full(array.chunk, array.field.fill, array.field.dtype)
    every = [
        box
        for box in chunk_slices(block.shape, array.chunk)
        if min(box[0].stop, len(block)) - box[0].start >= least
    ]
    count = max(1, nbytes // blank.nbytes)
    spread = every[:: max(1, len(every) // count)]
    missing = count
    for box in spread:
        chunk = pad_chunk(block[box], blank)
        has_values = bool((chunk != blank).any())
        yield chunk if has_values else None
        missing -= has_values
        if not missing:
            return
