"""What the files of every frame are, from headers and sizes, and whether spikes, voxels and images agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from unistore.converters.common.columns import storable
from unistore.converters.common.exclusion import Collected, about
from unistore.converters.spike.bytes import Stream, open_stream
from unistore.converters.spike.frames import Frame, file_name
from unistore.converters.spike.images import ImageForm, image_form
from unistore.converters.spike.reading import array_form, check_spikes
from unistore.converters.spike.streams import Extent
from unistore.errors import Problem

__all__ = ["Looked", "compare", "look"]

_THREADS = 8
_SPIKE_KEYS = ("spk",)
_VOXEL_KEYS = ("voxel", "voxels", "spike_vox", "vox", "arr_0")


@dataclass(frozen=True, slots=True)
class VoxelForm:
    """An existing voxel grid: its name in a ``.npz`` (else ``""``), bins, pixels, dtype."""

    key: str
    bins: int
    height: int
    width: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Looked:
    """One frame: a stream of still unknown extent, or an array of spikes, and what stands beside it."""

    frame: Frame
    recording: int
    stream: Stream | None = None
    key: str = ""
    extent: Extent | None = None
    voxel: VoxelForm | None = None
    images: Mapping[str, ImageForm] = field(default_factory=dict)


def look(
    frames: Sequence[tuple[int, Frame]], roles: Sequence[str], *, convert_images: bool
) -> tuple[list[Looked], list[Problem]]:
    """Look at the files of all frames, several at once.

    Parameters
    ----------
    frames
        Number of the recording, and the frame.
    roles
        What to look at; other files of a frame are left alone.
    convert_images
        Accept images that are not RGB of 8 bits.
    """

    def one(numbered: tuple[int, Frame]) -> tuple[Looked, list[Problem]]:
        return _look_at(*numbered, roles, convert_images=convert_images)

    with ThreadPoolExecutor(_THREADS) as pool:
        results = list(pool.map(one, frames))
    return [looked for looked, _ in results], [problem for _, problems in results for problem in problems]


def _look_at(
    recording: int, frame: Frame, roles: Sequence[str], *, convert_images: bool
) -> tuple[Looked, list[Problem]]:
    stream, key, extent, voxel = None, "", None, None
    images: dict[str, ImageForm] = {}
    problems: list[Problem] = []
    collected = Collected(problems)
    for role in [role for role in roles if role in frame.files]:
        path = frame.files[role]
        name = file_name(frame, role)
        with collected.attempt(name):
            if role in {"blur", "sharp"}:
                images[role] = image_form(path, name)
                problems += [] if convert_images else _colour_problems(images[role], name)
            elif role == "voxel":
                key_of, shape, dtype = array_form(path, name, _VOXEL_KEYS)
                voxel = VoxelForm(key_of, *shape, dtype.str)
                problems += _voxel_problems(dtype, name)
            elif path.suffix.lower() in {".npy", ".npz"}:
                key, shape, dtype = array_form(path, name, _SPIKE_KEYS)
                extent = Extent(*shape)
                problems += check_spikes(path, name, key, dtype)
            else:
                stream = open_stream(path, name)
    return Looked(frame, recording, stream, key, extent, voxel, images), about(frame.name, problems)


def _colour_problems(form: ImageForm, name: str) -> list[Problem]:
    if form.plain:
        return []
    what = form.colour if form.colour != "rgb" else f"rgb of {form.bits} bits"
    cure = "--convert-images repeats gray, drops alpha and cuts to 8 bits"
    return [Problem(name, f"is {what}, expected rgb of 8 bits", cure, "colour")]


def _voxel_problems(dtype: np.dtype[np.generic], name: str) -> list[Problem]:
    if storable(dtype) and dtype.kind != "b":
        return []
    return [Problem(name, f"has dtype {dtype}, expected integers or floats", "save numbers", "dtype")]


def compare(looked: Sequence[Looked], extents: Mapping[str, Extent]) -> list[Problem]:
    """Contradictions inside a frame, and voxel grids of different bins.

    Parameters
    ----------
    looked
        All frames.
    extents
        Extent of each frame's spikes by its name, where known.
    """
    problems: list[Problem] = []
    for each in looked:
        extent, voxel = extents.get(each.frame.name), each.voxel
        if voxel and extent and (voxel.height, voxel.width) != (extent.height, extent.width):
            message = (
                f"is {voxel.height} x {voxel.width}, but its spikes are {extent.height} x {extent.width}"
            )
            cure = "were they made from packed bytes read as pixels? remove them and use --voxel-bins"
            place = file_name(each.frame, "voxel")
            problems.append(Problem(place, message, cure, "shape", each.frame.name))
        sizes = {role: (form.height, form.width) for role, form in each.images.items()}
        if len(set(sizes.values())) > 1:
            (blur_height, blur_width), (height, width) = sizes["blur"], sizes["sharp"]
            message = f"is {height} x {width}, but its blur frame is {blur_height} x {blur_width}"
            place = file_name(each.frame, "sharp")
            problems.append(Problem(place, message, "resize one of them", "shape", each.frame.name))
    by_bins: dict[int, list[str]] = {}
    for each in looked:
        if each.voxel is not None:
            by_bins.setdefault(each.voxel.bins, []).append(file_name(each.frame, "voxel"))
    if len(by_bins) > 1:
        listed = "; ".join(
            f"{bins} in {names[0]} and {len(names) - 1} more" for bins, names in by_bins.items()
        )
        message = f"have different numbers of bins: {listed}"
        problems.append(Problem("existing voxels", message, "remove them and use --voxel-bins", "shape"))
    return problems
