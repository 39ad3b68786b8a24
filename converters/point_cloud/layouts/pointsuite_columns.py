"""``pointsuite_columns``: ``segments/segment_0000/{x, y, z, …}``, every segment holds its own columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.faults import is_read_error
from unistore.converters.files.hdf5 import file as hdf5
from unistore.converters.files.hdf5 import library as h5py
from unistore.converters.files.hdf5.chunks import native
from unistore.converters.files.hdf5.tree import walk
from unistore.converters.formats.hdf5 import Dataset
from unistore.converters.plugin import Array, Opened
from unistore.converters.point_cloud.columns import choose
from unistore.converters.point_cloud.datasets import count_notes, described
from unistore.converters.point_cloud.pointsuite import (
    CURE,
    SEGMENT_MEMORY,
    SEGMENTS,
    Segments,
    has_segments,
    raise_first,
)
from unistore.converters.point_cloud.source import Described, Layout, Match, PointSource, Ranges
from unistore.errors import InputError, Location, Problem, location_of
from unistore.schemas.tables import offsets_of

__all__ = ["NAME", "describe", "match", "points"]

NAME = "pointsuite_columns"

# Datasets of a segment that are not columns
_SUMMARIES = ("unique_labels", "indices")

Ints = NDArray[np.int64]


def match(opened: Opened, mapping: Mapping[str, str]) -> Match:
    """Segments without ``data``."""
    return Match.CERTAIN if "data" not in opened.groups and has_segments(opened) else Match.NO


def describe(opened: Opened, mapping: Mapping[str, str]) -> Described:
    """Columns are those of the first segment."""
    segments = Segments(opened)
    location = location_of(segments.name, f"segments/{segments.keys[0]}")
    inside = walk(segments.group(0), location, segments.roots)
    if inside.problems:
        raise InputError(inside.problems)
    columns: dict[str, Array] = {
        key: Dataset(dataset, location_of(location, key))
        for key, dataset in inside.datasets.items()
        if key not in _SUMMARIES and dataset.shape is not None
    }
    chosen = choose(NAME, columns, "", mapping, location)
    layout = chosen.layout
    count = len(segments.keys)
    stated_count = opened.group_facts(SEGMENTS).get("num_segments")
    chosen = replace(
        chosen,
        layout=layout._replace(unit="m"),
        points=_points_inside(segments, layout.xyz[0]),
        segments=count,
        segmented="ranges",
        memory=count * SEGMENT_MEMORY,
        notes=(*count_notes(stated_count, count, "segments"), *chosen.notes),
        left_out=(),
    )
    return described(opened, chosen, [*layout.xyz, *(place.array for place in layout.columns.values())])


def _points_inside(segments: Segments, column: str) -> int:
    """Points of all segments that can be opened; the others are reported when they are read."""
    points = 0
    for name in segments.keys:
        path = f"{name}/{column}"
        try:
            if isinstance(segments.parent.get(path, getlink=True), h5py.HardLink):
                points += segments.parent[path].shape[0]
        except (KeyError, OSError, RuntimeError) as error:
            if is_read_error(error):
                raise
    return points


class InSegments(PointSource):
    """Reads the rows of the segments one after the other, by number."""

    def __init__(self, opened: Opened, layout: Layout) -> None:
        self._groups = Segments(opened)
        self._lengths = _lengths(self._groups, layout.xyz[0])
        self._offsets = offsets_of(self._lengths)
        self._paths = layout.arrays
        row_shape = (3,) if len(layout.xyz) == 1 else ()
        coordinates = zip(layout.xyz, layout.xyz_stored, strict=True)
        self._forms = {
            place.array: (native(np.dtype(place.dtype)), place.row_shape) for place in layout.columns.values()
        }
        self._forms |= {path: (native(np.dtype(dtype)), row_shape) for path, dtype in coordinates}
        self._problems: dict[Problem, None] = {}
        self.rows = int(self._offsets[-1])

    def read(self, column: str, lo: int, hi: int) -> NDArray[Any]:
        """Rows of the concatenated segments."""
        path = self._paths[column]
        base, row_shape = self._forms[path]
        rows = np.zeros((hi - lo, *row_shape), base)
        number = int(np.searchsorted(self._offsets, lo, side="right")) - 1
        while number < len(self._groups.keys) and self._offsets[number] < hi:
            start, end = self._offsets[number : number + 2].tolist()
            first = max(lo, start)
            last = min(hi, end)
            located = self._dataset(number, path)
            if located is not None:
                hdf5.read_rows(*located, first - start, last - start, out=rows[first - lo : last - lo])
            number += 1
        return rows

    def segments(self) -> Ranges:
        """See `PointSource`."""
        return Ranges(self._groups.numbers, self._lengths)

    def check(self) -> None:
        """See `PointSource`."""
        for number in np.flatnonzero(self._lengths == 0).tolist():
            for path in self._forms:
                self._dataset(number, path)
        raise_first(self._problems, self._groups.name)

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


points = InSegments


def _lengths(groups: Segments, key: str) -> Ints:
    """Points of each segment (S,), from its column `key`; checks that all have the same columns."""
    lengths: list[int] = []
    problems: list[Problem] = []
    expected: set[str] = set()
    for number, name in enumerate(groups.keys):
        names = set(groups.group(number))
        expected = expected or names
        lacking = ", ".join(sorted(expected - names))
        further = ", ".join(sorted(names - expected))
        if lacking or further:
            unlike = " and ".join([f"lacks {lacking}"] * bool(lacking) + [f"has {further}"] * bool(further))
            message = f"{unlike}, unlike the first segment, which holds {', '.join(sorted(expected))}"
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
