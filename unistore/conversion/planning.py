"""From scan and facts to the plan: every array in its final form, and its attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.conversion.dimensions import unique_dimension_names
from unistore.conversion.finish import IndexArrays, root_attributes, shared_index
from unistore.conversion.plan import ArrayPlan, Plan, TablePlan, plan_table
from unistore.conversion.spill import Spill
from unistore.conversion.split_columns import column_values
from unistore.conversion.split_rule import SplitRule
from unistore.conversion.splits import Codes, assign_splits
from unistore.converters.protocol import Converter, Finalized, Scan
from unistore.converters.verdicts import counted_scan
from unistore.errors import ConversionError
from unistore.schemas.tables import Field, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A planned conversion, ready to be written.

    Attributes
    ----------
    scan, plan
        The scan, and the plan made from it.
    verdicts
        Number of files by verdict and reason (JSON).
    attributes
        From `root_attributes`.
    groups
        Attributes of groups below the root, by path.
    codes
        Split code of each sample, (samples,) uint8.
    sizes
        Bytes of the files of each source, (sources,).
    arrays
        The converter's own index arrays.
    spilled
        Final form of the spilled tables, by name.
    notes
        One-line remarks for the user.
    """

    scan: Scan
    plan: Plan
    verdicts: tuple[dict[str, Any], ...]
    attributes: Mapping[str, Any]
    groups: Mapping[str, Mapping[str, Any]]
    codes: Codes
    sizes: NDArray[np.int64]
    arrays: IndexArrays
    spilled: Mapping[str, Table]
    notes: tuple[str, ...] = ()

    def index(self, digests: NDArray[np.uint8]) -> IndexArrays:
        """Every index array; `digests` are the content digests of the sources, (sources, 16) uint8."""
        main_rows = _rows_of(self.scan.main_table, self.plan.tables)
        return [*self.arrays, *shared_index(self.scan, main_rows, self.sizes, digests, self.codes)]


def plan_conversion(
    converter: Converter,
    scan: Scan,
    finalized: Finalized,
    codec: str,
    split: SplitRule | None,
    spill: Spill,
    sizes: NDArray[np.int64],
    choose: Callable[[Plan, Mapping[str, Table]], Mapping[str, str]],
) -> Planned:
    """Plan a conversion once its sources are derived.

    Parameters
    ----------
    converter
        Reads the column that splits are grouped by.
    codec
        As given to `run`.
    split
        The prepared rule; None: splits come from the sources.
    spill
        Spilled rows and facts of the sources.
    sizes
        Bytes of the files of each source, (sources,).
    choose
        ``choose(plan, spilled)`` returns the codec of each column by path; called if `codec` is ``"auto"``,
        with the final form of the spilled tables by name.
    """
    assigned = assign_splits(scan, finalized, split, partial(column_values, converter, scan, finalized))
    codes = assigned.codes
    tables = _tables(scan, finalized, spill)
    placeholder = np.zeros((len(scan.sources), 16), np.uint8)
    main_rows = _rows_of(scan.main_table, tables)
    index = (finalized.arrays, shared_index(scan, main_rows, sizes, placeholder, codes))
    forms = [_index_plan(field, len(values)) for field, values in chain(*index)]
    del placeholder, index
    spilled = {table.name: table for table in finalized.spilled}
    plan = plan_of(scan, codec, split, tables, forms, assigned.found)
    if codec == "auto":
        plan = _with_codecs(plan, choose(plan, spilled))
    verdicts = tuple(each.to_json() for each in counted_scan(scan))
    return Planned(
        scan=scan,
        plan=plan,
        verdicts=verdicts,
        attributes=root_attributes(scan, finalized, plan, verdicts),
        groups={**finalized.groups, "splits": {"names": list(assigned.names)}},
        codes=codes,
        sizes=sizes,
        arrays=finalized.arrays,
        spilled=spilled,
        notes=(*finalized.notes, *assigned.notes),
    )


def plan_of(
    scan: Scan,
    codec: str,
    split: SplitRule | None,
    tables: Sequence[TablePlan],
    index: Sequence[ArrayPlan] = (),
    found: Mapping[str, Any] = MappingProxyType({}),
) -> Plan:
    """The plan of a scan from the plans of its tables; `found` adds to the options what values decided."""
    tables, index = unique_dimension_names(tables, index)
    tables = tuple(replace(t, arrays=tuple(replace(a, codec=codec) for a in t.arrays)) for t in tables)
    index = tuple(replace(array, codec="fast" if codec == "auto" else codec) for array in index)
    options = plan_options(scan, codec, split)
    if found:
        options["found"] = {**options.get("found", {}), **found}
    return Plan(
        family=scan.family,
        sample_table=scan.sample_table,
        sources=scan.sources.names,
        tables=tables,
        index=index,
        options=options,
        versions=versions(),
    )


def _with_codecs(plan: Plan, codecs: Mapping[str, str]) -> Plan:
    """The plan with the chosen codecs by path (``fast`` where there is none), recorded in its options."""
    tables = tuple(
        replace(table, arrays=tuple(replace(a, codec=codecs.get(a.field.path, "fast")) for a in table.arrays))
        for table in plan.tables
    )
    found = {**plan.options.get("found", {}), "codecs": dict(sorted(codecs.items()))}
    return replace(plan, tables=tables, options={**plan.options, "found": found})


def plan_options(scan: Scan, codec: str, split: SplitRule | None) -> dict[str, Any]:
    """Every option that decides a store's content."""
    return {**scan.options, "codec": codec, **({"split": None} if split is None else split.to_json())}


def versions() -> dict[str, str]:
    """Versions of the libraries that encode."""
    return {name: version(name) for name in ("unistore", "numcodecs")}


def _tables(scan: Scan, finalized: Finalized, spill: Spill) -> tuple[TablePlan, ...]:
    """Plans of direct tables of the scan, of spilled tables, and of tables whose rows were counted."""
    final = {table.name: table for table in finalized.direct}
    direct = [
        plan_table(final.pop(table.name, table), scan.sources.rows(table.name))
        for table in scan.tables
        if not table.spilled
    ]
    spilled = [plan_table(table, spill.rows(table.name)) for table in finalized.spilled]
    counted = [plan_table(table, finalized.rows[table.name]) for table in final.values()]
    return (*direct, *spilled, *counted)


def _rows_of(name: str, tables: Sequence[TablePlan]) -> Sequence[int]:
    """Rows of each source in a table."""
    for table in tables:
        if table.name == name:
            return table.source_rows
    msg = f"main table {name!r} is not one of: {', '.join(table.name for table in tables)} (a converter bug)"
    raise ConversionError(msg)


def _index_plan(field: Field, rows: int) -> ArrayPlan:
    table = Table(name=field.path.rpartition("/")[0], fields=(field,))
    return plan_table(table, [rows]).arrays[0]
