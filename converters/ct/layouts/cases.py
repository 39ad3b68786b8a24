"""Case folders: one volume each, with its windows, masks and ``info.json``.

A case is a folder that holds ``ct_original[_N].npy`` or a folder ``windows/`` (or one ``.npy`` file,
``info.json`` and a folder ``masks/``). It has ``windows/{name}_w{W}_l{L}.npy``, ``windows/*.npz``,
``masks/{id}_binary.npy``, classes as ``masks/{name}.npy`` and ``labels/{name}.npy``, files called like labels
beside ``ct_original``, and ``info.json``. Instead of ``.npy``, every format of volumes is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from unistore.converters.ct.files import Grouped, VolumeFiles
from unistore.converters.ct.layouts import format_of, stem_of
from unistore.converters.ct.names import INFO, image_resolution, is_case_window
from unistore.converters.files.pairs import label_name
from unistore.converters.files.paths import is_inside
from unistore.errors import Problem, printable


def folder_of(file: Path) -> Path:
    """The case folder of a file, if it is in one."""
    return file.parent.parent if file.parent.name in ("windows", "masks", "labels") else file.parent


def case_folders(
    arrays: Sequence[Path], infos: Collection[Path], roots: Sequence[Path]
) -> dict[Path, list[Path]]:
    """Case folders, each with an empty list for its files.

    Parameters
    ----------
    arrays, infos
        Files of voxels or points, and files called ``info.json``.
    roots
        Folders that a case must lie in.
    """
    cases: dict[Path, list[Path]] = {}
    beside = Counter(file.parent for file in arrays if format_of(file))
    for file in arrays:
        folder = folder_of(file)
        marked = image_resolution(file) is not None and folder == file.parent
        marked |= is_case_window(file)
        marked |= file.parent.name == "masks" and folder / INFO in infos and beside[folder] == 1
        if marked and (folder == file.parent or is_inside(folder, roots)):
            cases[folder] = []
    return cases


def add_case(
    folder: Path, files: Sequence[Path], infos: Collection[Path], known: Collection[str], grouped: Grouped
) -> None:
    """Add the volume of a case folder, and what of its files is no part of it."""
    volume = VolumeFiles(folder, info=folder / INFO if folder / INFO in infos else None)
    others: list[Path] = []
    has_image = any(file.parent == folder and image_resolution(file) is not None for file in files)
    for file in files:
        if file.parent == folder:
            resolution = image_resolution(file)
            if resolution is not None:
                volume.add_image(file, resolution)
            elif has_image and format_of(file) and (name := label_name(stem_of(file))) is not None:
                volume.add_label(file, name)
            else:
                others.append(file)
        elif file.parent.name in ("masks", "labels"):
            if file.parent.name == "masks" and volume.add_mask(file):
                continue
            if format_of(file):
                volume.add_label(file, stem_of(file))
            else:
                grouped.left_out.append((file, "is no label volume"))
        elif not volume.add_window(file, known):
            grouped.left_out.append((file, "does not say its window, as lung_w1500_l-600 does"))
    plain = [file for file in others if format_of(file)]
    if not volume.images and len(plain) == 1:
        volume.images[0] = plain[0]
        others.remove(plain[0])
    elif not volume.images and plain:
        names = ", ".join(printable(file.name) for file in plain)
        message = f"has windows, but which file is its volume? {names}"
        volume.problems.append(Problem("", message, "call it ct_original.npy", "layout"))
    grouped.left_out += [(file, "lies beside the volume of a case folder") for file in others]
    grouped.volumes.append(volume)
