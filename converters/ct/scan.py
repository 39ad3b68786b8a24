"""Read the headers of the files of one CT volume: shapes, dtypes, whether they agree.

No voxel is read. All problems of all files are raised together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from unistore.converters.common.columns import storable
from unistore.converters.common.exclusion import ProblemCollector
from unistore.converters.ct.names import GEOMETRY, INFO, SLICES, folder_of, window_of
from unistore.converters.ct.options import CtOptions
from unistore.converters.ct.points import SPARSE_MEMBERS, Points, points_in
from unistore.converters.ct.source import Voxels, voxels_in
from unistore.converters.ct.stacks import gap_in
from unistore.converters.ct.texts import numbers_in, read_classes, read_info, read_row
from unistore.converters.formats.dicom_headers import Pixels
from unistore.converters.plugin import Format, Group, Opened, SourceFile
from unistore.converters.scan import Scanned
from unistore.errors import InputError, Problem
from unistore.schemas.ct.windows import PRESETS, Window
from unistore.schemas.tables import name_problem

TEXTS = ("info", "geometry", "metadata", "dataset")
_LONGEST = (1 << 31) - 1
BY_FILE = "the volume's file"
_ROUNDING = 1e-3
"""Headers of one scan written by several programs differ by less, in mm and in parts of a length."""

Open = Callable[[SourceFile], AbstractContextManager[tuple[Format, Opened]]]
"""Opens a file of a source."""


_KINDS = ("image", "windows", "sparse", "masks", "labels", "sdf")
_CALLED = {
    "image": "volume",
    "windows": "window",
    "sparse": "window",
    "masks": "mask",
    "labels": "label",
    "sdf": "field",
}
"""What messages call an array of each kind."""


@dataclass(frozen=True, kw_only=True)
class ScannedVolume(Scanned):
    """One volume as its headers describe it.

    Attributes
    ----------
    path
        Its case folder or file.
    is_case
        Whether it is a case folder.
    arrays
        ``image`` (the one of several that ``--resolution`` chooses), ``windows/lung``, ``sparse/lung``,
        ``masks/3``, ``labels/seg``, ``sdf/far``. Sparse windows are used if there is no image and no voxels.
    named
        Width and level that files state for each window name.
    geometry
        ``spacing``, ``origin``, ``direction`` as far as ``info.json`` or else the image's file has them, in
        the order of `unistore.schemas.ct.geometry`.
    stated_by
        What states each of them: ``"info.json"``, or ``"the volume's file"``.
    unordered
        Those that ``info.json`` has, if nobody said in which order.
    texts
        Its files of texts: ``info``, ``geometry``, ``metadata``, ``dataset``.
    info, metadata
        Text of ``info.json``, and its row of ``metadata.csv`` as JSON text; empty: it has none.
    header
        What is kept of the header of the image, as JSON text; empty: nothing.
    notes
        Remarks of the formats.
    classes
        What ``dataset.json`` calls each value of the label, by value.
    slices
        Files that continue the image.
    further
        Files that others need: the voxels of a header.
    patient, series
        Digests, see `unistore.converters.ct.series`; empty: it is no DICOM series.
    pixels
        What the headers of a DICOM series say of its slices.
    """

    path: Path
    is_case: bool
    arrays: Mapping[str, Voxels | Points]
    named: Mapping[str, Window]
    geometry: Mapping[str, Sequence[float]]
    stated_by: Mapping[str, str]
    unordered: Sequence[str]
    texts: Mapping[str, SourceFile]
    info: str
    metadata: str
    header: str
    notes: Sequence[str]
    classes: Mapping[str, str]
    slices: Sequence[SourceFile]
    further: Sequence[SourceFile]
    patient: str
    series: str
    pixels: Sequence[Pixels]

    @property
    def image(self) -> Voxels | None:
        """The image, if there is one."""
        image = self.arrays.get("image")
        return image if isinstance(image, Voxels) else None

    @property
    def voxels(self) -> list[Voxels]:
        """All arrays that are voxels."""
        return [array for array in self.arrays.values() if isinstance(array, Voxels)]

    @property
    def label_files(self) -> list[SourceFile]:
        """Files of its labels."""
        return [item.file for array, item in self.arrays.items() if array.startswith("labels/")]

    def points_of(self, array: str) -> list[Points]:
        """Points of a name, if there are any."""
        points = self.arrays.get(array)
        return [points] if isinstance(points, Points) else []

    @property
    def extent(self) -> tuple[int, int, int] | None:
        """D, H, W; None if there are only points."""
        if not self.voxels:
            return None
        depth, height, width = self.voxels[0].shape
        return depth, height, width

    def names(self, kind: str) -> list[str]:
        """Names of the arrays of a kind: ``windows``."""
        start = f"{kind}/"
        return [array.removeprefix(start) for array in self.arrays if array.startswith(start)]


class _Scanning:
    """Scans one volume."""

    def __init__(self, open: Open, options: CtOptions) -> None:
        self._open, self._options = open, options
        self._labels = options.labels
        self._arrays: dict[str, Voxels | Points] = {}
        self._named: dict[str, Window] = {}
        self._geometry: dict[str, Sequence[float]] = {}
        self._stated_by: dict[str, str] = {}
        self._texts: dict[str, SourceFile] = {}
        self._unordered: list[str] = []
        self._info = ""
        self._metadata = ""
        self._header = ""
        self._notes: list[str] = []
        self._slices: list[SourceFile] = []
        self._further: list[SourceFile] = []
        self._classes: Mapping[str, str] = {}
        self._placed: dict[str, Mapping[str, Sequence[float]]] = {}

    def run(self, group: Group) -> ScannedVolume:
        """See `scan_volume`."""
        if group.detail is not None and group.detail.problem is not None:
            raise InputError(group.detail.problem)
        collected = ProblemCollector()
        images: dict[int, SourceFile] = {}
        for role, file in zip(group.arrays, group.files, strict=True):
            kind, _, name = role.partition("/")
            with collected.attempt(file.name):
                if kind == SLICES:
                    self._slices.append(file)
                elif kind in TEXTS:
                    self._texts[kind] = replace(file, roots=())
                elif kind == "image":
                    _add_image(images, int(name), file, group.name)
                else:
                    self._add(kind, name, file)
        with collected.attempt(group.name):
            if images:
                image = _choose_image(images, self._options.resolution, group.name)
                parts = tuple([file.path for file in self._slices])
                known = group.detail.pixels if group.detail else None
                self._add("image", "", replace(image, parts=parts, known=known))
                if parts and known is None:
                    collected.problems += gap_in(group.name, [image, *self._slices])
        first = group.files[0]
        is_case = first.name != group.name
        path = folder_of(first.path) if is_case else first.path
        for kind, file in self._texts.items():
            with collected.attempt(file.name):
                self._read(kind, file, path.name)
        volume = ScannedVolume(
            path=path,
            is_case=is_case,
            arrays={array: self._arrays[array] for array in sorted(self._arrays, key=_kind_number)},
            named=self._named,
            geometry=self._geometry,
            stated_by=self._stated_by,
            unordered=[name for name in self._unordered if self._stated_by.get(name) != GEOMETRY],
            texts=self._texts,
            info=self._info,
            metadata=self._metadata,
            header=self._header,
            notes=self._notes,
            classes=self._names_of_classes(),
            slices=self._slices,
            further=self._further,
            patient=group.detail.patient if group.detail else "",
            series=group.detail.series if group.detail else "",
            pixels=group.detail.pixels if group.detail else (),
        )
        collected.problems += _differing(volume, has_sizes=len([size for size in images if size]) > 1)
        collected.problems += self._displaced()
        collected.check()
        return volume

    def _names_of_classes(self) -> Mapping[str, str]:
        """Return what the numbers of labels are called, as the store numbers them."""
        voxels = [array for array in self._arrays.values() if isinstance(array, Voxels)]
        numberings = [array.numbering for array in voxels if array.numbering is not None]
        if self._labels is None or not numberings:
            return self._classes
        return self._labels.called(numberings[0], self._classes)

    def _read(self, kind: str, file: SourceFile, case: str) -> None:
        """Read a text: the geometry, or ``info.json``, or the row of a case."""
        if kind == "metadata":
            self._metadata = read_row(file.path, case, file.name)
            return
        if kind == "dataset":
            self._classes = read_classes(file.path, file.name)
            return
        text, stated = read_info(file.path, file.name)
        if kind == "geometry":
            self._state(stated, GEOMETRY)
            return
        self._info = text
        order = self._options.info_order
        if order is None:
            self._unordered = list(stated)
            return
        step = -1 if order == "xyz" else 1
        self._state({name: numbers[::step] for name, numbers in stated.items()}, INFO)

    def _add(self, kind: str, name: str, file: SourceFile) -> None:
        """Add an array; ``points`` are a sparse window or a distance field."""
        item: Voxels | Points
        with self._open(file) as (opening, opened):
            if kind == "points":
                item = points_in(opened, file, opening)
                kind = "sparse" if item.members == SPARSE_MEMBERS else "sdf"
            else:
                item = _checked(voxels_in(opened, file, opening), f"a {_CALLED[kind]}")
                if kind == "labels" and self._labels is not None:
                    item = item.numbered(self._labels.numbering(file.path, file.name))
            placed = numbers_in(opened.facts)
            self._notes += opened.notes.values()
            self._further += opened.further
            if kind == "image":
                self._state(placed, BY_FILE)
                header = opened.facts.get("header")
                self._header = json.dumps(header) if header else ""
        array = f"{kind}/{name}" if name else kind
        called = _CALLED[kind]
        unnamed = name_problem(array)
        if unnamed is not None:
            message = f"cannot name a {called}: {unnamed}"
            raise file.problem(message, "rename it", "name")
        if array in self._arrays:
            message = f"is a second {called} {name!r} of this volume, beside {self._arrays[array].file.name}"
            raise file.problem(message, "keep one of them", called)
        if called == "window":
            self._named.setdefault(name, self._window(name, file))
        self._arrays[array] = item
        self._placed[array] = placed

    def _displaced(self) -> Iterator[Problem]:
        """Yield a problem for each array that lies elsewhere than the image, as both files state it."""
        image = self._placed.get("image", {})
        for array, placed in self._placed.items():
            for name in image.keys() & placed.keys():
                here = np.array(placed[name])
                there = np.array(image[name])
                if not np.allclose(here, there, rtol=_ROUNDING, atol=_ROUNDING):
                    message = f"has {name} {here.tolist()}, its volume {there.tolist()}"
                    cure = "resample it to the volume, or copy the volume's header if that is right"
                    yield Problem(self._arrays[array].file.name, message, cure, "geometry")

    def _window(self, name: str, file: SourceFile) -> Window:
        """Width and level that a file's name says, or else those of the preset."""
        window = window_of(file.path, self._options.window_names)
        if window is None and name not in PRESETS:
            message = "does not say its window: expected a name like lung_w1500_l-600_sparse.npz"
            raise file.problem(message, "rename it", "window")
        return PRESETS[name] if window is None else window[1]

    def _state(self, stated: Mapping[str, Sequence[float]], by: str) -> None:
        self._geometry.update(stated)
        self._stated_by.update(dict.fromkeys(stated, by))


def scan_volume(group: Group, open: Open, options: CtOptions) -> ScannedVolume:
    """Read every header of one volume, whose files are named as `unistore.converters.ct.group` says."""
    return _Scanning(open, options).run(group)


def _kind_number(array: str) -> int:
    return _KINDS.index(array.partition("/")[0])


def _add_image(images: dict[int, SourceFile], size: int, file: SourceFile, volume: str) -> None:
    other = images.setdefault(size, file)
    if other is not file:
        message = f"which file is its volume? {other.path.name}, {file.path.name}"
        cure = "keep one of them, or call it ct_original.npy"
        raise InputError(Problem(volume, message, cure, "layout"))


def _differing(volume: ScannedVolume, *, has_sizes: bool) -> Iterator[Problem]:
    """Problems of voxels of another shape than the first; `has_sizes`: there are images of several."""
    cure = "choose the other --resolution" if has_sizes else "make it again from this volume"
    for voxels in volume.voxels:
        if voxels.shape != volume.extent:
            message = f"has shape {voxels.shape}, its volume {volume.extent}"
            yield Problem(voxels.file.name, message, cure, "shape")


def _choose_image(images: Mapping[int, SourceFile], resolution: int | None, where: str) -> SourceFile:
    """The image of a case folder; several need a resolution."""
    sizes = sorted(images)
    if len(sizes) > 1 and resolution not in images:
        asked = f"--resolution {resolution} is not one of them" if resolution else "choose one"
        names = ", ".join(images[size].path.name for size in sizes)
        cure = " or ".join(f"--resolution {size}" for size in sizes if size)
        raise InputError(Problem(where, f"holds {names}: {asked}", cure, "resolution"))
    if resolution is not None and resolution not in images and 0 not in images:
        name = images[sizes[0]].path.name
        message = f"holds {name}, not the resolution {resolution} that was asked for"
        cure = "leave --resolution out, or leave this case out"
        raise InputError(Problem(where, message, cure, "resolution"))
    return images[sizes[0]] if resolution is None else images.get(resolution, images[sizes[0]])


def _checked(voxels: Voxels, what: str) -> Voxels:
    """Check that dtype and shape can be stored."""
    shape = voxels.shape
    if not storable(voxels.dtype):
        message = f"has dtype {voxels.dtype}; {what} is of bool, integers or floats of at most 8 bytes"
        raise voxels.file.problem(message, "save it as numbers: array.astype(np.int16)", "dtype")
    message, cure = "", ""
    if len(shape) != 3:
        message = f"has {len(shape)} axes {shape}; {what} has three (depth, height, width)"
        cure = "save array[0]" if shape[:1] == (1,) else "save one array of three axes a file"
        if len(shape) == 2:
            cure = "stack the slices: np.save(path, np.stack(slices))"
    elif 0 in shape:
        message, cure = f"is empty: shape {shape}", "make it again, or leave it out"
    elif max(shape) > _LONGEST:
        message = f"has shape {shape}, longer than {_LONGEST} voxels on an axis"
    if message:
        raise voxels.file.problem(message, cure, "shape")
    return voxels
