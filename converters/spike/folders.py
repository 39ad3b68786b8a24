"""Finding recordings under the given paths.

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
from unistore.converters.files.paths import folders_of_targets, natural_key, real_path
from unistore.converters.spike.frames import Recording, suffixes_of
from unistore.converters.spike.search import Search
from unistore.errors import Problem, printable
from unistore.system.sizes import count_of


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


def find_recordings(paths: Sequence[Path], folders: Mapping[str, str], exclusion: Exclusion) -> Recordings:
    """Search the given files and folders.

    A recording is split where a frame is left out, so that no clip crosses the gap. `folders` has the folder
    name of each role: ``{"spike": "spike", "voxel": "spike_vox", …}``.
    """
    roots = list(dict.fromkeys(Path(os.path.abspath(path)) for path in paths))  # noqa: PTH100  keeps links
    base = _common_base(roots)
    searches = [Search(number, roots, base, folders, exclusion) for number in range(len(roots))]
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
        where = ", ".join(printable(str(path)) for path in paths)
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
    folders: dict[Path, Path] = {}
    found: list[Path] = []
    for path in files:
        if path.is_symlink():
            found.append(real_path(path))
        else:
            if path.parent not in folders:
                folders[path.parent] = real_path(path.parent)
            found.append(folders[path.parent] / path.name)
    return found


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
