"""Group files into CT volumes: one per case folder, or one per file of voxels.

A case is a folder that holds ``ct_original[_N].npy`` or a folder ``windows/`` (or one ``.npy`` file,
``info.json`` and a folder ``masks/``). It has ``windows/{name}_w{W}_l{L}.npy``, ``windows/*.npz``,
``masks/{id}_binary.npy``, classes as ``masks/{name}.npy`` and ``labels/{name}.npy``, files called like labels
beside ``ct_original``, and ``info.json``. Instead of ``.npy``, every format of volumes is read.

Outside of cases each file is a volume. One named ``…{name}_w{W}_l{L}.npy`` is a window of the volume beside
it that has the same name up to there, or a window without a volume; ``masks/{name}_binary.npy`` is a mask of
the volume ``{name}.npy`` beside that folder; labels are paired as `unistore.converters.files.pairs` says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from pathlib import Path

from unistore.converters.common.faults import as_problem, is_unreadable
from unistore.converters.ct.files import (
    GEOMETRY,
    INFO,
    METADATA,
    POINTS,
    WORDS,
    Grouped,
    VolumeFiles,
    image_resolution,
    is_case_window,
    mask_id,
    window_of,
)
from unistore.converters.ct.layouts import (
    FOREIGN,
    FOREIGN_CURE,
    foreign_message,
    format_of,
    known_formats,
    open_voxels,
    stem_of,
    suffixes,
    without_suffix,
)
from unistore.converters.ct.texts import metadata_paths
from unistore.converters.files.pairs import LabelMatch, images_of_label, is_label_folder, label_name
from unistore.converters.files.paths import Listing, is_inside, natural_key, relative_names
from unistore.converters.scan import Found, Part
from unistore.errors import InputError, Problem, printable


def find_volumes(listing: Listing, known: Collection[str] = ()) -> Found:
    """Group the files of a listing into volumes: one `Part` each, with its `VolumeFiles`.

    Raises an `InputError` if a path does not exist, a folder has no suitable file, or a link leads out of the
    given paths.

    Parameters
    ----------
    known
        Names of windows besides the presets.
    """
    grouped = Grouped()
    paths = listing.roots
    given = {Path(path) for path in listing.given}
    roots = [path if path.is_dir() else path.parent for path in paths]
    arrays: list[Path] = []
    infos: set[Path] = set()
    tables: set[Path] = set()
    for file in map(Path, listing.with_suffixes((*suffixes(), POINTS, INFO, METADATA, *FOREIGN))):
        name = file.name.lower()
        if format_of(file) or name.endswith(POINTS):
            arrays.append(file)
        elif name == INFO:
            infos.add(file)
        elif name == METADATA and file not in given:
            tables.add(file)
        elif file in given:
            grouped.problems.append(_unread(file))
        else:
            grouped.left_out.append((file, foreign_message(file) or f"is no {known_formats()} file"))
    cases = case_folders(arrays, infos, roots)
    outside: list[Path] = []
    for file in arrays:
        cases.get(folder_of(file), outside).append(file)
    for folder, files in cases.items():
        add_case(folder, files, infos, known, grouped)
        grouped.volumes[-1].metadata = next((each for each in metadata_paths(folder) if each in tables), None)
    add_loose(outside, given, known, grouped)
    grouped.left_out += [(file, "lies in no case folder") for file in infos - {case / INFO for case in cases}]
    used = {volume.metadata for volume in grouped.volumes}
    grouped.left_out += [(file, f"is no {known_formats()} file") for file in tables - used]
    if not grouped.volumes and not grouped.problems:
        grouped.problems = [
            _unread(file) for file, _ in sorted(grouped.left_out) if foreign_message(file)
        ] or [
            Problem(
                ", ".join(map(str, paths)),
                f"no {known_formats()} volume here",
                "see the CT layouts",
                "missing",
            )
        ]
    for volume in grouped.volumes:
        volume.geometry = _geometry_file(volume, roots)
    volumes = sorted(grouped.volumes, key=lambda volume: natural_key(volume.path.as_posix()))
    names = relative_names([volume.path for volume in volumes])
    return Found(
        parts=[
            Part(name=name, files=volume.paths(), roots=paths, detail=volume)
            for name, volume in zip(names, volumes, strict=True)
        ],
        left_out=sorted(grouped.left_out, key=lambda each: natural_key(each[0].as_posix())),
        notes=grouped.notes,
        problems=grouped.problems,
    )


def _geometry_file(volume: VolumeFiles, roots: Sequence[Path]) -> Path | None:
    """The file that states the geometry of a volume, if there is one."""
    path = volume.path / GEOMETRY
    if volume.path in volume.images.values():
        path = volume.path.with_name(f"{without_suffix(volume.path.name)}.{GEOMETRY}")
    return path if path.exists() and is_inside(path, roots) else None


def _unread(file: Path) -> Problem:
    """Problem of a given file whose format is not read."""
    foreign, read = foreign_message(file), f"CT volumes are {known_formats()} files"
    message = f"{foreign}; {read}" if foreign else f"is no {known_formats()} file"
    return Problem(str(file), message, FOREIGN_CURE if foreign else read, "format")


def folder_of(file: Path) -> Path:
    """The case folder of a file, if it is in one."""
    return file.parent.parent if file.parent.name in ("windows", "masks", "labels") else file.parent


def case_folders(
    arrays: Sequence[Path], infos: Collection[Path], roots: Sequence[Path]
) -> dict[Path, list[Path]]:
    """Case folders inside `roots`, each with an empty list for its files.

    `arrays` are files of voxels or points, `infos` those called ``info.json``.
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
                volume.add(volume.images, resolution, file)
            elif has_image and format_of(file) and (name := label_name(stem_of(file))) is not None:
                volume.add(volume.labels, name, file)
            else:
                others.append(file)
        elif file.parent.name in ("masks", "labels"):
            if file.parent.name == "masks" and volume.add_mask(file):
                continue
            if format_of(file):
                volume.add(volume.labels, stem_of(file), file)
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


Images = dict[tuple[Path, str], list[VolumeFiles]]
"""Volumes by folder and name."""


def add_loose(
    files: Sequence[Path], given: Collection[Path], known: Collection[str], grouped: Grouped
) -> None:
    """Add the volumes of files outside case folders; those that were `given` are volumes in any folder."""
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
        owner = _beside(images, folder, stem, windows[0])
        if owner is not None:
            names = ", ".join(printable(file.name) for file in windows)
            grouped.notes.append(f"{names}: taken for windows of {printable(owner.path.name)}")
        volume = owner or alone.setdefault((folder, stem), VolumeFiles(windows[0]))
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
    in_folders: dict[Path, list[Path]] = {}
    for path in bare.values():
        in_folders.setdefault(path.parent, []).append(path)
    for file, path in bare.items():
        above = in_folders.get(file.parent.parent, [])
        # In segmentations/ beside the only volume, as TotalSegmentator writes them: each organ is a file.
        if found[file] is None and is_label_folder(file.parent) and len(above) == 1 and _is_ct_only(file):
            found[file] = LabelMatch(path.name, (above[0],), certain=True)
    labels = {bare[file] for file, owners in found.items() if owners is not None}
    return {
        file: owners._replace(images=images)
        for file, owners in found.items()
        if owners is not None and (images := tuple(image for image in owners.images if image not in labels))
    }


def _is_ct_only(file: Path) -> bool:
    found = format_of(file)
    return found is not None and found.ct_only


def _add_labels(images: Images, labels: Mapping[Path, LabelMatch]) -> None:
    for file, found in labels.items():
        for image in found.images:
            for volume in images.get((image.parent, image.name), []):
                volume.add(volume.labels, found.name, file)


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
    except InputError as error:  # damage is reported with all other problems when the volume is scanned
        if is_unreadable(error):
            raise
        return None
    return near[0] if fits else None
