"""Attributes of groups, columns and segments of point cloud files, and their places in an export."""

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
        Datasets that are columns; attributes of other datasets are not kept.
    segments
        Names of the groups in ``segments``.
    members
        Datasets of each segment; the first has one row per point.
    """
    inside = _Segments(file, segments, members)

    def is_recounted(_path: str, item: h5py.HLObject, name: str, entry: Entry) -> bool:
        """Whether an export writes the same value anyway."""
        return name == COUNT and item is inside.group and entry == {"dtype": "<i8", "value": inside.points}

    return read_attributes(chain(objects_of(file, tree, columns.__contains__), inside), is_recounted)


class _Segments:
    """Iterates over groups of segments and their datasets that are not behind links.

    Attributes
    ----------
    group, points
        The current segment and its number of points; None if unknown.
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
            if not _is_hard_link(parent, key) or not any(_has_attributes(parent, name) for name in names):
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


def _is_hard_link(group: h5py.h5g.GroupID, name: str) -> bool:
    """Whether a name below a group is a hard link."""
    try:
        kind = group.links.get_info(name.encode("utf-8", "surrogateescape")).type
    except (KeyError, OSError, RuntimeError):
        return False  # reported where it is read
    return bool(kind == h5py.h5l.TYPE_HARD)


def _has_attributes(group: h5py.h5g.GroupID, name: str) -> bool:
    """Whether an object below a group has attributes; does not open it."""
    if not _is_hard_link(group, name):
        return False
    try:
        return bool(h5py.h5o.get_info(group, name.encode("utf-8", "surrogateescape")).num_attrs)
    except (KeyError, OSError, RuntimeError):
        return False


def _member(group: h5py.h5g.GroupID, name: str) -> h5py.Group | h5py.Dataset | None:
    """A group or dataset below a group, or None if there is none or it is behind a link."""
    if not _is_hard_link(group, name):
        return None
    try:
        item = h5py.h5o.open(group, name.encode("utf-8", "surrogateescape"))
    except (KeyError, OSError, RuntimeError):
        return None
    if isinstance(item, h5py.h5g.GroupID):
        return h5py.Group(item)
    return h5py.Dataset(item) if isinstance(item, h5py.h5d.DatasetID) else None


def kept_attributes(cloud: Cloud) -> dict[str, dict[str, Any]]:
    """Attributes that a source had, by path and name."""
    count = len(cloud.store.array("sources/rows"))
    return parse_attributes(attribute_texts(cloud.store, count)[cloud.source.number])


def pointsuite_attributes(cloud: Cloud) -> dict[str, dict[str, Any]]:
    """Attributes that a source had, at the paths of a PointSuite file.

    If the columns of several segments become one, it has the attributes of the first that has any.
    """
    places = _pointsuite_paths(cloud.layout)
    found: dict[str, dict[str, Any]] = {}
    for path, values in kept_attributes(cloud).items():
        for place in _exported_paths(path, places):
            found[place] = {**values, **found.get(place, {})}
    return found


def _pointsuite_paths(layout: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Paths in a PointSuite file, by path of the column (or of the group of columns) in the source."""
    xyz = layout["xyz"]
    axes = [f"data/{axis}" for axis in "xyz"]
    places = (
        dict(zip(xyz, [(axis,) for axis in axes], strict=True)) if len(xyz) == 3 else {xyz[0]: tuple(axes)}
    )
    places |= {path: (f"data/{name}",) for name, (path, _, _) in layout["columns"].items()}
    group = xyz[0].rpartition("/")[0]
    return {**places, group: ("data",)} if group else places


def _exported_paths(path: str, places: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    group, _, rest = path.partition("/")
    if group != "segments" or not rest:
        return places.get(path, (path,))
    key, _, column = rest.partition("/")
    if column in places:
        return places[column]
    segment = f"segments/segment_{segment_number(key):04d}"
    return (f"{segment}/{column}" if column else segment,)
