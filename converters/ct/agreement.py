"""What the volumes of a store have in common: dtypes, extent, windows; their contradictions, and notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unistore.converters.common.columns import promote
from unistore.converters.common.left_out import NO_COLUMN, left_out_notes
from unistore.converters.ct.names import METADATA, is_hdf5, is_plain, suffix_of
from unistore.converters.ct.points import Points
from unistore.converters.ct.scan import ScannedVolume
from unistore.converters.ct.source import Voxels
from unistore.converters.files.paths import natural_key
from unistore.converters.plugin import SourceFile
from unistore.errors import InputError, Problem, printable
from unistore.schemas.ct import fields as schema
from unistore.schemas.ct.windows import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What all volumes of one store have in common.

    Attributes
    ----------
    image
        Native dtype name that can represent every image exactly; None if no volume has an image.
    shape
        Largest extent on each axis.
    windows
        Windows of the store: those of the options, then those of files.
    values
        dtype name of the values of each window's points, and of each ``sdf/<name>``.
    scaled
        dtype name of the values of each window that some files have as floats, used if these are scaled to
        0…1.
    labels
        Native dtype name that holds every label volume of a name exactly, by name; floats may be 0 and 1.
    classes
        What the label map, or ``dataset.json``, calls the values of labels.
    """

    image: str | None
    shape: tuple[int, int, int]
    windows: tuple[Window, ...]
    values: Mapping[str, str]
    scaled: Mapping[str, str]
    labels: Mapping[str, str]
    classes: Mapping[str, str]


def agree(
    volumes: Sequence[ScannedVolume], asked: Sequence[Window], sparse: str, names: Sequence[str]
) -> Agreement:
    """Find what all volumes have in common, or raise an `InputError` with every contradiction between them.

    Parameters
    ----------
    volumes
        Their headers.
    asked
        Windows of the options.
    sparse
        ``"auto"``, ``"coords"`` or ``"mask"``.
    names
        Name of each volume in messages.
    """
    problems = [
        *_check_images(volumes, names),
        *_check_names(volumes, asked, names),
        *_check_classes(volumes, names),
    ]
    found = {name: window for volume in volumes for name, window in volume.named.items()}
    windows = {window.name: window for window in (*asked, *(found[name] for name in sorted_names(found)))}

    def promoted(dtypes: Sequence[np.dtype[Any]], what: str, listed: Iterable[str] = ()) -> str:
        """Name of the smallest dtype that holds every value of all `dtypes`; a Problem if there is none."""
        dtype = promote(dtypes)
        if dtype is None:
            given = ", ".join(dict.fromkeys(listed or map(str, dtypes)))
            message = f"no dtype holds the values of all of them exactly: {given}"
            problems.append(Problem(what, message, "convert them apart, or save them in one dtype", "dtype"))
        return "" if dtype is None else dtype.name

    dtypes = list(dict.fromkeys(volume.image.dtype for volume in volumes if volume.image))
    listed = [f"{dtype} ({_first(volumes, names, dtype)})" for dtype in dtypes]
    image = promoted(dtypes, "volumes", listed) if dtypes else None
    values: dict[str, str] = {}
    scaled: dict[str, str] = {}
    for name in windows:
        if image is not None:
            values[name] = image
            continue
        window = f"windows/{name}"
        files = _dtypes(volumes, window)
        points = _dtypes([volume for volume in volumes if window not in volume.arrays], f"sparse/{name}")
        kinds = [np.dtype(np.uint8) for _ in files] + points
        problems += _check_window(name, found, sparse if points else "auto")
        values[name] = promoted(kinds, f"window {name!r}")
        floats = [dtype for dtype in files if dtype.kind == "f"]
        if floats:
            scaled[name] = promoted(kinds + floats, f"window {name!r}")
    for name in names_of(volumes, schema.SDF):
        group = f"{schema.SDF}/{name}"
        values[group] = promoted(_dtypes(volumes, group), f"sdf {name!r}")
    labels: dict[str, str] = {}
    for name in names_of(volumes, schema.LABELS):
        dtypes = _dtypes(volumes, f"{schema.LABELS}/{name}")
        whole = [np.dtype(np.bool_) if dtype.kind == "f" else dtype for dtype in dtypes]
        labels[name] = promoted(whole, f"label {name!r}")
    if problems:
        raise InputError(problems)
    extents = [volume.extent for volume in volumes if volume.extent is not None]
    depth, height, width = np.array(extents or [(0, 0, 0)]).max(axis=0).tolist()
    return Agreement(
        image=image,
        shape=(depth, height, width),
        windows=tuple(windows.values()),
        values=values,
        scaled=scaled,
        labels=labels,
        classes=_classes(volumes),
    )


def _dtypes(volumes: Sequence[ScannedVolume], array: str) -> list[np.dtype[Any]]:
    """Dtypes of an array in the volumes that have it."""
    return [volume.arrays[array].dtype for volume in volumes if array in volume.arrays]


def _first(volumes: Sequence[ScannedVolume], names: Sequence[str], dtype: np.dtype[Any]) -> str:
    return next(n for v, n in zip(volumes, names, strict=True) if v.image and v.image.dtype == dtype)


def _check_images(volumes: Sequence[ScannedVolume], names: Sequence[str]) -> list[Problem]:
    without = [name for volume, name in zip(volumes, names, strict=True) if volume.image is None]
    if not without or len(without) == len(volumes):
        return []
    message = f"has no volume of intensities, unlike {len(volumes) - len(without)} others"
    cure = "add ct_original.npy, leave it out, or convert windows alone apart"
    return [Problem(name, message, cure, "missing", name) for name in without]


def _check_names(
    volumes: Sequence[ScannedVolume], asked: Sequence[Window], names: Sequence[str]
) -> list[Problem]:
    """Problems of window names with different widths or levels."""
    first_use: dict[str, tuple[Window, str]] = {window.name: (window, "--window") for window in asked}
    problems = []
    for volume, where in zip(volumes, names, strict=True):
        for name, window in volume.named.items():
            first, origin = first_use.setdefault(name, (window, where))
            if (first.width, first.level) != (window.width, window.level):
                message = f"window {window} of its files differs from {first} of {origin}"
                cure = f"--window {window}, or rename one of them"
                problems.append(Problem(where, message, cure, "window"))
    return problems


def _check_classes(volumes: Sequence[ScannedVolume], names: Sequence[str]) -> Iterator[Problem]:
    """Yield a problem for datasets that number other things alike."""
    first: dict[str, tuple[str, str]] = {}
    refused: set[SourceFile] = set()
    for volume, where in zip(volumes, names, strict=True):
        for value, name in volume.classes.items():
            known, owner = first.setdefault(value, (name, where))
            dataset = volume.texts.get("dataset")
            if known != name and dataset is not None and dataset not in refused:
                refused.add(dataset)
                message = f"calls {value} of its labels {name!r}, which is {known!r} of {owner}"
                cure = "give both one numbering by --label-map, or convert these datasets apart"
                yield Problem(str(dataset.path), message, cure, "label")


def _classes(volumes: Sequence[ScannedVolume]) -> dict[str, str]:
    """Return what the labels of all datasets are called, by number."""
    names: dict[str, str] = {}
    for volume in volumes:
        names |= volume.classes
    return dict(sorted(names.items(), key=lambda item: int(item[0])))


def _check_window(name: str, found: Mapping[str, Window], sparse: str) -> list[Problem]:
    """Problems of a window that cannot be computed, as there are no intensities."""
    where = f"window {name!r}"
    if name not in found:
        message = "is in no file, and there are no intensities to compute it from"
        return [Problem(where, message, "add ct_original.npy, or leave out --window", "missing")]
    if sparse == "mask":
        message = "comes from .npz points with values of their own, which a mask would lose"
        return [Problem(where, message, "--sparse auto or coords", "option")]
    return []


def sorted_names(names: Iterable[str]) -> list[str]:
    """Each name once, in natural order."""
    return sorted(set(names), key=natural_key)


def names_of(volumes: Sequence[ScannedVolume], kind: str) -> list[str]:
    """Names of the arrays of a kind that any volume has."""
    return sorted_names(name for volume in volumes for name in volume.names(kind))


def _left_out(volumes: Sequence[ScannedVolume]) -> Iterator[tuple[str, str]]:
    """Yield arrays of files of points that are not stored, with the reason."""
    for volume in volumes:
        for points in volume.arrays.values():
            if isinstance(points, Points):
                yield from ((f"{points.file.path.name}: {name}", NO_COLUMN) for name in points.others)


def notes_of(
    volumes: Sequence[ScannedVolume],
    agreement: Agreement,
    asked: Sequence[Window],
    sparse: str,
) -> list[str]:
    """Notes on a scan, of one line each: how files were interpreted, and what volumes lack."""
    notes = _kinds_of_sources(volumes)
    windows = [_windows(volume) for volume in volumes]
    alone = [files for files, volume in zip(windows, volumes, strict=True) if files and not volume.image]
    if alone:
        first = printable(alone[0][0].file.path.name)
        notes.append(
            f"window masks without intensities, by their names: {len(alone)} volumes, such as {first}"
        )
    byte = [volume for volume in volumes if volume.image and volume.image.dtype == np.uint8]
    if byte:
        name = printable(byte[0].path.name)
        notes.append(f"uint8 images, not HU (no window in their names): {len(byte)} volumes, such as {name}")
    if agreement.windows:
        listed = ", ".join(str(window) for window in agreement.windows)
        form = "points or bits, whichever is smaller" if sparse == "auto" else sparse
        notes.append(f"windows {listed}: stored as {form}")
    brought = ", ".join(str(window) for window in agreement.windows if window not in asked)
    if brought:
        notes.append(f"windows that are files: {brought}")
    rows = [volume.metadata for volume in volumes if "metadata" in volume.texts]
    if "" in rows:
        notes.append(f"{METADATA}: no row of {rows.count('')} of {len(rows)} volumes, by name")
    notes += _unordered_notes(volumes)
    floats = [window for files in windows for window in files if window.dtype.kind == "f"]
    if floats:
        first = printable(floats[0].file.path.name)
        notes.append(f"windows of floats, masks or scaled to 0…1: {len(floats)} files, such as {first}")
    for name in names_of(volumes, schema.LABELS):
        array = f"{schema.LABELS}/{name}"
        labelled = [volume for volume in volumes if array in volume.arrays and volume.image]
        for volume in labelled[:1]:
            label = printable(volume.arrays[array].file.path.name)
            paired = f"paired by names: {label} with {printable(volume.path.name)}"
            hint = "; as plain arrays: convert rows" if is_plain(volume.path) else ""
            notes.append(f"{array}: {len(labelled)} volumes, {paired}{hint}")
    for kind in ("windows", "masks", "labels", "sdf"):
        for name in names_of(volumes, kind):
            array = f"{kind}/{name}"
            missing = sum(array not in volume.arrays for volume in volumes)
            if missing and (kind != "windows" or alone):
                notes.append(f"{array}: {missing} of {len(volumes)} volumes have none")
    remarks = Counter(note for volume in volumes for note in volume.notes)
    notes += [f"{count} files: {remark}" for remark, count in remarks.items()]
    notes += left_out_notes(_left_out(volumes))
    unused = sum(map(_has_unused_points, volumes))
    if unused:
        notes.append(f"sparse .npz windows of {unused} volumes were not used: dense files have the same")
    return notes


def _kinds_of_sources(volumes: Sequence[ScannedVolume]) -> list[str]:
    """Note how many volumes are series, case folders, or files of each ending."""
    series = sum(bool(volume.series) for volume in volumes)
    files = [volume.path for volume in volumes if not volume.is_case and not volume.series]
    cases = len(volumes) - len(files) - series
    notes = []
    if series:
        notes.append(f"DICOM series, one volume each: {series}")
    if cases:
        notes.append(f"case folders, one volume each: {cases}")
    endings = Counter(map(suffix_of, files))
    notes += [f"{ending} files outside case folders, one volume each: {n}" for ending, n in endings.items()]
    if any(map(is_hdf5, files)):
        notes.append("HDF5: names and attributes of arrays are left out")
    return notes


def _windows(volume: ScannedVolume) -> list[Voxels | Points]:
    """Windows that are files of voxels."""
    return [item for array, item in volume.arrays.items() if array.startswith("windows/")]


def _has_unused_points(volume: ScannedVolume) -> bool:
    """Whether sparse windows are not read, since there is something denser."""
    sparse = volume.names("sparse")
    return bool(sparse) and (volume.image is not None or not set(sparse).isdisjoint(volume.names("windows")))


def _unordered_notes(volumes: Sequence[ScannedVolume]) -> list[str]:
    """Note what ``info.json`` says of where voxels lie, if nobody said in which order."""
    names = sorted_names(name for volume in volumes for name in volume.unordered)
    if not names:
        return []
    cure = (
        "--info-order zyx (the order of the array's axes) or xyz (that of ITK and DICOM) stores the numbers"
    )
    return [f"{', '.join(names)} of info.json: in an unknown order, so kept as text alone; {cure}"]
