"""Read the headers of the files of one CT volume: shapes, dtypes, whether they agree.

No voxel is read. All problems of all files are raised together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from unistore.converters.common.columns import storable
from unistore.converters.common.exclusion import ProblemCollector
from unistore.converters.common.faults import as_problem
from unistore.converters.ct.files import GEOMETRY, VolumeFiles, WindowFile, file_location
from unistore.converters.ct.layouts import open_voxels
from unistore.converters.ct.layouts.npz import SPARSE_MEMBERS, Points, read_points_header
from unistore.converters.ct.source import VoxelSource
from unistore.converters.ct.texts import read_info, read_row
from unistore.converters.scan import Part, Scanned
from unistore.errors import InputError, Problem
from unistore.schemas.ct.windows import PRESETS, Window
from unistore.schemas.tables import name_problem

_LONGEST = (1 << 31) - 1


@dataclass(frozen=True, kw_only=True)
class ScannedVolume(Scanned):
    """One volume as its headers describe it.

    Attributes
    ----------
    image
        The one of several that ``--resolution`` chooses.
    extent
        D, H, W; None if there are only points.
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
    info, metadata
        Text of ``info.json``, and its row of ``metadata.csv`` as JSON text; empty: it has none.
    """

    files: VolumeFiles
    image: VoxelSource | None
    extent: tuple[int, int, int] | None
    windows: Mapping[str, VoxelSource]
    sparse: Mapping[str, Points]
    sdf: Mapping[str, Points]
    masks: Mapping[str, VoxelSource]
    labels: Mapping[str, VoxelSource]
    named: Mapping[str, Window]
    geometry: Mapping[str, list[float]]
    stated_by: Mapping[str, str]
    unordered: tuple[str, ...]
    info: str
    metadata: str


def scan_volume(part: Part, resolution: int | None, info_order: str | None) -> ScannedVolume:
    """Read every header of one volume.

    Parameters
    ----------
    part
        Its name and, in ``detail``, its `VolumeFiles`.
    resolution
        Which ``ct_original_N.npy`` to take; None: the only one.
    info_order
        ``"zyx"`` or ``"xyz"``: order of the numbers of ``info.json``; None: unknown.
    """
    files: VolumeFiles = part.detail
    location = partial(file_location, volume=files.path, name=part.name)
    collected = ProblemCollector([replace(problem, file=part.name) for problem in files.problems])
    image: VoxelSource | None = None
    geometry: dict[str, list[float]] = {}
    stated_by: dict[str, str] = {}
    with collected.attempt(part.name):
        if files.images:
            path = _choose_image(files.images, resolution, part.name)
            image = _open_checked(path, "a volume", location(path))
            geometry = image.geometry()
            stated_by = dict.fromkeys(geometry, "the volume's file")
    windows = _open_all([(each.name, each.path) for each in files.windows], "window", location, collected)
    named = {item.name: item.window or PRESETS[item.name] for item in files.windows if item.name in windows}
    masks = _open_all(files.masks.items(), "mask", location, collected)
    labels = _open_all(files.labels.items(), "label", location, collected)
    dense = [*([image] if image else []), *windows.values(), *masks.values(), *labels.values()]
    several = len([size for size in files.images if size]) > 1
    cure = "choose the other --resolution" if several else "make it again from this volume"
    collected.problems += [
        Problem(each.location, f"has shape {each.shape}, its volume {dense[0].shape}", cure, "shape")
        for each in dense
        if each.shape != dense[0].shape
    ]
    sparse: dict[str, Points] = {}
    sdf: dict[str, Points] = {}
    for item in files.archives:
        with collected.attempt(where := location(item.path)):
            points = read_points_header(item.path, where)
            is_window = points.members == SPARSE_MEMBERS
            if (window := _window_of_points(item, where, is_window)) is not None:
                named.setdefault(item.name, window)
            target = sparse if is_window else sdf
            if item.name in target:
                message = f"is a second file for {item.name!r}"
                raise InputError(Problem(where, message, "keep one of them", "window"))
            target[item.name] = points
    info = ""
    unordered: tuple[str, ...] = ()
    if files.info is not None:
        with collected.attempt(where := location(files.info)):
            info, stated = read_info(files.info, where)
            if info_order is None:
                unordered, stated = tuple(stated), {}
            step = -1 if info_order == "xyz" else 1
            geometry |= {name: numbers[::step] for name, numbers in stated.items()}
            stated_by |= dict.fromkeys(stated, "info.json")
    if files.geometry is not None:
        with collected.attempt(where := location(files.geometry)):
            _, stated = read_info(files.geometry, where)
            geometry |= stated
            stated_by |= dict.fromkeys(stated, GEOMETRY)
            unordered = tuple(name for name in unordered if name not in stated)
    metadata = ""
    if files.metadata is not None:
        with collected.attempt(where := location(files.metadata)):
            metadata = read_row(files.metadata, files.path.name, where)
    collected.check()
    depth, height, width = dense[0].shape if dense else (0, 0, 0)
    return ScannedVolume(
        files=files,
        image=image,
        extent=(depth, height, width) if dense else None,
        windows=windows,
        sparse=sparse,
        sdf=sdf,
        masks=masks,
        labels=labels,
        named=named,
        geometry=geometry,
        stated_by=stated_by,
        unordered=unordered,
        info=info,
        metadata=metadata,
    )


def _open_all(
    files: Iterable[tuple[str, Path]],
    kind: str,
    location: Callable[[Path], str],
    collected: ProblemCollector,
) -> dict[str, VoxelSource]:
    """Windows, masks or labels, by name."""
    found: dict[str, VoxelSource] = {}
    for name, path in files:
        with collected.attempt(where := location(path)):
            if (bad := name_problem(f"{kind}s/{name}")) is not None:
                raise InputError(Problem(where, f"cannot name a {kind}: {bad}", "rename it", "name"))
            if name in found:
                message = f"is a second {kind} {name!r} of this volume, beside {found[name].location}"
                raise InputError(Problem(where, message, "keep one of them", kind))
            found[name] = _open_checked(path, f"a {kind}", where)
    return found


def _choose_image(images: Mapping[int, Path], resolution: int | None, where: str) -> Path:
    """The image of a case folder; several need a resolution."""
    sizes = sorted(images)
    if len(sizes) > 1 and resolution not in images:
        asked = f"--resolution {resolution} is not one of them" if resolution else "choose one"
        names = ", ".join(images[size].name for size in sizes)
        cure = " or ".join(f"--resolution {size}" for size in sizes if size)
        raise InputError(Problem(where, f"holds {names}: {asked}", cure, "resolution"))
    if resolution is not None and resolution not in images and 0 not in images:
        message = f"holds {images[sizes[0]].name}, not the resolution {resolution} that was asked for"
        cure = "leave --resolution out, or leave this case out"
        raise InputError(Problem(where, message, cure, "resolution"))
    return images[sizes[0]] if resolution is None else images.get(resolution, images[sizes[0]])


def _open_checked(path: Path, what: str, where: str) -> VoxelSource:
    """Open a file and check that its dtype and shape can be stored."""
    with as_problem(where):
        source = open_voxels(path, where)
    shape = source.shape
    message, cure, kind = "", "", "shape"
    if not storable(source.dtype):
        message = f"has dtype {source.dtype}; {what} is of bool, integers or floats of at most 8 bytes"
        cure, kind = "save it as numbers: array.astype(np.int16)", "dtype"
    elif len(shape) != 3:
        message = f"has {len(shape)} axes {shape}; {what} has three (depth, height, width)"
        cure = "save array[0]" if shape[:1] == (1,) else "save one array of three axes a file"
        if len(shape) == 2:
            cure = "stack the slices: np.save(path, np.stack(slices))"
    elif 0 in shape:
        message, cure = f"is empty: shape {shape}", "make it again, or leave it out"
    elif max(shape) > _LONGEST:
        message = f"has shape {shape}, longer than {_LONGEST} voxels on an axis"
    if message:
        raise InputError(Problem(where, message, cure, kind))
    return source


def _window_of_points(item: WindowFile, where: str, is_window: bool) -> Window | None:
    """Window of a file of points; None for a distance field."""
    if (unnamed := name_problem(f"windows/{item.name}")) is not None:
        raise InputError(Problem(where, f"cannot name a window: {unnamed}", "rename it", "name"))
    if not is_window:
        return None
    if item.window is None and item.name not in PRESETS:
        message = "does not say its window: expected a name like lung_w1500_l-600_sparse.npz"
        raise InputError(Problem(where, message, "rename it", "window"))
    return item.window or PRESETS[item.name]
