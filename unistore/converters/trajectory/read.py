"""Read episodes: rows of their columns, and what conversion derives from all their values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unistore.converters.formats.images import decode, is_complete, resize
from unistore.converters.formats.packets import NO_VIDEO
from unistore.converters.formats.ragged import RaggedItems, items_in
from unistore.converters.formats.video import Frames
from unistore.converters.trajectory.columns import (
    BLOCK,
    RAGGED,
    VIDEO,
    Feature,
    flags,
    frame_of,
    observed_now,
)
from unistore.converters.trajectory.episodes import EpisodeIndex, EpisodeOrigin, Span
from unistore.converters.trajectory.options import Colour
from unistore.converters.trajectory.store_columns import FLAGS, ArrayOf, StoredColumn
from unistore.errors import InputError, Location, Problem
from unistore.plugin import (
    Array,
    Emit,
    Openable,
    OpenFile,
    ProblemCollector,
    Scan,
    SourceArrays,
    advanced,
    missing_value,
)
from unistore.schemas.trajectory.clocks import table_of
from unistore.schemas.trajectory.fields import FINAL, NEXT, STEPS
from unistore.system.types import AnyArray, Int64s, Shape, UInt8s

ROWS_READ = 3  # rows that reading has beside its blocks: a frame as a file, decoded and with red first


@contextmanager
def _open(scan: Scan, source: int, file: Openable) -> Iterator[tuple[EpisodeIndex, OpenFile]]:
    """Open the file of a source, and yield its episodes and the file. Problems name the episode."""
    origin: EpisodeOrigin = scan.sources.details[source]
    with origin.episodes.episodes_in_problems(origin.files[0]), file.open() as opened:
        yield origin.episodes, opened


def read_rows(
    colour: Colour,
    scan: Scan,
    source: int,
    file: Openable,
    table: str,
    lo: int,
    hi: int,
    out: Mapping[str, AnyArray],
) -> None:
    """Read rows ``lo:hi`` of a source into the arrays of a table."""
    arrays = scan.shared["columns"].arrays_of(table)
    with _open(scan, source, file) as (index, opened):
        Reader(opened, index, colour, arrays).read(table, lo, hi, out)


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads row ranges of the tables of one open source. `arrays` says what those of the table are."""

    opened: OpenFile
    index: EpisodeIndex
    colour: Colour
    arrays: Mapping[str, ArrayOf]

    def read(self, table: str, lo: int, hi: int, out: Mapping[str, AnyArray]) -> None:
        """Fill ``out`` with rows ``lo:hi`` of a table, counted inside the source."""
        if table == STEPS:
            out["terminated"][...] = False  # where no array says so
            out["truncated"][...] = False
            out["next_valid"][...] = True
        collected = ProblemCollector()
        spans = self.index.last_steps(lo, hi) if table == FINAL else self.index.spans(table, lo, hi)
        last = self.index.offsets[1:] - 1 - lo if table == NEXT else np.empty(0, np.int64)
        for span in spans:
            rows = {column: values[span.at : span.at + span.length] for column, values in out.items()}
            with collected.attempt(span.location(self.opened)):
                self._read_span(span, rows)
                if table == NEXT:
                    self._read_following(span, last, rows)
        collected.check()
        if table == STEPS:
            self._set_last_flags(lo, hi, out)

    def _set_last_flags(self, lo: int, hi: int, out: Mapping[str, AnyArray]) -> None:
        """Set the flags of the last step of each episode, after the recorded flags are read."""
        index = self.index
        last = index.offsets[1:] - 1
        knows_next = np.array(
            [index.variants[episode.variant].knows_next for episode in index.episodes], bool
        )
        is_inside = (last >= lo) & (last < hi)
        rows = last[is_inside] - lo
        out["next_valid"][rows] = knows_next[is_inside]
        out["truncated"][rows] |= ~out["terminated"][rows]

    def _read_span(self, span: Span, out: Mapping[str, AnyArray]) -> None:
        whole: dict[str, AnyArray] = {}
        resized: dict[str, AnyArray] = {}
        for name, values in out.items():
            column, is_resized = self.arrays.get(name, ArrayOf(name))
            if column in span.variant.features:
                row_shape = span.variant.features[column].row_shape
                (resized if is_resized else whole)[column] = (
                    values if is_resized else _unpadded(values, row_shape)
                )
            elif name not in FLAGS:
                values[...] = missing_value(values.dtype.name)
        for column in dict.fromkeys([*whole, *resized]):
            self._read_column(span, span.variant.features[column], whole.get(column), resized.get(column))

    def _read_following(self, span: Span, last: Int64s, out: Mapping[str, AnyArray]) -> None:
        """Fill next observations that the episodes of a span lack with those of the following steps."""
        for name, values in out.items():
            column, is_resized = self.arrays[name]
            now = observed_now(span.variant.features, column)
            if now is None or now.clock != STEPS:
                continue
            for part in span.following(last):
                rows = values[part.at - span.at :][: part.length]
                whole = None if is_resized else _unpadded(rows, now.row_shape)
                self._read_column(part, now, whole, rows if is_resized else None)

    def _read_column(
        self, span: Span, feature: Feature, whole: AnyArray | None, resized: AnyArray | None
    ) -> None:
        """Read the rows of a span as they are, and resized (None: not wanted)."""
        array, location = span.array(self.opened, feature)
        if resized is None:
            if whole is not None:
                self._read_rows(array, location, feature, span.first, whole)
            return
        for lo, hi in feature.blocks(0, span.length):
            rows = np.empty((hi - lo, *feature.row_shape), feature.dtype) if whole is None else whole[lo:hi]
            self._read_rows(array, location, feature, span.first + lo, rows)
            resize(rows, resized[lo:hi])

    def _read_rows(
        self, array: Array, location: Location, feature: Feature, first: int, out: AnyArray
    ) -> None:
        """Read rows from `first` on of one array, and convert them to the column's form."""
        stop = first + len(out)
        if feature.is_encoded:
            for row, frame in enumerate(frames(array, location, feature, first, stop)):
                out[row] = self._decoded(frame, location._replace(row=first + row), out.shape[1:])
                advanced(out[row].nbytes)
            return
        is_as_it_is = feature.kind in ("plain", "squeezed") and array.dtype.newbyteorder("=") == out.dtype
        is_as_it_is = is_as_it_is and out.flags.c_contiguous  # no part of rows that are padded
        together = array.chunk_rows or (stop if is_as_it_is else 1)
        for lo, hi in feature.blocks(first, stop, together):
            target = out[lo - first : hi - first]
            into = target.reshape(hi - lo, *array.shape[1:]) if is_as_it_is else None
            rows = array.read(lo, hi, into)
            advanced(target.nbytes)
            if rows is into:
                continue
            if feature.kind == "flag":
                rows = flags(rows, location, lo)
            elif feature.kind == "channels_first":
                rows = rows.transpose(0, 2, 3, 1)
            np.copyto(target, rows.reshape(target.shape), casting="same_kind")

    def _decoded(self, frame: UInt8s, location: Location, shape: Shape) -> AnyArray:
        if not is_complete(frame):
            raise _damaged_frame(frame, location)
        image = decode(frame, location, exact=True, swapped=self.colour == "swapped")
        if image.shape != shape:
            message = f"the frame has shape {image.shape}, but the first one has {shape}"
            raise InputError.at(
                location, message, "save frames of different sizes in separate datasets", "shape"
            )
        return image


def _unpadded(values: AnyArray, row_shape: Shape) -> AnyArray:
    """Return the part of rows that an episode has. Around it they become zero."""
    if values.shape[1:] == row_shape:
        return values
    values[...] = 0
    part: AnyArray = values[(slice(None), *map(slice, row_shape))]
    return part


def _damaged_frame(frame: UInt8s, location: Location) -> InputError:
    message = f"the compressed frame of {frame.size:,} bytes is truncated or damaged"
    return InputError.at(location, message, "copy or write the file again", "damaged")


def frames(array: Array, location: Location, feature: Feature, lo: int, hi: int) -> Iterator[UInt8s]:
    """Return compressed frames of rows ``lo:hi`` without padding."""
    for row in range(lo, hi):
        frame = frame_of(array, row, feature.kind)
        if frame is None:
            message = "is not a compressed frame"
            raise InputError(Problem.at(location._replace(row=row), message, kind="dtype"))
        yield frame


# What depends on all values of a source: whether next observations are the following ones, ends, frames.

# Bytes at the peak of `prepare_source`: two copies of blocks of two columns, as of next observations
PREPARING = 4 * BLOCK + (4 << 20)
CUT = "cut"
_FOLLOWS = "follows/"
SIZES = "sizes/"


def prepare_source(scan: Scan, source: int, file: Openable, emit: Emit) -> SourceArrays:
    """Return arrays for the index of a source, of which the values of spilled columns are emitted."""
    spilled = scan.shared["columns"].spilled
    if not spilled and not scan.sources.details[source].episodes.must_be_compared:
        return {}
    with _open(scan, source, file) as (index, opened):
        return derive_source(opened, index, spilled, emit)


def derive_source(
    opened: OpenFile, index: EpisodeIndex, spilled: Sequence[StoredColumn], emit: Emit
) -> SourceArrays:
    """Read one source once, emit the values of the columns `spilled`, and return arrays for the index.

    Returns
    -------
    mapping of str to array
        ``cut``: numbers of the episodes that no flag ends although the file has truncation flags.
        ``follows/<key>``: whether every next observation equals the observation of the following step.
        ``sizes/<n>`` (ticks,) int64: bytes of the frame, or number of values, of each tick in column n of
        `spilled`.
    """
    prepared = {CUT: np.array(_unended(opened, index), np.int64)}
    for key, follows in _next_is_following(opened, index).items():
        prepared[f"{_FOLLOWS}{key}"] = np.array(follows)
    for number, column in enumerate(spilled):
        prepared[f"{SIZES}{number}"] = _emit_column(opened, index, column, emit)
    return prepared


def keys_apart(prepared: SourceArrays) -> set[str]:
    """Return the names of the next observations that are not those of the following steps."""
    follows = {
        name.removeprefix(_FOLLOWS): value for name, value in prepared.items() if name.startswith(_FOLLOWS)
    }
    return {column for column, value in follows.items() if not value}


def _next_is_following(opened: OpenFile, index: EpisodeIndex) -> dict[str, bool]:
    """Return by column whether next observations equal those of the following steps in all episodes."""
    result: dict[str, bool] = {}
    last = np.zeros(index.steps, bool)
    last[index.offsets[1:] - 1] = True
    collected = ProblemCollector()
    for span in index.spans(STEPS, 0, len(last)):
        ends = last[span.at : span.at + span.length]
        features = span.variant.features
        for column, following in features.items():
            if not column.startswith("next_observation/") or not result.get(column, True):
                continue
            if following.kind in RAGGED:
                continue
            now = features.get(column.removeprefix("next_"))
            with collected.attempt(span.location(opened, following.dataset)):
                result[column] = now is not None and _values_follow(opened, span, ends, now, following)
    collected.check()
    return result


def _values_follow(
    opened: OpenFile, span: Span, ends: NDArray[np.bool_], now: Feature, following: Feature
) -> bool:
    if now._replace(dataset=following.dataset) != following:
        return False

    def rows(feature: Feature, lo: int, hi: int) -> Iterable[AnyArray]:
        array, location = span.array(opened, feature)
        return frames(array, location, feature, lo, hi) if feature.is_encoded else array[lo:hi]

    for lo, hi in now.blocks(span.first, span.first + span.length - 1):
        pairs = zip(rows(now, lo + 1, hi + 1), rows(following, lo, hi), strict=True)
        for (later, stated_next), is_end in zip(pairs, ends[lo - span.first :], strict=False):
            if not is_end and later.tobytes() != stated_next.tobytes():
                return False
    return True


def _unended(opened: OpenFile, index: EpisodeIndex) -> list[int]:
    """Return the episodes that no flag ends, although the file has flags of truncation."""
    # The end of the recording, or a column of episodes, ends them
    cut = []
    for number, span in enumerate(index.last_steps(0, len(index.episodes))):
        features = span.variant.features
        is_ended = "truncated" not in features
        for column in {"terminated", "truncated"} & features.keys() if not is_ended else ():
            array, location = span.array(opened, features[column])
            is_ended |= bool(flags(array[span.first : span.first + 1], location, span.first).any())
        if not is_ended:
            cut.append(number)
    return cut


def _emit_column(opened: OpenFile, index: EpisodeIndex, column: StoredColumn, emit: Emit) -> Int64s:
    """Emit the values of a column with any number of them in a row, and return their numbers."""
    table, form = column.spilled_table, column.value_form
    clock_table = table_of(column.clock)
    counts = np.zeros(sum(index.lengths(clock_table)), np.int64)
    emit(table, "data", np.empty((0, *form.row_shape), form.dtype))
    last = index.offsets[1:] - 1
    collected = ProblemCollector()
    for span in index.spans(clock_table, 0, len(counts)):
        feature = span.variant.features.get(column.name)
        row = span.at
        parts = [span]
        if feature is None:
            feature = observed_now(span.variant.features, column.name)
            parts = list(span.following(last)) if feature is not None else []
        if feature is None:
            if column.is_kept and VIDEO in column.kinds:
                counts[row] = NO_VIDEO.size
                emit(table, "data", NO_VIDEO)
            continue
        with collected.attempt(span.location(opened, feature.dataset)):
            for part in parts:
                for items in _items(opened, part, feature):
                    counts[row : row + len(items.counts)] = items.counts
                    emit(table, "data", items.values)
                    row += len(items.counts)
    collected.check()
    return counts


def _items(opened: OpenFile, span: Span, feature: Feature) -> Iterator[RaggedItems]:
    """Return the values, or the bytes of the frames, of the rows of a span."""
    array, location = span.array(opened, feature)
    stop = span.first + span.length
    if isinstance(array, Frames):
        for record, steps in array.kept(span.first, stop):
            yield RaggedItems(record, np.array([len(record)] + [0] * (steps - 1), np.int64))
        return
    if not feature.is_encoded:
        yield from items_in(array, span.first, stop, feature.form, location)
        return
    for lo, hi in feature.blocks(0, span.length):
        first = span.first + lo
        block = list(frames(array, location, feature, first, span.first + hi))
        for row, frame in enumerate(block, first):
            if not is_complete(frame):
                raise _damaged_frame(frame, location._replace(row=row))
        yield RaggedItems(np.concatenate(block), np.array([frame.size for frame in block], np.int64))
