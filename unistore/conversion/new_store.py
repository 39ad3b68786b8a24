"""The new store: every array in its final form, its codec, the attributes, and the seal."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

import numpy as np

from unistore.conversion.build import Journal
from unistore.conversion.job import SHARD, PieceDigests, ShardRecord, index_rows, metadata_of, write_column
from unistore.conversion.keys import ColumnDigest, SourceStates, joined_digest
from unistore.conversion.plan import (
    ArrayPlan,
    Plan,
    ShardTask,
    TablePlan,
    plan_table,
    unique_dimension_names,
    versions,
)
from unistore.conversion.running_statistics import Moments
from unistore.conversion.skipping import report_document, skipped_sources
from unistore.conversion.spill import Spill
from unistore.conversion.split_rule import SplitRule
from unistore.conversion.splits import Codes
from unistore.converters.detection import CountReport
from unistore.converters.families import kinds_of, specs_of
from unistore.converters.protocol import Finalized, Scan
from unistore.converters.registry import get_family, package_of
from unistore.errors import ConversionError, InputError, Problem, first_few, printable
from unistore.schemas.array_specs import SOURCE_BOUNDS, ArrayInfo
from unistore.schemas.declared_rules import ArraySpecs, resolved
from unistore.schemas.recorded_rules import RecordedSpecs, Seal, StatedFamily, recorded
from unistore.schemas.table_rows import columns_of, counting_array, first_column, relations, source_offsets
from unistore.schemas.tables import Field, IndexValues, Table, bounds_field, lazy_text_arrays, offsets_of
from unistore.store.manifest import Entry, make_seal, manifest_bytes, root_head, sign_root
from unistore.store.names import CONVENTION, FORMAT_VERSION, MANIFEST, REPORT, ROOT, SOURCES
from unistore.system.types import Int64s, JsonObject, UInt8s
from unistore.zarr3.durable import Files, Target

# The end of a conversion: index arrays, metadata, manifest, and the sealed root, in this order.

IndexArrays = Sequence[tuple[Field, IndexValues]]
RowsByTable = Mapping[str, Sequence[int] | Int64s]  # of each source in each table, (sources,) each
_LISTED_COPIES = 3  # that a note names


def shared_index(
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


def rows_by_table(scan: Scan, finalized: Finalized, tables: Sequence[TablePlan]) -> RowsByTable:
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


def shard_records(journal: Journal) -> Iterator[ShardRecord]:
    """Iterate over the records of all finished tasks, reading one at a time."""
    return map(ShardRecord, journal.each(SHARD))


def source_digests(plan: Plan, records: Callable[[], Iterable[ShardRecord]]) -> UInt8s:
    """Return digests of the sources, (sources, 16) uint8, from the journal's records of all tasks."""
    last = {record.task: number for number, record in enumerate(records())}
    tasks = plan.tasks()
    numbers = {task.id: number for number, task in enumerate(tasks)}
    joining = _SourceDigests(plan)
    waiting: dict[int, PieceDigests] = {}  # of tasks whose rows follow those of tasks to come
    position = 0
    for number, record in enumerate(records()):
        task = numbers.get(record.task)  # None: of an earlier round, with other sources
        if task is not None and last[record.task] == number:
            waiting[task] = record.digests
        while position in waiting:
            joining.add(tasks[position], waiting.pop(position))
            position += 1
    return joining.digests()


class _SourceDigests:
    """Joins the digests of sources from tasks in the order of their rows."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._sums = [0] * len(plan.sources)
        self._table = ""
        self._open: dict[str, ColumnDigest] = {}  # columns of the source that may go on, by form
        self._source = -1

    def add(self, task: ShardTask, digests: PieceDigests) -> None:
        """Take the digests of the next task."""
        if task.table != self._table:
            self._close()
            self._table = task.table
        sources = self._plan.table(task.table).pieces(task.lo, task.hi).sources
        for number, source in enumerate(sources):
            if source != self._source:
                self._close()
                self._source = source
            for column in digests.cut_columns(number):
                if column.form in self._open:
                    self._open[column.form].follow(column)
                else:
                    self._open[column.form] = column
            self._sums[source] += digests.whole_piece(number)

    def digests(self) -> UInt8s:
        """Return the digests of all sources, (sources, 16) uint8."""
        self._close()
        data = b"".join(joined_digest([total]).to_bytes(16) for total in self._sums)
        return np.frombuffer(data, np.uint8).reshape(-1, 16)

    def _close(self) -> None:
        for column in self._open.values():
            self._sums[self._source] += column.finish()
        self._open = {}
        self._source = -1


def equal_sources(digests: UInt8s, rows: Int64s) -> Iterator[tuple[int, int]]:
    """Yield the number of each source that has the values of one before it, and the number of that one.

    Parameters
    ----------
    digests
        Of the values of each source, (sources, 16) uint8.
    rows
        How many rows each has. Sources without any are told from no other.
    """
    numbers = np.flatnonzero(rows)
    keys = np.ascontiguousarray(digests[numbers]).view("V16").reshape(-1)
    _, first, key_of = np.unique(keys, return_index=True, return_inverse=True)
    earliest = numbers[first[key_of]]
    for place in np.flatnonzero(earliest != numbers).tolist():
        yield int(numbers[place]), int(earliest[place])


def equal_sources_note(
    pairs: Sequence[tuple[str, str]], *, are_split: bool, where: str = "", fix: str = ""
) -> str:
    """Return the note on pairs of names of sources: the first has the values of the second.

    `where` says where the second is. `fix` replaces the advice to skip the first with ``--exclude``.
    """
    shown = first_few([f"{printable(name)} = {printable(other)}" for name, other in pairs], _LISTED_COPIES)
    one = len(pairs) == 1
    count = "a source has" if one else f"{len(pairs):,} sources have"
    parted = ", and the split may separate them"
    is_parted = parted if are_split else ""
    fix = fix or f"--exclude {printable(pairs[0][0])} skips {'it' if one else 'the first'}"
    return f"{count} the same values as another one{where}: {shown}; both are stored{is_parted}; {fix}"


def write_root(
    target: Target,
    entries: Sequence[Entry],  # of every file that was written
    documents: Mapping[str, bytes],  # from `metadata_documents`
    attributes: Mapping[str, Any],  # the root's ``unistore`` object without the seal
    states: SourceStates | None = None,  # kept beside the files that the manifest lists
) -> Seal:
    """Write the manifest, remove files that it does not list, write the root, and return the seal."""
    manifest = manifest_bytes(entries)
    sealed = make_seal(entries, manifest)
    if states is not None:
        target.put(SOURCES, [states.to_bytes(sealed.digest)])
    target.put(MANIFEST, [manifest])
    target.keep_only({MANIFEST, SOURCES, *(entry.key for entry in entries)})
    target.put(ROOT, [root_document(attributes, sealed, documents)])
    return sealed


def root_document(attributes: Mapping[str, Any], sealed: Seal, documents: Mapping[str, bytes]) -> bytes:
    """Return the root's ``zarr.json``, signed: consolidated metadata, attributes, and the seal last."""
    unistore = {**attributes, "seal": sealed.to_json()}
    own = _json({"attributes": {"zarr_conventions": [CONVENTION], "unistore": unistore}})
    return sign_root(root_head(documents) + own.removeprefix(b"{\n"))


def _shard_entries(target: Target, plan: Plan, journal: Journal) -> list[Entry]:
    written = {record.task: record.files for record in shard_records(journal)}
    entries = list(chain.from_iterable(written[task.id] for task in plan.tasks()))
    sizes = target.sizes()
    for entry in entries:
        if sizes.get(entry.key) != entry.bytes:
            msg = f"{entry.key}: is missing or changed since it was written. Fix: run the same command again"
            raise ConversionError(msg)
    return entries


def write_index_and_documents(
    target: Target, plan: Plan, index: IndexArrays, documents: Mapping[str, bytes]
) -> list[Entry]:
    """Write what is not shards of tables, and return the lines of the manifest."""
    planned = {array.field.path: array for array in plan.index}
    entries: list[Entry] = []
    with target.together() as together:
        for field, values in index:
            entries += _write_index(together, planned[field.path], values)
        for key, document in documents.items():
            written = together.put(key, [document])
            entries.append(Entry(key=written.key, bytes=written.bytes, checksum=written.checksum))
    return entries


def _write_index(files: Files, array: ArrayPlan, values: IndexValues) -> list[Entry]:
    shards = 0 if array.is_empty else -(-len(values) // array.shard[0])
    return [write_column(files, number, index_rows(array, number, values)) for number in range(shards)]


def metadata_documents(
    plan: Plan,
    attributes: Mapping[str, Any],  # of `NewStore`
    groups: Mapping[str, Mapping[str, Any]],  # attributes of groups below the root, by path
) -> dict[str, bytes]:
    """Return ``zarr.json`` of every array and group except the root, and the report, by key."""
    documents: dict[str, bytes] = {}
    axes = plan.axes()
    related = relations(axes, plan.rules)
    for array in plan.arrays():
        path = array.field.path
        metadata = metadata_of(array)
        described = replace(metadata, attributes={**metadata.attributes, **related.get(path, {})})
        documents[path] = _json(described.to_json())
    for path in sorted({*_parents(axes), *groups}):
        own = dict(groups.get(path, {}))
        documents[path] = _json({"zarr_format": 3, "node_type": "group", "attributes": own})
    files = {f"{path}/{ROOT}": document for path, document in documents.items()}
    if verdicts := attributes.get("verdicts"):
        files[REPORT] = report_document(plan.options, verdicts)
    return files


def _parents(paths: Iterable[str]) -> set[str]:
    parents = set[str]()
    for path in paths:
        names = path.split("/")
        for depth in range(1, len(names)):
            parents.add("/".join(names[:depth]))
    return parents


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=True).encode() + b"\n"


def tables_of(rules: RecordedSpecs, tables: Iterable[str], paths: Collection[str]) -> dict[str, list[str]]:
    """Return the names of the columns of each table, by its name, as the root lists them.

    Parameters
    ----------
    rules
        Rules of all arrays.
    tables
        Names of the tables.
    paths
        Paths of the arrays that are listed.
    """
    listed = {}
    for table in sorted({*tables}):
        columns = [path for path in columns_of(table, rules.rules()) if path in paths]
        if columns:
            listed[table] = [path.removeprefix(f"{table}/") for path in columns]
    return listed


def described_fields(plan: Plan, rules: RecordedSpecs) -> JsonObject:
    """Return what the root says of each array, by path. `rules` has one for each."""
    return {
        array.field.path: {
            "axes": list(array.field.axes),
            "unit": array.field.unit,
            "description": array.field.description,
            "amplification": round(array.amplification, 3),
            **recorded(rules.of(array.field.path)),
        }
        for array in sorted(plan.arrays(), key=lambda array: array.field.path)
    }


def merged_statistics(plan: Plan, records: Iterable[ShardRecord]) -> JsonObject:
    """Return the statistics of the columns that have them, merged in row order from the journal's records."""
    recorded = {record.task: record.statistics for record in records}
    moments: dict[str, Moments] = {}
    for task in plan.tasks():
        for path, block in recorded[task.id].items():
            moments[path] = moments[path].merge(block) if path in moments else block
    return {path: moments[path].summary() for path in sorted(moments)}


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

    @property
    def split_names(self) -> Sequence[str]:
        """Names of the splits, by code."""
        names: Sequence[str] = self.groups["splits"]["names"]
        return names

    def index(self, digests: UInt8s) -> IndexArrays:
        """Return every index array. `digests` are the content digests of the sources, (sources, 16) uint8."""
        shared = shared_index(self.scan.sources.names, self.rows, self.sizes, digests, self.codes)
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
        entries = _shard_entries(target, plan, journal)
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


def final_tables(scan: Scan, finalized: Finalized, spill: Spill) -> tuple[TablePlan, ...]:
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


def check_plan(new_store: NewStore) -> None:
    """Check the planned arrays, and the values of the index arrays, before anything is written."""
    plan = new_store.plan
    specs = declared_specs(new_store.scan)
    rules = RecordedSpecs(plan.rules)
    shapes = {array.field.path: array.shape for array in plan.arrays()}
    infos = {
        array.field.path: ArrayInfo(shape=array.shape, dtype=array.field.dtype) for array in plan.arrays()
    }
    problems = specs.problems(infos, new_store.samples, rules)
    if not problems:
        for array in plan.columns():
            spec = rules.of(array.field.path)
            if spec.ascending or spec.offsets_of is not None:
                message = "has a rule over all rows, but is written shard by shard"
                problems.append(Problem(array.field.path, message, "make it an index array", "schema"))
        shapes[""] = (new_store.samples,)
        for field, values in new_store.arrays:
            spec = rules.of(field.path)
            if spec.bounds_values:
                errors = spec.value_errors(values[0 : len(values)], shapes.__getitem__)
                problems += [Problem(field.path, error, kind="schema") for error in errors]
    if problems:
        lines = "\n  ".join(str(problem) for problem in problems)
        msg = f"the arrays do not match the schema of {plan.family}. Fix: please report this:\n  {lines}"
        raise ConversionError(msg)
