"""The scan on an executor: each step scans some sources; results are in the order of the sources."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from unistore.conversion.executors.local import Executor
from unistore.conversion.job import Outcome
from unistore.converters.parts import Part, Parts
from unistore.converters.scanning import PartResult, PartScanner, scan_here, scan_part
from unistore.errors import first_few

MAX_SOURCES = 256
"""Most sources of a step: those that `Packed` keeps together."""
MIN_STEPS = 32
"""Least number of steps; fewer sources are scanned in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanJob:
    """Scan sources: ``job(numbers)`` returns the result of each in its record."""

    converter: PartScanner
    parts: Parts

    def __call__(self, numbers: range) -> Outcome:
        """Scan some sources."""
        return Outcome({"scanned": [scan_part(self.converter, self.parts[number]) for number in numbers]})

    def describe(self, numbers: range) -> str:
        """Names of the sources, for messages."""
        return f"scanning {first_few([self.parts.names[number] for number in numbers], 1)}"

    def need(self, numbers: range) -> int:  # noqa: ARG002  as every job has it
        """Zero: headers are small."""
        return 0

    def bare(self) -> ScanJob:
        """See `SlicedJob`."""
        return ScanJob(converter=self.converter, parts=self.parts.only(()))

    def slice(self, numbers: range) -> dict[str, Any]:
        """See `SlicedJob`."""
        return {"parts": self.parts.only(numbers)}


def scan_on(executor: Executor, converter: PartScanner, parts: Sequence[Part]) -> Iterator[PartResult]:
    """Like `scan_here`, on an executor."""
    if len(parts) < MIN_STEPS:
        yield from scan_here(converter, parts)
        return
    step = min(MAX_SOURCES, 1 << (len(parts) // MIN_STEPS).bit_length() - 1)
    todo = [range(lo, min(lo + step, len(parts))) for lo in range(0, len(parts), step)]
    job = ScanJob(converter=converter, parts=parts if isinstance(parts, Parts) else Parts(parts))
    early: dict[int, list[PartResult]] = {}
    wanted = 0
    with closing(executor.run(job, todo)) as done:
        for numbers, outcome in done:
            early[numbers.start] = outcome.record["scanned"]
            while wanted in early:
                yield from early[wanted]
                wanted += len(early.pop(wanted))
