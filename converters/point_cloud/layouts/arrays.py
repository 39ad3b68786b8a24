"""``arrays``: ``.npz`` files of columns, and ``.npy`` files of coordinates with columns in files beside them.

Coordinates are one array with a usual name, (N, 3) or wider with x, y, z first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from unistore.converters.plugin import Opened, SourceFile
from unistore.converters.point_cloud.columns import choose
from unistore.converters.point_cloud.datasets import Columns
from unistore.converters.point_cloud.names import (
    COORDINATES,
    Shape,
    cloud_match,
    column_files,
    coordinate_word,
    is_coordinates,
)
from unistore.converters.point_cloud.source import Described, Match

__all__ = ["NAME", "describe", "match", "points"]

NAME = "arrays"

points = Columns


def match(opened: Opened, mapping: Mapping[str, str]) -> Match:
    """By the names of the arrays of ``.npz``, or by that of a ``.npy`` file or its folder."""
    assert opened.file is not None
    if is_npy(opened.file):
        return _match_of_one(opened, opened.file)
    sure = cloud_match(opened.arrays)
    if mapping or any(map(is_coordinates, opened.arrays.values())):
        return max(sure, Match.POSSIBLE)
    return sure


def is_npy(file: SourceFile) -> bool:
    """Whether a file holds one array without a name."""
    return file.name.lower().endswith(".npy")


def _match_of_one(opened: Opened, file: SourceFile) -> Match:
    coordinates = next(iter(opened.arrays.values()))
    if not is_coordinates(coordinates):
        return Match.NO
    word = coordinate_word(file.path)
    if word is None:
        return Match.POSSIBLE
    rows = Shape(coordinates.shape[:1], coordinates.dtype)
    columns = dict.fromkeys(column_files(file.path, file.roots), rows)
    return cloud_match({word if word in COORDINATES else "points": coordinates, **columns})


def describe(opened: Opened, mapping: Mapping[str, str]) -> Described:
    """Choose the columns; those in other files are named by their word: ``color`` for ``a_color.npy``."""
    chosen = choose(NAME, opened.arrays, "", mapping, opened.name, wide=True)
    return replace(chosen, memory=opened.memory)
