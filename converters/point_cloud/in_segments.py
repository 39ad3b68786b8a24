"""What PointSuite files keep in ``segments/segment_0000, …``: row indices, or whole columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.hdf5 import file as hdf5
from unistore.converters.files.hdf5.file import place
from unistore.converters.files.hdf5.tree import follow
from unistore.converters.point_cloud.layout import segment_names, segment_number
from unistore.converters.point_cloud.scratch import BLOCK
from unistore.errors import InputError, Problem

__all__ = ["Segments", "raise_first"]

_SHOWN = 5
_CURE = "write the segments again"
_KINDS = ("range", "duplicate", "unsorted")

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
        self.problems: dict[Problem, None] = {}

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
        raise_first(problems, self._name)
        return np.array(lengths, np.int64)

    def column(self, key: str, dtype: np.dtype[Any], offsets: Ints, lo: int, hi: int) -> NDArray[Any]:
        """Rows ``lo:hi`` of one column of all segments, one segment after the other, in native byte order.

        Segments that hold something else are noted in `problems`.

        Parameters
        ----------
        dtype
            Of the column, with its row shape: ``("f4", (3,))``.
        offsets
            Bounds of the segments, (S + 1,).
        """
        base, row_shape = hdf5.native(dtype.base), dtype.shape
        rows = np.zeros((hi - lo, *row_shape), base)
        number = int(np.searchsorted(offsets, lo, side="right")) - 1
        while number < len(self._keys) and offsets[number] < hi:
            start, end = offsets[number : number + 2].tolist()
            first, last = max(lo, start), min(hi, end)
            dataset = self._member(number, key)
            location = place(self._name, f"segments/{self._keys[number]}/{key}")
            if isinstance(dataset, Problem):
                self.problems[dataset] = None
            elif dataset.shape != (end - start, *row_shape) or hdf5.native(dataset.dtype) != base:
                expected = f"expected {base} {(end - start, *row_shape)}"
                message = f"is {dataset.dtype} {dataset.shape}, {expected} as the segment's others"
                self.problems[Problem(location, message, _CURE, "length")] = None
            else:
                hdf5.read_rows(
                    dataset, location, first - start, last - start, out=rows[first - lo : last - lo]
                )
            number += 1
        return rows

    def indices(self, rows: int) -> Iterator[Iterator[Ints]]:
        """Row numbers of each segment's points, in parts: strictly ascending, inside ``0:rows``.

        What is wrong with them is raised in the end.
        """
        problems: list[Problem] = []
        wrong: dict[str, list[Problem]] = {}
        for number, key in enumerate(self._keys):
            dataset = self._member(number, "indices")
            location = place(self._name, f"segments/{key}/indices")
            if isinstance(dataset, Problem):
                problems.append(dataset)
            elif dataset.dtype.kind not in "iu" or dataset.ndim != 1:
                message = f"is {dataset.dtype} {dataset.shape}, expected integers (n,)"
                problems.append(Problem(location, message, _CURE, "dtype"))
            else:
                yield _ascending(dataset, location, rows, wrong)
        raise_first(problems, self._name)
        raise_first([problem for each in _KINDS for problem in wrong.get(each, ())], self._name)

    def _groups(self) -> Iterator[tuple[str, h5py.Group]]:
        """Path and group of each segment."""
        return map(self._group, range(len(self._keys)))

    def _group(self, number: int) -> tuple[str, h5py.Group]:
        key = self._keys[number]
        path = f"segments/{key}"
        group = follow(self._parent, key, place(self._name, path), self._roots)
        if isinstance(group, Problem):
            raise InputError(group)
        if not isinstance(group, h5py.Group):
            raise InputError(Problem(place(self._name, path), "is no group", _CURE, "format"))
        return path, group

    def _member(self, number: int, key: str) -> h5py.Dataset | Problem:
        """A dataset of a segment, opened at once where no link could lead elsewhere."""
        links = self._parent.id.links
        name = self._keys[number].encode("utf-8", "surrogateescape")
        inside = name + b"/" + key.encode("utf-8", "surrogateescape")
        with suppress(KeyError, OSError, RuntimeError):  # what is wrong is told by the long way
            if {links.get_info(each).type for each in (name, inside)} == {h5py.h5l.TYPE_HARD}:
                item = h5py.h5o.open(self._parent.id, inside)
                if isinstance(item, h5py.h5d.DatasetID):
                    dataset = h5py.Dataset(item, readonly=True)
                    location = place(self._name, f"segments/{self._keys[number]}/{key}")
                    problems = hdf5.check_dataset(dataset, location)
                    return problems[0] if problems else dataset
        path, group = self._group(number)
        return self._dataset(group, path, key)

    def _dataset(self, group: h5py.Group, path: str, key: str) -> h5py.Dataset | Problem:
        """A dataset of a segment, if it is there and its values can be read."""
        location = place(self._name, f"{path}/{key}")
        if key not in group:
            return Problem(location, "is missing", _CURE, "missing")
        item = follow(group, key, location, self._roots)
        if not isinstance(item, h5py.Dataset):
            return item if isinstance(item, Problem) else Problem(location, "is no dataset", _CURE, "format")
        problems = hdf5.check_dataset(item, location)
        return problems[0] if problems else item


def _ascending(
    dataset: h5py.Dataset, location: str, rows: int, wrong: dict[str, list[Problem]]
) -> Iterator[Ints]:
    """Row numbers, a block at a time; why they are no ascending row numbers is added to `wrong` by kind."""
    found: dict[str, Problem] = {}
    last = np.empty(0, np.int64)
    for lo in range(0, len(dataset), BLOCK):
        hi = min(lo + BLOCK, len(dataset))
        index = hdf5.read_rows(dataset, location, lo, hi).astype(np.int64, copy=False)
        for message, kind in _not_ascending(np.concatenate((last, index)) if lo else index, rows):
            found[kind] = Problem(location, message, _CURE, kind)
        last = index[-1:]
        yield index
    for kind, problem in found.items():
        wrong.setdefault(kind, []).append(problem)


def _not_ascending(index: Ints, rows: int) -> list[tuple[str, str]]:
    """Why indices are no ascending row numbers, each with its kind."""
    step = np.diff(index)
    if index[0] >= 0 and index[-1] < rows and (step > 0).all():
        return []
    checks = (
        (((index < 0) | (index >= rows)).any(), f"points outside the rows 0:{rows} of the file", "range"),
        ((step == 0).any(), "holds a row twice", "duplicate"),
        ((step < 0).any(), "is not sorted", "unsorted"),
    )
    return [(message, kind) for found, message, kind in checks if found]


def raise_first(found: Iterable[Problem], name: str) -> None:
    """Raise the first problems of a file, and say how many more there are."""
    problems = list(found)
    if not problems:
        return
    rest = len(problems) - _SHOWN
    more = [Problem(place(name), f"{rest} further segments have problems like these")] if rest > 0 else []
    raise InputError([*problems[:_SHOWN], *more])
