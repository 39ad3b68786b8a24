"""Check that the documents of a store agree: seal, manifest, fields, metadata, shard indexes, schema."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from unistore.converters.registry import get_family
from unistore.errors import InputError, Problem, StoreError, UnsupportedError
from unistore.integrity.files import UNKNOWN_FAMILY
from unistore.schemas.array_spec import ArrayInfo
from unistore.schemas.array_specs import GENERAL
from unistore.store.manifest import Entry, consolidated_problems, make_seal, manifest_bytes
from unistore.store.names import REPORT, ROOT
from unistore.zarr3.array import read_metadata
from unistore.zarr3.codecs import FrameError, max_encoded_size
from unistore.zarr3.documents import parse_document, shown
from unistore.zarr3.metadata import ArrayMetadata, shard_key
from unistore.zarr3.sharding import EMPTY, decode_index, index_bytes
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
