"""Read blocks of samples of a store in an object store as a whole, and keep them until they are delivered."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from unistore.data.joined import join_batches
from unistore.data.kinds.protocol import SampleIndices, SampleReader
from unistore.data.packed import Allocate, Batch, range_of_rows
from unistore.errors import StoreError

if TYPE_CHECKING:
    from unistore.system.types import Int64s

# Bytes of the samples of a block: enough for large requests, and few enough that many blocks are open
BLOCK_BYTES = 8 << 20
# Bytes of all blocks that a process keeps, and how many of them an order opens, as blocks differ in size
KEPT_BYTES = 256 << 20
OPEN_BLOCKS = 24
# Samples that tell the mean size
PROBED = 8


def block_samples(reader: SampleReader, seed: int) -> int:
    """Return the number of samples of a block of about 8 MiB, from the sizes of a few samples."""
    last = max(0, len(reader) - 1)
    spread = np.linspace(0, last, PROBED).astype(np.int64)
    index = np.unique(spread)[: len(reader)]
    probed = reader.read(SampleIndices(index, np.zeros_like(index), seed), np.empty)
    return max(1, BLOCK_BYTES * len(index) // max(1, _bytes_of(probed)))


class ReadAhead:
    """Reads whole blocks of samples. It is thread-safe, and pickles without samples.

    A block is dropped after its last sample is delivered, or as the oldest one if there are too many.

    Parameters
    ----------
    offsets : int64 array of shape (blocks + 1,)
        First sample of each block, as positions in `chosen`.
    chosen : int64 array of shape (n,), or None
        Indices of the samples in use, ascending. None: all samples.
    """

    def __init__(self, offsets: Int64s, chosen: Int64s | None) -> None:
        self._offsets = offsets  # (blocks + 1,), positions in `chosen`
        self._chosen = chosen  # ascending indices of samples; None: all
        self._lock = threading.Lock()
        self._blocks: dict[tuple[int, int], Batch] = {}  # by epoch and number
        self._undelivered: dict[tuple[int, int], int] = {}
        self._bytes = 0

    def __reduce__(self) -> tuple[type[ReadAhead], tuple[Int64s, Int64s | None]]:
        return type(self), (self._offsets, self._chosen)

    def read(self, reader: SampleReader, picks: SampleIndices, allocate: Allocate) -> Batch:
        """Read a batch with a reader. If it belongs to one epoch, all samples of its blocks are read."""
        if len(np.unique(picks.epoch)) != 1:
            return reader.read(picks, allocate)
        try:
            with self._lock:
                parts, places = self._parts(reader, picks)
        except (StoreError, MemoryError):  # perhaps of a sample that nobody asked for
            return reader.read(picks, allocate)
        return join_batches(parts, places, allocate)

    def _parts(self, reader: SampleReader, picks: SampleIndices) -> tuple[list[Batch], list[Int64s]]:
        epoch = int(picks.epoch[0])
        positions = picks.index if self._chosen is None else np.searchsorted(self._chosen, picks.index)
        numbers = range_of_rows(self._offsets, positions)
        parts: list[Batch] = []
        places: list[Int64s] = []
        for number in np.unique(numbers).tolist():
            place = np.flatnonzero(numbers == number)
            block = self._block(reader, epoch, number, picks.seed)
            inside = positions[place] - self._offsets[number]
            parts.append({key: packed.take(inside) for key, packed in block.items()})
            places.append(place)
            self._undelivered[epoch, number] -= len(place)
            if self._undelivered[epoch, number] <= 0:
                self._drop(epoch, number)
        return parts, places

    def _block(self, reader: SampleReader, epoch: int, number: int, seed: int) -> Batch:
        block = self._blocks.get((epoch, number))
        if block is None:
            index = np.arange(self._offsets[number], self._offsets[number + 1])
            index = index if self._chosen is None else self._chosen[index]
            block = reader.read(SampleIndices(index, np.full_like(index, epoch), seed), np.empty)
            self._bytes += _bytes_of(block)
            while self._blocks and self._bytes > KEPT_BYTES:
                self._drop(*next(iter(self._blocks)))
            self._blocks[epoch, number] = block
            self._undelivered[epoch, number] = len(index)
        return block

    def _drop(self, epoch: int, number: int) -> None:
        self._bytes -= _bytes_of(self._blocks.pop((epoch, number)))
        del self._undelivered[epoch, number]


def _bytes_of(batch: Batch) -> int:
    return sum(packed.values.nbytes for packed in batch.values())
