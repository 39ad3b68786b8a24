"""The new store: every array in its final form, its codec, and the attributes, before it is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

import numpy as np

from unistore.conversion.identity import equal_sources, equal_sources_note, source_digests
from unistore.conversion.journal import Journal
from unistore.conversion.keys import SourceStates
from unistore.conversion.plan import (
    ArrayPlan,
    Plan,
    TablePlan,
    index_plan,
    plan_table,
    unique_dimension_names,
    versions,
)
from unistore.conversion.sealing import (
    IndexArrays,
    described_fields,
    merged_statistics,
    metadata_documents,
    shard_entries,
    shard_records,
    tables_of,
    write_index_and_documents,
    write_root,
)
from unistore.conversion.skipping import skipped_sources
from unistore.conversion.spill import Spill
from unistore.conversion.split_rule import SplitRule
from unistore.conversion.splits import Assigned, Codes
from unistore.converters.detection import TAKEN, CountReport, counted_scan
from unistore.converters.families import kinds_of, specs_of
from unistore.converters.protocol import Finalized, Scan
from unistore.converters.registry import get_family, package_of
from unistore.errors import ConversionError, InputError, Problem
from unistore.schemas.array_specs import SOURCE_BOUNDS, ArrayInfo
from unistore.schemas.declared_rules import ArraySpecs, resolved
from unistore.schemas.recorded_rules import RecordedSpecs, Seal, StatedFamily
from unistore.schemas.table_rows import counting_array, first_column, source_offsets
from unistore.schemas.tables import Field, IndexValues, Table, bounds_field, lazy_text_arrays, offsets_of
from unistore.store.names import FORMAT_VERSION
from unistore.system.types import Int64s, JsonObject, UInt8s
from unistore.zarr3.durable import Target

RowsByTable = Mapping[str, Sequence[int] | Int64s]  # of each source in each table, (sources,) each


def _shared_index(
    names: Sequence[str],  # of the sources
    rows: RowsByTable,
    sizes: Int64s,  # bytes of the files of each source, (sources,)
    digests: UInt8s,  # (sources, 16) uint8: content digest of each source
    codes: Codes,  # (samples,) uint8: split code of each sample
) -> IndexArrays:
    """Return the index arrays of every family: ``sources/`` and ``splits/``."""

    def column(
        name: str, values: IndexValues, axes: tuple[str, ...], description: str
    ) -> tuple[Field, IndexValues]:
        field = Field(
            path=name,
            dtype=str(values.dtype),
            row_shape=values.shape[1:],
            axes=axes,
            description=description,
        )
        return field, values

    return [
        *lazy_text_arrays("sources/path", names, axis="source"),
        column("sources/bytes", sizes, ("source",), "Size of the source's files"),
        column(
            "sources/hash",
            digests,
            ("source", "hash_byte"),
            "xxh3-128 of its values as the file has them",
        ),
        *(_bounds_of_sources(table, counts) for table, counts in rows.items()),
        column("splits/code", codes, ("sample",), "Split of the sample; names in the group's attributes"),
    ]


def _bounds_of_sources(table: str, counts: Sequence[int] | Int64s) -> tuple[Field, IndexValues]:
    what = f"Rows of source i in {table!r} are offsets[i]:offsets[i + 1]"
    return bounds_field(source_offsets(table), "source", what), offsets_of(counts)


def _rows_by_table(scan: Scan, finalized: Finalized, tables: Sequence[TablePlan]) -> RowsByTable:
    """Return how many rows each source has in each table.

    Tables that are written apart but have the rows of one above them, as large images of steps have, count as
    columns of that.

    Raises
    ------
    InputError
        If the name of a table is one that arrays of the sources have.
    """
    if finalized.by_source is not None:
        return finalized.by_source
    counts = {table.name: table.source_rows for table in tables} | dict(finalized.rows)
    if scan.main_table not in counts:
        msg = f"main table '{scan.main_table}': is not one of {', '.join(counts)}. Fix: please report it"
        raise ConversionError(msg)
    if scan.sample_table not in counts:
        of_source = np.bincount(finalized.sample_source, finalized.sample_runs, len(scan.sources))
        counts[scan.sample_table] = of_source.astype(np.int64)
    offsets = {source_offsets(table): table for table in counts}
    paths = [array.field.path for table in tables for array in table.arrays]
    paths += [field.path for field, _ in finalized.arrays]
    _check_table_names(offsets, paths)
    rules = resolved(declared_specs(scan), dict.fromkeys((*paths, *offsets, SOURCE_BOUNDS))).rules()
    counting = {}
    for table in counts:
        counting[table] = counting_array(first_column(table, rules, rules.__getitem__), rules)
    own = {}
    for table, rows in counts.items():
        above = [other for other in counts if table.startswith(f"{other}/")]
        if all(counting[other] != counting[table] for other in above):
            own[table] = rows
    return own


def _check_table_names(offsets: Mapping[str, str], paths: Iterable[str]) -> None:
    """Refuse tables whose offsets, given by their paths, would meet another array of ``sources/``."""
    arrays = {SOURCE_BOUNDS, "sources/bytes", "sources/hash"}
    arrays |= {path for path in paths if path.startswith("sources/")}
    for path, table in offsets.items():
        groups = {group.as_posix() for group in PurePosixPath(path).parents}
        is_above = any(other.startswith(f"{path}/") for other in arrays)
        if path in arrays or is_above or not groups.isdisjoint({*arrays, *offsets}):
            message = f"cannot be the name of a table, because its index {path} would collide with an array"
            raise InputError(Problem(table, message, "choose another name", "name"))


@dataclass(frozen=True, kw_only=True)
class NewStore:
    """A store that is about to be written: its plan, attributes and index arrays."""

    # the scan, and the plan made from it
    scan: Scan
    plan: Plan
    samples: int
    verdicts: tuple[CountReport, ...]  # number of files by verdict and reason
    reported: Any  # those that the root repeats; None: it has none
    groups: Mapping[str, Mapping[str, Any]]  # attributes of groups below the root, by path
    codes: Codes  # split code of each sample, (samples,) uint8
    rows: RowsByTable
    sizes: Int64s  # bytes of the files of each source, (sources,)
    arrays: IndexArrays  # the converter's own index arrays
    spill: Spill  # spilled rows and metadata of the sources
    spilled: Mapping[str, Table]  # final form of the spilled tables, by name
    notes: tuple[str, ...] = ()  # one-line remarks for the user
    digests: UInt8s | None = None  # of the sources, where they are copied

    @classmethod
    def of(
        cls,
        scan: Scan,
        finalized: Finalized,
        assigned: Assigned,
        spill: Spill,
        sizes: Int64s,
        *,
        codec: str,
        split: SplitRule | None,
    ) -> NewStore:
        """Plan the store of sources that were derived.

        Parameters
        ----------
        scan, finalized, assigned, spill
            The sources, their final tables, the splits of the samples, and the spilled rows.
        sizes : array of int64, (sources,)
            Size of the files of each source in bytes.
        codec : str
            Codec of all arrays. ``"auto"``: columns get theirs later, by `Plan.with_codecs`.
        split : SplitRule or None
            Rule that assigned the splits. None: they come from the sources.
        """
        tables = _final_tables(scan, finalized, spill)
        rows = _rows_by_table(scan, finalized, tables)
        digests = np.zeros((len(scan.sources), 16), np.uint8)  # known at the end
        shared = _shared_index(scan.sources.names, rows, sizes, digests, assigned.codes)
        index = [index_plan(field, len(values)) for field, values in (*finalized.arrays, *shared)]
        verdicts = tuple(count.to_json() for count in counted_scan(scan))
        is_reported = "skipped" in scan.options or any(count["verdict"] != TAKEN for count in verdicts)
        return cls(
            scan=scan,
            plan=plan_of(scan, codec, split, tables, index, assigned.found),
            samples=finalized.samples,
            verdicts=verdicts,
            reported=list(verdicts) if is_reported else None,
            groups={**finalized.groups, "splits": {"names": list(assigned.names)}},
            codes=assigned.codes,
            rows=rows,
            sizes=sizes,
            arrays=finalized.arrays,
            spill=spill,
            spilled={table.name: table for table in finalized.spilled},
            notes=(*finalized.notes, *assigned.notes),
            digests=finalized.digests,
        )

    def check(self) -> None:
        """Check the planned arrays, and the values of the index arrays, before anything is written."""
        plan = self.plan
        specs = declared_specs(self.scan)
        rules = RecordedSpecs(plan.rules)
        shapes = {array.field.path: array.shape for array in plan.arrays()}
        infos = {
            array.field.path: ArrayInfo(shape=array.shape, dtype=array.field.dtype) for array in plan.arrays()
        }
        problems = specs.problems(infos, self.samples, rules)
        if not problems:
            for array in plan.columns():
                spec = rules.of(array.field.path)
                if spec.ascending or spec.offsets_of is not None:
                    message = "has a rule over all rows, but is written shard by shard"
                    problems.append(Problem(array.field.path, message, "make it an index array", "schema"))
            shapes[""] = (self.samples,)
            for field, values in self.arrays:
                spec = rules.of(field.path)
                if spec.bounds_values:
                    errors = spec.value_errors(values[0 : len(values)], shapes.__getitem__)
                    problems += [Problem(field.path, error, kind="schema") for error in errors]
        if problems:
            lines = "\n  ".join(str(problem) for problem in problems)
            msg = f"the arrays do not match the schema of {plan.family}. Fix: please report this:\n  {lines}"
            raise ConversionError(msg)

    @property
    def split_names(self) -> Sequence[str]:
        """Names of the splits, by code."""
        names: Sequence[str] = self.groups["splits"]["names"]
        return names

    def index(self, digests: UInt8s) -> IndexArrays:
        """Return every index array. `digests` are the content digests of the sources, (sources, 16) uint8."""
        shared = _shared_index(self.scan.sources.names, self.rows, self.sizes, digests, self.codes)
        return [*self.arrays, *shared]

    @cached_property
    def attributes(self) -> JsonObject:
        """Return the root's ``unistore`` object without statistics and seal, which are known at the end."""
        plan = self.plan
        axes = plan.axes()
        rules = RecordedSpecs(plan.rules)
        stated = self.scan.recorded
        if stated is None:
            family = get_family(plan.family)
            stated = StatedFamily(kinds_of(family, axes), package_of(family))
        return {
            "format_version": FORMAT_VERSION,
            "family": plan.family,
            "samples": {"count": self.samples, "table": plan.sample_table},
            "main_table": self.scan.main_table,
            "tables": tables_of(rules, self.rows, axes),
            "kinds": list(stated.kinds),
            "package": stated.package._asdict(),
            "fields": described_fields(plan, rules),
            "options": dict(plan.options),
            "skipped": len(skipped_sources(plan.options)),
            **({} if self.reported is None else {"verdicts": self.reported}),
            "plan_digest": plan.digest,
            "created_with": dict(plan.versions),
        }

    def source_digests(self, journal: Journal) -> UInt8s:
        """Return the digests of the sources, (sources, 16) uint8, once every task has its record."""
        if self.digests is not None:
            return self.digests
        return source_digests(self.plan, partial(shard_records, journal))

    def equal_sources_notes(self, digests: UInt8s) -> tuple[str, ...]:
        """Return a remark if sources have the values of others, by their digests."""
        rows = np.array(self.rows[self.scan.main_table], np.int64)
        names = self.plan.sources
        pairs = [(names[number], names[other]) for number, other in equal_sources(digests, rows)]
        are_split = len(self.split_names) > 1
        return (equal_sources_note(pairs, are_split=are_split),) if pairs else ()

    def seal(
        self, target: Target, journal: Journal, digests: UInt8s, states: SourceStates | None = None
    ) -> Seal:
        """Write index arrays, metadata and manifest, the root last, and return the seal."""
        plan = self.plan
        entries = shard_entries(target, plan, journal)
        documents = metadata_documents(plan, self.attributes, self.groups)
        index = self.index(digests)
        entries += write_index_and_documents(target, plan, index, documents)
        statistics = merged_statistics(plan, shard_records(journal))
        attributes = {**self.attributes, "statistics": statistics}
        return write_root(target, entries, documents, attributes, states)


def plan_of(
    scan: Scan,
    codec: str,
    split: SplitRule | None,
    tables: Sequence[TablePlan],
    index: Sequence[ArrayPlan] = (),
    found: Mapping[str, Any] = MappingProxyType({}),
) -> Plan:
    """Return plan of a scan from the plans of its tables. `found` adds to the options what values decided."""
    tables, index = unique_dimension_names(tables, index)
    tables = tuple(table.with_codecs(lambda _: codec) for table in tables)
    index = tuple(replace(array, codec="fast" if codec == "auto" else codec) for array in index)
    options = plan_options(scan, codec, split)
    if found:
        options["found"] = {**options.get("found", {}), **found}
    arrays = [*chain.from_iterable(table.arrays for table in tables), *index]
    columns = {array.field.path: array.field.rule for array in arrays}
    specs = declared_specs(scan)
    if scan.recorded is not None:
        specs = ArraySpecs(arrays={path: rule for path, rule in columns.items() if rule is not None})
    return Plan(
        family=scan.family,
        sample_table=scan.sample_table,
        sources=scan.sources.names,
        tables=tables,
        index=index,
        options=options,
        versions=versions(),
        rules=resolved(specs, columns, columns).rules(),
    )


def declared_specs(scan: Scan) -> ArraySpecs:
    """Return what the family of sources declares. Nothing of stored ones, whose fields have their rules."""
    return specs_of(get_family(scan.family)) if scan.recorded is None else ArraySpecs()


def plan_options(scan: Scan, codec: str, split: SplitRule | None) -> JsonObject:
    """Return every option that decides a store's content."""
    recorded = {"split": scan.options.get("split")} if split is None else split.to_json()
    return {**scan.options, "codec": codec, **recorded}


def _final_tables(scan: Scan, finalized: Finalized, spill: Spill) -> tuple[TablePlan, ...]:
    """Return the plans of all tables once the sources are derived."""
    final = {table.name: table for table in finalized.direct}
    direct = [
        plan_table(final.pop(table.name, table), scan.sources.rows(table.name))
        for table in scan.tables
        if not table.spilled
    ]
    spilled = [plan_table(table, spill.rows(table.name)) for table in finalized.spilled]
    counted = [plan_table(table, finalized.rows[table.name]) for table in final.values()]
    return (*direct, *spilled, *counted)
