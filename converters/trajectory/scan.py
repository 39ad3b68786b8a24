"""Scanning one trajectory file: the bounds of its episodes, their columns, and what it says of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from unistore.converters.common.exclusion import Exclusion, ProblemCollector
from unistore.converters.plugin import Facts, Opened, as_json
from unistore.converters.scan import Scanned
from unistore.converters.trajectory.clocks import Stated
from unistore.converters.trajectory.columns import Episode, NamedArrays, flags
from unistore.converters.trajectory.episode_index import EpisodeIndex, Variant, lies_in, with_episodes
from unistore.converters.trajectory.layouts import Layout, Mask, Recording, masks_of, recordings_of
from unistore.converters.trajectory.naming import Naming
from unistore.errors import InputError, Location, Problem, location_of
from unistore.schemas.tables import name_problem

if TYPE_CHECKING:
    from unistore.converters.files.hdf5.attributes import Attributes

_LISTED = 5


@dataclass(frozen=True, kw_only=True)
class ScannedFile(Scanned):
    """The sound episodes of one file, each of a step or more; `problems` are those of its other episodes."""

    index: EpisodeIndex
    format: str
    left_out: tuple[tuple[str, str], ...]
    """Arrays that are not stored, each with the reason."""
    notes: tuple[str, ...]
    """On decisions and what is left out."""
    files: tuple[str, ...]
    """Other files that are read."""
    reading: int
    """Bytes of memory needed to read rows, besides the rows."""
    said: str
    """JSON: attributes and small arrays of the ``source`` and of its ``episodes``."""
    attributes: Attributes | None
    """Those that `said` does not have to the last bit."""


def scan_file(
    opened: Opened,
    format: str,
    layout: Layout,
    naming: Naming,
    exclusion: Exclusion,
    stated: Stated,
    *,
    is_certain: bool,
) -> ScannedFile:
    """Find the episodes of an open file.

    Raises
    ------
    InputError
        With all problems of the file, if no episode of it is sound.
    """
    assert opened.file is not None
    name = opened.file.name
    recordings = recordings_of(layout, opened, stated.stamps)
    masks = masks_of(layout, opened)
    attributes, outside = _outside(layout, opened, recordings, masks)
    chosen = [each for each in recordings if not exclusion.covers(str(each.location()))]
    broken = _by_group(opened.unreachable, name, recordings)
    episodes = _Episodes(name, layout, opened)
    episodes.problems += broken.pop("", [])
    named = [NamedArrays(recording, naming, _said(opened, recording), stated) for recording in chosen]
    not_per_step = set[str]().union(*(arrays.not_per_step for arrays in named))
    collected = ProblemCollector(episodes.problems)
    for arrays in named:
        with collected.attempt(arrays.recording.location()):
            episode = arrays.describe(not_per_step)
            episode.problems += broken.get(arrays.recording.group, [])
            episodes.add(arrays.recording, episode)
    index = episodes.index(masks, [recording.name for recording in chosen])
    problems = with_episodes(episodes.problems, name, [recording.group for recording in chosen])
    if problems and not episodes.sound:
        raise InputError(problems)
    return ScannedFile(
        index=index,
        format=format,
        left_out=(*episodes.left_out.items(), *outside, *opened.left_out.items()),
        notes=(*episodes.notes(), *opened.notes.values()),
        files=tuple(str(file.path) for file in opened.further),
        reading=opened.memory,
        said=episodes.said(),
        attributes=attributes,
        problems=tuple(problems),
        excluded=exclusion.covered,
        certain=is_certain,
    )


def _said(opened: Opened, recording: Recording) -> Callable[[str], Facts]:
    """What a recording says of its arrays and groups."""
    return lambda path: opened.group_facts(f"{recording.group}/{path}".strip("/"))


def without_episodes(note: str) -> ScannedFile:
    """Return what is known of a file that is none of the family's."""
    index = EpisodeIndex(
        layout="", names=(), groups=(), firsts=(), lengths=(), variant=(), variants=(), masks={}
    )
    return ScannedFile(
        index=index, format="", left_out=(), notes=(note,), files=(), reading=0, said="{}", attributes=None
    )


def _outside(
    layout: Layout, opened: Opened, recordings: Sequence[Recording], masks: Sequence[Mask]
) -> tuple[Attributes | None, list[tuple[str, str]]]:
    """Attributes that the JSON has not to the last bit, and arrays with values that are in no episode."""
    groups = {recording.group for recording in recordings}
    groups_with_json = groups | {layout.container or ""}
    listed = {mask.path for mask in masks}
    of_root: Collection[str] = opened.group_facts() if layout.container else ()

    def is_told(path: str, name: str, is_plain: bool) -> bool:
        """Whether a mask has the value, or the JSON of the file or an episode the attribute."""
        if not name:
            return path in listed
        return path in groups_with_json and name not in of_root and is_plain

    attributes = opened.attributes(lambda _: True, is_told)
    inside = {f"{each.group}/{path}".lstrip("/") for each in recordings for path in each.arrays}
    inside |= listed
    if attributes is not None:
        inside |= attributes.single_values
    outside = [
        (path, "in no episode")
        for path, array in opened.all_arrays.items()
        if path not in inside and 0 not in array.shape
    ]
    return attributes, outside


def _by_group(
    problems: Sequence[Problem], name: str, recordings: Sequence[Recording]
) -> dict[str, list[Problem]]:
    """Problems by the group of the episode that they lie in; empty: in none."""
    groups = [recording.group for recording in recordings if recording.group]
    by_group: dict[str, list[Problem]] = {}
    for problem in problems:
        owner = next((group for group in groups if lies_in(problem, name, group)), "")
        by_group.setdefault(owner, []).append(problem)
    return by_group


class _Sound(NamedTuple):
    """A sound episode, with its columns in `EpisodeIndex`."""

    name: str
    group: str
    first: int
    length: int
    variant: int
    lengths: Mapping[str, int]


class _Episodes:
    """Collects the episodes of a file."""

    def __init__(self, name: str, layout: Layout, opened: Opened) -> None:
        self._name, self._layout = name, layout
        self.sound: list[_Sound] = []
        self.left_out: dict[str, str] = {}
        self.problems: list[Problem] = []
        self._variants: list[Variant] = []
        self._opened = opened
        self._of_file: dict[str, Any] = {}
        self._of_episodes: list[dict[str, Any]] = []
        self._notes: list[str] = []
        self._clock_notes: list[str] = []
        self._without_steps: list[Location] = []
        self._count_not_finite = 0

    def add(self, recording: Recording, episode: Episode) -> None:
        """Add the episodes of a group if they are sound and have steps."""
        if episode.problems:
            self.problems += episode.problems
            return
        firsts = self._first_rows(recording, episode) if self._layout.joined else [0]
        if len(firsts) > 1 and any(rows != episode.length for rows in episode.clocks.lengths.values()):
            self.problems.append(_joined_streams(recording, episode))
            return
        self._clock_notes += episode.notes
        self._count_not_finite += _count_not_finite(recording, episode)
        if episode.length == 0:
            self._without_steps.append(recording.location())
            return
        values = {path: as_json(recording.arrays[path].item()) for path in episode.values}
        if self._layout.joined:
            said: dict[str, Any] = {}
            self._of_file |= values
        else:
            said = {**self._opened.group_facts(recording.group), **values}
        self.left_out |= episode.left_out
        clocks = episode.clocks
        variant = Variant(episode.features, tuple(episode.values), episode.empty, clocks.streams)
        if variant not in self._variants:
            self._variants.append(variant)
        number = self._variants.index(variant)
        for count, (first, stop) in enumerate(pairwise([*firsts, episode.length])):
            name = f"{recording.name}:{count}" if len(firsts) > 1 else recording.name
            own = clocks.lengths if len(firsts) == 1 else dict.fromkeys(clocks.lengths, stop - first)
            self.sound.append(_Sound(name, recording.group, first, stop - first, number, own))
            self._of_episodes.append(said)

    def _first_rows(self, recording: Recording, episode: Episode) -> list[int]:
        """First rows of the episodes in a group, which terminal and timeout flags end."""
        location = recording.location()
        ends = np.zeros(episode.length, bool)
        flag_datasets = []
        for column in ("terminated", "truncated"):
            feature = episode.features.get(column)
            if feature is not None:
                array, where = recording.arrays[feature.dataset], recording.location(feature.dataset)
                for lo, hi in feature.blocks(episode.length):
                    ends[lo:hi] |= flags(array[lo:hi], where, lo)
                flag_datasets.append(feature.dataset)
        stops = (np.flatnonzero(ends) + 1).tolist()
        firsts = [0, *(stop for stop in stops if stop < episode.length)]
        if not flag_datasets:
            self._notes.append(f"{location}: no terminals or timeouts: taken as one episode")
        else:
            cut = "" if stops and stops[-1] == episode.length else ", the last one cut by the end of the file"
            by = " and ".join(flag_datasets)
            self._notes.append(f"{location}: {len(firsts)} episodes by {by}{cut}")
        return firsts

    def said(self) -> str:
        """See `ScannedFile`."""
        of_file = {**self._layout.file_facts(self._opened), **self._of_file}
        return json.dumps({"source": of_file, "episodes": self._of_episodes}, sort_keys=True)

    def index(self, masks: Sequence[Mask], groups: Sequence[str]) -> EpisodeIndex:
        """Index of the sound episodes; `groups` are names of episodes that may have problems."""
        numbers = {episode.name: number for number, episode in enumerate(self.sound)}
        listed = self._listed(masks, {*groups, *numbers})
        columns: Sequence[tuple[Any, ...]] = list(zip(*self.sound, strict=True)) or [()] * 6
        names, in_groups, firsts, lengths, variant, of_clocks = columns
        return EpisodeIndex(
            layout=self._layout.name,
            names=names,
            groups=in_groups,
            firsts=firsts,
            lengths=lengths,
            variant=variant,
            variants=tuple(self._variants),
            clock_lengths=_by_clock(of_clocks),
            masks={
                mask: tuple(numbers[name] for name in episodes if name in numbers)
                for mask, episodes in listed.items()
            },
        )

    def _listed(self, masks: Sequence[Mask], known: set[str]) -> dict[str, list[str]]:
        """Known episodes of each mask."""
        listed = {}
        for mask in masks:
            location = location_of(self._name, mask.path)
            reason = name_problem(f"mask/{mask.name}")
            if reason is not None:
                message = f"cannot name a mask of the store: {reason}"
                self.problems.append(Problem.at(location, message, "rename it", "name"))
                continue
            absent = [name for name in mask.episodes if name not in known]
            if absent:
                message = f"lists episodes that the file does not have: {', '.join(map(str, absent[:5]))}"
                self._notes.append(f"{location}: {message}")
            listed[mask.name] = [name for name in mask.episodes if name in known]
        return listed

    def notes(self) -> list[str]:
        """Notes on decisions and what is left out."""
        rest = len(self._clock_notes) - _LISTED
        steps = f"{self._count_not_finite} steps have an action that is not finite; kept as they are"
        return [
            *self._notes,
            *self._clock_notes[:_LISTED],
            *([f"{self._name}: {rest} more remarks on clocks"] if rest > 0 else []),
            *([f"{self._name}: {steps}"] if self._count_not_finite else []),
            *(f"left out: {location} has no step" for location in self._without_steps),
        ]


def _by_clock(lengths: Sequence[Mapping[str, int]]) -> Mapping[str, Sequence[int]]:
    """Rows of each episode by clock, from those of each clock by episode."""
    clocks = dict.fromkeys(clock for own in lengths for clock in own)
    return {clock: tuple(own.get(clock, 0) for own in lengths) for clock in clocks}


def _joined_streams(recording: Recording, episode: Episode) -> Problem:
    names = ", ".join(episode.clocks.lengths)
    message = f"holds several episodes in the same arrays, and streams of other rates ({names})"
    cure = "write each episode into a file of its own, or leave the streams out with --ignore"
    return Problem.at(recording.location(), message, cure, "clock")


def _count_not_finite(recording: Recording, episode: Episode) -> int:
    feature = episode.features.get("action")
    if feature is None or not episode.length or np.dtype(feature.dtype).kind != "f":
        return 0
    array = recording.arrays[feature.dataset]
    count = 0
    for lo, hi in feature.blocks(episode.length):
        rows = array[lo:hi]
        count += int((~np.isfinite(rows)).reshape(len(rows), -1).any(axis=1).sum())
    return count
