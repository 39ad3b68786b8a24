"""Check that the documents of a store agree: seal, manifest, fields, metadata, shard indexes, schema."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from unistore.conversion.executors.asking import run_in_order
from unistore.conversion.executors.local import Executor, Job, Outcome
from unistore.converters.registry import get_family
from unistore.errors import InputError, Problem, StoreError, UnsupportedError
from unistore.integrity.files import UNKNOWN_FAMILY
from unistore.schemas.array_specs import GENERAL, ArrayInfo, offsets_errors
from unistore.schemas.indices import table_columns
from unistore.schemas.rules import Rule, UnreadableError, View, broken, first_row
from unistore.schemas.tables import text_values
from unistore.store.manifest import Entry, consolidated_problems, make_seal, manifest_bytes
from unistore.store.names import REPORT, ROOT
from unistore.zarr3.array import read_metadata
from unistore.zarr3.codecs import FrameError, max_encoded_size
from unistore.zarr3.documents import parse_document, shown
from unistore.zarr3.metadata import EMPTY, ArrayMetadata, decode_index, index_bytes, shard_key
from unistore.zarr3.storage import Storage

_CURE = "convert the sources again; if it comes back, report it"


def check_structure(
    storage: Storage, attributes: Mapping[str, Any], entries: Mapping[str, Entry], sound: frozenset[str]
) -> list[Problem]:
    """Every contradiction between the documents of a store.

    `attributes` is the root's ``unistore`` object, `entries` are those of the manifest by key. Only the files
    with `sound` keys, which are as the manifest says, are read.
    """
    problems = list(_seal_problems(attributes.get("seal", {}), entries))
    metadata: dict[str, ArrayMetadata] = {}
    for path, field in attributes["fields"].items():
        key = f"{path}/{ROOT}"
        if key not in entries:
            problems.append(_wrong(key, f"is not in the manifest, but the root lists the array {path}"))
        elif key in sound:
            try:
                metadata[path] = read_metadata(storage, path)
            except (StoreError, UnsupportedError) as error:
                problems.append(_wrong(key, str(error)))
                continue
            own = metadata[path]
            described: dict[str, Any] = {**own.attributes, "axes": list(own.dimension_names or ())}
            for name, member in (("axes", "axes"), ("units", "unit"), ("long_name", "description")):
                here, listed = described.get(name), field.get(member) or None
                if (here or None) != listed:
                    problems.append(_wrong(key, f"has {name} {shown(here)}, the root says {shown(listed)}"))
    problems += [
        _wrong(ROOT, f"has statistics of {path}, which is no array of the store")
        for path in sorted(set(attributes.get("statistics", {})) - set(attributes["fields"]))
    ]
    keys = [key for key in entries if key.endswith(f"/{ROOT}")]
    documents = {key: storage.get(key) for key in keys if key in sound}
    repeated = consolidated_problems(parse_document(storage.get(ROOT)), keys, documents)
    problems += [_wrong(ROOT, message) for message in repeated]
    problems += _shard_problems(storage, attributes["fields"], metadata, entries, sound)
    if len(metadata) == len(attributes["fields"]):
        problems += _schema_problems(metadata, attributes)
    return problems


def _wrong(location: str, message: str, kind: str = "metadata") -> Problem:
    return Problem(location, message, _CURE, kind)


def _seal_problems(seal: Mapping[str, Any], entries: Mapping[str, Entry]) -> Iterator[Problem]:
    """Counts and content digest of the seal that differ from those of the manifest entries."""
    listed = list(entries.values())
    found = make_seal(listed, manifest_bytes(listed))
    for name in ("files", "bytes", "content_digest"):
        if seal.get(name) != found[name]:
            message = f"its seal says {name} {seal.get(name)}, the manifest's lines make {found[name]}"
            yield _wrong(ROOT, message, "seal")


def _shard_problems(
    storage: Storage,
    fields: Collection[str],
    metadata: Mapping[str, ArrayMetadata],
    entries: Mapping[str, Entry],
    sound: frozenset[str],
) -> Iterator[Problem]:
    """Shards missing in the manifest or with other rows, files of no array, and wrong shard indexes."""
    expected = set()
    for path, array in metadata.items():
        if prod(array.shards) > len(entries):
            missing = f"has {prod(array.shards):,} shards of shape {array.shard_shape}"
            yield _wrong(path, f"{missing}, but the manifest has {len(entries):,} files")
            continue
        shards = product(*map(range, array.shards)) if 0 not in array.shape else ()
        for coordinates in shards:
            key = f"{path}/{shard_key(coordinates)}"
            expected.add(key)
            entry = entries.get(key)
            if entry is None:
                yield _wrong(key, f"is not in the manifest, but belongs to the array {path}")
                continue
            lo = coordinates[0] * array.shard_shape[0]
            rows = (lo, min(array.shape[0], lo + array.shard_shape[0]))
            if entry.rows != rows:
                yield _wrong(key, f"holds rows {rows}, the manifest says {entry.rows}")
            if key in sound:
                reason = index_problem(storage, key, array, entry.bytes)
                if reason is not None:
                    yield _wrong(key, reason, "index")
    expected |= {REPORT, *_metadata_keys(fields)}
    unknown = [path for path in fields if path not in metadata]
    for key in entries:
        if key not in expected and not any(key.startswith(f"{path}/") for path in unknown):
            yield _wrong(key, "is in the manifest, but belongs to no array")


def _metadata_keys(fields: Collection[str]) -> Iterator[str]:
    """Keys of the ``zarr.json`` of all arrays and of the groups above them."""
    for path in fields:
        parts = path.split("/")
        yield from ("/".join([*parts[:depth], ROOT]) for depth in range(1, len(parts) + 1))


def _schema_problems(
    metadata: Mapping[str, ArrayMetadata], attributes: Mapping[str, Any]
) -> Iterator[Problem]:
    arrays = {path: ArrayInfo(array.shape, array.dtype.name) for path, array in metadata.items()}
    specs = GENERAL
    try:
        specs = get_family(attributes["family"]).part("specs")
    except InputError as unknown:
        for problem in unknown.problems:
            yield Problem(ROOT, str(problem), problem.cure, UNKNOWN_FAMILY)
    for problem in specs.problems(arrays, attributes["samples"]["count"]):
        yield replace(problem, cure=problem.cure or _CURE, kind="schema")


def index_problem(storage: Storage, key: str, array: ArrayMetadata, size: int) -> str | None:
    """What is wrong with the index of a shard of `size` bytes, or None.

    Its checksum must be right; chunks must lie in the shard, not overlap, and leave no byte unused.
    """
    nbytes = index_bytes(prod(array.chunks_per_shard))
    if size < nbytes:
        return f"has {size} bytes, less than its index of {nbytes}"
    raw = bytearray(nbytes)
    storage.read_into(key, size - nbytes, memoryview(raw))
    try:
        index = decode_index(bytes(raw), size, max_encoded_size(array.chunk_bytes))
    except FrameError as error:
        return str(error)
    present = index[index[:, 0] != EMPTY]
    present = present[np.argsort(present[:, 0])]
    ends = np.concatenate([[0], present.sum(axis=1)])
    if (present[:, 0] != ends[:-1]).any() or ends[-1] != size - nbytes:
        return "its index leaves bytes unused, or chunks overlap"
    return None


# Value rules of every store (offsets, text, sources, splits), and running rules.


def indices(view: View) -> Iterator[Problem]:
    """Offsets, codes and extents stay within the arrays that they index; text is UTF-8."""
    for path in view.store.paths():
        spec = view.spec(path)
        if spec.bounds_values:
            yield from (broken(path, error) for error in spec.value_errors(view.whole(path), view.shape))
    for path in view.store.paths():
        if view.store.specs.is_text(path, view.store.paths()):
            yield from _not_text(view, path)


def _not_text(view: View, path: str) -> Iterator[Problem]:
    """Text that is not UTF-8; nothing if its offsets are wrong, which `indices` reports."""
    values, offsets = view.whole(path), view.whole(f"{path.removesuffix('/data')}/offsets")
    if any(offsets_errors(offsets, len(values), "")):
        return
    try:
        text_values(values, offsets)
    except UnicodeDecodeError as error:
        yield broken(path, f"is not UTF-8 ({error})")


def sources(view: View) -> Iterator[Problem]:
    """The rows of the sources follow each other and are all rows of the main table."""
    rows, first = view.whole("sources/rows"), view.whole("sources/first_row")
    wrong = first != np.cumsum(rows) - rows
    if wrong.any():
        at = first_row(wrong)
        yield broken("sources/first_row", f"source {at} begins at {first[at]}, not where others end")
    main = view.store.attributes.get("main_table", "")
    lengths = {view.shape(path)[0] for path in table_columns(view.store, main)}
    if lengths and int(rows.sum()) not in lengths:
        found = min(lengths)
        yield broken("sources/rows", f"sums up to {int(rows.sum())}, but table {main} has {found} rows")


def splits(view: View) -> Iterator[Problem]:
    """Splits have one code per sample, and every code a name."""
    try:
        names = view.store.split_names()
    except StoreError as error:
        yield broken("splits", str(error))
        return
    (count,) = view.shape("splits/code")
    if count != view.store.sample_count:
        yield broken("splits/code", f"has {count} rows, but there are {view.store.sample_count} samples")
    most = max((int(codes.max()) for _, codes in view.blocks("splits/code")), default=0)
    if most >= max(1, len(names)):
        yield broken("splits/code", f"holds code {most}, but there are {len(names)} names")


RULES: tuple[Rule, ...] = (indices, sources, splits)


def run_rules(view: View, rules: Sequence[Rule], executor: Executor) -> tuple[list[Problem], list[str]]:
    """Problems of all rules, and the names of rules that could not be checked as arrays are damaged."""
    outcomes = [outcome for _, outcome in run_in_order(executor, _RuleStep(view), rules)]
    problems = [problem for outcome in outcomes for problem in outcome.problems]
    return problems, [rule for outcome in outcomes for rule in outcome.record["unchecked"]]


@dataclass(frozen=True, slots=True)
class _RuleStep(Job[Rule]):
    view: View

    def __call__(self, rule: Rule) -> Outcome:
        problems: list[Problem] = []
        try:
            problems.extend(rule(self.view))
        except UnreadableError:
            return Outcome({"unchecked": [rule.__name__]}, tuple(problems))
        return Outcome({"unchecked": []}, tuple(problems))

    def describe(self, rule: Rule) -> str:
        return f"{self.view.store.path}: the rule {rule.__name__!r}"
