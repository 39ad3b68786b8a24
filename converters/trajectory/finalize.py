"""Completing a trajectory store when all sources are read: index arrays, tables of next observations."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.hdf5.attributes import attribute_arrays
from unistore.converters.protocol import Facts, Finalized, Scan
from unistore.converters.trajectory.derive import frame_sizes, summaries_of
from unistore.converters.trajectory.episode_index import EpisodeIndex
from unistore.converters.trajectory.tables import MergedColumns
from unistore.schemas.tables import Field, IndexValues, Table, offsets_of, text_arrays
from unistore.schemas.trajectory.fields import (
    EPISODES,
    FINAL,
    JPEG_SUFFIX,
    NEXT,
    OBSERVATION,
    STEPS,
    jpeg_fields,
)
from unistore.system.packed import view

MAX_SHARED_BYTES = 64 << 10
"""Bytes of JSON up to which an attribute that all sources share is also an attribute of ``episodes``."""
_NAME = "name of the episode in its source"
_SPLIT_NAMES = ("train", "valid", "val", "validation", "test")

Arrays = list[tuple[Field, IndexValues]]


def finalize_episodes(scan: Scan, layout: MergedColumns, facts: Sequence[Facts]) -> Finalized:
    """Index arrays, tables and attributes of all sources; see `Converter.finalize`."""
    episodes = _Episodes(view(scan.sources.details, EpisodeIndex.from_json))
    owner = np.repeat(np.arange(len(scan.sources), dtype=np.int64), episodes.counts)
    summaries = summaries_of(scan.sources, facts)
    masks = episodes.masks
    codes, names = _splits(masks, int(owner.size))
    spilled, kept = _kept(scan, facts)
    direct = _next_tables(layout, summaries)
    return Finalized(
        arrays=[
            *_episode_arrays(episodes, owner, summaries),
            *(
                (_field(f"mask/{name}", "bool", "episode", f"listed by mask {name} of its source"), listed)
                for name, listed in masks.items()
            ),
            *_attribute_texts(summaries),
            *attribute_arrays(scan.sources.details),
            *kept,
        ],
        spilled=spilled,
        direct=direct,
        rows={
            each.name: tuple((episodes.counts if each.name == FINAL else episodes.steps).tolist())
            for each in direct
        },
        samples=int(owner.size),
        splits=codes,
        split_names=names,
        sample_source=owner,
        sample_names=tuple(episodes.names),
        groups=_groups(layout, episodes.layout, summaries, masks),
    )


class _Episodes:
    """Layout and counts (episodes, steps) of all sources; names, lengths and masks of their episodes."""

    def __init__(self, indexes: Iterable[EpisodeIndex]) -> None:
        self.layout = ""
        self.names: list[str] = []
        counts, steps, lengths = array("q"), array("q"), array("q")
        listed: dict[str, list[int]] = {}
        for index in indexes:
            self.layout = self.layout or index.layout
            for name, numbers in index.masks.items():
                listed.setdefault(name, []).extend(len(self.names) + number for number in numbers)
            counts.append(len(index.names))
            steps.append(sum(index.lengths))
            lengths.extend(index.lengths)
            self.names += index.names
        self.counts, self.steps, self.lengths = (
            np.array(each, np.int64) for each in (counts, steps, lengths)
        )
        self.masks = {name: np.zeros(len(self.names), bool) for name in listed}
        for name, numbers in listed.items():
            self.masks[name][numbers] = True


def _episode_arrays(
    episodes: _Episodes, owner: NDArray[np.int64], summaries: Sequence[Mapping[str, Any]]
) -> Arrays:
    lengths = episodes.lengths
    described = "steps of episode e are offsets[e]:offsets[e + 1]"
    arrays: Arrays = [
        (_field("offsets", "int64", "episode_bound", described), offsets_of(lengths)),
        (_field("source", "int32", "episode", "index of the source file"), owner.astype(np.int32)),
        *text_arrays(f"{EPISODES}/name", episodes.names, axis="episode", description=_NAME),
    ]
    cut = np.zeros(len(lengths), bool)
    success = array("b")
    for summary in summaries:
        cut[[len(success) + episode for episode in summary["cut"]]] = True
        success.extend(map(_success, summary["episodes"]))
    if cut.any():
        arrays.append((_field("cut", "bool", "episode", "the recording ends here, no flag marks it"), cut))
    if any(value >= 0 for value in success):
        described = "1: the source says the episode succeeded, 0: failed, -1: it does not say"
        arrays.append((_field("success", "int8", "episode", described), np.array(success, np.int8)))
    return arrays


def _field(name: str, dtype: str, axis: str, description: str) -> Field:
    return Field(path=f"{EPISODES}/{name}", dtype=dtype, axes=(axis,), description=description)


def _success(attributes: Mapping[str, Any]) -> int:
    value = attributes.get("success", attributes.get("is_success"))
    return int(value) if value in (0, 1) else -1


def _attribute_texts(summaries: Sequence[Mapping[str, Any]]) -> Arrays:
    """Attributes of the sources and episodes, one JSON object each."""
    arrays: Arrays = []
    own = (summary["source"] for summary in summaries)
    each = (attributes for summary in summaries for attributes in summary["episodes"])
    for values, path, axis in (
        (own, "sources/attributes", "source"),
        (each, f"{EPISODES}/attributes", "episode"),
    ):
        texts = (json.dumps(value, ensure_ascii=False, sort_keys=True) for value in values)
        text = text_arrays(path, texts, axis=axis, description=f"attributes of the {axis}, as JSON")
        if text[0][1].size > len("{}") * (len(text[1][1]) - 1):
            arrays += text
    return arrays


def _groups(
    layout: MergedColumns,
    source_layout: str,
    summaries: Sequence[Mapping[str, Any]],
    masks: Mapping[str, NDArray[np.bool_]],
) -> dict[str, dict[str, Any]]:
    every = (
        {**summary["source"], **attributes} for summary in summaries for attributes in summary["episodes"]
    )
    shared = {key: value for key, value in next(every).items() if len(json.dumps(value)) <= MAX_SHARED_BYTES}
    for other in every:
        differing = [key for key, value in shared.items() if key not in other or other[key] != value]
        for key in differing:
            del shared[key]
    groups = {EPISODES: {"attributes": shared, "source_layout": source_layout}, STEPS: dict[str, Any]()}
    if masks:
        groups[f"{EPISODES}/mask"] = {"description": "whether a mask of the source lists the episode"}
    if layout.empty:
        groups[STEPS]["empty_datasets"] = dict(layout.empty)
    return groups


def _splits(
    masks: Mapping[str, NDArray[np.bool_]], episodes: int
) -> tuple[NDArray[np.uint8] | None, tuple[str, ...]]:
    """Splits from disjoint masks: all masks, or those with the usual names; None if they overlap."""
    for names in (tuple(masks), tuple(name for name in masks if name in _SPLIT_NAMES)):
        listed = [masks[name] for name in names]
        if listed and len(names) < 255 and np.sum(listed, axis=0).max(initial=0) <= 1:
            codes = np.full(episodes, len(names), np.uint8)
            for code, mask in enumerate(listed):
                codes[mask] = code
            rest = bool((codes == len(names)).any())
            return codes, (*names, "other") if rest else names
    return None, ()


def _kept(scan: Scan, facts: Sequence[Facts]) -> tuple[tuple[Table, ...], Arrays]:
    """Tables of kept frames, with chunks for their median size, and the offsets of the frames."""
    tables: list[Table] = []
    arrays: Arrays = []
    for number, table in enumerate(table for table in scan.tables if table.spilled):
        sizes = np.concatenate([frame_sizes(each, number) for each in facts])
        key = table.name.removeprefix(f"{OBSERVATION}/").removesuffix(JPEG_SUFFIX)
        data, bounds = jpeg_fields(key, max(1, int(np.median(sizes))), **table.fields[0].attributes)
        tables.append(Table(name=table.name, fields=(data,), spilled=True))
        arrays.append((bounds, offsets_of(sizes)))
    return tuple(tables), arrays


def possible_tables(layout: MergedColumns, episodes: int, steps: int) -> tuple[tuple[Table, int], ...]:
    """Possible tables of next observations, before values are compared, and their largest numbers of rows."""
    rows = {FINAL: episodes, NEXT: steps}
    tables = _tables_of(layout, dict.fromkeys(rows, layout.next_keys))
    return tuple((table, rows[table.name]) for table in tables)


def _next_tables(layout: MergedColumns, summaries: Sequence[Mapping[str, Any]]) -> tuple[Table, ...]:
    """Tables of final observations (keys whose next observations follow everywhere) and of next ones."""
    keys = layout.next_keys
    apart = {
        key
        for summary in (summaries if keys else ())
        for key in keys
        if not summary["following"].get(key, True)
    }
    final, following = [key for key in keys if key not in apart], [key for key in keys if key in apart]
    return _tables_of(layout, {FINAL: final, NEXT: following})


def _tables_of(layout: MergedColumns, keys: Mapping[str, Sequence[str]]) -> tuple[Table, ...]:
    """Tables of next observations by name, of those that have keys."""
    return tuple(
        Table(name=group, fields=tuple(field for key in each for field in layout.next_fields(key, group)))
        for group, each in keys.items()
        if each
    )
