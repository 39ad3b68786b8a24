"""Read speed of a store on one core: random batches, in full shuffle and in block shuffle."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from unistore.data.scratch import Scratch
from unistore.order.blocks import BlockShuffle
from unistore.order.sequences import EpochSequence, Shuffled
from unistore.zarr3.pool import forget_chunks

if TYPE_CHECKING:
    from unistore.data.dataset import Dataset

LARGEST_BATCH = 64
BATCH_BYTES = 32 << 20
"""Batches have as many samples as fit into these bytes, at most `LARGEST_BATCH`."""
SECONDS = 0.3
"""Duration of each of the four measurements; at least one batch is read."""
FORK_TIMEOUT = 20.0
"""Seconds after which a forked child that reads one batch counts as hung."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Read speed of one process.

    Attributes
    ----------
    batch_size, sample_bytes
        Samples of a batch, and decoded bytes of a sample, on average.
    first_pass
        Samples a second of the first pass, in full shuffle: from disk, or from the page cache if the files
        are in it.
    shuffled, blocks
        Samples a second read again from the page cache, in full shuffle and in block shuffle. The cache of
        decoded chunks is emptied before each.
    """

    batch_size: int
    sample_bytes: float
    first_pass: float
    shuffled: float
    blocks: float


def measure_speed(dataset: Dataset, seconds: float = SECONDS) -> Speed:
    """Time random reads of at least one sample, each order for `seconds`: about four times that in all."""
    count, scratch = len(dataset), Scratch()
    began = time.perf_counter()
    batch = dataset.read_batch([count // 2])
    took = time.perf_counter() - began
    size = max(1, sum(packed.values.nbytes for packed in batch.values()))
    at_once = _power_of_two(min(LARGEST_BATCH, count, BATCH_BYTES // size))
    # a batch of slow samples must not take longer than all measurements together
    read_size = _power_of_two(min(at_once, int(seconds / max(took, 1e-6))))
    seen = [0, 0]

    def read(sequence: EpochSequence, start: int) -> int:
        wanted = sequence.indices(0, start, min(start + read_size, count))
        scratch.begin()
        batch = dataset.read_batch(wanted, scratch.allocate)
        seen[0] += len(wanted)
        seen[1] += sum(packed.values.nbytes for packed in batch.values())
        return start + len(wanted)

    full = Shuffled(count, seed=1)
    blocks = BlockShuffle.within(dataset.block_offsets(), dataset.open_blocks, seed=1, deal=read_size)
    first_pass, stop = _rate(read, full, count, seconds, True)
    shuffled, _ = _rate(read, full, stop, seconds, False)
    _, stop = _rate(read, blocks, count, seconds, True)
    in_blocks, _ = _rate(read, blocks, stop, seconds, False)
    average = seen[1] / seen[0]
    return Speed(
        batch_size=at_once, sample_bytes=average, first_pass=first_pass, shuffled=shuffled, blocks=in_blocks
    )


def time_forked_read(dataset: Dataset, indices: NDArray[np.integer]) -> float | None:
    """Seconds that a child takes to read a batch, forked after this process has read; None: it failed."""
    dataset.read_batch(indices)
    child = multiprocessing.get_context("fork").Process(target=dataset.read_batch, args=(indices,))
    began = time.perf_counter()
    child.start()
    child.join(FORK_TIMEOUT)
    if child.exitcode is None:
        child.kill()
        child.join()
    took = time.perf_counter() - began
    return took if child.exitcode == 0 else None


def _rate(
    read: Callable[[EpochSequence, int], int], order: EpochSequence, stop: int, seconds: float, once: bool
) -> tuple[float, int]:
    """Samples a second over the first `stop` positions, and the furthest position read.

    Passes repeat until `seconds` are over, or there is one (`once`). Decoded chunks are dropped before each.
    """
    began, samples, furthest = time.perf_counter(), 0, 0
    while True:
        forget_chunks()
        position = 0
        while position < stop:
            following = read(order, position)
            samples += following - position
            position = following
            furthest = max(furthest, position)
            took = time.perf_counter() - began
            if took >= seconds:
                return samples / took, furthest
        if once:
            return samples / took, furthest


def _power_of_two(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)
