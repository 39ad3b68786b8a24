"""Voxel grids that came with the spikes: which way up they are, judged by counting spikes again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.spike.frames import file_name
from unistore.converters.spike.scan import ScannedFrame
from unistore.converters.spike.source import FrameSource
from unistore.errors import Problem
from unistore.schemas.spike.bits import row_bytes, voxelize

__all__ = ["existing_orientation"]

_JUDGED = 8
"""Recordings whose first frame is counted again."""


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
