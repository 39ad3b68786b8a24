"""Peak memory of a conversion, estimated from the scan: for ``--dry-run``, ``inspect`` and limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from unistore.conversion.memory import (
    PROCESS,
    check_fits,
    derive_memory,
    most_workers,
    reading_memory,
    scan_memory,
    shard_memory,
)
from unistore.conversion.plan import TablePlan, plan_table
from unistore.converters.protocol import Converter, Scan


class Peak(NamedTuple):
    """Peak memory of all processes of a conversion together.

    Attributes
    ----------
    bytes
        Peak memory in bytes.
    workers, wanted
        Worker processes with the limit, and without it (at most one a step); 0: the converting process runs
        the steps itself.
    """

    bytes: int
    workers: int
    wanted: int


class Estimate(NamedTuple):
    """The largest steps of a conversion, in bytes beyond `PROCESS`.

    Tables whose rows depend on values count with their maximum number of rows.

    Attributes
    ----------
    reading
        Peak bytes of deriving a source; 0 if none is derived.
    writing
        Peak bytes of writing a shard.
    sources, shards
        Number of each.
    largest
        Description of the largest step.
    """

    reading: int
    writing: int
    sources: int
    shards: int
    largest: str

    @property
    def step(self) -> int:
        """The largest step."""
        return max(self.reading, self.writing)

    def check(self, limit: int | None) -> None:
        """Refuse a limit that a process with the largest step would break; see `check_fits`."""
        check_fits(limit, self.step, self.largest)

    def peak(self, limit: int | None, workers: int | None) -> Peak:
        """What all processes hold together under a limit.

        Parameters
        ----------
        limit
            Bytes of all processes; None: no limit.
        workers
            As asked for; None: those of a cluster, of which one process counts.

        Raises
        ------
        InputError
            If the limit is too little, with the arithmetic.
        """
        self.check(limit)
        wanted = min(workers or 0, max(self.shards, self.sources if self.reading else 0))
        count = most_workers(limit, wanted, self.step)
        if count:
            return Peak(PROCESS + count * (PROCESS + self.step), count, wanted)
        return Peak(PROCESS + self.step, 0, wanted)


def estimate(converter: Converter, scan: Scan, budget: int) -> Estimate:
    """Estimate the steps of a conversion.

    Parameters
    ----------
    budget
        Bytes that a step may use to be faster; see `unistore.conversion.memory.step_budget`.
    """
    deriving = derive_memory(scan, budget) if scan.is_derived else np.zeros(1, np.int64)
    reading = int(deriving.max(initial=0))
    tables = [*provisional_tables(scan), *_possible_tables(scan)]
    beside = scan_memory(scan)
    needs = {table.name: beside + shard_memory(converter, table, reading_memory(scan)) for table in tables}
    name = max(needs, key=needs.__getitem__, default="")
    writing = needs.get(name, 0)
    return Estimate(
        reading=reading,
        writing=writing,
        sources=len(scan.sources),
        shards=sum(-(-table.rows // table.shard_rows) for table in tables),
        largest=f"reading {scan.sources.names[int(deriving.argmax())]}"
        if reading > writing
        else f"a shard of table {name!r}",
    )


def provisional_tables(scan: Scan) -> tuple[TablePlan, ...]:
    """Plans of the tables of a scan; spilled ones with their estimated rows."""
    return tuple(
        plan_table(
            table,
            [scan.estimated_rows.get(table.name, 0)] if table.spilled else scan.sources.rows(table.name),
        )
        for table in scan.tables
    )


def _possible_tables(scan: Scan) -> Iterator[TablePlan]:
    for table, rows in scan.possible:
        yield plan_table(table, [rows])
