"""Episodes inside each trajectory file: where they begin and end, and what their datasets are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exclusion import Collected, Exclusion
from unistore.converters.files.hdf5.file import chunk_memory, open_hdf5, place, read_rows
from unistore.converters.files.hdf5.tree import Tree, walk
from unistore.converters.files.paths import natural_key
from unistore.converters.trajectory.attributes import small_values
from unistore.converters.trajectory.episodes import inside_group, name_episodes
from unistore.converters.trajectory.features import Episode, describe, not_per_step
from unistore.converters.trajectory.naming import Naming
from unistore.converters.trajectory.options import Colour
from unistore.converters.trajectory.recognise import layout_of
from unistore.errors import InputError, Problem
from unistore.schemas.arrays import name_problem

__all__ = ["EPISODES_APART", "Found", "Part", "flags", "inspect"]

EPISODES_APART = "robomimic"
"""The layout in which every episode is a group of its own, so that one can be left out."""


@dataclass(frozen=True, slots=True)
class Part:
    """One episode in a file.

    Attributes
    ----------
    name
        ``"demo_1"``, or made from the file's name.
    group
        Its group in the file; ``""`` for the root.
    first, length
        Its rows in the group's datasets.
    found
        What its datasets are.
    """

    name: str
    group: str
    first: int
    length: int
    found: Episode


@dataclass(slots=True)
class Found:
    """What a file holds.

    Attributes
    ----------
    layout
        As in `unistore.converters.trajectory.recognise`.
    parts
        Episodes in natural order.
    masks
        Names of the episodes that each mask lists.
    notes
        What was decided or left out.
    files
        Further files that links lead to.
    reading
        Bytes that HDF5 holds while it reads rows, besides the rows.
    problems
        Everything wrong with the file, each with the episode that it is about, or else the file.
    """

    layout: str = ""
    parts: list[Part] = field(default_factory=list)
    masks: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    files: set[Path] = field(default_factory=set)
    reading: int = 0
    problems: list[Problem] = field(default_factory=list)


def inspect(
    path: Path, name: str, roots: Sequence[Path], naming: Naming, colour: Colour, exclusion: Exclusion
) -> Found:
    """Find the episodes of one file.

    Parameters
    ----------
    path, name
        The file, and how messages call it.
    roots
        What links may point into.
    naming
        Which column a dataset becomes.
    colour
        As for `decode_frame`.
    exclusion
        Which episodes to leave out.
    """
    found = Found()
    with Collected(found.problems).attempt(name), open_hdf5(path, name) as file:
        found.layout = layout_of(file, name, naming)
        tree = walk(file, name, roots)
        linked = {Path(dataset.file.filename) for dataset in tree.datasets.values()}
        found.files = (tree.files | linked) - {Path(file.filename)}
        found.reading = max(map(chunk_memory, tree.datasets.values()), default=0)
        _fill(found, path, name, tree, naming, colour, exclusion)
        _note_unfinite(found, name, tree)
    _set_aside(found, name)
    groups = [part.group for part in found.parts] if found.layout == EPISODES_APART else []
    found.problems = name_episodes(found.problems, name, groups)
    found.parts = [part for part in found.parts if part.length and not part.found.problems]
    return found


def _fill(
    found: Found,
    path: Path,
    name: str,
    tree: Tree,
    naming: Naming,
    colour: Colour,
    exclusion: Exclusion,
) -> None:
    if found.layout == EPISODES_APART:
        _find_demos(found, name, tree, naming, colour, exclusion)
        _find_masks(found, name, tree)
        return
    found.problems += tree.problems
    bare = found.layout == "flat" and not any(p.startswith(("observation", "obs/")) for p in tree.datasets)
    where = {item: place(name, item) for item in tree.datasets}
    episode = describe(tree.datasets, where, place(name), replace(naming, bare=bare), colour)
    whole = Part(path.stem, "", 0, episode.length, episode)
    if found.layout == "act" or episode.problems:
        found.parts = [whole]
        return
    firsts = _cut(found, name, tree, episode)
    stops = [*firsts[1:], episode.length]
    names = [path.stem] if len(firsts) == 1 else [f"{path.stem}:{number}" for number in range(len(firsts))]
    found.parts = [
        replace(whole, name=part, first=first, length=stop - first)
        for part, first, stop in zip(names, firsts, stops, strict=True)
    ]


def _find_demos(
    found: Found, name: str, tree: Tree, naming: Naming, colour: Colour, exclusion: Exclusion
) -> None:
    every = [group for group in tree.groups if group.startswith("data/") and group.count("/") == 1]
    demos = [group for group in every if not exclusion.covers(place(name, group))]
    datasets: dict[str, dict[str, h5py.Dataset]] = {group: {} for group in demos}
    for item, dataset in tree.datasets.items():
        parts = item.split("/", 2)
        if len(parts) == 3 and f"{parts[0]}/{parts[1]}" in datasets:
            datasets[f"data/{parts[1]}"][parts[2]] = dataset
    problems: dict[str, list[Problem]] = {group: [] for group in demos}
    inside = {group: inside_group(name, group) for group in every}
    for problem in tree.problems:
        owner = next((group for group in every if problem.location.startswith(inside[group])), None)
        if owner is None or owner in problems:
            (found.problems if owner is None else problems[owner]).append(problem)
    apart = {path for group in demos for path in not_per_step(datasets[group], naming)}
    for group in sorted(demos, key=natural_key):
        where = {item: place(name, f"{group}/{item}") for item in datasets[group]}
        episode = describe(datasets[group], where, place(name, group), naming, colour, apart)
        episode.problems += problems[group]
        found.parts.append(Part(group.removeprefix("data/"), group, 0, episode.length, episode))


def _find_masks(found: Found, name: str, tree: Tree) -> None:
    known = {part.name for part in found.parts}
    for item, dataset in tree.datasets.items():
        if not item.startswith("mask/"):
            continue
        if (reason := name_problem(item)) is not None:
            message = f"cannot name a mask of the store: {reason}"
            found.problems.append(Problem(place(name, item), message, "rename it", "name"))
            continue
        listed = small_values(dataset, place(name, item))
        names = [listed] if isinstance(listed, str) else list(listed or [])
        absent = [entry for entry in names if entry not in known]
        if absent:
            message = f"lists episodes that the file does not have: {', '.join(map(str, absent[:5]))}"
            found.notes.append(f"{place(name, item)}: {message}")
        found.masks[item.removeprefix("mask/")] = [entry for entry in names if entry in known]


def _cut(found: Found, name: str, tree: Tree, episode: Episode) -> list[int]:
    """First rows of the episodes that a flat file holds one after another."""
    ends = np.zeros(episode.length, bool)
    said = []
    for column in ("terminated", "truncated"):
        feature = episode.features.get(column)
        if feature is not None:
            location = place(name, feature.dataset)
            ends |= flags(read_rows(tree.datasets[feature.dataset], location), location, 0)
            said.append(feature.dataset)
    stops = (np.flatnonzero(ends) + 1).tolist()
    firsts = [0, *(stop for stop in stops if stop < episode.length)]
    if not said:
        found.notes.append(f"{name}: no terminals or timeouts: taken as one episode")
    else:
        cut = "" if stops and stops[-1] == episode.length else ", the last one cut by the end of the file"
        found.notes.append(f"{name}: {len(firsts)} episodes by {' and '.join(said)}{cut}")
    return firsts


def _note_unfinite(found: Found, name: str, tree: Tree) -> None:
    """Count steps whose action is not finite: kept as they are, and said."""
    steps, collected = 0, Collected()
    good = [part for part in found.parts if part.length and not part.found.problems]
    for part in {part.group: part for part in good}.values():
        feature = part.found.features.get("action")
        if feature is not None and np.dtype(feature.form.dtype).kind == "f":
            item = f"{part.group}/{feature.dataset}".strip("/")
            with collected.attempt(place(name, item)):
                values = read_rows(tree.datasets[item], place(name, item))
                steps += int((~np.isfinite(values)).reshape(len(values), -1).any(axis=1).sum())
    found.problems += collected.problems
    if steps:
        found.notes.append(f"{name}: {steps} steps have an action that is not finite; kept as they are")


def flags(values: NDArray[Any], location: str, lo: int) -> NDArray[np.bool_]:
    """Rows of a flag dataset, (n,) or (n, 1), as bool.

    Raises
    ------
    InputError
        If a value is neither 0 nor 1, naming its row.
    """
    flat = values.reshape(len(values))
    wrong = np.flatnonzero((flat != 0) & (flat != 1))
    if wrong.size:
        message = f"row {lo + int(wrong[0])} is {flat[wrong[0]]}, expected 0 or 1"
        cure = "choose another dataset with --map terminated=DATASET, or --ignore it"
        raise InputError(Problem(location, message, cure, "value"))
    return np.asarray(flat != 0)


def _set_aside(found: Found, name: str) -> None:
    """Move the problems of episodes to the file's; name episodes without a step, which are left out."""
    shown: set[int] = set()
    for part in found.parts:
        problems = part.found.problems
        if problems and id(part.found) not in shown:
            shown.add(id(part.found))
            found.problems += problems
        elif not problems and part.length == 0:
            found.notes.append(f"left out: {place(name, part.group)} has no step")
