"""``pointsuite_indices``: ``data/{x, y, z, …}`` and sorted rows, ``segments/segment_0000/indices``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.hdf5 import file as hdf5
from unistore.converters.files.hdf5 import library as h5py
from unistore.converters.plugin import Opened
from unistore.converters.point_cloud.columns import choose
from unistore.converters.point_cloud.datasets import Columns, columns_of, count_notes, described, header_of
from unistore.converters.point_cloud.pointsuite import (
    CURE,
    SEGMENT_MEMORY,
    SEGMENTS,
    Segments,
    has_segments,
    raise_first,
)
from unistore.converters.point_cloud.source import Described, Indices, Match
from unistore.errors import Location, Problem, location_of

STEP = 1 << 19
"""Rows of indices that are checked at a time."""

__all__ = ["NAME", "describe", "match", "points"]

NAME = "pointsuite_indices"

_KINDS = ("range", "duplicate", "unsorted")

Ints = NDArray[np.int64]


def match(opened: Opened, mapping: Mapping[str, str]) -> Match:
    """Segments beside ``data``."""
    return Match.CERTAIN if "data" in opened.groups and has_segments(opened) else Match.NO


def describe(opened: Opened, mapping: Mapping[str, str]) -> Described:
    """Columns are the arrays of ``data``."""
    chosen = choose(NAME, columns_of(opened), "data", mapping, opened.name)
    count = len(Segments(opened).keys)
    segments_said = opened.group_facts(SEGMENTS).get("num_segments")
    points_said = header_of(opened).get("point_count")
    chosen = replace(
        chosen,
        layout=chosen.layout._replace(unit="m"),
        segments=count,
        segmented="indices",
        memory=count * SEGMENT_MEMORY,
        notes=(
            *count_notes(segments_said, count, "segments"),
            *count_notes(points_said, chosen.points, "points"),
            *chosen.notes,
        ),
    )
    return described(opened, chosen, ["indices"])


class Indexed(Columns):
    """Reads arrays with one row per point, and the row indices of the segments."""

    def segments(self) -> Indices:
        """See `PointSource`."""
        groups = Segments(self.opened)
        return Indices(groups.numbers, _indices(groups, self.rows))


points = Indexed


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
    raise_first(chain.from_iterable(wrong.get(kind, ()) for kind in _KINDS), groups.name)


def _ascending(
    dataset: h5py.Dataset, location: Location, rows: int, wrong: dict[str, list[Problem]]
) -> Iterator[Ints]:
    """Row numbers, a step at a time; problems are added to `wrong` by kind."""
    first_problems: dict[str, Problem] = {}
    last = np.empty(0, np.int64)
    for lo in range(0, len(dataset), STEP):
        hi = min(lo + STEP, len(dataset))
        index = hdf5.read_rows(dataset, location, lo, hi).astype(np.int64, copy=False)
        for message, kind in _not_ascending(np.concatenate((last, index)) if lo else index, rows):
            first_problems[kind] = Problem.at(location, message, CURE, kind)
        last = index[-1:]
        yield index
    for kind, problem in first_problems.items():
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
    return [(message, kind) for is_wrong, message, kind in checks if is_wrong]
