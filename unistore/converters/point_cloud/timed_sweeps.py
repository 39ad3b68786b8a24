"""Sweeps whose times are known: columns of the points, and times of the whole file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from unistore.converters.point_cloud.layouts import ColumnPoints, choose, columns_of, described
from unistore.converters.point_cloud.names import ColumnPlace, Described, Match
from unistore.plugin import Array, OpenFile
from unistore.system.types import AnyArray, Int64s

TIMES = "times"  # metadata of a sweep: its times by name
TIME_UNIT = "ns"
TIME_DESCRIPTION = "time of each sweep since 1970-01-01, on the clock of the recording, which names no zone"


class TimedSweeps(ColumnPoints):
    """``sweeps``: a file of points, and what texts beside it say of its time."""

    name: ClassVar[str] = "sweeps"
    segments_alike: ClassVar[bool] = True

    @classmethod
    def match(cls, opened: OpenFile, mapping: Mapping[str, str]) -> Match:
        """Be as sure as of columns if the file says its time."""
        return super().match(opened, mapping) if TIMES in opened.metadata else Match.NO

    @classmethod
    def describe(cls, opened: OpenFile, mapping: Mapping[str, str]) -> Described:
        """Choose the columns, and the times as columns of segments."""
        times = {f"{TIMES}/{name}": Array(_row(time)) for name, time in opened.metadata[TIMES].items()}
        arrays = {**columns_of(opened), **times}
        named = {name: f"{TIMES}/{name}" for name in opened.metadata[TIMES]}
        chosen = choose(
            cls.name, arrays, "", {**named, **mapping}, opened.name, wide=True, of_segments=times.keys()
        )
        complete = described(opened, chosen, chosen.layout.paths)
        header = {name: value for name, value in complete.layout.header.items() if name != TIMES}
        return replace(complete, layout=complete.layout._replace(header=header))

    def segment_column(self, key: str) -> AnyArray:
        """Return a time, (1,) int64, of the whole file."""
        return _row(self.opened.metadata[TIMES][times_of_layout(self.layout.segment_columns)[key]])


def _row(time: int) -> Int64s:
    return np.array([time], np.int64)


def times_of_layout(segment_columns: Mapping[str, ColumnPlace]) -> dict[str, str]:
    """Return the names that a file has for its times, by the columns of segments that they are."""
    prefix = f"{TIMES}/"
    places = {name: place.array for name, place in segment_columns.items()}
    return {name: path.removeprefix(prefix) for name, path in places.items() if path.startswith(prefix)}
