"""Groups ``segments/segment_0000, …`` of PointSuite files: names, numbers, datasets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.hdf5 import file as hdf5
from unistore.converters.files.hdf5 import library as h5py
from unistore.converters.files.hdf5.attributes import Entry
from unistore.converters.files.hdf5.file import names_in
from unistore.converters.files.hdf5.tree import follow, unlinked
from unistore.converters.formats.hdf5 import OpenedHdf5
from unistore.converters.plugin import Opened
from unistore.errors import InputError, Problem, location_of

SEGMENTS = "segments"
COUNT = "num_points"
"""Attribute of every segment of a PointSuite file."""
CURE = "write the segments again"
SEGMENT_MEMORY = 1 << 10
"""Bytes in memory per segment with a group of its own: name, number, bounds."""

_SHOWN = 5
_SEGMENT = re.compile(r"segment_[0-9]+", re.IGNORECASE)
_LARGEST = (1 << 63) - 1


def outside_segments(opened: Opened) -> Opened:
    """The same file as if ``segments`` held nothing: its groups are many, and are read one by one."""
    return opened.without((SEGMENTS,))


def has_segments(opened: Opened) -> bool:
    """Whether a file has groups of segments."""
    return isinstance(opened, OpenedHdf5) and SEGMENTS in opened.groups and bool(Segments(opened).keys)


def check_names(opened: Opened) -> None:
    """Check that no link leads out of the given paths, and that every member of ``segments`` has a number.

    Raises
    ------
    InputError
        Naming the wrong links or members.
    """
    problems = opened.unreachable
    if not problems and isinstance(opened, OpenedHdf5) and SEGMENTS in opened.groups:
        problems = segment_problems(opened.handle[SEGMENTS], opened.file.name)
    if problems:
        raise InputError(problems)


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

    def __init__(self, opened: Opened) -> None:
        assert isinstance(opened, OpenedHdf5)
        self.parent = opened.handle[SEGMENTS]
        self.name = opened.file.name
        self.roots = opened.file.roots
        names = names_in(self.parent, location_of(self.name, SEGMENTS))
        self.keys = sorted((name for name in names if _SEGMENT.fullmatch(name)), key=segment_number)

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Number of each segment, (S,)."""
        return np.array([segment_number(key) for key in self.keys], np.int64)

    def group(self, number: int) -> h5py.Group:
        """The group of a segment."""
        location = location_of(self.name, f"segments/{self.keys[number]}")
        group = follow(self.parent, self.keys[number], location, self.roots)
        if not isinstance(group, h5py.Group):
            wrong = Problem.at(location, "is no group", CURE, "format")
            raise InputError(group if isinstance(group, Problem) else wrong)
        return group

    def member(self, number: int, key: str) -> h5py.Dataset | Problem:
        """A dataset of a segment, if it is there and its values can be read."""
        location = location_of(self.name, f"segments/{self.keys[number]}/{key}")
        item: object = unlinked(self.parent, self.keys[number], key)  # faster
        if not isinstance(item, h5py.Dataset):
            group = self.group(number)
            if key not in group:
                return Problem.at(location, "is missing", CURE, "missing")
            item = follow(group, key, location, self.roots)
        if not isinstance(item, h5py.Dataset):
            return (
                item if isinstance(item, Problem) else Problem.at(location, "is no dataset", CURE, "format")
            )
        problems = hdf5.check_dataset(item, location)
        return problems[0] if problems else item


def raise_first(found: Iterable[Problem], name: str) -> None:
    """Raise the first problems of a file and the number of further ones, if there are any."""
    problems = list(found)
    if (unshown := len(problems) - _SHOWN) > 0:
        problems[_SHOWN:] = [Problem(name, f"{unshown} further segments have problems like these")]
    if problems:
        raise InputError(problems)


class SegmentObjects:
    """Groups of the segments and those of their datasets that are read, by path; nothing that is linked.

    Attributes
    ----------
    others
        Names of what else the segments hold, once all have been gone through.
    """

    def __init__(self, segments: Segments, members: Sequence[str]) -> None:
        self.others: dict[str, None] = {}
        self._segments = segments
        self._members = members
        self._counts: dict[str, int | None] = {}

    def __iter__(self) -> Iterator[tuple[str, h5py.HLObject]]:
        for key in self._segments.keys:
            path = f"{SEGMENTS}/{key}"
            group = unlinked(self._segments.parent, key)
            if not isinstance(group, h5py.Group):
                continue
            names = names_in(group, location_of(self._segments.name, path))
            self.others |= dict.fromkeys(name for name in names if name not in self._members)
            items = {f"{path}/{name}": unlinked(group, name) for name in self._members}
            datasets = {path: item for path, item in items.items() if isinstance(item, h5py.Dataset)}
            self._counts[path] = next((_rows(dataset) for dataset in datasets.values()), None)
            yield path, group
            yield from datasets.items()

    def is_recounted(self, path: str, _: h5py.HLObject, name: str, entry: Entry) -> bool:
        """Whether an attribute is the number of points, which an export writes anyway."""
        if name != COUNT or path not in self._counts:
            return False
        return entry == {"dtype": "<i8", "value": self._counts[path]}


def _rows(dataset: h5py.Dataset) -> int | None:
    return dataset.shape[0] if dataset.shape else None
