"""Columns of a task as blocks: whole rows, or some planes of rows of many megabytes (volumes) at a time.

Whoever writes, compares or repairs takes the same blocks. A shard's bytes do not depend on them: its chunks
stand in C order, so do the blocks, and how many planes one has follows from the plan alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from unistore.conversion.plan import ArrayPlan, TablePlan
from unistore.conversion.repeated import Repeated
from unistore.converters.protocol import Converter
from unistore.zarr3.writer import content_bytes, content_digest

__all__ = [
    "LARGE",
    "Column",
    "InMemory",
    "IndexRows",
    "IndexValues",
    "Planes",
    "in_planes",
    "part_planes",
    "plane_bytes",
]

LARGE = 32 << 20
"""Rows of more bytes are read some planes at a time, where the converter can."""
PART = 16 << 20
"""Bytes of a part, or one layer of chunks where that is more."""

BLOCK = 4 << 20
"""Bytes of an index array that are taken at a time, or one chunk where that is more."""

IndexValues: TypeAlias = NDArray[Any] | Repeated
"""Values of an index array, rows on axis 0."""

ReadPlanes = Callable[[int, int, NDArray[Any]], None]
"""``read(lo, hi, block)``: fill a block (1, hi - lo, …), which is filled with the fill value, with planes."""


def in_planes(converter: Converter, table: TablePlan) -> bool:
    """Whether rows of a table are read some planes at a time."""
    return (
        converter.reads_planes
        and not table.spilled
        and table.row_bytes > LARGE
        and all(
            len(array.shape) > 1 and array.chunk[0] == 1 and not array.field.statistics
            for array in table.arrays
        )
    )


def part_planes(array: ArrayPlan) -> int:
    """Planes (of axis 1) in a part: whole layers of chunks."""
    layer = array.chunk[1]
    return layer * max(1, PART // (layer * plane_bytes(array)))


def plane_bytes(array: ArrayPlan) -> int:
    """Bytes of one plane of axis 1."""
    return max(1, prod(array.shape[2:])) * np.dtype(array.field.dtype).itemsize


class Column(Protocol):
    """Rows of one column of a task, as blocks in C order: whole rows, or planes of one row."""

    @property
    def array(self) -> ArrayPlan:
        """The array they belong to."""
        ...

    @property
    def rows(self) -> tuple[int, int]:
        """Which rows of it."""
        ...

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], NDArray[Any]]]:
        """Where each block begins (on the axes that it does not span), and the block.

        A block must not be changed, and is only good until the next one is taken.
        """
        ...

    @property
    def content(self) -> str:
        """Digest of all rows, once every block has been taken; see `content_digest`."""
        ...

    def piece(self, number: int) -> str:
        """The same of the rows of one of the sources that they come from."""
        ...


@dataclass(frozen=True, slots=True)
class InMemory:
    """Rows that are in memory: one block."""

    array: ArrayPlan
    rows: tuple[int, int]
    block: NDArray[Any]
    pieces: NDArray[np.bytes_]

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], NDArray[Any]]]:
        yield (self.rows[0],), self.block

    @property
    def content(self) -> str:
        """Digest of all rows."""
        return self.piece(0) if len(self.pieces) == 1 else content_digest(self.block)

    def piece(self, number: int) -> str:
        """Digest of the rows of one source."""
        return str(self.pieces[number], "ascii")


class Planes:
    """Rows of which each is read some planes at a time, and each is of a source of its own.

    Parameters
    ----------
    array, first
        The array, and its first row that is read.
    read
        Reads planes of each row.
    """

    def __init__(self, array: ArrayPlan, first: int, read: Sequence[ReadPlanes]) -> None:
        self.array, self.rows, self._read = array, (first, first + len(read)), read
        self._whole = xxhash.xxh3_128()
        self.pieces: list[str] = []

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], NDArray[Any]]]:
        array, step = self.array, part_planes(self.array)
        for row, read in enumerate(self._read, self.rows[0]):
            content = xxhash.xxh3_128()
            for lo in range(0, array.shape[1], step):
                hi = min(lo + step, array.shape[1])
                block = np.full((1, hi - lo, *array.shape[2:]), array.field.fill, array.field.dtype)
                read(lo, hi, block)
                content.update(content_bytes(block))
                if len(self._read) > 1:
                    self._whole.update(content_bytes(block))
                yield (row, lo), block
            self.pieces.append(content.hexdigest())

    @property
    def content(self) -> str:
        """Digest of all rows, once every block has been taken."""
        return self._whole.hexdigest() if len(self._read) > 1 else self.pieces[0]

    def piece(self, number: int) -> str:
        """Digest of one row."""
        return self.pieces[number]


class IndexRows:
    """Rows of a shard of an index array, given by all its values.

    Parameters
    ----------
    array, number
        The array, and which of its shards.
    values
        All its rows.
    """

    def __init__(self, array: ArrayPlan, number: int, values: IndexValues) -> None:
        self.array, self._values = array, values
        lo = number * array.shard[0]
        self.rows = lo, min(lo + array.shard[0], len(values))
        self._content = xxhash.xxh3_128()

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], NDArray[Any]]]:
        array = self.array
        step = array.chunk[0] * max(1, BLOCK // (array.chunk[0] * max(1, array.field.row_bytes)))
        for lo in range(*self.rows, step):
            block = self._values[lo : min(lo + step, self.rows[1])]
            self._content.update(content_bytes(block))
            yield (lo,), block

    @property
    def content(self) -> str:
        """Digest of all rows, once every block has been taken."""
        return self._content.hexdigest()

    def piece(self, number: int) -> str:
        """Index arrays are made of all sources together."""
        raise NotImplementedError
