"""Find ``.npy`` files that are columns of one cloud by their names: ``coord``, ``color``, ``segment``."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from unistore.converters.files.paths import is_inside
from unistore.converters.point_cloud.names import COLUMNS, COORDINATES

_FILES = (*COORDINATES, "coordinates", "cloud", "pts")
"""Words in names of files that hold coordinates."""
_FOLDERS = (*_FILES, "clouds", "pointclouds", "point_clouds")


def _pattern(words: Sequence[str]) -> re.Pattern[str]:
    listed = "|".join(sorted(words, key=len, reverse=True))
    return re.compile(rf"(?P<before>|.*[-_. ])(?P<word>{listed})(?P<after>|[-_. ]?\d+)", re.IGNORECASE)


_COORDINATES, _COLUMNS, _FOLDER_NAMES = _pattern(_FILES), _pattern(COLUMNS), _pattern(_FOLDERS)


def coordinate_word(path: Path) -> str | None:
    """Word in the name of a file or its folder that says that it holds coordinates, or None."""
    match = _COORDINATES.fullmatch(path.stem) or _FOLDER_NAMES.fullmatch(path.parent.name)
    return None if match is None else match["word"].lower()


def column_files(coordinates: Path, roots: Sequence[Path]) -> dict[str, Path]:
    """Files beside a file of coordinates whose names have the word of a column instead, by that word."""
    return _files_with_other_word(coordinates, _COORDINATES, COLUMNS, roots)


def coordinate_file(column: Path, roots: Sequence[Path]) -> Path | None:
    """The file of coordinates beside a file of a column, by their names, or None."""
    return next(iter(_files_with_other_word(column, _COLUMNS, _FILES, roots).values()), None)


def _files_with_other_word(
    path: Path, own: re.Pattern[str], others: Sequence[str], roots: Sequence[Path]
) -> dict[str, Path]:
    """Existing files whose names have one of the words `others` in place of the matched one."""
    match = own.fullmatch(path.stem)
    if match is None:
        return {}
    named = {word: path.parent / f"{match['before']}{word}{match['after']}{path.suffix}" for word in others}
    there = {word: each for word, each in named.items() if os.path.exists(each)}  # noqa: PTH110  three times as fast as Path.exists
    return {word: each for word, each in there.items() if is_inside(each, roots)}
