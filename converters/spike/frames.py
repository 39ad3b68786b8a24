"""Frames of a recording: the spike, voxel, blur and sharp files that belong together."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from unistore.converters.common.columns import Column, reconcile
from unistore.converters.files.paths import natural_key
from unistore.converters.formats import images
from unistore.converters.options import Columns
from unistore.converters.spike.layouts import spike_suffixes, stem_of, voxel_suffixes
from unistore.errors import Problem, first_few, printable

ROLES = ("spike", "voxel", "blur", "sharp")
"""Roles of the files of a frame; the first file present names the frame."""
IMAGE_ROLES = ("blur", "sharp")


def suffixes_of(role: str) -> tuple[str, ...]:
    """Lower-case suffixes of the files of a role."""
    if role in IMAGE_ROLES:
        return images.SUFFIXES
    return spike_suffixes() if role == "spike" else voxel_suffixes()


def has_role_suffix(path: Path, role: str) -> bool:
    """Whether a file name has a suffix of a role."""
    return path.name.lower().endswith(suffixes_of(role))


def has_known_suffix(path: Path) -> bool:
    """Whether a file name has a suffix of any role."""
    return any(has_role_suffix(path, role) for role in ROLES)


class Frame(NamedTuple):
    """Name of a frame (its first file, relative to the common root), and its files by role."""

    name: str
    files: Mapping[str, Path]


class Recording(NamedTuple):
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


class FrameInfo(NamedTuple):
    """A frame, what its recording is called, and the roles to convert, in the order of `ROLES`."""

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

    `files` has files by stem for each role, in the order of `ROLES`; messages call the folders of the roles
    `folders`, and a file ``name(file)``. Each of the `excluded` stems leaves out its whole frame. Returns
    runs of consecutive frames in natural order, split where a frame is left out; none if a role has missing
    or extra files.
    """
    if len({frozenset(each.keys() - excluded) for each in files.values()}) > 1:
        numbered = {
            role: {_number(stem): path for stem, path in each.items()} for role, each in files.items()
        }
        if all("" not in numbered[role] and len(numbered[role]) == len(files[role]) for role in files):
            files, excluded = numbered, {_number(stem) for stem in excluded}
    keyed = {role: {key: each[key] for key in each if key not in excluded} for role, each in files.items()}
    first, wanted = next(iter(keyed.items()))
    problems = []
    for role, each in keyed.items():
        lacking = [wanted[key].name for key in wanted if key not in each]
        extra = [each[key].name for key in each if key not in wanted]
        if lacking or extra:
            message = f"{len(each)} files beside {len(wanted)} in {folders[first]}"
            message += f"; none for {first_few(lacking)}" if lacking else ""
            message += f"; too many: {first_few(extra)}" if extra else ""
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
    """Roles to convert: those that all recordings have; if they differ in mode "exact", one Problem."""
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


def _number(stem: str) -> str:
    """The last number of a stem, empty if it has none."""
    numbers = re.findall(r"[0-9]+", stem)
    return str(int(numbers[-1])) if numbers else ""
