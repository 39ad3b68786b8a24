"""How fast a store reads here: short random reads, in full shuffle and in blocks, on one core."""

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
from unistore.zarr3.cache import CHUNKS

if TYPE_CHECKING:
    from unistore.data.dataset import Dataset

__all__ = ["Speed", "forks_safely", "measure"]

LARGEST_BATCH = 64
BATCH_BYTES = 32 << 20
"""Batches are made of as many samples as stay below, at most `LARGEST_BATCH`."""
SECONDS = 0.3
"""Of each of the four measurements; one batch at least."""
PATIENCE = 20.0
"""Seconds after which a forked child that reads one batch is taken for hung."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Speed of one process that reads random batches of natural samples.

    Attributes
    ----------
    batch_size
        Samples of a batch.
    sample_bytes
        Decoded bytes of a sample, on average.
    found
        Samples a second in a full shuffle as the files were found: from disk, or from the page cache.
    shuffled, blocks
        Samples a second read again from the page cache: in a full shuffle, and in block shuffle. Decoded
        chunks are dropped before each.
    """

    batch_size: int
    sample_bytes: float
    found: float
    shuffled: float
    blocks: float


def measure(dataset: Dataset, seconds: float = SECONDS) -> Speed:
    """Read some batches and look at the clock: about four times `seconds` in all.

    Parameters
    ----------
    dataset
        The samples, at least one.
    seconds
        How long each order is read.
    """
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
        seen[0] += len(wanted)
        seen[1] += sum(
            packed.values.nbytes for packed in dataset.read_batch(wanted, scratch.allocate).values()
        )
        return start + len(wanted)

    full = Shuffled(count, seed=1)
    blocks = BlockShuffle.within(dataset.block_offsets(), dataset.open_blocks, seed=1, deal=read_size)
    found, stop = _rate(read, full, count, seconds, once=True)
    shuffled, _ = _rate(read, full, stop, seconds)
    _, stop = _rate(read, blocks, count, seconds, once=True)
    in_blocks, _ = _rate(read, blocks, stop, seconds)
    return Speed(
        batch_size=at_once,
        sample_bytes=seen[1] / seen[0],
        found=found,
        shuffled=shuffled,
        blocks=in_blocks,
    )


def forks_safely(dataset: Dataset, indices: NDArray[np.integer]) -> float | None:
    """Seconds that a forked child takes to read a batch after this process has read; None: it did not.

    Parameters
    ----------
    dataset
        Has been read from in this process.
    indices
        (B,) samples.
    """
    dataset.read_batch(indices)
    child = multiprocessing.get_context("fork").Process(target=dataset.read_batch, args=(indices,))
    began = time.perf_counter()
    child.start()
    child.join(PATIENCE)
    if child.exitcode is None:
        child.kill()
        child.join()
    took = time.perf_counter() - began
    return took if child.exitcode == 0 else None


def _rate(
    read: Callable[[EpochSequence, int], int],
    sequence: EpochSequence,
    stop: int,
    seconds: float,
    *,
    once: bool = False,
) -> tuple[float, int]:
    """Samples a second over the first `stop` positions, and how far it got.

    They are read over and over until time is over, or `once`; decoded chunks are dropped before each pass.
    """
    began, samples, furthest = time.perf_counter(), 0, 0
    while True:
        CHUNKS.renew()
        position = 0
        while position < stop:
            following = read(sequence, position)
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
