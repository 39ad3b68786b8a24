"""``arrays``: ``.npz`` files of columns, and ``.npy`` files of coordinates with columns in files beside them.

Coordinates are one array with a usual name, (N, 3) or wider with x, y, z first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.arrays import NPY_NAME, ReadRows, list_arrays, open_arrays
from unistore.converters.parts import Candidate
from unistore.converters.point_cloud.columns import choose
from unistore.converters.point_cloud.datasets import coordinates_or_features
from unistore.converters.point_cloud.names import (
    COORDINATES,
    cloud_match,
    column_files,
    coordinate_word,
    is_coordinates,
)
from unistore.converters.point_cloud.source import Layout, Match, Original, PointSource, column_paths
from unistore.converters.scan import Source

NAME = "arrays"
SUFFIXES = (".npy", ".npz")


@dataclass(frozen=True, slots=True)
class _Header:
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def match(file: Candidate, mapping: Mapping[str, str]) -> Match:
    """By the names of ``.npz`` members, or by that of a ``.npy`` file or its folder."""
    path = file.path
    if not path.name.lower().endswith(SUFFIXES):
        return Match.NO
    headers = _headers(path, file.name, file.roots)
    if path.suffix.lower() == ".npz":
        found = cloud_match(headers)
        return max(found, Match.POSSIBLE) if mapping or any(map(is_coordinates, headers.values())) else found
    if not is_coordinates(headers[NPY_NAME]):
        return Match.NO
    word = coordinate_word(path)
    if word is None:
        return Match.POSSIBLE
    rows = _Header(headers[NPY_NAME].shape[:1], np.dtype(np.uint8))
    columns = dict.fromkeys(column_files(path, file.roots), rows)
    return cloud_match({word if word in COORDINATES else "points": headers[NPY_NAME], **columns})


def describe(file: Candidate, mapping: Mapping[str, str]) -> Layout:
    """Choose the columns; those in other files are named by their word: ``color`` for ``a_color.npy``."""
    path = file.path
    listed = list_arrays(path, file.name, file.roots)
    headers = {key: _Header(*form) for key, form in listed.arrays.items()}
    beside: dict[str, Path] = {}
    if path.suffix.lower() == ".npy":
        headers = {"xyz": headers[NPY_NAME]}
        beside = column_files(path, file.roots)
        headers |= {word: _headers(each, each.name, file.roots)[NPY_NAME] for word, each in beside.items()}
    chosen = choose(NAME, headers, "", mapping, file.name, wide=True)
    used = {path for path, _ in chosen.columns.values()}
    names = [beside[word].name for word in beside if word in used]
    notes = [f"columns are in files beside it: {', '.join(names)}"] if names else []
    return replace(
        chosen,
        files=tuple(beside.values()),
        memory=listed.reading,
        notes=(*chosen.notes, *notes),
    )


def _headers(path: Path, name: str, roots: Sequence[Path]) -> dict[str, _Header]:
    return {key: _Header(*form) for key, form in list_arrays(path, name, roots).arrays.items()}


class _Arrays(PointSource):
    """Columns in open files."""

    def __init__(self, source: Source, read: Mapping[str, tuple[ReadRows, str]], rows: int) -> None:
        self._paths, self._read = column_paths(source.detail), read
        self.rows = rows

    def block(self, columns: Sequence[str], lo: int, hi: int) -> list[NDArray[Any]]:
        found = []
        for column in columns:
            read, array = self._read[self._paths[column]]
            rows = read(array, lo, hi, None)
            found.append(np.ascontiguousarray(coordinates_or_features(self._paths, column, rows)))
        return found


def _locations(source: Source) -> dict[str, tuple[Path, str]]:
    """File and array of each column's path."""
    paths = set(column_paths(source.detail).values())
    if source.path.suffix.lower() == ".npz":
        return {path: (source.path, path) for path in paths}
    beside = column_files(source.path, [Path(root) for root in source.detail["roots"]])
    return {path: (beside.get(path, source.path), NPY_NAME) for path in paths}


@contextmanager
def open_points(source: Source) -> Iterator[PointSource]:
    """Open the file, and those beside it."""
    with ExitStack() as stack:
        locations = _locations(source)
        opened = {
            path: stack.enter_context(open_arrays(path, source.name if path == source.path else path.name))
            for path, _ in locations.values()
        }
        first, array = locations[source.detail["xyz"][0]]
        rows = list_arrays(first, source.name, [first]).arrays[array][0][0]
        yield _Arrays(source, {key: (opened[path], array) for key, (path, array) in locations.items()}, rows)


@contextmanager
def open_original(source: Source) -> Iterator[Original]:
    """Read the arrays with ``np.load`` alone."""
    locations, paths = _locations(source), column_paths(source.detail)

    def column(key: str) -> NDArray[Any]:
        path, array = locations[paths[key]]
        if path.suffix.lower() == ".npy":
            values: NDArray[Any] = np.load(path, allow_pickle=False)
        else:
            with np.load(path, allow_pickle=False) as members:
                values = members[array]
        return coordinates_or_features(paths, key, values)

    left_out: list[str] = []
    if source.path.suffix.lower() == ".npz":
        with np.load(source.path, allow_pickle=False) as members:
            left_out = [name for name in members.files if name not in locations]

    yield Original(column, left_out=left_out)
