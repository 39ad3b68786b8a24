"""Whether a file is of a CT volume: by its name and folder, its header, and what lies near it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from unistore.converters.ct.names import (
    DICOM,
    IMAGE_WORDS,
    TIFF,
    bare_path,
    case_role,
    folder_of,
    has_image,
    is_case,
    is_case_window,
    is_image,
    is_nameless_window,
    is_plain,
    is_voxels,
    mask_id,
    page_name,
    stem_of,
    suffixes,
    window_of,
)
from unistore.converters.ct.options import INFO
from unistore.converters.ct.slabs import kind_of
from unistore.converters.ct.texts import read_info
from unistore.converters.formats.label_names import LabelMatch, images_of_label, label_paths, row_label_paths
from unistore.errors import printable
from unistore.plugin import Claim, FileSummary, SourceFile, no, sure
from unistore.system.types import Shape

CASES = "cases"
FILES = "files"
SERIES = "series"
_HINT = re.compile(r"(^|[^a-z])(ct|hu|vol|volume|volumes|scan|scans)([^a-z]|$)", re.IGNORECASE)
# Folders of volumes in nnU-Net and the Medical Segmentation Decathlon.
_NNUNET = ("imagesTr", "imagesTs", "imagesVal")
_CALLED = {
    "image": "the volume",
    "windows": "a window",
    "points": "a window",
    "masks": "a mask",
    "labels": "a label",
}
_IS_NAMED = sure("names an intensity window", FILES)


def claim(file: SourceFile) -> Claim | None:
    """Take ``info.json`` of a case folder, and DICOM by its first bytes. None: of others the content decides.

    Raises
    ------
    InputError
        If such an ``info.json`` is no JSON.
    """
    if file.format == DICOM:
        from unistore.converters.formats.dicom import Dicom  # few files are

        return sure(Dicom().recognise(file).reason, SERIES)
    if file.path.name != INFO:
        return None
    if not is_case(file.path.parent, file):
        return no("is not in a case folder")
    read_info(file.path, file.name)
    return sure("describes the volume of a case folder", CASES)


def match(head: FileSummary) -> Claim:
    """Take volumes, windows, masks, labels and points.

    Integers of two or more bytes in three axes are taken for HU. Floats and bytes are taken only if the
    name of the file or its folder says ct, hu, volume or scan, or if there is a label of the same shape
    under a name that other data do not use. Arrays with a label for each of their rows are plain arrays.
    """
    # Plain arrays may have the same shapes and values, so only such a name shows that these are volumes
    file = head.file
    if not is_voxels(file.path):
        return _match_points(head)
    if len(head.arrays) != 1:
        return no(f"contains {len(head.arrays)} arrays, but a volume is one array")
    ((shape, dtype),) = head.arrays.values()
    by_name = _match_case(file, shape) or _match_loose(file, shape, dtype)
    if by_name is not None:
        return by_name
    if head.format == TIFF and len(shape) == 2:
        return _match_page(file)
    if not is_plain(file.path):
        return sure("is a format of CT volumes", FILES)
    return _match_label(file, shape) or _match_values(file, shape, dtype)


def _in_case(kind: str) -> Claim:
    return sure(f"is {_CALLED[kind]} of a case folder", CASES)


def _match_case(file: SourceFile, shape: Shape) -> Claim | None:
    """Take a file of a case folder."""
    folder = folder_of(file.path)
    if not is_case(folder, file):
        return None
    kind = case_role(file.path, has_named_image=has_image(folder, file)).partition("/")[0]
    if kind == "image" and not is_image(file.path) and len(shape) != 3:
        return None
    return _in_case(kind) if kind else None


def _match_loose(file: SourceFile, shape: Shape, dtype: np.dtype[Any]) -> Claim | None:
    """Take a window by its name, and a mask whose volume lies in the folder above the folder of masks."""
    path = file.path
    if window_of(path) is not None:
        return _IS_NAMED
    if is_nameless_window(path, shape, dtype):
        return sure("is a window of a volume, but its name does not state which", FILES)
    if path.parent.name != "masks" or not mask_id(path):
        return None
    owner = _found(str(path.parent.parent / mask_id(path)), file)
    return None if owner is None else sure(f"is the mask of {printable(owner.name)}", FILES)


def _match_page(file: SourceFile) -> Claim:
    """Take a page that another follows, or that follows another."""
    name = page_name(file.path)
    if name is not None:
        for neighbour in name.neighbours:
            if file.surroundings.has(f"{file.path.parent}{os.sep}{neighbour}"):
                return sure("is a page of a stack", FILES)
    return no("is a single page, but a volume has several")


def _match_label(file: SourceFile, shape: Shape) -> Claim | None:
    """Take a label whose volume is there, and leave it out if what it labels is no volume."""
    bare = bare_path(file.path)
    match = _label_match(bare, file)
    image = None if match is None else _found(match.images[0], file)
    if match is None or image is None:
        return None
    is_one_a_row = bare in row_label_paths(bare_path(image))
    if len(shape) != 3 and (is_one_a_row or not match.certain):
        return None
    claim = sure(f"is the label of {printable(image.name)}", FILES)
    array = _array_of(image, file)
    if array is None:  # damaged, which is told of the image
        return claim
    image_shape, image_dtype = array
    is_paired = match.certain and image_shape == shape
    if len(image_shape) == 3 and (is_paired or _is_volume(image, image_dtype)):
        return claim
    return no(f"is the label of {printable(image.name)}, which is not a volume ({image_dtype} {image_shape})")


def _match_values(file: SourceFile, shape: Shape, dtype: np.dtype[Any]) -> Claim:
    if len(shape) != 3:
        return no(f"has {len(shape)} axes {shape}, but a volume has three")
    bare = bare_path(file.path)
    if _is_volume(file.path, dtype):
        for path, label in _labels(row_label_paths(bare), file):
            if len(label) in (1, 2) and label[0] == shape[0]:
                return no(f"contains plain rows: {printable(path.name)} has one label for each")
        return sure(f"has three axes: {dtype} {shape}", FILES)
    for path, label in _labels(label_paths(bare, IMAGE_WORDS), file):
        # A label of the volume's shape whose name nothing else would have.
        match = _label_match(bare_path(path), file)
        if label == shape and match is not None and match.certain and bare in match.images:
            return sure(f"has the label {printable(path.name)} of its shape", FILES)
    hint = "a volume needs integers of two bytes or more, or a name with ct, hu, volume or scan"
    return no(f"contains {dtype} {shape}; {hint}")


def _match_points(head: FileSummary) -> Claim:
    path = head.file.path
    is_named = window_of(path) is not None
    has_points = bool(kind_of(head.arrays))
    if is_case_window(path) and (is_named or has_points or has_image(folder_of(path), head.file)):
        return _in_case("points")
    return _IS_NAMED if is_named and has_points else no("is not a window of a volume")


def _is_volume(path: Path, dtype: np.dtype[Any]) -> bool:
    """Return whether three axes are taken for a volume's, by a name or by the dtype."""
    if _HINT.search(stem_of(path)) or _HINT.search(path.parent.name) or path.parent.name in _NNUNET:
        return True
    return dtype.kind in "iu" and dtype.itemsize > 1


def _label_match(label: str, file: SourceFile) -> LabelMatch | None:
    """Return the images of what is called as labels are, if they are near a file."""
    return images_of_label(label, lambda image: _found(image, file) is not None, IMAGE_WORDS)


def _labels(paths: Iterable[str], file: SourceFile) -> Iterable[tuple[Path, Shape]]:
    """Yield what is near a file, of paths without suffix, with the shape of the array in each."""
    for bare in paths:
        path = _found(bare, file)
        array = None if path is None else _array_of(path, file)
        if path is not None and array is not None:
            yield path, array[0]


def _found(bare: str, file: SourceFile) -> Path | None:
    """Return the path with a suffix of voxels, if there is such a file near a file."""
    for ending in suffixes():
        path = f"{bare}{ending}"
        if file.surroundings.has(path):
            return Path(path)
    return None


def _array_of(path: Path, file: SourceFile) -> tuple[Shape, np.dtype[Any]] | None:
    """Return shape and dtype of the array of another file. None: that is damaged, and told of that file."""
    head = file.surroundings.head(path)
    return None if head is None else next(iter(head.arrays.values()), None)
