"""What the files of one CT volume hold, from their headers: shapes, dtypes, agreement. No voxel is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from unistore.converters.common.columns import storable
from unistore.converters.common.exclusion import Collected
from unistore.converters.ct.layouts import open_voxels
from unistore.converters.ct.layouts.cases import VolumeFiles, WindowFile
from unistore.converters.ct.layouts.info import read_info
from unistore.converters.ct.layouts.npz import SPARSE_MEMBERS, Points, read_points_header
from unistore.converters.ct.source import VoxelSource
from unistore.errors import InputError, Problem
from unistore.schemas.arrays import name_problem
from unistore.schemas.ct.windows import PRESETS, Window

__all__ = ["Volume", "look"]

_LONGEST = (1 << 31) - 1


@dataclass(slots=True)
class Volume:
    """One volume as its headers describe it.

    Attributes
    ----------
    files
        Its files.
    image
        The chosen image.
    extent
        D, H, W; None where only points are known.
    windows
        Dense windows by name.
    sparse
        Sparse windows by name; used where nothing else holds the window.
    sdf
        Distance fields by name.
    masks
        Masks by id.
    named
        Width and level that files state for each window name.
    geometry
        ``spacing``, ``origin``, ``direction`` as far as ``info.json`` or else the image's file has them.
    described
        What states each of them: ``"info.json"``, or ``"the volume's file"``.
    info
        Text of ``info.json``.
    """

    files: VolumeFiles
    image: VoxelSource | None = None
    extent: tuple[int, int, int] | None = None
    windows: dict[str, VoxelSource] = field(default_factory=dict)
    sparse: dict[str, Points] = field(default_factory=dict)
    sdf: dict[str, Points] = field(default_factory=dict)
    masks: dict[str, VoxelSource] = field(default_factory=dict)
    named: dict[str, Window] = field(default_factory=dict)
    geometry: dict[str, list[float]] = field(default_factory=dict)
    described: dict[str, str] = field(default_factory=dict)
    info: str = ""


def look(
    files: VolumeFiles, resolution: int | None, place: Callable[[Path], str]
) -> tuple[Volume, list[Problem]]:
    """Read every header of one volume.

    Parameters
    ----------
    resolution
        Which ``ct_original_N.npy`` to take; None: the only one.
    place
        How messages name a file.

    Returns
    -------
    Volume, list of Problem
        All problems of all its files; the volume is only usable if there are none.
    """
    volume = Volume(files)
    collected = Collected()
    with collected.attempt(place(files.path)):
        _image(volume, resolution, place)
    for item in files.windows:
        with collected.attempt(place(item.path)):
            if item.name in volume.windows:
                other = place(volume.windows[item.name].path)
                message = f"is a second window {item.name!r} of this volume, beside {other}"
                raise InputError(Problem(place(item.path), message, "keep one of them", "window"))
            volume.windows[item.name] = _dense(volume, item.path, "a window", place)
            volume.named.setdefault(item.name, item.window or PRESETS[item.name])
    for name, path in files.masks.items():
        with collected.attempt(place(path)):
            if (bad := name_problem(f"masks/{name}")) is not None:
                raise InputError(Problem(place(path), f"cannot name a mask: {bad}", "rename it", "name"))
            volume.masks[name] = _dense(volume, path, "a mask", place)
    for item in files.archives:
        with collected.attempt(place(item.path)):
            _archive(volume, item, place(item.path))
    if files.info is not None:
        with collected.attempt(place(files.info)):
            volume.info, stated = read_info(files.info, place(files.info))
            volume.geometry |= stated
            volume.described |= dict.fromkeys(stated, "info.json")
    return volume, collected.problems


def _image(volume: Volume, resolution: int | None, place: Callable[[Path], str]) -> None:
    images = volume.files.images
    if not images:
        return
    sizes = sorted(images)
    where = place(volume.files.path)
    if len(sizes) > 1 and resolution not in images:
        asked = f"--resolution {resolution} is none of them" if resolution else "choose one"
        names = ", ".join(images[size].name for size in sizes)
        cure = " or ".join(f"--resolution {size}" for size in sizes if size)
        raise InputError(Problem(where, f"holds {names}: {asked}", cure, "resolution"))
    if resolution is not None and resolution not in images and 0 not in images:
        message = f"holds {images[sizes[0]].name}, not the resolution {resolution} that was asked for"
        cure = "leave --resolution out, or leave this case out"
        raise InputError(Problem(where, message, cure, "resolution"))
    image = _opened(images[resolution] if resolution in images else images[sizes[0]], "a volume", place)
    volume.image = image
    volume.extent = _three(image.shape)
    volume.geometry = image.geometry()
    volume.described = dict.fromkeys(volume.geometry, "the volume's file")


def _dense(volume: Volume, path: Path, what: str, place: Callable[[Path], str]) -> VoxelSource:
    """A window or mask that fits the volume; the first one gives the extent where there is no image."""
    source = _opened(path, what, place)
    if volume.extent is None:
        volume.extent = _three(source.shape)
    if source.shape != volume.extent:
        others = [size for size in volume.files.images if size]
        cure = "choose the other --resolution" if len(others) > 1 else "make it again from this volume"
        message = f"has shape {source.shape}, its volume {volume.extent}"
        raise InputError(Problem(place(path), message, cure, "shape"))
    return source


def _opened(path: Path, what: str, place: Callable[[Path], str]) -> VoxelSource:
    """A file whose header says that it can be stored."""
    source = open_voxels(path, place(path))
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
        raise InputError(Problem(place(path), message, cure, kind))
    return source


def _archive(volume: Volume, item: WindowFile, where: str) -> None:
    """Points of a sparse window or a distance field; their members tell which."""
    points = read_points_header(item.path, where)
    if (unnamed := name_problem(f"windows/{item.name}")) is not None:
        raise InputError(Problem(where, f"cannot name a window: {unnamed}", "rename it", "name"))
    if points.members is SPARSE_MEMBERS:
        if item.window is None and item.name not in PRESETS:
            message = "does not say its window: expected a name like lung_w1500_l-600_sparse.npz"
            raise InputError(Problem(where, message, "rename it", "window"))
        volume.named.setdefault(item.name, item.window or PRESETS[item.name])
    target = volume.sparse if points.members is SPARSE_MEMBERS else volume.sdf
    if item.name in target:
        message = f"is a second file for {item.name!r}"
        raise InputError(Problem(where, message, "keep one of them", "window"))
    target[item.name] = points


def _three(shape: tuple[int, ...]) -> tuple[int, int, int]:
    depth, height, width = shape
    return depth, height, width
