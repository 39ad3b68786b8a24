"""Grouping of ``.npy`` files: columns of the same rows, or consecutive parts of one array.

A ``.npy`` file holds one array without a name.

- Files of a folder that could be one array (same row shape, dtypes that promote without loss), or whose names
  differ in a trailing number only (``part_0.npy``, ``part_1.npy``), are consecutive parts of one array,
  ``data``.
- Others (``image.npy``, ``label.npy``) are columns of these names. If they are numbered (``image_0.npy``,
  ``label_0.npy``, ``image_1.npy``, …), the files of each number are a group.
- An image and its labels by their names (``img0.npy`` and ``img0_seg.npy``, ``images/a.npy`` and
  ``labels/a.npy``) are a group, whatever their shapes: see `unistore.converters.files.pairs`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from unistore.converters.common.columns import promote, storable
from unistore.converters.common.faults import is_unreadable
from unistore.converters.files.arrays import NPY_NAME
from unistore.converters.files.npy.array import read_header
from unistore.converters.files.pairs import images_of_label, may_be_label
from unistore.errors import InputError, Problem, first_few

_NPY = ".npy"
_LISTED = 5
_CURE = "parts of one array need one row shape, arrays side by side need the same numbers: convert them apart"
_NUMBERED = re.compile(r"(?P<base>.*?)[-_. ]?(?P<number>[0-9]+)")


class FileGroup(NamedTuple):
    """Files that hold columns of the same rows.

    Attributes
    ----------
    name
        Relative name of the file, or ``folder/{image,label}_0.npy``.
    files
        Relative name and path of each file.
    arrays
        Name of the array of each file; None if the file itself names its arrays.
    """

    name: str
    files: tuple[tuple[str, str], ...]
    arrays: tuple[str, ...] | None = None


def group_files(named: Sequence[tuple[str, str]]) -> tuple[list[FileGroup], list[Problem]]:
    """Group files, given by relative name and path, in natural order.

    Returns
    -------
    list of FileGroup, list of Problem
        Groups in the order of their first files; a Problem for each number that only some columns have.
    """
    names = {path: name for name, path in named if path.lower().endswith(_NPY)}
    pairs = _pairs(names)
    grouped: dict[str, FileGroup | None] = {}
    folders_of_images = {
        _folder(image)
        for image, labels in pairs.items()
        if any(_folder(label) != _folder(image) for label in labels.values())
    }
    labels = {path for found in pairs.values() for path in found.values()}
    for image in names:
        if _folder(image) in folders_of_images and image not in labels:
            group = _image_group(image, pairs.get(image, {}), names)
            grouped |= dict.fromkeys((path for _, path in group.files), group)
    folders: dict[str, list[tuple[str, str]]] = {}
    for path, name in names.items():
        if path not in grouped:
            folders.setdefault(_folder(path), []).append((name, path))
    problems: list[Problem] = []
    for members in folders.values():
        groups, wrong = _group_folder(
            members, {image: pairs[image] for _, image in members if image in pairs}
        )
        problems += wrong
        grouped |= {path: None for _, path in members}
        grouped |= {path: group for group in groups for _, path in group.files}
    ordered = [grouped.get(path, FileGroup(name, ((name, path),))) for name, path in named]
    return [group for group in dict.fromkeys(ordered) if group is not None], problems


def _group_folder(
    members: Sequence[tuple[str, str]], pairs: Mapping[str, Mapping[str, str]]
) -> tuple[list[FileGroup], list[Problem]]:
    """Group the ``.npy`` files of one folder; `pairs` has the labels of each image."""
    split = {path: _base_and_number(path[len(_folder(path)) + 1 : -len(_NPY)]) for _, path in members}
    bases = list(dict.fromkeys(base for base, _ in split.values()))
    if len(bases) == 1 or (not pairs and _could_be_one(members)):
        return [FileGroup(name, ((name, path),), (NPY_NAME,)) for name, path in members], []
    groups: list[FileGroup] = []
    problems: list[Problem] = []
    for number in dict.fromkeys(number for _, number in split.values()):
        files = tuple((name, path) for name, path in members if split[path][1] == number)
        group = FileGroup(_joint_name(files, split), files, tuple(split[path][0] for _, path in files))
        if sorted(group.arrays or ()) != sorted(bases):
            message = f"is not one file each of {first_few(bases, _LISTED)}, which lie in the same folder"
            problems.append(Problem(group.name, message, _CURE, "parts", group.name))
        else:
            groups.append(group)
    if not groups and pairs:
        names = {path: name for name, path in members}
        labels = {path for found in pairs.values() for path in found.values()}
        return [_image_group(path, pairs.get(path, {}), names) for path in names if path not in labels], []
    return groups, problems


def _folder(path: str) -> str:
    return path[: max(0, path.rfind(os.sep))]


def _pairs(files: Collection[str]) -> dict[str, dict[str, str]]:
    """Labels of each image, by array name."""
    bare = {path[: -len(_NPY)]: path for path in files}
    found = (
        (label, images_of_label(Path(label), lambda image: str(image) in bare))
        for label in filter(may_be_label, bare)
    )
    owners = {label: match for label, match in found if match is not None}
    pairs: dict[str, dict[str, str]] = {}
    for label, match in owners.items():
        for image in map(str, match.images):
            if image not in owners:
                pairs.setdefault(bare[image], {}).setdefault(match.name, bare[label])
    return pairs


def _image_group(image: str, labels: Mapping[str, str], names: Mapping[str, str]) -> FileGroup:
    files = tuple((names[path], path) for path in (image, *labels.values()))
    arrays = ("image", *labels)
    folder, slash, file = names[image].rpartition("/")
    name = f"{folder}{slash}{{{','.join(arrays)}}}_{file}" if labels else names[image]
    return FileGroup(name, files, arrays)


def _could_be_one(members: Sequence[tuple[str, str]]) -> bool:
    """Whether the arrays could be parts of one. True if a file is damaged: that is reported later."""
    try:
        headers = [read_header(Path(path), name) for name, path in members]
    except InputError as error:
        if is_unreadable(error):
            raise
        return True
    dtypes = [header.dtype for header in headers]
    same_rows = len({header.shape[1:] for header in headers}) == 1
    return same_rows and (
        len(set(dtypes)) == 1 or (all(map(storable, dtypes)) and promote(dtypes) is not None)
    )


def _joint_name(files: Sequence[tuple[str, str]], split: Mapping[str, tuple[str, str]]) -> str:
    """``folder/{image,label}_0.npy``; the file's own name where it is alone."""
    first = files[0][0]
    if len(files) == 1:
        return first
    bases = [split[each][0] for _, each in files]
    shown = ",".join(bases[:_LISTED]) + (",…" if len(bases) > _LISTED else "")
    folder, slash, file = first.rpartition("/")
    return f"{folder}{slash}{{{shown}}}{file[len(bases[0]) :]}"


def _base_and_number(stem: str) -> tuple[str, str]:
    """``image_007`` is ``image`` and ``7``; a name without a trailing number has the number ``""``."""
    match = _NUMBERED.fullmatch(stem)
    if match is None:
        return stem, ""
    return match["base"], str(int(match["number"]))
