"""One scan of all files with the columns of all episodes merged, and the index arrays of the store."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import padding_notes, promotion_notes
from unistore.converters.common.left_out import NOT_EVERYWHERE, left_out_notes, names_without_numbers
from unistore.converters.files.hdf5.attributes import NO_ATTRIBUTES, AttributeCollector, attribute_arrays
from unistore.converters.files.paths import size_of, split_of
from unistore.converters.protocol import Facts, Finalized, Scan, Sources
from unistore.converters.scan import Parts
from unistore.converters.trajectory.columns import VIDEO
from unistore.converters.trajectory.names import is_of_episodes
from unistore.converters.trajectory.options import TrajectoryOptions
from unistore.converters.trajectory.read import (
    CUT,
    DERIVING,
    ROWS_READ,
    SIZES,
    keys_apart,
)
from unistore.converters.trajectory.scan import EpisodeIndex, EpisodeOrigin, ScannedFile
from unistore.converters.trajectory.store_columns import FLAGS, StoredColumns, merge_columns
from unistore.errors import InputError, Problem, first_few
from unistore.schemas.tables import Field, IndexValues, Table, offsets_of, text_arrays
from unistore.schemas.trajectory.clocks import offsets_path, table_of
from unistore.schemas.trajectory.fields import (
    EPISODES,
    FAMILY_NAME,
    FINAL,
    NEXT,
    STEPS,
    bounds_of,
    extent_field,
    next_recorded_field,
    present_field,
    sample_key,
)
from unistore.system.hints import Int64s, JsonObject, Shape, UInt8s
from unistore.system.packed import view
from unistore.system.sizes import count_of

_LISTED = 20


def gather_files(parts: Parts, scanned: Sequence[ScannedFile], options: TrajectoryOptions) -> Scan:
    """Merge the columns of all episodes, and use only the notes of files without episodes."""
    used = [one for one in scanned if one.index.episodes]
    named = [(name, one) for name, one in zip(parts.names, scanned, strict=True) if one.index.episodes]
    layouts: dict[str, str] = {}
    for name, one in named:
        layouts.setdefault(one.index.layout, name)
    stored, problems = merge_columns([(name, one.index) for name, one in named], options)
    if len(layouts) > 1:
        listed = ", ".join(f"{name} is {layout}" for layout, name in layouts.items())
        message = f"hold different layouts: {listed}"
        problems.insert(0, Problem(f"{len(parts)} files", message, "convert them apart", "layout"))
    if stored.streams:
        problems += chain.from_iterable(one.clock_problems for one in used)
    if not problems:
        values = {value for one in used for variant in one.index.variants for value in variant.values}
        problems = _unused(stored, values, options) + ([] if used else _no_episodes(scanned))
    if problems:
        raise InputError(problems)
    tables = stored.tables()
    spilled = {table.name: table.fields[0].row_bytes for table in tables if table.spilled}
    texts, sources = AttributeCollector(), Sources()
    for name, files, one in zip(parts.names, parts.files(), scanned, strict=True):
        if one.index.episodes:
            index = one.index.stored_with(stored.clocks)
            attributes = NO_ATTRIBUTES
            if one.attributes is not None:
                attributes = texts.text(name, one.attributes, _is_stored(index))
            reading = one.reading + ROWS_READ * max(index.row_sizes(), default=0)
            sources.add(
                name=name,
                files=(*files, *one.files),
                rows={table.name: sum(index.lengths(table.name)) for table in tables if not table.spilled},
                split=split_of(name),
                detail=EpisodeOrigin(
                    files=(name,),
                    formats=(one.format,),
                    episodes=index,
                    facts=one.facts,
                    attributes=attributes,
                ),
                memory=DERIVING + reading,
                reading=reading,
            )
    nbytes = sum(map(size_of, sources.files())) if spilled else 0
    episodes = sum(len(one.index.episodes) for one in used)
    steps = sum(one.index.steps for one in used)
    # Tables of next observations are possible until values are compared.
    possible = {FINAL: episodes, NEXT: steps}
    counted = f"{count_of(episodes, 'episode')}, {count_of(steps, 'step')} from {count_of(len(used), 'file')}"
    return Scan(
        family=FAMILY_NAME,
        sources=sources,
        tables=tables,
        sample_table=EPISODES,
        main_table=STEPS,
        options=options.recorded(),
        notes=(
            f"{next(iter(layouts))}: {counted}",
            *_notes(used, stored, options),
            *texts.notes(),
            *chain.from_iterable(one.notes for one in scanned),
        ),
        estimated_rows={name: nbytes // len(spilled) // size for name, size in spilled.items()},
        possible=tuple(
            (table, possible[table.name])
            for table in stored.next_tables(dict.fromkeys(possible, stored.following))
        ),
        needs_facts=any(one.index.must_be_compared for one in used),
        shared={"columns": stored},
    )


def _notes(used: Sequence[ScannedFile], stored: StoredColumns, options: TrajectoryOptions) -> Iterator[str]:
    left_out: dict[str, str] = {}
    values: dict[str, None] = {}
    encoded: dict[str, None] = {}
    for one in used:
        left_out |= dict(one.left_out)
        for variant in one.index.variants:
            values |= dict.fromkeys(variant.values)
            encoded |= dict.fromkeys(name for name, own in variant.features.items() if own.is_encoded)
    for role in ("action", "reward"):
        if role not in stored.columns:
            yield f"no {role}: no column of the store is one; --map {role}=DATASET names it"
    for clock in dict.fromkeys(stored.clocks.values()):
        if clock != STEPS:
            columns = ", ".join(column for column, own in stored.clocks.items() if own == clock)
            told = stored.streams[clock]
            times = f"times in {told['unit']}" if "unit" in told else f"{told['rate']:g} rows a second"
            yield f"clock {clock}: {columns}; {times}"
    if stored.empty:
        listed = ", ".join(stored.empty)
        yield f"(T, 0) datasets hold no values and are only named in attributes: {listed}"
    if values:
        listed = first_few(names_without_numbers(values), _LISTED)
        yield f"not per step, so kept as attributes and not as columns: {listed}"
    yield from left_out_notes([*left_out.items(), *_datasets_left_out(stored)])
    padded = {name: column.form for name, column in stored.columns.items() if column.has_extents}
    yield from padding_notes(padded)
    yield from promotion_notes({name: column.form for name, column in stored.columns.items()})
    if listed := ", ".join(name for name, own in stored.columns.items() if own.keeps and VIDEO in own.kinds):
        yield f"packets of video ({listed}) kept bit for bit: whoever reads them needs PyAV"
    elif options.video == "keep":
        yield "--video keep: no source has video"
    if listed := ", ".join(column for column in encoded if column in stored.columns):
        taken = f"compressed frames ({listed}) taken as {options.colour}; if red and blue are exchanged, "
        yield f"{taken}choose the other --colour (standard, swapped)"
    elif options.images == "keep":
        yield "--images keep: no image is compressed in the sources, all are stored as arrays"


def _datasets_left_out(stored: StoredColumns) -> Iterator[tuple[str, str]]:
    # Datasets of columns that are not stored, or in another size alone, with the reason
    for name, datasets in stored.datasets.items():
        column = stored.columns.get(name)
        if column is None:
            yield from ((dataset, NOT_EVERYWHERE) for dataset in datasets)
        elif column.alone and column.is_resized:
            reason = f"being stored as {column.size} × {column.size} alone"
            yield from ((dataset, reason) for dataset in datasets)


def _unused(stored: StoredColumns, values: Collection[str], options: TrajectoryOptions) -> list[Problem]:
    # Problems of datasets that options name and no episode has
    used = set[str]().union(*stored.datasets.values())
    groups = {dataset.rpartition("/")[0] for dataset in used}
    known = {*used, *groups, *stored.columns, *stored.clocks.values(), STEPS}
    problems = []
    for name, rate in options.rate.items():
        if name.strip("/") not in known:
            message = "no dataset, group or clock has this name"
            problems.append(Problem(f"--rate {name}={rate}", message, kind="missing"))
    for name, path in options.map.items():
        if path.strip("/") not in used and not (is_of_episodes(name) and path.strip("/") in values):
            message = "no episode has a per-step dataset of this name"
            problems.append(Problem(f"--map {name}={path}", message, kind="missing"))
    return problems


def _is_stored(index: EpisodeIndex) -> Callable[[str], bool]:
    # Function that tells whether the store has a dataset, or any dataset in a group. True for the root
    stored = {""}
    for dataset in index.datasets():
        path = dataset
        while path:
            stored.add(path)
            path = path.rpartition("/")[0]
    return stored.__contains__


def _no_episodes(scanned: Sequence[ScannedFile]) -> list[Problem]:
    notes = islice(chain.from_iterable(one.notes for one in scanned), _LISTED)
    name = count_of(len(scanned), "file")
    return [Problem(name, "; ".join(["no episode is left", *notes]), kind="empty")]


# Completing a trajectory store when all sources are read: index arrays, tables of next observations.

# Bytes of JSON up to which an attribute that all sources share is also an attribute of `episodes`.
_MAX_SHARED_BYTES = 64 << 10
_SPLIT_NAMES = ("train", "valid", "val", "validation", "test")

Arrays = list[tuple[Field, IndexValues]]


def finalize_episodes(scan: Scan, stored: StoredColumns, facts: Sequence[Facts]) -> Finalized:
    """Index arrays, tables and attributes of all sources, see `Converter.finalize`."""
    details = scan.sources.details
    episodes = _EpisodeTable(view(details, lambda origin: origin.episodes), list(stored.streams))
    said = view(details, lambda origin: json.loads(origin.facts))
    owner = np.repeat(np.arange(len(scan.sources), dtype=np.int64), episodes.counts)
    codes, names = _splits(episodes.masks, int(owner.size))
    spilled, bounds = _spilled(scan, facts)
    apart = set[str]().union(*map(keys_apart, facts)) if stored.following else set()
    direct = stored.next_tables(
        {
            FINAL: [column for column in stored.following if column.name not in apart],
            NEXT: [column for column in stored.following if column.name in apart],
        }
    )
    rows = {FINAL: episodes.counts, NEXT: episodes.steps}
    return Finalized(
        arrays=[
            *_episode_arrays(episodes, owner, facts),
            *_success(said),
            *(
                (_field(f"mask/{name}", "bool", "episode", f"listed by mask {name} of its source"), is_listed)
                for name, is_listed in episodes.masks.items()
            ),
            *_differences(view(details, lambda origin: origin.episodes), stored),
            *_texts((of_source["source"] for of_source in said), "sources/attributes", "source"),
            *_texts(_of_episodes(said), f"{EPISODES}/attributes", "episode"),
            *attribute_arrays(view(details, lambda origin: origin.attributes)),
            *bounds,
        ],
        spilled=spilled,
        direct=direct,
        rows={table.name: tuple(rows[table.name]) for table in direct},
        samples=int(owner.size),
        splits=codes,
        split_names=names,
        sample_source=owner,
        sample_names=tuple(episodes.names),
        groups=_groups(stored, episodes, said),
    )


class _EpisodeTable:
    # Names, lengths and masks of the episodes of all sources
    def __init__(self, indexes: Iterable[EpisodeIndex], clocks: Sequence[str]) -> None:
        self.layout = ""
        self.names: list[str] = []
        self.counts: list[int] = []  # episodes of each source
        self.steps: list[int] = []  # steps of each source
        self.lengths = {clock: array("q") for clock in (STEPS, *clocks)}  # rows of each episode, by clock
        listed: dict[str, list[int]] = {}
        for index in indexes:
            self.layout = index.layout
            for name, numbers in index.masks.items():
                listed.setdefault(name, []).extend(len(self.names) + number for number in numbers)
            self.counts.append(len(index.episodes))
            self.steps.append(index.steps)
            for episode in index.episodes:
                self.names.append(episode.name)
                for clock, lengths in self.lengths.items():
                    lengths.append(episode.rows_on(clock))
        self.masks = {name: np.zeros(len(self.names), bool) for name in listed}
        for name, numbers in listed.items():
            self.masks[name][numbers] = True


def _episode_arrays(episodes: _EpisodeTable, owner: Int64s, facts: Sequence[Facts]) -> Arrays:
    arrays: Arrays = []
    for clock, lengths in episodes.lengths.items():
        rows = "steps of episode e are"
        if clock != STEPS:
            rows = f"rows of episode e in the table of the clock {clock} are"
        path = offsets_path(clock).removeprefix(f"{EPISODES}/")
        field = _field(path, "int64", "episode_bound", f"{rows} offsets[e]:offsets[e + 1]")
        arrays.append((field, offsets_of(np.array(lengths, np.int64))))
    source = _field("source", "int32", "episode", "index of the source file")
    named = "name of the episode in its source"
    arrays.append((source, owner.astype(np.int32)))
    arrays += text_arrays(f"{EPISODES}/name", episodes.names, axis="episode", description=named)
    cut = np.zeros(len(owner), bool)
    for first, of_source in zip(offsets_of(episodes.counts).tolist(), facts, strict=False):
        cut[first + np.asarray(of_source.get(CUT, ()), np.int64)] = True
    if cut.any():
        arrays.append((_field("cut", "bool", "episode", "the recording ends here, no flag marks it"), cut))
    return arrays


def _field(name: str, dtype: str, axis: str, description: str) -> Field:
    return Field(path=f"{EPISODES}/{name}", dtype=dtype, axes=(axis,), description=description)


def _of_episodes(said: Sequence[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    return chain.from_iterable(of_source["episodes"] for of_source in said)


def _success(said: Sequence[Mapping[str, Any]]) -> Arrays:
    # Return whether each episode succeeded, if a source says so of one
    values = array("b")
    for attributes in _of_episodes(said):
        value = attributes.get("success", attributes.get("is_success"))
        values.append(int(value) if value in (0, 1) else -1)
    if max(values, default=-1) < 0:
        return []
    described = "1: the source says the episode succeeded, 0: failed, -1: it does not say"
    field = _field("success", "int8", "episode", described)
    flags = {"flag_values": [-1, 0, 1], "flag_meanings": "unknown failed succeeded"}
    return [(replace(field, attributes=flags), np.array(values, np.int8))]


def _texts(values: Iterable[Mapping[str, Any]], path: str, axis: str) -> Arrays:
    # JSON texts, or nothing if all are empty
    texts = (json.dumps(value, ensure_ascii=False, sort_keys=True) for value in values)
    arrays = text_arrays(path, texts, axis=axis, description=f"attributes of the {axis}, as JSON")
    (_, data), (_, offsets) = arrays
    return list(arrays) if data.size > len("{}") * (len(offsets) - 1) else []


def _differences(indexes: Sequence[EpisodeIndex], stored: StoredColumns) -> Arrays:
    # Say which episodes have each column, or its next ones, that others lack, and how far padded rows reach
    arrays: Arrays = []
    for name, column in stored.columns.items():
        if name in FLAGS:
            continue
        shapes: list[Shape | None] = []
        for index in indexes:
            features = [variant.features.get(name) for variant in index.variants]
            of_variants = [feature and feature.row_shape for feature in features]
            shapes.extend(of_variants[episode.variant] for episode in index.episodes)
        key = sample_key(f"{table_of(column.clock)}/{name}")
        if None in shapes:
            is_present = np.array([shape is not None for shape in shapes])
            field = present_field(key, name)
            if column.is_next:
                field = next_recorded_field(key.removeprefix("next."), name.removeprefix("next_"))
            arrays.append((field, is_present))
        if column.has_extents:
            nothing = (0,) * len(column.form.row_shape)
            extents = np.array([nothing if shape is None else shape for shape in shapes], np.int32)
            arrays.append((extent_field(key, name, column.field.path, len(nothing)), extents))
    return arrays


def _groups(
    stored: StoredColumns, episodes: _EpisodeTable, said: Sequence[Mapping[str, Any]]
) -> dict[str, JsonObject]:
    shared: JsonObject | None = None
    for of_source in said:
        for attributes in of_source["episodes"]:
            own = {**of_source["source"], **attributes}
            if shared is None:
                shared = {key: one for key, one in own.items() if len(json.dumps(one)) <= _MAX_SHARED_BYTES}
            shared = {key: one for key, one in shared.items() if key in own and own[key] == one}
    of_episodes: JsonObject = {"attributes": shared, "source_layout": episodes.layout}
    if stored.streams:
        of_episodes["clocks"] = dict(stored.streams)
    groups: dict[str, JsonObject] = {EPISODES: of_episodes, STEPS: {}}
    if episodes.masks:
        groups[f"{EPISODES}/mask"] = {"description": "whether a mask of the source lists the episode"}
    if stored.empty:
        groups[STEPS]["empty_datasets"] = dict(stored.empty)
    return groups


def _splits(masks: Mapping[str, NDArray[np.bool_]], episodes: int) -> tuple[UInt8s | None, tuple[str, ...]]:
    # Splits from disjoint masks: all masks, or those with the usual names, or None if they overlap
    for names in (tuple(masks), tuple(name for name in masks if name in _SPLIT_NAMES)):
        count = len(names)
        split_masks = [masks[name] for name in names]
        if 0 < count < 255 and np.sum(split_masks, axis=0).max(initial=0) <= 1:
            codes = np.full(episodes, count, np.uint8)
            for code, mask in enumerate(split_masks):
                codes[mask] = code
            return codes, (*names, "other") if count in codes else names
    return None, ()


def _spilled(scan: Scan, facts: Sequence[Facts]) -> tuple[tuple[Table, ...], Arrays]:
    # Tables of rows of any length, with chunks for their median, and the offsets of the rows
    tables: list[Table] = []
    arrays: Arrays = []
    for number, table in enumerate(table for table in scan.tables if table.spilled):
        sizes = np.concatenate([of_source[f"{SIZES}{number}"] for of_source in facts])
        run = max(1, int(np.median(sizes))) if len(sizes) else 1
        tables.append(replace(table, fields=(replace(table.fields[0], run=run),)))
        arrays.append((bounds_of(table.name), offsets_of(sizes)))
    return tuple(tables), arrays
