"""Group ``.npy`` files: columns of the same rows, or consecutive parts of one array."""

# A ``.npy`` file holds one array without a name.
#
# - Files of a folder that could be one array (same row shape, dtypes that promote without loss), or whose
#   names differ in a trailing number only (``part_0.npy``, ``part_1.npy``), are consecutive parts of one
#   array, ``data``.
# - Others (``image.npy``, ``label.npy``) are columns of these names. If they are numbered (``image_0.npy``,
#   ``label_0.npy``, ``image_1.npy``, …), the files of each number are a group.
# - An image and its labels by their names (``img0.npy`` and ``img0_seg.npy``, ``images/a.npy`` and
#   ``labels/a.npy``) are a group, whatever their shapes: see `unistore.converters.formats.label_names`.

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from unistore.converters.common.columns import promote, storable
from unistore.converters.common.faults import is_unreadable
from unistore.converters.files.npy import NPY_NAME, read_header
from unistore.converters.formats.label_names import images_of_label, may_be_label
from unistore.errors import InputError, Problem, first_few
from unistore.plugin import Group, SourceFile

_NPY = ".npy"
_LISTED = 5
_FIX = (
    "add the missing files",
    "convert the files separately",
    "give all files the same row shape if they are parts of one array",
)
_NUMBERED = re.compile(r"(?P<base>.*?)[-_. ]?(?P<number>[0-9]+)")


def group_files(files: Sequence[SourceFile]) -> tuple[list[Group], list[Problem]]:
    """Group files with columns of the same rows, and return a problem for each incomplete number.

    A group of several files is called ``folder/{image,label}_0.npy``. Its `Group.arrays` are empty if the
    file itself names them.
    """
    by_path = {str(file.path): file for file in files}
    named = {path: file for path, file in by_path.items() if path.lower().endswith(_NPY)}
    groups = [Group(file.name, (file,)) for path, file in by_path.items() if path not in named]
    labels_of = _labels_by_image(named)
    labels = _labels(labels_of)
    folders_of_images = {
        _folder(image)
        for image, own in labels_of.items()
        if any(_folder(label) != _folder(image) for label in own.values())
    }
    images = [path for path in named if _folder(path) in folders_of_images and path not in labels]
    groups += [_image_group(image, labels_of.get(image, {}), named) for image in images]
    claimed = set(images).union(*(labels_of.get(image, {}).values() for image in images))
    folders: dict[str, dict[str, SourceFile]] = {}
    for path, file in named.items():
        if path not in claimed:
            folders.setdefault(_folder(path), {})[path] = file
    problems: list[Problem] = []
    for members in folders.values():
        of_folder, wrong = _group_folder(members, labels_of)
        groups += of_folder
        problems += wrong
    # A label may be in the groups of several images.
    grouped = {str(file.path): group for group in groups for file in group.files}
    ordered = [grouped[path] for path in by_path if path in grouped]
    return list({id(group): group for group in ordered}.values()), problems


def _group_folder(
    members: Mapping[str, SourceFile], labels_of: Mapping[str, Mapping[str, str]]
) -> tuple[list[Group], list[Problem]]:
    """Group the ``.npy`` files of one folder by path. `labels_of` has the labels of each image."""
    split = {path: _base_and_number(path[len(_folder(path)) + 1 : -len(_NPY)]) for path in members}
    bases = list(dict.fromkeys(base for base, _ in split.values()))
    own_labels = {image: labels_of[image] for image in members if image in labels_of}
    if len(bases) == 1 or (not own_labels and _could_be_one(members.values())):
        return [Group(file.name, (file,), (NPY_NAME,)) for file in members.values()], []
    groups: list[Group] = []
    problems: list[Problem] = []
    for number in dict.fromkeys(number for _, number in split.values()):
        paths = [path for path in members if split[path][1] == number]
        columns = tuple([split[path][0] for path in paths])
        own_files = tuple([members[path] for path in paths])
        group = Group(_joint_name(own_files[0].name, columns), own_files, columns)
        if sorted(columns) == sorted(bases):
            groups.append(group)
        else:
            message = f"needs one file for each of {first_few(bases, _LISTED)}, which are in the same folder"
            problems.append(Problem(group.name, message, _FIX, "parts", group.name))
    if own_labels and not groups:
        images = members.keys() - _labels(own_labels)
        return [
            _image_group(path, own_labels.get(path, {}), members) for path in members if path in images
        ], []
    return groups, problems


def _folder(path: str) -> str:
    return path[: max(0, path.rfind(os.sep))]


def _labels_by_image(files: Collection[str]) -> dict[str, dict[str, str]]:
    bare = {path[: -len(_NPY)]: path for path in files}
    owners = {}
    for label in filter(may_be_label, bare):
        match = images_of_label(label, bare.__contains__)
        if match is not None:
            owners[label] = match
    labels_of: dict[str, dict[str, str]] = {}
    for label, match in owners.items():
        for image in match.images:
            if image not in owners:
                labels_of.setdefault(bare[image], {}).setdefault(match.name, bare[label])
    return labels_of


def _labels(labels_of: Mapping[str, Mapping[str, str]]) -> set[str]:
    return set().union(*(own.values() for own in labels_of.values()))


def _image_group(image: str, labels: Mapping[str, str], files: Mapping[str, SourceFile]) -> Group:
    arrays = ("image", *labels)
    name = files[image].name
    if labels:
        folder, slash, file = name.rpartition("/")
        name = f"{folder}{slash}{{{','.join(arrays)}}}_{file}"
    return Group(name, tuple([files[path] for path in (image, *labels.values())]), arrays)


def _could_be_one(files: Collection[SourceFile]) -> bool:
    """Return whether the arrays could be parts of one. True if a file is damaged: that is reported later."""
    headers = []
    for file in files:
        try:
            headers.append(read_header(file.path, file.name))
        except InputError as error:
            if is_unreadable(error):
                raise InputError(
                    [replace(problem, source=file.name) for problem in error.problems]
                ) from error
            return True
    dtypes = [header.dtype for header in headers]
    if len({header.shape[1:] for header in headers}) > 1:
        return False
    return len(set(dtypes)) == 1 or (all(map(storable, dtypes)) and promote(dtypes) is not None)


def _joint_name(first: str, columns: Sequence[str]) -> str:
    """``folder/{image,label}_0.npy``, from the name of the first file. That name where it is alone."""
    if len(columns) == 1:
        return first
    shown = ",".join(columns[:_LISTED]) + (",…" if len(columns) > _LISTED else "")
    folder, slash, file = first.rpartition("/")
    return f"{folder}{slash}{{{shown}}}{file[len(columns[0]) :]}"


def _base_and_number(stem: str) -> tuple[str, str]:
    """``image_007`` is ``image`` and ``7``. A name without a trailing number has the number ``""``."""
    match = _NUMBERED.fullmatch(stem)
    if match is None:
        return stem, ""
    return match["base"], str(int(match["number"]))
