"""`compact`: write one single store of a version, or of several stores, by a conversion of stored sources."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from unistore.conversion.convert import executor_for
from unistore.conversion.execution import execute
from unistore.conversion.keys import Inputs, SourceStates, read_states
from unistore.conversion.report import Report
from unistore.conversion.settings import Settings
from unistore.conversion.steps import Conversion
from unistore.converters.protocol import SourceArrays, SourceReader
from unistore.converters.scan_types import Finalized, Scan, Sources
from unistore.data.parts import open_parts
from unistore.data.where import Condition, Where, parse_where
from unistore.errors import InputError, Problem
from unistore.growing.alike import unite
from unistore.growing.append import differing_options
from unistore.growing.sources import KeptSource, kept_sources, numbers_in
from unistore.progress import resolve_progress
from unistore.remote.url import is_url
from unistore.schemas.indices import sample_sources, table_columns
from unistore.schemas.recorded_rules import StatedFamily, skipped_entries
from unistore.schemas.table_rows import table_of_offsets
from unistore.schemas.tables import Field, OwnForm, Table, text_arrays
from unistore.store.joined import FIX, SelectedSources, UnitedStores, joined_attributes
from unistore.store.manifest import repeated_documents
from unistore.store.names import ROOT
from unistore.store.reader import Store
from unistore.store.versions import OpenedStores, open_stores
from unistore.system.arguments import Arguments, wrong_argument
from unistore.system.progress import ProgressLike, begin_items
from unistore.system.types import AnyArray, Attributes, Int64s, JsonObject, PathLike, VersionLike
from unistore.zarr3.documents import parse_document

# Arrays of more bytes are read shard by shard, smaller ones at once
_INDEX_BYTES = 32 << 20
_SHARED = ("sources/path/", "sources/bytes", "sources/hash", "splits/")


class _StoredSource(NamedTuple):
    """A source in a part: its first row in each table of the parts, and the bytes of its files."""

    first: Mapping[str, int]
    bytes: int


@dataclass(frozen=True)
class StoredSources(SourceReader):
    """Reads the sources of a version from its parts."""

    selected: SelectedSources
    kept: Sequence[KeptSource]
    largest_index: int

    @property
    def store(self) -> UnitedStores:
        return self.selected.store

    def read(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, AnyArray]
    ) -> None:
        detail: _StoredSource = scan.sources.details[source]
        first = detail.first[table]
        for column, rows in out.items():
            rows[...] = self.store.array(f"{table}/{column}").read(first + lo, first + hi)

    def own(self, *_: Any, **__: Any) -> Mapping[str, OwnForm]:
        return {}  # digests are copied

    def finalize(self, scan: Scan, prepared: Sequence[SourceArrays]) -> Finalized:  # noqa: ARG002
        """Return the arrays that are not tables."""
        selected = self.selected
        fields = self.store.fields
        direct = {field.path for table in scan.tables for field in table.fields}
        arrays: dict[str, AnyArray] = {}
        for path in fields:
            if selected.spans_sources(path):
                table = path.rpartition("/")[0]
                arrays[path], names = selected.ranges_of_samples(path)
                for of_text, text in text_arrays(f"{table}/name", names, axis="row"):
                    arrays[of_text.path] = text
        by_source = {}
        for path in fields:
            table = table_of_offsets(path, fields)
            is_made = path in direct or path in arrays or path.startswith(_SHARED)
            if table:
                by_source[table] = np.diff(selected.values(path))
            elif not is_made and not selected.says_nothing(path):
                arrays[path] = selected.values(path)
        codes, names_of_splits = selected.splits()
        samples = selected.rows("splits/code")[1]
        return Finalized(
            arrays=[(fields[path], values) for path, values in arrays.items()],
            samples=len(codes),
            splits=codes if names_of_splits else None,
            split_names=tuple(names_of_splits),
            sample_source=np.arange(len(selected)),
            sample_runs=samples,
            by_source=by_source,
            groups=_groups(self.store.stores),
            digests=selected.values("sources/hash"),
        )


def _groups(stores: Sequence[Store]) -> dict[str, Attributes]:
    """Return attributes of the groups, which must say the same in all parts but for what sources share."""
    groups = [dict(_group_attributes(store)) for store in stores]
    joined: dict[str, Attributes] = {}
    for name in dict.fromkeys(chain.from_iterable(groups)):
        attributes = joined_attributes([own[name] for own in groups if name in own])
        if attributes is None:
            message = f"the attributes of the group {name} differ between the parts"
            raise InputError(Problem(stores[0].path, message, "convert all sources together", "compact"))
        joined[name] = attributes
    return joined


def _group_attributes(store: Store) -> Iterator[tuple[str, Attributes]]:
    documents = repeated_documents(parse_document(store.read(ROOT)))
    for path, document in documents.items():
        if document["node_type"] == "group" and document.get("attributes") and path != "splits":
            yield path, document["attributes"]


def _tables(converter: StoredSources) -> list[Table]:
    """Return the tables that are read shard by shard: of large arrays, and of the main table."""
    selected = converter.selected
    store = converter.store
    main = store.root.main_table
    spanning = [path.removesuffix("offsets") for path in store.fields if selected.spans_sources(path)]
    sizes = {}
    for path, field in store.fields.items():
        spec = store.specs.of(path)
        is_bound = spec.ascending or spec.indexes is not None or spec.is_offsets
        if not is_bound and not path.startswith((*_SHARED, *spanning)):
            sizes[path] = len(store.array(path)) * field.row_bytes
    of_main = [path for path in table_columns(store, main) if path in sizes]
    largest = max(of_main, key=sizes.__getitem__)
    counts_of: dict[str, bytes] = {}
    fields: dict[str, list[Field]] = {}
    for path, size in sizes.items():
        field = store.fields[path]
        is_small = size <= converter.largest_index and path != largest and not field.statistics
        if is_small or selected.says_nothing(path):
            continue
        counts = selected.rows(path)[1].tobytes()
        # a table has a name of its own, and the same rows in all columns
        name = main if path.startswith(f"{main}/") else path.rpartition("/")[0]
        while name and counts_of.setdefault(name, counts) != counts:
            name = name.rpartition("/")[0]
        if name:
            fields.setdefault(name, []).append(field)
    return [Table(name=name, fields=tuple(columns)) for name, columns in fields.items()]


@dataclass(frozen=True, slots=True)
class _StoredInputs(Inputs):
    """Sources in parts: their sizes are those of the files that they were converted from."""

    def sizes(self) -> Int64s:
        return np.array([detail.bytes for detail in self.scan.sources.details], np.int64)

    def states(self, scanned: int) -> SourceStates:  # noqa: ARG002  as their parts keep them
        converter = cast("StoredSources", self.converter)
        kept = []
        for store in converter.store.stores:
            count = len(store.array("sources/bytes"))
            kept.append(read_states(store.storage, store.root.seal.digest, count).states)
        return SourceStates([kept[source.part][source.number] for source in converter.kept])


def _scan(converter: StoredSources, options: Attributes) -> Scan:
    store = converter.store
    tables = _tables(converter)
    rows = {table.name: converter.selected.rows(table.fields[0].path) for table in tables}
    sizes = converter.selected.values("sources/bytes").tolist()
    sources = Sources()
    for place, (name, part, _) in enumerate(converter.kept):
        folder = store.stores[part].path
        firsts = {table: int(first[place]) for table, (first, _) in rows.items()}
        sources.add(
            name=name,
            files=[] if is_url(folder) else [f"{folder}/{ROOT}"],
            rows={table: int(count[place]) for table, (_, count) in rows.items()},
            detail=_StoredSource(firsts, sizes[place]),
        )
    return Scan(
        family=store.family,
        sources=sources,
        tables=tuple(tables),
        sample_table=store.sample_table,
        main_table=store.root.main_table,
        options=options,
        recorded=_stated_family(store.stores),
    )


def _stated_family(stores: Sequence[Store]) -> StatedFamily:
    """Return the kinds of all stores, and the package of the first one."""
    kinds = dict.fromkeys(chain.from_iterable(store.root.kinds for store in stores))
    return StatedFamily(list(kinds), stores[0].root.package)


def compact(
    store: PathLike | Sequence[PathLike],
    destination: PathLike,
    *,
    version: VersionLike = None,
    columns: Literal["exact", "union"] | None = None,
    order: Literal["version", "name"] = "version",
    split: str | None = None,
    where: Mapping[str, Condition] | None = None,
    codec: str | None = None,
    overwrite: bool = False,
    restart: bool = False,
    workers: int = 0,
    memory: str | int | None = None,
    progress: ProgressLike = None,
    largest_index: int = _INDEX_BYTES,
) -> Report:
    """Write one single store of a version of a versioned store, or of several stores.

    Removed sources are not in it. Its values equal those of one conversion of all sources.

    Parameters
    ----------
    store : path, URL, or list of them
        The versioned store, or several stores of the same family and options. Dtypes of columns may
        differ if one dtype represents the values of all.
    destination : path or URL
        Folder of the new store, or its URL in an object store. After a kill, the same call continues there.
    version : int or str, optional
        Number or name of the version. Only for one store. None: the newest.
    columns : {"exact", "union"}, optional
        ``"union"``: columns that some sources lack are filled, and smaller rows padded, as in
        `unistore.convert`. ``"exact"``: such sources are an error. None: as the store was converted.
    order : {"version", "name"}, default "version"
        ``"version"``: sources in the order of the version. ``"name"``: in the order of one conversion of all.
    split : str, optional
        Only sources of this split. None: all.
    where : dict, optional
        Only sources whose samples meet these conditions, as in `unistore.Dataset`. If only a part of the
        samples of a source does, that is an error. None: all.
    codec : str, optional
        As in `unistore.convert`. None: the codec of the store.
    overwrite, restart, workers, memory, progress
        As in `unistore.convert`.
    largest_index : int
        Size of an array in bytes up to which it is kept in memory. Larger arrays are read shard by shard.

    Returns
    -------
    Report
        Counts and sizes of the new store.

    Raises
    ------
    InputError
        If parts contradict each other, or a source would be selected in part. The message names it.
    ConversionError
        If writing failed. The same call continues.

    Examples
    --------
    >>> report = unistore.compact("train.zarr", "paper.zarr", version="paper-v1")  # doctest: +SKIP
    """
    check = Arguments()
    check.one_of("order", order, ("version", "name"))
    check.text("split", split, none=True)
    conditions = parse_where(check, where, None)
    check.integer("largest_index", largest_index)
    check.expect("store", store, bool(store), "a folder, or several")
    if columns is not None:
        check.one_of("columns", columns, ("exact", "union"))
    check.raise_problems()
    with resolve_progress(progress) as callbacks:
        begin_items(callbacks, "gathering")
        paths = [store] if isinstance(store, str | os.PathLike) else store
        folders = [os.fspath(path) for path in paths]
        opened = _opened(folders, version)
        options = _options(opened, columns)
        stores: list[Store] = []
        left_out: list[Sequence[int]] = []
        for one in opened:
            stores += one.stores
            is_selected = split is not None or conditions is not None
            left_out += _not_selected(one, split, conditions) if is_selected else one.removed
        kept = kept_sources(stores, left_out, by_name=order == "name")
        if not kept:
            message = "no source is in this split and meets all conditions"
            raise InputError(Problem(folders[0], message, "remove or widen a condition", "option"))
        _check_names(kept)
        options["exclude"] = _excluded(stores, left_out)
        options.pop("skipped", None)
        if skipped := _skipped(stores, kept):
            options["skipped"] = skipped
        united = unite(stores, kept, options.get("columns"))
        converter = StoredSources(SelectedSources(united, numbers_in(united, kept)), kept, largest_index)
        chosen = codec or options.pop("codec", "auto")
        settings = Settings(
            codec=chosen, overwrite=overwrite, restart=restart, workers=workers, memory=memory
        )
        scan = _scan(converter, options)
        inputs = _StoredInputs.of(converter, scan)
        states = [(one.name, stores[one.part].root.seal.digest) for one in kept]
        build = settings.open_build(destination)
        build.check_early(overwrite=overwrite)
        places = [folder if is_url(folder) else os.path.abspath(folder) for folder in folders]  # noqa: PTH100
        identity = {"compact": places, "order": order, "codec": chosen}
        with build, executor_for(settings, None, callbacks) as executor:
            build.begin(identity, states, [*map(Path, folders)], time.time_ns())
            if (report := build.finished_before()) is not None:
                return report
            build.check(overwrite=overwrite)
            build.discard_on_input_error()
            conversion = Conversion(
                inputs=inputs, build=build, settings=settings, executor=executor, progress=callbacks
            )
            return execute(conversion, None)


def _opened(folders: Sequence[str], version: VersionLike) -> list[OpenedStores]:
    """Open stores. Refuse those that no one store can hold."""
    if version is not None and len(folders) > 1:
        message = f"works only with one store, but {len(folders)} are given"
        fix = "first compact that version into a single store, then compact the stores"
        raise wrong_argument("version", message, fix)
    opened = [open_stores(folder, version) for folder in folders]
    for store in chain.from_iterable(one.stores for one in opened):
        store.array("sources/bytes")  # reads the root of a part, of which the version tells little
    first = opened[0].stores[0]
    problems = []
    for store in chain.from_iterable(one.stores for one in opened[1:]):
        if store.family != first.family:
            message = f"is a {store.family} store, but {first.path} is a {first.family} store"
            raise InputError(Problem(store.path, message, FIX, "family"))
        problems += differing_options(first, store, ("columns",))
    if problems:
        raise InputError(problems)
    return opened


def _check_names(sources: Sequence[KeptSource]) -> None:
    counts = Counter(source.name for source in sources)
    message = "several of the stores have a source of this name"
    fix = (
        "remove it from one with unistore remove, or convert again from a folder above, so that names differ"
    )
    problems = [Problem(name, message, fix, "name", name) for name, count in counts.items() if count > 1]
    if problems:
        raise InputError(problems)


def _not_selected(
    opened: OpenedStores, split: str | None, where: Where | None
) -> tuple[tuple[int, ...], ...]:
    """Return numbers of the sources of each part that have no sample of a split and conditions."""
    left_out = []
    problems = []
    version = None if opened.version is None else opened.version.number
    splits = None if split is None else (split,)
    parts = open_parts([opened.path], None, splits, {}, where, version=version)
    for part in parts:
        sources = sample_sources(part.store)
        units = part.units()
        names = part.store.text("sources/path")
        samples = np.bincount(sources, minlength=len(names))
        selected = np.bincount(sources if units is None else sources[units], minlength=len(names))
        left_out.append(tuple(np.flatnonzero(selected == 0).tolist()))
        for number in np.flatnonzero((selected > 0) & (selected < samples)).tolist():
            message = (
                f"only {selected[number]:,} of its {samples[number]:,} samples match, but a source is always "
                "copied whole"
            )
            fix = "change the condition, or select samples with Dataset(split=…, where=…)"
            problems.append(Problem(names[number], message, fix, "option", names[number]))
    if problems:
        raise InputError(problems)
    return tuple(left_out)


def _options(opened: Sequence[OpenedStores], columns: str | None) -> JsonObject:
    """Return the options of the new store, which are those of all."""
    stores = [*chain.from_iterable(one.stores for one in opened)]
    every = [store.read_root().options for store in stores]
    options: JsonObject = dict(every[0])
    if "columns" in options:
        options["columns"] = columns or options["columns"]
    digests = []
    for one in opened:
        version = one.version
        digests.append(one.stores[0].root.seal.digest if version is None else version.digest)
    of_values = {name: value for name, value in options.get("found", {}).items() if name != "codecs"}
    options["found"] = {**of_values, "compacted": digests[0] if len(digests) == 1 else digests}
    return options


def _skipped(stores: Sequence[Store], kept: Sequence[KeptSource]) -> list[JsonObject]:
    """Return what stores state as skipped, without the sources that were mended and added since."""
    skipped: list[JsonObject] = []
    for part, store in enumerate(stores):
        added = {source.name for source in kept if source.part != part}
        entries = skipped_entries(store.read_root().options)
        skipped += [entry.to_json() for entry in entries if not entry.is_among(added)]
    return skipped


def _excluded(stores: Sequence[Store], left_out: Sequence[Sequence[int]]) -> list[str]:
    """Return names of sources to exclude: those that no store has, and those that are left out."""
    every = [store.read_root().options.get("exclude", ()) for store in stores]
    excluded = [name for name in every[0] if all(name in own for own in every)]
    for store, removed in zip(stores, left_out, strict=True):
        names = store.text("sources/path")
        excluded += [names[number] for number in removed]
    return excluded
