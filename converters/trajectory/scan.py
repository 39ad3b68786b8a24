"""Scanning one trajectory file: the bounds of its episodes, and their columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from unistore.converters.common.exclusion import Exclusion, ProblemCollector
from unistore.converters.files.hdf5.attributes import Attributes
from unistore.converters.files.hdf5.file import location_of
from unistore.converters.scan import Candidate, Part, Scanned
from unistore.converters.trajectory.columns import Episode, describe, flags, not_per_step
from unistore.converters.trajectory.episode_index import EpisodeIndex, Variant, lies_in, with_episodes
from unistore.converters.trajectory.layouts import format_of
from unistore.converters.trajectory.naming import Naming
from unistore.converters.trajectory.read import blocks, summary_in_scan
from unistore.converters.trajectory.source import Contents, Group, Mask, SourceFile
from unistore.errors import InputError, Location, Problem
from unistore.schemas.tables import name_problem


@dataclass(frozen=True, kw_only=True)
class ScannedFile(Scanned):
    """The sound episodes of one file, each of a step or more; `problems` are those of its other episodes."""

    index: EpisodeIndex
    left_out: tuple[tuple[str, str], ...]
    """Datasets that are not stored, each with the reason."""
    notes: tuple[str, ...]
    """On decisions and what is left out."""
    files: tuple[str, ...]
    """Other files that are read."""
    reading: int
    """Bytes of memory needed to read rows, besides the rows."""
    attributes: Attributes
    """As in `Contents`."""
    summary: str | None
    """See `summary_in_scan`."""


def scan_file(part: Part, naming: Naming, exclusion: Exclusion) -> ScannedFile:
    """Find the episodes of one file.

    Raises
    ------
    InputError
        With all problems of the file, if no episode of it is sound.
    """
    with Candidate(part.files[0], part.roots) as file:
        look = SourceFile(file, part.name)
        layout = format_of(look, mapped=bool(naming.renamed))
        contents = layout.describe(look)
        groups = [
            each for each in contents.groups if not exclusion.covers(str(location_of(part.name, each.path)))
        ]
        found = _Episodes(part.name, joined=layout.joined)
        inside = found.divide_problems(contents, groups)
        namings = [replace(naming, bare=group.bare) for group in groups]
        not_steps = {path for each in zip(groups, namings, strict=True) for path in not_per_step(*each)}
        collected = ProblemCollector(found.problems)
        for group, own in zip(groups, namings, strict=True):
            location = location_of(part.name, group.path)
            with collected.attempt(location):
                episode = describe(group, location, own, not_steps)
                episode.problems += inside[group.path]
                found.add(group, episode, location)
        index = found.index(layout.name, found.masks(contents.masks, {group.name for group in groups}))
        episodes = layout.episodes_in(look)
        summary = summary_in_scan(episodes, index, joined=layout.joined) if episodes is not None else None
    problems = with_episodes(found.problems, part.name, [group.path for group in groups])
    if problems and not found.sound:
        raise InputError(problems)
    return ScannedFile(
        index=index,
        left_out=(*found.left_out.items(), *contents.left_out),
        notes=tuple(found.notes()),
        files=tuple(map(str, sorted(contents.files))),
        reading=contents.memory,
        attributes=contents.attributes,
        summary=summary,
        problems=tuple(problems),
        excluded=exclusion.covered,
    )


class _Episodes:
    """Collects the episodes of a file."""

    def __init__(self, name: str, *, joined: bool) -> None:
        self._name, self._joined = name, joined
        self.sound: list[tuple[str, str, int, int, int]] = []
        """Name, group, first row, length and variant of each, as in `EpisodeIndex`."""
        self.variants: list[Variant] = []
        self.left_out: dict[str, str] = {}
        self.problems: list[Problem] = []
        self._notes: list[str] = []
        self._without_steps: list[Location] = []
        self._count_not_finite = 0

    def divide_problems(self, contents: Contents, groups: Sequence[Group]) -> dict[str, list[Problem]]:
        """Problems in `contents` by the group that they lie in; the others are added to `problems`."""
        found: dict[str, list[Problem]] = {group.path: [] for group in groups}
        paths = [group.path for group in contents.groups if group.path]
        for problem in contents.problems:
            owner = next((path for path in paths if lies_in(problem, self._name, path)), None)
            if owner is None:
                self.problems.append(problem)
            elif owner in found:
                found[owner].append(problem)
        return found

    def masks(self, masks: Sequence[Mask], groups: Collection[str]) -> dict[str, list[str]]:
        """Names in each mask, of sound episodes and of `groups`, which may have problems."""
        known = {*groups, *(name for name, *_ in self.sound)}
        listed = {}
        for mask in masks:
            if (reason := name_problem(f"mask/{mask.name}")) is not None:
                message = f"cannot name a mask of the store: {reason}"
                self.problems.append(Problem.at(mask.location, message, "rename it", "name"))
                continue
            absent = [entry for entry in mask.episodes if entry not in known]
            if absent:
                message = f"lists episodes that the file does not have: {', '.join(map(str, absent[:5]))}"
                self._notes.append(f"{mask.location}: {message}")
            listed[mask.name] = [entry for entry in mask.episodes if entry in known]
        return listed

    def add(self, group: Group, episode: Episode, location: Location) -> None:
        """Add the episodes of a group if they are sound and have steps."""
        if episode.problems:
            self.problems += episode.problems
            return
        firsts = self._first_rows(group, episode, location) if self._joined else [0]
        self._count_not_finite += _count_not_finite(group, episode)
        if episode.length == 0:
            self._without_steps.append(location)
            return
        self.left_out |= episode.left_out
        variant = Variant(episode.features, tuple(episode.values), episode.empty)
        if variant not in self.variants:
            self.variants.append(variant)
        number = self.variants.index(variant)
        for count, (first, stop) in enumerate(pairwise([*firsts, episode.length])):
            name = f"{group.name}:{count}" if len(firsts) > 1 else group.name
            self.sound.append((name, group.path, first, stop - first, number))

    def _first_rows(self, group: Group, episode: Episode, location: Location) -> list[int]:
        """First rows of the episodes in a group, which terminal and timeout flags end."""
        ends = np.zeros(episode.length, bool)
        flag_datasets = []
        for column in ("terminated", "truncated"):
            feature = episode.features.get(column)
            if feature is not None:
                array = group.arrays[feature.dataset]
                for lo, hi in blocks(feature, episode.length):
                    ends[lo:hi] |= flags(array.read(lo, hi), array.location, lo)
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

    def index(self, layout: str, masks: Mapping[str, Sequence[str]]) -> EpisodeIndex:
        numbers = {name: number for number, (name, *_) in enumerate(self.sound)}
        found = {
            mask: tuple(numbers[name] for name in listed if name in numbers) for mask, listed in masks.items()
        }
        columns: Sequence[tuple[Any, ...]] = list(zip(*self.sound, strict=True)) or [()] * 5
        names, groups, firsts, lengths, variant = columns
        variants = tuple(self.variants)
        return EpisodeIndex(layout, names, groups, firsts, lengths, variant, variants, found)

    def notes(self) -> list[str]:
        """Notes on decisions and what is left out."""
        steps = f"{self._count_not_finite} steps have an action that is not finite; kept as they are"
        return [
            *self._notes,
            *([f"{self._name}: {steps}"] if self._count_not_finite else []),
            *(f"left out: {location} has no step" for location in self._without_steps),
        ]


def _count_not_finite(group: Group, episode: Episode) -> int:
    feature = episode.features.get("action")
    if feature is None or not episode.length or np.dtype(feature.form.dtype).kind != "f":
        return 0
    array = group.arrays[feature.dataset]
    count = 0
    for lo, hi in blocks(feature, episode.length):
        rows = array.read(lo, hi)
        count += int((~np.isfinite(rows)).reshape(len(rows), -1).any(axis=1).sum())
    return count
