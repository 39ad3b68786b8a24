"""Scan a file: find its episodes, their columns, and what it says of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from unistore.converters.trajectory.columns import Episode, EpisodeArrays, Variant
from unistore.converters.trajectory.ends import EndFinder
from unistore.converters.trajectory.episodes import (
    NO_EPISODES,
    EpisodeIndex,
    IndexedEpisode,
    lies_in,
    with_episodes,
)
from unistore.converters.trajectory.layouts import (
    LEROBOT,
    MASKS,
    EpisodeLayout,
    EpisodeRecording,
    masks_of,
    needed_layout,
    recordings_of,
)
from unistore.converters.trajectory.options import TrajectoryOptions
from unistore.converters.trajectory.restored_steps import STATS
from unistore.errors import InputError, Location, Problem, first_few, location_of
from unistore.plugin import (
    FileSummary,
    Group,
    Openable,
    OpenFile,
    ProblemCollector,
    Scanned,
    SourceFile,
    name_problem,
)
from unistore.system.types import JsonObject

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
    metadata: str = "{}"  # JSON: attributes and small arrays of the `source` and of its `episodes`
    # Problems of clocks that no episode here needs, as all its arrays have the rows of the steps
    clock_problems: tuple[Problem, ...] = ()


def scan_source(options: TrajectoryOptions, group: Group, file: Openable) -> ScannedFile:
    """Find the episodes of a file. One of a folder that no format takes is left out, and has none."""
    claim = file.recognised()
    if claim.certainty == "no":
        if file.file.is_given:
            raise InputError(Problem(group.name, claim.reason, "remove it from the command", "missing"))
        return ScannedFile(notes=(f"skipped: {group.name} {claim.reason}",))
    with file.open() as opened:
        head = FileSummary(file.file, file.format.name, opened)
        layout = needed_layout(head, is_mapped=bool(options.map))
        scanned = scan_file(opened, head.format, layout, options)
    return _with_stats(scanned, file.file) if options.keep_stats and layout == LEROBOT else scanned


def _with_stats(scanned: ScannedFile, info: SourceFile) -> ScannedFile:
    """Add the text of ``meta/stats.json`` to the metadata of a LeRobot dataset if the user asks for it."""
    stats = info.beside(STATS)
    stats.check_whole()
    metadata = json.loads(scanned.metadata)
    metadata["source"][STATS] = stats.path.read_bytes().decode()
    files = (*scanned.files, str(stats.path))
    return replace(scanned, metadata=json.dumps(metadata, sort_keys=True), files=files)


def scan_file(
    opened: OpenFile, format: str, layout: EpisodeLayout, options: TrajectoryOptions
) -> ScannedFile:
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
        metadata=episodes.metadata(),
        attributes=attributes,
        problems=tuple(problems),
        excluded=exclusion.covered,
        certain=not options.map,  # what is not recognised without a map is refused
        clock_problems=tuple(with_episodes(episodes.clock_problems, opened.name, groups)),
    )


def _is_told(
    layout: EpisodeLayout, opened: OpenFile, recordings: Sequence[EpisodeRecording], masks: Collection[str]
) -> Callable[[str, str, bool], bool]:
    """Return what says whether the metadata of the file or an episode, or a mask, hold an attribute."""
    groups = {recording.group for recording in recordings}
    if layout.last is None:  # else the metadata are what is said of the file
        groups.add(layout.container or "")
    of_root: Collection[str] = opened.group_metadata() if layout.container else ()

    def is_told(path: str, name: str, is_plain: bool) -> bool:
        if not name:  # a single value
            return path in masks
        return path in groups and name not in of_root and is_plain

    return is_told


def _outside(
    opened: OpenFile, recordings: Sequence[EpisodeRecording], known: Collection[str]
) -> list[tuple[str, str]]:
    """Return the arrays with values that are in no episode, each with the reason."""
    inside = set(known)
    for recording in recordings:
        inside.update(f"{recording.group}/{path}".lstrip("/") for path in recording.arrays)
    return [
        (path, "because it is not in an episode")
        for path, array in opened.all_arrays.items()
        if path not in inside and 0 not in array.shape
    ]


class _SoundEpisodes:
    """Collects the sound episodes of a file."""

    def __init__(self, layout: EpisodeLayout, opened: OpenFile) -> None:
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
        """Add the episodes of a group if they are sound and have steps."""
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
            message = f"contains several episodes in the same arrays, and streams of other rates ({names})"
            fix = "skip the streams with --ignore", "write each episode to a file of its own"
            self.problems.append(Problem.at(recording.location(), message, fix, "clock"))
            return
        variant = episode.variant
        metadata = {path: recording.arrays[path].json() for path in variant.values}
        if self._layout.joined or len(firsts) > 1:
            self._of_file |= metadata if self._layout.joined else {**recording.metadata(), **metadata}
            metadata = {}
        else:
            metadata = {**recording.metadata(), **metadata}
        self.left_out |= episode.left_out
        if variant not in self._variants:
            self._variants.append(variant)
        number = self._variants.index(variant)
        for count, (first, stop) in enumerate(pairwise([*firsts, episode.length])):
            name = f"{recording.name}:{count}" if len(firsts) > 1 else recording.name
            length = stop - first
            clocks = episode.clocks if len(firsts) == 1 else dict.fromkeys(episode.clocks, length)
            self._indexed.append(IndexedEpisode(name, recording.group, first, length, number, clocks))
            self._of_episodes.append(metadata)

    def _first_rows(self, recording: EpisodeRecording, episode: Episode) -> list[int]:
        """Return the first rows of the episodes in a group."""
        divided = EndFinder(recording, episode.columns, episode.length, self._layout.joined).divide()
        location = recording.location()
        if divided.by and (self._layout.joined or len(divided.firsts) > 1):
            cut = "; the last one ends with the file" if divided.is_cut else ""
            by = " and ".join(divided.by)
            self._notes.append(f"{location}: {len(divided.firsts)} episodes by {by}{cut}")
        elif self._layout.joined:
            self._notes.append(f"{location}: no terminals or timeouts, so it is one episode")
        return divided.firsts

    def metadata(self) -> str:
        of_file = {**self._layout.file_metadata(self._opened), **self._of_file}
        return json.dumps({"source": of_file, "episodes": self._of_episodes}, sort_keys=True)

    def index(self, masks: Mapping[str, Sequence[str]], names: Sequence[str]) -> EpisodeIndex:
        """Return the index of the sound episodes. `names` are those of episodes that may have problems."""
        numbers = {episode.name: number for number, episode in enumerate(self._indexed)}
        known = {*names, *numbers}
        numbers_in_masks = {}
        for path, listed in masks.items():
            location = location_of(self._opened.name, path)
            reason = name_problem(path)
            if reason is not None:
                message = f"cannot be the name of a mask: {reason}"
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
        """Return notes on decisions and on what is left out."""
        notes = [*self._notes, *self._clock_notes[:_LISTED]]
        further = len(self._clock_notes) - _LISTED
        if further > 0:
            notes.append(f"{self._opened.name}: {further} more notes on clocks")
        return notes + [f"skipped: {location} has no steps" for location in self._without_steps]
