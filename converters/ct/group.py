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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from unistore.converters.ct.names import (
    DATASET,
    DICOM,
    GEOMETRY,
    IMAGE_WORDS,
    INFO,
    METADATA,
    POINTS,
    SLICES,
    case_role,
    folder_of,
    has_image,
    has_windows,
    is_image,
    is_plain,
    is_voxels,
    mask_id,
    mask_role,
    stem_of,
    suffixes,
    window_of,
    window_role,
    without_suffix,
)
from unistore.converters.ct.series import group_series
from unistore.converters.ct.stacks import stack_pages
from unistore.converters.ct.texts import metadata_paths
from unistore.converters.files.formats import unread_format
from unistore.converters.files.pairs import LabelMatch, images_of_label, is_label_folder, label_name
from unistore.converters.files.paths import is_inside, natural_key, relative_names
from unistore.converters.opened import Near
from unistore.converters.plugin import Group, Problem, SourceFile
from unistore.errors import printable

FOREIGN = (".hdr", ".img")
"""Endings of volumes in formats that are not read."""
_FOREIGN_CURE = "load it with its own library and save the voxels: np.save('volume.npy', voxels)"
_POINTS_CURE = "save the volume with np.save, or convert it as plain arrays: unistore convert rows"

Choice = Group | tuple[SourceFile, str] | Problem | str
"""What `group` says: a source, a file in no source with the reason, a problem, a remark."""


@dataclass(slots=True)
class _Volume:
    """A volume whose files are being collected: its case folder or first file, and each file by its role.

    Roles are those of `case_role`, ``info``, ``geometry`` and ``metadata``.
    """

    path: Path
    files: list[tuple[str, SourceFile]] = field(default_factory=list)


_Images = dict[str, list[_Volume]]
"""Volumes by their path without suffix."""
_Labelled = Sequence[tuple[str, str]]
"""What a label is called, and its image without suffix, for each image."""


class _Grouping:
    """Groups files; see `group`."""

    def __init__(
        self,
        known: Collection[str],
        datasets: Mapping[Path, SourceFile],
        following: Mapping[Path, Sequence[SourceFile]],
    ) -> None:
        self._known = known
        self._datasets = datasets
        self._following = following
        self.volumes: list[_Volume] = []
        self.choices: list[Choice] = []

    def add_cases(self, cases: Mapping[Path, Sequence[SourceFile]], texts: Mapping[Path, SourceFile]) -> None:
        """Add the volume of each case folder, with the texts about it."""
        for folder, files in cases.items():
            volume = _Volume(folder)
            self.volumes.append(volume)
            is_named = any(is_image(file.path) and file.path.parent == folder for file in files)
            for file in files:
                role = case_role(file.path, has_named_image=is_named, known=self._known)
                self._add(volume, role, file, _why_in_no_case(file.path, folder))
            tables = [path for path in metadata_paths(folder) if path in texts]
            for role, paths in (("info", [folder / INFO]), ("metadata", tables[:1])):
                volume.files += [(role, texts[path]) for path in paths if path in texts]
        used = {file.path for volume in self.volumes for _, file in volume.files}
        for path, file in texts.items():
            if path not in used:
                self.choices.append((file, "is of no case folder"))

    def _add(self, volume: _Volume, role: str, file: SourceFile, why_not: str) -> None:
        if role:
            volume.files.append((role, file))
        else:
            self.choices.append((file, why_not))

    def add_loose(self, files: Sequence[SourceFile]) -> None:
        """Add the volumes of files outside case folders; masks that were given are volumes in any folder."""
        images: _Images = {}
        windows: dict[str, list[SourceFile]] = {}
        masks: list[SourceFile] = []
        voxels = [file for file in files if is_voxels(file.path)]
        labels = _labels([file.path for file in voxels if window_of(file.path, self._known) is None])
        for file in files:
            path = file.path
            named = window_of(path, self._known)
            if named is not None:
                windows.setdefault(f"{path.parent}{os.sep}{named[0]}", []).append(file)
            elif not is_voxels(path):
                self.choices.append(_no_window(file))
            elif path.parent.name == "masks" and path not in labels and not file.is_given:
                masks.append(file)
            elif path not in labels:
                volume = _Volume(path, [("image/0", file)])
                images.setdefault(_bare(path), []).append(volume)
                self.volumes.append(volume)
        for bare, members in windows.items():
            self._add_windows(bare, members, images)
        for file in masks:
            owners = images.get(str(file.path.parent.parent / mask_id(file.path)), [])
            owner = owners[0] if len(owners) == 1 else _Volume(file.path)
            role = mask_role(file.path, without_suffix(owner.path.name)) if owners else ""
            self._add(owner, role, file, "is the mask of no volume")
        self._add_labels(voxels, labels, images)

    def _add_windows(self, bare: str, files: Sequence[SourceFile], images: _Images) -> None:
        """Add windows to the volume beside them, or as a volume without image."""
        volume = _beside(images, bare, files[0])
        if volume is None:
            volume = _Volume(files[0].path)
            self.volumes.append(volume)
        else:
            names = ", ".join(printable(file.path.name) for file in files)
            self.choices.append(f"{names}: taken for windows of {printable(volume.path.name)}")
        volume.files += [(window_role(file.path, self._known), file) for file in files]

    def _add_labels(
        self, voxels: Sequence[SourceFile], labels: Mapping[Path, _Labelled], images: _Images
    ) -> None:
        alike: list[str] = []
        for file in voxels:
            if file.path not in labels and label_name(stem_of(file.path)):
                alike.append(printable(file.path.name))
            for name, image in labels.get(file.path, ()):
                for volume in images.get(image, []):
                    volume.files.append((f"labels/{name}", file))
        if alike:
            listed = ", ".join(alike[:3])
            self.choices.append(f"called like labels, but of no image that is there, so volumes: {listed}")

    def groups(self) -> Iterator[Group]:
        """All volumes, with the files that state their geometry."""
        volumes = sorted(self.volumes, key=lambda volume: natural_key(volume.path.as_posix()))
        names = relative_names([volume.path for volume in volumes])
        for volume, name in zip(volumes, names, strict=True):
            role, first = volume.files[0]
            geometry = volume.path / GEOMETRY
            if role.startswith("image/") and first.path == volume.path:
                geometry = volume.path.with_name(f"{without_suffix(volume.path.name)}.{GEOMETRY}")
            if geometry.exists() and _is_within(geometry, first):
                volume.files.append(("geometry", replace(first, path=geometry)))
            dataset = self._datasets.get(volume.path.parent.parent)
            if dataset is not None and first.path == volume.path:
                volume.files.append(("dataset", dataset))
            volume.files += [(SLICES, page) for page in self._following.get(first.path, ())]
            # The one that names the volume first.
            volume.files.sort(key=lambda item: item[1].path != volume.path)
            files = [replace(file, name=_location(file.path, volume.path, name)) for _, file in volume.files]
            yield Group(name, tuple(files), tuple(role for role, _ in volume.files))


def group(
    files: Sequence[SourceFile], known: Collection[str], *, keep_names: bool = False
) -> Iterator[Choice]:
    """Group files into volumes: groups whose `arrays` are the roles of the files, see `_Volume`.

    Parameters
    ----------
    files
        All of the given paths, texts too.
    known
        Names of windows besides the presets.
    keep_names
        Whether DICOM series are called by their folders.
    """
    slices = [file for file in files if file.format == DICOM]
    series: list[Group] = []
    for choice in group_series(slices, keep_names=keep_names):
        if isinstance(choice, Group):
            series.append(choice)
        else:
            yield choice
    stacks = stack_pages([file for file in files if file.format != DICOM])
    yield from stacks.choices
    files = stacks.files
    texts = {file.path: file for file in files if _is_text(file)}
    datasets = {file.path.parent: file for file in files if file.path.name == DATASET}
    arrays = [file for file in files if _is_array(file.path)]
    known_files = {*texts, *(file.path for file in datasets.values())}
    others = [file for file in files if not _is_array(file.path) and file.path not in known_files]
    cases = _case_folders(arrays, texts)
    outside: list[SourceFile] = []
    for file in arrays:
        cases.get(folder_of(file.path), outside).append(file)
    grouping = _Grouping(known, datasets, stacks.following)
    grouping.add_cases(cases, texts)
    grouping.add_loose(outside)
    yield from grouping.choices
    groups = [*grouping.groups(), *series]
    if series:
        groups.sort(key=lambda group: natural_key(group.name))
    yield from groups
    # Volumes in a format that is not read are left out, where there are others.
    has_volumes = bool(grouping.volumes or slices)
    yield from [_unread(file) for file in others if file.is_given or not has_volumes]
    yield from [(file, _foreign(file.path)) for file in others if not file.is_given]


def _is_text(file: SourceFile) -> bool:
    name = file.path.name
    return name == INFO or (name == METADATA and not file.is_given)


def _is_array(path: Path) -> bool:
    return is_voxels(path) or path.name.lower().endswith(POINTS)


def _case_folders(arrays: Sequence[SourceFile], texts: Collection[Path]) -> dict[Path, list[SourceFile]]:
    """Case folders inside of the given paths, each with an empty list for its files."""
    voxels = Counter(file.path.parent for file in arrays if is_voxels(file.path))
    cases: dict[Path, list[SourceFile]] = {}
    for folder, file in {folder_of(file.path): file for file in arrays}.items():
        near = _near(file)
        is_described = folder / INFO in texts and voxels[folder] == 1 and voxels[folder / "masks"]
        has_parts = is_described or has_windows(folder, near)
        if has_image(folder, near) or (has_parts and _is_within(folder, file)):
            cases[folder] = []
    return cases


def _near(file: SourceFile) -> Near:
    assert file.near is not None
    return file.near


def _is_within(path: Path, file: SourceFile) -> bool:
    """Whether a path lies in a given folder, or in that of a given file."""
    return is_inside(path, [root if root.is_dir() else root.parent for root in file.roots])


def _why_in_no_case(path: Path, folder: Path) -> str:
    if path.parent == folder:
        return "lies beside the volume of a case folder"
    if path.parent.name == "windows":
        return "does not say its window, as lung_w1500_l-600 does"
    return "is no label volume"


def _no_window(file: SourceFile) -> tuple[SourceFile, str] | Problem:
    """What is said of a file of points that is no window: a problem if it was given."""
    if not file.is_given:
        return file, "is no window of a volume"
    message = f"is an .npz file that is no window of a volume; CT volumes are {_formats()} files"
    return Problem(str(file.path), message, _POINTS_CURE, "format")


def _labels(files: Sequence[Path]) -> dict[Path, _Labelled]:
    """Files that are labels of others; a label has no labels itself."""
    bare = {file: _bare(file) for file in files}
    there = set(bare.values())
    beside = Counter(file.parent for file in files)
    matches: dict[Path, LabelMatch] = {}
    for file, path in bare.items():
        match = images_of_label(path, there.__contains__, IMAGE_WORDS)
        if match is None and _is_organ(file) and beside[file.parent.parent] == 1:
            images = [bare[other] for other in files if other.parent == file.parent.parent]
            match = LabelMatch(stem_of(file), tuple(images), certain=True)
        if match is not None:
            matches[file] = match
    labels = {bare[file] for file in matches}
    labelled: dict[Path, _Labelled] = {}
    for file, match in matches.items():
        owners = [(match.name, image) for image in match.images if image not in labels]
        if owners:
            labelled[file] = owners
    return labelled


def _is_organ(file: Path) -> bool:
    """Whether a file lies in ``segmentations/``, as TotalSegmentator writes them: each organ is a file."""
    return is_label_folder(file.parent.name) and not is_plain(file)


def _bare(path: Path) -> str:
    return str(path.parent / stem_of(path))


def _beside(images: _Images, bare: str, window: SourceFile) -> _Volume | None:
    """Volume in the same folder that a window file belongs to: the same name, or a longer one."""
    alike = images.get(bare, [])
    if len(alike) == 1:
        return alike[0]
    if not alike:
        start = bare if bare.endswith(os.sep) else f"{bare}_"
        longer = [path for path in images if path.startswith(start) and os.sep not in path[len(start) :]]
        alike = [volume for path in longer for volume in images[path]]
    if len(alike) != 1:
        return None
    heads = [_near(window).head(path) for path in (alike[0].path, window.path)]
    # Damage is told, with all other problems, when the volume is scanned.
    shapes = [[shape for shape, _ in head.arrays.values()] for head in heads if head is not None]
    return alike[0] if len(shapes) == 2 and shapes[0] == shapes[1] else None


def _unread(file: SourceFile) -> Problem:
    """Problem of a file whose format is not read."""
    read = f"CT volumes are {_formats()} files"
    if file.path.name.lower().endswith(FOREIGN):
        return Problem(str(file.path), f"{_foreign(file.path)}; {read}", _FOREIGN_CURE, "format")
    return Problem(str(file.path), "is of no format of CT volumes", read, "format")


def _foreign(path: Path) -> str:
    return f"is {unread_format(path)}, which this version does not read"


def _formats() -> str:
    *others, last = suffixes()
    return f"{', '.join(others)} or {last}" if others else last


def _location(file: Path, volume: Path, name: str) -> str:
    """How messages call a file of a volume at the path `volume`, which they call `name`."""
    if file == volume:
        return name
    if file.is_relative_to(volume):
        return f"{name}/{printable(file.relative_to(volume).as_posix())}"
    shared = Path(os.path.commonpath([file, volume]))
    above = name.split("/")[: -len(volume.relative_to(shared).parts)]
    return "/".join([*above, printable(file.relative_to(shared).as_posix())])
