"""Describe the episodes of a file: where their steps lie, and the columns of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from unistore.converters.formats.ragged import RangesOf
from unistore.converters.trajectory.columns import Feature, Variant
from unistore.converters.trajectory.layouts import layout_named
from unistore.errors import InputError, Location, Problem, location_of
from unistore.plugin import Array, OpenFile, SourceColumn, offsets_of
from unistore.schemas.trajectory.fields import CLOCKS, STEPS
from unistore.system.types import Int64s

Clocks = Mapping[str, int]  # rows of an episode, by the names of the clocks that are not that of the steps


class IndexedEpisode(NamedTuple):
    """Where an episode lies in a file."""

    name: str  # ``"demo_1"``, or made from the file's name
    group: str  # of its arrays in the file; ``""`` for the root
    first: int  # row of these arrays
    length: int  # steps
    variant: int  # number of its columns in the index
    clocks: Clocks

    def rows_on(self, clock: str) -> int:
        """Return rows in the table of a clock."""
        return self.length if clock == STEPS else self.clocks.get(clock, 0)


class Span(NamedTuple):
    """Rows ``first:first + length`` of the arrays in `group`, which are requested rows from `at` on."""

    group: str
    variant: Variant
    first: int
    length: int
    at: int

    def array(self, opened: OpenFile, feature: Feature) -> tuple[Array, Location]:
        """Return an array of the open file, and what messages call it."""
        array = opened.arrays[f"{self.group}/{feature.dataset}".strip("/")]
        if feature.offsets:
            array = RangesOf(array, opened.arrays[f"{self.group}/{feature.offsets}".strip("/")])
        return array, self.location(opened, feature.dataset)

    def location(self, opened: OpenFile, path: str = "") -> Location:
        """Return what messages call the group, or an array in it."""
        return location_of(opened.name, f"{self.group}/{path}")

    def part(self, lo: int, hi: int, *, later: int = 0) -> Span:
        """Return rows ``lo:hi`` of the span, or as many that come `later`, requested as these rows are."""
        return self._replace(first=self.first + lo + later, length=hi - lo, at=self.at + lo)

    def following(self, last: Int64s) -> Iterator[Span]:
        """Yield the spans of the steps that follow those of this one.

        The `last` step of an episode, as requested rows are counted, stands for the one that would follow it.
        """
        start = 0
        first, stop = np.searchsorted(last, [self.at, self.at + self.length]).tolist()
        for end in (last[first:stop] - self.at).tolist():
            if end > start:
                yield self.part(start, end, later=1)
            yield self.part(end, end + 1)
            start = end + 1
        if start < self.length:
            yield self.part(start, self.length, later=1)


class EpisodeIndex(NamedTuple):
    """The episodes of one source, in order."""

    layout: str
    episodes: Sequence[IndexedEpisode]
    variants: Sequence[Variant]
    masks: Mapping[str, Sequence[int]]  # episode numbers in each mask of the file

    @property
    def has_streams(self) -> bool:
        """Whether a clock has other rows than the steps, by their number in some episode or by the format."""
        if layout_named(self.layout).timed:
            return True
        clocks = {clock for variant in self.variants for clock in variant.streams}
        return any(one.rows_on(clock) != one.length for one in self.episodes for clock in clocks)

    @property
    def must_be_compared(self) -> bool:
        """Whether `derive` must read values."""
        return any(variant.must_be_compared for variant in self.variants)

    @property
    def steps(self) -> int:
        """Steps of all episodes."""
        return sum(episode.length for episode in self.episodes)

    def row_sizes(self) -> Iterator[int]:
        """Yield the bytes of a row of each column."""
        for variant in self.variants:
            yield from (feature.row_bytes for feature in variant.features.values())

    def datasets(self) -> set[str]:
        """Return the paths in the file of all arrays that are converted."""
        datasets: set[str] = set()
        for group, number in {(episode.group, episode.variant) for episode in self.episodes}:
            variant = self.variants[number]
            names = [*variant.values, *variant.empty]
            for feature in variant.features.values():
                names += [feature.dataset, feature.offsets or feature.dataset]
            datasets.update(f"{group}/{name}".strip("/") for name in names)
        return datasets

    def forms(self) -> dict[str, SourceColumn]:
        """Return the form of each column. Of one that episodes have in several forms, the last."""
        forms: dict[str, SourceColumn] = {}
        for variant in self.variants:
            forms |= {column: feature.form for column, feature in variant.features.items()}
        return forms

    def stored_with(self, clocks: Mapping[str, str]) -> EpisodeIndex:
        """Return the same index with only the given columns, each on its clock in the store."""
        variants = []
        for variant in self.variants:
            features = {
                name: feature._replace(clock=clocks[name])
                for name, feature in variant.features.items()
                if name in clocks
            }
            variants.append(variant._replace(features=features))
        streams = {column: clock for column, clock in clocks.items() if clock != STEPS}
        episodes = [
            episode._replace(clocks=self._rows_on_clocks(episode, streams)) for episode in self.episodes
        ]
        return self._replace(variants=variants, episodes=episodes)

    def _rows_on_clocks(self, episode: IndexedEpisode, streams: Mapping[str, str]) -> Clocks:
        """Return rows in the tables of clocks, whose columns may have been taken for steps in this file."""
        features = self.variants[episode.variant].features
        rows = dict.fromkeys(streams.values(), 0)
        for column, clock in streams.items():
            if column in features:
                rows[clock] = episode.rows_on(features[column].clock)
        return rows

    def lengths(self, table: str) -> list[int]:
        """Return rows of each episode in a table of the scan."""
        clock = table.removeprefix(f"{CLOCKS}/") if table.startswith(f"{CLOCKS}/") else STEPS
        return [episode.rows_on(clock) for episode in self.episodes]

    @contextmanager
    def episodes_in_problems(self, name: str) -> Iterator[None]:
        """Set `Problem.source` of raised problems to their episode, so that it can be excluded alone."""
        try:
            yield
        except InputError as error:
            groups = [episode.group for episode in self.episodes]
            raise InputError(with_episodes(error.problems, name, groups)) from error

    def spans(self, table: str, lo: int, hi: int) -> Iterator[Span]:
        """Spans of the rows ``lo:hi`` of a table. Consecutive episodes in the same arrays make one span."""
        offsets = offsets_of(self.lengths(table))
        number = int(np.searchsorted(offsets, lo, side="right")) - 1
        start = lo
        while start < hi:
            episode = self.episodes[number]
            first = episode.first + start - int(offsets[number])
            stop = min(hi, int(offsets[number + 1]))
            number += 1
            while stop < hi:
                following = self.episodes[number]
                place = (episode.group, episode.variant, first + stop - start)
                if (following.group, following.variant, following.first) != place:
                    break
                stop = min(hi, int(offsets[number + 1]))
                number += 1
            yield Span(episode.group, self.variants[episode.variant], first, stop - start, start - lo)
            start = stop

    def last_steps(self, lo: int, hi: int) -> Iterator[Span]:
        """Spans of the last step of each of the episodes ``lo:hi``."""
        for number, episode in enumerate(self.episodes[lo:hi]):
            last = episode.first + episode.length - 1
            yield Span(episode.group, self.variants[episode.variant], last, 1, number)

    @property
    def offsets(self) -> Int64s:
        """(episodes + 1,): episode e has the steps ``offsets[e]:offsets[e + 1]`` of the source."""
        return offsets_of(self.lengths(STEPS))


NO_EPISODES = EpisodeIndex("", (), (), {})


class EpisodeOrigin(NamedTuple):
    """What is known of a source: its ``detail``."""

    files: tuple[str, ...]  # names, as messages call them
    formats: tuple[str, ...]  # of each
    episodes: EpisodeIndex
    metadata: str  # JSON: attributes and small arrays of the ``source`` and of its ``episodes``
    attributes: str  # of the HDF5 file, JSON, see `attribute_texts`


def with_episodes(problems: Sequence[Problem], name: str, groups: Sequence[str]) -> list[Problem]:
    """Problems of a file. `Problem.source` is set to the episode whose group the location lies in, if any."""
    with_source = []
    for problem in problems:
        owner = next((group for group in groups if lies_in(problem, name, group)), None)
        source = problem.source if owner is None else str(location_of(name, owner))
        with_source.append(replace(problem, source=source))
    return with_source


def lies_in(problem: Problem, name: str, group: str) -> bool:
    """Return whether a problem is about a group of a file or about something in it."""
    file, path, _ = location_of(name, group)
    is_inside = not path or f"{problem.dataset}/".startswith(f"{path}/")
    return problem.file == file and bool(problem.dataset) and is_inside
