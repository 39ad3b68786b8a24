"""Describe a sealed store and its samples: contents, storage, sources, notes, and code that loads it."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NotRequired, TypedDict

import numpy as np
import xxhash

from unistore.data.kinds.protocol import SOURCE, SampleIndices
from unistore.data.packed import Packed
from unistore.data.statistics import read_kept, statistics_by_key
from unistore.errors import InputError, StoreError, without_fix
from unistore.remote.url import local_path
from unistore.report.suggestions import natural_suggestion, snippet
from unistore.report.values import (
    ValueReport,
    describe_measure,
    describe_values,
    finite,
    measure_remarks,
    measures_of,
    sample_noun,
    unlabelled_question,
)
from unistore.schemas.indices import contradiction, main_bounds, main_table
from unistore.schemas.recorded_rules import Seal
from unistore.schemas.table_rows import source_offsets
from unistore.schemas.tables import HDF5_ATTRIBUTES, SourceForms, text_values
from unistore.store.manifest import parse_manifest, root_digest
from unistore.store.names import FORMAT_VERSION, MANIFEST, REPAIR, REPORT, ROOT, build_folder, folder_beside
from unistore.store.reader import Store
from unistore.store.side_tables import folders_beside, read_side_table, side_names
from unistore.system.types import Attributes, JsonObject, PathLike
from unistore.zarr3.array import StoredArray
from unistore.zarr3.codecs import Compressor, Zstd
from unistore.zarr3.metadata import index_bytes
from unistore.zarr3.writer import READ_AT_RANDOM

SHOWN_SOURCES = 5
MAX_READ_ARRAYS = 64  # Arrays of a local store whose values are read, the largest ones
MAX_READ_ARRAYS_REMOTE = 16  # The same of an object store, where each array takes several requests
_BOOKKEEPING = ("source", "number", "source_row")
# Samples that are read where a row of the sample table gives several: steps of an episode
_MAX_READ = 32


@dataclass(slots=True, kw_only=True)
class ArrayReport:
    """An array of a store.

    Attributes
    ----------
    path : str
        Path of the array.
    shape, chunks, shards : list of int
        Shapes of the array, of a chunk and of a shard.
    dtype, codec : str
        Dtype and codec.
    axes : list of (str or None)
        Names of the axes.
    attributes : mapping
        Attributes.
    stored_bytes : int or None
        Compressed size. None: the manifest cannot be read.
    raw_bytes : int
        Uncompressed size.
    ratio : float or None
        Compression ratio.
    files : int or None
        Number of files.
    only_fill : bool
        Whether no chunk is stored, because all values equal the fill value.
    bookkeeping : bool
        Whether it has offsets, sources, splits or a small text, not values of samples.
    values : ValueReport, optional
        Its values. None: they were not read.
    """

    path: str
    shape: list[int]
    dtype: str
    chunks: list[int]
    shards: list[int]
    codec: str
    why: str | None  # what the codec "auto" chose, and why: "lz4: saves 40%"; None: it did not choose
    axes: list[str | None]
    attributes: JsonObject
    stored_bytes: int | None
    raw_bytes: int
    ratio: float | None
    files: int | None
    only_fill: bool
    bookkeeping: bool
    values: ValueReport | None = None


class SourceRow(TypedDict):
    """A source of a store: its path, and the bytes of its files and its rows if the store has them."""

    path: str
    bytes: NotRequired[int]
    rows: NotRequired[int]


@dataclass(slots=True, kw_only=True)
class SourcesReport:
    """The sources of a store.

    Attributes
    ----------
    count : int
        Number of sources.
    bytes : int, optional
        Size of their files. None: unknown.
    first : list of dict
        The first sources: path, and bytes and rows if the store has them.
    attributes : list of str
        Names of HDF5 attributes of the first ones.
    """

    count: int = 0
    bytes: int | None = None
    first: list[SourceRow]
    attributes: list[str]


class SamplesReport(TypedDict):
    """The samples of a store: their number, and their table."""

    count: int
    table: str


class SealReport(TypedDict):
    """The seal of a store, and whether it agrees with manifest and root."""

    manifest: str
    digest: str
    files: int
    bytes: int
    content_digest: str
    root: str
    agrees: bool


class SideTableReport(TypedDict):
    """An added column. ``problem`` is what is wrong with it."""

    name: str
    table: str
    arrays: list[str]
    problem: str | None


@dataclass(slots=True, kw_only=True)
class StoreReport:
    """A sealed store, described by its metadata and a limited part of its values.

    Attributes
    ----------
    splits : dict of str to int
        Number of samples by name of the split, in order of their codes.
    samples_statistics : mapping
        Stored statistics of all samples, by key. Empty: none are stored.
    side_tables : list of dict
        Added columns: name, table, arrays, and what is wrong with them, or None.
    seal : mapping
        ``agrees``: whether seal, manifest and root agree.
    snippet : str
        Python code that loads the store.
    """

    family: str
    format_version: int
    samples: SamplesReport
    main_table: str
    splits: dict[str, int]
    sources: SourcesReport
    arrays: list[ArrayReport]
    stored_bytes: int | None
    raw_bytes: int
    ratio: float | None
    options: Attributes
    created_with: Attributes
    statistics: Attributes
    samples_statistics: JsonObject
    side_tables: list[SideTableReport]
    seal: SealReport
    measures: list[JsonObject]
    remarks: list[str]
    snippet: str


def describe_store(path: PathLike) -> StoreReport:
    """Return a description of a sealed store. StoreError if there is none, or it is damaged."""
    store = Store(path)
    root = store.root
    shards, agrees = _manifest(store)
    raw = sum(map(_raw_bytes, store.arrays().values()))
    arrays = _described(store, shards, raw)
    damages = _read_values(store, arrays)
    samples_statistics, statistics_remarks = _kept_statistics(store)
    measures, sample_remarks = _measures(store)
    stored = None if shards is None else sum(array.stored_bytes or 0 for array in arrays)
    splits = _splits(store)
    return StoreReport(
        family=store.family,
        format_version=FORMAT_VERSION,
        samples={"count": root.sample_count, "table": root.sample_table},
        main_table=root.main_table,
        splits=splits,
        sources=_sources(store),
        arrays=arrays,
        stored_bytes=stored,
        raw_bytes=raw,
        ratio=_ratio(raw, stored),
        options=root.options,
        created_with=root.created_with,
        statistics=root.statistics,
        samples_statistics=samples_statistics,
        side_tables=[_describe_side_table(store, name) for name in side_names(store)],
        seal=_describe_seal(root.seal, agrees=agrees),
        measures=measures,
        remarks=[
            *_remarks(store, arrays, agrees=agrees),
            *damages,
            *value_remarks(sorted(arrays, key=lambda array: -array.raw_bytes)),
            *sample_remarks,
            *statistics_remarks,
        ],
        snippet=snippet(store, splits),
    )


def _describe_seal(seal: Seal, *, agrees: bool) -> SealReport:
    return {
        "manifest": seal.manifest,
        "digest": seal.digest,
        "files": seal.files,
        "bytes": seal.bytes,
        "content_digest": seal.content_digest,
        "root": seal.root,
        "agrees": agrees,
    }


def describe_arrays(store: Store) -> tuple[list[ArrayReport], list[str]]:
    """Describe the arrays of a sealed store and a bounded part of their values, and return damages."""
    shards, _ = _manifest(store)
    arrays = _described(store, shards, sum(map(_raw_bytes, store.arrays().values())))
    return arrays, _read_values(store, arrays)


def _described(store: Store, shards: Mapping[str, list[int]] | None, raw: int) -> list[ArrayReport]:
    chosen = store.root.options.get("found", {}).get("codecs", {})
    return [
        _describe_array(array, None if shards is None else shards[name], raw, chosen.get(name))
        for name, array in store.arrays().items()
    ]


def _manifest(store: Store) -> tuple[Mapping[str, list[int]] | None, bool]:
    try:
        data = store.read(MANIFEST)
        entries = parse_manifest(data, store.path)
    except StoreError:
        return None, False
    shards = defaultdict(list)
    for entry in entries:
        shards[entry.key.partition("/c/")[0]].append(entry.bytes)
    is_sealed = xxhash.xxh3_128_hexdigest(data) == store.root.seal.digest
    return shards, is_sealed and root_digest(store.read(ROOT)) != ""


def _raw_bytes(array: StoredArray) -> int:
    return math.prod(array.shape) * array.dtype.itemsize


def _describe_array(
    array: StoredArray, shards: list[int] | None, store_bytes: int, chosen: str | None
) -> ArrayReport:
    empty_shard = index_bytes(math.prod(array.metadata.chunks_per_shard))
    raw = _raw_bytes(array)
    stored = None if shards is None else sum(shards)
    axes = list(array.metadata.dimension_names or ())
    small_text = array.path.endswith("/data") and _counts_bytes(axes) and raw < store_bytes / 10
    is_bookkeeping = array.path.rpartition("/")[2] in _BOOKKEEPING
    return ArrayReport(
        path=array.path,
        shape=list(array.shape),
        dtype=array.dtype.name,
        chunks=list(array.chunk_shape),
        shards=list(array.shard_shape),
        codec=_codecs(array.metadata.compressor),
        why=_reason(chosen, raw, stored),
        axes=axes,
        attributes=dict(array.attributes),
        stored_bytes=stored,
        raw_bytes=raw,
        ratio=_ratio(raw, stored),
        files=None if shards is None else len(shards),
        only_fill=bool(shards) and set(shards or ()) == {empty_shard},
        bookkeeping=_is_index(array.path) or small_text or is_bookkeeping,
    )


def _counts_bytes(axes: list[str | None]) -> bool:
    # Such an axis is called "name_byte"
    return any(axis is not None and axis.rpartition("_")[2] == "byte" for axis in axes)


def _is_index(path: str) -> bool:
    # Offsets, numbers of sources and codes of splits may well be all zeros
    return path.startswith(("sources/", "splits/")) or path.endswith(("/offsets", "/source"))


def _codecs(compressor: Compressor | None) -> str:
    if compressor is None:
        return "bytes, crc32c"
    if isinstance(compressor, Zstd):
        return f"bytes, zstd {compressor.level}, crc32c"
    return f"bytes, blosc {compressor.cname} {compressor.clevel} {compressor.shuffle}, crc32c"


def _reason(chosen: str | None, raw: int, stored: int | None) -> str | None:
    """Return what the codec ``auto`` chose, and why in a few words. None: it did not choose."""
    reasons = {
        None: None,
        READ_AT_RANDOM: "none: read at random",
        "none": "none: not worth it",
        "fast": "lz4: too few values to try",
    }
    if chosen in reasons:
        return reasons[chosen]
    assert chosen is not None
    compressor = chosen.partition(" ")[0]
    return compressor if stored is None or not raw else f"{compressor}: saves {1 - stored / raw:.0%}"


def _ratio(raw: int, stored: int | None) -> float | None:
    return round(raw / stored, 3) if stored else None


def _read_values(store: Store, arrays: list[ArrayReport]) -> list[str]:
    remote = local_path(store.path) is None
    readable = [
        array
        for array in sorted(arrays, key=lambda array: -array.raw_bytes)
        if not (array.bookkeeping or "bit_order" in array.attributes or _counts_bytes(array.axes))
    ]
    remarks = []
    for array in readable[: MAX_READ_ARRAYS_REMOTE if remote else MAX_READ_ARRAYS]:
        try:
            values = describe_values(store.array(array.path), *((1,) if remote else ()))
        except StoreError as error:
            remarks.append(f"{without_fix(error)}. Check the store with unistore verify {store.path}")
            continue
        array.values = values
    return remarks


def value_remarks(arrays: Iterable[ArrayReport]) -> Iterator[str]:
    """Yield what stands out in the values of arrays."""
    for array in arrays:
        values = array.values
        if values is None:
            continue
        if values.nan:
            percent = 100 * values.nan / values.read
            yield f"{array.path}: {percent:.2g} % are not finite"
        if (suspect := values.unlabelled(array.path)) is not None:
            percent, labels = suspect
            yield f"{percent:.3g} % of {array.path} are {labels}. {unlabelled_question(labels)}"


def _measures(store: Store) -> tuple[list[JsonObject], list[str]]:
    noun = sample_noun(store.sample_table)
    remarks: list[str] = []
    try:
        measures = measures_of(store)
        for measure in measures:
            remarks += measure_remarks(measure, noun)
        codes, names = store.splits() if store.has("splits/code") else (None, [])
        return [describe_measure(measure, codes, names) for measure in measures], remarks
    except InputError:  # the family is not installed, or has no preview
        return [], []
    except Exception as error:  # noqa: BLE001  a damaged store or a faulty family must not hide the rest
        return [], [f"samples cannot be measured: {error or type(error).__name__}"]


def _kept_statistics(store: Store) -> tuple[JsonObject, list[str]]:
    try:
        kept = read_kept(store)
    except StoreError as error:
        return {}, [str(error)]
    if kept is None:
        return {}, []
    return {key: values.to_json() for key, values in statistics_by_key(kept).items()}, []


def _describe_side_table(store: Store, name: str) -> SideTableReport:
    try:
        side = read_side_table(store, name)
    except StoreError as error:
        return {"name": name, "table": "", "arrays": [], "problem": str(error)}
    problem = None if side.is_of(store) else side.stale(store)
    return {"name": name, "table": side.table, "arrays": side.paths, "problem": problem}


def with_attached(store: Store, report: StoreReport) -> Store:
    """Return the store with its intact added columns."""
    sound = [side["name"] for side in report.side_tables if side["problem"] is None]
    return store.with_side_tables(folders_beside(store, sound))


def _splits(store: Store) -> dict[str, int]:
    if not store.has("splits/code"):
        return {}
    codes, names = store.splits()
    counts = np.bincount(codes, minlength=len(names)).tolist()
    return dict(zip(names, counts, strict=False))


def _sources(store: Store) -> SourcesReport:
    if not store.has("sources/path/offsets"):
        return SourcesReport(first=[], attributes=[])
    paths = store.text("sources/path")
    first: list[SourceRow] = [{"path": path} for path in paths[:SHOWN_SOURCES]]
    total = None
    if store.has("sources/bytes"):
        sizes = store.array("sources/bytes").read_rows(np.arange(len(paths)))
        total = int(sizes.sum())
        for source, nbytes in zip(first, sizes.tolist(), strict=False):
            source["bytes"] = nbytes
    if store.has(source_offsets(main_table(store))):
        for source, rows in zip(first, np.diff(main_bounds(store)).tolist(), strict=False):
            source["rows"] = rows
    return SourcesReport(count=len(paths), bytes=total, first=first, attributes=_attribute_names(store))


def _attribute_names(store: Store) -> list[str]:
    if not store.has(f"{HDF5_ATTRIBUTES}/data"):
        return []
    offsets = store.array(f"{HDF5_ATTRIBUTES}/offsets")
    bounds = offsets.read(0, min(len(offsets), SHOWN_SOURCES + 1))
    names: dict[str, None] = {}
    try:
        data = store.array(f"{HDF5_ATTRIBUTES}/data").read(0, int(bounds[-1]))
        for text in text_values(data, bounds):
            for attributes in json.loads(text).values():
                names |= dict.fromkeys(attributes)
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        raise contradiction(
            store, HDF5_ATTRIBUTES, f"contains attributes that are not JSON: {error}"
        ) from error
    return list(names)


def _remarks(store: Store, arrays: list[ArrayReport], *, agrees: bool) -> list[str]:
    remarks = []
    if not agrees:
        remarks.append(f"seal, manifest and root contradict each other; run unistore verify {store.path}")
    if left_out := store.root.skipped:
        remarks.append(f"skipped because of problems: {left_out} (listed in {REPORT})")
    for array in arrays:
        if "unlabelled" in array.attributes:
            remarks.append(f"all of {array.path} are 0. Does 0 mean 'unlabelled'?")
        elif array.only_fill and not _is_index(array.path):
            remarks.append(f"all of {array.path} are 0")
        if shapes := SourceForms.of(array.attributes).row_shapes:
            known = ", ".join(shapes)
            remarks.append(f"{array.path}: rows of {known} are padded with zeros, which statistics ignore")
        if content := array.attributes.get("content"):
            remarks.append(f"{array.path}: {content}")
    if store.sample_count == 0:
        remarks.append("the store has no samples")
    if (folder := local_path(store.path)) is not None:
        build = build_folder(folder)
        if build.exists():
            remarks.append(f"a conversion that replaces this store is not finished: {build.name}")
        repair = folder_beside(folder, REPAIR)
        if repair.exists():
            remarks.append(f"a repair is running or was stopped: {repair.name}; repair again, or remove it")
    return remarks


class KeyReport(TypedDict):
    """A key of samples. The bounds are None without finite numbers."""

    key: str
    shape: list[int]
    dtype: str
    min: float | None
    max: float | None


class SampleReport(TypedDict):
    """The default samples in one row of the sample table, of which `read` were read."""

    sample: int
    of: str
    kind: str
    samples: int
    read: int
    source: str
    keys: list[KeyReport]


def describe_sample(store: Store, sample: int) -> SampleReport:
    """Return a description of the default samples in one row of the sample table, as JSON values."""
    units = np.array([sample])
    natural = natural_suggestion(store, units)
    reader = natural.kind.bind(store, (*natural.kind.select(store, None), SOURCE), units)
    count = min(len(reader), _MAX_READ)
    picks = SampleIndices(np.arange(count), np.zeros(count, np.int64))
    batch = reader.read(picks, np.empty) if count else {}
    source = batch.pop(SOURCE, None)
    return {
        "sample": sample,
        "of": sample_noun(store.sample_table),
        "kind": natural.text,
        "samples": len(reader),
        "read": count,
        "source": "" if source is None else str(source.values[0]),
        "keys": [_describe_key(key, packed, count) for key, packed in batch.items()],
    }


def _describe_key(key: str, packed: Packed, count: int) -> KeyReport:
    values = packed.values
    shape = values.shape
    if packed.shapes is not None and count == 1:
        shape = tuple(packed.shapes[0].tolist())
    if packed.offsets is None and count == 1:
        shape = shape[1:]
    about: KeyReport = {
        "key": key,
        "shape": list(shape),
        "dtype": values.dtype.name,
        "min": None,
        "max": None,
    }
    numbers = finite(values) if values.dtype.kind in "biuf" else values[:0]
    if numbers.size:
        about["min"] = numbers.min().item()
        about["max"] = numbers.max().item()
    return about
