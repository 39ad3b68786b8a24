"""Layouts of point clouds: how a file of each is recognised, described and read."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import prod
from typing import ClassVar

import numpy as np

from unistore.converters.formats.hdf5 import OpenedHdf5
from unistore.converters.point_cloud.names import (
    AXES,
    COORDINATES,
    ColumnPlace,
    Described,
    FileLayout,
    Match,
    Segmented,
    cloud_match,
    column_files,
    coordinate_word,
    distinct_names,
    is_coordinates,
    named_coordinates,
    own_names,
    raw_coordinates,
)
from unistore.errors import (
    AddOptions,
    Fixes,
    InputError,
    Location,
    Problem,
    first_few,
    length_table,
    location_of,
    printable,
)
from unistore.plugin import Array, Metadata, OpenFile, SourceFile, name_problem, storable
from unistore.system.types import AnyArray, Shape

# Choose the coordinates and the other columns of a file, by their names or by ``--map``.

NO_COLUMN = "because it is not a column"  # why an array is left out
FEATURES = "features"  # stored name of the values that follow x, y, z in one array
HOW_TO_NAME = "name the coordinates with --map xyz=NAME, or with --map x=NAME --map y=NAME --map z=NAME"
_RAW = "because it is x, y or z before scaling (--map raw_x=X stores one)"
_SHOWN_ARRAYS = 40
# Names of arrays and sample keys that a source's column cannot have
_RESERVED = ("xyz", "source_row", "origin", "index")
_RESERVED_OF_SEGMENTS = ("offsets", "origin", "bounds", "source", "number", "name")


def choose(
    layout: str,
    datasets: Mapping[str, Array],
    group: str,
    mapping: Mapping[str, str],
    name: Location | str,
    *,
    wide: bool = False,
    of_segments: Collection[str] = (),
) -> Described:
    """Choose the coordinates and columns among the datasets of a file, or raise every problem.

    Coordinates are x, y and z (in either case), or one dataset (N, 3) named in `COORDINATES`; with `wide`
    it may have more columns, `features`. A name that differs from another only in case gets a number.
    `mapping` is `--map`: the name or path of a dataset by stored name, empty to skip it. Arrays named in
    `of_segments` have a row for each segment.
    """
    own = own_names(datasets, group)
    raw: tuple[str, ...] = ()
    if not set(mapping) & {*AXES, "xyz"}:
        raw = raw_coordinates({key: datasets[path] for key, path in own.items()})
    unscaled = [own.pop(key) for key in raw if key not in mapping.values()]
    stored, problems = _named(own, datasets, mapping, name)
    notes: list[str] = []
    ambiguous: list[Problem] = []
    if not {*AXES, "xyz"} & set(stored):
        ambiguous = _name_coordinates(stored, datasets, name, notes, wide=wide)
        problems += ambiguous
    renamed = distinct_names(stored, mapping)
    notes += [
        f"{printable(key)} differs from another column only in case, so it is stored as {printable(other)}"
        for key, other in renamed.items()
    ]
    stored = {renamed.get(key, key): path for key, path in stored.items()}
    xyz = ("xyz",) if "xyz" in stored else AXES
    missing = [role for role in xyz if role not in stored]
    if missing and not ambiguous:
        message = f"has no {', '.join(missing)}; columns: {', '.join(own) or 'none'}"
        problems.append(Problem.at(location_of(name, group), message, HOW_TO_NAME, "missing"))
    for key, path in stored.items():
        problems += _name_problems(key, path, name, xyz, of_segments=path in of_segments)
    if problems:
        raise InputError(problems)
    used = {key: path for key, path in stored.items() if key in xyz or datasets[path].shape != ()}
    problems = list(chain.from_iterable(datasets[path].problems() for path in used.values()))
    if problems:
        raise InputError(problems)
    places = {}
    for key, path in used.items():
        array = datasets[path]
        places[key] = ColumnPlace(path, array.dtype.str, array.shape[1:])
        problems += _form_problems(path, array, name, xyz if key in xyz else ())
    shapes = {path: datasets[path].shape for path in used.values() if path not in of_segments}
    problems += _lengths_problems(shapes, name)
    if problems:
        raise InputError(problems)
    coordinates = {key: places.pop(key) for key in xyz}
    whole = coordinates[xyz[0]]
    shape = datasets[whole.array].shape
    if len(shape) == 2 and shape[1] != 3:
        places[FEATURES] = _features(whole, shape, places, location_of(name, whole.array), wide=wide)
        notes.append(f"{printable(whole.array)} {shape}: the first three are x, y, z, the others {FEATURES}")
    return Described(
        layout=FileLayout(
            name=layout,
            coordinates=coordinates,
            columns={key: place for key, place in places.items() if place.array not in of_segments},
            segment_columns={key: place for key, place in places.items() if place.array in of_segments},
        ),
        points=shape[0],
        notes=tuple(notes),
        left_out=(*[(path, _RAW) for path in unscaled], *left_out_of(datasets, {*used.values(), *unscaled})),
    )


def left_out_of(datasets: Mapping[str, Array], used: Collection[str]) -> list[tuple[str, str]]:
    """Return the paths of datasets with values that are not used, each with the reason."""
    return [
        (path, NO_COLUMN)
        for path, dataset in datasets.items()
        if path not in used and prod(dataset.shape) > 0
    ]


def shown_arrays(datasets: Iterable[str]) -> str:
    """Return names of arrays for a message."""
    return first_few(list(datasets), _SHOWN_ARRAYS) or "none"


def _named(
    own: Mapping[str, str],
    datasets: Mapping[str, Array],
    mapping: Mapping[str, str],
    name: Location | str,
) -> tuple[dict[str, str], list[Problem]]:
    # Dataset by stored name
    problems: list[Problem] = []
    mapped: dict[str, str] = {}
    gone: set[str] = set()
    for key, source_key in mapping.items():
        source = source_key.strip("/") or key
        path = own.get(source) or (source if source in datasets else None)
        if path is None and source_key:
            message = f"--map {key}={source_key}: there is no {source!r}; datasets: {shown_arrays(datasets)}"
            problems.append(Problem.at(name, message, "name one of these datasets", "missing"))
        elif path is not None and source_key:
            mapped[key] = path
        elif path is not None:
            gone.add(path)
    stored: dict[str, str] = {}
    for key, path in own.items():
        if path in gone or path in mapped.values():
            continue
        role = key.lower() if key.lower() in (*AXES, "xyz") else key
        if role == "xyz" and (len(datasets[path].shape) != 2 or datasets[path].shape[1] < 3):
            role = key
        other_column = stored.get(role) or mapped.get(role)
        if other_column is not None:
            message = f"would be stored as {role!r}, like {other_column}"
            problems.append(Problem.at(location_of(name, path), message, _how_to_rename(path), "ambiguous"))
        stored.setdefault(role, path)
    return {**stored, **mapped}, problems


def _name_coordinates(
    stored: dict[str, str],
    datasets: Mapping[str, Array],
    name: Location | str,
    notes: list[str],
    *,
    wide: bool,
) -> list[Problem]:
    # Store the dataset with a name of coordinates as xyz
    usual = named_coordinates({key: datasets[path] for key, path in stored.items()}, wide=wide)
    if len(usual) > 1:
        message = f"contains {' and '.join(usual)}, and each may be the coordinates"
        choices = tuple([AddOptions(("--map", f"xyz={stored[key]}")) for key in usual])
        return [Problem.at(name, message, choices, "ambiguous")]
    for key in usual:
        path = stored.pop(key)
        stored["xyz"] = path
        notes.append(
            f"coordinates are read from {printable(path)} because of its name; --map xyz=NAME chooses another"
        )
    return []


def _features(
    place: ColumnPlace, shape: Shape, names: Iterable[str], location: Location, *, wide: bool
) -> ColumnPlace:
    # Where the values are that follow x, y, z in their dataset. `names` are those of the columns
    if not wide or shape[1] < 3:
        message = f"has shape {shape}, expected (N, 3) for coordinates"
        raise InputError.at(location, message, "save it as (N, 3)", "shape")
    if any(key.lower() == FEATURES for key in names):
        message = f"has shape {shape}; the values after x, y, z would be stored as {FEATURES!r}, which exists"
        raise InputError.at(location, message, _how_to_rename(place.array), "ambiguous")
    return place._replace(row_shape=(shape[1] - 3,))


def _name_problems(
    key: str, path: str, name: Location | str, xyz: Collection[str], *, of_segments: bool
) -> Iterator[Problem]:
    # The problem of a stored name that is invalid for an array, or reserved
    reserved = (*_RESERVED, *_RESERVED_OF_SEGMENTS) if of_segments else _RESERVED
    reason = name_problem(key) or ("it contains a slash" if "/" in key else "")
    if key in reserved and key not in xyz:
        reason = "the name is reserved"
    if reason:
        message = f"cannot be stored as {key!r}: {reason}"
        yield Problem.at(location_of(name, path), message, _how_to_rename(path), "name")


def _form_problems(path: str, array: Array, name: Location | str, xyz: Collection[str]) -> Iterator[Problem]:
    # Problem of the dtype or the shape of a column. `xyz` are the names of coordinates if it is one
    shape = array.shape
    dtype = array.dtype
    largest = {"f": 8, "i": 4, "u": 4}.get(dtype.kind, 0)
    axes = "(N, 3)" if len(xyz) == 1 else "(N,)"
    location = location_of(name, path)
    fix = AddOptions(("--map", f"{path}="), "to skip it")
    if xyz and dtype.itemsize > largest:
        message = f"has dtype {dtype}, expected a float or an integer of at most 32 bits for coordinates"
        yield Problem.at(location, message, "write it again as float64", "dtype")
    elif xyz and len(shape) != (2 if len(xyz) == 1 else 1):
        message = f"has shape {shape}, expected {axes} for coordinates"
        yield Problem.at(location, message, HOW_TO_NAME, "shape")
    elif not storable(dtype):
        message = f"has dtype {dtype}, expected bool, integers or floats of up to 8 bytes"
        yield Problem.at(location, message, fix, "dtype")
    elif 0 in shape[1:]:
        yield Problem.at(location, f"has rows of shape {shape[1:]}, which contain no values", fix, "empty")


def _lengths_problems(shapes: Mapping[str, Shape], name: Location | str) -> list[Problem]:
    # The problem with a table of lengths, if columns differ in length
    lengths = {printable(path): shape[0] if shape else 0 for path, shape in shapes.items()}
    if len(set(lengths.values())) < 2:
        return []
    most = max(lengths.values(), key=list(lengths.values()).count)
    words: list[str] = []
    for path, rows in shapes.items():
        if (rows[0] if rows else 0) != most:
            words += ["--map", f"{path}="]
    fix = AddOptions(tuple(words), "to skip them"), "write the file again"
    return [Problem.at(name, f"columns differ in length:\n{length_table(lengths)}\n   ", fix, "length")]


def _how_to_rename(path: str) -> Fixes:
    plain = re.sub("[^0-9A-Za-z]+", "_", path).strip("_") or "column"
    rename = AddOptions(("--map", f"{plain}_2={path}"), "to rename it")
    return rename, AddOptions(("--map", f"{path}="), "to skip it")


_HEADER = "header"


class Points(ABC):
    """The points of an open file, of one layout."""

    name: ClassVar[str]  # name in `sources/layout` of a store
    segments_alike: ClassVar[bool] = False  # whether columns of segments have one row, which is that of each
    rows: int  # points of the source

    def __init__(self, opened: OpenFile, layout: FileLayout) -> None:
        self.opened = opened
        self.layout = layout

    @classmethod
    @abstractmethod
    def match(cls, opened: OpenFile, mapping: Mapping[str, str]) -> Match:
        """Say how sure it is that a file has this layout, by names, shapes and dtypes."""

    @classmethod
    @abstractmethod
    def describe(cls, opened: OpenFile, mapping: Mapping[str, str]) -> Described:
        """Describe what a file holds, without reading values. `mapping` is that of `choose`."""

    @abstractmethod
    def read(self, column: str, lo: int, hi: int) -> AnyArray:
        """Read rows ``lo:hi`` of a column of the points, by stored name, in native byte order."""

    def segments(self) -> Segmented | None:
        """Return the segments of the file, or None."""
        return None

    def segment_column(self, key: str) -> AnyArray:
        """Read a column of the segments, (S, …), by stored name."""
        raise KeyError(key)


class ColumnPoints(Points):
    """``columns``: x, y and z, or one array of coordinates, in a group of a file or named by ``--map``."""

    name: ClassVar[str] = "columns"

    @classmethod
    def match(cls, opened: OpenFile, mapping: Mapping[str, str]) -> Match:
        """Be certain with x, y, z or usual names. Any file is possible, as ``--map`` may name its columns."""
        del mapping
        groups = ("", *opened.groups)
        if any(_has_coordinates(opened, group) for group in groups):
            return Match.CERTAIN
        return max(Match.POSSIBLE, *(cloud_match(_own(opened, group)) for group in groups))

    @classmethod
    def describe(cls, opened: OpenFile, mapping: Mapping[str, str]) -> Described:
        """Choose the group and its columns."""
        group = _group_of_columns(opened, mapping)
        chosen = choose(cls.name, columns_of(opened), group, mapping, opened.name, wide=True)
        return described(opened, chosen, chosen.layout.paths)

    def __init__(self, opened: OpenFile, layout: FileLayout) -> None:
        super().__init__(opened, layout)
        self._arrays: dict[str, Array] = {}
        self._decoded: dict[str, tuple[int, AnyArray]] = {}
        self.rows = len(self.array(layout.paths[0]))

    def array(self, path: str) -> Array:
        """Return an array, which is opened once."""
        if path not in self._arrays:
            self._arrays[path] = self.opened.arrays[path]
        return self._arrays[path]

    def read(self, column: str, lo: int, hi: int) -> AnyArray:
        """Read rows. What follows x, y, z in their array is a column of its own."""
        path = self.layout.points[column].array
        xyz = self.layout.coordinates.get("xyz")
        rows = self._read_rows(path, lo, hi)
        if column == "xyz":
            return rows[:, :3]
        return rows[:, 3:] if xyz is not None and path == xyz.array else rows

    def _read_rows(self, path: str, lo: int, hi: int) -> AnyArray:
        # Read rows of an array. Of large chunks all rows are kept, to be decoded once
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
    """``arrays``: ``.npz`` files of columns, ``.npy`` files of coordinates with columns beside them.

    Coordinates are one array with a usual name, (N, 3) or wider with x, y, z first.
    """

    name: ClassVar[str] = "arrays"

    @classmethod
    def match(cls, opened: OpenFile, mapping: Mapping[str, str]) -> Match:
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
    def describe(cls, opened: OpenFile, mapping: Mapping[str, str]) -> Described:
        """Choose the columns. Those in other files are named by their word: ``color`` for ``a_color.npy``."""
        chosen = choose(cls.name, opened.arrays, "", mapping, opened.name, wide=True)
        return replace(chosen, memory=opened.memory)


def is_npy(file: SourceFile) -> bool:
    """Return whether a file holds one array without a name."""
    return file.name.lower().endswith(".npy")


class _OfPoints(Array):
    # An array (B, P, …), whose rows are points: those of one batch behind those of another
    __slots__ = ()

    def problems(self, *, as_objects: bool = False) -> Sequence[Problem]:
        problems: Sequence[Problem] = self.values.problems(as_objects=as_objects)
        return problems

    @property
    def shape(self) -> Shape:
        count, points, *inner = self.values.shape
        return (count * points, *([] if inner == [1] else inner))

    @property
    def chunk_rows(self) -> int:
        points: int = self.values.shape[1]
        batches: int = self.values.chunk_rows
        return batches * points

    def read(self, lo: int, hi: int, out: AnyArray | None = None) -> AnyArray:
        del out
        points = max(1, self.values.shape[1])
        first = lo // points
        batches: AnyArray = self.values.read(first, -(-hi // points))
        rows = batches.reshape(-1, *self.shape[1:])
        return rows[lo - first * points : hi - first * points]


class Batches(ColumnPoints):
    """``batches`` of the PointNet family: ``data`` (B, P, 3 | 6 | 9), B segments of P points each.

    Arrays (B, P, …) such as `label` describe points; (B,), (B, 1) or (B, k) describe segments.
    """

    name: ClassVar[str] = "batches"

    @classmethod
    def match(cls, opened: OpenFile, mapping: Mapping[str, str]) -> Match:
        """Look at the shape of ``data``. Be certain if there is a ``label`` of integers."""
        data = opened.all_arrays.get("data")
        is_batches = data is not None and len(data.shape) == 3 and data.shape[2] in (3, 6, 9)
        if not is_batches or {"x", "xyz"} & set(mapping):
            return Match.NO
        label = opened.all_arrays.get("label")
        return Match.CERTAIN if label is not None and label.dtype.kind in "iu" else Match.POSSIBLE

    @classmethod
    def describe(cls, opened: OpenFile, mapping: Mapping[str, str]) -> Described:
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
                raise InputError.at(location, message, "write the file again", "length")
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

    def segment_column(self, key: str) -> AnyArray:
        """Read an array with a row for each segment."""
        place = self.layout.segment_columns[key]
        array = self.array(place.array)
        return native(array.read(0, len(array))).reshape(len(array), *place.row_shape)


def _group_of_columns(opened: OpenFile, mapping: Mapping[str, str]) -> str:
    # Group whose arrays are the columns: the one of the mapped x, or the only one with x, y and z
    arrays = opened.all_arrays
    anchor = (mapping.get("x") or mapping.get("xyz") or "").strip("/")
    every = ("", *opened.groups)
    if not anchor:
        # Those with x, y and z. Else with coordinates by another name. Else with two of x, y and z
        groups = (
            [group for group in every if _has_coordinates(opened, group)]
            or [group for group in every if named_coordinates(_own(opened, group))]
            or [group for group in every if _has_coordinates(opened, group, least=2)]
        )
    elif anchor in arrays:
        groups = [anchor.rpartition("/")[0]]
    else:
        groups = [path.rpartition("/")[0] for path in arrays if path.endswith(f"/{anchor}")]
    if len(groups) > 1:
        message = f"several groups contain x, y, z: {', '.join(group or '/' for group in groups)}"
        choices = [_coordinates_in(opened, group) for group in groups]
        raise InputError.at(opened.name, message, tuple(choices), "ambiguous")
    if not groups:
        message = f"has no x, y, z; datasets: {shown_arrays(arrays)}"
        raise InputError.at(opened.name, message, HOW_TO_NAME, "missing")
    return groups[0]


def _coordinates_in(opened: OpenFile, group: str) -> AddOptions:
    # Option that chooses the coordinates of a group
    paths = own_names(opened.all_arrays, group)
    axis = next((path for key, path in paths.items() if key.lower() == "x"), "")
    if axis:
        return AddOptions(("--map", f"x={axis}"))
    name = next(key for key in (*named_coordinates(_own(opened, group)), *paths))
    return AddOptions(("--map", f"xyz={paths[name]}"))


def _own(opened: OpenFile, group: str) -> dict[str, Array]:
    # Arrays directly in a group, by name
    arrays = opened.all_arrays
    return {key: arrays[path] for key, path in own_names(arrays, group).items()}


def _has_coordinates(opened: OpenFile, group: str, least: int = 3) -> bool:
    # Whether a group has ``xyz``, or at least `least` of x, y and z. Broken links count, to be reported
    broken = [problem.dataset for problem in opened.unreachable]
    own = {key.lower() for key in own_names((*opened.all_arrays, *broken), group)}
    return len(own.intersection(AXES)) >= least or "xyz" in own


def columns_of(opened: OpenFile) -> dict[str, Array]:
    """Return arrays that may be columns, and those that would be if they could be read."""
    if not isinstance(opened, OpenedHdf5):
        return dict(opened.arrays)
    unsound = {problem.dataset for problem in opened.problems}
    return {
        path: array
        for path, array in opened.all_arrays.items()
        if path in unsound or (path in opened.arrays and path not in opened.metadata)
    }


def described(opened: OpenFile, chosen: Described, paths: Sequence[str]) -> Described:
    """Complete what is said of a file with its chosen columns: header, attributes, notes, arrays left out."""
    header = opened.metadata
    memory = opened.memory
    if isinstance(opened, OpenedHdf5):
        header = opened.group_metadata(_HEADER) if _HEADER in opened.groups else {}
        memory *= 2 * len(paths)
    scale = _triple(header, "scale")
    offset = _triple(header, "offset")
    quantum = (scale, offset) if scale and offset else None
    return replace(
        chosen,
        layout=chosen.layout._replace(header=header, quantum=quantum),
        notes=(*chosen.notes, *opened.notes.values()),
        left_out=(*chosen.left_out, *opened.left_out.items()),
        memory=chosen.memory + memory,
        attributes=chosen.attributes or opened.attributes(paths.__contains__),
    )


def _triple(header: Metadata, what: str) -> tuple[float, ...]:
    # Three numbers of the header: ``x_scale``, ``y_scale``, ``z_scale``, or one array ``scale``
    of_axes = [header.get(f"{axis}_{what}") for axis in AXES]
    numbers = header.get(what, header.get(f"{what}s", of_axes))
    is_triple = isinstance(numbers, list) and len(numbers) == 3
    if is_triple and all(isinstance(number, int | float) for number in numbers):
        return tuple(map(float, numbers))
    return ()


def native(rows: AnyArray) -> AnyArray:
    """Return the same rows in native byte order, each value beside the next."""
    return np.ascontiguousarray(rows, rows.dtype.newbyteorder("="))
