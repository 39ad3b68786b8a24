"""Chunk and shard shapes from shape, dtype and access pattern.

A chunk holds about what one sample needs, 16–256 KiB uncompressed; a shard holds many chunks and is the unit
of writing. All columns of a table have the same rows in each shard, so that one task reads each source block
once and writes whole shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from unistore.schemas.tables import Field

KIB = 1 << 10
MIB = 1 << 20

SMALLEST_CHUNK = 16 * KIB
"""Below this the cost of a chunk (index, checksum, decoder call) outweighs its bytes."""
ROW_CHUNK = 32 * KIB
"""Bytes of a chunk of rows that samples read one at a time.

Measured with rows of 64 to 1,024 bytes: a random row costs the same from chunks of 4 to 32 KiB (9 µs), three
times that from 64 KiB; blocks of rows are read three to four times as fast from 32 as from 4 KiB.
"""
LARGEST_CHUNK = 256 * KIB
LARGEST_ROW = 4 * MIB
"""Rows above this are split along their leading axes."""
SHARD = 128 * MIB
"""Uncompressed bytes of one shard row over all columns of a table: the memory of one task."""


class ArrayLayout(NamedTuple):
    """Inner chunk shape and shard shape of one array, axis 0 first, and the predicted read amplification."""

    chunk: tuple[int, ...]
    shard: tuple[int, ...]
    amplification: float


def lay_out_table(fields: Sequence[Field], rows: int) -> list[ArrayLayout]:
    """Lay out all columns of a table of `rows` rows; every shard shape starts with the same row count.

    Returns
    -------
    list of ArrayLayout
        In the order of `fields`. Chunk rows are powers of two, at most a shard of all columns together
        (so that a flag beside images does not make a shard of gigabytes), shard rows a multiple of each,
        and shard extents on further axes are whole chunks that cover the row.
    """
    row_bytes = max(1, sum(field.row_bytes for field in fields))
    most = _power_of_two(SHARD // row_bytes)
    preferred = [chunk_shape(field) for field in fields]
    chunks = [(min(chunk[0], most), *chunk[1:]) for chunk in preferred]
    group = max(chunk[0] for chunk in chunks)
    wanted = max(1, SHARD // (row_bytes * group))
    present = max(1, -(-rows // group))
    shard_rows = group * min(wanted, present)
    return [
        ArrayLayout(
            chunk=chunk,
            shard=(shard_rows, *(_round_up(e, c) for e, c in zip(field.row_shape, chunk[1:], strict=True))),
            amplification=amplification(field, chunk),
        )
        for field, chunk in zip(fields, chunks, strict=True)
    ]


def chunk_shape(field: Field) -> tuple[int, ...]:
    """Inner chunk shape of a field, axis 0 first."""
    if field.tile is not None:
        return (1, *(min(t, max(1, e)) for t, e in zip(field.tile, field.row_shape, strict=True)))
    row_bytes = max(1, field.row_bytes)
    if row_bytes > LARGEST_ROW:
        return (1, *_split_row(field.row_shape, row_bytes))
    if field.run <= 1:
        rows = ROW_CHUNK // row_bytes
    else:
        rows = min(max(field.run // 2, SMALLEST_CHUNK // row_bytes), LARGEST_CHUNK // row_bytes)
    return (_power_of_two(rows), *(max(1, extent) for extent in field.row_shape))


def amplification(field: Field, chunk: Sequence[int]) -> float:
    """Bytes decoded over bytes needed to read one sample, averaged over positions.

    A run of n rows in chunks of c rows touches (n + c − 1)/c chunks on average; a box of one tile a side,
    placed anywhere, touches 2 − 1/t tiles an axis of t cells.
    """
    if field.tile is None:
        return (field.run + chunk[0] - 1) / field.run
    factor = 1.0
    for tile, extent in zip(chunk[1:], field.row_shape, strict=True):
        factor *= 1.0 if tile >= extent else 2 - 1 / tile
    return factor


def _split_row(shape: tuple[int, ...], row_bytes: int) -> tuple[int, ...]:
    """Halve leading axes until one piece is at most 1 MiB: pieces stay contiguous in the row."""
    chunk = list(shape)
    for axis, extent in enumerate(shape):
        parts = min(extent, -(-row_bytes // MIB))
        chunk[axis] = -(-extent // parts)
        row_bytes = -(-row_bytes // parts)
        if row_bytes <= MIB:
            break
    return tuple(chunk)


def _power_of_two(rows: int) -> int:
    """Largest power of two that is at most `rows`, at least 1."""
    return 1 << (max(1, rows).bit_length() - 1)


def _round_up(extent: int, step: int) -> int:
    return max(step, -(-extent // step) * step)
