"""Which files make a CT volume, decided by names and folders alone.

Two layouts, which may stand side by side:

- **case folders**: a folder that holds ``ct_original[_N].npy`` or a folder ``windows/`` (or one ``.npy``
  file, ``info.json`` and a folder ``masks/``) is one volume, with
  ``windows/{name}_w{W}_l{L}.npy``, ``windows/*.npz``, ``masks/{id}_binary.npy`` and ``info.json``;
- **files**: any other ``.npy`` file is a volume; one named ``…{name}_w{W}_l{L}.npy`` is a window of the
  volume beside it that has the same name up to there, or stands alone.

Where ``.npy`` stands here, the ending of every format of volumes will do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from unistore.converters.ct.layouts import format_of, open_voxels, stem_of, suffixes, without_suffix
from unistore.converters.ct.names import image_resolution, mask_id, window_of
from unistore.converters.files.paths import expand, is_inside, natural_key
from unistore.errors import InputError, Problem, printable
from unistore.schemas.ct.windows import Window

__all__ = ["FOREIGN", "POINTS", "Found", "VolumeFiles", "WindowFile", "find_volumes"]

FOREIGN = (".nii", ".nii.gz", ".dcm", ".mha", ".mhd", ".nrrd")
"""Formats of CT volumes that are known by name alone; named in an error instead of passed over."""
POINTS = ".npz"
INFO = "info.json"
_COMPANIONS = (INFO, "metadata.csv")


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
        What names the volume: its case folder, or its file.
    images
        ``ct_original`` files by their N (0 where the name has none); one for other files.
    windows
        ``.npy`` windows.
    archives
        ``.npz`` files of points: sparse windows or distance fields; their members tell.
    masks
        ``masks/{id}_binary.npy`` by id.
    info
        ``info.json``.
    problems
        What is wrong with the files' names; the volume's own name is put before it.
    """

    path: Path
    images: dict[int, Path] = field(default_factory=dict)
    windows: list[WindowFile] = field(default_factory=list)
    archives: list[WindowFile] = field(default_factory=list)
    masks: dict[str, Path] = field(default_factory=dict)
    info: Path | None = None
    problems: list[Problem] = field(default_factory=list)


@dataclass(slots=True)
class Found:
    """Volumes in natural order, files that belong to none, remarks, and what is wrong."""

    volumes: list[VolumeFiles] = field(default_factory=list)
    left_out: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def find_volumes(paths: Sequence[Path], known: Collection[str] = ()) -> Found:
    """Group the files that the given paths stand for into volumes.

    Parameters
    ----------
    paths
        Files and folders as the user gave them.
    known
        Names of windows besides the presets.

    Raises
    ------
    InputError
        A path does not exist, holds nothing, or leads elsewhere.
    """
    found = Found()
    given = {path.parent.resolve() / path.name for path in paths if not path.is_dir()}
    roots = [path if path.is_dir() else path.parent for path in paths]
    arrays: list[Path] = []
    infos: set[Path] = set()
    for file in expand(paths, (*suffixes(), POINTS, *_COMPANIONS, *FOREIGN)):
        name = file.name.lower()
        if format_of(file) or name.endswith(POINTS):
            arrays.append(file)
        elif name == INFO:
            infos.add(file)
        elif file in given:
            found.problems.append(_foreign(file))
        else:
            found.left_out.append(file)
    cases = _case_folders(arrays, infos, roots)
    outside: list[Path] = []
    for file in arrays:
        cases.get(_folder_of(file), outside).append(file)
    for folder, files in cases.items():
        found.volumes.append(_case(folder, files, infos, known, found))
    _files(outside, given, known, found)
    found.left_out += sorted(infos - {folder / INFO for folder in cases})
    found.volumes.sort(key=lambda volume: natural_key(volume.path.as_posix()))
    if not found.volumes and not found.problems:
        found.problems = [_foreign(file) for file in found.left_out if file.name.lower().endswith(FOREIGN)]
        nothing = Problem(
            ", ".join(map(str, paths)), f"no {_formats()} volume here", "see the CT layouts", "missing"
        )
        found.problems = found.problems or [nothing]
    return found


def _folder_of(file: Path) -> Path:
    """The folder that would be the file's case."""
    return file.parent.parent if file.parent.name in ("windows", "masks") else file.parent


def _case_folders(
    arrays: Sequence[Path], infos: Collection[Path], roots: Sequence[Path]
) -> dict[Path, list[Path]]:
    """Case folders, each with an empty list for its files."""
    cases: dict[Path, list[Path]] = {}
    beside = Counter(file.parent for file in arrays if format_of(file))
    for file in arrays:
        folder = _folder_of(file)
        marked = image_resolution(file) is not None and folder == file.parent
        marked |= file.parent.name == "windows"
        marked |= file.parent.name == "masks" and folder / INFO in infos and beside[folder] == 1
        if marked and (folder == file.parent or is_inside(folder, roots)):
            cases[folder] = []
    return cases


def _case(
    folder: Path, files: Sequence[Path], infos: Collection[Path], known: Collection[str], found: Found
) -> VolumeFiles:
    volume = VolumeFiles(folder, info=folder / INFO if folder / INFO in infos else None)
    others: list[Path] = []
    for file in files:
        if file.parent == folder:
            resolution = image_resolution(file)
            if resolution is None:
                others.append(file)
            elif resolution in volume.images:
                _twice(volume, file, volume.images[resolution])
            else:
                volume.images[resolution] = file
        elif not (
            _add_mask(volume, file) if file.parent.name == "masks" else _add_window(volume, file, known)
        ):
            found.left_out.append(file)
    plain = [file for file in others if format_of(file)]
    if not volume.images and len(plain) == 1:
        volume.images[0] = plain[0]
        others.remove(plain[0])
    elif not volume.images and plain:
        names = ", ".join(printable(file.name) for file in plain)
        message = f"has windows, but which file is its volume? {names}"
        volume.problems.append(Problem("", message, "call it ct_original.npy", "layout"))
    found.left_out += others
    return volume


def _add_mask(volume: VolumeFiles, file: Path) -> bool:
    mask = mask_id(file)
    if mask is None:
        return False
    case = without_suffix(volume.path.name)
    name = mask.removeprefix(f"{case}_")
    name = "binary" if name == case else name
    if name in volume.masks:
        _twice(volume, file, volume.masks[name])
    volume.masks[name] = file
    return True


def _twice(volume: VolumeFiles, file: Path, other: Path) -> None:
    message = f"has {printable(other.name)} and {printable(file.name)}, which are called the same"
    volume.problems.append(Problem("", message, "keep one of them", "layout"))


def _add_window(volume: VolumeFiles, file: Path, known: Collection[str]) -> bool:
    named = window_of(file, known)
    if not format_of(file):
        stem = file.stem.removesuffix("_sparse")
        volume.archives.append(
            WindowFile(file, named[1].name if named else stem, named[1] if named else None)
        )
        return True
    if named is not None:
        volume.windows.append(WindowFile(file, named[1].name, named[1]))
    return named is not None


def _files(files: Sequence[Path], given: Collection[Path], known: Collection[str], found: Found) -> None:
    """Volumes of files outside case folders."""
    images: dict[tuple[Path, str], list[VolumeFiles]] = {}
    parts: dict[tuple[Path, str], list[Path]] = {}
    masks: list[Path] = []
    for file in files:
        is_array = format_of(file) is not None
        named = window_of(file, known)
        if named is not None:
            parts.setdefault((file.parent, named[0]), []).append(file)
        elif is_array and file.parent.name == "masks" and file not in given:
            masks.append(file)
        elif is_array:
            images.setdefault((file.parent, stem_of(file)), []).append(VolumeFiles(file, {0: file}))
        elif file in given:
            message = f"is an .npz file that is no window of a volume; CT volumes are {_formats()} files"
            cure = "save the volume with np.save, or convert it as plain arrays: unistore convert rows"
            found.problems.append(Problem(str(file), message, cure, "format"))
        else:
            found.left_out.append(file)
    alone: dict[tuple[Path, str], VolumeFiles] = {}
    for (folder, stem), windows in parts.items():
        volume = _beside(images, folder, stem, windows[0])
        if volume is None:
            volume = alone.setdefault((folder, stem), VolumeFiles(windows[0]))
        else:
            names = ", ".join(printable(file.name) for file in windows)
            found.notes.append(f"{names}: taken for windows of {printable(volume.path.name)}")
        for file in windows:
            _add_window(volume, file, known)
    for file in masks:
        owners = images.get((file.parent.parent, mask_id(file) or ""), [])
        if len(owners) != 1 or not _add_mask(owners[0], file):
            found.left_out.append(file)
    found.volumes += [*chain.from_iterable(images.values()), *alone.values()]


def _beside(
    images: dict[tuple[Path, str], list[VolumeFiles]], folder: Path, stem: str, window: Path
) -> VolumeFiles | None:
    """Volume in the same folder that a window file belongs to: same name, or the one whose name goes on."""
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
        fits = open_voxels(near[0].path).shape == open_voxels(window).shape
    except InputError:  # reported with all other problems when the volume is looked at
        return None
    return near[0] if fits else None


def _foreign(file: Path) -> Problem:
    name = file.name.lower()
    if name.endswith(FOREIGN):
        kind = (
            "NIfTI"
            if ".nii" in name
            else "DICOM"
            if name.endswith(".dcm")
            else name.rpartition(".")[2].upper()
        )
        message = f"is {kind}, which this version does not read; CT volumes are {_formats()} files"
        cure = "load it with its own library and save the voxels: np.save('volume.npy', voxels)"
        return Problem(str(file), message, cure, "format")
    return Problem(str(file), f"is no {_formats()} file", f"CT volumes are {_formats()} files", "format")


def _formats() -> str:
    return " or ".join(suffixes())
