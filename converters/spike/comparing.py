"""Whether frames agree: voxel grids with their spikes, and with each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unistore.converters.spike.frames import file_name
from unistore.converters.spike.scan import ScannedFrame
from unistore.converters.spike.source import Extent
from unistore.errors import Problem

__all__ = ["compare"]


def compare(frames: Sequence[ScannedFrame], extents: Mapping[str, Extent]) -> list[Problem]:
    """Voxel grids of other pixels than their spikes, and of different bins.

    Parameters
    ----------
    frames
        All frames.
    extents
        Extent of each frame's spikes by its name, where known.
    """
    problems: list[Problem] = []
    by_bins: dict[int, list[str]] = {}
    for each in frames:
        extent, voxel = extents.get(each.frame.name), each.voxel
        if voxel is None:
            continue
        place = file_name(each.frame, "voxel")
        by_bins.setdefault(voxel.bins, []).append(place)
        if extent and (voxel.height, voxel.width) != (extent.height, extent.width):
            message = (
                f"is {voxel.height} x {voxel.width}, but its spikes are {extent.height} x {extent.width}"
            )
            cure = f"count them from the spikes: --voxel-dir none --voxel-bins {voxel.bins}"
            problems.append(Problem(place, message, cure, "shape", each.frame.name))
    if len(by_bins) > 1:
        listed = "; ".join(
            f"{bins} in {names[0]} and {len(names) - 1} more" for bins, names in by_bins.items()
        )
        message = f"have different numbers of bins: {listed}"
        problems.append(
            Problem(
                "existing voxels",
                message,
                "count them from the spikes: --voxel-dir none --voxel-bins 5",
                "shape",
            )
        )
    return problems
