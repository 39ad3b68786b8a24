"""Read headers and texts of the files of one CT volume, no voxel, and raise all problems together."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unistore.converters.common.columns import storable
from unistore.converters.common.exclusion import ProblemCollector
from unistore.converters.ct.group import gap_in
from unistore.converters.ct.names import GEOMETRY, INFO, METADATA, SLICES, TEXTS, folder_of, window_of
from unistore.converters.ct.options import CtOptions
from unistore.converters.ct.slabs import MEMBERS, VolumeArray, points_in
from unistore.converters.opened import Origin
from unistore.converters.scan import Scanned
from unistore.converters.seam.formats import origins_in
from unistore.errors import AddOptions, InputError, Problem
from unistore.plugin import Format, Group, Opened, SourceFile
from unistore.schemas.ct.geometry import LENGTHS
from unistore.schemas.ct.windows import PRESETS, Window
from unistore.schemas.tables import name_problem
from unistore.system.hints import JsonObject

# Read the texts of CT volumes: ``info.json``, tables of cases, names of the classes of a dataset.

_MAX_BYTES = 64 << 20
_FIX = "correct it or leave it out"


def read_info(path: Path, location: str) -> tuple[str, dict[str, list[float]]]:
    """Return the text of ``info.json``, and ``spacing``, ``origin``, ``direction`` as far as it has them."""
    try:
        text = _text(path, "utf-8")
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError.at(location, f"is no JSON: {error}", _FIX, "json") from error
    return text, numbers_in(content) if isinstance(content, Mapping) else {}


def numbers_in(content: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return ``spacing``, ``origin`` and ``direction`` as far as they are known, in rows or not.

    Numbers that are not finite, and a spacing that is not above 0, say nothing.
    """
    stated = {}
    for name, count in LENGTHS.items():
        try:
            numbers = np.asarray(content.get(name), np.float64).ravel()
        except (TypeError, ValueError, OverflowError):
            continue
        is_known = len(numbers) == count and np.isfinite(numbers).all()
        if is_known and (name != "spacing" or numbers.min() > 0):
            stated[name] = numbers.tolist()
    return stated


def read_classes(path: Path, location: str) -> dict[str, str]:
    """Return what ``dataset.json`` calls each value of a label, without regions of several values."""
    # nnU-Net has values by name, the Medical Segmentation Decathlon names by value.
    text, _ = read_info(path, location)
    content = json.loads(text)
    labels = content.get("labels") if isinstance(content, Mapping) else None
    classes: dict[str, str] = {}
    if not isinstance(labels, Mapping):
        return classes
    for key, value in labels.items():
        if isinstance(value, int):
            classes[str(value)] = key
        elif isinstance(value, str) and key.isdigit():
            classes[key] = value
    return dict(sorted(classes.items(), key=lambda pair: int(pair[0])))


def _text(path: Path, encoding: str) -> str:
    with path.open("rb") as file:
        raw = file.read(_MAX_BYTES + 1)
    if len(raw) > _MAX_BYTES:
        msg = f"it is longer than {_MAX_BYTES} bytes"
        raise ValueError(msg)
    return raw.decode(encoding)


def read_row(path: Path, case: str, location: str) -> str:
    """Return the row of a case, in the first column with its name, as a JSON object of texts, or ``""``."""
    rows = _rows(path, path.stat().st_mtime_ns, location)
    for column in rows[0] if rows else ():
        matching = [row for row in rows if row[column] == case]
        if len(matching) > 1:
            message = f"has {len(matching)} rows of {case}"
            raise InputError.at(location, message, "keep one of them", "metadata")
        if matching:
            return json.dumps(matching[0], ensure_ascii=False)
    return ""


@lru_cache(maxsize=4)
def _rows(path: Path, time: int, location: str) -> list[dict[str, str]]:  # noqa: ARG001
    try:
        lines = csv.reader(io.StringIO(_text(path, "utf-8-sig"), newline=""), strict=True)
        header, *rows = list(lines) or [[]]
        if len(set(header)) < len(header):
            raise ValueError("two columns have one name")
        for number, row in enumerate(rows, 2):
            if row and len(row) != len(header):
                msg = f"row {number} has other columns than row 1"
                raise ValueError(msg)
        # A line that is empty is no row.
        return [dict(zip(header, row, strict=True)) for row in rows if row]
    except (ValueError, csv.Error) as error:
        message = f"is no table of comma-separated values in UTF-8: {error}"
        raise InputError.at(location, message, _FIX, "metadata") from error


BY_FILE = "the volume's file"
_LONGEST = (1 << 31) - 1
# Headers of one scan written by several programs differ by less, in mm and in parts of a length.
_ROUNDING = 1e-3
_UNORDERED = (
    "of info.json: in an unknown order, so kept as text alone; --info-order zyx (the order of the array's "
    "axes) or xyz (that of ITK and DICOM) stores the numbers"
)

Open = Callable[[SourceFile], AbstractContextManager[tuple[Format, Opened]]]  # opens a file of a source

# What messages call an array of each kind; volumes have them in this order.
_CALLED = {
    "image": "volume",
    "windows": "window",
    "sparse": "window",
    "masks": "mask",
    "labels": "label",
    "sdf": "field",
}


class Detail(NamedTuple):
    """What a store takes of a volume, and where that is: the ``detail`` of its source."""

    arrays: tuple[VolumeArray, ...]  # sparse windows only where there is nothing denser
    extent: tuple[int, int, int] | None  # D, H, W; None if there are only points
    geometry: Mapping[str, Sequence[float]]  # in the order of `unistore.schemas.ct.geometry`, as far as known
    stated_by: Mapping[str, str]  # what states each of these: "info.json"
    info: str  # text of info.json; empty: it has none
    info_path: str
    metadata: str  # its row of metadata.csv, as JSON
    header: str  # what is kept of the header of the image, as JSON
    patient: str  # digests of a DICOM series, see `unistore.converters.ct.group`
    series: str

    def array(self, role: str) -> VolumeArray | None:
        """Return an array, or None if there is none."""
        return next((array for array in self.arrays if array.role == role), None)

    def named(self, kind: str) -> dict[str, VolumeArray]:
        """Return the arrays of a kind, by name."""
        start = f"{kind}/"
        return {
            array.role.removeprefix(start): array for array in self.arrays if array.role.startswith(start)
        }


@dataclass(frozen=True, kw_only=True)
class ScannedVolume(Scanned):
    """One volume as its headers describe it."""

    path: Path  # its case folder or file
    detail: Detail
    files: Sequence[str]  # paths of all that is read for it
    windows: Mapping[str, Window]  # those that files bring
    classes: Mapping[str, str]  # what dataset.json calls each value of the label
    dataset: str  # path of dataset.json
    notes: Sequence[str]  # remarks on its files

    @property
    def image(self) -> VolumeArray | None:
        """The image, if there is one."""
        return self.detail.array("image")


class VolumeScan:
    """Scans one volume."""

    def __init__(self, open: Open, options: CtOptions) -> None:
        self._open = open
        self._options = options
        self._labels = options.labels
        self._arrays: dict[str, VolumeArray] = {}
        self._placed: dict[str, Mapping[str, Sequence[float]]] = {}
        self._windows: dict[str, Window] = {}
        self._geometry: dict[str, Sequence[float]] = {}
        self._stated_by: dict[str, str] = {}
        self._texts: JsonObject = {}
        self._header = ""
        self._notes: list[str] = []
        self._origins: list[Origin] = []
        self._shows_others = False

    def run(self, group: Group) -> ScannedVolume:
        """Read every header. Files are named as `unistore.converters.ct.group` says."""
        series = group.detail
        if series is not None and series.problem is not None:
            raise InputError(series.problem)
        collected = ProblemCollector()
        texts: dict[str, SourceFile] = {}
        slices: list[SourceFile] = []
        images: list[tuple[int, SourceFile]] = []
        for role, file in zip(group.arrays, group.files, strict=True):
            kind, _, name = role.partition("/")
            if kind in TEXTS:
                texts[kind] = file
            elif kind == SLICES:
                slices.append(file)
            elif kind == "image":
                images.append((int(name), file))
            else:
                with collected.attempt(file.name):
                    self._add(kind, name, file)
        if images:
            with collected.attempt(group.name):
                image = _choose_image(images, self._options.resolution, group.name)
                parts = tuple([file.path for file in slices])
                pixels = None if series is None else series.pixels
                self._add("image", "", replace(image, parts=parts, known=pixels))
                if parts and pixels is None:
                    collected.problems += gap_in(group.name, [image, *slices])
        first = group.files[0]
        path = first.path if first.name == group.name else folder_of(first.path)
        for kind, file in texts.items():
            with collected.attempt(file.name):
                self._read(kind, file, path.name, has_geometry="geometry" in texts)
        arrays = self._used_arrays()
        dense = [array for array in arrays if not array.is_points]
        extent = dense[0].shape if dense else None
        collected.problems += self._displaced()
        for array in dense:
            if array.shape != extent:
                message = f"has shape {array.shape}, its volume {extent}"
                collected.problems.append(
                    Problem(array.name, message, "make it again from this volume", "shape")
                )
        collected.check()
        paths = [[array.path, *array.parts, *array.further] for array in arrays]
        detail = Detail(
            arrays=arrays,
            extent=extent,  # type: ignore[arg-type]  # three axes were checked
            geometry=self._geometry,
            stated_by=self._stated_by,
            info=self._texts.get("info", ""),
            info_path=str(texts["info"].path) if "info" in texts else "",
            metadata=self._texts.get("metadata", ""),
            header=self._header,
            patient=series.patient if series else "",
            series=series.series if series else "",
        )
        return ScannedVolume(
            path=path,
            detail=detail,
            files=[*chain.from_iterable(paths), *(str(file.path) for file in texts.values())],
            windows=self._windows,
            classes=self._classes(),
            dataset=str(texts["dataset"].path) if "dataset" in texts else "",
            notes=self._notes,
            origins=tuple(self._origins) if self._shows_others else (),
        )

    def _used_arrays(self) -> tuple[VolumeArray, ...]:
        # All arrays in the order of their kinds, without sparse windows of which there is more
        used = []
        for kind in _CALLED:
            for role, array in self._arrays.items():
                own_kind, _, name = role.partition("/")
                is_dense = kind == "sparse" and not self._arrays.keys().isdisjoint(
                    ("image", f"windows/{name}")
                )
                if own_kind == kind and not is_dense:
                    used.append(array)
        return tuple(used)

    def _classes(self) -> Mapping[str, str]:
        # What the numbers of labels are called, as the store numbers them
        classes: Mapping[str, str] = self._texts.get("dataset", {})
        for array in self._arrays.values():
            if self._labels is not None and array.numbering is not None:
                return self._labels.called(array.numbering, classes)
        return classes

    def _read(self, kind: str, file: SourceFile, case: str, *, has_geometry: bool) -> None:
        # Read a text about the volume
        if kind == "metadata":
            self._texts[kind] = read_row(file.path, case, file.name)
            if not self._texts[kind]:
                self._notes.append(f"{METADATA} has no row of this name")
        elif kind == "dataset":
            self._texts[kind] = read_classes(file.path, file.name)
        else:
            self._texts[kind], stated = read_info(file.path, file.name)
            order = self._options.info_order
            if kind == "geometry":
                self._state(stated, GEOMETRY)
            elif order is not None:
                step = -1 if order == "xyz" else 1
                self._state({name: numbers[::step] for name, numbers in stated.items()}, INFO)
            elif stated and not has_geometry:
                self._notes.append(f"{', '.join(sorted(stated))} {_UNORDERED}")

    def _add(self, kind: str, name: str, file: SourceFile) -> None:
        # Add an array. ``points`` are a sparse window or a distance field
        with self._open(file) as (opening, opened):
            if kind == "points":
                array = points_in(opened, file, opening.name, name)
                for other in sorted(opened.arrays.keys() - {*MEMBERS[array.form], "resolution"}):
                    self._notes.append(f"left out, being no column: {file.path.name}: {other}")
            else:
                array = self._voxels(kind, name, file, opening, opened)
            self._origins += origins_in([opened])
            self._shows_others |= bool(opened.shows)
            placed = numbers_in(opened.facts)
            self._notes += opened.notes.values()
            if opening.name == "hdf5":
                self._notes.append("HDF5: names and attributes of arrays are left out")
            if kind == "image":
                self._state(placed, BY_FILE)
                if "spacing" in opened.facts and "spacing" not in placed:
                    self._notes.append(f"spacing {opened.facts['spacing']} is none, so it is not known")
                header = opened.facts.get("header")
                self._header = json.dumps(header) if header else ""
        role = array.role
        called = _CALLED[array.form]
        unnamed = name_problem(role)
        if unnamed is not None:
            message = f"cannot name a {called}: {unnamed}"
            raise file.problem(message, "rename it", "name")
        if role in self._arrays:
            message = f"is a second {called} {name!r} of this volume, beside {self._arrays[role].name}"
            raise file.problem(message, "keep one of them", called)
        if called == "window":
            self._windows.setdefault(name, self._window(name, file))
        self._arrays[role] = array
        self._placed[role] = placed

    def _voxels(self, kind: str, name: str, file: SourceFile, opening: Format, opened: Opened) -> VolumeArray:
        # Describe the only array of an open file, whose dtype and shape can be stored
        if len(opened.arrays) != 1:
            message = f"holds {len(opened.arrays)} arrays; a volume is one"
            raise file.problem(message, "save one a file", "layout")
        (array,) = opened.arrays.values()
        shape = array.shape
        if not storable(array.dtype):
            kinds = "bool, integers or floats of at most 8 bytes"
            message = f"has dtype {array.dtype}; a {_CALLED[kind]} is of {kinds}"
            raise file.problem(message, "save it as numbers: array.astype(np.int16)", "dtype")
        if len(shape) != 3:
            message = f"has {len(shape)} axes {shape}; a {_CALLED[kind]} has three (depth, height, width)"
            fix = "save one array of three axes a file: array[0], or np.stack(slices)"
            raise file.problem(message, fix, "shape")
        if min(shape) == 0 or max(shape) > _LONGEST:
            message = f"is empty, or too long for int32: shape {shape}"
            raise file.problem(message, "make it again, or leave it out", "shape")
        numbering = None
        if kind == "labels" and self._labels is not None:
            numbering = self._labels.numbering(file.path, file.name)
        return VolumeArray(
            role=f"{kind}/{name}" if name else kind,
            name=file.name,
            path=str(file.path),
            format=opening.name,
            dtype=array.dtype.str if numbering is None else numbering.dtype.str,
            shape=shape,
            fortran_order=array.fortran_order,
            forward_only=opened.forward_only,
            memory=opened.memory,
            numbering=numbering,
            parts=tuple(map(str, file.parts)),
            further=tuple([str(other.path) for other in opened.further]),
            known=tuple(file.known or ()),
        )

    def _displaced(self) -> Iterator[Problem]:
        # Yield a problem for each array that lies elsewhere than the image, as both files state it
        image = self._placed.get("image", {})
        for role, placed in self._placed.items():
            for name in image.keys() & placed.keys():
                if not np.allclose(placed[name], image[name], rtol=_ROUNDING, atol=_ROUNDING):
                    message = f"has {name} {[*placed[name]]}, its volume {[*image[name]]}"
                    fix = "resample it to the volume, or copy the volume's header if that is right"
                    yield Problem(self._arrays[role].name, message, fix, "geometry")

    def _window(self, name: str, file: SourceFile) -> Window:
        # The window that a file's name says, or else the preset of that name
        window = window_of(file.path, self._options.window_names)
        if window is None and name not in PRESETS:
            message = "does not say its window: expected a name like lung_w1500_l-600_sparse.npz"
            raise file.problem(message, "rename it", "window")
        return PRESETS[name] if window is None else window[1]

    def _state(self, stated: Mapping[str, Sequence[float]], by: str) -> None:
        self._geometry.update(stated)
        self._stated_by.update(dict.fromkeys(stated, by))


def _choose_image(
    images: Sequence[tuple[int, SourceFile]], resolution: int | None, volume: str
) -> SourceFile:
    # The image of a case folder. Several need a resolution, which those called otherwise lack
    images = sorted(images, key=lambda image: image[0])
    says_none = images[-1][0] == 0
    chosen = [file for size, file in images if says_none or resolution in (None, size)]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(file.path.name for _, file in images)
    reason = "choose one" if chosen else f"--resolution {resolution} is not one of them"
    sizes = dict.fromkeys(size for size, _ in images if size)
    fixes = tuple([AddOptions(("--resolution", str(size))) for size in sizes])
    otherwise = "keep one of them, or call it ct_original.npy"
    raise InputError.at(volume, f"holds {names}: {reason}", fixes or otherwise, "resolution")
