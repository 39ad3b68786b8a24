"""Check the documents of a store against its root, its manifest, and the schema of its family."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import PurePosixPath

from unistore.converters.families import specs_of
from unistore.converters.registry import family_of
from unistore.errors import InputError, Problem, StoreError, UnsupportedError
from unistore.integrity.files import UNKNOWN_FAMILY
from unistore.schemas.array_specs import SOURCE_BOUNDS, ArrayInfo, ArraySpec
from unistore.schemas.declared_rules import ArraySpecs, is_kept, resolved
from unistore.schemas.recorded_rules import RecordedSpecs, RuleError, StatedRules, StoreRoot
from unistore.schemas.table_rows import counting_array, source_offsets
from unistore.store.manifest import Entry
from unistore.store.names import REPORT, ROOT
from unistore.system.types import JsonObject
from unistore.zarr3.documents import DocumentError, parse_document
from unistore.zarr3.metadata import ArrayMetadata, shard_key
from unistore.zarr3.storage import Storage

_FIX = "convert the sources again; if the problem comes back, report it"


def check_structure(
    storage: Storage,
    root: StoreRoot,
    root_document: bytes,
    entries: Mapping[str, Entry],
    sound: frozenset[str],
) -> list[Problem]:
    """Return every contradiction between the root, the manifest, the documents of arrays and the schema.

    Parameters
    ----------
    storage : Storage
        Files of the store.
    root : StoreRoot
        What its root states.
    root_document : bytes
        The document of its root.
    entries : mapping of str to Entry
        Entries of the manifest, by key.
    sound : frozenset of str
        Keys of the intact files. Only these are read.
    """
    problems: list[Problem] = []
    metadata: dict[str, ArrayMetadata] = {}
    documents: JsonObject = {}
    keys = [key for key in entries if key.endswith(f"/{ROOT}")]
    for key in filter(sound.__contains__, keys):
        path = key.removesuffix(f"/{ROOT}")
        try:
            document = documents[path] = parse_document(storage.get(key))
            if path in root.fields:
                metadata[path] = ArrayMetadata.from_json(document, f"{storage}: array {path!r}")
        except (DocumentError, StoreError, UnsupportedError) as error:
            problems.append(_wrong(key, str(error)))
    if len(documents) == len(keys):
        consolidated = {"kind": "inline", "must_understand": False, "metadata": documents}
        if parse_document(root_document).get("consolidated_metadata") != consolidated:
            problems.append(
                _wrong(ROOT, "its copies of the documents of groups and arrays differ from these")
            )
    problems += _manifest_problems(root.fields, metadata, entries)
    if len(metadata) == len(root.fields):
        problems += _schema_problems(metadata, root)
    return problems


def _wrong(location: str, message: str) -> Problem:
    return Problem(location, message, _FIX, "metadata")


def _manifest_problems(
    fields: Collection[str], metadata: Mapping[str, ArrayMetadata], entries: Mapping[str, Entry]
) -> Iterator[Problem]:
    expected: dict[str, tuple[str, tuple[int, int] | None]] = {}  # what each file is, and its rows
    for path in fields:
        expected[f"{path}/{ROOT}"] = f"the root lists the array {path}", None
    for path, array in metadata.items():
        if prod(array.shards) > len(entries):
            missing = f"has {prod(array.shards):,} shards of shape {array.shard_shape}"
            yield _wrong(path, f"{missing}, but the manifest has {len(entries):,} files")
            continue
        step = array.shard_shape[0]
        shards = product(*map(range, array.shards)) if 0 not in array.shape else ()
        for coordinates in shards:
            lo = coordinates[0] * step
            rows = (lo, min(array.shape[0], lo + step))
            expected[f"{path}/{shard_key(coordinates)}"] = f"belongs to the array {path}", rows
    for key, (what, shard_rows) in expected.items():
        if key not in entries:
            yield _wrong(key, f"is not in the manifest, but {what}")
        elif shard_rows is not None and entries[key].rows != shard_rows:
            yield _wrong(key, f"has the rows {shard_rows}, but the manifest states {entries[key].rows}")
    known = {REPORT, *expected}
    for path in fields:
        known.update(f"{group}/{ROOT}" for group in PurePosixPath(path).parents)
    unknown = tuple(f"{path}/" for path in fields if path not in metadata)
    for key in entries:
        if key not in known and not key.startswith(unknown):
            yield _wrong(key, "is in the manifest, but does not belong to an array")


def _schema_problems(metadata: Mapping[str, ArrayMetadata], root: StoreRoot) -> Iterator[Problem]:
    arrays = {path: ArrayInfo(array.shape, array.dtype.name) for path, array in metadata.items()}
    problems: list[Problem] = []
    declared: Mapping[str, ArraySpec] = {}
    try:
        specs: ArraySpecs = specs_of(family_of(root))
        problems += specs.problems(arrays, root.sample_count)
        declared = resolved(specs, arrays).rules()
    except InputError as unknown:
        for problem in unknown.problems:
            yield Problem(ROOT, f"{problem.file}: {problem.message}", problem.fix, UNKNOWN_FAMILY)
    try:
        rules = RecordedSpecs(StatedRules(root.fields, ROOT))
        problems += rules.problems(arrays, root.sample_count)
        problems += _table_problems(root, rules.rules())
        other = [path for path, rule in declared.items() if not is_kept(rule, rules.of(path))]
        problems += [
            Problem(path, "has a rule in the root that differs from the rule of its family") for path in other
        ]
    except RuleError as error:
        problems.append(Problem(ROOT, error.reason))
    for problem in dict.fromkeys(problems):
        yield replace(problem, fix=problem.fix or _FIX, kind="schema")


def _table_problems(root: StoreRoot, rules: Mapping[str, ArraySpec]) -> Iterator[Problem]:
    """Yield tables whose rows no offsets divide by source, and columns that have other rows."""
    for table in dict.fromkeys([*root.tables, root.sample_table, root.main_table]):
        path = source_offsets(table)
        rule = rules[path] if path in rules else ArraySpec()
        first = str(rule.offsets_of)
        if rule.rows != (SOURCE_BOUNDS, 0) or not first.startswith(f"{table}/"):
            yield Problem(path, f"is not an array whose rule divides the rows of {table} by source")
            continue
        for name in root.tables.get(table, ()):
            if counting_array(f"{table}/{name}", rules) != counting_array(first, rules):
                yield Problem(f"{table}/{name}", f"is a column of {table}, but its rule counts other rows")
