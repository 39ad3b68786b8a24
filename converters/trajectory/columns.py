"""Columns of one episode, from its datasets.

Per-step datasets become columns of ``steps``. Only the names of datasets of shape (T, 0) are stored. Small
arrays that are not per step become attributes.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import Column, length_table, storable
from unistore.converters.formats.images import decode, encoding_of, header_of
from unistore.converters.trajectory.naming import RESERVED, Naming, column_of, is_core, is_ignored
from unistore.converters.trajectory.source import Array, Group
from unistore.errors import InputError, Location, Problem, printable
from unistore.schemas.tables import name_problem

Kind = Literal["plain", "squeezed", "flag", "channels_first", "padded", "variable"]
"""How the rows of a dataset are converted to those of a column.

``squeezed``: (T, 1) to (T,); ``flag``: 0/1 to bool; ``channels_first``: (T, 3, H, W) to (T, H, W, 3);
``padded``, ``variable``: compressed frames, zero-padded to one length or of variable length.
"""

SMALL = 4096
"""Bytes up to which an array that is not per step becomes an attribute."""
IGNORED = "as --ignore says"
_LENGTHS = "lengths of compressed frames"
_TOO_LARGE = "not per step and too large for attributes"
FEW = 8
"""Rows that are searched for a first compressed frame."""


@dataclass(frozen=True)
class Feature:
    """One column of one episode: its dataset (path inside the episode), how it is read, dtype and shape."""

    dataset: str
    kind: Kind
    form: Column

    @property
    def encoded(self) -> bool:
        """Whether rows are compressed frames."""
        return self.kind in ("padded", "variable")

    def to_json(self) -> list[Any]:
        """JSON of this column."""
        return [self.dataset, self.kind, self.form.dtype, list(self.form.row_shape)]

    @classmethod
    def from_json(cls, plain: list[Any]) -> Feature:
        """Inverse of `to_json`."""
        dataset, kind, dtype, row_shape = plain
        return cls(dataset, kind, Column(dtype, tuple(row_shape)))


@dataclass(slots=True)
class Episode:
    """Columns of one episode."""

    features: dict[str, Feature] = field(default_factory=dict)
    """By column name."""
    length: int = 0
    """Number of steps; 0 if unknown."""
    values: list[str] = field(default_factory=list)
    """Datasets of small arrays and scalars that are not per step."""
    empty: dict[str, str] = field(default_factory=dict)
    """Dtype of each dataset of shape (T, 0, …)."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Reason for each dataset that is not stored."""
    problems: list[Problem] = field(default_factory=list)


def not_per_step(group: Group, naming: Naming) -> set[str]:
    """Datasets of a group that may have another number of rows than it has steps, and do.

    They are not per step in any episode of the file, even where the numbers happen to be equal.
    """
    columns = _columns(group.arrays, naming)
    length = _length(group.arrays, columns)
    return {
        path
        for path, column in columns.items()
        if not _must_match(group.arrays[path], path, column) and not _per_step(group.arrays[path], length)
    }


def _columns(arrays: Mapping[str, Array], naming: Naming) -> dict[str, str]:
    return {path: column for path in arrays if (column := column_of(path, naming)) is not None}


def describe(group: Group, location: Location, naming: Naming, excluded: Collection[str]) -> Episode:
    """Find the columns of one group of an open file, which messages call `location`.

    Datasets in `excluded` are not per step in some episode of the file.
    """
    episode = Episode()
    columns = _columns(group.arrays, naming)
    for path in group.arrays:
        if path not in columns:
            episode.left_out[path] = IGNORED if is_ignored(path, naming) else _LENGTHS
    episode.length = _length(group.arrays, columns)
    episode.problems += _length_problems(group.arrays, columns, episode.length, location)
    taken: dict[str, str] = {}
    for path, column in columns.items():
        array = group.arrays[path]
        if path in excluded or not _per_step(array, episode.length):
            _keep_small(episode, path, array)
        elif 0 in array.shape[1:]:
            episode.empty[path] = str(array.dtype)
        elif (problem := _name_problem(column, array.location, taken.get(column))) is not None:
            episode.problems.append(problem)
        else:
            taken[column] = path
            found = _feature(path, column, array)
            if isinstance(found, Feature):
                episode.features[column] = found
            else:
                episode.problems += found
    return episode


def _per_step(array: Array, length: int) -> bool:
    return bool(array.shape) and array.shape[0] == length


def _must_match(array: Array, path: str, column: str) -> bool:
    """Whether another number of rows is an error: for roles, observations, and large data beside them."""
    return is_core(path, column) or ("/" not in path and _bytes(array) > SMALL)


def _length(arrays: Mapping[str, Array], columns: Mapping[str, str]) -> int:
    """Steps: the most common number of rows among the datasets that must be per step."""
    sized = {path: arrays[path].shape[0] for path in columns if arrays[path].shape}
    core = [rows for path, rows in sized.items() if is_core(path, columns[path])]
    counted = core or [rows for path, rows in sized.items() if "/" not in path] or list(sized.values())
    return max(counted, key=lambda rows: (counted.count(rows), rows), default=0)


def _length_problems(
    arrays: Mapping[str, Array], columns: Mapping[str, str], length: int, location: Location
) -> list[Problem]:
    """One Problem with a table of lengths if datasets that must be per step have different ones."""
    lengths = {
        path: arrays[path].shape[0]
        for path, column in columns.items()
        if arrays[path].shape and _must_match(arrays[path], path, column)
    }
    if all(rows == length for rows in lengths.values()):
        return []
    message = f"datasets have different numbers of steps:\n{length_table(lengths)}\n   "
    cure = "--on-error skip leaves it out; --ignore PATTERN leaves a dataset out"
    return [Problem.at(location, message, cure, "length")]


def _bytes(array: Array) -> int:
    return prod(array.shape) * array.dtype.itemsize


def _keep_small(episode: Episode, path: str, array: Array) -> None:
    if _bytes(array) > SMALL:
        episode.left_out[path] = _TOO_LARGE
    elif problems := array.problems(objects=True):
        episode.problems += problems
    else:
        episode.values.append(path)


def _name_problem(column: str, location: Location, taken: str | None) -> Problem | None:
    cure = f"choose another column, as in --map {shlex.quote(f'other={location.dataset}')}"
    if taken is not None:
        return Problem.at(location, f"would be column {column!r}, and so would {taken!r}", cure, "name")
    reason = "the format uses it" if column in RESERVED else name_problem(column)
    if reason is None:
        return None
    return Problem.at(
        location, f"cannot be stored under the name {printable(column)!r}: {reason}", cure, "name"
    )


def _feature(path: str, column: str, array: Array) -> Feature | Sequence[Problem]:
    location = array.location
    if array.dtype.kind in "OS" or (array.dtype == np.uint8 and len(array.shape) == 2):
        encoded = _encoded(path, array)
        if encoded is not None:
            return encoded
    if problems := array.problems():
        return problems
    if not storable(array.dtype):
        return [Problem.at(location, f"has dtype {array.dtype}, which cannot be stored", kind="dtype")]
    shape = array.shape[1:]
    if column in ("terminated", "truncated"):
        if shape not in ((), (1,)):
            return [Problem.at(location, f"has shape {array.shape}, expected one flag a step", kind="shape")]
        return Feature(path, "flag", Column("|b1"))
    if column == "reward" and shape == (1,):
        return Feature(path, "squeezed", Column(array.dtype.str))
    if array.dtype == np.uint8 and len(shape) == 3 and shape[-1] != 3 and shape[0] == 3:
        return Feature(path, "channels_first", Column("|u1", (shape[1], shape[2], 3)))
    return Feature(path, "plain", Column(array.dtype.str, shape))


def _encoded(path: str, array: Array) -> Feature | Sequence[Problem] | None:
    """A feature of compressed frames; None if the first of a few rows that is not empty is no such frame.

    A recorder may miss the first frame.
    """
    kind: Kind = "padded" if array.dtype == np.uint8 else "variable"
    if (kind == "variable" and len(array.shape) != 1) or array.problems(objects=True):
        return None
    try:
        rows = (frame_of(array, row, kind) for row in range(min(FEW, array.shape[0])))
        first = next((frame for frame in rows if frame is None or frame.size), None)
    except InputError as error:
        return list(error.problems)
    if first is None or encoding_of(first) is None:
        return None
    try:
        header = header_of(BytesIO(first.tobytes()), array.location)
        shape = header.shape or decode(first, array.location, exact=True).shape
    except InputError as error:
        reason = error.problems[0].message
        message = f"its first frame {reason}"
        return [Problem.at(array.location, message, "get the file again", "damaged")]
    return Feature(path, kind, Column(header.dtype.str, shape))


def frame_of(array: Array, row: int, kind: str) -> NDArray[np.uint8] | None:
    """One compressed frame without padding; None if the row is not a byte string.

    Zero bytes that pad it to a common length are cut off: the last byte of JPEG and PNG is never zero (D9 and
    82). Lengths that recorders store are not used: they are in an order of cameras that the file does not
    state.

    Raises
    ------
    InputError
        If the row cannot be read.
    """
    if kind == "padded":
        frame: NDArray[np.uint8] = array.read(row, row + 1)[0]
        kept = np.flatnonzero(frame)
        return frame[: int(kept[-1]) + 1] if kept.size else frame[:0]
    value = array.value(row)
    if isinstance(value, np.ndarray):
        return value if value.dtype == np.uint8 and value.ndim == 1 else None
    return np.frombuffer(value, np.uint8) if isinstance(value, bytes) else None


def flags(values: NDArray[Any], location: Location, lo: int) -> NDArray[np.bool_]:
    """Rows of a flag dataset, (n,) or (n, 1), as bool.

    Raises
    ------
    InputError
        If a value is neither 0 nor 1, naming its row.
    """
    flat = values.reshape(len(values))
    wrong = np.flatnonzero((flat != 0) & (flat != 1))
    if wrong.size:
        message = f"row {lo + int(wrong[0])} is {flat[wrong[0]]}, expected 0 or 1"
        cure = "choose another dataset with --map terminated=DATASET, or --ignore it"
        raise InputError(Problem.at(location, message, cure, "value"))
    return np.asarray(flat != 0)
