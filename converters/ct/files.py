"""The files of a CT volume: image, windows, masks, labels, points, texts; and what their names say."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from unistore.converters.ct.layouts import format_of, stem_of, without_suffix
from unistore.errors import Problem, printable
from unistore.schemas.ct.windows import PRESETS, Window

INFO = "info.json"
GEOMETRY = "geometry.json"
"""What an export writes of spacing, origin and direction: in a case folder, or as ``a.geometry.json``."""
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

State = tuple[tuple[int, int], ...]
"""Size and modification time of files."""


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


class WindowFile(NamedTuple):
    """A file that holds one window: voxels of 0 and 1 (``.npy``) or points (``.npz``)."""

    path: Path
    name: str
    window: Window | None


@dataclass(slots=True)
class VolumeFiles:
    """Every file of one volume.

    Attributes
    ----------
    path
        Case folder or file of the volume; gives its name.
    images
        ``ct_original`` files by their N (0 where the name has none); one for other files.
    windows
        ``.npy`` windows.
    archives
        ``.npz`` files of points: sparse windows or distance fields; their members tell.
    masks
        ``masks/{id}_binary.npy`` by id.
    labels
        Label volumes and masks that are paired with the image by name: ``img_seg.npy`` of ``img.npy``.
    info
        ``info.json``.
    geometry
        ``geometry.json`` of a case, ``a.geometry.json`` of a volume ``a.npy``.
    metadata
        ``metadata.csv`` of the set that a case belongs to.
    problems
        What is wrong with the files' names; the volume's own name is put before it.
    """

    path: Path
    images: dict[int, Path] = field(default_factory=dict)
    windows: list[WindowFile] = field(default_factory=list)
    archives: list[WindowFile] = field(default_factory=list)
    masks: dict[str, Path] = field(default_factory=dict)
    labels: dict[str, Path] = field(default_factory=dict)
    info: Path | None = None
    geometry: Path | None = None
    metadata: Path | None = None
    problems: list[Problem] = field(default_factory=list)

    def paths(self) -> tuple[Path, ...]:
        """All of them, the one that names the volume first."""
        windows = (item.path for item in (*self.windows, *self.archives))
        texts = [path for path in (self.info, self.geometry, self.metadata) if path is not None]
        found = (*self.images.values(), *windows, *self.masks.values(), *self.labels.values(), *texts)
        return tuple(sorted(found, key=lambda file: file != self.path))

    def add(self, files: dict[Any, Path], name: object, file: Path) -> None:
        """Add a file by its name to `images`, `masks` or `labels`; a second one of that name is a problem."""
        other = files.setdefault(name, file)
        if other != file:
            message = f"has {printable(other.name)} and {printable(file.name)}, which are called the same"
            self.problems.append(Problem("", message, "keep one of them", "layout"))

    def add_mask(self, file: Path) -> bool:
        """Add a mask, by its id without the volume's name; False if its name has no id."""
        mask = mask_id(file)
        if mask is None:
            return False
        case = without_suffix(self.path.name)
        name = mask.removeprefix(f"{case}_")
        self.add(self.masks, "binary" if name == case else name, file)
        return True

    def add_window(self, file: Path, known: Collection[str]) -> bool:
        """Add a window, or a file of points; False if the name of what should be a window names none."""
        named = window_of(file, known)
        if not format_of(file):
            stem = file.stem.removesuffix("_sparse")
            found = WindowFile(file, named[1].name if named else stem, named[1] if named else None)
            self.archives.append(found)
            return True
        if named is not None:
            self.windows.append(WindowFile(file, named[1].name, named[1]))
        return named is not None


@dataclass(slots=True)
class Grouped:
    """Volumes, files that are left out with the reason, remarks, and problems."""

    volumes: list[VolumeFiles] = field(default_factory=list)
    left_out: list[tuple[Path, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def file_location(file: Path, volume: Path, name: str) -> str:
    """How messages call a file of a volume at the path `volume`, which they call `name`."""
    if file == volume:
        return name
    if file.is_relative_to(volume):
        return f"{name}/{printable(file.relative_to(volume).as_posix())}"
    shared = Path(os.path.commonpath([file, volume]))
    above = name.split("/")[: -len(volume.relative_to(shared).parts)]
    return "/".join([*above, printable(file.relative_to(shared).as_posix())])


def state_of(paths: Iterable[Path]) -> State:
    """State of files, which differs after a change."""
    return tuple((status.st_size, status.st_mtime_ns) for status in map(Path.stat, paths))
