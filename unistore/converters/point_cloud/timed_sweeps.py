"""Sweeps whose times are known: columns of the points, and times of the whole file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from unistore.converters.formats.sweep_times import TIME_FILES
from unistore.converters.point_cloud.layouts import ColumnPoints, choose, columns_of, described
from unistore.converters.point_cloud.names import Described, Match
from unistore.plugin import Array, OpenFile
from unistore.system.types import AnyArray

TIME_UNIT = "ns"
TIME_DESCRIPTION = "time of each sweep since 1970-01-01, on the clock of the recording, which names no zone"


class TimedSweeps(ColumnPoints):
    """``sweeps``: a file of points, and what texts beside it say of its time."""

    name: ClassVar[str] = "sweeps"
    segments_alike: ClassVar[bool] = True

    @classmethod
    def match(cls, opened: OpenFile, mapping: Mapping[str, str]) -> Match:
        """Be as sure as of columns if the file says its time."""
        return super().match(opened, mapping) if times_in(opened) else Match.NO

    @classmethod
    def describe(cls, opened: OpenFile, mapping: Mapping[str, str]) -> Described:
        """Choose the columns, and the times as columns of segments."""
        times = {name: Array(np.array([time], np.int64)) for name, time in times_in(opened).items()}
        arrays = {**columns_of(opened), **times}
        chosen = choose(cls.name, arrays, "", mapping, opened.name, wide=True, of_segments=times.keys())
        complete = described(opened, chosen, chosen.layout.paths)
        header = {name: fact for name, fact in complete.layout.header.items() if name not in TIME_FILES}
        return replace(complete, layout=complete.layout._replace(header=header))

    def segment_column(self, key: str) -> AnyArray:
        """Return a time, (1,) int64, of the whole file."""
        place = self.layout.segment_columns[key]
        return np.array([times_in(self.opened)[place.array]], np.int64)


def times_in(opened: OpenFile) -> dict[str, int]:
    """Return the times that an open file says, by their names."""
    return {name: opened.facts[name] for name in TIME_FILES if isinstance(opened.facts.get(name), int)}
