"""Reading what depends on the values of a source: next observations, compressed frames, attributes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exclusion import ProblemCollector
from unistore.converters.common.faults import is_unreadable
from unistore.converters.files.hdf5.file import location_of
from unistore.converters.protocol import Emit, Facts, Source, Sources
from unistore.converters.trajectory.columns import Feature, flags
from unistore.converters.trajectory.episode_index import EpisodeIndex, Span
from unistore.converters.trajectory.images import is_complete
from unistore.converters.trajectory.layouts import format_named
from unistore.converters.trajectory.read import BLOCK, blocks, damaged_frame, frames
from unistore.converters.trajectory.source import EpisodeSource, to_json
from unistore.errors import InputError
from unistore.schemas.trajectory.fields import JPEG_SUFFIX, OBSERVATION
from unistore.system.packed import view

_BASE_MEMORY = 4 << 20
SUMMARY = "summary"
"""Fact, and entry of a source's ``detail`` where the scan knows it."""


def derive_memory(index: EpisodeIndex, *, keep: bool) -> int:
    """Peak memory of `derive_source` in bytes: two copies of blocks of two columns that are compared.

    With `keep`, also a block of compressed frames, estimated by their decoded size.
    """
    largest = 0
    for length, number in zip(index.lengths, index.variant, strict=True):
        for column, feature in index.variants[number].features.items():
            row = np.dtype(feature.form.dtype).itemsize * int(np.prod(feature.form.row_shape))
            if column.startswith("next_observation/"):
                largest = max(largest, 4 * min(BLOCK, row * length))
            elif keep and feature.encoded:
                largest = max(largest, min(BLOCK, row * length))
    return largest + _BASE_MEMORY


def derive_source(source: Source, index: EpisodeIndex, kept: Sequence[str], emit: Emit) -> Facts:
    """Facts of one source, of which the frames of the tables `kept` are emitted.

    ``summary`` is JSON as u1 (see `summaries_of`); ``sizes/<n>`` has the bytes of each step's frame in table
    n of `kept`, (steps,) i8.
    """
    known = source.detail.get(SUMMARY)
    if known is not None and not kept:
        return {SUMMARY: np.frombuffer(known.encode(), np.uint8)}
    layout = format_named(index.layout)
    with layout.open_episodes(source) as file:
        summary = {
            "following": _next_is_following(file, source.name, index),
            "cut": _find_unended(file, index),
            **_attributes(file, index, joined=layout.joined),
        }
        sizes = {
            f"sizes/{n}": _emit_frames(file, source.name, index, table, emit) for n, table in enumerate(kept)
        }
    return {SUMMARY: np.frombuffer(_text(summary).encode(), np.uint8), **sizes}


def summary_in_scan(file: EpisodeSource, index: EpisodeIndex, *, joined: bool) -> str | None:
    """The summary as JSON, where no values are compared for it; None where they are, or cannot be read."""
    columns = {column for variant in index.variants for column in variant.features}
    if "truncated" in columns or any(column.startswith("next_observation/") for column in columns):
        return None
    try:
        return _text({"following": {}, "cut": [], **_attributes(file, index, joined=joined)})
    except InputError as error:
        if is_unreadable(error):
            raise
        return None


def _text(summary: Mapping[str, Any]) -> str:
    return json.dumps(summary, sort_keys=True)


def summaries_of(sources: Sources, facts: Sequence[Facts]) -> Sequence[dict[str, Any]]:
    """The summary of each source: in its facts, or, where nothing was derived, from the scan.

    ``following``: by key, whether every next observation is the observation of the following step; ``cut``:
    numbers of the episodes that no flag ends although the file has truncation flags; ``source``: attributes
    of the file; ``episodes``: attributes of each episode.
    """
    if facts:
        return view(facts, lambda each: json.loads(each[SUMMARY].tobytes()))
    return view(sources.details, lambda detail: json.loads(detail[SUMMARY]))


def frame_sizes(facts: Facts, number: int) -> NDArray[np.int64]:
    """Bytes of each step's frame in the n-th table of kept frames, (steps,)."""
    return np.asarray(facts[f"sizes/{number}"], np.int64)


def _next_is_following(file: EpisodeSource, name: str, index: EpisodeIndex) -> dict[str, bool]:
    """By key: whether the next observation equals that of the following step in all episodes."""
    result: dict[str, bool] = {}
    last = np.zeros(int(index.offsets[-1]), bool)
    last[index.offsets[1:] - 1] = True
    collected = ProblemCollector()
    for span in index.spans(0, len(last)):
        ends = last[span.at : span.at + span.length]
        features = span.variant.features
        for column, following in features.items():
            if column.startswith("next_observation/"):
                key = column.removeprefix("next_observation/")
                if result.get(key, True):
                    now = features.get(f"observation/{key}")
                    with collected.attempt(location_of(name, f"{span.group}/{following.dataset}")):
                        result[key] = now is not None and _values_follow(file, span, ends, now, following)
    collected.check()
    return result


def _values_follow(
    file: EpisodeSource, span: Span, ends: NDArray[np.bool_], now: Feature, following: Feature
) -> bool:
    if (now.kind, now.form) != (following.kind, following.form):
        return False
    for lo, hi in blocks(now, span.length - 1):
        first = span.first + lo
        later = _row_bytes(file, span, now, first + 1, span.first + hi + 1)
        said = _row_bytes(file, span, following, first, span.first + hi)
        if any(a != b and not end for a, b, end in zip(later, said, ends[lo:hi].tolist(), strict=True)):
            return False
    return True


def _row_bytes(file: EpisodeSource, span: Span, feature: Feature, lo: int, hi: int) -> list[bytes]:
    array = file.array(span.group, feature.dataset)
    if feature.encoded:
        return [frame.tobytes() for frame in frames(array, feature, lo, hi)]
    flat = array.read(lo, hi).reshape(hi - lo, -1).view(np.uint8)
    return [row.tobytes() for row in flat]


def _find_unended(file: EpisodeSource, index: EpisodeIndex) -> list[int]:
    """Episodes cut by the end of the recording: no flag ends them. Only the last one of a group can be."""
    last = {group: episode for episode, group in enumerate(index.groups)}
    cut = []
    for group, episode in last.items():
        features = index.variants[index.variant[episode]].features
        if "truncated" not in features:
            continue
        row = index.firsts[episode] + index.lengths[episode] - 1
        marks = []
        for column in {"terminated", "truncated"} & features.keys():
            array = file.array(group, features[column].dataset)
            marks.append(flags(array.read(row, row + 1), array.location, row).any())
        if not any(marks):
            cut.append(episode)
    return cut


def _emit_frames(
    file: EpisodeSource, name: str, index: EpisodeIndex, table: str, emit: Emit
) -> NDArray[np.int64]:
    """Emit the compressed frames of one observation; returns their sizes."""
    column = "observation/" + table.removeprefix(f"{OBSERVATION}/").removesuffix(JPEG_SUFFIX)
    sizes = np.zeros(int(index.offsets[-1]), np.int64)
    emit(table, "data", np.empty(0, np.uint8))
    collected = ProblemCollector()
    for span in index.spans(0, len(sizes)):
        feature = span.variant.features.get(column)
        if feature is None:
            continue
        for lo, hi in blocks(feature, span.length):
            first, stop = span.first + lo, span.first + hi
            with collected.attempt(location_of(name, f"{span.group}/{feature.dataset}")):
                array = file.array(span.group, feature.dataset)
                block = list(frames(array, feature, first, stop))
                for row, frame in enumerate(block, first):
                    if not is_complete(frame):
                        raise damaged_frame(frame, array.location._replace(row=row))
                sizes[span.at + lo : span.at + hi] = [frame.size for frame in block]
                emit(table, "data", np.concatenate(block))
    collected.check()
    return sizes


def _attributes(file: EpisodeSource, index: EpisodeIndex, *, joined: bool) -> dict[str, Any]:
    """Attributes and small arrays, of the file and of each episode."""
    source = dict(file.attributes())
    if joined:
        for group, number in dict.fromkeys(zip(index.groups, index.variant, strict=True)):
            source |= _values(file, group, index.variants[number].values)
        return {"source": source, "episodes": [{} for _ in index.names]}
    episodes = [
        {**file.group_attributes(group), **_values(file, group, index.variants[number].values)}
        for group, number in zip(index.groups, index.variant, strict=True)
    ]
    return {"source": source, "episodes": episodes}


def _values(file: EpisodeSource, group: str, names: Sequence[str]) -> dict[str, Any]:
    return {name: to_json(file.array(group, name).value()) for name in names}
