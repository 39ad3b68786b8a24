"""Recordings among the files under the given paths.

A recording is a folder with a ``spike/`` or ``spike_vox/`` folder (and perhaps ``blur/`` and ``sharp/``), or
spike files alone: the numbered files of a folder are one recording, any other file is a recording of its own.
A file with several names is used once.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from unistore.converters.common.columns import Column, reconcile
from unistore.converters.common.exclusion import with_source
from unistore.converters.files.links import broken_link, real_files
from unistore.converters.files.paths import natural_key, real_path, split_of
from unistore.converters.options import Columns
from unistore.converters.plugin import Group, Problem, SourceFile
from unistore.converters.spike.frames import (
    IMAGE_FORMATS,
    RAW_FORMAT,
    ROLES,
    STREAM_ENDING,
    Place,
    may_be,
)
from unistore.errors import first_few, printable

Frame = Mapping[str, SourceFile]
"""Files that belong together, by role, in the order of `ROLES`."""


class Recording(NamedTuple):
    """Consecutive frames: a folder of them, or one file. Every frame has the same roles.

    The frames behind one that is left out are a recording of the same name with the next ``part``.
    """

    name: str
    split: str | None
    frames: tuple[Frame, ...]
    part: int = 1

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of the files of each frame."""
        return tuple(self.frames[0])

    @property
    def files(self) -> Iterator[SourceFile]:
        """Files of all frames."""
        return chain.from_iterable(frame.values() for frame in self.frames)

    def groups(self, roles: Collection[str]) -> Iterator[Group]:
        """Make a group of each frame, of the files of some roles."""
        sequence = self.name if self.part == 1 else f"{self.name}~{self.part}"
        own_roles = tuple([role for role in self.roles if role in roles])
        for frame in self.frames:
            files = tuple([frame[role] for role in own_roles])
            name = next(iter(frame.values())).name
            place = Place(sequence, self.split)
            yield Group(name, files, roles=own_roles, unit=self.name, detail=place)


@dataclass
class _Folder:
    """A folder of a sequence, or one with loose files; `prefix` is what names of files in it begin with."""

    path: Path
    prefix: str
    by_role: dict[str, list[SourceFile]] = field(default_factory=dict)
    loose: list[SourceFile] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What messages and stores call it."""
        return self.prefix.rstrip("/") or printable(self.path.name)


class RecordingFinder:
    """Finds the recordings among files.

    Parameters
    ----------
    files
        All files, with the names that links give them.
    folders
        Name of the folder of each role.
    excluded
        Names of files that are left out, see `Options.exclude`.
    endings
        What messages say of the endings of a role's files.

    Attributes
    ----------
    recordings
        In natural order.
    problems, notes
        What is wrong with names, and remarks.
    """

    def __init__(
        self,
        files: Sequence[SourceFile],
        folders: Mapping[str, str],
        excluded: Collection[str],
        endings: Mapping[str, str],
    ) -> None:
        self.recordings: list[Recording] = []
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self._folders = folders
        self._endings = endings
        self._role_of = {name: role for role, name in folders.items()}
        self._excluded = frozenset(excluded)
        self._without_spikes: list[tuple[Problem, set[Path]]] = []
        roots = [Path(os.path.abspath(root)) for root in files[0].roots] if files else []  # noqa: PTH100  keeps links
        self._roots = sorted(roots, key=lambda root: len(root.parts))  # the outermost first
        for folder in self._by_folder(files):
            if folder.by_role:
                self._add_sequence(folder)
            else:
                self._add_loose(folder)
        self._drop_duplicates()
        self._check_images()

    def _by_folder(self, files: Iterable[SourceFile]) -> Iterable[_Folder]:
        """Sort files by the folder of their sequence, or by their own."""
        by_path: dict[Path, _Folder] = {}
        role_folders: dict[Path, Path | None] = {}  # of folders: most have many files
        for file in files:
            parent = file.path.parent
            if parent not in role_folders:
                role_folders[parent] = self._role_folder(parent)
            role_folder = role_folders[parent]
            if role_folder is None:
                folder = by_path.get(parent) or by_path.setdefault(parent, _folder_above(file, 1))
                folder.loose.append(file)
                self._check_link(file)
            elif role_folder == parent:
                above = parent.parent
                folder = by_path.get(above) or by_path.setdefault(above, _folder_above(file, 2))
                folder.by_role.setdefault(self._role_of[parent.name], []).append(file)
        return by_path.values()

    def _role_folder(self, folder: Path) -> Path | None:
        """Return the outermost folder of a role, below the given ones, that a folder is or lies in."""
        root = self._root(folder)
        below = [] if root is None else folder.relative_to(root).parts
        for depth, name in enumerate(below, 1):
            if name in self._role_of:
                return folder.parents[len(below) - depth - 1] if depth < len(below) else folder
        return None

    def _root(self, folder: Path) -> Path | None:
        """Return the outermost of the given folders that a folder lies in."""
        return next((root for root in self._roots if folder.is_relative_to(root)), None)

    def _check_link(self, file: SourceFile) -> None:
        """Refuse a broken link that has the name of a folder."""
        if file.path.name in self._role_of and not file.path.exists():
            problem = Problem(file.name, broken_link(file.path), "fix the link", "missing", file.name)
            self.problems.append(problem)

    def _add_sequence(self, folder: _Folder) -> None:
        present = [role for role in ROLES if self._has(folder, role)]
        if not {"spike", "voxel"}.intersection(present):
            self._without_spikes.append(self._problem_without_spikes(folder, present))
            return
        frames: dict[str, dict[str, SourceFile]] = {}
        for role in present:
            files = [file for file in folder.by_role.get(role, ()) if may_be(file.format, role)]
            frames[role] = self._by_stem(files)
            if not files:
                message = f"holds no {self._endings[role]} file"
                where = f"{folder.prefix}{self._folders[role]}"
                self.problems.append(Problem(where, message, kind="missing", source=folder.name))
        if not all(frames.values()):
            return
        names = {role: f"{folder.prefix}{self._folders[role]}" for role in frames}
        excluded = set[str]()
        for role, by_stem in frames.items():
            excluded |= self._excluded_stems(names[role], by_stem.values()) - by_stem.keys()
        runs, problems = pair_files(frames, names, excluded)
        self.problems += with_source(folder.name, problems)
        self._add_runs(folder, runs)

    def _has(self, folder: _Folder, role: str) -> bool:
        """Whether the folder of a sequence has one for a role, perhaps an empty one."""
        name = self._folders[role]
        path = folder.path / name
        return role in folder.by_role or (path.is_dir() and not self._is_excluded(f"{folder.prefix}{name}"))

    def _is_excluded(self, name: str) -> bool:
        above = PurePosixPath(name).parents
        return name in self._excluded or any(str(folder) in self._excluded for folder in above)

    def _problem_without_spikes(self, folder: _Folder, present: Sequence[str]) -> tuple[Problem, set[Path]]:
        """The problem, and the real folders of the images, which another sequence may lead to."""
        missing = f"neither {self._folders['spike']}/ nor {self._folders['voxel']}/"
        names = [self._folders[role] for role in present]
        message = f"has {' and '.join(f'{name}/' for name in names)}, but {missing}"
        cure = "name the folder with --spike-dir"
        problem = Problem(folder.name, message, cure, "missing", folder.name)
        return problem, {real_path(folder.path / name) for name in names}

    def _by_stem(self, files: Iterable[SourceFile]) -> dict[str, SourceFile]:
        by_stem: dict[str, SourceFile] = {}
        for file in files:
            stem = file.path.stem
            if stem in by_stem:
                message = f"and {printable(by_stem[stem].path.name)} are both frame {printable(stem)}"
                problem = Problem(file.name, message, "remove one of them", "count", file.name)
                self.problems.append(problem)
            by_stem[stem] = file
        return by_stem

    def _excluded_stems(self, folder: str, files: Iterable[SourceFile]) -> set[str]:
        """Stems of files of a folder that are left out by their own names."""
        endings = {file.path.suffix for file in files}
        names = [PurePosixPath(name) for name in self._excluded if name.rpartition("/")[0] == folder]
        return {name.stem for name in names if name.suffix in endings}

    def _add_loose(self, folder: _Folder) -> None:
        """Numbered spike files are consecutive frames of one recording, others a recording each."""
        named = [file for file in folder.loose if file.path in self._roots]
        inside = [file for file in folder.loose if file.path not in self._roots and _is_recording(file)]
        numbered = {file.path.stem: file for file in inside if file.path.stem.isdigit()}
        if len(numbered) > 1:
            stems = self._excluded_stems(folder.prefix.rstrip("/"), inside)
            frames = {stem: {"spike": file} for stem, file in numbered.items()}
            self._add_runs(folder, split_at_gaps(frames, {stem for stem in stems if stem.isdigit()}))
            inside = [file for file in inside if file.path.stem not in numbered]
        for file in (*named, *inside):
            if file.format in IMAGE_FORMATS:
                message = "is an image, and no file of spikes"
                cure = "give the folder of its sequence, or the spikes beside it"
                self.problems.append(Problem(file.name, message, cure, "missing", file.name))
                continue
            self.recordings.append(Recording(file.name, self._split(file.path.parent), ({"spike": file},)))

    def _add_runs(self, folder: _Folder, runs: Iterable[tuple[Frame, ...]]) -> None:
        split = self._split(folder.path)
        self.recordings += [Recording(folder.name, split, run, part) for part, run in enumerate(runs, 1)]

    def _split(self, folder: Path) -> str | None:
        """Split named by the folders from the given one on."""
        top = self._root(folder) or folder
        return split_of(f"{folder.relative_to(top.parent).as_posix()}/")

    def _check_images(self) -> None:
        """Refuse folders of images alone, unless a recording leads to them."""
        if self._without_spikes:
            files = chain.from_iterable([recording.files for recording in self.recordings])
            used = {path.parent for path in real_files([file.path for file in files])}
            self.problems += [problem for problem, real in self._without_spikes if not real & used]

    def _drop_duplicates(self) -> None:
        """Drop recordings that share a file with one of more roles."""

        def fullest(recording: Recording) -> tuple[int, bool]:
            return -len(recording.roles), recording.split is None

        by_name = sorted(self.recordings, key=lambda recording: natural_key(recording.name))
        used_files: set[Path] = set()
        kept: list[Recording] = []
        doubles: list[str] = []
        for recording in sorted(by_name, key=fullest):
            files = set(real_files([next(iter(frame.values())).path for frame in recording.frames]))
            if files & used_files:
                doubles.append(recording.name)
            else:
                kept.append(recording)
                used_files |= files
        self.recordings = sorted(kept, key=lambda recording: natural_key(recording.name))
        if doubles:
            self.notes.append(f"left out, since other recordings hold the same files: {', '.join(doubles)}")


def _folder_above(file: SourceFile, count: int) -> _Folder:
    """The folder of a file, or the one above it."""
    parts = file.name.split("/")[:-count]
    return _Folder(file.path.parents[count - 1], "".join([f"{part}/" for part in parts]))


def _is_recording(file: SourceFile) -> bool:
    """Whether a file is spikes where no folder says so."""
    if file.format == RAW_FORMAT:
        return file.path.name.lower().endswith(STREAM_ENDING)
    return may_be(file.format, "spike")


def pair_files(
    files: Mapping[str, Mapping[str, SourceFile]], folders: Mapping[str, str], excluded: Collection[str] = ()
) -> tuple[list[tuple[Frame, ...]], list[Problem]]:
    """Make frames from files of the same stem or, if stems differ between roles, of the same last number.

    `files` has files by stem for each role, in the order of `ROLES`; messages call the folders of the roles
    `folders`. Each of the `excluded` stems leaves out its whole frame. Returns runs of consecutive frames in
    natural order, split where a frame is left out; none if a role has missing or extra files.
    """
    stems = {frozenset(by_stem.keys() - excluded) for by_stem in files.values()}
    if len(stems) > 1:
        numbered = {role: _by_number(by_stem) for role, by_stem in files.items()}
        if all("" not in numbered[role] and len(numbered[role]) == len(files[role]) for role in files):
            files = numbered
            excluded = {_number(stem) for stem in excluded}
    kept = {role: _without(by_key, excluded) for role, by_key in files.items()}
    first_role, first_files = next(iter(kept.items()))
    problems = []
    for role, by_key in kept.items():
        lacking = [first_files[key].path.name for key in first_files if key not in by_key]
        extra = [by_key[key].path.name for key in by_key if key not in first_files]
        if lacking or extra:
            message = f"{len(by_key)} files beside {len(first_files)} in {folders[first_role]}"
            message += f"; none for {first_few(lacking)}" if lacking else ""
            message += f"; too many: {first_few(extra)}" if extra else ""
            cure = "every frame needs one file of each, of the same name or number"
            problems.append(Problem(folders[role], message, cure, "count"))
    if problems:
        return [], problems
    keys = sorted(first_files, key=lambda key: natural_key(first_files[key].path.stem))
    frames = {key: {role: by_key[key] for role, by_key in kept.items()} for key in keys}
    return split_at_gaps(frames, excluded), []


def _by_number(files: Mapping[str, SourceFile]) -> dict[str, SourceFile]:
    return {_number(stem): file for stem, file in files.items()}


def _without(files: Mapping[str, SourceFile], excluded: Collection[str]) -> dict[str, SourceFile]:
    return {key: file for key, file in files.items() if key not in excluded}


def _number(stem: str) -> str:
    """The last number of a stem, empty if it has none."""
    numbers = re.findall(r"[0-9]+", stem)
    return str(int(numbers[-1])) if numbers else ""


def split_at_gaps(frames: Mapping[str, Frame], excluded: Collection[str]) -> list[tuple[Frame, ...]]:
    """Runs of consecutive frames, split where an excluded key lies between theirs in natural order."""
    breaks = sorted(natural_key(key) for key in excluded)
    runs: dict[int, list[Frame]] = {}
    for key, frame in frames.items():
        runs.setdefault(bisect_left(breaks, natural_key(key)), []).append(frame)
    return [tuple(run) for run in runs.values()]


def common_roles(
    recordings: Sequence[Recording], folders: Mapping[str, str], mode: Columns
) -> tuple[tuple[str, ...], list[Problem]]:
    """Roles to convert: those that all recordings have; if they differ in mode "exact", one Problem."""
    present = [
        (recording.name, dict.fromkeys([f"{folders[role]}/" for role in recording.roles], Column("|u1")))
        for recording in recordings
    ]
    merged, problems = reconcile(present, mode)
    roles = tuple([role for role in ROLES if f"{folders[role]}/" in merged])
    if recordings and not {"spike", "voxel"}.intersection(roles) and not problems:
        message = f"have neither {folders['spike']}/ nor {folders['voxel']}/ in common"
        problems.append(Problem(f"{len(recordings)} sequences", message, kind="columns"))
    return roles, problems
