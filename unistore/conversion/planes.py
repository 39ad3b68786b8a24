"""Rows of many megabytes (volumes): read, encoded and written some planes at a time, never whole.

The bytes are those of a shard that is encoded at once: its chunks hold one row each and stand in C order, so
row after row, planes after planes. How many planes are taken at a time follows from the plan alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from unistore.conversion.memory import STEP, shard_memory
from unistore.conversion.plan import ArrayPlan, TablePlan
from unistore.converters.protocol import Converter
from unistore.zarr3.writer import AHEAD, content_bytes

__all__ = ["Parts", "in_parts", "part_planes", "task_memory"]

LARGE = 32 << 20
"""Shards of rows of more bytes are written in parts, where the converter can read them so."""
PART = 16 << 20
"""Bytes of a part, or one layer of chunks where that is more."""

ReadPlanes = Callable[[int, int, NDArray[Any]], None]
"""``read(lo, hi, block)``: fill a block (1, hi - lo, …), which is filled with the fill value, with planes."""


def in_parts(converter: Converter, table: TablePlan) -> bool:
    """Whether shards of a table are written in parts."""
    return (
        converter.planar
        and not table.spilled
        and table.row_bytes > LARGE
        and all(
            len(array.shape) > 1 and array.chunk[0] == 1 and not array.field.statistics
            for array in table.arrays
        )
    )


def task_memory(converter: Converter, table: TablePlan, reading: int, *, streams: bool = True) -> int:
    """Peak bytes of one shard task, in whichever way it is written.

    A converter that reads planes says all that it holds in ``reading``; rows of others may be there twice
    while they are read, see `shard_memory`.

    Parameters
    ----------
    reading
        The most that a source of the table says to hold (`Source.reading`).
    streams
        Whether the destination takes a file piece by piece; else the encoded shard is held.
    """
    if not converter.planar or table.spilled:
        return shard_memory(table, reading)
    rows = min(table.shard_rows, table.rows)
    largest = rows * max(array.field.row_bytes for array in table.arrays)
    if in_parts(converter, table):
        part = max(part_planes(array) * _plane_bytes(array) for array in table.arrays)
        return STEP + 3 * part + (0 if streams else largest) + reading  # the part, the one before it, encoded
    encoded = min(largest, AHEAD) if streams else largest
    return STEP + rows * table.row_bytes + encoded + reading


def part_planes(array: ArrayPlan) -> int:
    """Planes (of axis 1) in a part: whole layers of chunks."""
    layer = array.chunk[1]
    return layer * max(1, PART // (layer * _plane_bytes(array)))


def _plane_bytes(array: ArrayPlan) -> int:
    return max(1, prod(array.shape[2:])) * np.dtype(array.field.dtype).itemsize


class Parts:
    """Parts of the rows of a shard, in order, with the digest of each row and of them all.

    Parameters
    ----------
    array
        The array; kept as ``array``.
    rows
        Reads planes of each row.
    """

    def __init__(self, array: ArrayPlan, rows: Sequence[ReadPlanes]) -> None:
        self.array, self._rows = array, rows
        self._whole = xxhash.xxh3_128()
        self.contents: list[str] = []
        """Content digest of each row that has been given: see `content_digest`."""

    def __iter__(self) -> Iterator[NDArray[Any]]:
        array, step = self.array, part_planes(self.array)
        for read in self._rows:
            content = xxhash.xxh3_128()
            for lo in range(0, array.shape[1], step):
                hi = min(lo + step, array.shape[1])
                block = np.full((1, hi - lo, *array.shape[2:]), array.field.fill, array.field.dtype)
                read(lo, hi, block)
                content.update(content_bytes(block))
                if len(self._rows) > 1:
                    self._whole.update(content_bytes(block))
                yield block
            self.contents.append(content.hexdigest())

    @property
    def content(self) -> str:
        """Content digest of all rows, once every part has been given."""
        return self._whole.hexdigest() if len(self._rows) > 1 else self.contents[0]
