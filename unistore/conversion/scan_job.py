"""The scan on an executor: some sources a step, their headers in the sources' order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from unistore.conversion.executors.local import Executor
from unistore.conversion.job import Outcome
from unistore.converters.parts import Part
from unistore.converters.scanning import Looked, Scans, scan_here, scan_part
from unistore.system.packed import Packed

__all__ = ["ScanJob", "scan_on"]

MOST = 64
"""Sources that a step scans, at the most."""
FEWEST = 32
"""Of so few sources, this process scans each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanJob:
    """Scan sources: ``job(numbers)`` gives what was found of each, in its record."""

    converter: Scans
    parts: Packed[Part]

    def __call__(self, numbers: range) -> Outcome:
        """Scan some sources."""
        return Outcome({"scanned": [scan_part(self.converter, self.parts[number]) for number in numbers]})

    def describe(self, numbers: range) -> str:
        """The sources by name."""
        more = f" and {len(numbers) - 1} more" if len(numbers) > 1 else ""
        return f"looking at {self.parts[numbers[0]].name}{more}"

    def need(self, numbers: range) -> int:  # noqa: ARG002  as every job has it
        """Nothing: headers are small."""
        return 0

    def bare(self) -> ScanJob:
        """See `SlicedJob`."""
        return ScanJob(converter=self.converter, parts=self.parts.only(()))

    def slice(self, numbers: range) -> dict[str, Any]:
        """See `SlicedJob`."""
        return {"parts": self.parts.only(numbers)}


def scan_on(executor: Executor, converter: Scans, parts: Sequence[Part]) -> Iterator[Looked]:
    """What `scan_here` gives, from where an executor's steps run."""
    if len(parts) < FEWEST:
        yield from scan_here(converter, parts)
        return
    step = min(MOST, len(parts) // FEWEST)
    todo = [range(lo, min(lo + step, len(parts))) for lo in range(0, len(parts), step)]
    job = ScanJob(converter=converter, parts=parts if isinstance(parts, Packed) else Packed(parts))
    early: dict[int, list[Looked]] = {}
    wanted = 0
    with closing(executor.run(job, todo)) as done:
        for numbers, outcome in done:
            early[numbers.start] = outcome.record["scanned"]
            while wanted in early:
                yield from early[wanted]
                wanted += len(early.pop(wanted))
