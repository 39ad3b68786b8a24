"""Upper bounds of memory and disk space of a conversion, known before a step starts."""

# Layout and bytes never depend on memory

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unistore.conversion.plan import TablePlan, plan_table
from unistore.converters.protocol import Scan, SourceReader
from unistore.errors import AddOptions, InputError, Problem
from unistore.system.progress import NO_PROGRESS, Progress
from unistore.system.sizes import size
from unistore.system.types import Int64s
from unistore.zarr3.writer import MAX_PENDING_BYTES

PROCESS = 128 << 20  # Bytes of one process before its first step: interpreter, libraries, plan

STEP_BUDGET = 512 << 20  # Bytes that a step may use to be faster, if there is no limit

# Bytes of any shard task besides its rows: buffers, records, moments in float64, malloc overhead
STEP = 16 << 20

SOURCE = 1 << 10  # Bytes of one source in every process: names, files, fingerprint, records

# Bytes of a step up to which nobody asks whether a header may be right, and what a step without a limit takes
# at most for each byte of its files: the most that deflate can hold in a byte (RFC 1951)
UNASKED = (1 << 30) - PROCESS
MOST_EXPANSION = 1032


def check_fits(
    limit: int | None,  # bytes of all processes together; None: no limit
    # bytes of the largest step beyond `PROCESS`, and its description
    need: int,
    step: str,
) -> None:
    """Refuse a limit that is too small for one process with its largest step."""
    total = PROCESS + need
    if limit is not None and total > limit:
        message = (
            f"is {size(limit)}, but the conversion needs {size(total)}: {size(PROCESS)} for the process and "
            f"{size(need)} for {step}"
        )
        least = AddOptions(("--memory", f"{math.ceil(total * 1.005 / 1e6)}MB"))
        raise InputError.at("--memory", message, least, "memory")


def implausible_sources(
    scan: Scan,
    rows: int,  # most bytes that a shard takes for its rows alone
) -> list[Problem]:
    """Return problems of sources whose headers state far more than their bytes hold without a limit.

    A header may state any size. Formats refuse what their bytes cannot hold; of what they might, this is the
    last guard before memory is taken.
    """
    numbers = scan.sources.numbers
    needs = np.maximum(numbers["memory"], numbers["reading"])
    problems: list[Problem] = []
    for number in np.flatnonzero(needs > UNASKED).tolist():
        problems += _implausible(scan, number, int(needs[number]))
    if rows > UNASKED and not problems:
        of_rows = [_implausible(scan, number, rows) for number in range(len(scan.sources))]
        problems = list(chain.from_iterable(of_rows)) if all(of_rows) else []
    return problems


def _implausible(scan: Scan, number: int, need: int) -> Sequence[Problem]:
    files = list(map(Path, scan.sources.paths(number)))
    stored = sum(file.stat().st_size for file in files if file.is_file())
    if need <= MOST_EXPANSION * stored:
        return ()
    name = scan.sources.names[number]
    message = (
        f"has {size(stored)}, but its header states data of {size(need)}, more than {MOST_EXPANSION} times "
        "as much"
    )
    memory = AddOptions(("--memory", f"{math.ceil(2 * (PROCESS + need) / 1e6)}MB"), "if its sizes are right")
    return [Problem(name, message, ("copy or write it again", memory), "memory", name)]


def most_workers(limit: int | None, wanted: int, need: int) -> int:
    """Return how many workers fit into the limit, 0 if the converting process has to run the steps itself."""
    if limit is None:
        return wanted
    return max(0, min(wanted, (limit - PROCESS) // (PROCESS + need)))


def step_budget(
    limit: int | None,  # bytes of all processes together; None: no limit
    # wanted workers besides the converting process; 0: it runs the steps itself; None: unknown (a cluster)
    workers: int | None,
) -> int:
    """Return bytes that a step may use to be faster without reducing the number of workers."""
    if limit is None:
        return STEP_BUDGET
    if workers is None:
        return 0
    return (limit - PROCESS) // workers - PROCESS if workers else limit - PROCESS


def scan_memory(scan: Scan) -> int:
    """Return bytes of the scan in every process."""
    return len(scan.sources) * SOURCE


def derive_memory(scan: Scan, budget: int) -> Int64s:
    """Return peak bytes of deriving each source, scan included, (sources,) int64."""
    numbers = scan.sources.numbers
    scan_bytes = scan_memory(scan)
    in_core = (numbers["memory_in_core"] > 0) & (scan_bytes + numbers["memory_in_core"] <= budget)
    return scan_bytes + np.where(in_core, numbers["memory_in_core"], numbers["memory"])


def reading_memory(scan: Scan) -> int:
    """Return the maximum over sources of the bytes that reading takes besides the rows."""
    return int(scan.sources.numbers["reading"].max(initial=0))


def shard_memory(
    converter: SourceReader,
    table: TablePlan,
    reading: int,  # from `reading_memory`; not used by spilled rows
    *,
    # whether the destination takes a file piece by piece; else the encoded shard is kept in memory
    streams: bool = True,
) -> int:
    """Return peak bytes of one shard task, without the scan.

    These are the rows of all columns, plus the larger of: the encoded form of the largest column, because
    columns are written one after the other, and the rows of one column as they were read or spilled. Rows
    that are read in planes are never in memory as a whole.
    """
    rows = min(table.shard_rows, table.rows)
    largest = rows * max(array.field.row_bytes for array in table.arrays)
    if converter.reads_planes and table.has_planes:
        planes = max(array.planes_at_once * array.plane_bytes for array in table.arrays)
        return STEP + 3 * planes + (0 if streams else largest) + reading  # read, previous, encoded
    rows_bytes = STEP + rows * table.row_bytes
    if table.spilled:
        return rows_bytes + 2 * largest  # spilled rows may change dtype
    encoded = min(largest, MAX_PENDING_BYTES) if converter.reads_in_place and streams else largest
    return rows_bytes + encoded + reading


class Peak(NamedTuple):
    """Peak memory of all processes of a conversion together."""

    bytes: int
    workers: int  # that fit into the limit; 0: the converting process runs the steps itself
    wanted: int  # workers without the limit, at most one a step


class Estimate(NamedTuple):
    """The largest step of a conversion. Tables whose rows depend on values count with their most rows."""

    step: int  # bytes beyond `PROCESS`
    steps: int  # most steps that can run at once
    largest: str  # description of the largest step
    implausible: Sequence[Problem] = ()  # from `implausible_sources`

    def peak(self, limit: int | None, workers: int | None) -> Peak:
        """Return what all processes hold together, or refuse a limit that is too little.

        Without a limit, sources that are hardly what their headers state are refused.
        """
        # `workers` None: those of a cluster, of which one process counts
        if limit is None and self.implausible:
            raise InputError(self.implausible)
        check_fits(limit, self.step, self.largest)
        wanted_workers = min(workers or 0, self.steps)
        count = most_workers(limit, wanted_workers, self.step)
        step_processes = max(1, count)
        beside = PROCESS if count else 0
        return Peak(beside + step_processes * (PROCESS + self.step), count, wanted_workers)


def estimate(converter: SourceReader, scan: Scan, budget: int) -> Estimate:
    """Find the largest step of a conversion, with a budget for a step as of `step_budget`."""
    bounds = [(0, "nothing")]
    steps = 0
    if scan.is_derived and len(scan.sources):
        deriving = derive_memory(scan, budget)
        largest = int(deriving.argmax())
        bounds.append((int(deriving[largest]), f"reading {scan.sources.names[largest]}"))
        steps = len(scan.sources)
    possible = [plan_table(table, [rows]) for table, rows in scan.possible]
    shards = 0
    rows = 0
    for table in (*provisional_tables(scan), *possible):
        rows = max(rows, shard_memory(converter, table, 0))
        need = scan_memory(scan) + shard_memory(converter, table, reading_memory(scan))
        bounds.append((need, f"a shard of the table '{table.name}'"))
        shards += -(-table.rows // table.shard_rows)
    step, description = max(bounds, key=lambda bound: bound[0])
    return Estimate(step, max(steps, shards), description, implausible_sources(scan, rows))


def provisional_tables(scan: Scan) -> tuple[TablePlan, ...]:
    """Return plans of the tables of a scan, spilled ones with their estimated rows."""
    plans = []
    for table in scan.tables:
        rows = scan.sources.rows(table.name)
        if table.spilled:
            rows = [scan.estimated_rows.get(table.name, 0)]
        plans.append(plan_table(table, rows))
    return tuple(plans)


def check_space(destination: Path, tables: Iterable[TablePlan], progress: Progress) -> None:
    """Warn if the free space may not suffice, by the progress or else as a `UserWarning`."""
    existing = destination.absolute()
    while not existing.exists():
        existing = existing.parent
    room = shutil.disk_usage(existing).free
    # rows of spilled tables are written twice
    needed = sum(table.rows * table.row_bytes * (1 + table.spilled) for table in tables)
    if room >= needed:
        return
    line = (
        f"{destination}: the disk has {size(room)} free, but an uncompressed store takes {size(needed)}. "
        "Fix: free space there, or choose another destination. If the disk fills up, free space and run "
        "the same command, which continues"
    )
    if progress is NO_PROGRESS:
        from unistore.system.caller import warn_caller

        warn_caller(line)
    else:
        progress.tell(f"warning: {line}")
