"""What the files of one frame are, from headers and sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from unistore.converters.common.columns import storable
from unistore.converters.common.exclusion import Collected, about
from unistore.converters.parts import Scanned
from unistore.converters.spike.bytes import Stream, open_stream
from unistore.converters.spike.frames import IMAGE_ROLES, Frame, Place, file_name
from unistore.converters.spike.images import ImageForm, image_form
from unistore.converters.spike.reading import array_form, check_spikes
from unistore.converters.spike.streams import Extent
from unistore.errors import InputError, Problem

__all__ = ["ScannedFrame", "VoxelForm", "scan_frame"]

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


@dataclass(frozen=True, kw_only=True)
class ScannedFrame(Scanned):
    """One frame: a stream of still unknown extent, or an array of spikes, and what stands beside it.

    Where it has problems, some of its files may be missing here.
    """

    place: Place
    stream: Stream | None = None
    key: str = ""
    extent: Extent | None = None
    voxel: VoxelForm | None = None
    images: Mapping[str, ImageForm] = field(default_factory=dict)

    @property
    def frame(self) -> Frame:
        """Its name and files."""
        return self.place.frame


def scan_frame(place: Place, *, convert_images: bool) -> ScannedFrame:
    """Look at the files of one frame that are to be converted.

    Parameters
    ----------
    place
        The frame; files of other roles are left alone.
    convert_images
        Accept images that are not RGB of 8 bits.

    Raises
    ------
    InputError
        If none of its files can be read.
    """
    frame = place.frame
    stream, key, extent, voxel = None, "", None, None
    images: dict[str, ImageForm] = {}
    problems: list[Problem] = []
    collected = Collected(problems)
    for role in place.roles:
        path = frame.files[role]
        name = file_name(frame, role)
        with collected.attempt(name):
            if role in IMAGE_ROLES:
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
    problems += _size_problems(images, file_name(frame, "sharp")) if len(images) > 1 else []
    problems = about(frame.name, problems)
    if not (stream or extent or voxel or images):
        raise InputError(problems)
    return ScannedFrame(
        place=place, stream=stream, key=key, extent=extent, voxel=voxel, images=images, problems=problems
    )


def _size_problems(images: Mapping[str, ImageForm], name: str) -> list[Problem]:
    blur, sharp = images["blur"], images["sharp"]
    if (blur.height, blur.width) == (sharp.height, sharp.width):
        return []
    message = f"is {sharp.height} x {sharp.width}, but its blur frame is {blur.height} x {blur.width}"
    return [Problem(name, message, "resize one of them", "shape")]


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
