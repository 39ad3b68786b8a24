"""What PointSuite files keep in ``segments/segment_0000, …``: row indices, or whole columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from unistore.converters import hdf5
from unistore.converters.hdf5 import place
from unistore.converters.point_cloud_layout import segment_names, segment_number
from unistore.errors import InputError, Problem

__all__ = ["Segments"]

_SHOWN = 5
_CURE = "write the segments again"

Ints = NDArray[np.int64]


class Segments:
    """The segments of an open file, by number.

    Parameters
    ----------
    file, name
        The open file and how messages call it.
    roots
        Where links may lead.

    Raises
    ------
    InputError
        Every method, with the first problems of its kind and how many more there are.
    """

    def __init__(self, file: h5py.File, name: str, roots: Sequence[Path]) -> None:
        self._parent = file["segments"]
        self._name = name
        self._roots = roots
        self._keys = segment_names(self._parent)

    @property
    def numbers(self) -> Ints:
        """Number of each segment, (S,)."""
        return np.array([segment_number(key) for key in self._keys], np.int64)

    def lengths(self, key: str) -> Ints:
        """Points of each segment (S,), told by its column `key`; checks that all hold the same columns."""
        lengths: list[int] = []
        problems: list[Problem] = []
        known: set[str] = set()
        for path, group in self._groups():
            names = set(group)
            known = known or names
            missing, further = sorted(known - names), sorted(names - known)
            if missing or further:
                said = " and ".join(
                    f"{what} {', '.join(found)}"
                    for what, found in (("lacks", missing), ("has", further))
                    if found
                )
                message = f"{said}, unlike the first segment, which holds {', '.join(sorted(known))}"
                problems.append(Problem(place(self._name, path), message, _CURE, "columns"))
            dataset = self._dataset(group, path, key)
            if isinstance(dataset, Problem):
                problems.append(dataset)
            else:
                lengths.append(dataset.shape[0] if dataset.shape else 0)
        _raise_first(problems, self._name)
        return np.array(lengths, np.int64)

    def column(
        self, key: str, dtype: np.dtype[Any], row_shape: tuple[int, ...], lengths: Ints
    ) -> NDArray[Any]:
        """One column of all segments, one segment after the other, (N, …) in native byte order."""
        rows = np.empty((int(lengths.sum()), *row_shape), hdf5.native(dtype))
        problems: list[Problem] = []
        at = 0
        for (path, group), length in zip(self._groups(), lengths.tolist(), strict=True):
            dataset = self._dataset(group, path, key)
            location = place(self._name, f"{path}/{key}")
            if isinstance(dataset, Problem):
                problems.append(dataset)
            elif dataset.shape != (length, *row_shape) or hdf5.native(dataset.dtype) != rows.dtype:
                expected = f"expected {rows.dtype} {(length, *row_shape)}"
                message = f"is {dataset.dtype} {dataset.shape}, {expected} as the segment's others"
                problems.append(Problem(location, message, _CURE, "length"))
            else:
                hdf5.read_rows(dataset, location, out=rows[at : at + length])
            at += length
        _raise_first(problems, self._name)
        return rows

    def indices(self, rows: int) -> list[Ints]:
        """Row numbers of each segment's points: strictly ascending, inside ``0:rows``."""
        indices: list[Ints] = []
        problems: list[Problem] = []
        for path, group in self._groups():
            dataset = self._dataset(group, path, "indices")
            location = place(self._name, f"{path}/indices")
            if isinstance(dataset, Problem):
                problems.append(dataset)
            elif dataset.dtype.kind not in "iu" or dataset.ndim != 1:
                message = f"is {dataset.dtype} {dataset.shape}, expected integers (n,)"
                problems.append(Problem(location, message, _CURE, "dtype"))
            else:
                indices.append(hdf5.read_rows(dataset, location).astype(np.int64, copy=False))
        _raise_first(problems, self._name)
        wrong = [
            Problem(place(self._name, f"segments/{self._keys[number]}/indices"), message, _CURE, kind)
            for number, message, kind in _not_ascending(indices, rows)
        ]
        _raise_first(wrong, self._name)
        return indices

    def _groups(self) -> Iterator[tuple[str, h5py.Group]]:
        """Path and group of each segment."""
        for key in self._keys:
            path = f"segments/{key}"
            group = hdf5.follow(self._parent, key, place(self._name, path), self._roots)
            if isinstance(group, Problem):
                raise InputError(group)
            if not isinstance(group, h5py.Group):
                raise InputError(Problem(place(self._name, path), "is no group", _CURE, "format"))
            yield path, group

    def _dataset(self, group: h5py.Group, path: str, key: str) -> h5py.Dataset | Problem:
        """A dataset of a segment, if it is there and its values can be read."""
        location = place(self._name, f"{path}/{key}")
        if key not in group:
            return Problem(location, "is missing", _CURE, "missing")
        item = hdf5.follow(group, key, location, self._roots)
        if not isinstance(item, h5py.Dataset):
            return item if isinstance(item, Problem) else Problem(location, "is no dataset", _CURE, "format")
        problems = hdf5.check_dataset(item, location)
        return problems[0] if problems else item


def _not_ascending(indices: Sequence[Ints], rows: int) -> list[tuple[int, str, str]]:
    """Position of each segment whose indices are no ascending row numbers, what is wrong, and its kind."""
    joined = np.concatenate([np.empty(0, np.int64), *indices])
    segment = np.repeat(np.arange(len(indices)), [len(each) for each in indices])
    step = np.diff(joined)
    inside = np.diff(segment) == 0
    checks = (
        (segment[(joined < 0) | (joined >= rows)], f"points outside the rows 0:{rows} of the file", "range"),
        (segment[1:][inside & (step == 0)], "holds a row twice", "duplicate"),
        (segment[1:][inside & (step < 0)], "is not sorted", "unsorted"),
    )
    return [(int(number), what, kind) for found, what, kind in checks for number in np.unique(found)]


def _raise_first(problems: Sequence[Problem], name: str) -> None:
    """Raise the first problems of a file, and say how many more there are."""
    if not problems:
        return
    rest = len(problems) - _SHOWN
    more = [Problem(place(name), f"{rest} further segments have problems like these")] if rest > 0 else []
    raise InputError([*problems[:_SHOWN], *more])
