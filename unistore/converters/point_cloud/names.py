"""What is known of a file of points without its values, and what usual names say of arrays and files."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from unistore.plugin import Array, Metadata, Scanned, SourceColumn, is_inside
from unistore.system.types import Int64s, Shape

AXES = ("x", "y", "z")
LABEL = "label"  # column of segments with the class of each, if classes are folders


class Match(IntEnum):
    """How sure a layout is that a file has it."""

    NO = 0
    POSSIBLE = 1  # it fits if the file is a point cloud at all
    EITHER = 2  # names and shapes fit, but also fit plain rows
    DAMAGED = 3  # the file cannot be read, which its scan tells
    CERTAIN = 4


class ColumnPlace(NamedTuple):
    """Where a column is in a file: its array, and the form of its rows."""

    array: str
    dtype: str  # byte order included
    row_shape: Shape = ()

    @property
    def form(self) -> SourceColumn:
        """Dtype and row shape."""
        return SourceColumn(self.dtype, self.row_shape)


class FileLayout(NamedTuple):
    """All that is needed to read a file."""

    name: str  # as stores record it
    coordinates: Mapping[str, ColumnPlace]  # of x, y, z, or of xyz: one array (N, 3), or wider with features
    columns: Mapping[str, ColumnPlace]  # of the points, by stored name
    segment_columns: Mapping[str, ColumnPlace] = {}  # of whole segments
    quantum: tuple[tuple[float, ...], tuple[float, ...]] | None = None  # scale and offset of x, y, z
    unit: str | None = None  # of the coordinates; None: the layout does not define it
    header: Metadata = {}  # noqa: RUF012  nobody changes it

    @property
    def xyz_dtype(self) -> str:
        """``"float32"`` if all axes are floats of at most 32 bits, else ``"float64"``."""
        dtypes = [np.dtype(place.dtype) for place in self.coordinates.values()]
        return "float32" if all(dtype.kind == "f" and dtype.itemsize <= 4 for dtype in dtypes) else "float64"

    @property
    def points(self) -> dict[str, ColumnPlace]:
        """Place of every column of the points, coordinates included."""
        return {**self.coordinates, **self.columns}

    @property
    def paths(self) -> list[str]:
        """Every array that is read, once."""
        places = (*self.points.values(), *self.segment_columns.values())
        return list(dict.fromkeys([place.array for place in places]))

    @property
    def places(self) -> dict[str, ColumnPlace]:
        """Place of every column, of points and of segments."""
        return {**self.columns, **self.segment_columns}


@dataclass(frozen=True, kw_only=True)
class Described(Scanned):
    """What a file holds, found without reading values."""

    layout: FileLayout
    points: int
    segments: int = 1  # one if the file has none of its own
    segmented: Literal["indices", "ranges"] | None = None  # rows of its own segments; None: it has none
    segments_are_rooms: bool = False  # lists of rooms have one line for each segment
    segment_arrays: tuple[tuple[str, str], ...] = ()  # role and path of each array that describes segments
    memory: int = 0  # bytes while rows are read, besides the rows: decoded chunks, names of segments
    notes: tuple[str, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()  # arrays that are no columns, each with the reason
    formats: tuple[str, ...] = ()  # of each file
    further: tuple[str, ...] = ()  # paths of other files that are read
    label: tuple[int, str] | None = None  # number and name of its folder's class, if that is its label


class PointOrigin(NamedTuple):
    """Where the points of a source come from: its ``detail``."""

    files: tuple[str, ...]  # names of its files, as messages call them
    formats: tuple[str, ...]  # of these
    arrays: tuple[str, ...]  # as in `Group`
    layout: FileLayout
    attributes: str  # of its HDF5 file, JSON
    rooms: tuple[str, ...] = ()  # name of each segment
    segment_arrays: tuple[tuple[str, str], ...] = ()  # role and path of each array that describes segments
    label: tuple[int, str] | None = None  # number and name of its folder's class, if that is its label


class Segmented(NamedTuple):
    """Number and points of each segment of a file, (S,)."""

    numbers: Int64s
    lengths: Int64s
    rows: Iterable[Int64s] | None = (
        None  # of one segment behind the other, in parts; None: all, in their order
    )


# Names of arrays (N, 3 or more) whose rows begin with x, y, z, in any case.
COORDINATES = ("xyz", "coord", "coords", "points", "point_cloud", "pointcloud", "vertices", "pos")
# Names of columns with the number of each point's segment, in any case
ID_COLUMNS = ("segment_id", "segment_ids", "seg_id", "tile_id", "block_id", "room_id")
# Names that arrays of other things than points have, too
_AMBIGUOUS = ("pos",)
# Columns of one array of coordinates and features, at most
_MAX_WIDTH = 16
# Names of columns of points, in any case.
COLUMNS = (
    *("rgb", "color", "colors", "colour", "colours", "normal", "normals"),
    *("semantic", "semantics", "semantic_gt", "semantic_label", "semantic_labels"),
    *("segment", "segment20", "segment200", "segmentation", "superpoint", "superpoints"),
    *("instance", "instances", "instance_gt", "instance_label", "instance_labels", "instance_ids"),
    *("label", "labels", "class", "classes", "classification"),
    *("intensity", "reflectance", "strength"),
)


def own_names(paths: Iterable[str], group: str) -> dict[str, str]:
    """Return the path of each dataset directly in a group, by its name there."""
    prefix = f"{group}/" if group else ""
    below = {path.removeprefix(prefix): path for path in paths if path.startswith(prefix)}
    return {name: path for name, path in below.items() if "/" not in name}


def is_label(key: str) -> bool:
    """Return whether a column holds classes, by its name."""
    return key.lower() in ("classification", "label", "labels")


def is_coordinates(array: Array, *, wide: bool = True) -> bool:
    """Return whether an array has numbers (N, 3), or up to (N, `_MAX_WIDTH`) if `wide`."""
    shape = array.shape
    fits = len(shape) == 2 and 3 <= shape[1] <= (_MAX_WIDTH if wide else 3)
    return fits and array.dtype.kind in "iuf"


def named_coordinates(own: Mapping[str, Array], *, wide: bool = True) -> list[str]:
    """Return the names of the arrays that are coordinates by name and shape."""
    usual = [name for name in own if name.lower() in COORDINATES]
    return [name for name in usual if is_coordinates(own[name], wide=wide)]


def cloud_match(own: Mapping[str, Array]) -> Match:
    """Return how sure it is that the arrays of a file are one point cloud, by names and shapes.

    In a file with an array of as many rows and three or more axes (images, for instance), they are plain
    rows.
    """
    coordinates = named_coordinates(own)
    if not coordinates:
        return Match.NO
    rows = {own[name].shape[0] for name in coordinates}
    further_names = [name for name in own if name not in coordinates]
    if any(len(own[name].shape) > 2 and own[name].shape[0] in rows for name in further_names):
        return Match.NO
    is_ambiguous = all(name.lower() in _AMBIGUOUS for name in coordinates)
    has_column = any(name.lower() in COLUMNS for name in further_names)
    return Match.EITHER if is_ambiguous and not has_column else Match.CERTAIN


def raw_coordinates(own: Mapping[str, Array]) -> tuple[str, ...]:
    """X, Y and Z if they are raw integers beside x, y and z, as LAS readers give both."""
    raw = tuple(axis.upper() for axis in AXES)
    if not set(own).issuperset((*AXES, *raw)) or any(own[axis].dtype.kind not in "iu" for axis in raw):
        return ()
    return raw if all(own[axis].dtype.kind == "f" for axis in AXES) else ()


def distinct_names(names: Collection[str], kept: Collection[str] = ()) -> dict[str, str]:
    """Return new names, such as ``Intensity_2``, for names that differ from another in case only.

    Of such names, the one in `kept` stays as it is; otherwise the one in lower case; otherwise the first.
    """
    used_names = {name.lower() for name in names}
    first: dict[str, str] = {}
    renamed: dict[str, str] = {}
    for name in sorted(names, key=lambda name: (name not in kept, name != name.lower())):
        if first.setdefault(name.lower(), name) == name:
            continue
        number = 2
        while f"{name}_{number}".lower() in used_names:
            number += 1
        renamed[name] = f"{name}_{number}"
        used_names.add(renamed[name].lower())
    return renamed


# Words in names of files that hold coordinates
_FILES = (*COORDINATES, "coordinates", "cloud", "pts")
_FOLDERS = (*_FILES, "clouds", "pointclouds", "point_clouds")


def _pattern(words: Sequence[str]) -> re.Pattern[str]:
    alternatives = "|".join(sorted(words, key=len, reverse=True))
    return re.compile(rf"(?P<before>|.*[-_. ])(?P<word>{alternatives})(?P<after>|[-_. ]?\d+)", re.IGNORECASE)


_COORDINATES = _pattern(_FILES)
_COLUMNS = _pattern(COLUMNS)
_FOLDER_NAMES = _pattern(_FOLDERS)


def coordinate_word(path: Path) -> str | None:
    """Word in the name of a file or its folder that says that it holds coordinates, or None."""
    match = _COORDINATES.fullmatch(path.stem) or _FOLDER_NAMES.fullmatch(path.parent.name)
    return None if match is None else match["word"].lower()


def column_files(coordinates: Path, roots: Sequence[Path]) -> dict[str, Path]:
    """Files beside a file of coordinates whose names have the word of a column instead, by that word."""
    return _files_with_other_word(coordinates, _COORDINATES, COLUMNS, roots)


def coordinate_file(column: Path, roots: Sequence[Path]) -> Path | None:
    """Return the file of coordinates beside a file of a column, by their names, or None."""
    return next(iter(_files_with_other_word(column, _COLUMNS, _FILES, roots).values()), None)


def _files_with_other_word(
    path: Path, own: re.Pattern[str], others: Sequence[str], roots: Sequence[Path]
) -> dict[str, Path]:
    # Existing files whose names have one of the words `others` in place of the matched one
    match = own.fullmatch(path.stem)
    if match is None:
        return {}
    files: dict[str, Path] = {}
    for word in others:
        other = path.parent / f"{match['before']}{word}{match['after']}{path.suffix}"
        # os.path.exists is three times as fast as Path.exists.
        if os.path.exists(other) and is_inside(other, roots):  # noqa: PTH110
            files[word] = other
    return files
