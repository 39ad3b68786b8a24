"""Read episodes: rows of their columns, and what conversion derives from all their values."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import missing_value
from unistore.converters.common.exclusion import ProblemCollector
from unistore.converters.common.faults import is_unreadable
from unistore.converters.files.hdf5.file import location_of
from unistore.converters.formats.images import decode, is_complete, resize
from unistore.converters.protocol import Emit, Facts, Source, Sources
from unistore.converters.trajectory.columns import Feature, flags, frame_of
from unistore.converters.trajectory.episode_index import EpisodeIndex, Span
from unistore.converters.trajectory.layouts import format_named
from unistore.converters.trajectory.options import Colour
from unistore.converters.trajectory.source import Array, EpisodeSource, to_json
from unistore.errors import InputError, Location, Problem
from unistore.schemas.trajectory.fields import FINAL, JPEG_SUFFIX, NEXT, OBSERVATION, STEPS
from unistore.system.packed import view

BLOCK = 16 << 20
"""Bytes read at a time if rows cannot be read directly into the output."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads row ranges of the tables of one source.

    `resized` has the original column by resized image column, without the table's name.
    """

    source: Source
    index: EpisodeIndex
    colour: Colour
    resized: Mapping[str, str]

    def read(self, table: str, lo: int, hi: int, out: Mapping[str, NDArray[Any]]) -> None:
        """Fill ``out`` with rows ``lo:hi`` of a table, counted inside the source."""
        with format_named(self.index.layout).open_episodes(self.source) as file:
            if table == STEPS:
                out["terminated"][...] = False  # where no dataset says so
                out["truncated"][...] = False
                out["next_valid"][...] = True
            collected = ProblemCollector()
            for span in self._final(lo, hi) if table == FINAL else self.index.spans(lo, hi):
                rows = {column: values[span.at : span.at + span.length] for column, values in out.items()}
                with collected.attempt(location_of(self.source.name, span.group)):
                    self._read_span(file, table, span, rows)
            collected.check()
            if table == STEPS:
                self._set_last_flags(lo, hi, out)

    def _final(self, lo: int, hi: int) -> Iterator[Span]:
        """The last step of each of the episodes ``lo:hi``."""
        index = self.index
        for episode in range(lo, hi):
            last = index.firsts[episode] + index.lengths[episode] - 1
            variant = index.variants[index.variant[episode]]
            yield Span(index.groups[episode], variant, last, 1, episode - lo)

    def _set_last_flags(self, lo: int, hi: int, out: Mapping[str, NDArray[Any]]) -> None:
        """Set the flags of the last step of each episode, after the recorded flags are read."""
        last = self.index.offsets[1:] - 1
        known = np.array([self.index.variants[number].knows_next for number in self.index.variant], bool)
        here = (last >= lo) & (last < hi)
        rows = last[here] - lo
        out["next_valid"][rows] = known[here]
        out["truncated"][rows] |= ~out["terminated"][rows]

    def _read_span(
        self, file: EpisodeSource, table: str, span: Span, out: Mapping[str, NDArray[Any]]
    ) -> None:
        resized: dict[str, list[NDArray[Any]]] = {}
        for column, base in self.resized.items():
            if column in out:
                resized.setdefault(base, []).append(out[column])
        whole = {column: values for column, values in out.items() if column not in self.resized}
        for column in dict.fromkeys([*whole, *resized]):
            feature = span.variant.features.get(feature_column(table, column))
            small = resized.get(column, [])
            if feature is None:
                for values in [*([whole[column]] if column in whole else []), *small]:
                    if table != STEPS or column not in ("terminated", "truncated", "next_valid"):
                        values[...] = missing_value(values.dtype.name)
                continue
            array = file.array(span.group, feature.dataset)
            for lo, hi in blocks(feature, span.length) if small else [(0, span.length)]:
                first = span.first + lo
                if column in whole:
                    full = whole[column][lo:hi]
                else:
                    full = np.empty((hi - lo, *feature.form.row_shape), np.dtype(feature.form.dtype))
                self._read_rows(array, feature, first, full)
                for values in small:
                    resize(full, values[lo:hi])

    def _read_rows(self, array: Array, feature: Feature, first: int, out: NDArray[Any]) -> None:
        """Read rows from `first` on of one array, and convert them to the column's form."""
        stop, location = first + len(out), array.location
        if feature.encoded:
            for row, frame in enumerate(frames(array, feature, first, stop)):
                out[row] = self._decoded(frame, location._replace(row=first + row), out.shape[1:])
        elif feature.kind == "flag":
            out[...] = flags(array.read(first, stop), location, first)
        elif feature.kind == "channels_first":
            for lo, hi in blocks(feature, len(out)):
                np.copyto(out[lo:hi], array.read(first + lo, first + hi).transpose(0, 2, 3, 1))
        elif array.dtype.newbyteorder("=") == out.dtype:
            array.read(first, stop, out.reshape(len(out), *array.shape[1:]))
        else:
            for lo, hi in blocks(feature, len(out)):
                rows = array.read(first + lo, first + hi)
                np.copyto(out[lo:hi], rows.reshape(hi - lo, *out.shape[1:]), casting="same_kind")

    def _decoded(self, frame: NDArray[np.uint8], location: Location, shape: tuple[int, ...]) -> NDArray[Any]:
        if not is_complete(frame):
            raise damaged_frame(frame, location)
        image = decode(frame, location, exact=True, swapped=self.colour == "swapped")
        if image.shape != shape:
            message = f"the frame is {image.shape}, the first one {shape}"
            raise InputError(Problem.at(location, message, "keep frames of mixed sizes apart", "shape"))
        return image


def damaged_frame(frame: NDArray[np.uint8], location: Location) -> InputError:
    """What to raise for a frame that is not complete."""
    message = f"a compressed frame of {frame.size} bytes that is cut short or damaged"
    return InputError(Problem.at(location, message, "get or write the file again", "damaged"))


def feature_column(table: str, column: str) -> str:
    """Name of a table's column among the features of an episode."""
    prefix = {OBSERVATION: "observation/", NEXT: "next_observation/", FINAL: "next_observation/"}
    return prefix.get(table, "") + column


def blocks(feature: Feature, length: int) -> Iterator[tuple[int, int]]:
    """Row ranges of about `BLOCK` bytes that cover ``0:length``."""
    row_bytes = int(np.prod(feature.form.row_shape, dtype=np.int64)) * np.dtype(feature.form.dtype).itemsize
    step = max(1, BLOCK // max(1, row_bytes))
    return ((lo, min(lo + step, length)) for lo in range(0, length, step))


def frames(array: Array, feature: Feature, lo: int, hi: int) -> Iterator[NDArray[np.uint8]]:
    """Compressed frames of rows ``lo:hi`` without padding.

    Raises
    ------
    InputError
        If a row cannot be read or is not a byte string.
    """
    for row in range(lo, hi):
        frame = frame_of(array, row, feature.kind)
        if frame is None:
            raise InputError(
                Problem.at(array.location._replace(row=row), "is not a compressed frame", kind="dtype")
            )
        yield frame


# Reading what depends on the values of a source: next observations, compressed frames, attributes.

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
