"""``unistore.compact``: one plain store of a version, by an ordinary conversion of stored sources."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from unistore.conversion.convert import executor_for
from unistore.conversion.keys import Inputs
from unistore.conversion.run import Conversion, Report, finished_before, open_build
from unistore.conversion.settings import Settings
from unistore.converters.files.hdf5.attributes import NO_ATTRIBUTES
from unistore.converters.protocol import Facts, SourceReader
from unistore.converters.scan import Finalized, Scan, Sources
from unistore.data.parts import open_parts
from unistore.data.where import Condition, Where, parse_where
from unistore.errors import InputError, Problem
from unistore.growing.merging import KeptSource, Merging, kept_sources, name_arrays
from unistore.progress import resolve_progress
from unistore.remote.url import require_local_path
from unistore.schemas.indices import sample_sources, table_columns
from unistore.schemas.tables import HDF5_ATTRIBUTES, TEXT_NOTE, Field, IndexValues, Table, lazy_text_arrays
from unistore.store.joined import OF_SOURCES, joined_attributes
from unistore.store.names import ROOT
from unistore.store.reader import Store
from unistore.store.versions import OpenedStores, open_stores
from unistore.system.arguments import Arguments
from unistore.system.hints import AnyArray, Int64s, PathLike
from unistore.system.progress import Progress
from unistore.zarr3.documents import parse_document

# Arrays of more bytes are read shard by shard, smaller ones at once
_INDEX_BYTES = 32 << 20
# Columns of JSON texts, which a store lacks where all are empty
_JSON_TEXTS = (HDF5_ATTRIBUTES, "sources/attributes", "episodes/attributes")
_SHARED = ("sources/path/", "sources/bytes", "sources/digest", "sources/first_row", "sources/rows", "splits/")


@dataclass(frozen=True)
class StoredSources(SourceReader):
    """Reads the sources of a version from its parts."""

    stores: tuple[Store, ...]
    sources: tuple[KeptSource, ...]
    largest_index: int

    @cached_property
    def merging(self) -> Merging:
        """Return the arrays of all parts as those of one store."""
        return Merging(self.stores, self.sources)

    def read(
        self, scan: Scan, table: str, source: int, lo: int, hi: int, out: Mapping[str, NDArray[Any]]
    ) -> None:
        """Read rows of a source from its part."""
        detail = scan.sources.details[source]
        store = self.stores[detail["part"]]
        first = detail["first"][table]
        for column, rows in out.items():
            values = store.array(f"{table}/{column}").read(first + lo, first + hi)
            rows[(slice(None), *map(slice, values.shape[1:]))] = values

    def finalize(self, scan: Scan, facts: Sequence[Facts]) -> Finalized:  # noqa: ARG002
        """Return the arrays that are no tables."""
        first = self.stores[0]
        merging = self.merging
        direct = {field.path for table in scan.tables for field in table.fields}
        arrays: dict[str, AnyArray] = {}
        for path in first.paths():
            if merging.spans_sources(path):
                table = path.rpartition("/")[0]
                arrays[path], names = merging.ranges_of_samples(path)
                arrays |= name_arrays(f"{table}/name", names, "row")
        for path in first.paths():
            is_joined = not path.startswith(_SHARED) and not _is_json_text(path)
            if path not in direct and path not in arrays and is_joined:
                arrays[path] = merging.values(path)
        codes, names_of_splits = merging.splits()
        samples = merging.rows("splits/code")[1]
        return Finalized(
            arrays=[
                *((_field(merging, path), values) for path, values in arrays.items()),
                *self._json_texts(),
            ],
            samples=len(codes),
            splits=codes if names_of_splits else None,
            split_names=names_of_splits,
            sample_source=np.arange(len(self.sources)),
            sample_runs=samples,
            groups=_groups(self.stores),
        )

    def _json_texts(self) -> Iterator[tuple[Field, IndexValues]]:
        """Yield the arrays of JSON texts, which a part lacks whose sources have none."""
        for path in _JSON_TEXTS:
            holder = next((store for store in self.stores if store.has(f"{path}/data")), None)
            if holder is None:
                continue
            of_parts = [store.text(path) if store.has(f"{path}/data") else None for store in self.stores]
            texts: list[str] = []
            first, count = self.merging.rows(f"{path}/offsets")
            for source, lo, rows in zip(self.sources, first.tolist(), count.tolist(), strict=True):
                own = of_parts[source.part]
                texts += [NO_ATTRIBUTES] * rows if own is None else own[lo : lo + rows]
            if texts.count(NO_ATTRIBUTES) < len(texts):
                description = holder.attributes["fields"][f"{path}/data"]["description"]
                axis = path.partition("/")[0].removesuffix("s")
                yield from lazy_text_arrays(
                    path, texts, axis=axis, description=description.removesuffix(TEXT_NOTE)
                )


def _field(merging: Merging, path: str) -> Field:
    """Return the form of an array, with the chunks that it has."""
    first = merging.stores[0]
    array = first.array(path)
    about = first.attributes["fields"][path]
    chunks = [store.array(path).chunk_shape for store in merging.stores]
    run, *tile = map(max, zip(*chunks, strict=True))
    return Field(
        path=path,
        dtype=array.dtype.name,
        row_shape=merging.shape(path),
        axes=tuple(about["axes"]),
        unit=about.get("unit"),
        description=about.get("description", ""),
        fill=array.metadata.fill_value.item(),
        tile=tuple(tile),
        run=run,
        statistics=path in first.attributes.get("statistics", {}),
        attributes=_attributes(merging, path),
    )


def _attributes(merging: Merging, path: str) -> dict[str, Any]:
    """Return what all parts say of an array, and what they say of single sources, by their new numbers."""
    every = [store.array(path).attributes for store in merging.stores]
    attributes = {}
    for name, value in every[0].items():
        is_said = all(other.get(name) == value for other in every)
        if is_said and name not in ("units", "long_name", *OF_SOURCES):
            attributes[name] = value
    by_form: dict[str, dict[str, list[int]]] = {"source_dtype": {}, "source_row_shape": {}}
    missing = []
    for place, source in enumerate(merging.sources):
        own = every[source.part]
        for name, places in by_form.items():
            forms = own.get(name, ())  # one, those of sources by form, or a list of all
            for form in [forms] if isinstance(forms, str) else forms:
                if not isinstance(forms, Mapping) or source.number in forms[form]:
                    places.setdefault(form, []).append(place)
        if source.number in own.get("missing_in", ()):
            missing.append(place)
    for name, places in by_form.items():
        is_listed = any(isinstance(own.get(name), list) for own in every)
        if places:
            attributes[name] = sorted(places) if is_listed else places
    if len(by_form["source_dtype"]) == 1:
        attributes["source_dtype"] = next(iter(by_form["source_dtype"]))
    return {**attributes, "missing_in": missing} if missing else attributes


def _groups(stores: Sequence[Store]) -> dict[str, Mapping[str, Any]]:
    """Return attributes of the groups, which must say the same in all parts but for what sources share."""
    groups = [dict(_group_attributes(store)) for store in stores]
    joined: dict[str, Mapping[str, Any]] = {}
    for name in dict.fromkeys(chain.from_iterable(groups)):
        attributes = joined_attributes([own.get(name, {}) for own in groups])
        if attributes is None:
            message = f"group {name} says different things in its parts"
            raise InputError(Problem(stores[0].path, message, "convert all sources together", "compact"))
        joined[name] = attributes
    return joined


def _group_attributes(store: Store) -> Iterator[tuple[str, Mapping[str, Any]]]:
    documents = parse_document(store.read(ROOT))["consolidated_metadata"]["metadata"]
    for path, document in documents.items():
        if document["node_type"] == "group" and document.get("attributes") and path != "splits":
            yield path, document["attributes"]


def _tables(converter: StoredSources) -> list[Table]:
    """Return the tables that are read shard by shard: of large arrays, and of the main table."""
    merging = converter.merging
    first = converter.stores[0]
    main = first.attributes["main_table"]
    statistics = first.attributes.get("statistics", {})
    spanning = [path.removesuffix("offsets") for path in first.paths() if merging.spans_sources(path)]
    sizes = {}
    for path in first.paths():
        spec = merging.spec(path)
        is_bound = spec.ascending or spec.indexes is not None or merging.is_offsets(path)
        if not is_bound and not _is_json_text(path) and not path.startswith((*_SHARED, *spanning)):
            rows = sum(len(store.array(path)) for store in converter.stores)
            sizes[path] = rows * int(np.prod(merging.shape(path))) * first.array(path).dtype.itemsize
    of_main = [path for path in table_columns(first, main) if path in sizes]
    largest = max(of_main, key=sizes.__getitem__)
    counts_of: dict[str, bytes] = {}
    fields: dict[str, list[Field]] = {}
    for path, size in sizes.items():
        if size <= converter.largest_index and path != largest and path not in statistics:
            continue
        counts = merging.rows(path)[1].tobytes()
        # a table has a name of its own, and the same rows in all columns
        name = main if path.startswith(f"{main}/") else path.rpartition("/")[0]
        while name and counts_of.setdefault(name, counts) != counts:
            name = name.rpartition("/")[0]
        if name:
            fields.setdefault(name, []).append(_field(merging, path))
    return [Table(name=name, fields=tuple(columns)) for name, columns in fields.items()]


@dataclass(frozen=True, slots=True)
class _StoredInputs(Inputs):
    """Sources in parts: their sizes are those of the files that they were converted from."""

    def sizes(self) -> Int64s:
        return np.array([detail["bytes"] for detail in self.scan.sources.details], np.int64)


def _scan(converter: StoredSources, options: Mapping[str, Any]) -> Scan:
    merging = converter.merging
    tables = _tables(converter)
    rows = {table.name: merging.rows(table.fields[0].path) for table in tables}
    sizes = [store.array("sources/bytes").read().tolist() for store in converter.stores]
    sources = Sources()
    for place, (name, part, number) in enumerate(converter.sources):
        firsts = {table: int(first[place]) for table, (first, _) in rows.items()}
        sources.add(
            name=name,
            files=[f"{converter.stores[part].path}/{ROOT}"],
            rows={table: int(count[place]) for table, (_, count) in rows.items()},
            detail={"part": part, "first": firsts, "bytes": sizes[part][number]},
        )
    first = converter.stores[0]
    return Scan(
        family=first.family,
        sources=sources,
        tables=tuple(tables),
        sample_table=first.sample_table,
        main_table=first.attributes["main_table"],
        options=options,
    )


def compact(
    store: PathLike,
    destination: PathLike,
    *,
    version: int | str | None = None,
    order: Literal["version", "name"] = "version",
    split: str | None = None,
    where: Mapping[str, Condition] | None = None,
    codec: str | None = None,
    overwrite: bool = False,
    restart: bool = False,
    workers: int = 0,
    memory: str | int | None = None,
    progress: Progress | bool | None = None,
    largest_index: int = _INDEX_BYTES,
) -> Report:
    """Make one plain store of a version of a grown one, without what the version leaves out.

    Parameters
    ----------
    store
        Folder of the store.
    destination
        Folder of the new store. After a kill the same call continues there.
    version
        Number or name of the version. None: the newest.
    order
        ``"version"``: the sources in the order of the version. ``"name"``: that of one conversion of all.
    split, where
        Take the sources of this split, or whose samples fulfil these conditions, as of `unistore.Dataset`. A
        source of which a part would be taken is refused. None: all.
    codec
        As of `unistore.convert`. None: the store's.
    overwrite, restart, workers, memory, progress
        As of `unistore.convert`.
    largest_index
        Bytes of an array that is held in memory; larger ones are read shard by shard.

    Raises
    ------
    InputError
        If parts say different things of what is one in a plain store, or a source is selected in part. The
        message names it.
    """
    check = Arguments()
    check.one_of("order", order, ("version", "name"))
    check.text("split", split, none=True)
    conditions = parse_where(check, where, None)
    check.integer("largest_index", largest_index)
    check.raise_problems()
    source = require_local_path(store, "a store to compact")
    opened = open_stores(source, version)
    stores = tuple(opened.stores)
    _check_alike(stores)
    left_out = opened.removed
    if split is not None or conditions is not None:
        left_out = _not_selected(source, version, split, conditions)
    kept = kept_sources(stores, left_out, by_name=order == "name")
    if not kept:
        message = "has no source of this split that fulfils these conditions"
        raise InputError(Problem(source, message, "leave one out, or widen it", "option"))
    converter = StoredSources(stores, tuple(kept), largest_index)
    options = _options(opened, left_out)
    chosen = codec or options.pop("codec", "auto")
    settings = Settings(codec=chosen, overwrite=overwrite, restart=restart, workers=workers, memory=memory)
    scan = _scan(converter, options)
    inputs = _StoredInputs.of(converter, scan)
    states = [(one.name, stores[one.part].attributes["seal"]["digest"]) for one in kept]
    build = open_build(destination, restart=restart)
    if not build.folder.exists():
        build.check(overwrite=overwrite)
    identity = {"compact": os.path.abspath(source), "order": order, "codec": chosen}  # noqa: PTH100
    with (
        build,
        resolve_progress(progress) as callbacks,
        executor_for(settings, scan.family, callbacks) as executor,
    ):
        build.begin(identity, states, [Path(source)])
        if (report := finished_before(build)) is not None:
            return report
        build.check(overwrite=overwrite)
        build.discard_on_input_error()
        conversion = Conversion(
            inputs=inputs, build=build, settings=settings, executor=executor, progress=callbacks
        )
        return conversion.execute(None)


def _not_selected(
    path: str, version: int | str | None, split: str | None, where: Where | None
) -> tuple[tuple[int, ...], ...]:
    """Return numbers of the sources of each part that have no sample of a split and conditions."""
    left_out = []
    problems = []
    parts = open_parts([path], None, None if split is None else (split,), {}, where, version=version)
    for part in parts:
        sources = sample_sources(part.store)
        units = part.units()
        names = part.store.text("sources/path")
        samples = np.bincount(sources, minlength=len(names))
        selected = np.bincount(sources if units is None else sources[units], minlength=len(names))
        left_out.append(tuple(np.flatnonzero(selected == 0).tolist()))
        for number in np.flatnonzero((selected > 0) & (selected < samples)).tolist():
            message = f"{selected[number]:,} of its {samples[number]:,} samples are selected"
            cure = "sources are taken whole; Dataset(split=…, where=…) selects samples"
            problems.append(Problem(names[number], message, cure, "option", names[number]))
    if problems:
        raise InputError(problems)
    return tuple(left_out)


def _options(opened: OpenedStores, left_out: Sequence[Sequence[int]]) -> dict[str, Any]:
    every = [store.attributes.get("options", {}) for store in opened.stores]
    options: dict[str, Any] = dict(every[0])
    excluded = [name for name in options.get("exclude", ()) if all(name in own["exclude"] for own in every)]
    for store, removed in zip(opened.stores, left_out, strict=True):
        names = store.text("sources/path")
        excluded += [names[number] for number in removed]
    options["exclude"] = excluded
    skipped: list[Any] = []
    for own in every:
        skipped += own.get("skipped", ())
    digest = opened.stores[0].attributes["seal"]["digest"]
    digest = digest if opened.version is None else opened.version.digest
    of_values = {name: value for name, value in options.get("found", {}).items() if name != "codecs"}
    options["found"] = {**of_values, "compacted": digest}
    return {**options, "skipped": skipped} if skipped else options


def _check_alike(stores: Sequence[Store]) -> None:
    problems = []
    for store in stores:
        for path in sorted({*_joined_paths(store)} ^ {*_joined_paths(stores[0])}):
            message = f"array {path} is in some of its parts alone"
            problems.append(Problem(store.path, message, "convert all sources together", "compact"))
    for path in _joined_paths(stores[0]) if not problems else ():
        dtypes = {store.array(path).dtype.name for store in stores}
        if len(dtypes) > 1:
            message = f"is {' and '.join(sorted(dtypes))} in its parts"
            problems.append(Problem(path, message, "convert all sources together", "compact"))
    if problems:
        raise InputError(problems)


def _joined_paths(store: Store) -> list[str]:
    return [path for path in store.paths() if not _is_json_text(path)]


def _is_json_text(path: str) -> bool:
    """Return whether an array is of JSON texts that are left out where all are empty."""
    return path.rpartition("/")[0] in _JSON_TEXTS
