"""Frames of a recording: the spike, voxel, blur and sharp files that belong together."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unistore.converters.common.columns import Column, reconcile
from unistore.converters.common.options import Columns
from unistore.converters.files.paths import natural_key
from unistore.converters.spike.images import IMAGE_SUFFIXES
from unistore.converters.spike.layouts import spike_suffixes, stem_of, voxel_suffixes
from unistore.errors import Problem, printable

__all__ = [
    "IMAGE_ROLES",
    "ROLES",
    "Frame",
    "FrameInfo",
    "Recording",
    "common_roles",
    "file_name",
    "has_known_suffix",
    "has_role_suffix",
    "pair_files",
    "split_at_gaps",
    "suffixes_of",
]

ROLES = ("spike", "voxel", "blur", "sharp")
"""Roles of the files of a frame; the first file present names the frame."""
IMAGE_ROLES = ("blur", "sharp")
_LISTED = 4


def suffixes_of(role: str) -> tuple[str, ...]:
    """Lower-case suffixes of the files of a role."""
    if role in IMAGE_ROLES:
        return IMAGE_SUFFIXES
    return spike_suffixes() if role == "spike" else voxel_suffixes()


def has_role_suffix(path: Path, role: str) -> bool:
    """Whether a file name has a suffix of a role."""
    return path.name.lower().endswith(suffixes_of(role))


def has_known_suffix(path: Path) -> bool:
    """Whether a file name has a suffix of any role."""
    return any(has_role_suffix(path, role) for role in ROLES)


@dataclass(frozen=True, slots=True)
class Frame:
    """Name of a frame (its first file, relative to the common root), and its files by role."""

    name: str
    files: Mapping[str, Path]


@dataclass(frozen=True, slots=True)
class Recording:
    """Consecutive frames: a folder of them, or one file. Every frame has all ``roles``.

    The frames behind one that is left out are a recording of the same name with the next ``part``.
    """

    name: str
    split: str | None
    frames: tuple[Frame, ...]
    roles: tuple[str, ...]
    part: int = 1

    @property
    def sequence(self) -> str:
        """Name of the sequence in the store."""
        return self.name if self.part == 1 else f"{self.name}~{self.part}"


@dataclass(frozen=True, slots=True)
class FrameInfo:
    """A frame with its recording, split and the roles to convert.

    Attributes
    ----------
    frame
        Its name and all its files by role.
    recording, sequence
        `Recording.name` and `Recording.sequence` of its recording.
    split
        Name of the split, or None.
    roles
        Roles to convert, in the order of `ROLES`.
    """

    frame: Frame
    recording: str
    sequence: str
    split: str | None
    roles: tuple[str, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        """Files to be converted, in the order of `roles`."""
        return tuple(self.frame.files[role] for role in self.roles)


def pair_files(
    files: Mapping[str, Mapping[str, Path]],
    folders: Mapping[str, str],
    name: Callable[[Path], str],
    excluded: Collection[str] = (),
) -> tuple[list[tuple[Frame, ...]], list[Problem]]:
    """Make frames from files of the same stem or, if stems differ between roles, of the same last number.

    Parameters
    ----------
    files
        By role, in the order of `ROLES`: files by stem.
    folders
        Name of each role's folder for messages: ``"train/a/blur"``.
    name
        Returns a file's printable name.
    excluded
        Stems of files that are left out; each leaves out its whole frame.

    Returns
    -------
    list of tuple of Frame, list of Problem
        Runs of consecutive frames in natural order, split where a frame is left out; empty if any role has
        missing or extra files.
    """
    keyed: dict[str, Mapping[str, Path]] = {role: _drop_keys(each, excluded) for role, each in files.items()}
    if len({frozenset(each) for each in keyed.values()}) > 1:
        numbered = {role: _by_number(each) for role, each in files.items()}
        if all(len(numbered[role]) == len(files[role]) for role in files):
            excluded = {number for stem in excluded if (number := _number(stem)) is not None}
            keyed.update({role: _drop_keys(each, excluded) for role, each in numbered.items()})
    first = next(iter(keyed))
    wanted = keyed[first]
    problems = []
    for role, each in keyed.items():
        lacking = [wanted[key].name for key in wanted if key not in each]
        extra = [each[key].name for key in each if key not in wanted]
        if lacking or extra:
            message = f"{len(each)} files beside {len(wanted)} in {folders[first]}"
            message += f"; none for {_list_some(lacking)}" if lacking else ""
            message += f"; too many: {_list_some(extra)}" if extra else ""
            cure = "every frame needs one file of each, of the same name or number"
            problems.append(Problem(folders[role], message, cure, "count"))
    if problems:
        return [], problems
    frames = {
        key: Frame(name(wanted[key]), {role: keyed[role][key] for role in keyed})
        for key in sorted(wanted, key=lambda key: natural_key(stem_of(wanted[key])))
    }
    return split_at_gaps(frames, excluded), []


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
    """Roles to convert: those that all recordings have; if they differ in mode "exact", one Problem.

    Parameters
    ----------
    recordings
        All of them.
    folders
        Name of the folder of each role.
    mode
        ``"exact"`` or ``"intersection"``.
    """
    found = [(each.name, {f"{folders[role]}/": Column("|u1") for role in each.roles}) for each in recordings]
    merged, problems = reconcile(found, mode)
    roles = tuple(role for role in ROLES if f"{folders[role]}/" in merged)
    if recordings and not {"spike", "voxel"} & set(roles) and not problems:
        message = f"have neither {folders['spike']}/ nor {folders['voxel']}/ in common"
        problems.append(Problem(f"{len(recordings)} sequences", message, kind="columns"))
    return roles, problems


def file_name(frame: Frame, role: str) -> str:
    """What messages call a frame's file: the frame's name, or that with another folder and file."""
    if role == next(iter(frame.files)):
        return frame.name
    path = frame.files[role]
    above = frame.name.rsplit("/", 2)[:-2]
    return printable("/".join([*above, path.parent.name, path.name]))


def _by_number(files: Mapping[str, Path]) -> dict[str, Path]:
    """Files by the last number of their stem, without files that have no number or a duplicate one."""
    numbered: dict[str, Path] = {}
    for stem, path in files.items():
        number = _number(stem)
        if number is not None:
            numbered.setdefault(number, path)
    return numbered


def _number(stem: str) -> str | None:
    numbers = re.findall(r"[0-9]+", stem)
    return numbers[-1].lstrip("0") if numbers else None


def _drop_keys(files: Mapping[str, Path], excluded: Collection[str]) -> dict[str, Path]:
    return {key: path for key, path in files.items() if key not in excluded}


def _list_some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(printable(name) for name in names[:_LISTED]) + more
