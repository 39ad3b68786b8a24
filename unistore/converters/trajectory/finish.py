"""Complete a store of episodes when all sources are read: index arrays, tables of next observations."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from unistore.converters.trajectory.episodes import EpisodeIndex
from unistore.converters.trajectory.read import CUT, SIZES, keys_apart
from unistore.converters.trajectory.store_columns import FLAGS, StoredColumn, StoredColumns, next_table
from unistore.plugin import (
    AttributeCollector,
    Field,
    Finalized,
    Scan,
    SourceArrays,
    Table,
    offsets_of,
    text_arrays,
)
from unistore.schemas.trajectory.clocks import offsets_path, table_of
from unistore.schemas.trajectory.fields import (
    EPISODES,
    FINAL,
    NEXT,
    STEPS,
    IndexArray,
    bounds_of,
    extent_field,
    next_recorded_field,
    present_field,
    sample_key,
)
from unistore.system.types import Int64s, JsonObject, Shape, UInt8s

# Bytes of JSON up to which an attribute that all sources share is also an attribute of `episodes`.
_MAX_SHARED_BYTES = 64 << 10
_SPLIT_NAMES = ("train", "valid", "val", "validation", "test")


def finish_episodes(scan: Scan, prepared: Sequence[SourceArrays]) -> Finalized:
    """Return the index arrays of all episodes, the final tables and the attributes of groups."""
    stored: StoredColumns = scan.shared["columns"]
    episodes = _Episodes(_indexes(scan), list(stored.streams))
    owner = np.repeat(np.arange(len(scan.sources), dtype=np.int64), episodes.counts)
    codes, names = _splits(episodes.masks, len(owner))
    spilled, bounds = _spilled_tables(scan, prepared)
    direct, rows = _next_tables(stored, prepared, episodes)
    return Finalized(
        arrays=[
            *_episode_arrays(episodes, owner, prepared),
            *_success(scan),
            *_mask_arrays(episodes),
            *_presence_arrays(scan, stored),
            *_texts(_metadata_of_sources(scan), "sources/attributes", "source"),
            *_texts(_metadata_of_episodes(scan), f"{EPISODES}/attributes", "episode"),
            *AttributeCollector.arrays(scan.sources.details),
            *bounds,
        ],
        spilled=spilled,
        direct=direct,
        rows=rows,
        samples=len(owner),
        splits=codes,
        split_names=names,
        sample_source=owner,
        sample_names=tuple(episodes.names),
        groups=_groups(scan, stored, episodes),
    )


# What was scanned of the files, of which there may be millions: made anew by each call


def _indexes(scan: Scan) -> Iterator[EpisodeIndex]:
    return (origin.episodes for origin in scan.sources.details)


def _metadata_of_files(scan: Scan) -> Iterator[JsonObject]:
    """Yield what each file says of itself, ``source``, and of each of its ``episodes``."""
    return (json.loads(origin.metadata) for origin in scan.sources.details)


def _metadata_of_sources(scan: Scan) -> Iterator[JsonObject]:
    return (metadata["source"] for metadata in _metadata_of_files(scan))


def _metadata_of_episodes(scan: Scan) -> Iterator[JsonObject]:
    return chain.from_iterable(metadata["episodes"] for metadata in _metadata_of_files(scan))


class _Episodes:
    """Names, lengths and masks of the episodes of all sources."""

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


# Index arrays


def _field(name: str, dtype: str, axis: str, description: str) -> Field:
    return Field(path=f"{EPISODES}/{name}", dtype=dtype, axes=(axis,), description=description)


def _episode_arrays(episodes: _Episodes, owner: Int64s, prepared: Sequence[SourceArrays]) -> list[IndexArray]:
    """Return the offsets of episodes on each clock, their sources and names, and which are cut."""
    arrays: list[IndexArray] = []
    for clock, lengths in episodes.lengths.items():
        rows = "steps of episode e are"
        if clock != STEPS:
            rows = f"rows of episode e in the table of the clock {clock} are"
        path = offsets_path(clock).removeprefix(f"{EPISODES}/")
        field = _field(path, "int64", "episode_bound", f"{rows} offsets[e]:offsets[e + 1]")
        arrays.append((field, offsets_of(np.array(lengths, np.int64))))
    source = _field("source", "int32", "episode", "index of the source file")
    arrays.append((source, owner.astype(np.int32)))
    named = "name of the episode in its source"
    arrays += text_arrays(f"{EPISODES}/name", episodes.names, axis="episode", description=named)
    cut = np.zeros(len(owner), bool)
    first = offsets_of(episodes.counts).tolist()
    for number, of_source in enumerate(prepared):
        cut[first[number] + np.asarray(of_source.get(CUT, ()), np.int64)] = True
    if cut.any():
        arrays.append((_field("cut", "bool", "episode", "the recording ends here, no flag marks it"), cut))
    return arrays


def _success(scan: Scan) -> list[IndexArray]:
    """Return whether each episode succeeded, if a source says so of one."""
    values = array("b")
    for metadata in _metadata_of_episodes(scan):
        value = metadata.get("success", metadata.get("is_success"))
        values.append(int(value) if value in (0, 1) else -1)
    if max(values, default=-1) < 0:
        return []
    described = "1: the source says the episode succeeded, 0: failed, -1: it does not say"
    field = _field("success", "int8", "episode", described)
    flags = {"flag_values": [-1, 0, 1], "flag_meanings": "unknown failed succeeded"}
    return [(replace(field, attributes=flags), np.array(values, np.int8))]


def _mask_arrays(episodes: _Episodes) -> list[IndexArray]:
    """Return which episodes each mask lists."""
    arrays: list[IndexArray] = []
    for name, is_listed in episodes.masks.items():
        field = _field(f"mask/{name}", "bool", "episode", f"listed by mask {name} of its source")
        arrays.append((field, is_listed))
    return arrays


def _texts(values: Iterable[Mapping[str, object]], path: str, axis: str) -> list[IndexArray]:
    """Return values as JSON texts, or nothing if all are empty."""
    texts = (json.dumps(value, ensure_ascii=False, sort_keys=True) for value in values)
    arrays = text_arrays(path, texts, axis=axis, description=f"attributes of the {axis}, as JSON")
    (_, data), (_, offsets) = arrays
    if data.size <= len("{}") * (len(offsets) - 1):
        return []
    return [*arrays]


def _presence_arrays(scan: Scan, stored: StoredColumns) -> list[IndexArray]:
    """Return which episodes have columns, or next ones, that others lack, and how far padded rows reach."""
    arrays: list[IndexArray] = []
    for name, column in stored.columns.items():
        if name in FLAGS:
            continue
        shapes = _row_shapes(scan, name)
        key = sample_key(f"{table_of(column.clock)}/{name}")
        if None in shapes:
            is_present = np.array([shape is not None for shape in shapes])
            arrays.append((_presence_field(column, key), is_present))
        if column.has_extents:
            nothing = (0,) * len(column.form.row_shape)
            extents = np.array([nothing if shape is None else shape for shape in shapes], np.int32)
            arrays.append((extent_field(key, name, column.field.path, len(nothing)), extents))
    return arrays


def _row_shapes(scan: Scan, column: str) -> list[Shape | None]:
    """Return the row shape of a column in each episode, None if the episode lacks it."""
    shapes: list[Shape | None] = []
    for index in _indexes(scan):
        features = [variant.features.get(column) for variant in index.variants]
        of_variants = [feature and feature.row_shape for feature in features]
        shapes.extend(of_variants[episode.variant] for episode in index.episodes)
    return shapes


def _presence_field(column: StoredColumn, key: str) -> Field:
    if column.is_next:
        return next_recorded_field(key.removeprefix("next."), column.name.removeprefix("next_"))
    return present_field(key, column.name)


# Splits and attributes


def _splits(masks: Mapping[str, NDArray[np.bool_]], episodes: int) -> tuple[UInt8s | None, tuple[str, ...]]:
    """Return the splits that disjoint masks make: all masks, or those with the usual names, if any."""
    for names in (tuple(masks), tuple(name for name in masks if name in _SPLIT_NAMES)):
        count = len(names)
        split_masks = [masks[name] for name in names]
        if 0 < count < 255 and np.sum(split_masks, axis=0).max(initial=0) <= 1:
            codes = np.full(episodes, count, np.uint8)
            for code, mask in enumerate(split_masks):
                codes[mask] = code
            return codes, (*names, "other") if count in codes else names
    return None, ()


def _groups(scan: Scan, stored: StoredColumns, episodes: _Episodes) -> dict[str, JsonObject]:
    """Return the attributes of groups: what all episodes share, clocks, and datasets without values."""
    of_episodes: JsonObject = {"attributes": _shared_metadata(scan), "source_layout": episodes.layout}
    if stored.streams:
        of_episodes["clocks"] = {name: clock.to_json() for name, clock in stored.streams.items()}
    groups: dict[str, JsonObject] = {EPISODES: of_episodes, STEPS: {}}
    if episodes.masks:
        groups[f"{EPISODES}/mask"] = {"description": "whether a mask of the source lists the episode"}
    if stored.empty:
        groups[STEPS]["empty_datasets"] = dict(stored.empty)
    return groups


def _shared_metadata(scan: Scan) -> JsonObject | None:
    """Return what is said alike of every episode, if it is short. None: there is no episode."""
    shared: JsonObject | None = None
    for of_file in _metadata_of_files(scan):
        for of_episode in of_file["episodes"]:
            metadata = {**of_file["source"], **of_episode}
            if shared is None:
                shared = {key: value for key, value in metadata.items() if _is_short(value)}
            shared = {
                key: value for key, value in shared.items() if key in metadata and metadata[key] == value
            }
    return shared


def _is_short(value: object) -> bool:
    return len(json.dumps(value)) <= _MAX_SHARED_BYTES


# Tables that are known when all values were read


def _spilled_tables(
    scan: Scan, prepared: Sequence[SourceArrays]
) -> tuple[tuple[Table, ...], list[IndexArray]]:
    """Return tables of rows of any length, with chunks for their median, and the offsets of the rows."""
    tables: list[Table] = []
    arrays: list[IndexArray] = []
    spilled = [table for table in scan.tables if table.spilled]
    for number, table in enumerate(spilled):
        sizes = np.concatenate([of_source[f"{SIZES}{number}"] for of_source in prepared])
        run = max(1, int(np.median(sizes))) if len(sizes) else 1
        tables.append(replace(table, fields=(replace(table.fields[0], run=run),)))
        arrays.append((bounds_of(table.name), offsets_of(sizes)))
    return tuple(tables), arrays


def _next_tables(
    stored: StoredColumns, prepared: Sequence[SourceArrays], episodes: _Episodes
) -> tuple[tuple[Table, ...], dict[str, tuple[int, ...]]]:
    """Return the tables of next observations, and the rows of each source in them.

    Those of the last steps are stored if all others are the observations of the following steps.
    """
    apart = set[str]().union(*map(keys_apart, prepared)) if stored.following else set()
    tables: list[Table] = []
    rows: dict[str, tuple[int, ...]] = {}
    for group, counts in ((FINAL, episodes.counts), (NEXT, episodes.steps)):
        columns = [column for column in stored.following if (column.name in apart) == (group == NEXT)]
        if columns:
            tables.append(next_table(group, columns))
            rows[group] = tuple(counts)
    return tuple(tables), rows
