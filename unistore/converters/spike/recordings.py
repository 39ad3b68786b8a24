"""Find recordings among the files under the given paths."""

# A recording is a folder with a folder `spike/` or `spike_vox/` (and perhaps `blur/` and `sharp/`), or spike
# files alone: the numbered files of a folder are one, any other file is its own. A file with several names is
# used once.

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from unistore.converters.spike.frames import FrameName
from unistore.converters.spike.options import (
    IMAGE_FORMATS,
    RAW_FORMAT,
    ROLE_FILES,
    ROLES,
    STREAM_ENDING,
    may_be,
)
from unistore.errors import AddOptions, printable, with_source
from unistore.plugin import (
    Columns,
    Group,
    Problem,
    SourceColumn,
    SourceFile,
    natural_key,
    real_files,
    reconcile,
    split_of,
)

Frame = Mapping[str, SourceFile]  # files that belong together, by role, in the order of `ROLES`


class SpikeRecording(NamedTuple):
    """Consecutive frames of the same roles: a folder of them, or one file.

    The frames after a frame that was skipped are a recording of the same name with the next `part`.
    """

    name: str
    split: str | None
    frames: tuple[Frame, ...]
    part: int = 1

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(self.frames[0])

    def groups(self, roles: Collection[str]) -> Iterator[Group]:
        """Make a group of each frame, of the files of some roles. Its first file names it."""
        sequence = self.name if self.part == 1 else f"{self.name}~{self.part}"
        own_roles = tuple([role for role in self.roles if role in roles])
        for frame in self.frames:
            files = tuple([frame[role] for role in own_roles])
            name = next(iter(frame.values())).name
            yield Group(name, files, roles=own_roles, unit=self.name, detail=FrameName(sequence, self.split))


@dataclass
class _Folder:
    """A folder of a sequence, or one with loose files. `prefix` is what names of files in it begin with."""

    path: Path
    prefix: str
    by_role: dict[str, list[SourceFile]] = field(default_factory=dict)
    loose: list[SourceFile] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.prefix.rstrip("/") or printable(self.path.name)


class RecordingFinder:
    """Finds the recordings among files."""

    def __init__(
        self,
        files: Sequence[SourceFile],
        folders: Mapping[str, str],
        excluded: Collection[str],
    ) -> None:
        self.recordings: list[SpikeRecording] = []
        # `problems` and `notes`: what is wrong with names, and remarks.
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self._folders = folders  # name of the folder of each role
        self._role_of = {name: role for role, name in folders.items()}
        # Names of files that are left out, see `Options.exclude`.
        self._excluded = [PurePosixPath(name) for name in excluded]
        roots = [Path(os.path.abspath(root)) for root in files[0].roots] if files else []  # noqa: PTH100  keeps links
        self._roots = sorted(roots, key=lambda root: len(root.parts))  # the outermost first
        for folder in self._by_folder(files):
            if {"spike", "voxel"} & folder.by_role.keys():
                self._add_sequence(folder)
            elif not folder.by_role:
                self._add_loose(folder)
        self._drop_duplicates()

    def _by_folder(self, files: Iterable[SourceFile]) -> Iterable[_Folder]:
        """Sort files by the folder of their sequence, or by their own."""
        by_path: dict[Path, _Folder] = {}
        role_folders: dict[Path, Path | None] = {}  # of folders: most have many files
        for file in files:
            parent = file.path.parent
            if parent not in role_folders:
                role_folders[parent] = self._role_folder(parent)
            role_folder = role_folders[parent]
            if role_folder not in (None, parent):
                continue
            levels = 1 if role_folder is None else 2
            path = file.path.parents[levels - 1]
            if path not in by_path:
                prefix = "".join([f"{part}/" for part in file.name.split("/")[:-levels]])
                by_path[path] = _Folder(path, prefix)
            if role_folder is not None:
                by_path[path].by_role.setdefault(self._role_of[parent.name], []).append(file)
            else:
                by_path[path].loose.append(file)
        return by_path.values()

    def _role_folder(self, folder: Path) -> Path | None:
        """Return the outermost folder of a role, below the given ones, that a folder is or lies in."""
        root = self._root(folder)
        above = [folder, *folder.parents]
        below_root = above[: above.index(root)] if root is not None else []
        return next((path for path in reversed(below_root) if path.name in self._role_of), None)

    def _root(self, folder: Path) -> Path | None:
        """Return the outermost of the given folders that a folder lies in."""
        return next((root for root in self._roots if folder.is_relative_to(root)), None)

    def _add_sequence(self, folder: _Folder) -> None:
        names = {role: f"{folder.prefix}{self._folders[role]}" for role in ROLES if role in folder.by_role}
        by_role: dict[str, dict[str, SourceFile]] = {}
        excluded: set[str] = set()
        for role, name in names.items():
            stems = by_role[role] = {}
            files = [file for file in folder.by_role[role] if may_be(file.format, role)]
            if not files:
                message = f"contains no file of {ROLE_FILES[role]}"
                self.problems.append(Problem(name, message, kind="missing", source=folder.name))
            for file in files:
                first = stems.setdefault(file.path.stem, file)
                if first is not file:
                    message = f"is frame {printable(file.path.stem)}, but so is {printable(first.path.name)}"
                    problem = Problem(file.name, message, "remove one of them", "count", file.name)
                    self.problems.append(problem)
            excluded |= self._excluded_stems(name, files) - stems.keys()
        if all(by_role.values()):
            for stems in by_role.values():
                for stem in excluded & stems.keys():
                    del stems[stem]
            frames, problems = pair_files(by_role, names)
            self.problems += with_source(folder.name, problems)
            self._add_runs(folder, split_at_gaps(frames, excluded))

    def _excluded_stems(self, folder: str, files: Iterable[SourceFile]) -> set[str]:
        """Stems of files of a folder that are left out by their own names."""
        endings = {file.path.suffix for file in files}
        inside = [name for name in self._excluded if str(name.parent) == (folder or ".")]
        return {name.stem for name in inside if name.suffix in endings}

    def _add_loose(self, folder: _Folder) -> None:
        """Numbered spike files are consecutive frames of one recording, others a recording each."""
        alone = [file for file in folder.loose if file.path in self._roots]
        inside = [file for file in folder.loose if file.path not in self._roots and _is_recording(file)]
        numbered = [file for file in inside if file.path.stem.isdigit()]
        if len(numbered) > 1:
            stems = self._excluded_stems(folder.prefix.rstrip("/"), inside)
            frames = {file.path.stem: {"spike": file} for file in numbered}
            self._add_runs(folder, split_at_gaps(frames, filter(str.isdigit, stems)))
            inside = [file for file in inside if not file.path.stem.isdigit()]
        for file in (*alone, *inside):
            if file.format in IMAGE_FORMATS:
                message = "is an image, not a file of spikes"
                fix = "give the folder of its sequence", "give the files of spikes"
                self.problems.append(Problem(file.name, message, fix, "missing", file.name))
            else:
                self.recordings.append(
                    SpikeRecording(file.name, self._split(folder.path), ({"spike": file},))
                )

    def _add_runs(self, folder: _Folder, runs: Iterable[tuple[Frame, ...]]) -> None:
        split = self._split(folder.path)
        self.recordings += [SpikeRecording(folder.name, split, run, part) for part, run in enumerate(runs, 1)]

    def _split(self, folder: Path) -> str | None:
        """Split named by the folders from the given one on."""
        top = self._root(folder) or folder
        return split_of(f"{folder.relative_to(top.parent).as_posix()}/")

    def _drop_duplicates(self) -> None:
        """Drop recordings that share a file with one of more roles, or with one that names a split."""
        used_files: set[Path] = set()
        kept: list[SpikeRecording] = []
        doubles: list[str] = []
        by_name = sorted(self.recordings, key=_natural_name)
        for recording in sorted(by_name, key=lambda one: (-len(one.roles), one.split is None)):
            files = set(real_files([next(iter(frame.values())).path for frame in recording.frames]))
            if files & used_files:
                doubles.append(recording.name)
            else:
                kept.append(recording)
                used_files |= files
        self.recordings = sorted(kept, key=_natural_name)
        if doubles:
            self.notes.append(
                f"skipped, because other recordings contain the same files: {', '.join(doubles)}"
            )


def _natural_name(recording: SpikeRecording) -> Any:
    return natural_key(recording.name)


def _is_recording(file: SourceFile) -> bool:
    """Return whether a file is spikes where no folder says so."""
    if file.format == RAW_FORMAT:
        return file.path.name.lower().endswith(STREAM_ENDING)
    return may_be(file.format, "spike")


def pair_files(
    by_role: Mapping[str, Mapping[str, SourceFile]], folders: Mapping[str, str]
) -> tuple[dict[str, Frame], list[Problem]]:
    """Make frames, in natural order, from files of the same stem, or none if a role lacks a file.

    A frame that lacks a file is a problem of that frame, where most frames have all.

    Parameters
    ----------
    by_role
        Files by stem for each role.
    folders
        What messages call the folder of each role.
    """
    stems = sorted(dict.fromkeys(chain.from_iterable(by_role.values())), key=natural_key)
    lacking = {stem: [role for role, files in by_role.items() if stem not in files] for stem in stems}
    incomplete = [stem for stem in stems if lacking[stem]]
    if not incomplete:
        return {stem: {role: files[stem] for role, files in by_role.items()} for stem in stems}, []
    if 2 * len(incomplete) > len(stems):
        counts = ", ".join([f"{len(files)} in {folders[role]}" for role, files in by_role.items()])
        message = f"{len(incomplete):,} of {len(stems):,} frames do not have a file in every folder: {counts}"
        fix = "give every frame one file of the same name in each folder"
        return {}, [Problem(folders[next(iter(by_role))], message, fix, "count")]
    problems = []
    for stem in incomplete:
        own = next(files[stem] for files in by_role.values() if stem in files)
        message = (
            f"there is no file of this name in {' and '.join([folders[role] for role in lacking[stem]])}"
        )
        cut = AddOptions(("--exclude", own.name), "to cut the sequence there")
        problems.append(Problem(own.name, message, (cut, "copy the missing file"), "count", own.name))
    return {}, problems


def split_at_gaps(frames: Mapping[str, Frame], excluded: Iterable[str]) -> list[tuple[Frame, ...]]:
    """Runs of consecutive frames, split where an excluded key lies between theirs in natural order."""
    breaks = sorted(map(natural_key, excluded))
    runs: dict[int, list[Frame]] = {}
    for key, frame in frames.items():
        runs.setdefault(bisect_left(breaks, natural_key(key)), []).append(frame)
    return [tuple(run) for run in runs.values()]


def common_roles(
    recordings: Sequence[SpikeRecording], folders: Mapping[str, str], mode: Columns
) -> tuple[tuple[str, ...], list[Problem]]:
    """Roles to convert: those that all recordings have. If they differ in mode "exact", one Problem."""
    present = [
        (
            recording.name,
            dict.fromkeys([f"{folders[role]}/" for role in recording.roles], SourceColumn("|u1")),
        )
        for recording in recordings
    ]
    merged, problems = reconcile(present, mode, modes=("intersection",))
    roles = tuple([role for role in ROLES if f"{folders[role]}/" in merged])
    if recordings and not {"spike", "voxel"}.intersection(roles) and not problems:
        message = f"not all of them have {folders['spike']}/, and not all have {folders['voxel']}/"
        fix = "convert sequences with spikes and sequences with voxels separately"
        problems.append(Problem(f"{len(recordings)} sequences", message, fix, "columns"))
    return roles, problems
