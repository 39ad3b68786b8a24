"""``pointsuite_columns``: ``segments/segment_0000/{x, y, z, …}``, every segment holds its own columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.faults import is_read_error
from unistore.converters.files.hdf5 import file as hdf5
from unistore.converters.files.hdf5 import library as h5py
from unistore.converters.files.hdf5.chunks import native
from unistore.converters.files.hdf5.file import SUFFIXES, check_dataset, location_of
from unistore.converters.files.hdf5.tree import follow, walk
from unistore.converters.point_cloud.columns import choose
from unistore.converters.point_cloud.datasets import (
    count_notes,
    make_layout,
    open_checked,
    open_file,
    opener,
)
from unistore.converters.point_cloud.pointsuite import CURE, SEGMENT_MEMORY, Segments, raise_first
from unistore.converters.point_cloud.source import Layout, Match, PointSource, Ranges, column_paths
from unistore.converters.scan import Candidate, Source
from unistore.errors import InputError, Location, Problem
from unistore.schemas.tables import offsets_of

__all__ = ["NAME", "SUFFIXES", "describe", "match", "open_points"]

NAME = "pointsuite_columns"

_SUMMARIES = ("unique_labels", "indices")
"""Datasets of a segment that are not columns."""

Ints = NDArray[np.int64]


def match(file: Candidate, mapping: Mapping[str, str]) -> Match:
    """Segments without ``data``."""
    found = open_file(file)
    return Match.CERTAIN if found.segments and "data" not in found.tree.groups else Match.NO


def describe(file: Candidate, mapping: Mapping[str, str]) -> Layout:
    """Columns are those of the first segment."""
    found = open_checked(file)
    groups, names = found.file["segments"], found.segments
    location = location_of(file.name, f"segments/{names[0]}")
    first = follow(groups, names[0], location, file.roots)
    if isinstance(first, Problem):
        raise InputError(first)
    inside = walk(first, location, file.roots)
    if inside.problems:
        raise InputError(inside.problems)
    columns = {key: each for key, each in inside.datasets.items() if key not in _SUMMARIES}
    chosen = replace(choose(NAME, columns, "", mapping, location, check_dataset), left_out=())
    return make_layout(
        found,
        chosen,
        [*chosen.xyz, *(path for path, _ in chosen.columns.values())],
        points=_points_inside(groups, names, chosen.xyz[0]),
        segments=len(names),
        segmented="ranges",
        unit="m",
        memory=len(names) * SEGMENT_MEMORY,
        notes=count_notes(groups, "num_segments", len(names), "segments"),
    )


def _points_inside(segments: h5py.Group, names: Sequence[str], column: str) -> int:
    """Points of all segments that can be opened; the others are reported when they are read."""
    points = 0
    for name in names:
        path = f"{name}/{column}"
        try:
            if isinstance(segments.get(path, getlink=True), h5py.HardLink):
                points += segments[path].shape[0]
        except (KeyError, OSError, RuntimeError) as error:
            if is_read_error(error):
                raise
    return points


class _InSegments(PointSource):
    """Reads the rows of the segments one after the other, by number."""

    def __init__(self, file: h5py.File, source: Source) -> None:
        detail = source.detail
        self._groups = Segments(file, source.name, [Path(root) for root in detail["roots"]])
        self._lengths = _lengths(self._groups, detail["xyz"][0])
        self._offsets = offsets_of(self._lengths)
        self._paths = column_paths(detail)
        own = (3,) if len(detail["xyz"]) == 1 else ()
        forms = [(path, dtype, own) for path, dtype in zip(detail["xyz"], detail["xyz_stored"], strict=True)]
        self._forms = {
            path: (native(np.dtype(dtype)), tuple(row_shape))
            for path, dtype, row_shape in (*detail["columns"].values(), *forms)
        }
        self._problems: dict[Problem, None] = {}
        self.rows = int(self._offsets[-1])

    def block(self, columns: Sequence[str], lo: int, hi: int) -> list[NDArray[Any]]:
        return [self._read(self._paths[column], lo, hi) for column in columns]

    def segments(self) -> Ranges:
        return Ranges(self._groups.numbers, self._lengths)

    def check(self) -> None:
        for number in np.flatnonzero(self._lengths == 0).tolist():
            for path in self._forms:
                self._dataset(number, path)
        raise_first(self._problems, self._groups.name)

    def _read(self, path: str, lo: int, hi: int) -> NDArray[Any]:
        """Rows of the concatenated segments."""
        base, row_shape = self._forms[path]
        rows = np.zeros((hi - lo, *row_shape), base)
        number = int(np.searchsorted(self._offsets, lo, side="right")) - 1
        while number < len(self._groups.keys) and self._offsets[number] < hi:
            start, end = self._offsets[number : number + 2].tolist()
            first, last = max(lo, start), min(hi, end)
            if (found := self._dataset(number, path)) is not None:
                hdf5.read_rows(*found, first - start, last - start, out=rows[first - lo : last - lo])
            number += 1
        return rows

    def _dataset(self, number: int, path: str) -> tuple[h5py.Dataset, Location] | None:
        """A dataset of a segment and its location; None if it has a problem, which is kept."""
        base, row_shape = self._forms[path]
        shape = (int(self._lengths[number]), *row_shape)
        dataset = self._groups.member(number, path)
        location = location_of(self._groups.name, f"segments/{self._groups.keys[number]}/{path}")
        if isinstance(dataset, Problem):
            self._problems[dataset] = None
        elif dataset.shape != shape or native(dataset.dtype) != base:
            message = f"is {dataset.dtype} {dataset.shape}, expected {base} {shape} as the segment's others"
            self._problems[Problem.at(location, message, CURE, "length")] = None
        else:
            return dataset, location
        return None


open_points = opener(_InSegments)


def _lengths(groups: Segments, key: str) -> Ints:
    """Points of each segment (S,), from its column `key`; checks that all have the same columns."""
    lengths: list[int] = []
    problems: list[Problem] = []
    known: set[str] = set()
    for number, name in enumerate(groups.keys):
        names = set(groups.group(number))
        known = known or names
        missing, further = sorted(known - names), sorted(names - known)
        if missing or further:
            said = " and ".join(
                f"{what} {', '.join(found)}"
                for what, found in (("lacks", missing), ("has", further))
                if found
            )
            message = f"{said}, unlike the first segment, which holds {', '.join(sorted(known))}"
            problems.append(
                Problem.at(location_of(groups.name, f"segments/{name}"), message, CURE, "columns")
            )
        dataset = groups.member(number, key)
        if isinstance(dataset, Problem):
            problems.append(dataset)
        else:
            lengths.append(dataset.shape[0] if dataset.shape else 0)
    raise_first(problems, groups.name)
    return np.array(lengths, np.int64)
