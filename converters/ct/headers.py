"""What the files of one CT volume hold, from their headers: shapes, dtypes, agreement. No voxel is read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from unistore.converters.common.columns import storable
from unistore.converters.ct.layout import VolumeFiles, WindowFile
from unistore.converters.files.npy.archive import NpzMember, npz_members, open_member
from unistore.converters.files.npy.array import NpyHeader, read_header
from unistore.errors import InputError, Problem
from unistore.schemas.arrays import name_problem
from unistore.schemas.ct.windows import PRESETS, Window

__all__ = ["SDF_MEMBERS", "SPARSE_MEMBERS", "Points", "Volume", "look"]

SPARSE_MEMBERS = ("indices", "values")
SDF_MEMBERS = ("sparse_index", "sparse_sdf")
_INFO_LIMIT = 16 << 20
_LONGEST = (1 << 31) - 1
_GEOMETRY = {"spacing": 3, "origin": 3, "direction": 9}


@dataclass(frozen=True, slots=True)
class Points:
    """An ``.npz`` file of points: how many, dtype of their values, edge of their cube (0: unsaid)."""

    path: Path
    count: int
    dtype: str
    resolution: int


@dataclass(slots=True)
class Volume:
    """One volume as its headers describe it.

    Attributes
    ----------
    files
        Its files.
    image
        The chosen image and its header.
    extent
        D, H, W; None where only points are known.
    windows
        Dense ``.npy`` windows by name.
    sparse
        Sparse windows by name; used where nothing else holds the window.
    sdf
        Distance fields by name.
    masks
        Masks by id.
    named
        Width and level that files state for each window name.
    geometry
        ``spacing``, ``origin``, ``direction`` as far as ``info.json`` has them.
    info
        Text of ``info.json``.
    """

    files: VolumeFiles
    image: tuple[Path, NpyHeader] | None = None
    extent: tuple[int, int, int] | None = None
    windows: dict[str, Path] = field(default_factory=dict)
    sparse: dict[str, Points] = field(default_factory=dict)
    sdf: dict[str, Points] = field(default_factory=dict)
    masks: dict[str, Path] = field(default_factory=dict)
    named: dict[str, Window] = field(default_factory=dict)
    geometry: dict[str, list[float]] = field(default_factory=dict)
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
    problems: list[Problem] = []
    _image(volume, resolution, place, problems)
    for item in files.windows:
        if item.name in volume.windows:
            other = place(volume.windows[item.name])
            message = f"is a second window {item.name!r} of this volume, beside {other}"
            problems.append(Problem(place(item.path), message, "keep one of them", "window"))
        elif _dense(volume, item.path, "a window", place, problems):
            volume.windows[item.name] = item.path
            _name(volume, item)
    for name, path in files.masks.items():
        if (bad := name_problem(f"masks/{name}")) is not None:
            problems.append(Problem(place(path), f"cannot name a mask: {bad}", "rename it", "name"))
        elif _dense(volume, path, "a mask", place, problems):
            volume.masks[name] = path
    for item in files.archives:
        _archive(volume, item, place, problems)
    if files.info is not None:
        _info(volume, files.info, place, problems)
    return volume, problems


def _image(
    volume: Volume, resolution: int | None, place: Callable[[Path], str], problems: list[Problem]
) -> None:
    images = volume.files.images
    if not images:
        return
    sizes = sorted(images)
    where = place(volume.files.path)
    if len(sizes) > 1 and resolution not in images:
        asked = f"--resolution {resolution} is none of them" if resolution else "choose one"
        names = ", ".join(images[size].name for size in sizes)
        cure = " or ".join(f"--resolution {size}" for size in sizes if size)
        problems.append(Problem(where, f"holds {names}: {asked}", cure, "resolution"))
        return
    if resolution is not None and resolution not in images and 0 not in images:
        message = f"holds {images[sizes[0]].name}, not the resolution {resolution} that was asked for"
        problems.append(
            Problem(where, message, "leave --resolution out, or leave this case out", "resolution")
        )
        return
    path = images[resolution] if resolution in images else images[sizes[0]]
    header = _header(path, "a volume", place, problems)
    if header is None:
        return
    volume.image = (path, header)
    volume.extent = _three(header.shape)


def _dense(
    volume: Volume, path: Path, what: str, place: Callable[[Path], str], problems: list[Problem]
) -> bool:
    """Whether a file fits the volume as a mask; the first one gives the extent where there is no image."""
    header = _header(path, what, place, problems)
    if header is None:
        return False
    if volume.extent is None:
        volume.extent = _three(header.shape)
    if header.shape != volume.extent:
        others = [size for size in volume.files.images if size]
        cure = "choose the other --resolution" if len(others) > 1 else "make it again from this volume"
        message = f"has shape {header.shape}, its volume {volume.extent}"
        problems.append(Problem(place(path), message, cure, "shape"))
        return False
    return True


def _header(path: Path, what: str, place: Callable[[Path], str], problems: list[Problem]) -> NpyHeader | None:
    where = place(path)
    try:
        header = read_header(path, where)
    except InputError as error:
        problems += error.problems
        return None
    message, cure, kind = "", "", "shape"
    if not storable(header.dtype):
        message = f"has dtype {header.dtype}; {what} is of bool, integers or floats of at most 8 bytes"
        cure, kind = "save it as numbers: array.astype(np.int16)", "dtype"
    elif len(header.shape) != 3:
        message = f"has {len(header.shape)} axes {header.shape}; {what} has three (depth, height, width)"
        cure = "save array[0]" if header.shape[:1] == (1,) else "save one array of three axes a file"
        if len(header.shape) == 2:
            cure = "stack the slices: np.save(path, np.stack(slices))"
    elif 0 in header.shape:
        message, cure = f"is empty: shape {header.shape}", "make it again, or leave it out"
    elif max(header.shape) > _LONGEST:
        message = f"has shape {header.shape}, longer than {_LONGEST} voxels on an axis"
    if message:
        problems.append(Problem(where, message, cure, kind))
        return None
    return header


def _archive(volume: Volume, item: WindowFile, place: Callable[[Path], str], problems: list[Problem]) -> None:
    where = place(item.path)
    try:
        members = npz_members(item.path, where)
    except InputError as error:
        problems.extend(error.problems)
        return
    kinds = [names for names in (SPARSE_MEMBERS, SDF_MEMBERS) if all(name in members for name in names)]
    if len(kinds) != 1:
        wanted = " or ".join(" and ".join(names) for names in (SPARSE_MEMBERS, SDF_MEMBERS))
        message = f"holds {', '.join(members) or 'no arrays'}; expected {wanted}"
        problems.append(Problem(where, message, "", "layout"))
        return
    index, values = (members[name].header for name in kinds[0])
    bad = _bad_points(index, values, *kinds[0])
    if bad:
        problems.append(Problem(where, bad, "", "shape"))
        return
    if (unnamed := name_problem(f"windows/{item.name}")) is not None:
        problems.append(Problem(where, f"cannot name a window: {unnamed}", "rename it", "name"))
        return
    resolution = _resolution(item.path, members.get("resolution"), where)
    points = Points(item.path, index.shape[0], values.dtype.str, resolution)
    if kinds[0] is SDF_MEMBERS:
        target = volume.sdf
    elif item.window is None and item.name not in PRESETS:
        message = "does not say its window: expected a name like lung_w1500_l-600_sparse.npz"
        problems.append(Problem(where, message, "rename it", "window"))
        return
    else:
        target = volume.sparse
        _name(volume, item)
    if item.name in target:
        problems.append(Problem(where, f"is a second file for {item.name!r}", "keep one of them", "window"))
    target[item.name] = points


def _bad_points(index: NpyHeader, values: NpyHeader, first: str, second: str) -> str:
    if len(index.shape) != 2 or index.shape[1] != 3 or index.dtype.kind not in "iu":
        return f"{first} is {index.dtype} {index.shape}, expected integers (points, 3)"
    rows = index.shape[0]
    if values.shape not in ((rows,), (rows, 1)) or not storable(values.dtype):
        return f"{second} is {values.dtype} {values.shape}, expected numbers ({rows},) or ({rows}, 1)"
    return ""


def _resolution(path: Path, member: NpzMember | None, where: str) -> int:
    if member is None or member.header.count not in (1, 3) or member.header.dtype.kind not in "iu":
        return 0
    return int(np.max(open_member(path, member, where)))


def _info(volume: Volume, path: Path, place: Callable[[Path], str], problems: list[Problem]) -> None:
    try:
        with path.open("rb") as file:
            raw = file.read(_INFO_LIMIT + 1)
        if len(raw) > _INFO_LIMIT:
            message = f"is longer than {_INFO_LIMIT} bytes"
            problems.append(Problem(place(path), message, "it should describe one volume", "json"))
            return
        volume.info = raw.decode("utf-8")
        content = json.loads(volume.info)
    except (OSError, ValueError, RecursionError) as error:
        problems.append(Problem(place(path), f"is no JSON: {error}", "correct it or leave it out", "json"))
        return
    if isinstance(content, Mapping):
        volume.geometry = {
            name: numbers
            for name, count in _GEOMETRY.items()
            if (numbers := _numbers(content.get(name), count)) is not None
        }


def _numbers(value: Any, count: int) -> list[float] | None:
    """Flat list of `count` finite numbers, or None."""
    if isinstance(value, list) and all(isinstance(row, list) for row in value):
        value = [number for row in value for number in row]
    if not isinstance(value, list) or len(value) != count:
        return None
    if not all(isinstance(number, int | float) and not isinstance(number, bool) for number in value):
        return None
    numbers = [float(number) for number in value]
    return numbers if all(map(math.isfinite, numbers)) else None


def _name(volume: Volume, item: WindowFile) -> None:
    window = item.window or PRESETS[item.name]
    volume.named.setdefault(item.name, window)


def _three(shape: tuple[int, ...]) -> tuple[int, int, int]:
    depth, height, width = shape
    return depth, height, width
