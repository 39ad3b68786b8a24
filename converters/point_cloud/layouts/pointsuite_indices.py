"""``pointsuite_indices``: ``data/{x, y, z, …}`` and sorted rows, ``segments/segment_0000/indices``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.hdf5 import file as hdf5
from unistore.converters.files.hdf5 import library as h5py
from unistore.converters.files.hdf5.file import SUFFIXES, check_dataset, location_of
from unistore.converters.point_cloud.columns import choose
from unistore.converters.point_cloud.datasets import (
    Datasets,
    count_notes,
    make_layout,
    open_checked,
    open_file,
    opener,
)
from unistore.converters.point_cloud.pointsuite import CURE, SEGMENT_MEMORY, Segments, raise_first
from unistore.converters.point_cloud.source import Indices, Layout, Match
from unistore.converters.scan import Candidate, Source
from unistore.errors import Location, Problem

STEP = 1 << 19
"""Rows of indices that are checked at a time."""

__all__ = ["NAME", "SUFFIXES", "describe", "match", "open_points"]

NAME = "pointsuite_indices"

_KINDS = ("range", "duplicate", "unsorted")

Ints = NDArray[np.int64]


def match(file: Candidate, mapping: Mapping[str, str]) -> Match:
    """Segments beside ``data``."""
    found = open_file(file)
    return Match.CERTAIN if found.segments and "data" in found.tree.groups else Match.NO


def describe(file: Candidate, mapping: Mapping[str, str]) -> Layout:
    """Columns are the datasets of ``data``."""
    found = open_checked(file)
    chosen = choose(NAME, found.arrays, "data", mapping, file.name, check_dataset)
    count = len(found.segments)
    return make_layout(
        found,
        chosen,
        ["indices"],
        segments=count,
        segmented="indices",
        unit="m",
        memory=count * SEGMENT_MEMORY,
        notes=(
            *count_notes(found.file["segments"], "num_segments", count, "segments"),
            *count_notes(hdf5.find(found.file, "header"), "point_count", chosen.points, "points"),
        ),
    )


class _Indexed(Datasets):
    """Reads datasets with one row per point, and the row indices of the segments."""

    def __init__(self, file: h5py.File, source: Source) -> None:
        super().__init__(file, source)
        self._groups = Segments(file, source.name, [Path(root) for root in source.detail["roots"]])

    def segments(self) -> Indices:
        return Indices(self._groups.numbers, _indices(self._groups, self.rows))


open_points = opener(_Indexed)


def _indices(groups: Segments, rows: int) -> Iterator[Iterator[Ints]]:
    """Row numbers of each segment's points, in parts: strictly ascending, inside ``0:rows``.

    Raises the problems of all segments at the end.
    """
    problems: list[Problem] = []
    wrong: dict[str, list[Problem]] = {}
    for number, key in enumerate(groups.keys):
        dataset = groups.member(number, "indices")
        location = location_of(groups.name, f"segments/{key}/indices")
        if isinstance(dataset, Problem):
            problems.append(dataset)
        elif dataset.dtype.kind not in "iu" or dataset.ndim != 1:
            message = f"is {dataset.dtype} {dataset.shape}, expected integers (n,)"
            problems.append(Problem.at(location, message, CURE, "dtype"))
        else:
            yield _ascending(dataset, location, rows, wrong)
    raise_first(problems, groups.name)
    raise_first([problem for each in _KINDS for problem in wrong.get(each, ())], groups.name)


def _ascending(
    dataset: h5py.Dataset, location: Location, rows: int, wrong: dict[str, list[Problem]]
) -> Iterator[Ints]:
    """Row numbers, a step at a time; problems are added to `wrong` by kind."""
    found: dict[str, Problem] = {}
    last = np.empty(0, np.int64)
    for lo in range(0, len(dataset), STEP):
        hi = min(lo + STEP, len(dataset))
        index = hdf5.read_rows(dataset, location, lo, hi).astype(np.int64, copy=False)
        for message, kind in _not_ascending(np.concatenate((last, index)) if lo else index, rows):
            found[kind] = Problem.at(location, message, CURE, kind)
        last = index[-1:]
        yield index
    for kind, problem in found.items():
        wrong.setdefault(kind, []).append(problem)


def _not_ascending(index: Ints, rows: int) -> list[tuple[str, str]]:
    """Message and kind of each way in which indices are not ascending row numbers."""
    step = np.diff(index)
    if index[0] >= 0 and index[-1] < rows and (step > 0).all():
        return []
    checks = (
        (((index < 0) | (index >= rows)).any(), f"points outside the rows 0:{rows} of the file", "range"),
        ((step == 0).any(), "holds a row twice", "duplicate"),
        ((step < 0).any(), "is not sorted", "unsorted"),
    )
    return [(message, kind) for found, message, kind in checks if found]
