"""Completing a trajectory store when all sources are read: index arrays, tables of next observations."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.hdf5.attributes import attribute_arrays
from unistore.converters.protocol import Facts, Finalized, Scan
from unistore.converters.trajectory.episode_index import EpisodeIndex
from unistore.converters.trajectory.read import cut_episodes, keys_apart, sizes_of_rows
from unistore.converters.trajectory.store_columns import FLAGS, StoredColumns
from unistore.schemas.tables import Field, IndexValues, Table, offsets_of, own_axes, text_arrays
from unistore.schemas.trajectory.clocks import offsets_path, table_of
from unistore.schemas.trajectory.fields import EPISODES, FINAL, NEXT, STEPS, bounds_of, sample_key
from unistore.system.packed import view

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


def _episode_arrays(episodes: _EpisodeTable, owner: NDArray[np.int64], facts: Sequence[Facts]) -> Arrays:
    arrays: Arrays = []
    for clock, lengths in episodes.lengths.items():
        place = "" if clock == STEPS else f"the table of the clock {clock} are "
        described = (
            f"rows of episode e in {place}offsets[e]:offsets[e + 1]"
            if place
            else ("steps of episode e are offsets[e]:offsets[e + 1]")
        )
        path = offsets_path(clock).removeprefix(f"{EPISODES}/")
        field = _field(path, "int64", "episode_bound", described)
        arrays.append((field, offsets_of(np.array(lengths, np.int64))))
    source = _field("source", "int32", "episode", "index of the source file")
    named = "name of the episode in its source"
    arrays.append((source, owner.astype(np.int32)))
    arrays += text_arrays(f"{EPISODES}/name", episodes.names, axis="episode", description=named)
    cut = np.zeros(len(owner), bool)
    for first, of_source in zip(offsets_of(episodes.counts).tolist(), facts, strict=False):
        cut[first + cut_episodes(of_source)] = True
    if cut.any():
        arrays.append((_field("cut", "bool", "episode", "the recording ends here, no flag marks it"), cut))
    return arrays


def _field(name: str, dtype: str, axis: str, description: str) -> Field:
    return Field(path=f"{EPISODES}/{name}", dtype=dtype, axes=(axis,), description=description)


def _of_episodes(said: Sequence[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    return chain.from_iterable(of_source["episodes"] for of_source in said)


def _success(said: Sequence[Mapping[str, Any]]) -> Arrays:
    """Return whether each episode succeeded, if a source says so of one."""
    values = array("b")
    for attributes in _of_episodes(said):
        value = attributes.get("success", attributes.get("is_success"))
        values.append(int(value) if value in (0, 1) else -1)
    if all(value < 0 for value in values):
        return []
    described = "1: the source says the episode succeeded, 0: failed, -1: it does not say"
    field = _field("success", "int8", "episode", described)
    flags = {"flag_values": [-1, 0, 1], "flag_meanings": "unknown failed succeeded"}
    return [(replace(field, attributes=flags), np.array(values, np.int8))]


def _texts(values: Iterable[Mapping[str, Any]], path: str, axis: str) -> Arrays:
    """JSON texts, or nothing if all are empty."""
    texts = (json.dumps(value, ensure_ascii=False, sort_keys=True) for value in values)
    arrays = text_arrays(path, texts, axis=axis, description=f"attributes of the {axis}, as JSON")
    (_, data), (_, offsets) = arrays
    return list(arrays) if data.size > len("{}") * (len(offsets) - 1) else []


def _differences(indexes: Sequence[EpisodeIndex], stored: StoredColumns) -> Arrays:
    """Say which episodes have each column that others lack, and how far rows of padded ones reach."""
    arrays: Arrays = []
    for name, column in stored.columns.items():
        if name in FLAGS or column.is_next:
            continue
        shapes: list[tuple[int, ...] | None] = []
        for index in indexes:
            features = [variant.features.get(name) for variant in index.variants]
            of_variants = [feature and feature.row_shape for feature in features]
            shapes.extend(of_variants[episode.variant] for episode in index.episodes)
        if None in shapes:
            key = sample_key(f"{table_of(column.clock)}/{name}")
            field = _field(f"present/{key}", "bool", "episode", f"whether the episode has {name}")
            arrays.append((field, np.array([shape is not None for shape in shapes])))
        if column.extents:
            nothing = (0,) * len(column.form.row_shape)
            extents = np.array([nothing if shape is None else shape for shape in shapes], np.int32)
            field = Field(
                path=column.extents,
                dtype="int32",
                row_shape=extents.shape[1:],
                axes=("episode", *own_axes(column.extents, "axis", 1)),
                description=f"how far rows of {name} reach; behind it is padding",
                attributes={"array": column.field.path},
            )
            arrays.append((field, extents))
    return arrays


def _groups(
    stored: StoredColumns, episodes: _EpisodeTable, said: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    shared: dict[str, Any] | None = None
    for of_source in said:
        for attributes in of_source["episodes"]:
            own = {**of_source["source"], **attributes}
            if shared is None:
                shared = {key: one for key, one in own.items() if len(json.dumps(one)) <= _MAX_SHARED_BYTES}
            for key in [key for key, value in shared.items() if key not in own or own[key] != value]:
                del shared[key]
    groups: dict[str, dict[str, Any]] = {
        EPISODES: {"attributes": shared, "source_layout": episodes.layout},
        STEPS: {},
    }
    if episodes.masks:
        groups[f"{EPISODES}/mask"] = {"description": "whether a mask of the source lists the episode"}
    if stored.streams:
        groups[EPISODES]["clocks"] = dict(stored.streams)
    if stored.empty:
        groups[STEPS]["empty_datasets"] = dict(stored.empty)
    return groups


def _splits(
    masks: Mapping[str, NDArray[np.bool_]], episodes: int
) -> tuple[NDArray[np.uint8] | None, tuple[str, ...]]:
    """Splits from disjoint masks: all masks, or those with the usual names, or None if they overlap."""
    for names in (tuple(masks), tuple(name for name in masks if name in _SPLIT_NAMES)):
        split_masks = [masks[name] for name in names]
        if split_masks and len(names) < 255 and np.sum(split_masks, axis=0).max(initial=0) <= 1:
            codes = np.full(episodes, len(names), np.uint8)
            for code, mask in enumerate(split_masks):
                codes[mask] = code
            has_unlisted = bool((codes == len(names)).any())
            return codes, (*names, "other") if has_unlisted else names
    return None, ()


def _spilled(scan: Scan, facts: Sequence[Facts]) -> tuple[tuple[Table, ...], Arrays]:
    """Return tables of rows of any length, with chunks for their median, and the offsets of the rows."""
    tables: list[Table] = []
    arrays: Arrays = []
    for number, table in enumerate(table for table in scan.tables if table.spilled):
        sizes = np.concatenate([sizes_of_rows(of_source, number) for of_source in facts])
        median = int(np.median(sizes)) if len(sizes) else 0
        tables.append(replace(table, fields=(replace(table.fields[0], run=max(1, median)),)))
        arrays.append((bounds_of(table.name), offsets_of(sizes)))
    return tuple(tables), arrays
