"""Attributes of point cloud files: those of groups, of columns, of segments; and where an export has them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import h5py

from unistore.converters.files.hdf5.attributes import (
    Attributes,
    Entry,
    attribute_texts,
    objects_of,
    parse_attributes,
    read_attributes,
)
from unistore.converters.files.hdf5.tree import Tree
from unistore.converters.point_cloud.cloud import Cloud
from unistore.converters.point_cloud.pointsuite import segment_number

__all__ = ["COUNT", "file_attributes", "kept_attributes", "pointsuite_attributes"]

COUNT = "num_points"
"""Attribute of every segment of a PointSuite file."""


def file_attributes(
    file: h5py.File,
    tree: Tree,
    columns: Collection[str],
    segments: Sequence[str] = (),
    members: Sequence[str] = (),
) -> Attributes:
    """Attributes of a file.

    Parameters
    ----------
    file, tree
        The open file, and what `walk` found in it.
    columns
        Datasets that are columns: those of others are not in the store, nor are their attributes.
    segments
        Names of the groups in ``segments``.
    members
        Datasets of each of them, of which the first has a row a point.
    """
    inside = _Segments(file, segments, members)

    def counted(_path: str, item: h5py.HLObject, name: str, entry: Entry) -> bool:
        """An export counts the points of every segment again."""
        return name == COUNT and item is inside.group and entry == {"dtype": "<i8", "value": inside.points}

    return read_attributes(chain(objects_of(file, tree, columns.__contains__), inside), counted)


class _Segments:
    """Groups of segments and their datasets, where no link leads to them.

    Attributes
    ----------
    group, points
        The segment that was reached, and its points; None where they cannot be counted.
    """

    def __init__(self, file: h5py.File, segments: Sequence[str], members: Sequence[str]) -> None:
        self._file, self._segments, self._members = file, segments, members
        self.group: h5py.Group | None = None
        self.points: int | None = None

    def __iter__(self) -> Iterator[tuple[str, h5py.HLObject]]:
        parent = self._file["segments"].id if self._segments else None
        for key in self._segments:
            path = f"segments/{key}"
            names = (key, *(f"{key}/{member}" for member in self._members))
            if not _is_inside(parent, key) or not any(_has_attributes(parent, name) for name in names):
                continue
            group = _member(parent, key)
            if not isinstance(group, h5py.Group):
                continue
            inside = {f"{path}/{name}": _member(group.id, name) for name in self._members}
            datasets = {place: item for place, item in inside.items() if isinstance(item, h5py.Dataset)}
            first = next(iter(datasets.values()), None)
            self.group, self.points = group, first.shape[0] if first is not None and first.shape else None
            yield path, group
            yield from datasets.items()


def _is_inside(group: h5py.h5g.GroupID, name: str) -> bool:
    """Whether a name below a group is no link to elsewhere."""
    try:
        kind = group.links.get_info(name.encode("utf-8", "surrogateescape")).type
    except (KeyError, OSError, RuntimeError):
        return False  # what is wrong with it is told where it is read
    return bool(kind == h5py.h5l.TYPE_HARD)


def _has_attributes(group: h5py.h5g.GroupID, name: str) -> bool:
    """Whether something below a group has attributes, told without opening it."""
    if not _is_inside(group, name):
        return False
    try:
        return bool(h5py.h5o.get_info(group, name.encode("utf-8", "surrogateescape")).num_attrs)
    except (KeyError, OSError, RuntimeError):
        return False


def _member(group: h5py.h5g.GroupID, name: str) -> h5py.Group | h5py.Dataset | None:
    """A group or dataset that lies in a group itself; None if there is none."""
    if not _is_inside(group, name):
        return None
    try:
        item = h5py.h5o.open(group, name.encode("utf-8", "surrogateescape"))
    except (KeyError, OSError, RuntimeError):
        return None
    if isinstance(item, h5py.h5g.GroupID):
        return h5py.Group(item)
    return h5py.Dataset(item) if isinstance(item, h5py.h5d.DatasetID) else None


def kept_attributes(cloud: Cloud) -> dict[str, dict[str, Any]]:
    """Attributes of a source as it had them, by path and name."""
    count = len(cloud.store.array("sources/rows"))
    return parse_attributes(attribute_texts(cloud.store, count)[cloud.source.number])


def pointsuite_attributes(cloud: Cloud) -> dict[str, dict[str, Any]]:
    """The same, at the paths that a PointSuite file has for what they belong to.

    Where the columns of several segments become one, attributes of the first one that has them are given.
    """
    places = _places(cloud.layout)
    found: dict[str, dict[str, Any]] = {}
    for path, values in kept_attributes(cloud).items():
        for place in _placed(path, places):
            found[place] = {**values, **found.get(place, {})}
    return found


def _places(layout: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Paths in a PointSuite file of each column, and of the group that holds the columns."""
    xyz = layout["xyz"]
    axes = [f"data/{axis}" for axis in "xyz"]
    places = (
        dict(zip(xyz, [(axis,) for axis in axes], strict=True)) if len(xyz) == 3 else {xyz[0]: tuple(axes)}
    )
    places |= {path: (f"data/{name}",) for name, (path, _, _) in layout["columns"].items()}
    group = xyz[0].rpartition("/")[0]
    return {**places, group: ("data",)} if group else places


def _placed(path: str, places: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    group, _, rest = path.partition("/")
    if group != "segments" or not rest:
        return places.get(path, (path,))
    key, _, column = rest.partition("/")
    if column in places:
        return places[column]
    segment = f"segments/segment_{segment_number(key):04d}"
    return (f"{segment}/{column}" if column else segment,)
