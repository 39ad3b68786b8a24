"""Memory of a conversion: what its steps need, and whether a limit suffices.

The need of a step is known before it starts: the source's own estimate for deriving it, the rows of a shard
and their encoded form for writing it. Layout and bytes never depend on memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from unistore.conversion.columns import in_planes, plane_bytes, planes_at_once
from unistore.conversion.executors.local import Job
from unistore.conversion.plan import TablePlan
from unistore.converters.protocol import Converter, Scan, Source
from unistore.errors import InputError, Problem
from unistore.system.sizes import size
from unistore.zarr3.writer import MAX_PENDING_BYTES

T = TypeVar("T")

PROCESS = 128 << 20
"""Bytes of one process before its first step: interpreter, libraries, plan."""

STEP_BUDGET = 512 << 20
"""Bytes that a step may use to be faster, if there is no limit."""

STEP = 16 << 20
"""Bytes of any shard task besides its rows: buffers, records, moments in float64, malloc overhead."""

SOURCE = 1 << 10
"""Bytes of one source in every process: names, files, fingerprint, records."""


def check_fits(limit: int | None, need: int, what: str) -> None:
    """Refuse a limit that is too small for one process with its largest step.

    Parameters
    ----------
    limit
        Bytes of all processes together; None: no limit.
    need, what
        Bytes of the largest step beyond `PROCESS`, and its description.

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


def largest_need(job: Job[T], items: Sequence[T], limit: int | None) -> int:
    """Peak bytes of the largest step, beyond `PROCESS`.

    Parameters
    ----------
    items
        At least one.
    limit
        Limit in bytes of a process with one step; None: no limit.

    Raises
    ------
    InputError
        If the limit is too small for that step.
    """
    largest = max(items, key=job.need)
    need = job.need(largest)
    if need:
        check_fits(limit, need, job.describe(largest))
    return need


def most_workers(limit: int | None, wanted: int, need: int) -> int:
    """How many workers, at most `wanted`, fit into the limit if each needs `need` bytes for a step.

    0: none; the converting process has to run the steps itself.
    """
    if limit is None:
        return wanted
    return max(0, min(wanted, (limit - PROCESS) // (PROCESS + need)))


def step_budget(limit: int | None, workers: int | None) -> int:
    """Bytes that a step may use to be faster without reducing the number of workers.

    Parameters
    ----------
    limit
        Bytes of all processes together; None: no limit.
    workers
        Wanted workers besides the converting process; 0: it runs the steps itself; None: unknown (a cluster).
    """
    if limit is None:
        return STEP_BUDGET
    if workers is None:
        return 0
    return (limit - PROCESS) // workers - PROCESS if workers else limit - PROCESS


def scan_memory(scan: Scan) -> int:
    """Bytes of the scan in every process."""
    return len(scan.sources) * SOURCE


def derived_in_core(scan: Scan, source: Source, budget: int) -> bool:
    """Whether a source is derived in memory, without a scratch folder, with a budget for a step."""
    return scan_memory(scan) + source.memory_in_core <= budget


def derive_memory(scan: Scan, budget: int) -> NDArray[np.int64]:
    """Peak bytes of deriving each source (scan included) with a budget for a step, (sources,) int64."""
    numbers, scan_bytes = scan.sources.numbers, scan_memory(scan)
    in_core = (numbers["memory_in_core"] > 0) & (scan_bytes + numbers["memory_in_core"] <= budget)
    return scan_bytes + np.where(in_core, numbers["memory_in_core"], numbers["memory"])


def reading_memory(scan: Scan) -> int:
    """Maximum over sources of the bytes that reading takes besides the rows."""
    return int(scan.sources.numbers["reading"].max(initial=0))


def shard_memory(converter: Converter, table: TablePlan, reading: int, *, streams: bool = True) -> int:
    """Peak bytes of one shard task, without the scan.

    The rows of all columns, plus the larger of: the encoded form of the largest column (columns are written
    one after the other), one column's rows as they were read or spilled. Rows that are read in planes are
    never in memory as a whole.

    Parameters
    ----------
    reading
        From `reading_memory`; not used by spilled rows.
    streams
        Whether the destination takes a file piece by piece; else the encoded shard is kept in memory.
    """
    rows = min(table.shard_rows, table.rows)
    largest = rows * max(array.field.row_bytes for array in table.arrays)
    if in_planes(converter, table):
        planes = max(planes_at_once(array) * plane_bytes(array) for array in table.arrays)
        return STEP + 3 * planes + (0 if streams else largest) + reading  # read, previous, encoded
    rows_bytes = STEP + rows * table.row_bytes
    if table.spilled:
        return rows_bytes + 2 * largest  # spilled rows may change dtype
    encoded = min(largest, MAX_PENDING_BYTES) if converter.reads_planes and streams else largest
    return rows_bytes + encoded + reading
