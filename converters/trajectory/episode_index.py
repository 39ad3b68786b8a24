"""Index of one source: its episodes, their rows in the file, and the columns of each."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.plugin import Array, Opened
from unistore.converters.trajectory.clocks import Stream
from unistore.converters.trajectory.columns import Feature
from unistore.converters.trajectory.layouts import layout_named
from unistore.converters.trajectory.ragged import RangesOf
from unistore.errors import InputError, Location, Problem, location_of
from unistore.schemas.tables import offsets_of
from unistore.schemas.trajectory.fields import CLOCKS, STEPS


class Variant(NamedTuple):
    """A set of columns that some episodes of a source have; fields as of `Episode`."""

    features: Mapping[str, Feature]
    values: tuple[str, ...]
    empty: Mapping[str, str]
    streams: Mapping[str, Stream] = {}
    """What tells the times of each clock, by its name."""

    @property
    def knows_next(self) -> bool:
        """Whether every observation has a next observation, so that it is known at the last step, too."""
        observations = [column for column in self.features if column.startswith("observation/")]
        return bool(observations) and all(f"next_{column}" in self.features for column in observations)

    @property
    def must_be_compared(self) -> bool:
        """Whether what a store has of these columns depends on all their values."""
        return any(
            column == "truncated" or column.startswith("next_observation/") for column in self.features
        )


class Span(NamedTuple):
    """Rows ``first:first + length`` of the arrays in `group`, which are requested rows from `at` on."""

    group: str
    variant: Variant
    first: int
    length: int
    at: int

    def array(self, opened: Opened, feature: Feature) -> tuple[Array, Location]:
        """An array of the open file, and what messages call it."""
        array, location = array_in(opened, self.group, feature.dataset)
        if feature.offsets:
            array = RangesOf(array, array_in(opened, self.group, feature.offsets)[0])
        return array, location

    def location(self, opened: Opened, path: str = "") -> Location:
        """What messages call the group, or an array in it."""
        return place_in(opened, f"{self.group}/{path}")


class EpisodeIndex(NamedTuple):
    """The episodes of one source, in order."""

    layout: str
    """Name of the file's layout."""
    names: Sequence[str]
    """Name of each episode: ``"demo_1"``, or made from the file's name."""
    groups: Sequence[str]
    """Group of each episode in the file; ``""`` for the root."""
    firsts: Sequence[int]
    """First row of each episode in the group's arrays."""
    lengths: Sequence[int]
    """Steps of each episode."""
    variant: Sequence[int]
    """Index into `variants` of each episode."""
    variants: Sequence[Variant]
    masks: Mapping[str, Sequence[int]]
    """Episode numbers in each mask of the file."""
    clock_lengths: Mapping[str, Sequence[int]] = {}
    """Rows of each episode, by the names of the clocks that are not that of the steps."""

    @property
    def has_streams(self) -> bool:
        """Whether a clock has other rows than the steps, by their number in some episode or by the format."""
        if self.layout and layout_named(self.layout).timed:
            return True
        return any(tuple(rows) != tuple(self.lengths) for rows in self.clock_lengths.values())

    @property
    def must_be_compared(self) -> bool:
        """Whether `derive` must read values."""
        return any(variant.must_be_compared for variant in self.variants)

    def datasets(self) -> set[str]:
        """Paths in the file of all arrays that are converted."""
        found: set[str] = set()
        for group, number in dict.fromkeys(zip(self.groups, self.variant, strict=True)):
            variant = self.variants[number]
            names = [*variant.values, *variant.empty]
            for feature in variant.features.values():
                names += [feature.dataset, feature.offsets] if feature.offsets else [feature.dataset]
            found.update(f"{group}/{name}".strip("/") for name in names)
        return found

    def restricted(self, columns: Collection[str]) -> EpisodeIndex:
        """The same index with only the given columns."""
        variants = []
        for variant in self.variants:
            features = {name: feature for name, feature in variant.features.items() if name in columns}
            variants.append(variant._replace(features=features))
        return self._replace(variants=tuple(variants))

    def on_clocks(self, clocks: Mapping[str, str]) -> EpisodeIndex:
        """The same index with each column on the given clock, or on that of the steps."""
        variants = []
        for variant in self.variants:
            features = {
                name: feature._replace(clock=clocks.get(name, STEPS))
                for name, feature in variant.features.items()
            }
            variants.append(variant._replace(features=features))
        lengths = {clock: self._rows_on(clock, clocks) for clock in dict.fromkeys(clocks.values())}
        return self._replace(variants=tuple(variants), clock_lengths=lengths)

    def _rows_on(self, clock: str, clocks: Mapping[str, str]) -> list[int]:
        """Rows of each episode in the table of a clock, whose columns may have been taken for steps."""
        columns = [column for column, own in clocks.items() if own == clock]
        rows = []
        for episode, number in enumerate(self.variant):
            features = self.variants[number].features
            taken = next((features[column].clock for column in columns if column in features), "")
            if taken == STEPS:
                rows.append(self.lengths[episode])
            else:
                rows.append(self.clock_lengths[clock][episode] if taken else 0)
        return rows

    def rows_in(self, table: str) -> int:
        """Rows of all episodes in a table of the scan."""
        return sum(self.clock_lengths.get(table.removeprefix(f"{CLOCKS}/"), self.lengths))

    def of_clock(self, clock: str) -> EpisodeIndex:
        """The index of the rows of a clock."""
        return self if clock == STEPS else self._replace(lengths=self.clock_lengths[clock])

    @contextmanager
    def episodes_in_problems(self, name: str) -> Iterator[None]:
        """Set `Problem.source` of raised problems to their episode, so that it can be excluded alone."""
        try:
            yield
        except InputError as error:
            raise InputError(with_episodes(error.problems, name, self.groups)) from error

    @property
    def offsets(self) -> NDArray[np.int64]:
        """(episodes + 1,): episode e has the steps ``offsets[e]:offsets[e + 1]`` of the source."""
        return offsets_of(self.lengths)

    def spans(self, lo: int, hi: int) -> Iterator[Span]:
        """Spans of the steps ``lo:hi``; consecutive episodes in the same arrays make one span."""
        offsets = self.offsets
        episode = int(np.searchsorted(offsets, lo, side="right")) - 1
        at = lo
        while at < hi:
            group, variant = self.groups[episode], self.variant[episode]
            first = self.firsts[episode] + at - int(offsets[episode])
            stop = min(hi, int(offsets[episode + 1]))
            episode += 1
            while stop < hi and (
                (self.groups[episode], self.variant[episode], self.firsts[episode])
                == (group, variant, first + stop - at)
            ):
                stop = min(hi, int(offsets[episode + 1]))
                episode += 1
            yield Span(group, self.variants[variant], first, stop - at, at - lo)
            at = stop

    def last_steps(self, lo: int, hi: int) -> Iterator[Span]:
        """Spans of the last step of each of the episodes ``lo:hi``."""
        for episode in range(lo, hi):
            last = self.firsts[episode] + self.lengths[episode] - 1
            variant = self.variants[self.variant[episode]]
            yield Span(self.groups[episode], variant, last, 1, episode - lo)


class Origin(NamedTuple):
    """What is known of a source: its ``detail``."""

    files: tuple[str, ...]  # names, as messages call them
    formats: tuple[str, ...]  # of each
    episodes: EpisodeIndex
    said: str  # attributes of the file and its episodes, see `Said`
    attributes: str  # of the HDF5 file, JSON, see `attribute_texts`
    arrays: tuple[str, ...] = ()


def array_in(opened: Opened, group: str, path: str) -> tuple[Array, Location]:
    """An array of an open file, and what messages call it."""
    name = f"{group}/{path}".strip("/")
    return opened.arrays[name], place_in(opened, name)


def place_in(opened: Opened, path: str) -> Location:
    """What messages call a part of an open file."""
    assert opened.file is not None
    return location_of(opened.file.name, path)


def with_episodes(problems: Sequence[Problem], name: str, groups: Sequence[str]) -> list[Problem]:
    """Problems of a file; `Problem.source` is set to the episode whose group the location lies in, if any."""
    found = []
    for problem in problems:
        owner = next((group for group in groups if lies_in(problem, name, group)), None)
        source = problem.source if owner is None else str(location_of(name, owner))
        found.append(replace(problem, source=source))
    return found


def lies_in(problem: Problem, name: str, group: str) -> bool:
    """Whether a problem is about a group of a file or about something in it."""
    file, path, _ = location_of(name, group)
    if problem.file != file or not problem.dataset:
        return False
    return not path or f"{problem.dataset}/".startswith(f"{path}/")
