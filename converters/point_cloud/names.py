"""What point clouds call their coordinates and columns, and when such names are a point cloud's alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

import numpy as np

from unistore.converters.point_cloud.source import ROLES, Match

__all__ = [
    "COLUMNS",
    "COORDINATES",
    "apart",
    "cloud_match",
    "is_column",
    "is_coordinates",
    "named_coordinates",
    "unscaled",
]

COORDINATES = ("xyz", "coord", "coords", "points", "point_cloud", "pointcloud", "vertices", "pos")
"""Names of arrays (N, 3 or more) whose rows begin with x, y, z, in any case."""
_ANY = ("pos",)
"""Of these, names that the positions of other things have too."""
_MOST = 16
"""Values a point, at most, in one array of coordinates and what follows them."""
COLUMNS = (
    *("rgb", "color", "colors", "colour", "colours", "normal", "normals"),
    *("semantic", "semantics", "semantic_gt", "semantic_label", "semantic_labels"),
    *("segment", "segment20", "segment200", "segmentation", "superpoint", "superpoints"),
    *("instance", "instances", "instance_gt", "instance_label", "instance_labels", "instance_ids"),
    *("label", "labels", "class", "classes", "classification"),
    *("intensity", "reflectance", "strength"),
)
"""Names that columns of points have."""


class _Shaped(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...


def is_column(name: str) -> bool:
    """Whether a name is one that columns of points have: colours, normals, classes."""
    return name.lower() in COLUMNS


def is_coordinates(shaped: _Shaped, *, wide: bool = True) -> bool:
    """Whether an array is of numbers (N, 3), or (N, 4 to `_MOST`) where `wide`."""
    shape = shaped.shape
    fits = len(shape) == 2 and 3 <= shape[1] <= (_MOST if wide else 3)
    return fits and shaped.dtype.kind in "iuf"


def named_coordinates(own: Mapping[str, _Shaped], *, wide: bool = True) -> list[str]:
    """Names among arrays that are of coordinates, by name and shape."""
    return [
        key for key, each in own.items() if key.lower() in COORDINATES and is_coordinates(each, wide=wide)
    ]


def cloud_match(own: Mapping[str, _Shaped]) -> Match:
    """Whether arrays that stand side by side are a point cloud, by a name of coordinates among them.

    Beside arrays of as many rows and more axes (an image a row), coordinates are columns of plain rows.
    """
    found = named_coordinates(own)
    if not found:
        return Match.NO
    rows = {own[key].shape[0] for key in found}
    others = {key: each for key, each in own.items() if key not in found}
    if any(len(each.shape) > 2 and each.shape[0] in rows for each in others.values()):
        return Match.NO
    sure = any(key.lower() not in _ANY for key in found) or any(map(is_column, others))
    return Match.CERTAIN if sure else Match.EITHER


def unscaled(own: Mapping[str, _Shaped]) -> tuple[str, ...]:
    """X, Y and Z where they are raw integers beside x, y and z, as readers of LAS have both."""
    raw = tuple(axis.upper() for axis in ROLES)
    if not set(own).issuperset((*ROLES, *raw)) or any(own[axis].dtype.kind not in "iu" for axis in raw):
        return ()
    return raw if all(own[axis].dtype.kind == "f" for axis in ROLES) else ()


def apart(names: Collection[str], kept: Collection[str] = ()) -> dict[str, str]:
    """Another name for each of those that differ from one before in case alone: ``Intensity_2``.

    The name in lower case keeps its own, or else the first; before it those `kept`, which the user gave.
    """
    taken = {name.lower() for name in names}
    first: dict[str, str] = {}
    renamed: dict[str, str] = {}
    for name in sorted(names, key=lambda each: (each not in kept, each != each.lower())):
        if first.setdefault(name.lower(), name) == name or name in kept:
            continue
        number = 2
        while f"{name}_{number}".lower() in taken:
            number += 1
        renamed[name] = f"{name}_{number}"
        taken.add(renamed[name].lower())
    return renamed
