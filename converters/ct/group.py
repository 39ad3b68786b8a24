"""Group files into CT volumes: one for each case folder, or one for each file of voxels.

A case is a folder that holds ``ct_original[_N].npy`` or a folder ``windows/`` (or one ``.npy`` file,
``info.json`` and a folder ``masks/``). It has ``windows/{name}_w{W}_l{L}.npy``, ``windows/*.npz``,
``masks/{id}_binary.npy``, classes as ``masks/{name}.npy`` and ``labels/{name}.npy``, files called like labels
beside ``ct_original``, and ``info.json``. Instead of ``.npy``, every format of volumes is read.

Outside of cases each file is a volume. One named ``…{name}_w{W}_l{L}.npy`` is a window of the volume beside
it that has the same name up to there, or a window without a volume; ``masks/{name}_binary.npy`` is a mask of
the volume ``{name}.npy`` beside that folder; labels are paired as `unistore.converters.files.pairs` says.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from unistore.converters.ct.names import (
    GEOMETRY,
    IMAGE_WORDS,
    INFO,
    METADATA,
    POINTS,
    folder_of,
    has_image,
    has_windows,
    image_resolution,
    is_image,
    is_plain,
    is_voxels,
    mask_id,
    stem_of,
    suffixes,
    window_name,
    window_of,
    without_suffix,
)
from unistore.converters.ct.texts import metadata_paths
from unistore.converters.files.formats import unread_format
from unistore.converters.files.pairs import LabelMatch, images_of_label, is_label_folder, label_name
from unistore.converters.files.paths import is_inside, natural_key, relative_names
from unistore.converters.plugin import Group, Problem, SourceFile
from unistore.errors import printable

FOREIGN = (".nii", ".nii.gz", ".dcm", ".mha", ".mhd", ".nrrd")
"""Endings of volumes in formats that are not read; messages name them and a remedy."""
_FOREIGN_CURE = "load it with its own library and save the voxels: np.save('volume.npy', voxels)"
_POINTS_CURE = "save the volume with np.save, or convert it as plain arrays: unistore convert rows"

Choice = Group | tuple[SourceFile, str] | Problem | str
"""What `group` says: a source, a file in no source with the reason, a problem, a remark."""


@dataclass(slots=True)
class _Volume:
    """A volume whose files are being collected: its case folder or first file, and each file by its role.

    Roles are ``image/N``, ``windows/name``, ``points/name``, ``masks/id``, ``labels/name``, ``info``,
    ``geometry`` and ``metadata``.
    """

    path: Path
    files: list[tuple[str, SourceFile]] = field(default_factory=list)

    def add(self, role: str, file: SourceFile) -> None:
        """Add a file by its role."""
        self.files.append((role, file))

    def add_mask(self, file: SourceFile) -> None:
        """Add a mask, by its id without the volume's name."""
        case = without_suffix(self.path.name)
        name = mask_id(file.path).removeprefix(f"{case}_")
        self.add(f"masks/{'binary' if name == case else name}", file)

    def add_window(self, file: SourceFile, known: Collection[str]) -> None:
        """Add a window, or a file of points."""
        kind = "windows" if is_voxels(file.path) else "points"
        self.add(f"{kind}/{window_name(file.path, known)}", file)

    @property
    def image(self) -> Path | None:
        """Its image, if it has one."""
        return next((file.path for role, file in self.files if role.startswith("image/")), None)


_Place = tuple[Path, str]
"""Folder and name of a volume."""


class _Grouping:
    """Groups files; see `group`."""

    def __init__(self, files: Sequence[SourceFile], known: Collection[str]) -> None:
        self._files, self._known = files, known
        self._volumes: list[_Volume] = []
        self._choices: list[Choice] = []
        self._left_out: list[tuple[SourceFile, str]] = []

    def run(self) -> Iterator[Choice]:
        """See `group`."""
        arrays: list[SourceFile] = []
        texts: dict[Path, SourceFile] = {}
        for file in self._files:
            if is_voxels(file.path) or file.path.name.lower().endswith(POINTS):
                arrays.append(file)
            elif file.path.name == INFO or (file.path.name == METADATA and not file.is_given):
                texts[file.path] = file
            else:
                self._leave_unread(file)
        cases = self._case_folders(arrays, texts)
        outside: list[SourceFile] = []
        for file in arrays:
            cases.get(folder_of(file.path), outside).append(file)
        for folder, members in cases.items():
            self._add_case(folder, members, texts)
        self._add_loose(outside)
        self._leave_texts(texts)
        yield from self._choices
        yield from sorted(self._left_out, key=lambda item: natural_key(item[0].path.as_posix()))
        if self._volumes:
            yield from self._groups()
        elif not any(isinstance(choice, Problem) for choice in self._choices):
            yield from self._nothing()

    def _leave_unread(self, file: SourceFile) -> None:
        """Refuse a given file of a format that is not read; one in a folder is left out."""
        if file.is_given:
            self._choices.append(_unread(file))
        else:
            self._left_out.append((file, _foreign(file.path) or f"is no {_known_formats()} file"))

    def _case_folders(
        self, arrays: Sequence[SourceFile], texts: Collection[Path]
    ) -> dict[Path, list[SourceFile]]:
        """Case folders inside of the given paths, each with an empty list for its files."""
        beside = Counter(file.path.parent for file in arrays if is_voxels(file.path))
        cases: dict[Path, list[SourceFile]] = {}
        near_by = {folder_of(file.path): file for file in arrays}
        for folder, file in near_by.items():
            assert file.near is not None
            is_described = folder / INFO in texts and beside[folder] == 1 and beside[folder / "masks"]
            has_parts = is_described or has_windows(folder, file.near)
            if has_image(folder, file.near) or (has_parts and self._is_within(folder, file)):
                cases[folder] = []
        return cases

    def _is_within(self, path: Path, file: SourceFile) -> bool:
        return is_inside(path, [root if root.is_dir() else root.parent for root in file.roots])

    def _add_case(self, folder: Path, files: Sequence[SourceFile], texts: dict[Path, SourceFile]) -> None:
        volume = _Volume(folder)
        is_named = any(is_image(file.path) and file.path.parent == folder for file in files)
        for file in files:
            if not self._add_to_case(volume, file, is_named=is_named):
                self._left_out.append((file, _why_in_no_case(file.path, folder)))
        self._volumes.append(volume)
        if folder / INFO in texts:
            volume.add("info", texts.pop(folder / INFO))
        table = next((path for path in metadata_paths(folder) if path in texts), None)
        if table is not None:
            volume.add("metadata", texts[table])

    def _add_to_case(self, volume: _Volume, file: SourceFile, *, is_named: bool) -> bool:
        """Add a file to a case; `is_named`: its image is called so. False if the file is no part of it."""
        path = file.path
        place = path.parent.name if path.parent != volume.path else ""
        if place == "windows":
            is_window = not is_voxels(path) or window_of(path, self._known) is not None
            if is_window:
                volume.add_window(file, self._known)
            return is_window
        if not is_voxels(path):
            return False
        if place == "masks" and mask_id(path):
            volume.add_mask(file)
        elif place:
            volume.add(f"labels/{stem_of(path)}", file)
        elif is_image(path) or not is_named:
            volume.add(f"image/{image_resolution(path)}", file)
        else:
            name = label_name(stem_of(path))
            if name is None:
                return False
            volume.add(f"labels/{name}", file)
        return True

    def _add_loose(self, files: Sequence[SourceFile]) -> None:
        """Add the volumes of files outside case folders; masks that were given are volumes in any folder."""
        images: dict[_Place, list[_Volume]] = {}
        windows: dict[_Place, list[SourceFile]] = {}
        masks: list[SourceFile] = []
        voxels = [file for file in files if is_voxels(file.path)]
        labels = _labels([file for file in voxels if window_of(file.path, self._known) is None])
        for file in files:
            path = file.path
            named = window_of(path, self._known)
            if named is not None:
                windows.setdefault((path.parent, named[0]), []).append(file)
            elif not is_voxels(path):
                self._leave_points(file)
            elif path.parent.name == "masks" and path not in labels and not file.is_given:
                masks.append(file)
            elif path not in labels:
                volume = _Volume(path)
                volume.add("image/0", file)
                images.setdefault((path.parent, stem_of(path)), []).append(volume)
        self._volumes += chain.from_iterable(images.values())
        for place, members in windows.items():
            self._add_windows(place, members, images)
        for file in masks:
            owners = images.get((file.path.parent.parent, mask_id(file.path)), [])
            if len(owners) == 1 and mask_id(file.path):
                owners[0].add_mask(file)
            else:
                self._left_out.append((file, "is the mask of no volume"))
        for file in voxels:
            for volume, name in _owners(labels.get(file.path), images):
                volume.add(f"labels/{name}", file)
        alike = [file.path for file in voxels if file.path not in labels and label_name(stem_of(file.path))]
        if alike:
            first = ", ".join(printable(path.name) for path in alike[:3])
            self._choices.append(f"called like labels, but of no image that is there, so volumes: {first}")

    def _leave_points(self, file: SourceFile) -> None:
        if not file.is_given:
            self._left_out.append((file, "is no window of a volume"))
            return
        message = f"is an .npz file that is no window of a volume; CT volumes are {_known_formats()} files"
        self._choices.append(Problem(str(file.path), message, _POINTS_CURE, "format"))

    def _add_windows(
        self, place: _Place, files: Sequence[SourceFile], images: dict[_Place, list[_Volume]]
    ) -> None:
        """Add windows to the volume beside them, or as a volume without image."""
        volume = _beside(images, place, files[0])
        if volume is None:
            volume = _Volume(files[0].path)
            self._volumes.append(volume)
        else:
            names = ", ".join(printable(file.path.name) for file in files)
            self._choices.append(f"{names}: taken for windows of {printable(volume.path.name)}")
        for file in files:
            volume.add_window(file, self._known)

    def _leave_texts(self, texts: dict[Path, SourceFile]) -> None:
        used = {file.path for volume in self._volumes for _, file in volume.files}
        for path, file in texts.items():
            if path not in used:
                reason = "lies in no case folder" if path.name == INFO else f"is no {_known_formats()} file"
                self._left_out.append((file, reason))

    def _groups(self) -> Iterator[Group]:
        """All volumes, with the files that state their geometry."""
        volumes = sorted(self._volumes, key=lambda volume: natural_key(volume.path.as_posix()))
        names = relative_names([volume.path for volume in volumes])
        for volume, name in zip(volumes, names, strict=True):
            first = volume.files[0][1]
            geometry = volume.path / GEOMETRY
            if volume.path == volume.image:
                geometry = volume.path.with_name(f"{without_suffix(volume.path.name)}.{GEOMETRY}")
            if geometry.exists() and self._is_within(geometry, first):
                volume.add("geometry", replace(first, path=geometry))
            # The one that names the volume first.
            volume.files.sort(key=lambda item: item[1].path != volume.path)
            files = [replace(file, name=_location(file.path, volume.path, name)) for _, file in volume.files]
            yield Group(name, tuple(files), tuple(role for role, _ in volume.files))

    def _nothing(self) -> Iterator[Problem]:
        foreign = [file for file, _ in self._left_out if _foreign(file.path)]
        yield from map(_unread, sorted(foreign, key=lambda file: file.path))
        if not foreign:
            where = ", ".join(map(str, self._files[0].roots)) if self._files else "files"
            yield Problem(where, f"no {_known_formats()} volume here", "see the CT layouts", "missing")


def group(files: Sequence[SourceFile], known: Collection[str]) -> Iterator[Choice]:
    """Group files into volumes: groups whose `arrays` are the roles of the files, see `_Volume`.

    Parameters
    ----------
    files
        All of the given paths, texts too.
    known
        Names of windows besides the presets.
    """
    return _Grouping(files, known).run()


def _why_in_no_case(path: Path, folder: Path) -> str:
    if path.parent == folder:
        return "lies beside the volume of a case folder"
    if path.parent.name == "windows":
        return "does not say its window, as lung_w1500_l-600 does"
    return "is no label volume"


def _labels(files: Sequence[SourceFile]) -> dict[Path, LabelMatch]:
    """Files that are labels of others; a label has no labels itself."""
    bare = {file.path: file.path.parent / stem_of(file.path) for file in files}
    there = set(bare.values())
    in_folders: dict[Path, list[Path]] = {}
    for path in bare.values():
        in_folders.setdefault(path.parent, []).append(path)
    owners: dict[Path, LabelMatch] = {}
    for file, path in bare.items():
        match = images_of_label(path, there.__contains__, IMAGE_WORDS)
        above = in_folders.get(file.parent.parent, [])
        if match is None and len(above) == 1 and _is_organ(file):
            match = LabelMatch(path.name, (above[0],), certain=True)
        if match is not None:
            owners[file] = match
    labels = {bare[file] for file in owners}
    kept: dict[Path, LabelMatch] = {}
    for file, match in owners.items():
        images = tuple(image for image in match.images if image not in labels)
        if images:
            kept[file] = match._replace(images=images)
    return kept


def _is_organ(file: Path) -> bool:
    """Whether a file lies in ``segmentations/``, as TotalSegmentator writes them: each organ is a file."""
    return is_label_folder(file.parent) and not is_plain(file)


def _owners(match: LabelMatch | None, images: dict[_Place, list[_Volume]]) -> Iterator[tuple[_Volume, str]]:
    """Volumes of a label, and its name in each."""
    for image in match.images if match else ():
        for volume in images.get((image.parent, image.name), []):
            assert match is not None
            yield volume, match.name


def _beside(images: dict[_Place, list[_Volume]], place: _Place, window: SourceFile) -> _Volume | None:
    """Volume in the same folder that a window file belongs to: the same name, or a longer one."""
    same = images.get(place, [])
    if len(same) == 1:
        return same[0]
    folder, stem = place
    alike = same or [
        volume
        for (other, name), volumes in images.items()
        for volume in volumes
        if other == folder and (name.startswith(f"{stem}_") or not stem)
    ]
    if len(alike) != 1:
        return None
    assert window.near is not None
    heads = [window.near.head(path) for path in (alike[0].path, window.path)]
    # Damage is told, with all other problems, when the volume is scanned.
    shapes = [[shape for shape, _ in head.arrays.values()] for head in heads if head is not None]
    return alike[0] if len(shapes) == 2 and shapes[0] == shapes[1] else None


def _unread(file: SourceFile) -> Problem:
    """Problem of a given file whose format is not read."""
    foreign = _foreign(file.path)
    read = f"CT volumes are {_known_formats()} files"
    if foreign:
        return Problem(str(file.path), f"{foreign}; {read}", _FOREIGN_CURE, "format")
    return Problem(str(file.path), f"is no {_known_formats()} file", read, "format")


def _foreign(path: Path) -> str:
    """What is said of a volume in a format that is not read; empty for other files."""
    if not path.name.lower().endswith(FOREIGN):
        return ""
    return f"is {unread_format(path)}, which this version does not read"


def _known_formats() -> str:
    return " or ".join(suffixes())


def _location(file: Path, volume: Path, name: str) -> str:
    """How messages call a file of a volume at the path `volume`, which they call `name`."""
    if file == volume:
        return name
    if file.is_relative_to(volume):
        return f"{name}/{printable(file.relative_to(volume).as_posix())}"
    shared = Path(os.path.commonpath([file, volume]))
    above = name.split("/")[: -len(volume.relative_to(shared).parts)]
    return "/".join([*above, printable(file.relative_to(shared).as_posix())])
