"""What a conversion would write, from the scan alone, for ``--dry-run``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from unistore.conversion.executors.local import parallel_map
from unistore.conversion.executors.processes import Processes
from unistore.conversion.keys import Inputs
from unistore.conversion.memory import Estimate, Peak, estimate, provisional_tables
from unistore.conversion.new_store import plan_of
from unistore.conversion.plan import Plan
from unistore.conversion.settings import DEFAULTS, Settings
from unistore.conversion.skipping import scan_valid_sources, with_skipped
from unistore.conversion.split_rule import SOURCE, SplitRule
from unistore.conversion.splits import assign_splits, prepare_splits
from unistore.converters.detection import Claims, CountReport, counted_scan
from unistore.converters.families import Offer, offers_of
from unistore.converters.protocol import Finalized, Scan
from unistore.system.types import Int64s, JsonObject

if TYPE_CHECKING:
    from unistore.converters.adapter.converter import Converter

# Most samples that are assigned to splits only to tell their shares
_MAX_NAMES = 1_000_000


class PlannedSource(TypedDict):
    """A source as `DryRun.to_json` describes it. ``rows`` are by table."""

    name: str
    split: str | None
    rows: dict[str, int]


class PlannedArray(TypedDict):
    """An array as `DryRun.to_json` describes it."""

    path: str
    shape: list[int]
    dtype: str
    chunk: list[int]
    shard: list[int]
    amplification: float


class PlannedTable(TypedDict):
    """A table as `DryRun.to_json` describes it."""

    name: str
    rows: int
    estimated: bool
    shard_rows: int
    tasks: int
    arrays: list[PlannedArray]


class DryRunReport(TypedDict):
    """Result of `DryRun.to_json`. ``offers`` are members of `Offer`, ``plan`` is `Plan.to_json`."""

    family: str
    notes: list[str]
    verdicts: list[CountReport]
    options: JsonObject
    sources: list[PlannedSource]
    tables: list[PlannedTable]
    source_bytes: int
    raw_bytes: int
    memory: int
    offers: list[JsonObject]
    plan: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """The scan, and the plan as far as it is known before values are read."""

    scan: Scan  # sources, options and notes
    # what would be written, except what depends on values: rows and dtypes of the tables in `estimated`,
    # tables that are counted while reading, and index arrays, which are missing
    plan: Plan
    estimated: tuple[str, ...]  # names of tables whose rows are estimated
    source_sizes: Int64s  # bytes of the files of each source
    estimate: Estimate  # memory of the largest steps
    peak: Peak  # memory of all processes together
    offers: tuple[Offer, ...] = ()  # what could be precomputed, and was not asked for

    @property
    def source_bytes(self) -> int:
        """Return the bytes of all source files."""
        return int(self.source_sizes.sum())

    def to_json(self) -> DryRunReport:
        """Return plain JSON values, deterministic for given sources and options."""
        return {
            "family": self.scan.family,
            "notes": list(self.scan.notes),
            "verdicts": [count.to_json() for count in counted_scan(self.scan)],
            "options": dict(self.scan.options),
            "sources": [
                {"name": source.name, "split": source.split, "rows": dict(source.rows)}
                for source in self.scan.sources
            ],
            "tables": [
                {
                    "name": table.name,
                    "rows": table.rows,
                    "estimated": table.name in self.estimated,
                    "shard_rows": table.shard_rows,
                    "tasks": len(list(table.tasks())),
                    "arrays": [
                        {
                            "path": array.field.path,
                            "shape": list(array.shape),
                            "dtype": array.field.dtype,
                            "chunk": list(array.chunk),
                            "shard": list(array.shard),
                            "amplification": array.amplification,
                        }
                        for array in table.arrays
                    ],
                }
                for table in self.plan.tables
            ],
            "source_bytes": self.source_bytes,
            "raw_bytes": self.plan.raw_bytes,
            "memory": self.peak.bytes,
            "offers": [offer._asdict() for offer in self.offers],
            "plan": self.plan.to_json(),
        }


def dry_run(
    converter: Converter,
    paths: Sequence[Path],
    # as in `run`; problems that only values show are not known yet
    settings: Settings = DEFAULTS,
    *,
    is_named: bool = False,
    claims: Claims | None = None,
) -> DryRun:
    """Scan and plan without writing anything."""
    with Processes(memory=settings.limit) as executor:
        _, scan, problems = scan_valid_sources(
            converter,
            paths,
            skip=settings.skips,
            ask=parallel_map(executor),
            is_named=is_named,
            claims=claims,
        )
    scan = with_skipped(scan, problems)
    rule = prepare_splits(settings.rule, paths, scan)
    plan = plan_of(scan, settings.codec, rule, provisional_tables(scan))
    steps = estimate(converter, scan, settings.budget)
    arrays = {
        array.field.path: (array.shape, str(array.field.dtype))
        for table in plan.tables
        for array in table.arrays
    }
    finalized = None if scan.is_derived else converter.finalize(scan, ())
    samples = len(scan.sources) if finalized is None else finalized.samples
    return DryRun(
        scan=replace(scan, notes=(*scan.notes, *_split_notes(scan, finalized, rule))),
        plan=plan,
        estimated=tuple(table.name for table in plan.tables if table.spilled),
        source_sizes=Inputs.of(converter, scan).sizes(),
        estimate=steps,
        peak=steps.peak(settings.limit, settings.wanted_workers),
        offers=offers_of(converter.plugin, arrays, samples),
    )


def _split_notes(scan: Scan, finalized: Finalized | None, rule: SplitRule | None) -> Sequence[str]:
    # Shares are of sources where samples are counted while reading
    if rule is None or rule.column is not None:
        return ()
    if finalized is not None and (rule.by == SOURCE or finalized.samples <= _MAX_NAMES):
        return assign_splits(scan, finalized, rule).notes
    if rule.by != SOURCE:
        return ("the sizes of the splits are known only after the samples are read",)
    single = np.arange(len(scan.sources))
    by_source = Finalized(arrays=(), samples=len(single), sample_source=single)
    return tuple(
        f"{note}; the samples are counted during the conversion"
        for note in assign_splits(scan, by_source, rule).notes
    )
