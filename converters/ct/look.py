"""Whether a file is of a CT volume: by its name and folder, its header, and what lies in its case folder."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from unistore.converters.common.faults import as_problem, is_unreadable
from unistore.converters.ct.files import (
    INFO,
    METADATA,
    POINTS,
    WORDS,
    image_resolution,
    is_case_window,
    mask_id,
    window_of,
)
from unistore.converters.ct.find import folder_of
from unistore.converters.ct.layouts import (
    FOREIGN_CURE,
    foreign_message,
    format_of,
    known_formats,
    open_voxels,
    stem_of,
    suffixes,
)
from unistore.converters.ct.layouts.npz import members_of
from unistore.converters.ct.source import Format, VoxelSource
from unistore.converters.ct.texts import metadata_paths, read_info
from unistore.converters.files.pairs import (
    images_of_label,
    label_name,
    label_paths,
    last_parts,
    may_be_label,
    row_label_paths,
)
from unistore.converters.files.paths import is_inside
from unistore.converters.scan import Candidate, LeftOut, Taken, Verdict
from unistore.errors import InputError, printable

_HINT = re.compile(r"(^|[^a-z])(ct|hu|vol|volume|volumes|scan|scans)([^a-z]|$)", re.IGNORECASE)

_MARKS = ("ct_original", "windows", "_l", "masks")
"""What names of images, windows and masks of cases have, and those of no other file need to."""

_NNUNET = ("imagesTr", "imagesTs", "imagesVal")
"""Folders of volumes in nnU-Net and the Medical Segmentation Decathlon."""


def look(file: Candidate) -> Verdict:
    """Take volumes, windows, masks, labels and points, and ``info.json`` of a case folder.

    Integers of two or more bytes in three axes are taken for HU; floats and bytes only where a file's or its
    folder's name says ct, hu, volume or scan, or a label of the same shape is there that no other data name
    so, since plain arrays may look the same. Arrays beside a label for each of their rows are plain ones.
    Raises an `InputError` if the header of an array, or ``info.json``, is damaged.
    """
    path, location = file.path, printable(str(file.path))
    found = format_of(path)
    if found is not None:
        return _of_voxels(path, found, found.open(path, location), file.roots)
    if path.name.lower().endswith(POINTS):
        return _of_points(path, members_of(path, location), file.roots)
    if path.name == INFO and _in_case(path.parent, file.roots):
        read_info(path, location)
        return Taken("cases", "describes the volume of a case folder")
    if path.name == METADATA and any(_has_row_in(path, case, file.roots) for case in _cases_beside(path)):
        return Taken("cases", "has a row for each of these case folders")
    foreign = foreign_message(path)
    return LeftOut(f"{foreign}: {FOREIGN_CURE}" if foreign else f"is no {known_formats()} file")


def _of_voxels(path: Path, found: Format, source: VoxelSource, roots: Sequence[Path]) -> Verdict:
    if (named := _by_name(path, found, source, roots) if _is_marked(path) else None) is not None:
        return named
    if found.ct_only:
        return Taken("files", "is a format of CT volumes")
    if len(source.shape) != 3:
        return LeftOut(f"has {len(source.shape)} axes {source.shape}, a volume three")
    if _is_volume(path, source) and (rows := _label_of_rows(path, source, roots)) is not None:
        return LeftOut(f"is plain rows, with a label for each in {printable(rows.name)}")
    if _has_companions(path.parent, roots):
        if _has_image(path.parent, roots):
            return LeftOut("lies beside the volume of a case folder")
        return Taken("cases", "is the volume of a case folder")
    if _is_volume(path, source):
        return Taken("files", f"has three axes: {source.dtype} {source.shape}")
    if (owned := _certain_label(path, source, roots)) is not None:
        return Taken("files", f"has the label {printable(owned.name)} of its shape")
    return LeftOut(
        f"is {source.dtype} {source.shape}; where no name says ct, hu, volume or scan, "
        "volumes are integers of two or more bytes"
    )


def _is_marked(path: Path) -> bool:
    """Whether `_by_name` may take a file or leave it out: a fast test that most files fail."""
    parts = last_parts(str(path))
    return may_be_label(str(path)) or any(mark in parts for mark in _MARKS)


def _by_name(path: Path, found: Format, source: VoxelSource, roots: Sequence[Path]) -> Verdict | None:
    if image_resolution(path) is not None:
        return Taken("cases", "is the volume of a case folder")
    if is_case_window(path):
        return Taken("cases", "is a window of a case folder")
    if window_of(path) is not None:
        return Taken("files", "names an intensity window")
    mask = _as_mask(path, roots)
    return mask if mask is not None or found.ct_only else _as_label(path, source, roots)


def _is_volume(path: Path, source: VoxelSource) -> bool:
    """Whether three axes are taken for a volume's, by a name or by the dtype."""
    hinted = _HINT.search(stem_of(path)) or _HINT.search(path.parent.name) or path.parent.name in _NNUNET
    return bool(hinted) or (source.dtype.kind in "iu" and source.dtype.itemsize > 1)


def _as_label(path: Path, source: VoxelSource, roots: Sequence[Path]) -> Verdict | None:
    """Taken where the volume of a label is there; left out where what it labels is no volume."""
    if _in_case_labels(path, roots):
        return Taken("cases", "is a label of a case folder")
    owners = images_of_label(
        path.parent / stem_of(path), lambda bare: _file_of(bare, roots) is not None, WORDS
    )
    if owners is None:
        beside = label_name(stem_of(path)) is not None and _has_image(path.parent, roots)
        return Taken("cases", "is a label of a case folder") if beside else None
    image = _file_of(owners.images[0], roots)
    assert image is not None
    one_a_row = path.parent / stem_of(path) in row_label_paths(image.parent / stem_of(image))
    if len(source.shape) != 3 and (one_a_row or not owners.certain):
        return None
    taken = Taken("files", f"is the label of {printable(image.name)}")
    owner = _opened(image)
    if owner is None:
        return taken
    if len(owner.shape) == 3 and (
        _is_volume(image, owner) or (owners.certain and owner.shape == source.shape)
    ):
        return taken
    return LeftOut(
        f"is the label of {printable(image.name)}, {owner.dtype} {owner.shape}, which is no volume"
    )


def _certain_label(path: Path, source: VoxelSource, roots: Sequence[Path]) -> Path | None:
    """A label of three axes and the volume's shape whose name nothing else would have."""
    bare = path.parent / stem_of(path)
    for label in label_paths(bare, WORDS):
        file = _file_of(label, roots)
        if file is None:
            continue
        owners = images_of_label(label, lambda each: _file_of(each, roots) is not None, WORDS)
        if owners is not None and owners.certain and bare in owners.images:
            found = _opened(file)
            if found is not None and found.shape == source.shape:
                return file
    return None


def _label_of_rows(path: Path, source: VoxelSource, roots: Sequence[Path]) -> Path | None:
    """An array beside another that has one label for each of its rows."""
    for label in row_label_paths(path.parent / stem_of(path)):
        file = _file_of(label, roots)
        found = None if file is None else _opened(file)
        if found is not None and len(found.shape) in (1, 2) and found.shape[0] == source.shape[0]:
            return file
    return None


def _opened(path: Path) -> VoxelSource | None:
    """Header of another file, or None if it is damaged, which is reported for that file."""
    try:
        with as_problem(str(path)):
            return open_voxels(path)
    except InputError as error:
        if is_unreadable(error):
            raise
        return None


def _file_of(bare: Path, roots: Sequence[Path]) -> Path | None:
    """The file of a path without suffix, if it is among the given paths."""
    for ending in suffixes():
        path = f"{bare}{ending}"  # text, not Path: faster, as most do not exist
        if os.path.exists(path) and is_inside(Path(path), roots):  # noqa: PTH110
            return Path(path)
    return None


def _in_case_labels(path: Path, roots: Sequence[Path]) -> bool:
    """Whether a file lies in the folder ``labels/`` or ``masks/`` of a case."""
    return path.parent.name in ("labels", "masks") and _in_case(path.parent.parent, roots)


def _as_mask(path: Path, roots: Sequence[Path]) -> Verdict | None:
    """Taken where the volume of a mask is there: in the case folder, or of its name beside ``masks/``."""
    if path.parent.name != "masks" or (mask := mask_id(path)) is None:
        return None
    folder = folder_of(path)
    owners = [folder / f"{mask}{ending}" for ending in suffixes()]
    owner = next((each for each in owners if each.exists() and is_inside(each, roots)), None)
    if owner is not None:
        return Taken("files", f"is the mask of {printable(owner.name)}")
    return Taken("cases", "is a mask of a case folder") if _in_case(folder, roots) else None


def _of_points(path: Path, members: tuple[str, str] | None, roots: Sequence[Path]) -> Verdict:
    named = window_of(path) is not None
    if is_case_window(path) and (named or members or _has_image(folder_of(path), roots)):
        return Taken("cases", "is a window of a case folder")
    if named and members:
        return Taken("files", "names an intensity window")
    return LeftOut("is no window of a volume")


def _in_case(folder: Path, roots: Sequence[Path]) -> bool:
    """Whether a folder is a case: one with a volume, or with windows of one."""
    return (
        _has_image(folder, roots)
        or _holds(folder / "windows", is_case_window, roots)
        or (
            _has_companions(folder, roots) and _holds(folder, lambda file: format_of(file) is not None, roots)
        )
    )


def _cases_beside(table: Path) -> Iterator[Path]:
    """Folders that may be the cases of a table."""
    for folder in (table.parent, table.parent / "processed"):
        if folder.is_dir():
            yield from (each for each in folder.iterdir() if each.is_dir())


def _has_row_in(table: Path, case: Path, roots: Sequence[Path]) -> bool:
    """Whether a folder is a case, and this the ``metadata.csv`` that it takes its row of."""
    found = (each for each in metadata_paths(case) if each.exists() and is_inside(each, roots))
    return _in_case(case, roots) and next(found, None) == table


def _has_companions(folder: Path, roots: Sequence[Path]) -> bool:
    """Whether a folder has windows, or masks and ``info.json``, as a case has."""
    return _holds(folder / "windows", is_case_window, roots) or (
        (folder / INFO).exists() and _holds(folder / "masks", lambda file: mask_id(file) is not None, roots)
    )


def _has_image(folder: Path, roots: Sequence[Path]) -> bool:
    return _holds(folder, lambda file: image_resolution(file) is not None, roots, "ct_original")


def _holds(folder: Path, wanted: Callable[[Path], bool], roots: Sequence[Path], start: str = "") -> bool:
    """Whether a folder has a file inside `roots` that `wanted` accepts and whose name begins with `start`."""
    try:
        names = os.listdir(folder)  # noqa: PTH208  a third of the time: asked for many files
    except OSError:
        return False
    files = (folder / name for name in names if name.startswith(start) and not name.startswith("."))
    return any(wanted(file) and is_inside(file, roots) for file in files)
