"""Whether a file is of a CT volume, and what part: by name and folder, its header, what lies near it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unistore.converters.ct.options import FORMATS
from unistore.converters.ct.slabs import kind_of
from unistore.converters.files.pairs import (
    LabelMatch,
    images_of_label,
    label_name,
    label_paths,
    row_label_paths,
)
from unistore.converters.opened import Near
from unistore.converters.seam.formats import formats_of, offered_suffixes
from unistore.errors import printable
from unistore.plugin import Claim, Head, no, sure
from unistore.schemas.ct.windows import PRESETS, Window
from unistore.system.hints import Shape

DICOM = "dicom"  # the format whose files are slices of series, whatever they are called
TIFF = "tiff"  # the format whose files may be pages of stacks
POINTS = ".npz"  # ending of files of points: sparse windows and distance fields
INFO = "info.json"
# What an export writes of spacing, origin and direction: in a case folder, or as `a.geometry.json`.
GEOMETRY = "geometry.json"
METADATA = "metadata.csv"  # has a row for each of a set of case folders
# Names the classes of `labelsTr/`, in nnU-Net and the Medical Segmentation Decathlon.
DATASET = "dataset.json"
IMAGE_WORDS = ("ct", "hu")  # what volumes that have labels are called besides images and volumes

_PLAIN = ("npy", "hdf5", "npz")
_CASE_FOLDERS = ("windows", "masks", "labels")
_IMAGE = re.compile(r"ct_original(?:_(?P<resolution>\d+))?")
_BINARY = re.compile(r"(?P<id>.+)_binary")
_NUMBERED = re.compile(r"(?P<before>.*?)(?P<number>\d+)(?P<after>\D*)")
_WINDOW = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.-]*)_w(?P<width>\d+(?:\.\d+)?)_l(?P<level>-?\d+(?:\.\d+)?)", re.ASCII
)


def suffixes() -> tuple[str, ...]:
    """Return the endings of files of voxels."""
    return (*_suffixes_of(FORMATS), *offered_suffixes())


@cache
def _suffixes_of(formats: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(chain.from_iterable([one.suffixes for one in formats_of(formats)]))


def is_voxels(file: Path) -> bool:
    """Return whether a file is of a format of voxels."""
    return file.name.lower().endswith(suffixes())


def is_plain(file: Path) -> bool:
    """Return whether a file is of a format of arrays of any kind, so that it may be no volume at all."""
    return file.name.lower().endswith((*_suffixes_of(_PLAIN), *offered_suffixes()))


def without_suffix(name: str) -> str:
    """Return a name without the suffix of its format. Other names as they are."""
    return name.removesuffix(max(filter(name.endswith, suffixes()), key=len, default=""))


def stem_of(file: Path) -> str:
    """Name of a file without its suffix, whatever that is."""
    stem = without_suffix(file.name)
    return file.stem if stem == file.name else stem


def suffix_of(file: Path) -> str:
    """Suffix of a file: that of its format, which may be of several parts, or else its last one."""
    return file.name.removeprefix(stem_of(file))


def bare_path(file: Path) -> str:
    """Return the path of a file without its suffix."""
    return f"{file.parent}{os.sep}{stem_of(file)}"


class PageName(NamedTuple):
    """A file name in three parts: ``("slice_", 7, ".tif")``, and the digits of its number."""

    before: str
    number: int
    after: str
    digits: int

    @property
    def neighbours(self) -> tuple[str, str]:
        """Names of the pages before and behind it."""
        before, behind = (f"{number:0{self.digits}d}" for number in (self.number - 1, self.number + 1))
        return f"{self.before}{before}{self.after}", f"{self.before}{behind}{self.after}"


def page_name(file: Path) -> PageName | None:
    """Take the name of a file apart at its last number (None: it has none)."""
    match = _NUMBERED.fullmatch(stem_of(file))
    if match is None:
        return None
    number = match["number"]
    return PageName(match["before"], int(number), f"{match['after']}{suffix_of(file)}", len(number))


def image_resolution(file: Path) -> int:
    """N of a case's volume ``ct_original_N.npy``, 0 for others."""
    match = _IMAGE.fullmatch(without_suffix(file.name))
    return int(match["resolution"] or 0) if match else 0


def is_array(file: Path) -> bool:
    """Return whether a file is of a format of voxels or of points."""
    return file.name.lower().endswith((*suffixes(), POINTS))


def is_image(file: Path) -> bool:
    """Return whether a file is the volume of a case, by its name."""
    return is_voxels(file) and _IMAGE.fullmatch(without_suffix(file.name)) is not None


def mask_id(file: Path) -> str:
    """Id of a mask ``{id}_binary.npy``, empty for other names."""
    match = _BINARY.fullmatch(without_suffix(file.name)) if is_voxels(file) else None
    return match["id"] if match else ""


def mask_role(file: Path, volume: str) -> str:
    """``masks/liver`` by the file's name, without that of its volume (empty: it is not called as a mask)."""
    mask = mask_id(file)
    name = mask.removeprefix(f"{volume}_")
    return f"masks/{'binary' if name == volume else name}" if mask else ""


def window_in(stem: str, known: Collection[str] = (), *, whole: bool = False) -> tuple[str, Window] | None:
    """Split a file name into what stands before its window and the window: ``case_lung_w1500_l-600``."""
    # With `whole`, all of the name is the window's where no known one fits, not its last part. Known names
    # may hold `_`.
    match = _WINDOW.fullmatch(stem)
    if match is None or float(match["width"]) == 0:
        return None
    text = match["name"]
    names = sorted({*PRESETS, *known}, key=len, reverse=True)
    fitting = [name for name in names if text == name or text.endswith(f"_{name}")]
    last = text if whole else text.rpartition("_")[2]
    name = fitting[0] if fitting else last
    if not name:
        return None
    window = Window(name, float(match["width"]), float(match["level"]))
    return text[: -len(name)].removesuffix("_"), window


def window_of(file: Path, known: Collection[str] = ()) -> tuple[str, Window] | None:
    """Window that a file's name ends in. In a folder ``windows/`` the whole name is the window's."""
    return window_in(_window_stem(file), known, whole=file.parent.name == "windows")


def window_role(file: Path, known: Collection[str] = ()) -> str:
    """``windows/lung`` or ``points/lung`` by the file's name (empty: it does not say its window)."""
    named = window_of(file, known)
    if is_voxels(file):
        return f"windows/{named[1].name}" if named else ""
    return f"points/{named[1].name if named else _window_stem(file)}"


def _window_stem(file: Path) -> str:
    return stem_of(file) if is_voxels(file) else file.stem.removesuffix("_sparse")


# A case is a folder with a volume, or with windows of one.


def folder_of(file: Path) -> Path:
    """Return the case folder of a file, if it is in one."""
    return file.parent.parent if file.parent.name in _CASE_FOLDERS else file.parent


def is_case_window(file: Path) -> bool:
    """Whether a file makes the folder above its own a case: a window, or points, in a folder ``windows/``."""
    if file.parent.name != "windows":
        return False
    if is_voxels(file):
        return window_of(file) is not None
    return file.name.lower().endswith(POINTS)


def has_image(folder: Path, near: Near) -> bool:
    """Return whether a folder holds ``ct_original_N.npy``."""
    return near.holds(folder, is_image)


def has_windows(folder: Path, near: Near) -> bool:
    """Return whether the folder ``windows/`` of a folder holds any."""
    return near.holds(f"{folder}{os.sep}windows", is_case_window)


def metadata_paths(case: Path) -> list[Path]:
    """Where the table of a case folder may lie: beside it, or beside the folder ``processed/`` it lies in."""
    beside = [case.parent / METADATA]
    return [*beside, case.parent.parent / METADATA] if case.parent.name == "processed" else beside


def case_role(file: Path, *, has_named_image: bool, known: Collection[str] = ()) -> str:
    """What a file is in its case; empty: no part of it.

    ``image/512``, ``windows/lung``, ``points/far``, ``masks/3`` or ``labels/seg``.

    Parameters
    ----------
    has_named_image
        Whether the image of the case is called ``ct_original``.
    known
        Names of windows besides the presets.
    """
    place = file.parent.name
    if place == "windows":
        return window_role(file, known)
    if not is_voxels(file):
        return ""
    stem = stem_of(file)
    if place in _CASE_FOLDERS:
        mask = mask_role(file, file.parent.parent.name) if place == "masks" else ""
        return mask or f"labels/{stem}"
    if is_image(file) or not has_named_image:
        return f"image/{image_resolution(file)}"
    label = label_name(stem)
    return f"labels/{label}" if label else ""


SLICES = "slices"  # what the files are, among the arrays of a source, that continue its image
TEXTS = ("info", "geometry", "metadata", "dataset")  # what the files of texts about a volume are


# Whether a file is of a CT volume: by its name and folder, its header, and what lies near it.

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


def match(head: Head) -> Claim:
    """Take volumes, windows, masks, labels and points."""
    # Integers of two or more bytes in three axes are taken for HU; floats and bytes only where a file's or
    # its folder's name says ct, hu, volume or scan, or a label of the same shape is there that no other data
    # name so, since plain arrays may look the same. Arrays beside a label for each of their rows are plain
    # ones.
    path = head.file.path
    near = head.file.near
    assert near is not None
    if not is_voxels(path):
        return _match_points(path, head, near)
    if len(head.arrays) != 1:
        return no(f"holds {len(head.arrays)} arrays, a volume one")
    ((shape, dtype),) = head.arrays.values()
    by_name = _match_case(path, shape, near) or _match_loose(path, near)
    if by_name is not None:
        return by_name
    if head.format == TIFF and len(shape) == 2:
        return _match_page(path, near)
    if not is_plain(path):
        return sure("is a format of CT volumes", FILES)
    return _match_label(path, shape, near) or _match_values(path, shape, dtype, near)


def _in_case(kind: str) -> Claim:
    return sure(f"is {_CALLED[kind]} of a case folder", CASES)


def _match_case(path: Path, shape: Shape, near: Near) -> Claim | None:
    # Take a file of a case folder
    folder = folder_of(path)
    if not is_case(folder, near):
        return None
    kind = case_role(path, has_named_image=has_image(folder, near)).partition("/")[0]
    if kind == "image" and not is_image(path) and len(shape) != 3:
        return None
    return _in_case(kind) if kind else None


def _match_loose(path: Path, near: Near) -> Claim | None:
    # Take a window by its name, and a mask whose volume lies beside the folder of masks
    if window_of(path) is not None:
        return _IS_NAMED
    if path.parent.name != "masks" or not mask_id(path):
        return None
    owner = _file_of(str(path.parent.parent / mask_id(path)), near)
    return None if owner is None else sure(f"is the mask of {printable(owner.name)}", FILES)


def _match_page(path: Path, near: Near) -> Claim:
    # Take a page that another follows, or that follows another
    name = page_name(path)
    neighbours = name.neighbours if name else ()
    if any(near.has(f"{path.parent}{os.sep}{neighbour}") for neighbour in neighbours):
        return sure("is a page of a stack", FILES)
    return no("is one page, a volume several")


def _match_label(path: Path, shape: Shape, near: Near) -> Claim | None:
    # Take a label whose volume is there. Leave it out where what it labels is no volume
    bare = bare_path(path)
    owners = _owners(bare, near)
    image = None if owners is None else _file_of(owners.images[0], near)
    if owners is None or image is None:
        return None
    is_one_a_row = bare in row_label_paths(bare_path(image))
    if len(shape) != 3 and (is_one_a_row or not owners.certain):
        return None
    claim = sure(f"is the label of {printable(image.name)}", FILES)
    owner = _array_of(image, near)
    if owner is None:  # damaged, which is told of the image
        return claim
    owner_shape, owner_dtype = owner
    is_paired = owners.certain and owner_shape == shape
    if len(owner_shape) == 3 and (is_paired or _is_volume(image, owner_dtype)):
        return claim
    return no(f"is the label of {printable(image.name)}, {owner_dtype} {owner_shape}, which is no volume")


def _match_values(path: Path, shape: Shape, dtype: np.dtype[Any], near: Near) -> Claim:
    if len(shape) != 3:
        return no(f"has {len(shape)} axes {shape}, a volume three")
    bare = bare_path(path)
    if _is_volume(path, dtype):
        for file, label in _labels(row_label_paths(bare), near):
            if len(label) in (1, 2) and label[0] == shape[0]:
                return no(f"is plain rows, with a label for each in {printable(file.name)}")
        return sure(f"has three axes: {dtype} {shape}", FILES)
    for file, label in _labels(label_paths(bare, IMAGE_WORDS), near):
        # A label of the volume's shape whose name nothing else would have.
        owners = _owners(bare_path(file), near)
        if label == shape and owners is not None and owners.certain and bare in owners.images:
            return sure(f"has the label {printable(file.name)} of its shape", FILES)
    hint = "where no name says ct, hu, volume or scan, volumes are integers of two or more bytes"
    return no(f"is {dtype} {shape}; {hint}")


def _is_volume(path: Path, dtype: np.dtype[Any]) -> bool:
    # Return whether three axes are taken for a volume's, by a name or by the dtype
    if _HINT.search(stem_of(path)) or _HINT.search(path.parent.name) or path.parent.name in _NNUNET:
        return True
    return dtype.kind in "iu" and dtype.itemsize > 1


def _owners(label: str, near: Near) -> LabelMatch | None:
    # The images that are there of what is called as a label is
    return images_of_label(label, lambda image: _file_of(image, near) is not None, IMAGE_WORDS)


def _labels(paths: Iterable[str], near: Near) -> Iterable[tuple[Path, Shape]]:
    # Those files that are there, of paths without suffix, and the shape of the array in each
    for bare in paths:
        file = _file_of(bare, near)
        array = None if file is None else _array_of(file, near)
        if file is not None and array is not None:
            yield file, array[0]


def _match_points(path: Path, head: Head, near: Near) -> Claim:
    is_named = window_of(path) is not None
    has_points = bool(kind_of(head.arrays))
    if is_case_window(path) and (is_named or has_points or has_image(folder_of(path), near)):
        return _in_case("points")
    return _IS_NAMED if is_named and has_points else no("is no window of a volume")


def is_case(folder: Path, near: Near) -> bool:
    """Return whether a folder is a case: one with a volume, or with windows of one."""
    return has_image(folder, near) or has_windows(folder, near)


def _array_of(path: Path, near: Near) -> tuple[Shape, np.dtype[Any]] | None:
    # Shape and dtype of the array of another file, or None if it is damaged, which is told of that file
    head = near.head(path)
    return None if head is None else next(iter(head.arrays.values()), None)


def _file_of(bare: str, near: Near) -> Path | None:
    # The file of a path without suffix, if it is there
    for ending in suffixes():
        path = f"{bare}{ending}"
        if near.has(path):
            return Path(path)
    return None
