"""One frame's row: spikes, voxels counted from them or taken over, and images, into padded rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.protocol import Source
from unistore.converters.spike.frames import Frame, file_name
from unistore.converters.spike.images import decode, read_image
from unistore.converters.spike.reading import load_array, read_array, read_dat
from unistore.converters.spike.scan import ScannedFrame
from unistore.converters.spike.streams import Extent
from unistore.schemas.spike.bits import row_bytes, voxelize
from unistore.schemas.spike.fields import IMAGES

__all__ = ["frame_detail", "read_file_bytes", "read_frame", "read_spikes"]


def frame_detail(
    scanned: ScannedFrame,
    roles: tuple[str, ...],
    extent: Extent | None,
    layout: str,
    upside_down: bool,
) -> dict[str, Any]:
    """What has to be known of a frame to read it again; plain JSON values."""
    place = scanned.place
    detail: dict[str, Any] = {"sequence": place.sequence, "roles": list(roles)}
    if place.sequence != place.recording:
        detail["recording"] = place.recording
    if extent is not None:
        detail["spike"] = {
            "layout": layout if scanned.stream is not None else "array",
            "key": scanned.key,
            "extent": [extent.length, extent.height, extent.width],
        }
    if scanned.voxel is not None:
        voxel = scanned.voxel
        detail["voxel"] = {
            "key": voxel.key,
            "bins": voxel.bins,
            "extent": [voxel.height, voxel.width],
            "upside_down": upside_down,
        }
    if scanned.images:
        detail["images"] = {image: [form.height, form.width] for image, form in scanned.images.items()}
    return detail


def read_frame(source: Source, counted: Sequence[int], flip: bool, out: Mapping[str, NDArray[Any]]) -> None:
    """Fill the one row of ``frames`` that a source has.

    Parameters
    ----------
    source
        Of `SpikeConverter.gather`.
    counted
        Bins of the voxel sets that are counted from spikes; another one is taken from its file.
    flip
        Whether headerless streams hold their bottom row first.
    out
        Columns of ``frames``, each (1, …), filled with zeros.
    """
    frame, detail = _frame_of(source), source.detail
    if "spike" in out:
        length, height, width = detail["spike"]["extent"]
        packed = out["spike"][0, :length, :height, : row_bytes(width)]
        read_spikes(frame, detail["spike"]["layout"], detail["spike"]["key"], width, flip, packed)
        for bins in counted:
            voxelize(packed, width, bins, out=out[f"voxel/{bins}"][0, :, :height, :width])
    existing = detail.get("voxel")
    if existing is not None and existing["bins"] not in counted:
        _read_existing(frame, existing, out[f"voxel/{existing['bins']}"][0])
    for image in IMAGES:
        if image in out:
            height, width = detail["images"][image]
            name = file_name(frame, image)
            decode(read_image(frame.files[image], name), name, out[image][0, :height, :width])


def _frame_of(source: Source) -> Frame:
    return Frame(source.name, dict(zip(source.detail["roles"], source.files, strict=True)))


def read_spikes(frame: Frame, layout: str, key: str, width: int, flip: bool, out: NDArray[np.uint8]) -> None:
    """Fill packed spikes (T, H, ⌈W/8⌉), row 0 = top, from a stream or (layout ``"array"``) an array."""
    name = file_name(frame, "spike")
    if layout == "array":
        read_array(frame.files["spike"], name, key, out)
    else:
        read_dat(frame.files["spike"], name, layout, width, flip, out)


def _read_existing(frame: Frame, form: Mapping[str, Any], out: NDArray[Any]) -> None:
    height, width = form["extent"]
    values = load_array(frame.files["voxel"], file_name(frame, "voxel"), form["key"])
    out[:, :height, :width] = values[:, ::-1] if form["upside_down"] else values


def read_file_bytes(source: Source, image: str, lo: int, hi: int, out: NDArray[np.uint8]) -> None:
    """Bytes ``lo:hi`` of an image file, once the whole file has proved sound."""
    frame = _frame_of(source)
    data = read_image(frame.files[image], file_name(frame, image))
    out[...] = np.frombuffer(data, np.uint8)[lo:hi]
