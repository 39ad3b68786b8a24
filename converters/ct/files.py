"""The files of a CT volume: image, windows, masks, labels, points, ``info.json``."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from unistore.converters.ct.layouts import format_of, without_suffix
from unistore.converters.ct.names import mask_id, window_of
from unistore.errors import Problem, printable
from unistore.schemas.ct.windows import Window


@dataclass(frozen=True, slots=True)
class WindowFile:
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
    metadata: Path | None = None
    problems: list[Problem] = field(default_factory=list)

    def paths(self) -> tuple[Path, ...]:
        """All of them, the one that names the volume first."""
        windows = (item.path for item in (*self.windows, *self.archives))
        texts = [path for path in (self.info, self.metadata) if path is not None]
        found = (*self.images.values(), *windows, *self.masks.values(), *self.labels.values(), *texts)
        return tuple(sorted(found, key=lambda file: file != self.path))

    def add_image(self, file: Path, resolution: int) -> None:
        """Add a ``ct_original`` file; a second one of its N is a problem."""
        if resolution in self.images:
            self._duplicate_problem(file, self.images[resolution])
        else:
            self.images[resolution] = file

    def add_mask(self, file: Path) -> bool:
        """Add a mask, by its id without the volume's name; False if its name has no id."""
        mask = mask_id(file)
        if mask is None:
            return False
        case = without_suffix(self.path.name)
        name = mask.removeprefix(f"{case}_")
        name = "binary" if name == case else name
        if name in self.masks:
            self._duplicate_problem(file, self.masks[name])
        self.masks[name] = file
        return True

    def add_label(self, file: Path, name: str) -> None:
        """Add a label volume or mask by the name of its field; a second one of that name is a problem."""
        if name in self.labels:
            self._duplicate_problem(file, self.labels[name])
        self.labels.setdefault(name, file)

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

    def _duplicate_problem(self, file: Path, other: Path) -> None:
        message = f"has {printable(other.name)} and {printable(file.name)}, which are called the same"
        self.problems.append(Problem("", message, "keep one of them", "layout"))


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
