"""Group files into CT volumes: case folders, files of voxels, DICOM series, stacks of TIFF pages."""

# A case is a folder that holds ``ct_original[_N].npy`` or a folder ``windows/``. It has
# ``windows/{name}_w{W}_l{L}.npy``, ``windows/*.npz``, ``masks/{id}_binary.npy``, classes as
# ``masks/{name}.npy`` and ``labels/{name}.npy``, files called like labels beside ``ct_original``, and
# ``info.json``. Instead of ``.npy``, every format of volumes is read.
# Outside of cases each file is a volume. One named ``…{name}_w{W}_l{L}.npy`` is a window of the volume beside
# it that has the same name up to there, or a window without a volume; ``masks/{name}_binary.npy`` is a mask
# of the volume ``{name}.npy`` beside that folder; labels are paired by their names, as
# `unistore.converters.formats.label_names` says.

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from unistore.converters.ct.names import (
    DICOM,
    GEOMETRY,
    IMAGE_WORDS,
    SLICES,
    bare_path,
    case_role,
    folder_of,
    has_image,
    has_windows,
    is_array,
    is_in_windows,
    is_nameless_window,
    is_plain,
    is_voxels,
    mask_id,
    mask_role,
    metadata_paths,
    stem_of,
    suffixes,
    window_of,
    window_resolution,
    window_role,
)
from unistore.converters.ct.options import DATASET, INFO, METADATA
from unistore.converters.ct.series import group_series
from unistore.converters.ct.stacks import stack_pages
from unistore.converters.formats.label_names import LabelMatch, images_of_label, is_label_folder, label_name
from unistore.errors import printable
from unistore.plugin import (
    Group,
    Grouping,
    Problem,
    SourceFile,
    conversion_of,
    is_inside,
    natural_key,
)

NO_WINDOW = "its name does not state width and level of the window"


@dataclass(slots=True)
class _Volume:
    """A volume whose files are being collected: its case folder or first file, and each file by its role."""

    path: Path
    files: list[tuple[str, SourceFile]] = field(default_factory=list)
    is_case: bool = False


class _Grouping:
    """Groups files, see `group`."""

    def __init__(self, known: Collection[str]) -> None:
        self._known = known
        self._loose: dict[str, list[_Volume]] = {}  # by their path without suffix
        self._in_folders: dict[
            tuple[Path, str], list[_Volume]
        ] = {}  # by what is above their folder, and stem
        self.volumes: list[_Volume] = []
        self.grouping = Grouping()

    def run(self, files: Sequence[SourceFile], texts: Mapping[Path, SourceFile]) -> None:
        """Add all volumes."""
        cases: dict[Path, _Volume] = {}
        outside: list[SourceFile] = []
        for file in files:
            folder = folder_of(file.path)
            if folder not in cases and _is_case(folder, file):
                cases[folder] = self._new(folder, is_case=True)
            if folder in cases:
                self._add_to_case(cases[folder], file)
            else:
                outside.append(file)
        self._add_loose(outside)
        unused = dict(texts)
        self.volumes = [volume for volume in self.volumes if volume.files]
        for volume in self.volumes:
            for path in self._add_texts(volume, texts):
                unused.pop(path, None)
        for path, file in unused.items():
            if path.name != DATASET:
                self.grouping.left_out.append((file, "is not in a case folder"))

    def _new(self, path: Path, *, is_case: bool = False) -> _Volume:
        volume = _Volume(path, is_case=is_case)
        self.volumes.append(volume)
        return volume

    def _add_to_case(self, volume: _Volume, file: SourceFile) -> None:
        has_named_image = has_image(volume.path, file)
        role = case_role(file.path, has_named_image=has_named_image, known=self._known)
        if role:
            volume.files.append((role, file))
        elif file.path.parent.name == "windows":
            self.grouping.left_out.append((file, NO_WINDOW))
        else:
            self.grouping.left_out.append(
                (file, "is in a case folder, but not one of its volumes, windows or masks")
            )

    def _add_loose(self, files: Sequence[SourceFile]) -> None:
        """Add the volumes of files outside case folders. Masks that were given are volumes in any folder."""
        windows: dict[str, list[SourceFile]] = {}
        masks: list[SourceFile] = []
        are_nameless = [_is_nameless_window(file) for file in files]
        nameless = [file for file, is_nameless in zip(files, are_nameless, strict=True) if is_nameless]
        files = [file for file, is_nameless in zip(files, are_nameless, strict=True) if not is_nameless]
        voxels = [file for file in files if is_voxels(file.path)]
        labels = _labels([file.path for file in voxels if window_of(file.path, self._known) is None])
        alike: list[str] = []
        for file in files:
            path = file.path
            named = window_of(path, self._known)
            if named is not None:
                windows.setdefault(f"{path.parent}{os.sep}{named[0]}", []).append(file)
            elif not is_voxels(path):
                self._add_no_window(file)
            elif path in labels:
                continue
            elif path.parent.name == "masks" and not file.is_given:
                masks.append(file)
            else:
                volume = self._new(path)
                volume.files.append(("image/0", file))
                self._loose.setdefault(bare_path(path), []).append(volume)
                self._in_folders.setdefault((path.parent.parent, stem_of(path)), []).append(volume)
                if label_name(stem_of(path)):
                    alike.append(printable(path.name))
        for bare, members in windows.items():
            volume = self._window_owner(bare, members)
            volume.files += [(window_role(file.path, self._known), file) for file in members]
        for file in masks:
            owners = self._loose.get(str(file.path.parent.parent / mask_id(file.path)), [])
            if len(owners) == 1:
                owners[0].files.append((mask_role(file.path, stem_of(owners[0].path)), file))
            else:
                self.grouping.left_out.append((file, "is a mask without a volume"))
        for file in voxels:
            for name, image in labels.get(file.path, ()):
                for volume in self._loose.get(image, []):
                    volume.files.append((f"labels/{name}", file))
        self._add_nameless(nameless)
        if alike:
            shown = ", ".join(alike[:3])
            self.grouping.notes.append(
                f"read as volumes, because the images to their names of labels are missing: {shown}"
            )

    def _add_nameless(self, files: Sequence[SourceFile]) -> None:
        """Leave out windows of which nothing says width and level. Without any volume they are problems."""
        for file in files:
            if self.volumes:
                self.grouping.left_out.append((file, NO_WINDOW))
            else:
                fix = "rename it, for example to case_lung_w1500_l-600.npy"
                self.grouping.problems.append(Problem(str(file.path), NO_WINDOW, fix, "window"))

    def _add_no_window(self, file: SourceFile) -> None:
        """Leave out a file of points that is no window. One that was given is a problem."""
        if not file.is_given:
            self.grouping.left_out.append((file, "is not a window of a volume"))
            return
        message = f"is an .npz file, but not a window of a volume; CT volumes are {_formats()} files"
        fix = conversion_of("rows", [file.path], purpose="as plain arrays"), "save the volume with np.save"
        self.grouping.problems.append(Problem(str(file.path), message, fix, "format"))

    def _window_owner(self, bare: str, windows: Sequence[SourceFile]) -> _Volume:
        """The volume beside windows: of the same name up to there, or the only longer one.

        Of windows in a folder ``windows/``, one beside that folder, or in a folder beside it.
        """
        start = bare if bare.endswith(os.sep) else f"{bare}_"
        longer = [path for path in self._loose if path.startswith(start) and os.sep not in path[len(start) :]]
        owners = self._loose.get(bare) or list(chain.from_iterable(self._loose[path] for path in longer))
        if is_in_windows(windows[0].path):
            above, name = Path(bare).parent.parent, Path(bare).name
            owners = owners or self._loose.get(str(above / name), [])
            owners = owners or self._in_folders.get((above, name), [])
        if len(owners) != 1:
            return self._new(windows[0].path)
        names = ", ".join([printable(file.path.name) for file in windows])
        self.grouping.notes.append(f"{names}: read as windows of {printable(owners[0].path.name)}")
        return owners[0]

    def _add_texts(self, volume: _Volume, texts: Mapping[Path, SourceFile]) -> Iterator[Path]:
        """Add what is said about a volume, in its case folder or beside it, and yield the paths."""
        path = volume.path
        first = volume.files[0][1]
        geometry = path.with_name(f"{stem_of(path)}.{GEOMETRY}")
        places = {"geometry": [geometry], "dataset": [path.parent.parent / DATASET]}
        if volume.is_case:
            places = {"info": [path / INFO], "metadata": metadata_paths(path), "geometry": [path / GEOMETRY]}
        for role, candidates in places.items():
            for candidate in candidates:
                is_there = role == "geometry" and candidate.exists() and _is_within(candidate, first)
                if is_there or candidate in texts:
                    volume.files.append((role, replace(first, path=candidate)))
                    yield candidate
                    break

    def groups(self, following: Mapping[Path, Sequence[SourceFile]]) -> Iterator[Group]:
        """Yield all volumes, the naming file first, with the pages that follow the first one of a stack."""
        self.volumes.sort(key=lambda volume: natural_key(volume.path.as_posix()))
        names = SourceFile.names_of([volume.path for volume in self.volumes])
        for volume, name in zip(self.volumes, names, strict=True):
            first = volume.files[0][1].path
            volume.files += [(SLICES, page) for page in following.get(first, ())]
            volume.files.sort(key=lambda item: item[1].path != volume.path)
            files = [replace(file, name=_location(file.path, volume.path, name)) for _, file in volume.files]
            yield Group(name, tuple(files), roles=tuple([role for role, _ in volume.files]))


def group(files: Sequence[SourceFile], known: Collection[str], *, keep_names: bool = False) -> Grouping:
    """Group files into volumes, whose `Group.roles` are the roles of the files, see `case_role`."""
    of_series = group_series([file for file in files if file.format == DICOM], keep_names=keep_names)
    stacks = stack_pages([file for file in files if file.format != DICOM])
    arrays = [file for file in stacks.files if is_array(file.path)]
    texts = {file.path: file for file in stacks.files if _is_text(file)}
    volumes = _Grouping(known)
    volumes.run(arrays, texts)
    groups = [*of_series.sources, *volumes.groups(stacks.following)]
    problems = volumes.grouping.problems
    strays = []
    for file in stacks.files:
        if is_array(file.path) or file.path in texts:
            continue
        if not file.is_given:  # its name only ends like that of a text about volumes
            strays.append((file, "does not describe a volume"))
        else:
            fix = f"give {_formats()} files"
            problems.append(Problem(str(file.path), f"is {file.why_unread}", fix, "format"))
    return Grouping(
        sources=sorted(groups, key=lambda group: natural_key(group.name)),
        left_out=[*of_series.left_out, *stacks.left_out, *volumes.grouping.left_out, *strays],
        problems=problems,
        notes=[*stacks.notes, *volumes.grouping.notes],
    )


def _is_text(file: SourceFile) -> bool:
    name = file.path.name
    return name in (INFO, DATASET) or (name == METADATA and not file.is_given)


def _is_case(folder: Path, file: SourceFile) -> bool:
    """Return whether a folder inside of the given paths is a case."""
    return has_image(folder, file) or (has_windows(folder, file) and _is_within(folder, file))


def _is_nameless_window(file: SourceFile) -> bool:
    if file.is_given or not is_voxels(file.path) or not window_resolution(file.path) or window_of(file.path):
        return False
    head = file.surroundings.head(file.path)
    return head is not None and any(
        is_nameless_window(file.path, shape, dtype) for shape, dtype in head.arrays.values()
    )


def _is_within(path: Path, file: SourceFile) -> bool:
    """Return whether a path lies in a given folder, or in that of a given file."""
    return is_inside(path, [root if root.is_dir() else root.parent for root in file.roots])


def _labels(files: Sequence[Path]) -> dict[Path, list[tuple[str, str]]]:
    """Files that are labels of others, with names and images. A label has no labels itself."""
    bare = {file: bare_path(file) for file in files}
    bare_paths = set(bare.values())
    beside: dict[Path, list[str]] = {}
    for file, path in bare.items():
        beside.setdefault(file.parent, []).append(path)
    matches: dict[Path, LabelMatch] = {}
    for file, path in bare.items():
        match = images_of_label(path, bare_paths.__contains__, IMAGE_WORDS)
        # In segmentations/, as TotalSegmentator writes them, each organ is a file.
        images = beside.get(file.parent.parent, [])
        if match is None and len(images) == 1 and is_label_folder(file.parent.name) and not is_plain(file):
            match = LabelMatch(stem_of(file), tuple(images), certain=True)
        if match is not None:
            matches[file] = match
    labels = {bare[file] for file in matches}
    labelled: dict[Path, list[tuple[str, str]]] = {}
    for file, match in matches.items():
        owners = [(match.name, image) for image in match.images if image not in labels]
        if owners:
            labelled[file] = owners
    return labelled


def _formats() -> str:
    *first_suffixes, last = suffixes()
    return f"{', '.join(first_suffixes)} or {last}"


def _location(file: Path, volume: Path, name: str) -> str:
    """How messages call a file of a volume at the path `volume`, which they call `name`."""
    if file == volume:
        return name
    relative = os.path.normpath(f"{name}/{os.path.relpath(file, volume)}").replace(os.sep, "/")
    while relative.startswith("../"):
        relative = relative.removeprefix("../")
    return printable(relative)
