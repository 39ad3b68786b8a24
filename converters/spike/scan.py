"""Recognising files of recordings, and scanning those of one frame: headers, sizes, dtypes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from unistore.converters.common.columns import storable
from unistore.converters.common.exclusion import ProblemCollector, with_source
from unistore.converters.formats.images import SUFFIXES, ImageHeader, read_header
from unistore.converters.scan import LeftOut, Scanned, Taken, Verdict
from unistore.converters.spike.frames import (
    IMAGE_ROLES,
    Frame,
    FrameInfo,
    file_name,
    has_role_suffix,
    suffixes_of,
)
from unistore.converters.spike.layouts import format_of, open_voxels
from unistore.converters.spike.source import FrameSource, StreamSource, VoxelGrid
from unistore.errors import InputError, Problem, printable


@dataclass(frozen=True, kw_only=True)
class ScannedFrame(Scanned):
    """Headers of the files of one frame; files with problems may be missing."""

    info: FrameInfo
    spikes: FrameSource | StreamSource | None = None
    voxel: VoxelGrid | None = None
    images: Mapping[str, ImageHeader] = field(default_factory=dict)

    @property
    def frame(self) -> Frame:
        """Its name and files."""
        return self.info.frame

    @property
    def stream(self) -> StreamSource | None:
        """Its spikes, if they are a stream without a header."""
        return self.spikes if isinstance(self.spikes, StreamSource) else None


def first_frames(frames: Iterable[ScannedFrame]) -> list[ScannedFrame]:
    """The first frame of every sequence."""
    firsts: dict[str, ScannedFrame] = {}
    for each in frames:
        firsts.setdefault(each.info.sequence, each)
    return list(firsts.values())


def scan_frame(info: FrameInfo, *, convert_images: bool) -> ScannedFrame:
    """Scan the files of one frame; `convert_images` accepts those that are not 8-bit RGB.

    Raises an `InputError` if none of its files can be read; other problems are in the result.
    """
    frame = info.frame
    spikes, voxel = None, None
    images: dict[str, ImageHeader] = {}
    problems: list[Problem] = []
    collected = ProblemCollector(problems)
    for role in info.roles:
        path = frame.files[role]
        name = file_name(frame, role)
        with collected.attempt(name):
            if role in IMAGE_ROLES:
                images[role] = read_header(path, name)
                problems += [] if convert_images else _colour_problems(images[role], name)
            elif role == "voxel":
                voxel = open_voxels(path, name)
                problems += _voxel_problems(voxel.dtype, name)
            else:
                spikes = format_of(path).open(path, name)
                problems += spikes.check() if isinstance(spikes, FrameSource) else []
    problems += _size_problems(images, file_name(frame, "sharp")) if len(images) > 1 else []
    problems = with_source(frame.name, problems)
    if not (spikes or voxel or images):
        raise InputError(problems)
    return ScannedFrame(info=info, spikes=spikes, voxel=voxel, images=images, problems=problems)


def _size_problems(images: Mapping[str, ImageHeader], name: str) -> list[Problem]:
    blur, sharp = images["blur"], images["sharp"]
    if (blur.height, blur.width) == (sharp.height, sharp.width):
        return []
    message = f"is {sharp.height} x {sharp.width}, but its blur frame is {blur.height} x {blur.width}"
    return [Problem(name, message, "resize one of them", "shape")]


def _colour_problems(form: ImageHeader, name: str) -> list[Problem]:
    if form.plain:
        return []
    what = form.colour if form.colour != "rgb" else f"rgb of {form.bits} bits"
    cure = "--convert-images repeats gray, drops alpha and cuts to 8 bits"
    return [Problem(name, f"is {what}, expected rgb of 8 bits", cure, "colour")]


def _voxel_problems(dtype: np.dtype[np.generic], name: str) -> list[Problem]:
    if storable(dtype) and dtype.kind != "b":
        return []
    return [Problem(name, f"has dtype {dtype}, expected integers or floats", "save numbers", "dtype")]


def recognise(path: Path, folders: Mapping[str, str]) -> Verdict:
    """Verdict on a file; `folders` has the folder name of each role. Raises `InputError` if it is damaged."""
    name = printable(path.name)
    is_image = path.name.lower().endswith(SUFFIXES)
    if not is_image and not has_role_suffix(path, "spike"):
        return LeftOut(f"is no {', '.join(suffixes_of('spike'))} file, and no image")
    parent = path.parent.name
    role = next((role for role in folders if folders[role] == parent), None)
    if is_image:
        return _look_at_image(path, name, role, folders)
    verdict = format_of(path).look(path, name)
    if role in ("spike", "voxel") and has_role_suffix(path, role):
        return Taken("sequences", f"lies in a {folders[role]}/ folder")
    return verdict


def _look_at_image(path: Path, name: str, role: str | None, folders: Mapping[str, str]) -> Verdict:
    """An image is taken if spikes or voxels lie in a folder beside its own."""
    if role not in IMAGE_ROLES:
        return LeftOut(f"lies in no {' or '.join(f'{folders[each]}/' for each in IMAGE_ROLES)} folder")
    spikes = [folders[each] for each in ("spike", "voxel")]
    beside = next((each for each in spikes if (path.parent.parent / each).is_dir()), None)
    if beside is None:
        return LeftOut(f"lies in {folders[role]}/ without {' or '.join(f'{e}/' for e in spikes)} beside it")
    read_header(path, name)
    return Taken("sequences", f"lies in {folders[role]}/ beside {beside}/")
