"""From what was scanned and derived to the plan: every array in its final form, and what goes beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.conversion.finish import IndexArrays, root_attributes, shared_index
from unistore.conversion.plan import ArrayPlan, Plan, TablePlan, plan_table
from unistore.conversion.spill import Spill
from unistore.conversion.splits import Codes, Shares, assign_splits, keeps_splits
from unistore.converters.protocol import Scan, Settled
from unistore.errors import ConversionError
from unistore.schemas.tables import Field, Table

__all__ = ["Planned", "plan_conversion", "plan_of", "plan_options", "versions"]

_KEPT = "the sources say which split samples belong to: taken as they say, --split is not"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A conversion that is ready to be written.

    Attributes
    ----------
    scan, plan
        What was found, what will be written.
    attributes
        The root's attributes as far as they are known.
    groups
        Attributes of groups below the root, by path.
    codes
        Split code a sample, (samples,) u1.
    arrays
        The converter's own index arrays.
    spilled
        Final form of the spilled tables, by name.
    notes
        Remarks on the plan, and about what was found in values.
    """

    scan: Scan
    plan: Plan
    attributes: Mapping[str, Any]
    groups: Mapping[str, Mapping[str, Any]]
    codes: Codes
    arrays: IndexArrays
    spilled: Mapping[str, Table]
    notes: tuple[str, ...] = ()

    def index(self, digests: NDArray[np.uint8]) -> IndexArrays:
        """Every index array; `digests` are the content digests of the sources, (F, 16) u1."""
        main_rows = _rows_of(self.scan.main_table, self.plan.tables)
        return [*self.arrays, *shared_index(self.scan, main_rows, digests, self.codes)]


def plan_conversion(scan: Scan, settled: Settled, codec: str, shares: Shares | None, spill: Path) -> Planned:
    """Plan a conversion once its sources are derived and settled.

    Parameters
    ----------
    codec, shares
        As given to `run`.
    spill
        Folder of what the sources spilled.
    """
    codes, names = assign_splits(scan, settled, shares)
    tables = _tables(scan, settled, spill)
    no_digests = np.zeros((len(scan.sources), 16), np.uint8)
    index = [*settled.arrays, *shared_index(scan, _rows_of(scan.main_table, tables), no_digests, codes)]
    plan = plan_of(scan, codec, shares, tables, [_index_plan(field, len(values)) for field, values in index])
    return Planned(
        scan=scan,
        plan=plan,
        attributes=root_attributes(scan, settled, plan),
        groups={**settled.groups, "splits": {"names": list(names)}},
        codes=codes,
        arrays=settled.arrays,
        spilled={table.name: table for table in settled.spilled},
        notes=(*settled.notes, *((_KEPT,) if keeps_splits(settled, shares) else ())),
    )


def plan_of(
    scan: Scan,
    codec: str,
    shares: Shares | None,
    tables: Sequence[TablePlan],
    index: Sequence[ArrayPlan] = (),
) -> Plan:
    """The plan of a scan, once its tables are planned."""
    return Plan(
        family=scan.family,
        sample_table=scan.sample_table,
        codec=codec,
        sources=tuple(source.name for source in scan.sources),
        tables=tuple(tables),
        index=tuple(index),
        options=plan_options(scan, codec, shares),
        versions=versions(),
    )


def plan_options(scan: Scan, codec: str, shares: Shares | None) -> dict[str, Any]:
    """Every option that decides a store's content."""
    return {**scan.options, "codec": codec, **({"split": None} if shares is None else shares.to_json())}


def versions() -> dict[str, str]:
    """Versions of what encodes."""
    return {name: version(name) for name in ("unistore", "numcodecs")}


def _tables(scan: Scan, settled: Settled, spill: Path) -> tuple[TablePlan, ...]:
    """Plan of every table: direct ones from the scan, spilled ones from what was spilled, counted ones."""
    sources = range(len(scan.sources))
    final = {table.name: table for table in settled.direct}
    direct = [
        plan_table(final.pop(table.name, table), [source.rows.get(table.name, 0) for source in scan.sources])
        for table in scan.tables
        if not table.spilled
    ]
    spills = [Spill(spill / str(source)) for source in sources] if settled.spilled else []
    spilled = [plan_table(table, [each.rows(table.name) for each in spills]) for table in settled.spilled]
    counted = [plan_table(table, settled.rows[table.name]) for table in final.values()]
    return (*direct, *spilled, *counted)


def _rows_of(name: str, tables: Sequence[TablePlan]) -> tuple[int, ...]:
    """Rows that each source contributes to a table."""
    for table in tables:
        if table.name == name:
            return table.source_rows
    msg = (
        f"main table {name!r} is none of: {', '.join(table.name for table in tables)} (the converter's fault)"
    )
    raise ConversionError(msg)


def _index_plan(field: Field, rows: int) -> ArrayPlan:
    table = Table(name=field.path.rpartition("/")[0], fields=(field,))
    return plan_table(table, [rows]).arrays[0]
