"""Make columns of one episode from its arrays."""

# Arrays of other rates become columns of the tables of their clocks. Only the names of arrays of shape (T, 0)
# are stored. Small arrays that are not per step become attributes.

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import SourceColumn, is_text, length_table, storable, values_of
from unistore.converters.formats.images import decode, encoding_of, header_of
from unistore.converters.formats.video import Frames
from unistore.converters.plugin import Array
from unistore.converters.trajectory.clocks import Stream, Timing, check_clocks, dataset_names
from unistore.converters.trajectory.layouts import EpisodeRecording
from unistore.converters.trajectory.naming import RESERVED, column_of, is_core, is_ignored, is_role
from unistore.converters.trajectory.options import TrajectoryOptions
from unistore.converters.trajectory.ragged import RangesOf, ranges_in
from unistore.errors import InputError, Location, Problem, printable
from unistore.schemas.tables import name_problem
from unistore.schemas.trajectory.fields import STEPS

# How the rows of an array are converted to those of a column. `squeezed`: (T, 1) to (T,); `flag`: 0/1 to
# bool; `channels_first`: (T, 3, H, W) to (T, H, W, 3); `padded`, `variable`: compressed frames, zero-padded
# to one length or of variable length; `video`: packets are kept; `ragged`: any number of values in a row;
# `text`.
Kind = Literal["plain", "squeezed", "flag", "channels_first", "padded", "variable", "video", "ragged", "text"]

VIDEO: Kind = "video"
ENCODED: frozenset[str] = frozenset({"padded", "variable"})  # kinds of compressed frames
RAGGED: frozenset[str] = frozenset({"ragged", "text"})  # kinds of rows with any number of values
SMALL = 4096  # bytes up to which an array that is not per step becomes an attribute
BLOCK = 16 << 20  # bytes read at a time if rows cannot be read directly into the output
FEW = 8  # rows that are searched for a first compressed frame


class Feature(NamedTuple):
    """One column of one episode: its array (path inside the episode), how it is read, dtype, shape, clock."""

    # Of a ragged one, the shape is that of a value, and `offsets` the path of what divides the array, if any.

    dataset: str
    kind: Kind
    dtype: str
    row_shape: tuple[int, ...] = ()
    clock: str = STEPS
    offsets: str = ""

    @property
    def form(self) -> SourceColumn:
        """Dtype and shape."""
        return SourceColumn(self.dtype, self.row_shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, decoded."""
        return prod(self.row_shape) * np.dtype(self.dtype).itemsize

    @property
    def is_encoded(self) -> bool:
        """Whether rows are compressed frames."""
        return self.kind in ENCODED

    def blocks(self, lo: int, hi: int, together: int = 1) -> Iterator[tuple[int, int]]:
        """Yield ranges of about `BLOCK` bytes that cover rows ``lo:hi``, in chunks of `together` rows."""
        row_bytes = max(8, self.row_bytes)  # flags may be float64 in the file
        step = together * max(1, BLOCK // (together * row_bytes))
        while lo < hi:
            stop = min(hi, lo - lo % step + step)
            yield lo, stop
            lo = stop


class Variant(NamedTuple):
    """A set of columns that some episodes of a source have."""

    features: dict[str, Feature]  # by column name
    values: list[str]  # small arrays and single values that are not per step
    empty: dict[str, str]  # dtype of each array of shape (T, 0, …)
    streams: dict[str, Stream]  # what tells the times of each clock, by its name

    @property
    def knows_next(self) -> bool:
        """Whether every observation has a next observation, so that it is known at the last step, too."""
        observations = [column for column in self.features if column.startswith("observation/")]
        return bool(observations) and all(f"next_{column}" in self.features for column in observations)

    @property
    def must_be_compared(self) -> bool:
        """Whether what a store has of these columns depends on all their values."""
        return any(
            column == "truncated" or column.startswith("next_observation/") for column in self.features
        )


@dataclass(slots=True)
class Episode:
    """Columns of one episode, or of all joined episodes of a file."""

    length: int  # steps; 0 if unknown
    variant: Variant
    clocks: Mapping[str, int]  # rows of each clock but that of the steps
    left_out: dict[str, str] = field(default_factory=dict)  # reason for each array that is not stored
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class EpisodeArrays:
    """Arrays of a recording with the names of their columns, and the most common number of rows."""

    def __init__(self, recording: EpisodeRecording, options: TrajectoryOptions) -> None:
        self._options = options
        kept = {path: array for path, array in recording.arrays.items() if not is_ignored(path, options)}
        self._offsets, self._problems = ranges_in(kept, recording.location)
        self._arrays = {
            path: RangesOf(array, recording.arrays[self._offsets[path]]) if path in self._offsets else array
            for path, array in recording.arrays.items()
            if path not in self._offsets.values()
        }
        self.recording = recording = recording._replace(arrays=self._arrays)
        self._columns: dict[str, str] = {}
        for path, name in dataset_names(self._arrays.keys()).items():
            column = column_of(path, options, name, is_bare=recording.is_bare)
            if column is not None:
                self._columns[path] = column
        timing = Timing(recording, self._columns, options)
        self._length = self._rows_of_steps(timing) or self._most_common_rows()
        self._clocks = timing.clocks(self._length)
        self._notes = timing.notes
        # Arrays that may have another number of rows than there are steps, and do. They are not per step in
        # any episode of the file, even where the numbers happen to be equal.
        self.not_per_step = {
            path
            for path in self._columns
            if path not in self._clocks.of and not self._must_match(path) and not self._is_per_step(path)
        }

    def _rows_of_steps(self, timing: Timing) -> int:
        """Steps, where all arrays that are not per step can be streams of their own (0: they cannot)."""
        rows = self._arrays[timing.steps].shape[:1] if timing.steps else ()
        paths = [path for path in self._columns if self._must_match(path)]
        others = [path for path in paths if self._arrays[path].shape[:1] != rows]
        return rows[0] if rows and all(map(timing.has_time, others)) else 0

    def _most_common_rows(self) -> int:
        """Steps: the most common number of rows among the arrays that must be per step."""
        sized = {path: self._arrays[path].shape[0] for path in self._columns if self._arrays[path].shape}
        core = [rows for path, rows in sized.items() if is_core(path, self._columns[path])]
        counted = core or [rows for path, rows in sized.items() if "/" not in path] or list(sized.values())
        return max(counted, key=lambda rows: (counted.count(rows), rows), default=0)

    def _is_per_step(self, path: str) -> bool:
        return self._arrays[path].shape[:1] == (self._length,)

    def _must_match(self, path: str) -> bool:
        """Whether another number of rows is an error: for roles, observations, and large data beside them."""
        is_large = "/" not in path and _bytes(self._arrays[path]) > SMALL
        return is_large or is_core(path, self._columns[path])

    def describe(self, not_per_step: Collection[str]) -> Episode:
        """Find the columns. Arrays in `not_per_step` are that in some episode."""
        clocks = self._clocks
        episode = Episode(self._length, Variant({}, [], {}, clocks.streams), clocks.lengths)
        episode.problems += [*self._problems, *self._length_problems()]
        has_streams = any(rows != self._length for rows in clocks.lengths.values())
        if (has_streams or self.recording.times) and not episode.problems:
            try:
                checked = check_clocks(self.recording, clocks, self._length)
                episode.notes += [*self._notes, *checked]
            except InputError as error:
                episode.problems += error.problems
        for path in self._arrays:
            if path not in self._columns:
                episode.left_out[path] = (
                    "as --ignore says" if is_ignored(path, self._options) else "lengths of compressed frames"
                )
        for path, column in self._columns.items():
            try:
                self._add(episode, path, column, may_be_step=path not in not_per_step)
            except InputError as error:
                episode.problems += error.problems
        return episode

    def _add(self, episode: Episode, path: str, column: str, *, may_be_step: bool) -> None:
        """Add an array to an episode as a column, an attribute or what is left out. Raise its problems."""
        array, location = self._arrays[path], self.recording.location(path)
        clock = self._clocks.of.get(path, STEPS)
        variant = episode.variant
        if clock == STEPS and not (may_be_step and self._is_per_step(path)):
            if _bytes(array) > SMALL:
                episode.left_out[path] = "not per step and too large for attributes"
                return
            if problems := array.problems(as_objects=True):
                raise InputError(problems)
            variant.values.append(path)
            return
        if 0 in array.shape[1:] and not _is_ragged(array.problems()):
            if clock == STEPS:
                variant.empty[path] = str(array.dtype)
            else:
                episode.left_out[path] = "holding no values"
            return
        _check_name(column, location, variant.features.get(column))
        feature = _feature(path, column, array, location)
        if self._options.video == "keep" and isinstance(array, Frames):
            feature = feature._replace(kind=VIDEO)
        variant.features[column] = feature._replace(clock=clock, offsets=self._offsets.get(path, ""))

    def _length_problems(self) -> list[Problem]:
        """One Problem with a table of lengths if arrays that must be per step have different ones."""
        paths = [path for path in self._columns if path not in self._clocks.of and self._must_match(path)]
        shapes = {path: self._arrays[path].shape for path in paths}
        lengths = {path: shape[0] for path, shape in shapes.items() if shape}
        if all(rows == self._length for rows in lengths.values()):
            return []
        message = f"datasets have different numbers of steps:\n{length_table(lengths)}\n   "
        cure = (
            "--on-error skip leaves it out; --ignore PATTERN leaves a dataset out; a dataset of another rate "
            "needs timestamps beside it (NAME_timestamps), an attribute rate, or --rate NAME=HZ"
        )
        return [Problem.at(self.recording.location(), message, cure, "length")]


def _bytes(array: Array) -> int:
    return prod(array.shape) * array.dtype.itemsize


def _check_name(column: str, location: Location, other: Feature | None) -> None:
    """Refuse a column that another array is, or that cannot be stored."""
    cure = f"choose another column, as in --map {shlex.quote(f'other={location.dataset}')}"
    reason = "the format uses it" if column in RESERVED else name_problem(column)
    if other is not None:
        message = f"would be column {column!r}, and so would {other.dataset!r}"
    elif reason is not None:
        message = f"cannot be stored under the name {printable(column)!r}: {reason}"
    else:
        return
    raise InputError(Problem.at(location, message, cure, "name"))


def _feature(path: str, column: str, array: Array, location: Location) -> Feature:
    """Return how an array is read, and raise its problems."""
    dtype, shape = array.dtype, array.shape[1:]
    if dtype.kind in "OS" or (dtype == np.uint8 and len(shape) == 1):
        encoded = _encoded(path, array, location)
        if encoded is not None:
            return encoded
    values = None if shape else values_of(dtype)
    problems = array.problems(as_objects=values is not None)
    if _is_ragged(problems):
        values = SourceColumn(dtype.str)
    elif problems:
        raise InputError(problems)
    if values is not None:
        kind: Kind = "text" if is_text(dtype) else "ragged"
        if is_role(column) or (kind == "ragged" and column.startswith("next_observation/")):
            message = f"has rows of any length, and would be {column}"
            raise InputError(Problem.at(location, message, "give it another name with --map", "shape"))
        return Feature(path, kind, values.dtype, values.row_shape)
    if not storable(dtype):
        message = f"has dtype {dtype}, which cannot be stored"
        cure = "texts need one axis; leave it out with --ignore" if is_text(dtype) else ""
        raise InputError(Problem.at(location, message, cure, "dtype"))
    if column in ("terminated", "truncated"):
        if shape not in ((), (1,)):
            message = f"has shape {array.shape}, expected one flag a step"
            raise InputError(Problem.at(location, message, kind="shape"))
        return Feature(path, "flag", "|b1")
    if column == "reward" and shape == (1,):
        return Feature(path, "squeezed", dtype.str)
    if dtype == np.uint8 and len(shape) == 3 and shape[-1] != 3 and shape[0] == 3:
        return Feature(path, "channels_first", "|u1", (shape[1], shape[2], 3))
    return Feature(path, "plain", dtype.str, shape)


def _is_ragged(problems: Sequence[Problem]) -> bool:
    """Whether a format tells of an array that its rows have different numbers of values, and nothing else."""
    return [problem.kind for problem in problems] == ["ragged"]


def _encoded(path: str, array: Array, location: Location) -> Feature | None:
    """Return a feature of compressed frames, if the first of a few rows that is not empty is such a frame."""
    # A recorder may miss the first frame.
    kind: Kind = "padded" if array.dtype == np.uint8 else "variable"
    if (kind == "variable" and len(array.shape) != 1) or array.problems(as_objects=True):
        return None
    rows = (frame_of(array, row, kind) for row in range(min(FEW, array.shape[0])))
    first = next((frame for frame in rows if frame is None or frame.size), None)
    if first is None or encoding_of(first) is None:
        return None
    try:
        header = header_of(BytesIO(first.tobytes()), location)
        shape = header.shape or decode(first, location, exact=True).shape
    except InputError as error:
        message = f"its first frame {error.problems[0].message}"
        raise InputError(Problem.at(location, message, "get the file again", "damaged")) from error
    return Feature(path, kind, header.dtype.str, shape)


def frame_of(array: Array, row: int, kind: str) -> NDArray[np.uint8] | None:
    """Return one compressed frame without padding, or None if the row is not a byte string."""
    # Zero bytes that pad it to a common length are cut off: the last byte of JPEG and PNG is never zero (D9
    # and 82). Lengths that recorders store are not used: their order of cameras is not stated in the file.
    if kind == "padded":
        frame: NDArray[np.uint8] = array[row : row + 1][0]
        kept = np.flatnonzero(frame)
        return frame[: int(kept[-1]) + 1] if kept.size else frame[:0]
    value = array.item(row)
    if isinstance(value, np.ndarray):
        return value if value.dtype == np.uint8 and value.ndim == 1 else None
    return np.frombuffer(value, np.uint8) if isinstance(value, bytes) else None


def flags(values: NDArray[Any], location: Location, lo: int) -> NDArray[np.bool_]:
    """Return rows of an array of flags 0 and 1, (n,) or (n, 1), as bool."""
    flat = values.reshape(len(values))
    wrong = np.flatnonzero((flat != 0) & (flat != 1))
    if wrong.size:
        message = f"row {lo + int(wrong[0])} is {flat[wrong[0]]}, expected 0 or 1"
        cure = "choose another dataset with --map terminated=DATASET, or --ignore it"
        raise InputError(Problem.at(location, message, cure, "value"))
    return np.asarray(flat != 0)
