"""Group files into CT volumes: case folders, files of voxels, DICOM series, stacks of TIFF pages."""

# A case is a folder that holds ``ct_original[_N].npy`` or a folder ``windows/``. It has
# ``windows/{name}_w{W}_l{L}.npy``, ``windows/*.npz``, ``masks/{id}_binary.npy``, classes as
# ``masks/{name}.npy`` and ``labels/{name}.npy``, files called like labels beside ``ct_original``, and
# ``info.json``. Instead of ``.npy``, every format of volumes is read.
# Outside of cases each file is a volume. One named ``…{name}_w{W}_l{L}.npy`` is a window of the volume beside
# it that has the same name up to there, or a window without a volume; ``masks/{name}_binary.npy`` is a mask
# of the volume ``{name}.npy`` beside that folder; labels are paired as `unistore.converters.files.pairs`
# says.

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unistore.converters.common.faults import OUT_OF_MEMORY, UNREADABLE, is_out_of_memory, is_read_error
from unistore.converters.ct.names import (
    DATASET,
    DICOM,
    GEOMETRY,
    IMAGE_WORDS,
    INFO,
    METADATA,
    SLICES,
    TIFF,
    bare_path,
    case_role,
    folder_of,
    has_image,
    has_windows,
    is_array,
    is_plain,
    is_voxels,
    mask_id,
    mask_role,
    metadata_paths,
    page_name,
    stem_of,
    suffixes,
    window_of,
    window_role,
)
from unistore.converters.files.formats import why_left_out
from unistore.converters.files.pairs import LabelMatch, images_of_label, is_label_folder, label_name
from unistore.converters.files.paths import is_inside, natural_key, relative_names
from unistore.converters.formats.dicom_headers import (
    DicomHeader,
    DicomPixels,
    normal_of,
    order_of,
    read_header,
)
from unistore.converters.formats.tiff import Tiff, is_page
from unistore.converters.registry import conversion_of
from unistore.converters.seam.formats import calling
from unistore.errors import AddOptions, InputError, printable
from unistore.plugin import Group, Problem, SourceFile

# Group DICOM files into series, and find what keeps a series from being one volume.
#
# A series is called by its number, ``series-0007``, and no text of its files is stored: names, folders and
# UIDs may tell who the patient is. Digests say which volumes are of one patient, and which are the same
# series:
#
# - of a series, BLAKE2b of its SeriesInstanceUID: who has the UID finds it again, and nobody else;
# - of a patient, BLAKE2b of the PatientID with the smallest of the patient's series UIDs as its key: an ID
#   alone has so few digits that all of them can be tried.

_DIGEST_BYTES = 16
# How far slices may be from where they should, in parts of their distance: positions are rounded.
_TOLERANCE = 0.01
# Parts of the names of objects that are no images of a patient's volume.
_NO_IMAGES = ("RT ", "Segmentation", "SR", "Presentation State", "Media Storage Directory")


class Series(NamedTuple):
    """What the headers of a series say together: the `Group.detail` of its volume."""

    patient: str  # digests, texts of 32 hexadecimal digits
    series: str
    problem: Problem | None  # what keeps it from being a volume
    pixels: tuple[DicomPixels, ...] = ()  # of each of its files


def group_series(
    files: Sequence[SourceFile], *, keep_names: bool
) -> Iterator[Group | tuple[SourceFile, str] | Problem | str]:
    """Group DICOM files by their SeriesInstanceUID, whatever folders they lie in."""
    if not files:
        return
    files[0].library("pydicom", "medical")
    folders: dict[Path, str] = {}  # names of folders, which are told only if names are kept
    if keep_names:
        parents = list(dict.fromkeys([file.path.parent for file in files]))
        names = [f"{name}/" for name in relative_names(parents)]
        folders = dict(zip(parents, names, strict=True))
    by_series: dict[str, list[tuple[SourceFile, DicomHeader]]] = {}
    unreadable: list[Group] = []
    for file in files:
        try:
            header = read_header(file.path)
        except Exception as error:  # noqa: BLE001  pydicom raises anything at a damaged header
            # A source whose series is unknown, so that it can be left out; no text of it is told.
            name = f"{folders.get(file.path.parent, '')}unreadable-{len(unreadable) + 1:04d}"
            reason = f"a header that cannot be read ({type(error).__name__})"
            message = f"is DICOM with {reason}: a slice of any series"
            kind = UNREADABLE if is_read_error(error) else "damaged"
            if is_out_of_memory(error):
                message, kind = "is DICOM with a header that takes more memory than there is", OUT_OF_MEMORY
            series = Series("", "", _problem(name, message, kind))
            unreadable.append(Group(name, (replace(file, name=name),), ("image/0",), detail=series))
            continue
        reason = _why_left_out(header)
        if reason:
            yield file, reason
        else:
            by_series.setdefault(header.series, []).append((file, header))
    patients = _patients({uid: members[0][1].patient for uid, members in by_series.items()})
    for number, (uid, members) in enumerate(by_series.items()):
        name = f"{folders.get(members[0][0].path.parent, '')}series-{number + 1:04d}"
        # By their first planes, so that the order of a folder changes nothing.
        order = order_of([header.pixels.planes[0] for _, header in members])
        ordered = [members[number] for number in order]
        pixels = tuple([header.pixels for _, header in ordered])
        message = _why_no_volume(pixels)
        problem = _problem(name, message, "series") if message else None
        renamed = tuple([replace(file, name=name) for file, _ in ordered])
        roles = ("image/0", *["slices"] * (len(ordered) - 1))
        yield Group(name, renamed, roles, detail=Series(patients[uid], _digest(uid, b""), problem, pixels))
    yield from unreadable


def _problem(name: str, message: str, kind: str) -> Problem:
    fix = AddOptions(("--exclude", name)), AddOptions(("--keep-names",), "to be told where its files are")
    return Problem(name, message, fix, kind, name)


def _why_left_out(header: DicomHeader) -> str:
    # Say why a file is no slice of a volume (empty: it is one)
    if any(part in header.kind for part in _NO_IMAGES):
        return f"is DICOM of the kind {header.kind}, no image"
    if header.is_localiser:
        return "is a DICOM localiser, no slice of a volume"
    if not header.pixels.planes:
        return f"is DICOM of the kind {header.kind} without pixels that lie in the patient"
    return "" if header.is_gray else "is a DICOM image in colours"


def _patients(patient_of: Mapping[str, str]) -> dict[str, str]:
    # The digest of the patient of each series. One without PatientID has a patient of its own
    smallest = {patient: uid for uid, patient in sorted(patient_of.items(), reverse=True)}
    return {
        uid: _digest(patient, (smallest[patient] if patient else uid).encode())
        for uid, patient in patient_of.items()
    }


def _digest(text: str, key: bytes) -> str:
    return blake2b(text.encode(), digest_size=_DIGEST_BYTES, key=key[:64]).hexdigest()


def _why_no_volume(pixels: Sequence[DicomPixels]) -> str:
    # Say what keeps slices from being one volume. Nothing is ever interpolated
    if len({(one.shape, one.dtype, one.bits) for one in pixels}) > 1:
        return "has slices of several sizes or dtypes"
    planes = list(chain.from_iterable([one.planes for one in pixels]))
    planes = [planes[number] for number in order_of(planes)]
    first = planes[0]
    if not np.allclose([plane.orientation for plane in planes], first.orientation, atol=1e-3):
        return "has slices that are not parallel"
    if not np.allclose([plane.spacing for plane in planes], first.spacing, rtol=1e-3):
        return "has slices of several pixel spacings"
    if len(planes) == 1:
        return ""
    normal = normal_of(first)
    steps = np.diff([plane.position for plane in planes], axis=0)
    gaps = steps @ normal
    lateral = np.linalg.norm(steps - np.outer(gaps, normal), axis=1).max()
    usual = float(np.median(gaps))
    if usual > 0 and max(np.abs(gaps - usual).max(), lateral) <= _TOLERANCE * usual:
        return ""
    moved = f"{gaps.min():.3f} to {gaps.max():.3f} mm, and shifted by up to {lateral:.3f} mm"
    return f"has slices at distances of {moved}: some are missing or twice, or the gantry was tilted"


# Stacks of pages: TIFF files of one page each, which successive numbers in their names put in order.


class Stacks(NamedTuple):
    """What becomes of files: those that may be volumes, the pages that follow one of them, and the rest."""

    files: Sequence[SourceFile]
    following: Mapping[Path, Sequence[SourceFile]]
    choices: Sequence[Choice]


def stack_pages(files: Sequence[SourceFile]) -> Stacks:
    """Find stacks among files. The first page of each stands for it."""
    kept = [file for file in files if file.format != TIFF]
    following: dict[Path, Sequence[SourceFile]] = {}
    choices: list[Choice] = []
    for members in _numbered([file for file in files if file.format == TIFF]):
        first, *others = members
        if not _is_page(first):
            kept += members
        elif not others and not first.is_given:
            choices.append((first, "is one page, no volume"))
        else:
            kept.append(first)
            following[first.path] = others
    if following:
        name = printable(next(iter(following)).name)
        choices.append(f"TIFF files of one page each, stacked by the numbers in their names: from {name} on")
    return Stacks(kept, following, choices)


def _numbered(files: Sequence[SourceFile]) -> Iterator[list[SourceFile]]:
    # Files whose names differ in a number alone, in its order. Each other file by itself
    alike: dict[tuple[Path, str, str], list[tuple[int, SourceFile]]] = {}
    for file in files:
        name = page_name(file.path)
        if name is None:
            yield [file]
        else:
            key = file.path.parent, name.before, name.after
            alike.setdefault(key, []).append((name.number, file))
    for pages in alike.values():
        pages.sort(key=lambda page: page[0])
        yield [file for _, file in pages]


def _is_page(file: SourceFile) -> bool:
    # Return whether a file has one page. Damage is told when it is scanned
    try:
        with calling(Tiff(), file.name):
            return is_page(file)
    except InputError:
        return False


def gap_in(name: str, pages: Sequence[SourceFile]) -> Iterator[Problem]:
    """Yield a problem for the first number that a stack lacks or has twice: nothing is interpolated."""
    numbers = [page.number for file in pages if (page := page_name(file.path)) is not None]
    for number, behind in pairwise(numbers):
        if behind != number + 1:
            what = "two pages" if behind == number else "no page"
            message = f"is a stack with {what} {min(number + 1, behind)}"
            yield Problem(name, message, "complete it, or move its pages apart", "series")
            return


# What `group` says: a source, a file in no source with the reason, a problem, a remark.
Choice = Group | tuple[SourceFile, str] | Problem | str


@dataclass(slots=True)
class _Volume:
    # A volume whose files are being collected: its case folder or first file, and each file by its role
    path: Path
    files: list[tuple[str, SourceFile]] = field(default_factory=list)
    is_case: bool = False


class _Grouping:
    # Groups files, see `group`
    def __init__(self, known: Collection[str]) -> None:
        self._known = known
        self._loose: dict[str, list[_Volume]] = {}  # by their path without suffix
        self.volumes: list[_Volume] = []
        self.choices: list[Choice] = []

    def run(self, files: Sequence[SourceFile], texts: Mapping[Path, SourceFile]) -> None:
        # Add all volumes
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
                self.choices.append((file, "is of no case folder"))

    def _new(self, path: Path, *, is_case: bool = False) -> _Volume:
        volume = _Volume(path, is_case=is_case)
        self.volumes.append(volume)
        return volume

    def _add_to_case(self, volume: _Volume, file: SourceFile) -> None:
        assert file.near is not None
        has_named_image = has_image(volume.path, file.near)
        role = case_role(file.path, has_named_image=has_named_image, known=self._known)
        if role:
            volume.files.append((role, file))
        elif file.path.parent.name == "windows":
            self.choices.append((file, "does not say its window, as lung_w1500_l-600 does"))
        else:
            self.choices.append((file, "lies beside the volume of a case folder"))

    def _add_loose(self, files: Sequence[SourceFile]) -> None:
        # Add the volumes of files outside case folders. Masks that were given are volumes in any folder
        windows: dict[str, list[SourceFile]] = {}
        masks: list[SourceFile] = []
        voxels = [file for file in files if is_voxels(file.path)]
        labels = _labels([file.path for file in voxels if window_of(file.path, self._known) is None])
        alike: list[str] = []
        for file in files:
            path = file.path
            named = window_of(path, self._known)
            if named is not None:
                windows.setdefault(f"{path.parent}{os.sep}{named[0]}", []).append(file)
            elif not is_voxels(path):
                self.choices.append(_no_window(file))
            elif path in labels:
                continue
            elif path.parent.name == "masks" and not file.is_given:
                masks.append(file)
            else:
                volume = self._new(path)
                volume.files.append(("image/0", file))
                self._loose.setdefault(bare_path(path), []).append(volume)
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
                self.choices.append((file, "is the mask of no volume"))
        for file in voxels:
            for name, image in labels.get(file.path, ()):
                for volume in self._loose.get(image, []):
                    volume.files.append((f"labels/{name}", file))
        if alike:
            shown = ", ".join(alike[:3])
            self.choices.append(f"called like labels, but of no image that is there, so volumes: {shown}")

    def _window_owner(self, bare: str, windows: Sequence[SourceFile]) -> _Volume:
        # The volume beside windows: of the same name up to there, or the only longer one
        start = bare if bare.endswith(os.sep) else f"{bare}_"
        longer = [path for path in self._loose if path.startswith(start) and os.sep not in path[len(start) :]]
        owners = self._loose.get(bare) or list(chain.from_iterable(self._loose[path] for path in longer))
        if len(owners) != 1:
            return self._new(windows[0].path)
        names = ", ".join([printable(file.path.name) for file in windows])
        self.choices.append(f"{names}: taken for windows of {printable(owners[0].path.name)}")
        return owners[0]

    def _add_texts(self, volume: _Volume, texts: Mapping[Path, SourceFile]) -> Iterator[Path]:
        # Add what is said about a volume, in its case folder or beside it, and yield the paths
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
        # All volumes, the file first that names each, with the pages that follow the first one of a stack
        self.volumes.sort(key=lambda volume: natural_key(volume.path.as_posix()))
        names = relative_names([volume.path for volume in self.volumes])
        for volume, name in zip(self.volumes, names, strict=True):
            first = volume.files[0][1].path
            volume.files += [(SLICES, page) for page in following.get(first, ())]
            volume.files.sort(key=lambda item: item[1].path != volume.path)
            files = [replace(file, name=_location(file.path, volume.path, name)) for _, file in volume.files]
            yield Group(name, tuple(files), tuple([role for role, _ in volume.files]))


def group(
    files: Sequence[SourceFile], known: Collection[str], *, keep_names: bool = False
) -> Iterator[Choice]:
    """Group files into volumes, whose `Group.arrays` are the roles of the files, see `case_role`."""
    slices = [file for file in files if file.format == DICOM]
    groups: list[Group] = []
    for choice in group_series(slices, keep_names=keep_names):
        if isinstance(choice, Group):
            groups.append(choice)
        else:
            yield choice
    stacks = stack_pages([file for file in files if file.format != DICOM])
    yield from stacks.choices
    arrays = [file for file in stacks.files if is_array(file.path)]
    texts = {file.path: file for file in stacks.files if _is_text(file)}
    grouping = _Grouping(known)
    grouping.run(arrays, texts)
    yield from grouping.choices
    groups += grouping.groups(stacks.following)
    yield from sorted(groups, key=lambda group: natural_key(group.name))
    for file in stacks.files:
        if not is_array(file.path) and file.path not in texts:
            fix = f"CT volumes are {_formats()} files"
            yield Problem(str(file.path), f"is {why_left_out(file.path)}", fix, "format")


def _is_text(file: SourceFile) -> bool:
    name = file.path.name
    return name in (INFO, DATASET) or (name == METADATA and not file.is_given)


def _is_case(folder: Path, file: SourceFile) -> bool:
    # Return whether a folder inside of the given paths is a case
    assert file.near is not None
    return has_image(folder, file.near) or (has_windows(folder, file.near) and _is_within(folder, file))


def _is_within(path: Path, file: SourceFile) -> bool:
    # Return whether a path lies in a given folder, or in that of a given file
    return is_inside(path, [root if root.is_dir() else root.parent for root in file.roots])


def _no_window(file: SourceFile) -> tuple[SourceFile, str] | Problem:
    # What is said of a file of points that is no window: a problem if it was given
    if not file.is_given:
        return file, "is no window of a volume"
    message = f"is an .npz file that is no window of a volume; CT volumes are {_formats()} files"
    fix = conversion_of("rows", [file.path], purpose="as plain arrays"), "save the volume with np.save"
    return Problem(str(file.path), message, fix, "format")


def _labels(files: Sequence[Path]) -> dict[Path, list[tuple[str, str]]]:
    # Files that are labels of others, with names and images. A label has no labels itself
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
    # How messages call a file of a volume at the path `volume`, which they call `name`
    if file == volume:
        return name
    relative = os.path.normpath(f"{name}/{os.path.relpath(file, volume)}").replace(os.sep, "/")
    while relative.startswith("../"):
        relative = relative.removeprefix("../")
    return printable(relative)
