"""Make columns of one episode from its arrays: their names, forms, and rows of any length."""

# Arrays of other rates become columns of the tables of their clocks. Only the names of arrays of shape (T, 0)
# are stored. Small arrays that are not per step become attributes.

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from math import prod
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.formats.images import check_opencv, decode, encoding_of, header_of
from unistore.converters.formats.ragged import RangesOf
from unistore.converters.formats.video import Frames
from unistore.converters.trajectory.clocks import Stream, Timing, check_clocks, dataset_names
from unistore.converters.trajectory.layouts import EpisodeRecording
from unistore.converters.trajectory.names import (
    RESERVED,
    column_of,
    is_core,
    is_ignored,
    is_of_episodes,
    is_role,
)
from unistore.converters.trajectory.options import TrajectoryOptions
from unistore.errors import AddOptions, InputError, Location, Problem, length_table, printable
from unistore.plugin import Array, SourceColumn, name_problem, storable
from unistore.schemas.trajectory.fields import STEPS
from unistore.system.types import AnyArray, Shape, UInt8s

# Read rows with any number of values, as the scans of a lidar.
#
# `lidar/points` (M, 3) beside `lidar/offsets` (N + 1,), or `lidar/points_offsets`: scan t is
# points[offsets[t]:offsets[t + 1]]. In HDF5 a dataset (N,) of variable length says as much by itself.

_OFFSETS = "offsets"
_SUFFIX = "_offsets"


def ranges_in(
    arrays: Mapping[str, Array], location: Callable[[str], Location]
) -> tuple[dict[str, str], list[Problem]]:
    """Find the arrays that offsets beside them divide, by the path of these. And offsets of none."""
    dividing: dict[str, str] = {}
    problems: list[Problem] = []
    for path, array in arrays.items():
        lengths = _lengths_beside(path, arrays)
        is_row_of_numbers = len(array.shape) == 1 and array.dtype.kind in "iu" and len(array) > 0
        if not lengths or not is_row_of_numbers or array.problems():
            continue
        offsets = array[:]
        wrong = _wrong(offsets, list(lengths.values()))
        if not wrong:
            dividing |= {other: path for other, length in lengths.items() if length == offsets[-1]}
        elif path.endswith(_SUFFIX) or len(offsets) - 1 in lengths.values():
            names = [name for name, length in lengths.items() if length == len(offsets) - 1]
            words: list[str] = []
            for name in (path, *names):
                words += ["--ignore", glob.escape(name)]
            fix = AddOptions(tuple(words), "to skip the stream"), "write the file again"
            problems.append(Problem.at(location(path), wrong, fix, "value"))
    return dividing, problems


def _lengths_beside(path: str, arrays: Mapping[str, Array]) -> dict[str, int]:
    """Return rows of the arrays that offsets of such a path may divide."""
    group, _, name = path.rpartition("/")
    others = []
    if name == _OFFSETS:
        others = [other for other in arrays if other != path and other.rpartition("/")[0] == group]
    elif path.endswith(_SUFFIX) and path.removesuffix(_SUFFIX) in arrays:
        others = [path.removesuffix(_SUFFIX)]
    numbers = [other for other in others if arrays[other].dtype.kind in "biuf" and arrays[other].shape]
    return {other: len(arrays[other]) for other in numbers}


def _wrong(offsets: AnyArray, lengths: Sequence[int]) -> str:
    """Say why these are no offsets into an array of one of these lengths (empty: they are)."""
    falling = np.flatnonzero(offsets[1:] < offsets[:-1])
    if len(falling):
        row = int(falling[0]) + 1
        return f"row {row} is {offsets[row]}, less than the row before it ({offsets[row - 1]})"
    if offsets[0] != 0 or offsets[-1] not in lengths:
        counts = " or ".join(map(str, dict.fromkeys(lengths)))
        return (
            f"are offsets from {offsets[0]} to {offsets[-1]}, but the arrays in the group have {counts} rows"
        )
    return ""


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
    """One column of one episode: its array (path inside the episode), how it is read, dtype, shape, clock.

    Of a ragged column, the shape is the shape of a value, and `offsets` is the path of the array that
    divides it, if there is one.
    """

    dataset: str
    kind: Kind
    dtype: str
    row_shape: Shape = ()
    clock: str = STEPS
    offsets: str = ""
    flag_dtype: str = ""  # of flags in the file, which are bool in a store
    components: tuple[str, ...] = ()  # names of the numbers in a row

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


def observed_now(features: Mapping[str, Feature], column: str) -> Feature | None:
    """Return the observation whose next ones, a column, an episode lacks. None: it has them, or neither."""
    is_lacking = column.startswith("next_observation/") and column not in features
    return features.get(column.removeprefix("next_")) if is_lacking else None


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
    # Problems of clocks that count only if episodes of other files have streams of other rates
    clock_problems: Sequence[Problem] = ()
    columns: Mapping[str, str] = field(default_factory=dict)  # of all arrays that have one, by their paths


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
        """Return the steps if all other arrays can be streams of their own. 0: they cannot."""
        rows = self._arrays[timing.steps].shape[:1] if timing.steps else ()
        paths = [path for path in self._columns if self._must_match(path)]
        others = [path for path in paths if self._arrays[path].shape[:1] != rows]
        return rows[0] if rows and all(map(timing.has_time, others)) else 0

    def _most_common_rows(self) -> int:
        """Return the most common number of rows among the arrays that must be per step."""
        sized = {path: len(self._arrays[path]) for path in self._columns if self._arrays[path].shape}
        core = [rows for path, rows in sized.items() if is_core(path, self._columns[path])]
        counted = core or [rows for path, rows in sized.items() if "/" not in path] or list(sized.values())
        return max(counted, key=lambda rows: (counted.count(rows), rows), default=0)

    def _is_per_step(self, path: str) -> bool:
        return self._arrays[path].shape[:1] == (self._length,)

    def _must_match(self, path: str) -> bool:
        """Return whether another number of rows is an error: of roles, observations and large data."""
        if is_of_episodes(self._columns[path]):
            return False
        is_large = "/" not in path and _bytes(self._arrays[path]) > SMALL
        return is_large or is_core(path, self._columns[path])

    def describe(self, not_per_step: Collection[str]) -> Episode:
        """Find the columns. Arrays in `not_per_step` are that in some episode."""
        clocks = self._clocks
        problems = [*self._problems, *self._length_problems()]
        variant = Variant({}, [], {}, clocks.streams)
        episode = Episode(self._length, variant, clocks.lengths, problems=problems, columns=self._columns)
        has_streams = any(rows != self._length for rows in clocks.lengths.values())
        is_used = has_streams or bool(self.recording.times)
        if (is_used or (clocks.of and STEPS in clocks.streams)) and not problems:
            try:
                notes = check_clocks(self.recording, clocks, self._length)
                episode.notes = [*self._notes, *notes] if is_used else []
            except InputError as error:
                if is_used:
                    problems += error.problems
                else:
                    episode.clock_problems = error.problems
        for path in self._arrays:
            if path not in self._columns:
                is_chosen = is_ignored(path, self._options)
                episode.left_out[path] = (
                    "because of --ignore" if is_chosen else "because these are lengths of compressed frames"
                )
        for path, column in self._columns.items():
            try:
                self._add(episode, path, column, may_be_step=path not in not_per_step)
            except InputError as error:
                problems += error.problems
        return episode

    def _add(self, episode: Episode, path: str, column: str, *, may_be_step: bool) -> None:
        """Add an array to an episode as a column, an attribute or what is left out. Raise its problems."""
        array, location = self._arrays[path], self.recording.location(path)
        clock = self._clocks.of.get(path, STEPS)
        variant = episode.variant
        if clock == STEPS and not (may_be_step and self._is_per_step(path)):
            if _bytes(array) > SMALL and not is_of_episodes(column):
                episode.left_out[path] = "because it is not per step and too large for an attribute"
                return
            if problems := array.problems(as_objects=True):
                raise InputError(problems)
            variant.values.append(path)
            return
        if 0 in array.shape[1:] and not _is_ragged(array.problems()):
            if clock == STEPS:
                variant.empty[path] = str(array.dtype)
            else:
                episode.left_out[path] = "because it has no values"
            return
        _check_name(column, location, variant.features.get(column), path, self._options.map)
        feature = _feature(path, column, array, location)
        if self._options.video == "keep" and isinstance(array, Frames):
            feature = feature._replace(kind=VIDEO)
        variant.features[column] = feature._replace(
            clock=clock, offsets=self._offsets.get(path, ""), components=array.components
        )

    def _length_problems(self) -> list[Problem]:
        """Return a problem with a table of lengths if arrays that must be per step have different ones."""
        paths = [path for path in self._columns if path not in self._clocks.of and self._must_match(path)]
        lengths = {path: len(self._arrays[path]) for path in paths if self._arrays[path].shape}
        if all(rows == self._length for rows in lengths.values()):
            return []
        message = f"datasets have different numbers of steps:\n{length_table(lengths)}\n   "
        words: list[str] = []
        for path, rows in lengths.items():
            if rows != self._length:
                words += ["--ignore", glob.escape(path)]
        fix = (
            AddOptions(tuple(words), "to skip these datasets"),
            "add --rate NAME=HZ for a dataset of another rate",
            "write its timestamps (NAME_timestamps) or its attribute rate",
        )
        return [Problem.at(self.recording.location(), message, fix, "length")]


def _bytes(array: Array) -> int:
    return prod(array.shape) * array.dtype.itemsize


def _check_name(
    column: str, location: Location, other: Feature | None, path: str, mapping: Mapping[str, str]
) -> None:
    """Refuse a column that another array is, or that cannot be stored."""
    is_mapped = any(path == source.strip("/") for source in mapping.values())
    renamed = other.dataset if other is not None and is_mapped else path
    fix = _renamed(renamed), AddOptions(("--ignore", glob.escape(renamed)), "to skip it")
    reason = "the name is reserved" if column in RESERVED else name_problem(column)
    if other is not None:
        message = f"would be stored as {column!r}, like {other.dataset!r}"
    elif reason is not None:
        message = f"cannot be stored as {printable(column)!r}: {reason}"
    else:
        return
    raise InputError.at(location, message, fix, "name")


def _feature(path: str, column: str, array: Array, location: Location) -> Feature:
    """Return how an array is read, or raise its problems."""
    dtype, shape = array.dtype, array.shape[1:]
    if dtype.kind in "OS" or (dtype == np.uint8 and len(shape) == 1):
        encoded = _encoded(path, array, location)
        if encoded is not None:
            return encoded
    values = None if shape else array.value_form
    problems = array.problems(as_objects=values is not None)
    if _is_ragged(problems):
        values = SourceColumn(dtype.str)
    elif problems:
        raise InputError(problems)
    if values is not None:
        kind: Kind = "text" if array.is_text else "ragged"
        if is_role(column) or (kind == "ragged" and column.startswith("next_observation/")):
            message = f"has rows of variable length, which {column} cannot have"
            raise InputError.at(location, message, _renamed(path), "shape")
        return Feature(path, kind, values.dtype, values.row_shape)
    if not storable(dtype):
        message = f"has dtype {dtype}, which cannot be stored"
        fix = AddOptions(("--ignore", glob.escape(path)), "to skip it")
        raise InputError.at(location, message, fix, "dtype")
    if column in ("terminated", "truncated"):
        if shape not in ((), (1,)):
            message = f"has shape {array.shape}, expected one flag per step"
            raise InputError.at(location, message, _renamed(path), "shape")
        return Feature(path, "flag", "|b1", flag_dtype=dtype.name)
    if column == "reward" and shape == (1,):
        return Feature(path, "squeezed", dtype.str)
    if dtype == np.uint8 and len(shape) == 3 and shape[-1] != 3 and shape[0] == 3:
        return Feature(path, "channels_first", "|u1", (shape[1], shape[2], 3))
    return Feature(path, "plain", dtype.str, shape)


def _renamed(path: str) -> AddOptions:
    plain = re.sub("[^0-9A-Za-z]+", "_", path).strip("_") or "column"
    return AddOptions(("--map", f"{plain}_2={path}"), "to give it another name")


def _is_ragged(problems: Sequence[Problem]) -> bool:
    """Return whether rows of different lengths are all that is wrong with an array."""
    return [problem.kind for problem in problems] == ["ragged"]


def _encoded(path: str, array: Array, location: Location) -> Feature | None:
    """Return a feature of compressed frames, if the first of a few rows that is not empty is such a frame.

    A recorder may miss the first frame.
    """
    kind: Kind = "padded" if array.dtype == np.uint8 else "variable"
    if (kind == "variable" and len(array.shape) != 1) or array.problems(as_objects=True):
        return None
    rows = (frame_of(array, row, kind) for row in range(min(FEW, array.shape[0])))
    first = next((frame for frame in rows if frame is None or frame.size), None)
    if first is None or encoding_of(first) is None:
        return None
    check_opencv(location)
    try:
        header = header_of(BytesIO(first.tobytes()), location)
        shape = header.shape or decode(first, location, exact=True).shape
    except InputError as error:
        message = f"the first frame {error.problems[0].message}"
        raise InputError.at(location, message, "copy or download it again", "damaged") from error
    return Feature(path, kind, header.dtype.str, shape)


def frame_of(array: Array, row: int, kind: str) -> UInt8s | None:
    """Return a compressed frame without padding, or None if the row is not a byte string.

    Zero bytes at the end, which pad frames to a common length, are cut off.
    """
    # The last byte of JPEG and PNG is never zero (D9 and 82). Lengths that recorders store are not used, as
    # files do not state their order of cameras.
    if kind == "padded":
        frame: UInt8s = array[row : row + 1][0]
        return np.frombuffer(frame.tobytes().rstrip(b"\0"), np.uint8)
    value = array.item(row)
    if isinstance(value, np.ndarray):
        return value if value.dtype == np.uint8 and value.ndim == 1 else None
    return np.frombuffer(value, np.uint8) if isinstance(value, bytes) else None


def flags(values: AnyArray, location: Location, lo: int) -> NDArray[np.bool_]:
    """Return rows of an array of flags 0 and 1, (n,) or (n, 1), as bool."""
    flat = values.reshape(len(values))
    is_set: NDArray[np.bool_] = flat != 0
    wrong = np.flatnonzero(is_set & (flat != 1))
    if wrong.size:
        message = f"row {lo + int(wrong[0])} is {flat[wrong[0]]}, expected 0 or 1"
        path = location.dataset.rpartition("/")[2]
        fix = (
            AddOptions(("--ignore", f"*{glob.escape(path)}"), "to skip it"),
            "choose another dataset with --map",
        )
        raise InputError.at(location, message, fix, "value")
    return is_set
