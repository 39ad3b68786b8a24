"""The end of a trajectory scan: index arrays of episodes, and where the next observations lie."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.hdf5.attribute_texts import attribute_arrays
from unistore.converters.protocol import Facts, Scan, Settled
from unistore.converters.trajectory.derive import frame_sizes, summary_of
from unistore.converters.trajectory.index import Index
from unistore.converters.trajectory.tables import Layout
from unistore.schemas.tables import Field, Table
from unistore.schemas.text import text_arrays
from unistore.schemas.trajectory.fields import (
    EPISODES,
    FINAL,
    JPEG_SUFFIX,
    NEXT,
    OBSERVATION,
    STEPS,
    jpeg_fields,
)

__all__ = ["possible_tables", "settle_episodes"]

SHOWN = 64 << 10
"""Bytes of JSON up to which an attribute that all sources share is also an attribute of ``episodes``."""
_USUAL = ("train", "valid", "val", "validation", "test")

Arrays = list[tuple[Field, NDArray[Any]]]


def settle_episodes(scan: Scan, layout: Layout, facts: Sequence[Facts]) -> Settled:
    """Index arrays, tables and attributes that need every source; see `Converter.settle`."""
    indexes = [Index.from_json(source.detail) for source in scan.sources]
    counts = [len(index.names) for index in indexes]
    owner = np.repeat(np.arange(len(indexes), dtype=np.int64), counts)
    summaries = [summary_of(each) for each in facts]
    lengths = np.concatenate([index.lengths for index in indexes]).astype(np.int64)
    masks = _masks(indexes, counts)
    codes, names = _splits(masks, int(owner.size))
    spilled, kept = _kept(scan, facts)
    final, following = _next_tables(layout, summaries)
    direct = tuple(table for table in (final, following) if table is not None)
    steps = tuple(int(index.offsets[-1]) for index in indexes)
    return Settled(
        arrays=[
            *_episode_arrays(indexes, owner, lengths, summaries),
            *(_mask_array(mask, listed) for mask, listed in masks.items()),
            *_attribute_texts(summaries),
            *attribute_arrays([source.detail for source in scan.sources]),
            *kept,
        ],
        spilled=spilled,
        direct=direct,
        rows={table.name: tuple(counts) if table.name == FINAL else steps for table in direct},
        samples=int(owner.size),
        splits=codes,
        split_names=names,
        sample_source=owner,
        sample_names=tuple(name for index in indexes for name in index.names),
        groups=_groups(layout, indexes[0].layout, summaries, masks),
    )


def _episode_arrays(
    indexes: Sequence[Index],
    owner: NDArray[np.int64],
    lengths: NDArray[np.int64],
    summaries: Sequence[Mapping[str, Any]],
) -> Arrays:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    arrays: Arrays = [
        (
            _field("offsets", "int64", "episode_bound", "steps of episode e are offsets[e]:offsets[e + 1]"),
            offsets,
        ),
        (_field("source", "int32", "episode", "index of the source file"), owner.astype(np.int32)),
        *text_arrays(
            f"{EPISODES}/name",
            [name for index in indexes for name in index.names],
            axis="episode",
            description="name of the episode in its source",
        ),
    ]
    cut = np.zeros(len(lengths), bool)
    first = np.cumsum([0, *(len(index.names) for index in indexes)])
    for at, summary in zip(first.tolist(), summaries, strict=False):
        cut[[at + episode for episode in summary["cut"]]] = True
    if cut.any():
        arrays.append((_field("cut", "bool", "episode", "the recording ends here, no flag marks it"), cut))
    success = [_success(attributes) for summary in summaries for attributes in summary["episodes"]]
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
    """What the sources and episodes say about themselves, one JSON object each."""
    arrays: Arrays = []
    own = [summary["source"] for summary in summaries]
    each = [attributes for summary in summaries for attributes in summary["episodes"]]
    for path, axis, values in (
        ("sources/attributes", "source", own),
        (f"{EPISODES}/attributes", "episode", each),
    ):
        if any(values):
            texts = [json.dumps(value, ensure_ascii=False, sort_keys=True) for value in values]
            arrays += text_arrays(path, texts, axis=axis, description=f"attributes of the {axis}, as JSON")
    return arrays


def _groups(
    layout: Layout,
    source_layout: str,
    summaries: Sequence[Mapping[str, Any]],
    masks: Mapping[str, NDArray[np.bool_]],
) -> dict[str, dict[str, Any]]:
    each = [
        {**summary["source"], **attributes} for summary in summaries for attributes in summary["episodes"]
    ]
    shared = {
        key: value
        for key, value in each[0].items()
        if all(key in other and other[key] == value for other in each) and len(json.dumps(value)) <= SHOWN
    }
    groups: dict[str, dict[str, Any]] = {
        EPISODES: {"attributes": shared, "source_layout": source_layout},
        STEPS: {},
    }
    if masks:
        groups[f"{EPISODES}/mask"] = {"description": "whether a mask of the source lists the episode"}
    if layout.empty:
        groups[STEPS]["empty_datasets"] = dict(layout.empty)
    return groups


def _masks(indexes: Sequence[Index], counts: Sequence[int]) -> dict[str, NDArray[np.bool_]]:
    """By name: which episodes the masks of all files list, (episodes,)."""
    masks: dict[str, NDArray[np.bool_]] = {}
    first = 0
    for index, count in zip(indexes, counts, strict=True):
        for name, numbers in index.masks.items():
            listed = masks.setdefault(name, np.zeros(sum(counts), bool))
            listed[[first + number for number in numbers]] = True
        first += count
    return masks


def _mask_array(name: str, listed: NDArray[np.bool_]) -> tuple[Field, NDArray[Any]]:
    return _field(f"mask/{name}", "bool", "episode", f"listed by mask {name} of its source"), listed


def _splits(
    masks: Mapping[str, NDArray[np.bool_]], episodes: int
) -> tuple[NDArray[np.uint8] | None, tuple[str, ...]]:
    """Splits by the masks that share no episode: all of them, or else the usual ones; None: no such masks."""
    for names in (tuple(masks), tuple(name for name in masks if name in _USUAL)):
        listed = [masks[name] for name in names]
        if listed and len(names) < 255 and np.sum(listed, axis=0).max(initial=0) <= 1:
            codes = np.full(episodes, len(names), np.uint8)
            for code, mask in enumerate(listed):
                codes[mask] = code
            rest = bool((codes == len(names)).any())
            return codes, (*names, "other") if rest else names
    return None, ()


def _kept(scan: Scan, facts: Sequence[Facts]) -> tuple[tuple[Table, ...], Arrays]:
    """Tables of kept frames with their true frame size, and their offsets."""
    tables, arrays = [], []
    for number, table in enumerate(table for table in scan.tables if table.spilled):
        sizes = np.concatenate([frame_sizes(each, number) for each in facts])
        offsets = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        key = table.name.removeprefix(f"{OBSERVATION}/").removesuffix(JPEG_SUFFIX)
        data, bounds = jpeg_fields(key, max(1, int(np.median(sizes))), **table.fields[0].attributes)
        tables.append(Table(name=table.name, fields=(data,), spilled=True))
        arrays.append((bounds, offsets))
    return tuple(tables), arrays


def possible_tables(layout: Layout, episodes: int, steps: int) -> tuple[tuple[Table, int], ...]:
    """Tables of next observations before values are compared, each with the most rows that it may have."""
    return tuple(
        (Table(name=group, fields=tuple(fields)), rows)
        for group, rows in ((FINAL, episodes), (NEXT, steps))
        if (fields := [field for key in _next_keys(layout) for field in layout.next_fields(key, group)])
    )


def _next_keys(layout: Layout) -> list[str]:
    prefix = "next_observation/"
    return [column.removeprefix(prefix) for column in layout.merged if column.startswith(prefix)]


def _next_tables(layout: Layout, summaries: Sequence[Mapping[str, Any]]) -> tuple[Table | None, Table | None]:
    """Tables of final observations (keys whose next observations follow everywhere) and of next ones."""
    final: list[Field] = []
    following: list[Field] = []
    for key in _next_keys(layout):
        if all(summary["following"].get(key, True) for summary in summaries):
            final += layout.next_fields(key, FINAL)
        else:
            following += layout.next_fields(key, NEXT)
    return (
        Table(name=FINAL, fields=tuple(final)) if final else None,
        Table(name=NEXT, fields=tuple(following)) if following else None,
    )
