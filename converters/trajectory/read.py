"""Read episodes: rows of their columns, and what conversion derives from all their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import Column, missing_value
from unistore.converters.common.exclusion import ProblemCollector
from unistore.converters.formats.images import decode, is_complete, resize
from unistore.converters.plugin import Array, Opened
from unistore.converters.protocol import Emit, Facts
from unistore.converters.trajectory.columns import BLOCK, Feature, flags, frame_of
from unistore.converters.trajectory.episode_index import EpisodeIndex, Span, array_in
from unistore.converters.trajectory.options import Colour
from unistore.converters.trajectory.ragged import Items, items_in
from unistore.errors import InputError, Location, Problem
from unistore.schemas.trajectory.fields import CLOCKS, FINAL, NEXT, OBSERVATION, STEPS

_FLAGS = ("terminated", "truncated", "next_valid")
# Of the columns of tables of observations, among the features of an episode
_PREFIXES = {OBSERVATION: "observation/", NEXT: "next_observation/", FINAL: "next_observation/"}


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads row ranges of the tables of one open source.

    `resized` has the original column by resized image column, without the table's name.
    """

    opened: Opened
    index: EpisodeIndex
    colour: Colour
    resized: Mapping[str, str]

    def read(self, table: str, lo: int, hi: int, out: Mapping[str, NDArray[Any]]) -> None:
        """Fill ``out`` with rows ``lo:hi`` of a table, counted inside the source."""
        index = self.index
        if table.startswith(f"{CLOCKS}/"):
            index = index.of_clock(table.removeprefix(f"{CLOCKS}/"))
        if table == STEPS:
            out["terminated"][...] = False  # where no array says so
            out["truncated"][...] = False
            out["next_valid"][...] = True
        collected = ProblemCollector()
        for span in index.last_steps(lo, hi) if table == FINAL else index.spans(lo, hi):
            rows = {column: values[span.at : span.at + span.length] for column, values in out.items()}
            with collected.attempt(span.location(self.opened)):
                self._read_span(table, span, rows)
        collected.check()
        if table == STEPS:
            self._set_last_flags(lo, hi, out)

    def _set_last_flags(self, lo: int, hi: int, out: Mapping[str, NDArray[Any]]) -> None:
        """Set the flags of the last step of each episode, after the recorded flags are read."""
        index = self.index
        last = index.offsets[1:] - 1
        knows_next = np.array([index.variants[number].knows_next for number in index.variant], bool)
        is_inside = (last >= lo) & (last < hi)
        rows = last[is_inside] - lo
        out["next_valid"][rows] = knows_next[is_inside]
        out["truncated"][rows] |= ~out["terminated"][rows]

    def _read_span(self, table: str, span: Span, out: Mapping[str, NDArray[Any]]) -> None:
        resized: dict[str, list[NDArray[Any]]] = {}
        for column, base in self.resized.items():
            if column in out:
                resized.setdefault(base, []).append(out[column])
        whole = {column: values for column, values in out.items() if column not in self.resized}
        for column in dict.fromkeys([*whole, *resized]):
            feature = span.variant.features.get(_PREFIXES.get(table, "") + column)
            small = resized.get(column, [])
            if feature is not None:
                self._read_column(span, feature, whole.get(column), small)
            elif table != STEPS or column not in _FLAGS:
                for values in [*([whole[column]] if column in whole else []), *small]:
                    values[...] = missing_value(values.dtype.name)

    def _read_column(
        self, span: Span, feature: Feature, whole: NDArray[Any] | None, small: Sequence[NDArray[Any]]
    ) -> None:
        """Read the rows of a span into an array (None: into none), and resized ones into others."""
        array, location = span.array(self.opened, feature)
        for lo, hi in feature.blocks(span.length) if small else [(0, span.length)]:
            if whole is not None:
                rows = whole[lo:hi]
            else:
                rows = np.empty((hi - lo, *feature.row_shape), np.dtype(feature.dtype))
            self._read_rows(array, location, feature, span.first + lo, rows)
            for values in small:
                resize(rows, values[lo:hi])

    def _read_rows(
        self, array: Array, location: Location, feature: Feature, first: int, out: NDArray[Any]
    ) -> None:
        """Read rows from `first` on of one array, and convert them to the column's form."""
        stop = first + len(out)
        if feature.is_encoded:
            for row, frame in enumerate(frames(array, location, feature, first, stop)):
                out[row] = self._decoded(frame, location._replace(row=first + row), out.shape[1:])
            return
        if feature.kind == "flag":
            out[...] = flags(array[first:stop], location, first)
            return
        is_as_it_is = feature.kind != "channels_first" and array.dtype.newbyteorder("=") == out.dtype
        for lo, hi in [(0, len(out))] if is_as_it_is else feature.blocks(len(out)):
            target = out[lo:hi]
            into = target.reshape(hi - lo, *array.shape[1:]) if is_as_it_is else None
            rows = array.read(first + lo, first + hi, into)
            if rows is into:
                continue
            if feature.kind == "channels_first":
                rows = rows.transpose(0, 2, 3, 1)
            np.copyto(target, rows.reshape(target.shape), casting="same_kind")

    def _decoded(self, frame: NDArray[np.uint8], location: Location, shape: tuple[int, ...]) -> NDArray[Any]:
        if not is_complete(frame):
            raise _damaged_frame(frame, location)
        image = decode(frame, location, exact=True, swapped=self.colour == "swapped")
        if image.shape != shape:
            message = f"the frame is {image.shape}, the first one {shape}"
            raise InputError(Problem.at(location, message, "keep frames of mixed sizes apart", "shape"))
        return image


def _damaged_frame(frame: NDArray[np.uint8], location: Location) -> InputError:
    message = f"a compressed frame of {frame.size} bytes that is cut short or damaged"
    return InputError(Problem.at(location, message, "get or write the file again", "damaged"))


def frames(
    array: Array, location: Location, feature: Feature, lo: int, hi: int
) -> Iterator[NDArray[np.uint8]]:
    """Compressed frames of rows ``lo:hi`` without padding.

    Raises
    ------
    InputError
        If a row cannot be read or is not a byte string.
    """
    for row in range(lo, hi):
        frame = frame_of(array, row, feature.kind)
        if frame is None:
            message = "is not a compressed frame"
            raise InputError(Problem.at(location._replace(row=row), message, kind="dtype"))
        yield frame


# What depends on all values of a source: whether next observations are the following ones, ends, frames.

_BASE_MEMORY = 4 << 20
_CUT = "cut"
_FOLLOWS = "follows/"
_SIZES = "sizes/"


def derive_memory(index: EpisodeIndex, *, keep: bool) -> int:
    """Peak memory of `derive_source` in bytes: two copies of blocks of two columns that are compared.

    With `keep`, also a block of compressed frames, estimated by their decoded size. Of rows with any number
    of values, two blocks.
    """
    largest = 0
    for length, number in zip(index.lengths, index.variant, strict=True):
        for column, feature in index.variants[number].features.items():
            block = min(BLOCK, feature.row_bytes * length)
            if column.startswith("next_observation/"):
                largest = max(largest, 4 * block)
            elif keep and feature.is_encoded:
                largest = max(largest, block)
            elif feature.kind == "ragged":
                largest = max(largest, 2 * BLOCK)
    return largest + _BASE_MEMORY


class Spilled(NamedTuple):
    """A column with any number of values in a row: its table in the store, clock, and form of a value."""

    table: str
    column: str
    clock: str
    form: Column


def derive_source(opened: Opened, index: EpisodeIndex, spilled: Sequence[Spilled], emit: Emit) -> Facts:
    """Facts of one source, of which the values of the columns `spilled` are emitted.

    ``cut``: numbers of the episodes that no flag ends although the file has truncation flags;
    ``follows/<key>``: whether every next observation is the observation of the following step;
    ``sizes/<n>``: bytes of each tick's frame, or number of its values, in column n of `spilled`, (ticks,) i8.
    """
    facts = {_CUT: np.array(_unended(opened, index), np.int64)}
    for key, follows in _next_is_following(opened, index).items():
        facts[f"{_FOLLOWS}{key}"] = np.array(follows)
    for number, column in enumerate(spilled):
        facts[f"{_SIZES}{number}"] = _emit_column(opened, index, column, emit)
    return facts


def cut_episodes(facts: Facts) -> NDArray[np.int64]:
    """Numbers of the episodes of a source that the end of the recording cuts."""
    return np.asarray(facts.get(_CUT, ()), np.int64)


def keys_apart(facts: Facts) -> set[str]:
    """Keys of the observations whose next ones are not those of the following steps."""
    return {
        name.removeprefix(_FOLLOWS)
        for name, value in facts.items()
        if name.startswith(_FOLLOWS) and not value
    }


def sizes_of_rows(facts: Facts, number: int) -> NDArray[np.int64]:
    """Bytes of each tick's frame, or number of its values, in the n-th spilled column, (ticks,)."""
    return np.asarray(facts[f"{_SIZES}{number}"], np.int64)


def _next_is_following(opened: Opened, index: EpisodeIndex) -> dict[str, bool]:
    """By key: whether the next observation equals that of the following step in all episodes."""
    result: dict[str, bool] = {}
    last = np.zeros(int(index.offsets[-1]), bool)
    last[index.offsets[1:] - 1] = True
    collected = ProblemCollector()
    for span in index.spans(0, len(last)):
        ends = last[span.at : span.at + span.length]
        features = span.variant.features
        for column, following in features.items():
            key = column.removeprefix("next_observation/")
            if key == column or not result.get(key, True):
                continue
            now = features.get(f"observation/{key}")
            with collected.attempt(span.location(opened, following.dataset)):
                result[key] = now is not None and _values_follow(opened, span, ends, now, following)
    collected.check()
    return result


def _values_follow(
    opened: Opened, span: Span, ends: NDArray[np.bool_], now: Feature, following: Feature
) -> bool:
    if now._replace(dataset=following.dataset) != following:
        return False
    for lo, hi in now.blocks(span.length - 1):
        first = span.first + lo
        later = _row_bytes(opened, span, now, first + 1, span.first + hi + 1)
        stated_next = _row_bytes(opened, span, following, first, span.first + hi)
        if any(
            a != b and not end for a, b, end in zip(later, stated_next, ends[lo:hi].tolist(), strict=True)
        ):
            return False
    return True


def _row_bytes(opened: Opened, span: Span, feature: Feature, lo: int, hi: int) -> list[bytes]:
    array, location = span.array(opened, feature)
    if feature.is_encoded:
        return [frame.tobytes() for frame in frames(array, location, feature, lo, hi)]
    flat = array[lo:hi].reshape(hi - lo, -1).view(np.uint8)
    return [row.tobytes() for row in flat]


def _unended(opened: Opened, index: EpisodeIndex) -> list[int]:
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
            array, location = array_in(opened, group, features[column].dataset)
            marks.append(flags(array[row : row + 1], location, row).any())
        if not any(marks):
            cut.append(episode)
    return cut


def _emit_column(opened: Opened, index: EpisodeIndex, spilled: Spilled, emit: Emit) -> NDArray[np.int64]:
    """Emit the values of a column with any number of them in a row; returns their numbers."""
    index = index.of_clock(spilled.clock)
    counts = np.zeros(int(index.offsets[-1]), np.int64)
    emit(spilled.table, "data", np.empty((0, *spilled.form.row_shape), spilled.form.dtype))
    collected = ProblemCollector()
    for span in index.spans(0, len(counts)):
        feature = span.variant.features.get(spilled.column)
        if feature is None:
            continue
        with collected.attempt(span.location(opened, feature.dataset)):
            row = span.at
            for items in _items(opened, span, feature):
                counts[row : row + len(items.counts)] = items.counts
                emit(spilled.table, "data", items.values)
                row += len(items.counts)
    collected.check()
    return counts


def _items(opened: Opened, span: Span, feature: Feature) -> Iterator[Items]:
    """Yield the values, or the bytes of the frames, of the rows of a span."""
    array, location = span.array(opened, feature)
    stop = span.first + span.length
    if not feature.is_encoded:
        yield from items_in(array, span.first, stop, feature.form, location)
        return
    for lo, hi in feature.blocks(span.length):
        first = span.first + lo
        block = list(frames(array, location, feature, first, span.first + hi))
        for row, frame in enumerate(block, first):
            if not is_complete(frame):
                raise _damaged_frame(frame, location._replace(row=row))
        yield Items(np.concatenate(block), np.array([frame.size for frame in block], np.int64))
