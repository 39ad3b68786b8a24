"""Volumes outside case folders: one per file, with windows, masks and labels that have its name.

A file named ``…{name}_w{W}_l{L}.npy`` is a window of the volume beside it that has the same name up to there,
or a window without a volume; ``masks/{name}_binary.npy`` is a mask of the volume ``{name}.npy`` beside that
folder; labels are paired as `unistore.converters.files.pairs` says.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from unistore.converters.common.faults import as_problem
from unistore.converters.ct.files import Grouped, VolumeFiles
from unistore.converters.ct.layouts import format_of, open_voxels, stem_of
from unistore.converters.ct.layouts.foreign import known_formats
from unistore.converters.ct.names import WORDS, mask_id, window_of
from unistore.converters.files.pairs import LabelMatch, images_of_label, label_name
from unistore.errors import InputError, Problem, printable

Images = dict[tuple[Path, str], list[VolumeFiles]]
"""Volumes by folder and name."""


def add_loose(
    files: Sequence[Path], given: Collection[Path], known: Collection[str], grouped: Grouped
) -> None:
    """Add the volumes of files outside case folders.

    Parameters
    ----------
    given
        Files that the user named: they are volumes in any folder.
    known
        Names of windows besides the presets.
    """
    images: Images = {}
    parts: dict[tuple[Path, str], list[Path]] = {}
    masks: list[Path] = []
    labels = _labels([file for file in files if format_of(file) and window_of(file, known) is None])
    for file in files:
        is_array = format_of(file) is not None
        named = window_of(file, known)
        if named is not None:
            parts.setdefault((file.parent, named[0]), []).append(file)
        elif file in labels:
            continue  # see `_add_labels`
        elif is_array and file.parent.name == "masks" and file not in given:
            masks.append(file)
        elif is_array:
            images.setdefault((file.parent, stem_of(file)), []).append(VolumeFiles(file, {0: file}))
        elif file in given:
            message = f"is an .npz file that is no window of a volume; CT volumes are {known_formats()} files"
            cure = "save the volume with np.save, or convert it as plain arrays: unistore convert rows"
            grouped.problems.append(Problem(str(file), message, cure, "format"))
        else:
            grouped.left_out.append((file, "is no window of a volume"))
    alone: dict[tuple[Path, str], VolumeFiles] = {}
    for (folder, stem), windows in parts.items():
        volume = _beside(images, folder, stem, windows[0])
        if volume is None:
            volume = alone.setdefault((folder, stem), VolumeFiles(windows[0]))
        else:
            names = ", ".join(printable(file.name) for file in windows)
            grouped.notes.append(f"{names}: taken for windows of {printable(volume.path.name)}")
        for file in windows:
            volume.add_window(file, known)
    for file in masks:
        owners = images.get((file.parent.parent, mask_id(file) or ""), [])
        if len(owners) != 1 or not owners[0].add_mask(file):
            grouped.left_out.append((file, "is the mask of no volume"))
    _add_labels(images, labels)
    alike = [file for file in files if format_of(file) and file not in labels and label_name(stem_of(file))]
    if alike:
        first = ", ".join(printable(file.name) for file in alike[:3])
        grouped.notes.append(f"called like labels, but of no image that is there, so volumes: {first}")
    grouped.volumes += [*chain.from_iterable(images.values()), *alone.values()]


def _labels(files: Sequence[Path]) -> dict[Path, LabelMatch]:
    """Files that are labels of others; a label has no labels itself."""
    bare = {file: file.parent / stem_of(file) for file in files}
    there = set(bare.values())
    found = {file: images_of_label(path, there.__contains__, WORDS) for file, path in bare.items()}
    labels = {bare[file] for file, owners in found.items() if owners is not None}
    return {
        file: replace(owners, images=images)
        for file, owners in found.items()
        if owners is not None and (images := tuple(image for image in owners.images if image not in labels))
    }


def _add_labels(images: Images, labels: Mapping[Path, LabelMatch]) -> None:
    for file, found in labels.items():
        for image in found.images:
            for volume in images.get((image.parent, image.name), []):
                volume.add_label(file, found.name)


def _beside(images: Images, folder: Path, stem: str, window: Path) -> VolumeFiles | None:
    """Volume in the same folder that a window file belongs to: the same name, or a longer one."""
    near = images.get((folder, stem), [])
    if len(near) == 1:
        return near[0]
    near = near or [
        volume
        for (place, name), volumes in images.items()
        for volume in volumes
        if place == folder and (name.startswith(f"{stem}_") or not stem)
    ]
    if len(near) != 1:
        return None
    try:
        with as_problem(str(window)):
            fits = open_voxels(near[0].path).shape == open_voxels(window).shape
    except InputError:  # reported with all other problems when the volume is scanned
        return None
    return near[0] if fits else None
