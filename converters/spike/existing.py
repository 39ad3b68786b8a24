"""Voxel grids that came with the spikes, judged by counting again: which way up, or of packed bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.spike.frames import file_name
from unistore.converters.spike.scan import ScannedFrame
from unistore.converters.spike.source import Extent, FrameSource
from unistore.errors import Problem
from unistore.schemas.spike.bits import bin_edges, row_bytes, voxelize

__all__ = ["existing_orientation", "misread_note"]

_JUDGED = 8
"""Recordings whose first frame is counted again."""
_SAME = 0.999
"""Correlation from which on a grid is a sum of bytes: scaled ones are taken for it, too."""


def existing_orientation(
    frames: Sequence[ScannedFrame],
    spikes: Mapping[str, FrameSource],
) -> tuple[bool, list[str], list[Problem]]:
    """Compare the first voxel grid of some recordings with its spikes.

    Parameters
    ----------
    frames
        All frames, with voxel grids.
    spikes
        Each frame's by its name; empty where there are none.

    Returns
    -------
    upside_down, notes, problems
        Whether the grids hold their bottom row first.
    """
    firsts: dict[str, ScannedFrame] = {}
    for each in frames:
        if each.frame.name in spikes:
            firsts.setdefault(each.place.sequence, each)
    seen: dict[str, str] = {}
    for each in list(firsts.values())[:_JUDGED]:
        source = spikes[each.frame.name]
        extent = source.extent
        packed = np.zeros((extent.length, extent.height, row_bytes(extent.width)), np.uint8)
        source.read(packed)
        name = file_name(each.frame, "voxel")
        assert each.voxel is not None
        found = each.voxel.values()
        seen.setdefault(_judge(found, voxelize(packed, extent.width, each.voxel.bins)), name)
    seen.pop("either way", None)
    if set(seen) == {"top first", "bottom first"}:
        message = f"holds its bottom row first, but {seen['top first']} its top row"
        cure = "remove the existing voxels and use --voxel-bins"
        return False, [], [Problem(seen["bottom first"], message, cure, "orientation")]
    if set(seen) == {"bottom first"}:
        return True, ["existing voxels equal the spikes' upside down: turned over while converting"], []
    if set(seen) == {"top first"}:
        return False, ["existing voxels equal those counted from the spikes"], []
    if "other" in seen:
        note = f"existing voxels are kept as they are; {seen['other']} differs from sums of its spikes"
        return False, [note], []
    return False, ["existing voxels are kept as they are, their row 0 taken for the top"], []


def _judge(found: NDArray[Any], counted: NDArray[Any]) -> str:
    upright, turned = np.array_equal(found, counted), np.array_equal(found[:, ::-1], counted)
    if upright and turned:
        return "either way"
    return "top first" if upright else "bottom first" if turned else "other"


def misread_note(frames: Sequence[ScannedFrame], extents: Mapping[str, Extent]) -> str | None:
    """A remark where grids of other pixels than their spikes were counted from packed bytes taken for pixels.

    Parameters
    ----------
    frames
        All frames.
    extents
        Extent of each frame's spikes by its name, where known.

    Returns
    -------
    str or None
        None where no grid has other pixels, or one was made in another way.
    """
    firsts: dict[str, ScannedFrame] = {}
    for each in frames:
        voxel, extent = each.voxel, extents.get(each.frame.name)
        if voxel is None or extent is None or (voxel.height, voxel.width) == (extent.height, extent.width):
            continue
        if each.stream is None or each.stream.size % (voxel.height * voxel.width):
            return None
        firsts.setdefault(each.place.sequence, each)
    judged = list(firsts.values())[:_JUDGED]
    if not judged or not all(map(_is_of_bytes, judged)):
        return None
    first, voxel = judged[0], judged[0].voxel
    assert voxel is not None
    place = file_name(first.frame, "voxel")
    grid, extent = f"{voxel.bins} x {voxel.height} x {voxel.width}", extents[first.frame.name]
    return (
        f"careful: existing voxels ({place}: {grid}) were counted from packed bytes "
        f"taken for pixels; sets of {voxel.bins} bins are counted from the spikes instead, "
        f"{extent.height} x {extent.width}"
    )


def _is_of_bytes(frame: ScannedFrame) -> bool:
    """Whether a grid is a sum over bytes of its stream, either way up."""
    voxel, stream = frame.voxel, frame.stream
    assert voxel is not None
    assert stream is not None
    with stream.open() as read:
        pixels = read(stream.size).reshape(-1, voxel.height, voxel.width)
    if len(pixels) < voxel.bins:
        return False
    counted = np.add.reduceat(pixels, bin_edges(len(pixels), voxel.bins)[:-1], axis=0, dtype=np.float64)
    found = voxel.values().astype(np.float64)
    if not found.std() or not counted.std():
        return not found.any() and not counted.any()
    return any(
        float(np.corrcoef(each.ravel(), counted.ravel())[0, 1]) >= _SAME for each in (found, found[:, ::-1])
    )
