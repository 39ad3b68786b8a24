"""Groups ``segments/segment_0000, …`` of PointSuite files: names, numbers, datasets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.hdf5 import file as hdf5
from unistore.converters.files.hdf5 import library as h5py
from unistore.converters.files.hdf5.file import location_of, names_in
from unistore.converters.files.hdf5.tree import follow, unlinked
from unistore.errors import InputError, Problem

COUNT = "num_points"
"""Attribute of every segment of a PointSuite file."""
CURE = "write the segments again"
SEGMENT_MEMORY = 1 << 10
"""Bytes in memory per segment with a group of its own: name, number, bounds."""

_SHOWN = 5
_SEGMENT = re.compile(r"segment_[0-9]+", re.IGNORECASE)
_LARGEST = (1 << 63) - 1


def segment_names(group: h5py.Group, name: str) -> list[str]:
    """Names of the segments in a group, sorted by number: ``segment_9999`` before ``segment_10000``."""
    names = names_in(group, location_of(name, "segments"))
    return sorted((key for key in names if _SEGMENT.fullmatch(key)), key=segment_number)


def segment_problems(group: h5py.Group, name: str) -> list[Problem]:
    """Problems of members of ``segments``: names without a number, or the same number twice."""
    problems = []
    first: dict[int, str] = {}
    for key in names_in(group, location_of(name, "segments")):
        location = location_of(name, f"segments/{key}")
        if _SEGMENT.fullmatch(key):
            number = segment_number(key)
            other = first.setdefault(number, key)
            if other != key:
                message = f"has the number of another segment, {other}"
                problems.append(Problem.at(location, message, "rename it", "twice"))
            elif number > _LARGEST:
                message = f"has a number above {_LARGEST}"
                problems.append(Problem.at(location, message, "rename it", "name"))
        elif not isinstance(group.get(key, getlink=True), h5py.HardLink) or isinstance(
            group[key], h5py.Group
        ):
            message = "is a group among segments whose name is not segment_ and a number, as in segment_0007"
            cure = "rename it, or move it out of segments/: its points would belong to no segment"
            problems.append(Problem.at(location, message, cure, "name"))
    return problems


def segment_number(key: str) -> int:
    """Number in a segment's name."""
    return int(key.rsplit("_", 1)[1])


class Segments:
    """The groups of the segments of an open file, by number.

    Raises
    ------
    InputError
        Every method, with the first problems of its kind and how many more there are.
    """

    def __init__(self, file: h5py.File, name: str, roots: Sequence[Path]) -> None:
        self._parent = file["segments"]
        self.name = name
        self._roots = roots
        self.keys = segment_names(self._parent, name)

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Number of each segment, (S,)."""
        return np.array([segment_number(key) for key in self.keys], np.int64)

    def group(self, number: int) -> h5py.Group:
        """The group of a segment."""
        location = location_of(self.name, f"segments/{self.keys[number]}")
        group = follow(self._parent, self.keys[number], location, self._roots)
        if not isinstance(group, h5py.Group):
            wrong = Problem.at(location, "is no group", CURE, "format")
            raise InputError(group if isinstance(group, Problem) else wrong)
        return group

    def member(self, number: int, key: str) -> h5py.Dataset | Problem:
        """A dataset of a segment, if it is there and its values can be read."""
        location = location_of(self.name, f"segments/{self.keys[number]}/{key}")
        item: object = unlinked(self._parent, self.keys[number], key)  # faster
        if not isinstance(item, h5py.Dataset):
            group = self.group(number)
            if key not in group:
                return Problem.at(location, "is missing", CURE, "missing")
            item = follow(group, key, location, self._roots)
        if not isinstance(item, h5py.Dataset):
            return (
                item if isinstance(item, Problem) else Problem.at(location, "is no dataset", CURE, "format")
            )
        problems = hdf5.check_dataset(item, location)
        return problems[0] if problems else item


def raise_first(found: Iterable[Problem], name: str) -> None:
    """Raise the first problems of a file and the number of further ones, if there are any."""
    problems = list(found)
    if (rest := len(problems) - _SHOWN) > 0:
        problems[_SHOWN:] = [Problem(name, f"{rest} further segments have problems like these")]
    if problems:
        raise InputError(problems)
