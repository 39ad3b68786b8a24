"""The end of a store: index arrays, metadata, manifest, and the sealed root, in this order."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from unistore.conversion.job import SHARD, ShardRecord, index_rows, metadata_of, write_column
from unistore.conversion.journal import Journal
from unistore.conversion.keys import SourceStates
from unistore.conversion.plan import ArrayPlan, Plan
from unistore.conversion.running_statistics import Moments
from unistore.conversion.skipping import report_document
from unistore.errors import ConversionError
from unistore.schemas.recorded_rules import RecordedSpecs, Seal, recorded
from unistore.schemas.table_rows import columns_of, relations
from unistore.schemas.tables import Field, IndexValues
from unistore.store.manifest import Entry, make_seal, manifest_bytes, root_head, sign_root
from unistore.store.names import CONVENTION, MANIFEST, REPORT, ROOT, SOURCES
from unistore.system.types import JsonObject
from unistore.zarr3.durable import Files, Target

IndexArrays = Sequence[tuple[Field, IndexValues]]


def shard_records(journal: Journal) -> Iterator[ShardRecord]:
    """Iterate over the records of all finished tasks, reading one at a time."""
    return map(ShardRecord, journal.each(SHARD))


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


def shard_entries(target: Target, plan: Plan, journal: Journal) -> list[Entry]:
    """Return the lines of the manifest for all shards, in the order of the tasks.

    Raises
    ------
    ConversionError
        If a shard is missing, or has another size than when it was written.
    """
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
