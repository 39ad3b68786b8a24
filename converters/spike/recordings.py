"""Recordings under all given paths, and the files that belong to none.

A recording is a folder with a ``spike/`` or ``spike_vox/`` folder (and perhaps ``blur/`` and ``sharp/``), or
spike files alone: the numbered files of a folder are one recording, any other file is a recording of its own.

Folders are often links made by preparation scripts. Links are followed if they stay inside the given paths.
A given path that links of another one lead into is not searched itself. A file with several names is used
once.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from unistore.converters.common.exclusion import Exclusion
from unistore.converters.files.paths import (
    Listing,
    folders_of_targets,
    is_store,
    natural_key,
    real_path,
    resolve_parents,
)
from unistore.converters.spike.frames import (
    Recording,
    has_known_suffix,
    has_role_suffix,
    suffixes_of,
)
from unistore.converters.spike.search import Search, relative_name
from unistore.errors import Problem, printable
from unistore.system.sizes import count_of

LeftOut = list[tuple[Path, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recordings:
    """Recordings under the given paths, in natural order."""

    recordings: tuple[Recording, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    base: Path
    """Folder that names are relative to."""
    searched: tuple[Path, ...]
    """Given paths that were searched for recordings."""
    followed: tuple[Path, ...]
    """Given paths that are only targets of links."""


def find_recordings(listing: Listing, folders: Mapping[str, str], exclusion: Exclusion) -> Recordings:
    """Search the given files and folders.

    A recording is split where a frame is left out, so that no clip crosses the gap. `folders` has the folder
    name of each role: ``{"spike": "spike", "voxel": "spike_vox", …}``.
    """
    roots = list(dict.fromkeys(Path(os.path.abspath(path)) for path in listing.roots))  # noqa: PTH100  keeps links
    base = _common_base(roots)
    searches = [Search(number, roots, base, folders, exclusion, listing) for number in range(len(roots))]
    for search in searches:
        search.run()
    targets = {number for search in searches for number in search.targets}
    taken = [search for search in searches if search.number not in targets]
    notes = [
        f"{printable(str(roots[number]))}: only followed from links, not searched for recordings"
        for number in sorted(targets)
    ]
    recordings, doubles = _drop_duplicates([each for search in taken for each in search.recordings])
    if doubles:
        notes.append(f"left out, since other recordings hold the same files: {', '.join(doubles)}")
    files = (file for each in recordings for frame in each.frames for file in frame.files.values())
    used = {real.parent for real in resolve_files(files)}
    outside = folders_of_targets((link for search in taken for link in search.leaving), roots)
    cure = shlex.join(word for target in outside for word in ("--follow-links-to", str(target)))
    problems = [
        replace(problem, cure=cure) if problem.kind == "link" else problem
        for search in taken
        for problem in search.problems
    ]
    problems += [p for search in taken for p, holding in search.without_spikes if not holding & used]
    if not recordings and not problems and exclusion:
        problems.append(Problem(count_of(len(roots), "path"), "everything in them is left out", kind="empty"))
    if not recordings and not problems:
        where = ", ".join(printable(str(path)) for path in listing.roots)
        message = f"no {folders['spike']}/ folder and no {', '.join(suffixes_of('spike'))} file"
        problems.append(Problem(where, message, "name the folder with --spike-dir", "missing"))
    return Recordings(
        recordings=tuple(recordings),
        problems=tuple(problems),
        notes=tuple(notes),
        base=base,
        searched=tuple(roots[search.number] for search in taken),
        followed=tuple(roots[number] for number in sorted(targets)),
    )


def resolve_files(files: Iterable[Path]) -> list[Path]:
    """Files with every link resolved (each folder once)."""
    found = list(files)
    in_place = resolve_parents(found)
    return [
        real_path(path) if path.is_symlink() else real for path, real in zip(found, in_place, strict=True)
    ]


def _common_base(roots: Sequence[Path]) -> Path:
    if len(roots) == 1 and roots[0].is_dir():
        return roots[0]
    return Path(os.path.commonpath([root if root.is_dir() else root.parent for root in roots]))


def _drop_duplicates(recordings: Sequence[Recording]) -> tuple[list[Recording], list[str]]:
    """Drop recordings that share a file with one of more roles; returns the rest, and the dropped names."""

    def fullest(recording: Recording) -> tuple[int, bool]:
        return -len(recording.roles), recording.split is None

    ordered = sorted(recordings, key=lambda each: natural_key(each.name))
    taken: set[Path] = set()
    kept, doubles = [], []
    for recording in sorted(ordered, key=fullest):
        files = set(resolve_files(next(iter(frame.files.values())) for frame in recording.frames))
        if files & taken:
            doubles.append(recording.name)
        else:
            kept.append(recording)
            taken |= files
    return sorted(kept, key=lambda each: natural_key(each.name)), doubles


def find_left_out(
    found: Recordings,
    used: Sequence[Path],
    roles: Sequence[str],
    folders: Mapping[str, str],
    exclusion: Exclusion,
) -> LeftOut:
    """List what belongs to no frame, with the reason, in natural order.

    Without what is excluded by name or has a problem, and hidden names. A folder without any file of a frame
    is listed as a whole. Links to folders are not followed: their targets are listed where they lie.

    `used` are the files of all frames, `roles` those that are converted, `folders` the folder name of each
    role. What `exclusion` covers is reported elsewhere.
    """
    reported = Exclusion(name for each in found.problems for name in (each.source, each.file))
    real_used = set(resolve_files(used))
    role_of = {name: role for role, name in folders.items()}
    seen: set[Path] = set()

    def is_reported(path: Path) -> bool:
        name = relative_name(path, found.base)
        return exclusion.covers(name) or reported.covers(name)

    def inside(folder: Path, followed: bool) -> tuple[LeftOut, bool]:
        """What is left in a folder, and whether that is everything in it; each real folder once."""
        real = real_path(folder)
        if real in seen:
            return [], False
        seen.add(real)
        left: LeftOut = []
        whole = True
        for path, is_folder, is_link in _entries(folder):
            if is_reported(path) or (is_folder and is_link):
                whole = False
            elif is_folder and is_store(path):
                left.append((path, "is a store"))
            elif is_folder:
                below, all_of_it = inside(path, followed)
                left += [(path, reason(path.name, followed))] if all_of_it else below
                whole = whole and all_of_it
            elif (real_path(path) if is_link else real / path.name) in real_used:
                whole = False
            else:
                role = role_of.get(folder.name)
                if not (has_known_suffix(path) if role is None else has_role_suffix(path, role)):
                    left.append((path, f"is no {', '.join(suffixes_of(role or 'spike'))} file"))
                else:
                    left.append((path, reason(folder.name, followed)))
        return left, whole

    def reason(folder: str, followed: bool) -> str:
        """Why a folder, or a file in a folder of that name, belongs to no frame."""
        role = role_of.get(folder)
        if followed:
            return "no link leads to it"
        if role is not None and role not in roles:
            return f"not every sequence has {printable(folder)}/"
        return f"belongs to no frame; their files lie in {', '.join(f'{name}/' for name in folders.values())}"

    left = [
        each
        for roots, followed in ((found.searched, False), (found.followed, True))
        for root in sorted(roots)
        if root.is_dir() and not is_reported(root)
        for each in inside(root, followed)[0]
    ]
    return sorted(left, key=lambda each: natural_key(each[0].as_posix()))


def _entries(folder: Path) -> list[tuple[Path, bool, bool]]:
    """Path, whether it is a folder, and whether it is a link, of the visible entries in natural order."""
    try:
        with os.scandir(folder) as entries:
            found = [
                (Path(entry.path), os.path.isdir(entry.path), entry.is_symlink())  # noqa: PTH112  as in paths
                for entry in entries
                if not entry.name.startswith(".")
            ]
    except OSError:
        return []
    return sorted(found, key=lambda each: natural_key(each[0].name))
