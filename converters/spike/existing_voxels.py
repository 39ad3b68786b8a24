"""Voxel grids that exist as files: their orientation, and whether they fit the spikes or were misread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from unistore.converters.spike.frames import file_name
from unistore.converters.spike.scan import ScannedFrame, first_frames
from unistore.converters.spike.source import LARGE, Extent, FrameSource
from unistore.errors import InputError, Problem
from unistore.schemas.spike.bits import bin_edges
from unistore.system.sizes import size

_CHECKED_RECORDINGS = 8
"""Recordings of which the first frame is compared."""
_SAME = 0.999
"""Least correlation of a grid with sums of bytes; scaled grids are recognised, too."""


def detect_orientation(frames: Sequence[ScannedFrame], spikes: Mapping[str, FrameSource]) -> tuple[bool, str]:
    """Whether row 0 of existing grids is the bottom row, and a note.

    The first grid of some sequences is compared with voxels counted from its spikes, given by the frame's
    name.

    Raises
    ------
    InputError
        If it is the bottom row of some grids, and the top row of others.
    """
    seen: dict[str, str] = {}
    for each in first_frames(each for each in frames if each.frame.name in spikes)[:_CHECKED_RECORDINGS]:
        source = spikes[each.frame.name]
        assert each.voxel is not None
        if source.memory > LARGE:
            message = f"takes {size(source.memory)} of memory to be compared with its voxels"
            cure = "save it uncompressed, or in C order"
            raise InputError(Problem(source.location, message, cure, "memory"))
        counted, found = source.counted(each.voxel.bins), each.voxel.values()
        upright, flipped = np.array_equal(found, counted), np.array_equal(found[:, ::-1], counted)
        if not (upright and flipped):
            way = "top" if upright else "bottom" if flipped else "other"
            seen.setdefault(way, file_name(each.frame, "voxel"))
    if set(seen) == {"top", "bottom"}:
        message = f"holds its bottom row first, but {seen['top']} its top row"
        cure = "remove the existing voxels and use --voxel-bins"
        raise InputError(Problem(seen["bottom"], message, cure, "orientation"))
    if "other" in seen:
        note = f"existing voxels are kept as they are; {seen['other']} differs from sums of its spikes"
    elif "bottom" in seen:
        note = "existing voxels equal the spikes' upside down: flipped in the store"
    elif seen:
        note = "existing voxels equal those counted from the spikes"
    else:
        note = "existing voxels are kept as they are; row 0 is taken as the top"
    return set(seen) == {"bottom"}, note


def compare_with_spikes(frames: Sequence[ScannedFrame], extents: Mapping[str, Extent]) -> list[Problem]:
    """Problems of voxel grids of another resolution than their spikes, or with different numbers of bins.

    `extents` are those of the spikes, as far as known, by the frame's name.
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
            its, theirs = f"{voxel.height} x {voxel.width}", f"{extent.height} x {extent.width}"
            cure = f"count them from the spikes: --voxel-dir none --voxel-bins {voxel.bins}"
            message = f"is {its}, but its spikes are {theirs}"
            problems.append(Problem(name, message, cure, "shape", each.frame.name))
    if len(by_bins) > 1:
        listed = "; ".join(
            f"{bins} in {names[0]} and {len(names) - 1} more" for bins, names in by_bins.items()
        )
        message = f"have different numbers of bins: {listed}"
        cure = "count them from the spikes: --voxel-dir none --voxel-bins 5"
        problems.append(Problem("existing voxels", message, cure, "shape"))
    return problems


def misread_note(frames: Sequence[ScannedFrame], extents: Mapping[str, Extent]) -> str | None:
    """A note if grids of other pixels than their spikes were counted from packed bytes taken for pixels.

    None if every grid has the pixels of its spikes (`extents`, by the frame's name), or one was made in
    another way.
    """
    differing = []
    for each in frames:
        voxel, extent = each.voxel, extents.get(each.frame.name)
        if voxel is None or extent is None or (voxel.height, voxel.width) == (extent.height, extent.width):
            continue
        if each.stream is None or each.stream.size % (voxel.height * voxel.width):
            return None
        differing.append(each)
    compared = first_frames(differing)[:_CHECKED_RECORDINGS]
    if not compared or not all(map(_is_sum_of_bytes, compared)):
        return None
    first, voxel = compared[0], compared[0].voxel
    assert voxel is not None
    name = file_name(first.frame, "voxel")
    grid, extent = f"{voxel.bins} x {voxel.height} x {voxel.width}", extents[first.frame.name]
    return (
        f"careful: existing voxels ({name}: {grid}) were counted from packed bytes "
        f"taken for pixels; sets of {voxel.bins} bins are counted from the spikes instead, "
        f"{extent.height} x {extent.width}"
    )


def _is_sum_of_bytes(frame: ScannedFrame) -> bool:
    """Whether a grid is a sum over bytes of its stream, either way up."""
    voxel, stream = frame.voxel, frame.stream
    assert voxel is not None
    assert stream is not None
    length = stream.size // (voxel.height * voxel.width)
    if length < voxel.bins:
        return False
    counted = np.zeros((voxel.bins, voxel.height, voxel.width))
    bins = np.repeat(np.arange(voxel.bins), np.diff(bin_edges(length, voxel.bins)))
    with stream.open() as read:
        for number in bins.tolist():
            counted[number] += read(voxel.height * voxel.width).reshape(voxel.height, voxel.width)
    found = voxel.values().astype(np.float64)
    if not found.std() or not counted.std():
        return not found.any() and not counted.any()
    return any(
        float(np.corrcoef(each.ravel(), counted.ravel())[0, 1]) >= _SAME for each in (found, found[:, ::-1])
    )
