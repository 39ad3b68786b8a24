"""Usual names of coordinates, columns and files, and how sure they make that arrays are a point cloud."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from unistore.converters.files.paths import is_inside
from unistore.converters.plugin import Array
from unistore.converters.point_cloud.source import AXES, Match

# Names of arrays (N, 3 or more) whose rows begin with x, y, z, in any case.
COORDINATES = ("xyz", "coord", "coords", "points", "point_cloud", "pointcloud", "vertices", "pos")
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
    """Return how sure it is that the arrays of a file are one point cloud, by names and shapes."""
    # Beside an array of as many rows with three or more axes (images, for instance), they are plain rows.
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
    """Return new names, such as ``Intensity_2``, for names that differ from another in case only."""
    # Of such names the one in `kept` stays as it is, else the one in lower case, else the first.
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
    """Existing files whose names have one of the words `others` in place of the matched one."""
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
