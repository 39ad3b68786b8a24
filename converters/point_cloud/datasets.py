"""What the layouts share: describing a file with its chosen columns, and reading these in blocks of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.left_out import NO_COLUMN
from unistore.converters.files.hdf5.attributes import Attributes, objects_of, read_attributes
from unistore.converters.formats.hdf5 import OpenedHdf5
from unistore.converters.plugin import Array, Facts, Opened
from unistore.converters.point_cloud.columns import left_out_of
from unistore.converters.point_cloud.pointsuite import SegmentObjects, Segments
from unistore.converters.point_cloud.source import AXES, Described, Layout, PointSource

# Bytes of a chunk that is kept while further rows of it are read; HDF5 itself keeps smaller ones
_LARGE = 1 << 20
_HEADER = "header"


def columns_of(opened: Opened) -> dict[str, Array]:
    """Arrays that may be columns, and those that would be if they could be read."""
    if not isinstance(opened, OpenedHdf5):
        return dict(opened.arrays)
    unsound = {problem.dataset for problem in opened.problems}
    return {
        path: array
        for path, array in opened.all_arrays.items()
        if path in unsound or (path in opened.arrays and path not in opened.facts)
    }


def header_of(opened: Opened) -> Facts:
    """What the header of a file says: the group of that name of HDF5, else its facts."""
    if not isinstance(opened, OpenedHdf5):
        return opened.facts
    return opened.group_facts(_HEADER) if _HEADER in opened.groups else {}


def described(opened: Opened, chosen: Described, members: Sequence[str] = ()) -> Described:
    """Complete what is said of a file with its chosen columns.

    Parameters
    ----------
    members
        Datasets of each group in ``segments`` that are read.
    """
    layout = chosen.layout
    arrays = columns_of(opened)
    header = header_of(opened)
    columns = (*layout.columns.values(), *layout.segment_columns.values())
    paths = [*layout.xyz, *(place.array for place in columns)]
    read = [path for path in paths if path in arrays and path not in members]
    attributes, others_in_segments = _attributes(opened, read, members)
    explained = {path for path, _ in chosen.left_out}
    return replace(
        chosen,
        layout=layout._replace(
            header=header, scale=_triple(header, "scale"), offset=_triple(header, "offset")
        ),
        left_out=(
            *chosen.left_out,
            *left_out_of(arrays, {*read, *explained}),
            *opened.left_out.items(),
            *((path, NO_COLUMN) for path in others_in_segments),
        ),
        memory=chosen.memory + opened.memory * (2 * len(read) if isinstance(opened, OpenedHdf5) else 1),
        attributes=attributes,
    )


def _attributes(
    opened: Opened, columns: Sequence[str], members: Sequence[str]
) -> tuple[Attributes, list[str]]:
    """Return attributes of the groups, columns and segments of a file, and what else is in its segments."""
    if not isinstance(opened, OpenedHdf5):
        return Attributes(), []
    objects = objects_of(opened.handle, opened.tree, columns.__contains__)
    if not members:
        return read_attributes(objects), []
    inside = SegmentObjects(Segments(opened), members)
    attributes = read_attributes(chain(objects, inside), inside.is_recounted)
    return attributes, [f"segments/segment_N/{name}" for name in inside.others]


def count_notes(count: object, actual: int, what: str) -> tuple[str, ...]:
    """Remark if a count in the file's attributes is wrong."""
    if not isinstance(count, int) or count == actual:
        return ()
    return (f"its header counts {count} {what}, but it holds {actual}",)


def _triple(header: Facts, what: str) -> tuple[float, ...] | None:
    """Three numbers of the header: ``x_scale``, ``y_scale``, ``z_scale``, or one array ``scale``."""
    of_axes = [header.get(f"{axis}_{what}") for axis in AXES]
    numbers = header.get(what, header.get(f"{what}s", of_axes))
    is_triple = isinstance(numbers, list) and len(numbers) == 3
    if is_triple and all(isinstance(number, int | float) for number in numbers):
        return tuple(map(float, numbers))
    return None


class Columns(PointSource):
    """Reads arrays with one row per point."""

    def __init__(self, opened: Opened, layout: Layout) -> None:
        self.opened = opened
        self.layout = layout
        self._paths = layout.arrays
        self._arrays: dict[str, Array] = {}
        self._decoded: dict[str, tuple[int, NDArray[Any]]] = {}
        self.rows = self.count()

    def count(self) -> int:
        """Points of the file."""
        return len(self.array(self.layout.xyz[0]))

    def array(self, path: str) -> Array:
        """An array, which is opened once."""
        if path not in self._arrays:
            self._arrays[path] = self.opened.arrays[path]
        return self._arrays[path]

    def read(self, column: str, lo: int, hi: int) -> NDArray[Any]:
        """Rows ``lo:hi`` of a column."""
        path = self._paths[column]
        rows = self.read_rows(path, lo, hi)
        if column == "xyz":
            return rows[:, :3]
        return rows[:, 3:] if path == self._paths.get("xyz") else rows

    def read_rows(self, path: str, lo: int, hi: int) -> NDArray[Any]:
        """Rows ``lo:hi`` of an array. Large chunks that hold further rows are kept, to be decoded once."""
        array = self.array(path)
        chunk = array.chunk_rows
        chunk_bytes = chunk * prod(array.shape[1:]) * array.dtype.itemsize
        if 4 * chunk <= hi - lo or chunk_bytes <= _LARGE:
            return native(array.read(lo, hi))
        first, rows = self._decoded.get(path, (0, np.empty(0)))
        if lo < first or hi > first + len(rows):
            self._decoded.pop(path, None)
            first = lo // chunk * chunk
            rows = native(array.read(first, min(-(-hi // chunk) * chunk, len(array))))
            self._decoded[path] = first, rows
        return rows[lo - first : hi - first]


def native(rows: NDArray[Any]) -> NDArray[Any]:
    """The same rows in native byte order, each value beside the next."""
    return np.ascontiguousarray(rows, rows.dtype.newbyteorder("="))
