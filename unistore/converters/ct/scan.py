"""Read headers and texts of the files of one CT volume, no voxel, and raise all problems together."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unistore.converters.ct.names import (
    GEOMETRY,
    SLICES,
    TEXTS,
    folder_of,
    states_window,
    window_of,
    window_resolution,
)
from unistore.converters.ct.options import INFO, METADATA, CtOptions
from unistore.converters.ct.series import Series
from unistore.converters.ct.slabs import MEMBERS, VolumeArray, points_in
from unistore.converters.ct.stacks import gap_in
from unistore.converters.ct.texts import numbers_in, read_classes, read_info, read_row
from unistore.converters.formats.dicom_headers import DicomPixels
from unistore.errors import AddOptions, InputError, Problem
from unistore.plugin import (
    Group,
    Openable,
    OpenFile,
    ProblemCollector,
    Scanned,
    SourceFile,
    name_problem,
    storable,
)
from unistore.schemas.ct.windows import PRESETS, Window
from unistore.system.types import JsonObject

BY_FILE = "the volume's file"
_LONGEST = (1 << 31) - 1
# Headers of one scan written by several programs differ by less, in mm and in parts of a length.
_ROUNDING = 1e-3
_UNORDERED = (
    "in info.json kept only as text, because their order is unknown; --info-order zyx (the order of the "
    "axes) or xyz (the order of ITK and DICOM) stores the numbers"
)

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
    """What a store takes of a volume, and where that is: the ``detail`` of its source.

    The files of its arrays are the first ones of the source.
    """

    arrays: tuple[VolumeArray, ...]  # sparse windows only where there is nothing denser
    extent: tuple[int, int, int] | None  # D, H, W; None if there are only points
    geometry: Mapping[str, Sequence[float]]  # in the order of `unistore.schemas.ct.geometry`, as far as known
    stated_by: Mapping[str, str]  # what states each of these: "info.json"
    info: str  # text of info.json; empty: it has none
    info_path: str
    metadata: str  # its row of metadata.csv, as JSON
    header: str  # what is kept of the header of the image, as JSON
    patient: str  # digests of a DICOM series, see `unistore.converters.ct.series`
    series: str

    @property
    def files(self) -> list[str]:
        """What messages call the file of each array."""
        return [array.name for array in self.arrays]

    @property
    def formats(self) -> list[str]:
        """Name of the format of each of these files."""
        return [array.format for array in self.arrays]

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

    name: str
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


class _FilesByRole:
    """The files of a volume, by what they are to it."""

    def __init__(self, group: Group, files: Sequence[Openable]) -> None:
        self.images: list[tuple[int, Openable]] = []  # with the resolutions that their names say, or 0
        self.slices: list[SourceFile] = []  # which continue the only image
        self.texts: dict[str, SourceFile] = {}  # by kind
        self.others: list[tuple[str, str, Openable]] = []  # kind and name of arrays
        for role, source in zip(group.roles, files, strict=True):
            kind, _, name = role.partition("/")
            if kind in TEXTS:
                self.texts[kind] = source.file
            elif kind == SLICES:
                self.slices.append(source.file)
            elif kind == "image":
                self.images.append((int(name), source))
            else:
                self.others.append((kind, name, source))

    def path_of(self, kind: str) -> str:
        """Return the path of a text, empty if there is none."""
        return str(self.texts[kind].path) if kind in self.texts else ""


class VolumeScan:
    """Scans one volume."""

    def __init__(self, options: CtOptions) -> None:
        self._options = options
        self._labels = options.labels
        self._collected = ProblemCollector()
        self._arrays: dict[str, VolumeArray] = {}
        self._placed: dict[str, Mapping[str, Sequence[float]]] = {}
        self._windows: dict[str, Window] = {}
        self._geometry: dict[str, Sequence[float]] = {}
        self._stated_by: dict[str, str] = {}
        self._texts: JsonObject = {}
        self._header = ""
        self._notes: list[str] = []

    def run(self, group: Group, files: Sequence[Openable]) -> ScannedVolume:
        """Read every header, and the texts about the volume.

        Parameters
        ----------
        group
            As `unistore.converters.ct.group` makes it: its files are named as messages call them.
        files
            The same files.

        Raises
        ------
        InputError
            With every problem of the volume.
        """
        series: Series | None = group.detail
        if series is not None and series.problem is not None:
            raise InputError(series.problem)
        by_role = _FilesByRole(group, files)
        if by_role.images:
            with self._collected.attempt(group.name):
                self._add_image(group.name, by_role, None if series is None else series.pixels)
        for kind, name, source in by_role.others:
            with self._collected.attempt(source.file.name):
                self._add(kind, name, source)
        first = group.files[0]
        path = first.path if first.name == group.name else folder_of(first.path)
        for kind, file in by_role.texts.items():
            with self._collected.attempt(file.name):
                self._read(kind, file, path.name, has_geometry="geometry" in by_role.texts)
        arrays = self._used_arrays()
        self._collected.problems += self._displaced()
        self._collected.problems += _unlike_shapes(arrays)
        self._collected.check()
        return self._scanned(group.name, path, by_role, arrays, series)

    def _add_image(self, volume: str, by_role: _FilesByRole, pixels: Sequence[DicomPixels] | None) -> None:
        """Add the image, and the slices or pages that continue it."""
        image = _choose_image(by_role.images, self._options.resolution, volume)
        if by_role.slices or pixels is not None:
            image = image.followed_by([file.path for file in by_role.slices], pixels)
        self._add("image", "", image)
        if by_role.slices and pixels is None:
            self._collected.problems += gap_in(volume, [image.file, *by_role.slices])

    def _scanned(
        self,
        name: str,
        path: Path,
        by_role: _FilesByRole,
        arrays: tuple[VolumeArray, ...],
        series: Series | None,
    ) -> ScannedVolume:
        # The files of arrays come first: these are opened again.
        paths = [array.path for array in arrays]
        paths += chain.from_iterable((*array.parts, *array.further) for array in arrays)
        paths += map(by_role.path_of, by_role.texts)
        dense = [array for array in arrays if not array.is_points]
        detail = Detail(
            arrays=arrays,
            extent=dense[0].shape if dense else None,  # type: ignore[arg-type]  # three axes were checked
            geometry=self._geometry,
            stated_by=self._stated_by,
            info=self._texts.get("info", ""),
            info_path=by_role.path_of("info"),
            metadata=self._texts.get("metadata", ""),
            header=self._header,
            patient=series.patient if series else "",
            series=series.series if series else "",
        )
        return ScannedVolume(
            name=name,
            path=path,
            detail=detail,
            files=paths,
            windows=self._windows,
            classes=self._classes(),
            dataset=by_role.path_of("dataset"),
            notes=self._notes,
        )

    def _used_arrays(self) -> tuple[VolumeArray, ...]:
        """All arrays in the order of their kinds, without sparse windows of which there is more."""
        used = []
        for kind in _CALLED:
            for role, array in self._arrays.items():
                denser = {"image", f"windows/{role.partition('/')[2]}"}
                is_needless = kind == "sparse" and not denser.isdisjoint(self._arrays)
                if array.form == kind and not is_needless:
                    used.append(array)
        return tuple(used)

    def _classes(self) -> Mapping[str, str]:
        """What the numbers of labels are called, as the store numbers them."""
        classes: Mapping[str, str] = self._texts.get("dataset", {})
        for array in self._arrays.values():
            if self._labels is not None and array.numbering is not None:
                return self._labels.called(array.numbering, classes)
        return classes

    def _read(self, kind: str, file: SourceFile, case: str, *, has_geometry: bool) -> None:
        """Read a text about the volume."""
        if kind == "metadata":
            self._texts[kind] = read_row(file.path, case, file.name)
            if not self._texts[kind]:
                self._notes.append(f"{METADATA} has no row with this name")
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

    def _add(self, kind: str, name: str, source: Openable) -> None:
        """Add an array. ``points`` are a sparse window or a distance field."""
        file = source.file
        with source.open() as opened:
            if kind == "points":
                array = points_in(opened, file, source.format.name, name)
                for other in sorted(opened.arrays.keys() - {*MEMBERS[array.form], "resolution"}):
                    self._notes.append(f"not stored, because it is not a column: {file.path.name}: {other}")
            else:
                array = self._voxels(kind, name, file, source.format.name, opened)
            if kind == "windows" and self._is_of_other_size(array):
                return
            placed = numbers_in(opened.metadata)
            self._notes += opened.notes.values()
            if array.format == "hdf5":
                self._notes.append("names and attributes of HDF5 arrays are not stored")
            if kind == "image":
                self._state(placed, BY_FILE)
                if "spacing" in opened.metadata and "spacing" not in placed:
                    self._notes.append(
                        f"spacing {opened.metadata['spacing']} is not valid, so the spacing is unknown"
                    )
                header = opened.metadata.get("header")
                self._header = json.dumps(header) if header else ""
        role = array.role
        called = _CALLED[array.form]
        unnamed = name_problem(role)
        if unnamed is not None:
            message = f"cannot name a {called}: {unnamed}"
            raise file.problem(message, "rename it", "name")
        if role in self._arrays:
            message = f"is the second {called} {name!r} of this volume, after {self._arrays[role].name}"
            raise file.problem(message, "keep one of them", called)
        if called == "window":
            self._windows.setdefault(name, self._window(name, file))
        self._arrays[role] = array
        self._placed[role] = placed

    def _voxels(self, kind: str, name: str, file: SourceFile, format: str, opened: OpenFile) -> VolumeArray:
        """Describe the only array of an open file, whose dtype and shape can be stored."""
        if len(opened.arrays) != 1:
            message = f"contains {len(opened.arrays)} arrays, but a volume is one array"
            raise file.problem(message, "save each array in a file of its own", "layout")
        (array,) = opened.arrays.values()
        shape = array.shape
        if not storable(array.dtype):
            kinds = "bool, integers or floats of at most 8 bytes"
            message = f"has dtype {array.dtype}, but a {_CALLED[kind]} needs {kinds}"
            raise file.problem(message, "save it as numbers: array.astype(np.int16)", "dtype")
        if len(shape) != 3:
            message = f"has {len(shape)} axes {shape}, but a {_CALLED[kind]} has three: depth, height, width"
            fix = "save one array of three axes per file: array[0], or np.stack(slices)"
            raise file.problem(message, fix, "shape")
        if min(shape) == 0 or max(shape) > _LONGEST:
            wrong = "is empty" if min(shape) == 0 else "is too long for 32 bits"
            message = f"{wrong}: its shape is {shape}"
            raise file.problem(message, "write the file again", "shape")
        numbering = None
        if kind == "labels" and self._labels is not None:
            numbering = self._labels.numbering(file.path, file.name)
        return VolumeArray(
            role=f"{kind}/{name}" if name else kind,
            name=file.name,
            path=str(file.path),
            format=format,
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

    def _is_of_other_size(self, window: VolumeArray) -> bool:
        """Return whether a window that says its size was made of the volume in another one, and note it."""
        image = self._arrays.get("image")
        resolution = window_resolution(Path(window.path))
        if image is None or window.shape == image.shape or window.shape != (resolution,) * 3:
            return False
        sizes = [" × ".join(map(str, array.shape)) for array in (window, image)]
        self._notes.append(f"not stored: a window of {sizes[0]} voxels, because the volume has {sizes[1]}")
        return True

    def _displaced(self) -> Iterator[Problem]:
        """Yield a problem for each array that lies elsewhere than the image, as both files state it."""
        image = self._placed.get("image", {})
        for role, placed in self._placed.items():
            for name in image.keys() & placed.keys():
                if not np.allclose(placed[name], image[name], rtol=_ROUNDING, atol=_ROUNDING):
                    message = f"has the {name} {[*placed[name]]}, but its volume has {[*image[name]]}"
                    fix = "resample it to the volume", "copy the header of the volume, if that one is right"
                    yield Problem(self._arrays[role].name, message, fix, "geometry")

    def _window(self, name: str, file: SourceFile) -> Window:
        """The window that a file's name says, or else the preset of that name."""
        window = window_of(file.path, self._options.window_names)
        if window is None and name not in PRESETS:
            message = "its name does not state width and level of the window"
            raise file.problem(message, "rename it, for example to lung_w1500_l-600_sparse.npz", "window")
        if not states_window(file.path):
            self._notes.append(
                f"read as the window {PRESETS[name]}, because the name does not state width and level"
            )
        return PRESETS[name] if window is None else window[1]

    def _state(self, stated: Mapping[str, Sequence[float]], by: str) -> None:
        self._geometry.update(stated)
        self._stated_by.update(dict.fromkeys(stated, by))


def _unlike_shapes(arrays: Sequence[VolumeArray]) -> Iterator[Problem]:
    """Yield a problem for each array of voxels of another shape than the first one."""
    dense = [array for array in arrays if not array.is_points]
    for array in dense:
        if array.shape != dense[0].shape:
            message = f"has shape {array.shape}, but its volume has {dense[0].shape}"
            yield Problem(array.name, message, "make it again from this volume", "shape")


def _choose_image(images: Sequence[tuple[int, Openable]], resolution: int | None, volume: str) -> Openable:
    """The image of a case folder. Several need a resolution, which those called otherwise lack."""
    images = sorted(images, key=lambda image: image[0])
    says_none = images[-1][0] == 0
    chosen = [source for size, source in images if says_none or resolution in (None, size)]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(source.file.path.name for _, source in images)
    reason = "one is needed" if chosen else f"--resolution {resolution} is not one of them"
    sizes = dict.fromkeys(size for size, _ in images if size)
    fixes = tuple([AddOptions(("--resolution", str(size))) for size in sizes])
    otherwise = "keep one of them", "rename one to ct_original.npy"
    raise InputError.at(volume, f"contains {names}, but {reason}", fixes or otherwise, "resolution")
