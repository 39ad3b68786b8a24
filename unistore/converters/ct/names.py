"""Names of the files of CT volumes: what a file is to a volume, by its name and folder."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from functools import cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from unistore.converters.ct.options import FORMATS, METADATA
from unistore.converters.formats.label_names import label_name
from unistore.plugin import SourceFile, formats_of
from unistore.schemas.ct.windows import PRESETS, Window
from unistore.system.types import Dtype, Shape

DICOM = "dicom"  # the format whose files are slices of series, whatever they are called
TIFF = "tiff"  # the format whose files may be pages of stacks
POINTS = ".npz"  # ending of files of points: sparse windows and distance fields
# What an export writes of spacing, origin and direction: in a case folder, or as `a.geometry.json`.
GEOMETRY = "geometry.json"
SLICES = "slices"  # role of the files that continue an image
TEXTS = ("info", "geometry", "metadata", "dataset")  # roles of the texts about a volume
IMAGE_WORDS = ("ct", "hu")  # what volumes that have labels are called besides images and volumes

_PLAIN = ("npy", "hdf5", "npz")
_CASE_FOLDERS = ("windows", "masks", "labels")
_IMAGE = re.compile(r"ct_original(?:_(?P<resolution>\d+))?")
_BINARY = re.compile(r"(?P<id>.+)_binary")
_NUMBERED = re.compile(r"(?P<before>.*?)(?P<number>\d+)(?P<after>\D*)")
_WINDOW = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.-]*)_w(?P<width>\d+(?:\.\d+)?)_l(?P<level>-?\d+(?:\.\d+)?)", re.ASCII
)
# A preset without its width and level, and perhaps the voxels along an axis: ``lung``, ``lung_64``
_PRESET = re.compile(rf"(?:(?P<before>.+)_)?(?P<name>{'|'.join(PRESETS)})(?:_(?P<resolution>\d+))?")
_SIZED = re.compile(r".+_(?P<resolution>\d+)")


def suffixes() -> tuple[str, ...]:
    """Return the endings of files of voxels."""
    return _suffixes_of(FORMATS)


@cache
def _suffixes_of(formats: tuple[str, ...]) -> tuple[str, ...]:
    """Return the endings of some formats, and of all that are offered to every family."""
    chosen = formats_of(formats, offered=True)
    return tuple(chain.from_iterable([one.suffixes for one in chosen]))


def is_voxels(file: Path) -> bool:
    """Return whether a file is of a format of voxels."""
    return file.name.lower().endswith(suffixes())


def is_plain(file: Path) -> bool:
    """Return whether a file is of a format of arrays of any kind, so that it may be no volume at all."""
    return file.name.lower().endswith(_suffixes_of(_PLAIN))


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
    """Split a file name with a window, such as ``case_lung_w1500_l-600``.

    Parameters
    ----------
    stem : str
        File name without its ending.
    known : collection of str, default ()
        Names of known windows. They may contain ``_``.
    whole : bool, default False
        If no known name fits. True: the whole name is the name of the window. False: its last part is.

    Returns
    -------
    (str, Window) or None
        The name before the window, and the window. None: there is no window.
    """
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
    """Window that a file's name ends in. In a folder ``windows/`` it may be a preset, or the whole name."""
    stem = _window_stem(file)
    if not is_in_windows(file):
        return window_in(stem, known)
    preset = _PRESET.fullmatch(stem)
    if preset is None:
        return window_in(stem, known, whole=True)
    return preset["before"] or "", PRESETS[preset["name"]]


def states_window(file: Path) -> bool:
    """Return whether the name of a file states width and level of a window."""
    return _WINDOW.fullmatch(_window_stem(file)) is not None


def is_in_windows(file: Path) -> bool:
    """Return whether a file is in a folder ``windows/``."""
    return file.parent.name == "windows"


def window_resolution(file: Path) -> int:
    """N of ``windows/lung_N.npy``, the voxels along an axis, 0 for other names."""
    match = _SIZED.fullmatch(_window_stem(file)) if is_in_windows(file) else None
    return int(match["resolution"]) if match else 0


def is_nameless_window(file: Path, shape: Shape, dtype: Dtype) -> bool:
    """Return whether a file in ``windows/`` has a window's form, and a name that tells its size alone."""
    resolution = window_resolution(file)
    may_be_window = dtype.kind in "bf" or dtype.itemsize == 1
    return bool(resolution) and shape == (resolution,) * 3 and may_be_window and window_of(file) is None


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
    if not is_in_windows(file):
        return False
    named = window_of(file)
    if named is None:
        return not is_voxels(file) and file.name.lower().endswith(POINTS)
    # Else it is a window of the volume of that name
    return named[0] in ("", file.parent.parent.name)


def has_image(folder: Path, file: SourceFile) -> bool:
    """Return whether a folder near a file holds ``ct_original_N.npy``."""
    return file.surroundings.holds(folder, is_image)


def has_windows(folder: Path, file: SourceFile) -> bool:
    """Return whether the folder ``windows/`` of a folder near a file holds any."""
    return file.surroundings.holds(f"{folder}{os.sep}windows", is_case_window)


def is_case(folder: Path, file: SourceFile) -> bool:
    """Return whether a folder near a file is a case: one with a volume, or with windows of one."""
    return has_image(folder, file) or has_windows(folder, file)


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
    is_beside = place not in _CASE_FOLDERS and window_of(file, known) is not None
    if place == "windows" or is_beside:
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
