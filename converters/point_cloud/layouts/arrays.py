"""``arrays``: ``.npz`` files of columns, and ``.npy`` files of coordinates with columns in files beside them.

Coordinates are one array with a usual name, (N, 3) or wider with x, y, z first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.arrays import NPY_NAME
from unistore.converters.files.npy.archive import open_npz
from unistore.converters.files.npy.array import ArrayValues, NpyHeader, open_npy
from unistore.converters.point_cloud.columns import choose
from unistore.converters.point_cloud.datasets import coordinates_or_features
from unistore.converters.point_cloud.names import (
    COORDINATES,
    cloud_match,
    column_files,
    coordinate_word,
    is_coordinates,
)
from unistore.converters.point_cloud.source import Layout, Match, PointSource, column_paths
from unistore.converters.scan import Candidate, Source

NAME = "arrays"
SUFFIXES = (".npy", ".npz")


def match(file: Candidate, mapping: Mapping[str, str]) -> Match:
    """By the names of ``.npz`` members, or by that of a ``.npy`` file or its folder."""
    path = file.path
    if not path.name.lower().endswith(SUFFIXES):
        return Match.NO
    headers = _headers(path, file.name)
    if path.suffix.lower() == ".npz":
        found = cloud_match(headers)
        return max(found, Match.POSSIBLE) if mapping or any(map(is_coordinates, headers.values())) else found
    if not is_coordinates(headers[NPY_NAME]):
        return Match.NO
    word = coordinate_word(path)
    if word is None:
        return Match.POSSIBLE
    rows = replace(headers[NPY_NAME], shape=headers[NPY_NAME].shape[:1])
    columns = dict.fromkeys(column_files(path, file.roots), rows)
    return cloud_match({word if word in COORDINATES else "points": headers[NPY_NAME], **columns})


def describe(file: Candidate, mapping: Mapping[str, str]) -> Layout:
    """Choose the columns; those in other files are named by their word: ``color`` for ``a_color.npy``."""
    path = file.path
    with _opened(path, file.name) as arrays:
        headers = {key: values.header for key, values in arrays.items()}
        memory = max((values.memory for values in arrays.values()), default=0)
    beside: dict[str, Path] = {}
    if path.suffix.lower() == ".npy":
        headers = {"xyz": headers[NPY_NAME]}
        beside = column_files(path, file.roots)
        headers |= {word: _headers(each, each.name)[NPY_NAME] for word, each in beside.items()}
    chosen = choose(NAME, headers, "", mapping, file.name, wide=True)
    used = {path for path, _ in chosen.columns.values()}
    names = [beside[word].name for word in beside if word in used]
    notes = [f"columns are in files beside it: {', '.join(names)}"] if names else []
    return replace(
        chosen,
        files=tuple(beside.values()),
        memory=memory,
        notes=(*chosen.notes, *notes),
    )


@contextmanager
def _opened(path: Path, name: str) -> Iterator[Mapping[str, ArrayValues]]:
    """Context of the arrays of a file by name; that of a ``.npy`` file is `NPY_NAME`."""
    if path.suffix.lower() == ".npz":
        with open_npz(path, name) as arrays:
            yield arrays
    else:
        with open_npy(path, name) as values:
            yield {NPY_NAME: values}


def _headers(path: Path, name: str) -> dict[str, NpyHeader]:
    with _opened(path, name) as arrays:
        return {key: values.header for key, values in arrays.items()}


class _Arrays(PointSource):
    """Columns in open files."""

    def __init__(self, source: Source, arrays: Mapping[str, ArrayValues]) -> None:
        self._paths, self._arrays = column_paths(source.detail), arrays
        self.rows = arrays[source.detail["xyz"][0]].shape[0]

    def block(self, columns: Sequence[str], lo: int, hi: int) -> list[NDArray[Any]]:
        found = []
        for column in columns:
            rows = self._arrays[self._paths[column]][lo:hi]
            found.append(np.ascontiguousarray(coordinates_or_features(self._paths, column, rows)))
        return found


def locations(source: Source) -> dict[str, tuple[Path, str]]:
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
        places = locations(source)
        files = {path for path, _ in places.values()}
        names = {path: source.name if path == source.path else path.name for path in files}
        opened = {path: stack.enter_context(_opened(path, names[path])) for path in files}
        yield _Arrays(source, {key: opened[path][array] for key, (path, array) in places.items()})
