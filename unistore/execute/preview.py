"""What a conversion would write, from the scan alone: for ``--dry-run``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unistore.converters.protocol import Converter, Scan
from unistore.execute.guard import guard_of
from unistore.execute.memory import ROOM, derive_memory
from unistore.execute.planes import task_memory
from unistore.execute.planning import plan_options, versions
from unistore.execute.skipping import check_mode, entry_of, scan_sound, with_skipped
from unistore.plan import Plan, TablePlan, plan_table

__all__ = ["Preview", "preview"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """Sources as they are and the plan as it would be.

    Attributes
    ----------
    scan
        What was found.
    plan
        What would be written. It is the plan that will be carried out, but for what only the sources'
        values tell: rows and dtypes of the tables in `estimated`, tables that are counted while reading,
        and index arrays, which are left out.
    estimated
        Names of tables whose rows are guessed.
    source_bytes, raw_bytes
        Sizes of the source files, and of all arrays before compression.
    memory
        Bytes that a process holds at its peak, beyond `unistore.execute.memory.PROCESS`: the largest source
        to derive, or the largest shard with its encoded form.
    """

    scan: Scan
    plan: Plan
    estimated: tuple[str, ...]
    source_bytes: int
    raw_bytes: int
    memory: int

    @property
    def tables(self) -> tuple[TablePlan, ...]:
        """The plan's tables."""
        return self.plan.tables

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, the same whenever the sources and the options are."""
        return {
            "modality": self.scan.modality,
            "notes": list(self.scan.notes),
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
                for table in self.tables
            ],
            "source_bytes": self.source_bytes,
            "raw_bytes": self.raw_bytes,
            "memory": self.memory,
            "plan": self.plan.to_json(),
        }


def preview(
    converter: Converter,
    paths: Sequence[Path],
    *,
    codec: str = "fast",
    shares: Mapping[str, float] | None = None,
    on_error: str = "fail",
    room: int = ROOM,
) -> Preview:
    """Scan and plan without writing anything.

    Parameters
    ----------
    codec, shares, on_error, room
        As of `run`; problems that only the values show are not known yet.

    Raises
    ------
    InputError
        With every problem of every source.
    """
    check_mode(on_error)
    _, scan, problems = scan_sound(converter, paths, skip=on_error == "skip")
    scan = with_skipped(scan, [entry_of(problem) for problem in problems])
    tables = tuple(
        plan_table(
            table,
            [scan.estimated_rows.get(table.name, 0)]
            if table.spilled
            else [source.rows.get(table.name, 0) for source in scan.sources],
        )
        for table in scan.tables
    )
    reading = max((source.reading for source in scan.sources), default=0)
    return Preview(
        scan=scan,
        plan=Plan(
            modality=scan.modality,
            sample_table=scan.sample_table,
            codec=codec,
            sources=tuple(source.name for source in scan.sources),
            tables=tables,
            index=(),
            options=plan_options(scan, codec, shares),
            versions=versions(),
        ),
        estimated=tuple(table.name for table in tables if table.spilled),
        source_bytes=sum(file.size for source in scan.sources for file in guard_of(source)),
        raw_bytes=sum(table.rows * table.row_bytes for table in tables),
        memory=max(
            [task_memory(converter, table, 0 if table.spilled else reading) for table in tables]
            + [derive_memory(source, room) for source in scan.sources],
            default=0,
        ),
    )
