"""The clocks of all episodes together: which column is on which, and what tells the times of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from unistore.converters.trajectory.clocks import Stream
from unistore.converters.trajectory.episode_index import EpisodeIndex, Variant
from unistore.errors import Problem
from unistore.schemas.trajectory.clocks import table_of
from unistore.schemas.trajectory.fields import STEPS


class MergedClocks:
    """Collects the clocks of all episodes; streams that have as many rows as there are steps are none."""

    def __init__(self) -> None:
        self._clocks: dict[str, str] = {}
        self._streams: dict[str, dict[str, Mapping[str, Any]]] = {}
        self._without_times: dict[str, None] = {}
        self._is_used = False

    def add(self, name: str, index: EpisodeIndex) -> None:
        """Add the episodes of a source."""
        self._is_used = self._is_used or index.has_streams
        for variant in index.variants:
            on_others = {col: one.clock for col, one in variant.features.items() if one.clock != STEPS}
            self._clocks |= on_others
            for clock, stream in variant.streams.items():
                self._streams.setdefault(clock, {})[name] = _told(clock, stream, variant)
            if STEPS not in variant.streams:
                self._without_times[name] = None

    @property
    def of_columns(self) -> Mapping[str, str]:
        """Clock of each column that is on another one than the steps."""
        return self._clocks if self._is_used else {}

    @property
    def told(self) -> Mapping[str, Mapping[str, Any]]:
        """What tells the times of each clock."""
        if not self._is_used:
            return {}
        return {clock: next(iter(by_source.values())) for clock, by_source in self._streams.items()}

    @property
    def problems(self) -> Iterator[Problem]:
        """Clocks whose times are told differently in several sources."""
        if not self._is_used:
            return
        for name in self._without_times:
            message = "nothing tells when its steps were, and others have streams of other rates"
            yield Problem(name, message, "convert it apart, or write action_timestamps", "clock", name)
        for clock, by_source in self._streams.items():
            first, *later_streams = by_source.items()
            for name, stream in later_streams:
                if stream != first[1]:
                    message = f"its clock {clock} has {_words(stream)}, that of {first[0]} {_words(first[1])}"
                    yield Problem(name, message, "convert them apart", "clock", name)


def _told(clock: str, stream: Stream, variant: Variant) -> Mapping[str, Any]:
    """See `clocks_of`."""
    if not stream.timestamps:
        return {"rate": stream.rate}
    columns = (name for name, feature in variant.features.items() if feature.dataset == stream.timestamps)
    return {"timestamps": f"{table_of(clock)}/{next(columns)}", "unit": stream.unit}


def _words(told: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in told.items())
