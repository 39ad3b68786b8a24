"""What the datasets of one episode are: the form of each column, and what is wrong with it.

Per-step datasets become columns of ``steps``. ``(T, 0)`` datasets hold no value and are only named; small
arrays that are not per step are kept as attributes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import h5py
import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import Column, storable
from unistore.converters.files.hdf5.file import check_dataset
from unistore.converters.trajectory.images import Colour, decode_frame, encoding_of, frame_of
from unistore.converters.trajectory.naming import RESERVED, Naming, column_of, is_core
from unistore.errors import InputError, Problem, printable
from unistore.schemas.arrays import name_problem

__all__ = ["Episode", "Feature", "describe", "not_per_step"]

Kind = Literal["plain", "squeezed", "flag", "channels_first", "padded", "variable"]
"""How a dataset's rows become a column's.

``squeezed``: (T, 1) to (T,); ``flag``: 0/1 to bool; ``channels_first``: (T, 3, H, W) to (T, H, W, 3);
``padded``, ``variable``: compressed frames, zero-padded to one length or of variable length.
"""

SMALL = 4096
"""Bytes up to which an array that is not per step is kept as an attribute."""
FEW = 8
"""Rows looked at for a first compressed frame."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One column of one episode: its dataset (path inside the episode), how it is read, and its form."""

    dataset: str
    kind: Kind
    form: Column

    @property
    def encoded(self) -> bool:
        """Whether rows are compressed frames."""
        return self.kind in ("padded", "variable")

    def to_json(self) -> list[Any]:
        """Plain JSON."""
        return [self.dataset, self.kind, self.form.dtype, list(self.form.row_shape)]

    @classmethod
    def from_json(cls, plain: list[Any]) -> Feature:
        """Inverse of `to_json`."""
        dataset, kind, dtype, row_shape = plain
        return cls(dataset, kind, Column(dtype, tuple(row_shape)))


@dataclass(slots=True)
class Episode:
    """What `describe` found: features by column, steps, small values, and remarks.

    Attributes
    ----------
    features
        By column name.
    length
        Steps; 0 if none could be told.
    values
        Small arrays and scalars that are not per step: their datasets.
    empty
        Datasets of shape (T, 0, …), with their dtype.
    dropped
        Large datasets that are not per step and are not kept.
    problems
        Everything that is wrong.
    """

    features: dict[str, Feature] = field(default_factory=dict)
    length: int = 0
    values: list[str] = field(default_factory=list)
    empty: dict[str, str] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def not_per_step(datasets: Mapping[str, h5py.Dataset], naming: Naming) -> set[str]:
    """Datasets of one episode that rightly have another number of rows than it has steps.

    What is not per step in one episode of a file is so in none, whatever lengths happen to coincide.
    """
    columns = _columns(datasets, naming)
    length = _length(datasets, columns)
    return {
        path
        for path, column in columns.items()
        if not _must_match(datasets[path], path, column) and not _per_step(datasets[path], length)
    }


def _columns(datasets: Mapping[str, h5py.Dataset], naming: Naming) -> dict[str, str]:
    return {path: column for path in datasets if (column := column_of(path, naming)) is not None}


def describe(
    datasets: Mapping[str, h5py.Dataset],
    where: Mapping[str, str],
    whole: str,
    naming: Naming,
    colour: Colour,
    apart: Collection[str] = (),
) -> Episode:
    """Judge the datasets of one episode.

    Parameters
    ----------
    datasets
        Open datasets by path inside the episode.
    where
        Location of each for messages.
    whole
        Location of the episode.
    naming
        Which column a dataset becomes.
    colour
        As for `decode_frame`.
    apart
        Datasets that are not per step in some episode of the file.
    """
    episode = Episode()
    columns = _columns(datasets, naming)
    episode.length = _length(datasets, columns)
    episode.problems += _length_problems(datasets, columns, episode.length, whole)
    taken: dict[str, str] = {}
    for path, column in columns.items():
        dataset, location = datasets[path], where[path]
        if path in apart or not _per_step(dataset, episode.length):
            _keep_small(episode, path, dataset, location)
        elif 0 in dataset.shape[1:]:
            episode.empty[path] = str(dataset.dtype)
        elif (problem := _name_problem(column, location, taken.get(column))) is not None:
            episode.problems.append(problem)
        else:
            taken[column] = path
            found = _feature(path, column, dataset, location, colour)
            if isinstance(found, Feature):
                episode.features[column] = found
            else:
                episode.problems += found
    return episode


def _per_step(dataset: h5py.Dataset, length: int) -> bool:
    return bool(dataset.shape) and dataset.shape[0] == length


def _must_match(dataset: h5py.Dataset, path: str, column: str) -> bool:
    """Whether another number of rows is an error: roles, observations, and large data beside them."""
    return is_core(path, column) or ("/" not in path and _bytes(dataset) > SMALL)


def _length(datasets: Mapping[str, h5py.Dataset], columns: Mapping[str, str]) -> int:
    """Steps: what the datasets that must have one row a step agree on, the commonest where they do not."""
    sized = {path: datasets[path].shape[0] for path in columns if datasets[path].shape}
    core = [rows for path, rows in sized.items() if is_core(path, columns[path])]
    counted = core or [rows for path, rows in sized.items() if "/" not in path] or list(sized.values())
    return max(counted, key=lambda rows: (counted.count(rows), rows), default=0)


def _length_problems(
    datasets: Mapping[str, h5py.Dataset], columns: Mapping[str, str], length: int, whole: str
) -> list[Problem]:
    """One Problem with the table of lengths where datasets that belong together have different ones."""
    lengths = {
        path: datasets[path].shape[0]
        for path, column in columns.items()
        if datasets[path].shape and _must_match(datasets[path], path, column)
    }
    if all(rows == length for rows in lengths.values()):
        return []
    width = max(map(len, lengths))
    table = "\n".join(f"    {path.ljust(width)}  {rows}" for path, rows in lengths.items())
    cure = "--on-error skip leaves it out; --ignore PATTERN leaves a dataset out"
    return [Problem(whole, f"datasets have different numbers of steps:\n{table}\n   ", cure, "length")]


def _bytes(dataset: h5py.Dataset) -> int:
    return int((dataset.size or 0) * dataset.dtype.itemsize)


def _keep_small(episode: Episode, path: str, dataset: h5py.Dataset, location: str) -> None:
    if dataset.shape is None:
        return
    if _bytes(dataset) > SMALL:
        episode.dropped.append(path)
    elif problems := check_dataset(dataset, location, allow_object=True):
        episode.problems += problems
    else:
        episode.values.append(path)


def _name_problem(column: str, location: str, taken: str | None) -> Problem | None:
    cure = "choose another column with --map NAME=DATASET"
    if taken is not None:
        return Problem(location, f"would be column {column!r}, and so would {taken!r}", cure, "name")
    reason = "the format uses it" if column in RESERVED else name_problem(column)
    if reason is None:
        return None
    return Problem(location, f"cannot be stored under the name {printable(column)!r}: {reason}", cure, "name")


def _feature(
    path: str, column: str, dataset: h5py.Dataset, location: str, colour: Colour
) -> Feature | list[Problem]:
    if dataset.dtype.kind in "OS" or (dataset.dtype == np.uint8 and dataset.ndim == 2):
        encoded = _encoded(path, dataset, location, colour)
        if encoded is not None:
            return encoded
    if problems := check_dataset(dataset, location):
        return problems
    if not storable(dataset.dtype):
        return [Problem(location, f"has dtype {dataset.dtype}, which cannot be stored", kind="dtype")]
    shape = dataset.shape[1:]
    if column in ("terminated", "truncated"):
        if shape not in ((), (1,)):
            return [Problem(location, f"has shape {dataset.shape}, expected one flag a step", kind="shape")]
        return Feature(path, "flag", Column("|b1"))
    if column == "reward" and shape == (1,):
        return Feature(path, "squeezed", Column(dataset.dtype.str))
    if dataset.dtype == np.uint8 and len(shape) == 3 and shape[-1] != 3 and shape[0] == 3:
        return Feature(path, "channels_first", Column("|u1", (shape[1], shape[2], 3)))
    return Feature(path, "plain", Column(_plain(dataset.dtype), shape))


def _plain(dtype: np.dtype[Any]) -> str:
    return "|b1" if dtype.kind == "b" else dtype.str


def _encoded(
    path: str, dataset: h5py.Dataset, location: str, colour: Colour
) -> Feature | list[Problem] | None:
    """A feature of compressed frames, or None if the dataset holds none."""
    kind: Kind = "padded" if dataset.dtype == np.uint8 else "variable"
    if kind == "variable" and dataset.ndim != 1:
        return None
    if check_dataset(dataset, location, allow_object=True):
        return None
    try:
        first = _first_frame(dataset, location, kind)
    except InputError as error:
        return list(error.problems)
    if first is None or encoding_of(first) is None:
        return None
    image = decode_frame(first, colour)
    if image is None:
        return [Problem(location, "its first frame cannot be decoded", "get the file again", "damaged")]
    return Feature(path, kind, Column(image.dtype.str, image.shape))


def _first_frame(dataset: h5py.Dataset, location: str, kind: Kind) -> NDArray[np.uint8] | None:
    """The first row among a few that is not empty: a recorder's first frame may be missing."""
    for row in range(min(FEW, dataset.shape[0])):
        frame = frame_of(dataset, location, row, kind)
        if frame is None or frame.size:
            return frame
    return None
