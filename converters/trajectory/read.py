"""Reading rows of trajectory files into columns: plain rows, flags, decoded and resized frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import missing_value
from unistore.converters.common.exclusion import ProblemCollector
from unistore.converters.files.hdf5.file import location_of
from unistore.converters.protocol import Source
from unistore.converters.trajectory.columns import Feature, flags
from unistore.converters.trajectory.episode_index import EpisodeIndex, Span
from unistore.converters.trajectory.images import decode_frame, frame_of, is_complete, resize
from unistore.converters.trajectory.layouts import format_named
from unistore.converters.trajectory.options import Colour
from unistore.converters.trajectory.source import Array, EpisodeSource
from unistore.errors import InputError, Location, Problem
from unistore.schemas.trajectory.fields import FINAL, NEXT, OBSERVATION, STEPS

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
                    resize(full, values.shape[1], values[lo:hi])

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
        image = decode_frame(frame, self.colour) if frame.size else None
        if image is None or not is_complete(frame):
            raise damaged_frame(frame, location)
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
