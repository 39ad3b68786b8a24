"""A sealed store: its contents, storage, sources and remarks, and code that loads it."""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from typing import Any

import numpy as np
import xxhash

from unistore.errors import InputError, StoreError
from unistore.remote.storage import local_path
from unistore.report.labels import unlabelled_remark
from unistore.report.measures import describe_measures, measure_remarks, measures_of
from unistore.report.suggestions import snippet
from unistore.report.values import describe_values
from unistore.schemas.indices import contradiction
from unistore.schemas.tables import HDF5_ATTRIBUTES, text_values
from unistore.store.manifest import Entry, parse_manifest, root_is_intact
from unistore.store.names import MANIFEST, REPAIR, REPORT, ROOT, build_folder
from unistore.store.reader import Store
from unistore.zarr3.array import Array
from unistore.zarr3.codecs import Blosc
from unistore.zarr3.sharding import index_bytes

SHOWN_SOURCES = 5
MAX_READ_ARRAYS = 64
"""Arrays of a local store whose values are read, the largest ones."""
MAX_READ_ARRAYS_REMOTE = 16
"""The same of an object store, where each array takes several requests."""
_BOOKKEEPING = frozenset({"source", "number", "source_row"})


def describe_store(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Describe a store from its metadata and a bounded part of its values. JSON values.

    Raises `StoreError` if it is not a store, is unfinished, of another format, or damaged.
    """
    store = Store(path)
    about = store.attributes
    entries, agrees = _manifest(store)
    shards: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries or ():
        shards[entry.key.partition("/c/")[0]].append(entry)
    arrays = [
        _describe_array(array, None if entries is None else shards[path])
        for path, array in store.arrays().items()
    ]
    value_remarks = _add_values(store, arrays)
    measures, sample_remarks = _measures(store)
    stored = None if entries is None else sum(array["stored_bytes"] for array in arrays)
    raw = sum(array["raw_bytes"] for array in arrays)
    splits = _splits(store)
    return {
        "family": store.family,
        "format_version": about["format_version"],
        "samples": dict(about["samples"]),
        "main_table": about.get("main_table", about["samples"]["table"]),
        "splits": splits,
        "sources": _sources(store),
        "arrays": arrays,
        "stored_bytes": stored,
        "raw_bytes": raw,
        "ratio": _ratio(raw, stored),
        "options": about.get("options", {}),
        "created_with": about.get("created_with", {}),
        "statistics": about.get("statistics", {}),
        "seal": {**about["seal"], "agrees": agrees},
        "measures": measures,
        "remarks": [*_remarks(store, arrays, agrees=agrees), *value_remarks, *sample_remarks],
        "snippet": snippet(store, splits),
    }


def _manifest(store: Store) -> tuple[list[Entry] | None, bool]:
    """The manifest's lines (None if it cannot be read), and whether seal, manifest and root agree."""
    seal = store.attributes["seal"]
    try:
        data = store.read(MANIFEST)
        entries = parse_manifest(data, store.path)
    except StoreError:
        return None, False
    digest = xxhash.xxh3_128_hexdigest(data)
    return entries, digest == seal["digest"] and root_is_intact(store.read(ROOT))


def _describe_array(array: Array, shards: list[Entry] | None) -> dict[str, Any]:
    empty_shard = index_bytes(math.prod(array.metadata.chunks_per_shard))
    raw = math.prod(array.shape) * array.dtype.itemsize
    stored = None if shards is None else sum(shard.bytes for shard in shards)
    return {
        "path": array.path,
        "shape": list(array.shape),
        "dtype": array.dtype.name,
        "chunks": list(array.chunk_shape),
        "shards": list(array.shard_shape),
        "codec": _codecs(array.metadata.compressor),
        "axes": list(array.metadata.dimension_names or ()),
        "attributes": dict(array.attributes),
        "stored_bytes": stored,
        "raw_bytes": raw,
        "ratio": _ratio(raw, stored),
        "files": None if shards is None else len(shards),
        "only_fill": bool(shards) and all(shard.bytes == empty_shard for shard in shards or ()),
    }


def _add_values(store: Store, arrays: list[dict[str, Any]]) -> list[str]:
    """Add ``values`` and ``bookkeeping`` to the descriptions of arrays; returns remarks."""
    remote = local_path(store.path) is None
    remarks, whole = [], sum(array["raw_bytes"] for array in arrays)
    for array in arrays:
        array["bookkeeping"], array["values"] = _is_bookkeeping(array, whole), None
    wanted = [
        array
        for array in sorted(arrays, key=lambda array: -array["raw_bytes"])
        if not (array["bookkeeping"] or "bit_order" in array["attributes"] or _holds_bytes(array))
    ]
    for array in wanted[: MAX_READ_ARRAYS_REMOTE if remote else MAX_READ_ARRAYS]:
        try:
            values = describe_values(store.array(array["path"]), *((1,) if remote else ()))
        except StoreError as error:
            remarks.append(f"{error}: damaged? Run 'unistore verify {store.path}'")
            continue
        array["values"] = values
        if values is None:
            continue
        if values["nan"]:
            remarks.append(f"{array['path']}: {100 * values['nan'] / values['read']:.2g} % are not finite")
        if remark := unlabelled_remark(array["path"], values):
            remarks.append(f"{array['path']}: {remark}")
    return remarks


def _is_bookkeeping(array: dict[str, Any], whole: int) -> bool:
    """Whether an array holds offsets, sources, splits or a small text, not values of samples."""
    path = array["path"]
    text = path.endswith("/data") and _holds_bytes(array) and array["raw_bytes"] < whole / 10
    return _is_index(path) or text or path.rpartition("/")[2] in _BOOKKEEPING


def _holds_bytes(array: dict[str, Any]) -> bool:
    """Whether an axis counts bytes of texts or files: ``"name_byte"``."""
    return any(axis.rpartition("_")[2] == "byte" for axis in array["axes"])


def _measures(store: Store) -> tuple[list[dict[str, Any]], list[str]]:
    try:
        measures = measures_of(store)
        return describe_measures(measures), measure_remarks(store, measures)
    except InputError:  # the family is not installed, or has no preview
        return [], []
    except Exception as error:  # noqa: BLE001  a damaged store or a faulty family must not hide the rest
        return [], [f"samples cannot be measured: {error or type(error).__name__}"]


def _codecs(compressor: Blosc | None) -> str:
    """Return the codecs of a chunk with their main options: ``"bytes, blosc lz4 5 shuffle, crc32c"``."""
    if compressor is None:
        return "bytes, crc32c"
    return f"bytes, blosc {compressor.cname} {compressor.clevel} {compressor.shuffle}, crc32c"


def _ratio(raw: int, stored: int | None) -> float | None:
    return round(raw / stored, 3) if stored else None


def _splits(store: Store) -> dict[str, int]:
    """Samples by split name, in order of their codes; empty: no splits."""
    if not store.has("splits/code"):
        return {}
    codes, names = store.splits()
    counts = np.bincount(codes, minlength=len(names)).tolist()
    return dict(zip(names, counts, strict=False))


def _sources(store: Store) -> dict[str, Any]:
    if not store.has("sources/path/offsets"):
        return {"count": 0, "bytes": None, "first": [], "attributes": []}
    columns: dict[str, list[Any]] = {"path": store.text("sources/path")}
    rows = np.arange(len(columns["path"]))
    for name in ("bytes", "rows"):
        if store.has(f"sources/{name}"):
            columns[name] = store.array(f"sources/{name}").read_rows(rows).tolist()
    few = [values[:SHOWN_SOURCES] for values in columns.values()]
    first = [dict(zip(columns, row, strict=True)) for row in zip(*few, strict=True)]
    total = sum(columns["bytes"]) if "bytes" in columns else None
    return {"count": len(rows), "bytes": total, "first": first, "attributes": _attribute_names(store)}


def _attribute_names(store: Store) -> list[str]:
    """Names of the attributes of the first sources' HDF5 files."""
    if not store.has(f"{HDF5_ATTRIBUTES}/data"):
        return []
    offsets = store.array(f"{HDF5_ATTRIBUTES}/offsets")
    bounds = offsets.read(0, min(len(offsets), SHOWN_SOURCES + 1))
    try:
        data = store.array(f"{HDF5_ATTRIBUTES}/data").read(0, int(bounds[-1]))
        texts = [json.loads(text) for text in text_values(data, bounds)]
        return list(dict.fromkeys(name for text in texts for entries in text.values() for name in entries))
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise contradiction(store, HDF5_ATTRIBUTES, f"holds no attributes as JSON ({error})") from error


def _remarks(store: Store, arrays: list[dict[str, Any]], *, agrees: bool) -> list[str]:
    remarks = []
    if not agrees:
        remarks.append(f"seal, manifest and root disagree: damaged? Run 'unistore verify {store.path}'")
    if left_out := store.attributes.get("skipped"):
        remarks.append(f"left out because of problems: {left_out} (listed in {REPORT})")
    for array in arrays:
        if "unlabelled" in array["attributes"]:
            remarks.append(f"{array['path']}: all zero: unlabelled?")
        elif array["only_fill"] and not _is_index(array["path"]):
            remarks.append(f"{array['path']}: nothing but zeros")
    if store.sample_count == 0:
        remarks.append("no samples")
    if (folder := local_path(store.path)) is not None:
        build = build_folder(folder)
        if build.exists():
            remarks.append(f"a conversion to replace this store is unfinished: {build.name}")
        repair = build.with_name(f"{folder.absolute().name}.{REPAIR}")
        if repair.exists():
            remarks.append(f"a repair is at work or was stopped: {repair.name}; repair again, or remove it")
    return remarks


def _is_index(path: str) -> bool:
    """Whether an array may well be all zeros: offsets, numbers of sources, codes of splits."""
    return path.startswith(("sources/", "splits/")) or path.endswith(("/offsets", "/source"))
