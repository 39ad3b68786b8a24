"""How much memory a conversion may take: what steps need, and what is too little, with the arithmetic.

What a step needs is known before it starts: a source's own estimate while it is derived, the rows of a shard
with their encoded form while it is written. Layout and bytes never depend on any of this.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unistore.conversion.columns import in_planes, part_planes, plane_bytes
from unistore.conversion.plan import TablePlan
from unistore.converters.protocol import Converter, Scan, Source
from unistore.errors import InputError, Problem
from unistore.system.sizes import size
from unistore.zarr3.writer import AHEAD

__all__ = [
    "PROCESS",
    "ROOM",
    "check_fits",
    "derive_memory",
    "derived_in_core",
    "most_workers",
    "reading_memory",
    "room",
    "scan_memory",
    "shard_memory",
]

PROCESS = 128 << 20
"""Bytes of one process before its first step: interpreter, libraries, plan."""

ROOM = 512 << 20
"""Bytes that a step may hold to be faster where no limit is given."""

STEP = 16 << 20
"""Bytes of a shard task whatever its size: buffers, records, moments in float64, what malloc keeps."""

SOURCE = 1 << 10
"""Bytes of one source in every process: its names, its files, what guards them, what is recorded of it."""


def check_fits(limit: int | None, need: int, what: str) -> None:
    """Refuse a limit that one step alone would break, in one process.

    Parameters
    ----------
    limit
        Bytes of all processes together; None: no limit.
    need, what
        Bytes that the largest step holds beyond `PROCESS`, and what the step is.

    Raises
    ------
    InputError
        With the arithmetic.
    """
    total = PROCESS + need
    if limit is not None and total > limit:
        message = (
            f"{size(limit)} is too little: {size(PROCESS)} for the process + {size(need)} for {what} = "
            f"{size(total)}"
        )
        raise InputError(Problem("--memory", message, f"give at least {size(total * 1.005)}", "memory"))


def most_workers(limit: int | None, wanted: int, need: int) -> int:
    """Workers beside the converting process that may each hold `need` bytes at once: at most `wanted`.

    0: not even one; the converting process has to do the steps itself.
    """
    if limit is None:
        return wanted
    return max(0, min(wanted, (limit - PROCESS) // (PROCESS + need)))


def room(limit: int | None, workers: int | None) -> int:
    """Bytes that a step may hold to be faster: so many that it takes the place of no other.

    Parameters
    ----------
    limit
        Bytes of all processes together; None: no limit.
    workers
        Wanted beside the converting process; 0: it does the steps itself; None: nobody knows how many.
    """
    if limit is None:
        return ROOM
    if workers is None:
        return 0
    return (limit - PROCESS) // workers - PROCESS if workers else limit - PROCESS


def scan_memory(scan: Scan) -> int:
    """Bytes of what was scanned, in every process."""
    return len(scan.sources) * SOURCE


def derived_in_core(scan: Scan, source: Source, room: int) -> bool:
    """Whether a source is derived without a folder where a step may hold `room` to be faster."""
    return scan_memory(scan) + source.memory_in_core <= room


def derive_memory(scan: Scan, room: int) -> NDArray[np.int64]:
    """Peak bytes of deriving each source with the scan, where a step may hold `room` to be faster."""
    numbers, beside = scan.sources.numbers, scan_memory(scan)
    in_core = (numbers["memory_in_core"] > 0) & (beside + numbers["memory_in_core"] <= room)
    return beside + np.where(in_core, numbers["memory_in_core"], numbers["memory"])


def reading_memory(scan: Scan) -> int:
    """The most that reading a source takes besides its rows, in bytes."""
    return int(scan.sources.numbers["reading"].max(initial=0))


def shard_memory(converter: Converter, table: TablePlan, reading: int, *, streams: bool = True) -> int:
    """Peak bytes of one shard task beside the scan.

    All columns' rows, with the encoded form of the largest column (written one after the other), or, before
    that, one column's rows as they were read or spilled. A converter that reads planes says all that it holds
    in `reading`, and what it reads goes out as it is encoded; rows of many megabytes are never there whole.

    Parameters
    ----------
    reading
        What `reading_memory` says; spilled rows are not read from sources.
    streams
        Whether the destination takes a file piece by piece; else the encoded shard is held.
    """
    rows = min(table.shard_rows, table.rows)
    largest = rows * max(array.field.row_bytes for array in table.arrays)
    if in_planes(converter, table):
        part = max(part_planes(array) * plane_bytes(array) for array in table.arrays)
        return STEP + 3 * part + (0 if streams else largest) + reading  # the part, the one before it, encoded
    held = STEP + rows * table.row_bytes
    if table.spilled:
        return held + 2 * largest  # spilled rows may be converted on their way
    encoded = min(largest, AHEAD) if converter.reads_planes and streams else largest
    return held + encoded + reading
