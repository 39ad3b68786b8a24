"""Layouts of point clouds: how a file of each is recognised, described and read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.hdf5.attributes import Attributes, IsRewritten, objects_of, read_attributes
from unistore.converters.formats.hdf5 import OpenedHdf5
from unistore.converters.plugin import Array, Facts, Opened, SourceFile
from unistore.converters.point_cloud.columns import (
    FEATURES,
    HOW_TO_NAME,
    choose,
    left_out_of,
    shown_arrays,
)
from unistore.converters.point_cloud.names import (
    COORDINATES,
    cloud_match,
    column_files,
    coordinate_word,
    is_coordinates,
    named_coordinates,
    own_names,
)
from unistore.converters.point_cloud.source import AXES, Described, FileLayout, Match, Segmented
from unistore.errors import InputError, Problem, location_of

_HEADER = "header"


class Points(ABC):
    """The points of an open file, of one layout."""

    name: ClassVar[str]  # name in `sources/layout` of a store
    rows: int  # points of the source

    def __init__(self, opened: Opened, layout: FileLayout) -> None:
        self.opened = opened
        self.layout = layout

    @classmethod
    @abstractmethod
    def match(cls, opened: Opened, mapping: Mapping[str, str]) -> Match:
        """Say how sure it is that a file has this layout, by names, shapes and dtypes."""

    @classmethod
    @abstractmethod
    def describe(cls, opened: Opened, mapping: Mapping[str, str]) -> Described:
        """Describe what a file holds, without reading values. `mapping` is that of `choose`."""

    @abstractmethod
    def read(self, column: str, lo: int, hi: int) -> NDArray[Any]:
        """Read rows ``lo:hi`` of a column of the points, by stored name, in native byte order."""

    def segments(self) -> Segmented | None:
        """Return the segments of the file, or None."""
        return None

    def segment_column(self, key: str) -> NDArray[Any]:
        """Read a column of the segments, (S, …), by stored name."""
        raise KeyError(key)


class ColumnPoints(Points):
    """``columns``: x, y and z, or one array of coordinates, in a group of a file or named by ``--map``."""

    name: ClassVar[str] = "columns"

    @classmethod
    def match(cls, opened: Opened, mapping: Mapping[str, str]) -> Match:
        """Be certain with x, y, z or usual names. Any file is possible, as ``--map`` may name its columns."""
        del mapping
        groups = ("", *opened.groups)
        if any(_has_coordinates(opened, group) for group in groups):
            return Match.CERTAIN
        return max(Match.POSSIBLE, *(cloud_match(_own(opened, group)) for group in groups))

    @classmethod
    def describe(cls, opened: Opened, mapping: Mapping[str, str]) -> Described:
        """Choose the group and its columns."""
        group = _group_of_columns(opened, mapping)
        chosen = choose(cls.name, columns_of(opened), group, mapping, opened.name, wide=True)
        return described(opened, chosen, chosen.layout.paths)

    def __init__(self, opened: Opened, layout: FileLayout) -> None:
        super().__init__(opened, layout)
        self._arrays: dict[str, Array] = {}
        self._decoded: dict[str, tuple[int, NDArray[Any]]] = {}
        self.rows = len(self.array(layout.xyz[0]))

    def array(self, path: str) -> Array:
        """Return an array, which is opened once."""
        if path not in self._arrays:
            self._arrays[path] = self.opened.arrays[path]
        return self._arrays[path]

    def read(self, column: str, lo: int, hi: int) -> NDArray[Any]:
        """Read rows. What follows x, y, z in their array is a column of its own."""
        path = self.layout.arrays[column]
        rows = self._read_rows(path, lo, hi)
        if column == "xyz":
            return rows[:, :3]
        return rows[:, 3:] if path == self.layout.coordinates.get("xyz") else rows

    def _read_rows(self, path: str, lo: int, hi: int) -> NDArray[Any]:
        """Read rows of an array. Of large chunks all rows are kept, to be decoded once."""
        array = self.array(path)
        chunk = array.chunk_rows
        if 4 * chunk <= hi - lo:
            return native(array.read(lo, hi))
        first, rows = self._decoded.get(path, (0, np.empty(0)))
        if lo < first or hi > first + len(rows):
            self._decoded.pop(path, None)
            first = lo // chunk * chunk
            rows = native(array.read(first, min(-(-hi // chunk) * chunk, len(array))))
            self._decoded[path] = first, rows
        return rows[lo - first : hi - first]


class Arrays(ColumnPoints):
    """``arrays``: ``.npz`` files of columns, ``.npy`` files of coordinates with columns beside them."""

    # Coordinates are one array with a usual name, (N, 3) or wider with x, y, z first.

    name: ClassVar[str] = "arrays"

    @classmethod
    def match(cls, opened: Opened, mapping: Mapping[str, str]) -> Match:
        """Decide by the names of the arrays of ``.npz``, or by that of a ``.npy`` file or its folder."""
        assert opened.file is not None
        if not is_npy(opened.file):
            by_name = cloud_match(opened.arrays)
            is_possible = mapping or any(map(is_coordinates, opened.arrays.values()))
            return max(by_name, Match.POSSIBLE) if is_possible else by_name
        coordinates = next(iter(opened.arrays.values()))
        if not is_coordinates(coordinates):
            return Match.NO
        word = coordinate_word(opened.file.path)
        if word is None:
            return Match.POSSIBLE
        beside = dict.fromkeys(column_files(opened.file.path, opened.file.roots), coordinates)
        return cloud_match({word if word in COORDINATES else "points": coordinates, **beside})

    @classmethod
    def describe(cls, opened: Opened, mapping: Mapping[str, str]) -> Described:
        """Choose the columns. Those in other files are named by their word: ``color`` for ``a_color.npy``."""
        chosen = choose(cls.name, opened.arrays, "", mapping, opened.name, wide=True)
        return replace(chosen, memory=opened.memory)


def is_npy(file: SourceFile) -> bool:
    """Return whether a file holds one array without a name."""
    return file.name.lower().endswith(".npy")


class _OfPoints(Array):
    """An array (B, P, …), whose rows are points: those of one batch behind those of another."""

    __slots__ = ()

    def problems(self, *, as_objects: bool = False) -> Sequence[Problem]:
        problems: Sequence[Problem] = self.values.problems(as_objects=as_objects)
        return problems

    @property
    def shape(self) -> tuple[int, ...]:
        count, points, *inner = self.values.shape
        return (count * points, *([] if inner == [1] else inner))

    @property
    def chunk_rows(self) -> int:
        points: int = self.values.shape[1]
        batches: int = self.values.chunk_rows
        return batches * points

    def read(self, lo: int, hi: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        del out
        points = max(1, self.values.shape[1])
        first = lo // points
        batches: NDArray[Any] = self.values.read(first, -(-hi // points))
        rows = batches.reshape(-1, *self.shape[1:])
        return rows[lo - first * points : hi - first * points]


class Batches(ColumnPoints):
    """``batches`` of the PointNet family: ``data`` (B, P, 3 | 6 | 9), B segments of P points each."""

    # Arrays (B, P, …) such as `label` describe points; (B,), (B, 1) or (B, k) describe segments.

    name: ClassVar[str] = "batches"

    @classmethod
    def match(cls, opened: Opened, mapping: Mapping[str, str]) -> Match:
        """Look at the shape of ``data``. Be certain if there is a ``label`` of integers."""
        data = opened.all_arrays.get("data")
        is_batches = data is not None and len(data.shape) == 3 and data.shape[2] in (3, 6, 9)
        if not is_batches or {"x", "xyz"} & set(mapping):
            return Match.NO
        label = opened.all_arrays.get("label")
        return Match.CERTAIN if label is not None and label.dtype.kind in "iu" else Match.POSSIBLE

    @classmethod
    def describe(cls, opened: Opened, mapping: Mapping[str, str]) -> Described:
        """Choose the columns: (B, P, …) of points. (B,), (B, 1) and (B, k) of segments."""
        arrays = columns_of(opened)
        count, points, _ = arrays["data"].shape
        with_points = [path for path, array in arrays.items() if array.shape[1:2] == (points,)]
        if points == 1:
            with_points = ["data"]
        of_points = {path: _OfPoints(arrays[path]) for path in with_points}
        mapped = {key: path.strip("/") for key, path in mapping.items()}
        chosen = choose(
            cls.name,
            {**arrays, **of_points},
            "",
            {**mapped, "xyz": "data"},
            opened.name,
            wide=True,
            of_segments=arrays.keys() - of_points.keys(),
        )
        layout = chosen.layout
        of_segments = {}
        for key, place in layout.segment_columns.items():
            shape = arrays[place.array].shape
            if shape[0] != count:
                message = f"has shape {shape}, expected ({count},), ({count}, 1) or ({count}, {points}, …)"
                location = location_of(opened.name, place.array)
                raise InputError(Problem.at(location, message, "write the file again", "length"))
            of_segments[key] = place._replace(row_shape=() if place.row_shape == (1,) else place.row_shape)
        own = dict(layout.columns)
        features = {FEATURES: own.pop(FEATURES)} if arrays["data"].shape[2] > 3 else {}
        chosen = replace(
            chosen,
            layout=layout._replace(columns={**features, **own}, segment_columns=of_segments),
            segments=count,
            segmented="ranges",
            segments_are_rooms=True,
            memory=2 * points * 9 * 8,
        )
        return described(opened, chosen, chosen.layout.paths)

    def array(self, path: str) -> Array:
        """Return an array, of points if it has one row for each."""
        of_segments = [place.array for place in self.layout.segment_columns.values()]
        array = super().array(path)
        return array if path in of_segments else _OfPoints(array)

    def segments(self) -> Segmented:
        """Return the rows of ``data``."""
        count = len(super().array("data"))
        lengths = np.full(count, self.rows // max(1, count), np.int64)
        return Segmented(np.arange(count, dtype=np.int64), lengths)

    def segment_column(self, key: str) -> NDArray[Any]:
        """Read an array with a row for each segment."""
        place = self.layout.segment_columns[key]
        array = self.array(place.array)
        return native(array.read(0, len(array))).reshape(len(array), *place.row_shape)


def _group_of_columns(opened: Opened, mapping: Mapping[str, str]) -> str:
    """Group whose arrays are the columns: the one of the mapped x, or the only one with x, y and z."""
    arrays = opened.all_arrays
    anchor = (mapping.get("x") or mapping.get("xyz") or "").strip("/")
    if not anchor:
        groups = _groups_with_coordinates(opened)
    elif anchor in arrays:
        groups = [anchor.rpartition("/")[0]]
    else:
        groups = [path.rpartition("/")[0] for path in arrays if path.endswith(f"/{anchor}")]
    if len(groups) > 1:
        message = f"several groups hold x, y, z: {', '.join(group or '/' for group in groups)}"
        cure = "choose one: --map x=GROUP/NAME, or --map xyz=GROUP/NAME"
        raise InputError(Problem(opened.name, message, cure, "ambiguous"))
    if not groups:
        message = f"has no x, y, z; datasets: {shown_arrays(arrays)}"
        raise InputError(Problem(opened.name, message, HOW_TO_NAME, "missing"))
    return groups[0]


def _groups_with_coordinates(opened: Opened) -> list[str]:
    """Groups with x, y and z. Else those with coordinates by another name. Else with two of x, y and z."""
    groups = ("", *opened.groups)
    return (
        [group for group in groups if _has_coordinates(opened, group)]
        or [group for group in groups if named_coordinates(_own(opened, group))]
        or [group for group in groups if _has_coordinates(opened, group, least=2)]
    )


def _own(opened: Opened, group: str) -> dict[str, Array]:
    """Return arrays directly in a group, by name."""
    arrays = opened.all_arrays
    return {key: arrays[path] for key, path in own_names(arrays, group).items()}


def _has_coordinates(opened: Opened, group: str, least: int = 3) -> bool:
    """Whether a group has ``xyz``, or at least `least` of x, y and z. Broken links count, to be reported."""
    broken = [problem.dataset for problem in opened.unreachable]
    own = {key.lower() for key in own_names((*opened.all_arrays, *broken), group)}
    return len(own.intersection(AXES)) >= least or "xyz" in own


def columns_of(opened: Opened) -> dict[str, Array]:
    """Return arrays that may be columns, and those that would be if they could be read."""
    if not isinstance(opened, OpenedHdf5):
        return dict(opened.arrays)
    unsound = {problem.dataset for problem in opened.problems}
    return {
        path: array
        for path, array in opened.all_arrays.items()
        if path in unsound or (path in opened.arrays and path not in opened.facts)
    }


def described(
    opened: Opened,
    chosen: Described,
    paths: Sequence[str],
    inside: Iterable[tuple[str, Any]] = (),
    is_rewritten: IsRewritten = lambda *_: False,
) -> Described:
    """Complete what is said of a file with its chosen columns: header, attributes, what is left out."""
    header = opened.facts
    attributes = Attributes()
    memory = opened.memory
    if isinstance(opened, OpenedHdf5):
        header = opened.group_facts(_HEADER) if _HEADER in opened.groups else {}
        objects = objects_of(opened.handle, opened.tree, paths.__contains__)
        attributes = read_attributes(chain(objects, inside), is_rewritten)
        memory *= 2 * len(paths)
    left_out = left_out_of(columns_of(opened), {*paths, *[path for path, _ in chosen.left_out]})
    return replace(
        chosen,
        layout=chosen.layout._replace(header=header, quantum=_quantum(header)),
        left_out=(*chosen.left_out, *left_out, *opened.left_out.items()),
        memory=chosen.memory + memory,
        attributes=attributes,
    )


def _quantum(header: Facts) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Scale and offset of x, y and z, if the header says both."""
    scale = _triple(header, "scale")
    offset = _triple(header, "offset")
    return (scale, offset) if scale and offset else None


def _triple(header: Facts, what: str) -> tuple[float, ...]:
    """Three numbers of the header: ``x_scale``, ``y_scale``, ``z_scale``, or one array ``scale``."""
    of_axes = [header.get(f"{axis}_{what}") for axis in AXES]
    numbers = header.get(what, header.get(f"{what}s", of_axes))
    is_triple = isinstance(numbers, list) and len(numbers) == 3
    if is_triple and all(isinstance(number, int | float) for number in numbers):
        return tuple(map(float, numbers))
    return ()


def native(rows: NDArray[Any]) -> NDArray[Any]:
    """Return the same rows in native byte order, each value beside the next."""
    return np.ascontiguousarray(rows, rows.dtype.newbyteorder("="))
