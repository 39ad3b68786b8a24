"""Which ``.npy`` files are columns of one cloud, by their names: ``coord``, ``color``, ``segment``."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from unistore.converters.files.paths import is_inside
from unistore.converters.point_cloud.names import COLUMNS, COORDINATES

__all__ = ["column_files", "coordinate_file", "coordinate_word"]

_FILES = (*COORDINATES, "coordinates", "cloud", "pts")
"""Words in names of files whose arrays are of points."""
_FOLDERS = (*_FILES, "clouds", "pointclouds", "point_clouds")


def _pattern(words: Sequence[str]) -> re.Pattern[str]:
    listed = "|".join(sorted(words, key=len, reverse=True))
    return re.compile(rf"(?P<before>|.*[-_. ])(?P<word>{listed})(?P<after>|[-_. ]?\d+)", re.IGNORECASE)


_COORDINATES, _COLUMNS, _OF_CLOUDS = _pattern(_FILES), _pattern(COLUMNS), _pattern(_FOLDERS)


def coordinate_word(path: Path) -> str | None:
    """Word of a file's name, or else of its folder's, that says that its rows are points, or None."""
    match = _COORDINATES.fullmatch(path.stem) or _OF_CLOUDS.fullmatch(path.parent.name)
    return None if match is None else match["word"].lower()


def column_files(coordinates: Path, roots: Sequence[Path]) -> dict[str, Path]:
    """Files beside one of coordinates that are named like it but for a column's word, by that word."""
    return _alike(coordinates, _COORDINATES, COLUMNS, roots)


def coordinate_file(column: Path, roots: Sequence[Path]) -> Path | None:
    """The file of coordinates that a file is a column of, by their names; None if there is none."""
    return next(iter(_alike(column, _COLUMNS, _FILES, roots).values()), None)


def _alike(path: Path, own: re.Pattern[str], others: Sequence[str], roots: Sequence[Path]) -> dict[str, Path]:
    """Files whose names have another word in the place of a file's own."""
    match = own.fullmatch(path.stem)
    if match is None:
        return {}
    named = {word: path.parent / f"{match['before']}{word}{match['after']}{path.suffix}" for word in others}
    there = {word: each for word, each in named.items() if os.path.exists(each)}  # noqa: PTH110  a third of the time
    return {word: each for word, each in there.items() if is_inside(each, roots)}
