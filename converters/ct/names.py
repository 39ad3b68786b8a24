"""What the names of CT files say: resolution of a case's volume, window of a mask, id of a mask."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from unistore.converters.ct.layouts import format_of, stem_of, without_suffix
from unistore.schemas.ct.windows import PRESETS, Window

INFO = "info.json"
METADATA = "metadata.csv"
"""Has a row for each of a set of case folders."""
POINTS = ".npz"
"""Ending of files of points: sparse windows and distance fields."""

WORDS = ("ct", "hu")
"""What volumes that have labels are called besides images and volumes."""

_IMAGE = re.compile(r"ct_original(?:_(?P<resolution>\d+))?")
_WINDOW = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.-]*)_w(?P<width>\d+(?:\.\d+)?)_l(?P<level>-?\d+(?:\.\d+)?)", re.ASCII
)
_BINARY = re.compile(r"(?P<id>.+)_binary")


def image_resolution(file: Path) -> int | None:
    """N of a case's volume ``ct_original_N.npy``; 0 for ``ct_original.npy``; None for other names."""
    match = _matched(_IMAGE, file)
    return None if match is None else int(match["resolution"] or 0)


def mask_id(file: Path) -> str | None:
    """Id of a mask ``{id}_binary.npy``; None for other names."""
    match = _matched(_BINARY, file)
    return None if match is None else match["id"]


def _matched(pattern: re.Pattern[str], file: Path) -> re.Match[str] | None:
    stem = without_suffix(file.name)
    return None if stem == file.name else pattern.fullmatch(stem)


def window_in(stem: str, known: Collection[str] = (), *, whole: bool = False) -> tuple[str, Window] | None:
    """Find the window that a file name ends in: what stands before it, and the window.

    Parameters
    ----------
    stem
        File name without ending: ``"case_lung_w1500_l-600"``.
    known
        Names of windows besides the presets; they may hold ``_``.
    whole
        Take all of the name for the window's where no known name fits, not its last part.

    Examples
    --------
    >>> window_in("case_soft_tissue_w400_l50")
    ('case', Window(name='soft_tissue', width=400.0, level=50.0))
    """
    match = _WINDOW.fullmatch(stem)
    if match is None or float(match["width"]) == 0:
        return None
    text = match["name"]
    names = sorted({*PRESETS, *known}, key=len, reverse=True)
    fitting = [name for name in names if text == name or text.endswith(f"_{name}")]
    name = fitting[0] if fitting else text if whole else text.rpartition("_")[2]
    if not name:
        return None
    window = Window(name, float(match["width"]), float(match["level"]))
    return text[: -len(name)].removesuffix("_"), window


def window_of(file: Path, known: Collection[str] = ()) -> tuple[str, Window] | None:
    """Window that a file's name ends in; in a folder ``windows/`` the whole name is the window's."""
    stem = stem_of(file) if format_of(file) else file.stem.removesuffix("_sparse")
    return window_in(stem, known, whole=file.parent.name == "windows")


def is_case_window(file: Path) -> bool:
    """Whether a file makes the folder above its own a case: a window, or points, in a folder ``windows/``."""
    if file.parent.name != "windows":
        return False
    if format_of(file) is None:
        return file.name.lower().endswith(POINTS)
    return window_of(file) is not None
