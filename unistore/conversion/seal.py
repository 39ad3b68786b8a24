"""The end of a conversion: index arrays, metadata, manifest, and the sealed root, in this order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

import numpy as np

from unistore.conversion.build import Journal
from unistore.conversion.columns import Moments, index_rows, metadata_of, write_column
from unistore.conversion.job import source_digest
from unistore.conversion.plan import ArrayPlan, Plan
from unistore.conversion.skipping import report_document, skipped_sources
from unistore.conversion.splits import Codes
from unistore.converters.protocol import Finalized, Scan
from unistore.converters.registry import get_family
from unistore.converters.survey import TAKEN
from unistore.errors import ConversionError
from unistore.schemas.array_specs import relations
from unistore.schemas.tables import Field, IndexValues, lazy_text_arrays
from unistore.store.manifest import Entry, make_seal, manifest_bytes, root_head, sign_root
from unistore.store.names import CONVENTION, FORMAT_VERSION, MANIFEST, REPORT, ROOT
from unistore.system.hints import Int64s, JsonObject, UInt8s
from unistore.zarr3.durable import Files, Target

IndexArrays = Sequence[tuple[Field, IndexValues]]


def shared_index(
    scan: Scan,
    plan_rows: Sequence[int],  # rows of each source in the main table
    sizes: Int64s,  # bytes of the files of each source, (sources,)
    digests: UInt8s,  # (sources, 16) uint8: content digest of each source
    codes: Codes,  # (samples,) uint8: split code of each sample
) -> IndexArrays:
    """Return the index arrays of every family: ``sources/`` and ``splits/``."""
    rows = np.array(plan_rows, np.int64)

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
        *lazy_text_arrays("sources/path", scan.sources.names, axis="source"),
        column("sources/bytes", sizes, ("source",), "Size of the source's files"),
        column(
            "sources/digest", digests, ("source", "digest_byte"), "xxh3-128 of the values converted from it"
        ),
        column("sources/first_row", np.cumsum(rows) - rows, ("source",), f"First row in {scan.main_table!r}"),
        column("sources/rows", rows, ("source",), f"Rows in {scan.main_table!r}"),
        column("splits/code", codes, ("sample",), "Split of the sample; names in the group's attributes"),
    ]


def source_digests(plan: Plan, records: Iterable[Mapping[str, Any]]) -> UInt8s:
    """Return content digests, (sources, 16) uint8, from the ``pieces`` of the journal's records."""
    pieces = {record["task"]: record["pieces"].encode() for record in records}
    tables = {table.name: table for table in plan.tables}
    source = np.concatenate(
        [np.array(tables[task.table].pieces(task.lo, task.hi).sources, np.int64) for task in plan.tasks()]
        or [np.zeros(0, np.int64)]
    )
    digest = np.frombuffer(b"".join(pieces[task.id] for task in plan.tasks()), "S32")
    by_source = np.argsort(source, kind="stable")
    bounds = np.searchsorted(source, range(len(plan.sources) + 1), sorter=by_source)
    digests = bytearray()
    for lo, hi in pairwise(bounds.tolist()):
        digests += source_digest([digest[piece].decode() for piece in by_source[lo:hi].tolist()])
    return np.frombuffer(bytes(digests), np.uint8).reshape(-1, 16)


def root_attributes(
    scan: Scan, finalized: Finalized, plan: Plan, verdicts: Sequence[Mapping[str, Any]]
) -> JsonObject:
    """Return the root's ``unistore`` object without statistics and seal, which are known at the end."""
    skipped = len(skipped_sources(plan.options.get("skipped", ())))
    is_reported = skipped > 0 or any(count["verdict"] != TAKEN for count in verdicts)
    return {
        "format_version": FORMAT_VERSION,
        "family": plan.family,
        "samples": {"count": finalized.samples, "table": plan.sample_table},
        "main_table": scan.main_table,
        "fields": described_fields(plan),
        "options": dict(plan.options),
        "skipped": skipped,
        **({"verdicts": list(verdicts)} if is_reported else {}),
        "plan_digest": plan.digest,
        "created_with": dict(plan.versions),
    }


def seal(
    target: Target,  # where the shards were written
    plan: Plan,
    journal: Journal,
    index: IndexArrays,
    attributes: Mapping[str, Any],  # from `root_attributes`
    groups: Mapping[str, Mapping[str, Any]],  # attributes of groups below the root, by path
) -> JsonObject:
    """Write index arrays, metadata and manifest, the root last, and return the seal."""
    entries = _shard_entries(target, plan, journal)
    documents = metadata_documents(plan, attributes, groups)
    entries += write_index_and_documents(target, plan, index, documents)
    statistics = merged_statistics(plan, journal.each("shard"))
    return write_root(target, entries, documents, {**attributes, "statistics": statistics})


def write_root(
    target: Target,
    entries: Sequence[Entry],  # of every file that was written
    documents: Mapping[str, bytes],  # from `metadata_documents`
    attributes: Mapping[str, Any],  # the root's ``unistore`` object without the seal
) -> JsonObject:
    """Write the manifest, remove files that it does not list, write the root, and return the seal."""
    manifest = manifest_bytes(entries)
    target.put(MANIFEST, [manifest])
    target.keep_only({MANIFEST, *(entry.key for entry in entries)})
    sealed = make_seal(entries, manifest)
    target.put(ROOT, [root_document(attributes, sealed, documents)])
    return sealed


def root_document(
    attributes: Mapping[str, Any], sealed: Mapping[str, Any], documents: Mapping[str, bytes]
) -> bytes:
    """Return the root's ``zarr.json``, signed: consolidated metadata, attributes, and the seal last."""
    unistore = {**attributes, "seal": sealed}
    own = _json({"attributes": {"zarr_conventions": [CONVENTION], "unistore": unistore}})
    return sign_root(root_head(documents) + own.removeprefix(b"{\n"))


def _shard_entries(target: Target, plan: Plan, journal: Journal) -> list[Entry]:
    recorded = {record["task"]: record["files"] for record in journal.each("shard")}
    files = chain.from_iterable(recorded[task.id] for task in plan.tasks())
    entries = [Entry.from_json(file) for file in files]
    sizes = target.sizes()
    for entry in entries:
        if sizes.get(entry.key) != entry.bytes:
            msg = f"{entry.key}: missing or changed since it was written; run the same command again"
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
    attributes: Mapping[str, Any],  # from `root_attributes`
    groups: Mapping[str, Mapping[str, Any]],  # attributes of groups below the root, by path
) -> dict[str, bytes]:
    """Return ``zarr.json`` of every array and group except the root, and the report, by key."""
    documents: dict[str, bytes] = {}
    axes = {array.field.path: array.field.axes for array in plan.arrays()}
    related = relations(axes, get_family(plan.family).part("specs"))
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
        files[REPORT] = report_document(plan.options.get("skipped", ()), verdicts)
    return files


def _parents(paths: Iterable[str]) -> set[str]:
    parents = set[str]()
    for path in paths:
        names = path.split("/")
        parents.update("/".join(names[:depth]) for depth in range(1, len(names)))
    return parents


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=True).encode() + b"\n"


def described_fields(plan: Plan) -> JsonObject:
    """Return what the root says of each array, by path."""
    return {
        array.field.path: {
            "axes": list(array.field.axes),
            "unit": array.field.unit,
            "description": array.field.description,
            "amplification": round(array.amplification, 3),
        }
        for array in sorted(plan.arrays(), key=lambda array: array.field.path)
    }


def merged_statistics(plan: Plan, records: Iterable[Mapping[str, Any]]) -> JsonObject:
    """Return the statistics of the columns that have them, merged in row order from the journal's records."""
    recorded = {record["task"]: record["statistics"] for record in records}
    moments: dict[str, Moments] = {}
    for task in plan.tasks():
        for path, plain in recorded[task.id].items():
            block = Moments.from_json(plain)
            moments[path] = moments[path].merge(block) if path in moments else block
    return {path: moments[path].summary() for path in sorted(moments)}
