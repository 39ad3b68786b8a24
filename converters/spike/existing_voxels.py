"""Voxel grids that exist as files: their orientation, and whether they fit the spikes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.spike.frames import file_name
from unistore.converters.spike.scan import ScannedFrame
from unistore.converters.spike.source import Extent, FrameSource
from unistore.errors import Problem
from unistore.schemas.spike.bits import row_bytes, voxelize

__all__ = ["compare_with_spikes", "detect_orientation"]

_CHECKED_RECORDINGS = 8
"""Recordings of which the first frame is compared."""


def detect_orientation(
    frames: Sequence[ScannedFrame],
    spikes: Mapping[str, FrameSource],
) -> tuple[bool, list[str], list[Problem]]:
    """Compare the first voxel grid of some recordings with voxels counted from its spikes.

    Parameters
    ----------
    frames
        All frames; each has a voxel grid.
    spikes
        Spikes by the frame's name; empty if there are none.

    Returns
    -------
    upside_down, notes, problems
        `upside_down` is true if row 0 of the grids is the bottom row.
    """
    firsts: dict[str, ScannedFrame] = {}
    for each in frames:
        if each.frame.name in spikes:
            firsts.setdefault(each.info.sequence, each)
    seen: dict[str, str] = {}
    for each in list(firsts.values())[:_CHECKED_RECORDINGS]:
        source = spikes[each.frame.name]
        extent = source.extent
        packed = np.zeros((extent.length, extent.height, row_bytes(extent.width)), np.uint8)
        source.read(packed)
        name = file_name(each.frame, "voxel")
        assert each.voxel is not None
        found = each.voxel.values()
        seen.setdefault(_compare_orientation(found, voxelize(packed, extent.width, each.voxel.bins)), name)
    seen.pop("either way", None)
    if set(seen) == {"top first", "bottom first"}:
        message = f"holds its bottom row first, but {seen['top first']} its top row"
        cure = "remove the existing voxels and use --voxel-bins"
        return False, [], [Problem(seen["bottom first"], message, cure, "orientation")]
    if set(seen) == {"bottom first"}:
        return True, ["existing voxels equal the spikes' upside down: flipped in the store"], []
    if set(seen) == {"top first"}:
        return False, ["existing voxels equal those counted from the spikes"], []
    if "other" in seen:
        note = f"existing voxels are kept as they are; {seen['other']} differs from sums of its spikes"
        return False, [note], []
    return False, ["existing voxels are kept as they are; row 0 is taken as the top"], []


def compare_with_spikes(frames: Sequence[ScannedFrame], extents: Mapping[str, Extent]) -> list[Problem]:
    """Problems of voxel grids of another resolution than their spikes, or with different numbers of bins.

    Parameters
    ----------
    frames
        All frames; those without voxels are skipped.
    extents
        Extents of the spikes, as far as known, by the frame's name.
    """
    problems: list[Problem] = []
    by_bins: dict[int, list[str]] = {}
    for each in frames:
        extent, voxel = extents.get(each.frame.name), each.voxel
        if voxel is None:
            continue
        name = file_name(each.frame, "voxel")
        by_bins.setdefault(voxel.bins, []).append(name)
        if extent and (voxel.height, voxel.width) != (extent.height, extent.width):
            message = (
                f"is {voxel.height} x {voxel.width}, but its spikes are {extent.height} x {extent.width}"
            )
            cure = "were they made from packed bytes read as pixels? remove them and use --voxel-bins"
            problems.append(Problem(name, message, cure, "shape", each.frame.name))
    if len(by_bins) > 1:
        listed = "; ".join(
            f"{bins} in {names[0]} and {len(names) - 1} more" for bins, names in by_bins.items()
        )
        message = f"have different numbers of bins: {listed}"
        problems.append(Problem("existing voxels", message, "remove them and use --voxel-bins", "shape"))
    return problems


def _compare_orientation(found: NDArray[Any], counted: NDArray[Any]) -> str:
    upright, flipped = np.array_equal(found, counted), np.array_equal(found[:, ::-1], counted)
    if upright and flipped:
        return "either way"
    return "top first" if upright else "bottom first" if flipped else "other"
