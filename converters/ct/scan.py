"""Read the headers of the files of one CT volume: shapes, dtypes, whether they agree.

No voxel is read. All problems of all files are raised together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from unistore.converters.common.columns import storable
from unistore.converters.common.exclusion import ProblemCollector
from unistore.converters.ct.names import GEOMETRY, INFO, folder_of, window_of
from unistore.converters.ct.options import CtOptions
from unistore.converters.ct.points import SPARSE_MEMBERS, Points, points_in
from unistore.converters.ct.source import Voxels, voxels_in
from unistore.converters.ct.texts import numbers_in, read_info, read_row
from unistore.converters.plugin import Format, Group, Opened, SourceFile
from unistore.converters.scan import Scanned
from unistore.errors import InputError, Problem
from unistore.schemas.ct.windows import PRESETS, Window
from unistore.schemas.tables import name_problem

_LONGEST = (1 << 31) - 1
BY_FILE = "the volume's file"

Open = Callable[[SourceFile], AbstractContextManager[tuple[Format, Opened]]]
"""Opens a file of a source."""
Geometry = dict[str, list[float]]


@dataclass(frozen=True, kw_only=True)
class ScannedVolume(Scanned):
    """One volume as its headers describe it.

    Attributes
    ----------
    path
        Its case folder or file.
    is_case
        Whether it is a case folder.
    image
        The one of several that ``--resolution`` chooses.
    windows, sparse
        Windows by name, as voxels and as points; the latter are used if there is no image and no voxels.
    sdf, masks, labels
        Distance fields, masks (by id) and label volumes, by name.
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
        Its files of texts: ``info``, ``geometry``, ``metadata``.
    info, metadata
        Text of ``info.json``, and its row of ``metadata.csv`` as JSON text; empty: it has none.
    """

    path: Path
    is_case: bool
    image: Voxels | None = None
    windows: dict[str, Voxels] = field(default_factory=dict)
    sparse: dict[str, Points] = field(default_factory=dict)
    sdf: dict[str, Points] = field(default_factory=dict)
    masks: dict[str, Voxels] = field(default_factory=dict)
    labels: dict[str, Voxels] = field(default_factory=dict)
    named: dict[str, Window] = field(default_factory=dict)
    geometry: Geometry = field(default_factory=dict)
    stated_by: dict[str, str] = field(default_factory=dict)
    unordered: tuple[str, ...] = ()
    texts: dict[str, SourceFile] = field(default_factory=dict)
    info: str = ""
    metadata: str = ""

    @property
    def voxels(self) -> list[Voxels]:
        """Image, windows, masks and labels."""
        image = [] if self.image is None else [self.image]
        return [*image, *self.windows.values(), *self.masks.values(), *self.labels.values()]

    @property
    def extent(self) -> tuple[int, int, int] | None:
        """D, H, W; None if there are only points."""
        if not self.voxels:
            return None
        depth, height, width = self.voxels[0].shape
        return depth, height, width


class _Scanning:
    """Scans one volume."""

    def __init__(self, group: Group, open: Open, options: CtOptions) -> None:
        self._group, self._open, self._options = group, open, options
        self._collected = ProblemCollector()
        first = group.files[0]
        is_case = first.name != group.name
        self._volume = ScannedVolume(path=folder_of(first.path) if is_case else first.path, is_case=is_case)

    def run(self) -> ScannedVolume:
        """See `scan_volume`."""
        attempt = self._collected.attempt
        with attempt(self._group.name):
            self._add_image()
        volume = self._volume
        for name, file in self._files("windows"):
            with attempt(file.name):
                volume.windows[name] = self._named("window", name, file, volume.windows)
                volume.named[name] = self._window(name, file)
        for kind, found in (("mask", volume.masks), ("label", volume.labels)):
            for name, file in self._files(f"{kind}s"):
                with attempt(file.name):
                    found[name] = self._named(kind, name, file, found)
        self._check_shapes()
        for name, file in self._files("points"):
            with attempt(file.name):
                self._add_points(name, file)
        texts = {"info": self._read_info, "geometry": self._read_geometry, "metadata": self._read_metadata}
        for kind, read in texts.items():
            for _, file in self._files(kind):
                volume.texts[kind] = replace(file, roots=())
                with attempt(file.name):
                    read(file)
        self._collected.check()
        return self._volume

    def _files(self, kind: str) -> list[tuple[str, SourceFile]]:
        """Name and file of each of a kind."""
        files = zip(self._group.arrays, self._group.files, strict=True)
        return [(role.partition("/")[2], file) for role, file in files if role.partition("/")[0] == kind]

    def _add_image(self) -> None:
        images = self._files("image")
        if not images:
            return
        sizes = [int(size) for size, _ in images]
        if len(set(sizes)) < len(sizes):
            names = ", ".join(file.path.name for _, file in images)
            message = f"which file is its volume? {names}"
            cure = "keep one of them, or call it ct_original.npy"
            raise InputError(Problem(self._group.name, message, cure, "layout"))
        by_size = {int(size): file for size, file in images}
        file = _choose_image(by_size, self._options.resolution, self._group.name)
        with self._open(file) as (opening, opened):
            image = _checked(voxels_in(opened, file, opening), "a volume")
            self._volume = replace(self._volume, image=image)
            self._state(numbers_in(opened.facts), BY_FILE)

    def _named(self, kind: str, name: str, file: SourceFile, found: Mapping[str, Voxels]) -> Voxels:
        """A window, mask or label."""
        _check_name(kind, name, file)
        if name in found:
            message = f"is a second {kind} {name!r} of this volume, beside {found[name].file.name}"
            raise file.problem(message, "keep one of them", kind)
        with self._open(file) as (opening, opened):
            return _checked(voxels_in(opened, file, opening), f"a {kind}")

    def _window(self, name: str, file: SourceFile) -> Window:
        """Width and level that a file's name says, or else those of the preset."""
        window = window_of(file.path, self._options.window_names)
        if window is None and name not in PRESETS:
            message = "does not say its window: expected a name like lung_w1500_l-600_sparse.npz"
            raise file.problem(message, "rename it", "window")
        return PRESETS[name] if window is None else window[1]

    def _check_shapes(self) -> None:
        sizes = [int(size) for size, _ in self._files("image")]
        several = len([size for size in sizes if size]) > 1
        cure = "choose the other --resolution" if several else "make it again from this volume"
        extent = self._volume.extent
        for voxels in self._volume.voxels:
            if voxels.shape != extent:
                message = f"has shape {voxels.shape}, its volume {extent}"
                self._collected.problems.append(Problem(voxels.file.name, message, cure, "shape"))

    def _add_points(self, name: str, file: SourceFile) -> None:
        with self._open(file) as (opening, opened):
            points = points_in(opened, file, opening)
        _check_name("window", name, file)
        is_window = points.members == SPARSE_MEMBERS
        if is_window:
            self._volume.named.setdefault(name, self._window(name, file))
        found = self._volume.sparse if is_window else self._volume.sdf
        if name in found:
            message = f"is a second file for {name!r}"
            raise file.problem(message, "keep one of them", "window")
        found[name] = points

    def _read_info(self, file: SourceFile) -> None:
        order = self._options.info_order
        text, stated = read_info(file.path, file.name)
        unordered = tuple(stated) if order is None else ()
        self._volume = replace(self._volume, info=text, unordered=unordered)
        if order is None:
            return
        step = -1 if order == "xyz" else 1
        self._state({name: numbers[::step] for name, numbers in stated.items()}, INFO)

    def _read_geometry(self, file: SourceFile) -> None:
        _, stated = read_info(file.path, file.name)
        self._state(stated, GEOMETRY)
        unordered = tuple(name for name in self._volume.unordered if name not in stated)
        self._volume = replace(self._volume, unordered=unordered)

    def _read_metadata(self, file: SourceFile) -> None:
        row = read_row(file.path, self._volume.path.name, file.name)
        self._volume = replace(self._volume, metadata=row)

    def _state(self, stated: Geometry, by: str) -> None:
        self._volume.geometry.update(stated)
        self._volume.stated_by.update(dict.fromkeys(stated, by))


def scan_volume(group: Group, open: Open, options: CtOptions) -> ScannedVolume:
    """Read every header of one volume, whose files are named as `unistore.converters.ct.group` says."""
    return _Scanning(group, open, options).run()


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


def _check_name(kind: str, name: str, file: SourceFile) -> None:
    reason = name_problem(f"{kind}s/{name}")
    if reason is not None:
        message = f"cannot name a {kind}: {reason}"
        raise file.problem(message, "rename it", "name")


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
