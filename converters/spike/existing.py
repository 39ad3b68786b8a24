"""Voxel grids that came with the spikes: which way up they are, judged by counting spikes again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.spike.frames import file_name
from unistore.converters.spike.reading import load_array
from unistore.converters.spike.scan import ScannedFrame
from unistore.converters.spike.streams import Extent
from unistore.errors import Problem
from unistore.schemas.spike.bits import voxelize

__all__ = ["existing_orientation"]

_JUDGED = 8
"""Recordings whose first frame is counted again."""


def existing_orientation(
    frames: Sequence[ScannedFrame],
    extents: Mapping[str, Extent],
    read_spikes: Callable[[ScannedFrame, NDArray[np.uint8]], None],
) -> tuple[bool, list[str], list[Problem]]:
    """Compare the first voxel grid of some recordings with its spikes.

    Parameters
    ----------
    frames
        All frames, with voxel grids.
    extents
        Extent of each frame's spikes by its name; empty where there are none.
    read_spikes
        Fills packed spikes (T, H, bytes) of a frame, row 0 = top.

    Returns
    -------
    upside_down, notes, problems
        Whether the grids hold their bottom row first.
    """
    firsts: dict[str, ScannedFrame] = {}
    for each in frames:
        if each.frame.name in extents:
            firsts.setdefault(each.place.sequence, each)
    seen: dict[str, str] = {}
    for each in list(firsts.values())[:_JUDGED]:
        extent = extents[each.frame.name]
        packed = np.zeros((extent.length, extent.height, -(-extent.width // 8)), np.uint8)
        read_spikes(each, packed)
        name = file_name(each.frame, "voxel")
        assert each.voxel is not None
        found = load_array(each.frame.files["voxel"], name, each.voxel.key)
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
