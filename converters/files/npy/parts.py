"""Which ``.npy`` files are arrays side by side, and which are parts of one array.

A ``.npy`` file holds one array without a name. Files of one folder whose arrays could be one array (rows of
one shape, dtypes that promote without loss), or whose names differ in a trailing number alone
(``part_0.npy``, ``part_1.npy``), are parts of one array, ``data``, one after the other. Files that cannot be
(``image.npy``, ``label.npy``) are arrays of those names, side by side; numbered as well (``image_0.npy``,
``label_0.npy``, ``image_1.npy``, …), every number is one part that holds them all. So are an image and its
labels by their names (``img0.npy`` and ``img0_seg.npy``, ``images/a.npy`` and ``labels/a.npy``), whatever the
shapes: see `unistore.converters.files.pairs`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from unistore.converters.common.columns import promote, storable
from unistore.converters.files.arrays import NPY_NAME
from unistore.converters.files.hdf5.file import place
from unistore.converters.files.npy.array import read_header
from unistore.converters.files.pairs import owners_of
from unistore.errors import InputError, Problem

__all__ = ["FileGroup", "parts_of"]

_SHOWN = 5
_CURE = "parts of one array need rows of one shape, arrays side by side the same numbers: convert them apart"
_NUMBERED = re.compile(r"(?P<base>.*?)[-_. ]?(?P<number>[0-9]+)")


@dataclass(frozen=True, slots=True)
class FileGroup:
    """Files that contribute the same rows.

    Attributes
    ----------
    name
        Relative name of the file, or ``folder/{image,label}_0.npy``.
    files
        Each file with its relative name.
    arrays
        Name of the one array of each file; None: the file names its arrays itself.
    """

    name: str
    files: tuple[tuple[str, Path], ...]
    arrays: tuple[str, ...] | None = None


def parts_of(named: Sequence[tuple[str, Path]]) -> tuple[list[FileGroup], list[Problem]]:
    """Group files, given with their relative names in natural order.

    Returns
    -------
    list of FileGroup, list of Problem
        Groups in the order of their first files; a Problem for each number that some of the arrays side by
        side lack though others have it.
    """
    names = {path: name for name, path in named if path.suffix.lower() == ".npy"}
    pairs = _pairs(names)
    grouped: dict[Path, FileGroup | None] = {}
    folders_of_images = {
        image.parent
        for image, labels in pairs.items()
        if any(p.parent != image.parent for p in labels.values())
    }
    labels = {path for found in pairs.values() for path in found.values()}
    for image in names:
        if image.parent in folders_of_images and image not in labels:
            part = _paired(image, pairs.get(image, {}), names)
            grouped |= dict.fromkeys((path for _, path in part.files), part)
    folders: dict[Path, list[tuple[str, Path]]] = {}
    for path, name in names.items():
        if path not in grouped:
            folders.setdefault(path.parent, []).append((name, path))
    problems: list[Problem] = []
    for members in folders.values():
        parts, wrong = _side_by_side(members, {image: pairs[image] for _, image in members if image in pairs})
        problems += wrong
        grouped |= {path: None for _, path in members}
        grouped |= {path: part for part in parts for _, path in part.files}
    whole = [grouped.get(path, FileGroup(name, ((name, path),))) for name, path in named]
    return [part for part in dict.fromkeys(whole) if part is not None], problems


def _side_by_side(
    members: Sequence[tuple[str, Path]], pairs: Mapping[Path, Mapping[str, Path]]
) -> tuple[list[FileGroup], list[Problem]]:
    """Parts of one folder's ``.npy`` files, or what is wrong with them; `pairs` are labels of images."""
    split = {path: _base_and_number(path.stem) for _, path in members}
    bases = list(dict.fromkeys(base for base, _ in split.values()))
    if len(bases) == 1 or (not pairs and _could_be_one(members)):
        return [FileGroup(name, ((name, path),), (NPY_NAME,)) for name, path in members], []
    parts: list[FileGroup] = []
    problems: list[Problem] = []
    for number in dict.fromkeys(number for _, number in split.values()):
        files = tuple((name, path) for name, path in members if split[path][1] == number)
        part = FileGroup(_joint_name(files, split), files, tuple(split[path][0] for _, path in files))
        if sorted(part.arrays or ()) != sorted(bases):
            parts_shown = ", ".join(bases[:_SHOWN]) + (", …" if len(bases) > _SHOWN else "")
            message = f"is not one file each of {parts_shown}, which lie in the same folder"
            problems.append(Problem(place(part.name), message, _CURE, "parts", part.name))
        else:
            parts.append(part)
    if not parts and pairs:
        names = {path: name for name, path in members}
        labels = {path for found in pairs.values() for path in found.values()}
        return [_paired(path, pairs.get(path, {}), names) for path in names if path not in labels], []
    return parts, problems


def _pairs(files: Collection[Path]) -> dict[Path, dict[str, Path]]:
    """Labels of each image that has any, by the name of their array."""
    bare = {path.with_suffix(""): path for path in files}
    owners = {label: owners_of(label, bare.__contains__) for label in bare}
    pairs: dict[Path, dict[str, Path]] = {}
    for label, found in owners.items():
        for image in found.images if found is not None else ():
            if owners[image] is None:
                pairs.setdefault(bare[image], {}).setdefault(found.name if found else "", bare[label])
    return pairs


def _paired(image: Path, labels: Mapping[str, Path], names: Mapping[Path, str]) -> FileGroup:
    """An image and its labels as one part; their arrays are ``image`` and what the labels are called."""
    files = tuple((names[path], path) for path in (image, *labels.values()))
    arrays = ("image", *labels)
    folder, slash, file = names[image].rpartition("/")
    name = f"{folder}{slash}{{{','.join(arrays)}}}_{file}" if labels else names[image]
    return FileGroup(name, files, arrays)


def _could_be_one(members: Sequence[tuple[str, Path]]) -> bool:
    """Whether the arrays could be parts of one; also where a file cannot be read, which is reported later."""
    try:
        headers = [read_header(path, name) for name, path in members]
    except InputError:
        return True
    dtypes = [header.dtype for header in headers]
    same_rows = len({header.shape[1:] for header in headers}) == 1
    return same_rows and (
        len(set(dtypes)) == 1 or (all(map(storable, dtypes)) and promote(dtypes) is not None)
    )


def _joint_name(files: Sequence[tuple[str, Path]], split: Mapping[Path, tuple[str, str]]) -> str:
    """``folder/{image,label}_0.npy``; the file's own name where it is alone."""
    first = files[0][0]
    if len(files) == 1:
        return first
    bases = [split[each][0] for _, each in files]
    shown = ",".join(bases[:_SHOWN]) + (",…" if len(bases) > _SHOWN else "")
    folder, slash, file = first.rpartition("/")
    return f"{folder}{slash}{{{shown}}}{file[len(bases[0]) :]}"


def _base_and_number(stem: str) -> tuple[str, str]:
    """``image_007`` is ``image`` and 7; a name that is all number, or has none, is all base."""
    match = _NUMBERED.fullmatch(stem)
    if match is None:
        return stem, ""
    return match["base"], str(int(match["number"]))
