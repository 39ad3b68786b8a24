"""Scanning one trajectory file: its episodes, their rows in the file, their columns, what it says of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from unistore.converters.formats.ragged import RangesOf
from unistore.converters.trajectory.columns import Episode, EpisodeArrays, Feature, Variant
from unistore.converters.trajectory.ends import EndFinder
from unistore.converters.trajectory.layouts import (
    MASKS,
    EpisodeLayout,
    EpisodeRecording,
    layout_named,
    masks_of,
    needed_layout,
    recordings_of,
)
from unistore.converters.trajectory.options import TrajectoryOptions
from unistore.errors import InputError, Location, Problem, first_few, location_of
from unistore.plugin import (
    Array,
    Group,
    Head,
    Openable,
    Opened,
    ProblemCollector,
    Scanned,
    SourceColumn,
    as_json,
    name_problem,
    offsets_of,
)
from unistore.schemas.trajectory.fields import CLOCKS, STEPS
from unistore.system.hints import Int64s, JsonObject

# Index of one source: its episodes, their rows in the file, and the columns of each.

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

    def array(self, opened: Opened, feature: Feature) -> tuple[Array, Location]:
        """Return an array of the open file, and what messages call it."""
        array = opened.arrays[f"{self.group}/{feature.dataset}".strip("/")]
        if feature.offsets:
            array = RangesOf(array, opened.arrays[f"{self.group}/{feature.offsets}".strip("/")])
        return array, self.location(opened, feature.dataset)

    def location(self, opened: Opened, path: str = "") -> Location:
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
        # Rows in the tables of clocks, whose columns may have been taken for steps in this file
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
    facts: str  # JSON: attributes and small arrays of the ``source`` and of its ``episodes``
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


_LISTED = 5


@dataclass(frozen=True, kw_only=True)
class ScannedFile(Scanned):
    """The sound episodes of one file, each of a step or more. `problems` are those of its other episodes."""

    notes: tuple[str, ...]  # on decisions and what is left out
    index: EpisodeIndex = NO_EPISODES
    format: str = ""
    left_out: tuple[tuple[str, str], ...] = ()  # arrays that are not stored, each with the reason
    files: tuple[str, ...] = ()  # other files that are read
    reading: int = 0  # bytes of memory needed to read rows, besides the rows
    facts: str = "{}"  # JSON: attributes and small arrays of the `source` and of its `episodes`
    # Problems of clocks that no episode here needs, as all its arrays have the rows of the steps
    clock_problems: tuple[Problem, ...] = ()


def scan_source(options: TrajectoryOptions, group: Group, file: Openable) -> ScannedFile:
    """Find the episodes of a file. One of a folder that no format takes is left out, and has none."""
    claim = file.recognised()
    if claim.certainty == "no":
        if file.file.is_given:
            raise InputError(Problem(group.name, claim.reason, "leave it out", "missing"))
        return ScannedFile(notes=(f"left out: {group.name} {claim.reason}",))
    with file.open() as opened:
        head = Head(file.file, file.format.name, opened)
        layout = needed_layout(head, is_mapped=bool(options.map))
        return scan_file(opened, head.format, layout, options)


def scan_file(opened: Opened, format: str, layout: EpisodeLayout, options: TrajectoryOptions) -> ScannedFile:
    """Find the episodes of an open file, or raise all its problems if no episode is sound."""
    exclusion = options.exclusion()
    recordings = recordings_of(layout, opened, options.stamps)
    masks = masks_of(layout, opened)
    attributes = opened.attributes(lambda _: True, _is_told(layout, opened, recordings, masks))
    single_values = set[str]() if attributes is None else attributes.single_values
    outside = _outside(opened, recordings, {*masks, *single_values})
    chosen = [recording for recording in recordings if not exclusion.covers(str(recording.location()))]
    groups = [recording.group for recording in chosen]
    episodes = _SoundEpisodes(layout, opened)
    # What cannot be opened is a problem of its episode, or of the file.
    broken: dict[str, list[Problem]] = {}
    for problem in opened.unreachable:
        inside = [recording.group for recording in recordings if recording.group]
        owner = next((group for group in inside if lies_in(problem, opened.name, group)), "")
        broken.setdefault(owner, []).append(problem)
    episodes.problems += broken.pop("", [])
    described = [EpisodeArrays(recording, options) for recording in chosen]
    not_per_step = set[str]().union(*(arrays.not_per_step for arrays in described))
    collected = ProblemCollector(episodes.problems)
    for arrays in described:
        with collected.attempt(arrays.recording.location()):
            episode = arrays.describe(not_per_step)
            episode.problems += broken.get(arrays.recording.group, [])
            episodes.add(arrays.recording, episode)
    index = episodes.index(masks, [recording.name for recording in chosen])
    problems = with_episodes(episodes.problems, opened.name, groups)
    if problems and not index.episodes:
        raise InputError(problems)
    return ScannedFile(
        index=index,
        format=format,
        left_out=(*episodes.left_out.items(), *outside, *opened.left_out.items()),
        notes=(*episodes.notes(), *opened.notes.values()),
        files=tuple(str(file.path) for file in opened.further),
        reading=opened.memory,
        facts=episodes.facts(),
        attributes=attributes,
        problems=tuple(problems),
        excluded=exclusion.covered,
        certain=not options.map,  # what is not recognised without a map is refused
        clock_problems=tuple(with_episodes(episodes.clock_problems, opened.name, groups)),
    )


def _is_told(
    layout: EpisodeLayout, opened: Opened, recordings: Sequence[EpisodeRecording], masks: Collection[str]
) -> Callable[[str, str, bool], bool]:
    """Return what says whether the facts of the file or an episode, or a mask, hold an attribute."""
    groups = {recording.group for recording in recordings} | {layout.container or ""}
    of_root: Collection[str] = opened.group_facts() if layout.container else ()

    def is_told(path: str, name: str, is_plain: bool) -> bool:
        if not name:  # a single value
            return path in masks
        return path in groups and name not in of_root and is_plain

    return is_told


def _outside(
    opened: Opened, recordings: Sequence[EpisodeRecording], known: Collection[str]
) -> list[tuple[str, str]]:
    """Return the arrays with values that are in no episode, each with the reason."""
    inside = set(known)
    for recording in recordings:
        inside.update(f"{recording.group}/{path}".lstrip("/") for path in recording.arrays)
    return [
        (path, "in no episode")
        for path, array in opened.all_arrays.items()
        if path not in inside and 0 not in array.shape
    ]


class _SoundEpisodes:
    # Collects the sound episodes of a file
    def __init__(self, layout: EpisodeLayout, opened: Opened) -> None:
        self._layout = layout
        self._opened = opened
        self.left_out: dict[str, str] = {}
        self.problems: list[Problem] = []
        self.clock_problems: list[Problem] = []
        self._indexed: list[IndexedEpisode] = []
        self._variants: list[Variant] = []
        self._of_file: JsonObject = {}
        self._of_episodes: list[JsonObject] = []
        self._notes: list[str] = []
        self._clock_notes: list[str] = []
        self._without_steps: list[Location] = []

    def add(self, recording: EpisodeRecording, episode: Episode) -> None:
        # Add the episodes of a group if they are sound and have steps
        if episode.problems:
            self.problems += episode.problems
            return
        self._clock_notes += episode.notes
        self.clock_problems += episode.clock_problems
        if episode.length == 0:
            self._without_steps.append(recording.location())
            return
        may_be_joined = self._layout.container is None and not self._layout.timed
        firsts = self._first_rows(recording, episode) if may_be_joined else [0]
        if len(firsts) > 1 and any(rows != episode.length for rows in episode.clocks.values()):
            names = ", ".join(episode.clocks)
            message = f"holds several episodes in the same arrays, and streams of other rates ({names})"
            fix = "write each episode into a file of its own, or leave the streams out with --ignore"
            self.problems.append(Problem.at(recording.location(), message, fix, "clock"))
            return
        variant = episode.variant
        facts = {path: as_json(recording.arrays[path].item()) for path in variant.values}
        if self._layout.joined or len(firsts) > 1:
            self._of_file |= facts if self._layout.joined else {**recording.facts(), **facts}
            facts = {}
        else:
            facts = {**recording.facts(), **facts}
        self.left_out |= episode.left_out
        if variant not in self._variants:
            self._variants.append(variant)
        number = self._variants.index(variant)
        for count, (first, stop) in enumerate(pairwise([*firsts, episode.length])):
            name = f"{recording.name}:{count}" if len(firsts) > 1 else recording.name
            length = stop - first
            clocks = episode.clocks if len(firsts) == 1 else dict.fromkeys(episode.clocks, length)
            self._indexed.append(IndexedEpisode(name, recording.group, first, length, number, clocks))
            self._of_episodes.append(facts)

    def _first_rows(self, recording: EpisodeRecording, episode: Episode) -> list[int]:
        # First rows of the episodes in a group
        divided = EndFinder(recording, episode.columns, episode.length, self._layout.joined).divide()
        location = recording.location()
        if divided.by and (self._layout.joined or len(divided.firsts) > 1):
            cut = ", the last one cut by the end of the file" if divided.is_cut else ""
            by = " and ".join(divided.by)
            self._notes.append(f"{location}: {len(divided.firsts)} episodes by {by}{cut}")
        elif self._layout.joined:
            self._notes.append(f"{location}: no terminals or timeouts: taken as one episode")
        return divided.firsts

    def facts(self) -> str:
        of_file = {**self._layout.file_facts(self._opened), **self._of_file}
        return json.dumps({"source": of_file, "episodes": self._of_episodes}, sort_keys=True)

    def index(self, masks: Mapping[str, Sequence[str]], names: Sequence[str]) -> EpisodeIndex:
        # Index of the sound episodes. `names` are those of episodes that may have problems
        numbers = {episode.name: number for number, episode in enumerate(self._indexed)}
        known = {*names, *numbers}
        numbers_in_masks = {}
        for path, listed in masks.items():
            location = location_of(self._opened.name, path)
            reason = name_problem(path)
            if reason is not None:
                message = f"cannot name a mask of the store: {reason}"
                self.problems.append(Problem.at(location, message, "rename it", "name"))
                continue
            absent = [str(name) for name in listed if name not in known]
            if absent:
                shown = first_few(absent, _LISTED)
                self._notes.append(f"{location}: lists episodes that the file does not have: {shown}")
            own = tuple(numbers[name] for name in listed if name in numbers)
            numbers_in_masks[path.removeprefix(MASKS)] = own
        return EpisodeIndex(self._layout.name, tuple(self._indexed), tuple(self._variants), numbers_in_masks)

    def notes(self) -> list[str]:
        # Notes on decisions and what is left out
        notes = [*self._notes, *self._clock_notes[:_LISTED]]
        further = len(self._clock_notes) - _LISTED
        if further > 0:
            notes.append(f"{self._opened.name}: {further} more remarks on clocks")
        return notes + [f"left out: {location} has no step" for location in self._without_steps]
