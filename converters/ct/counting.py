"""Counts of voxels inside windows and masks; every voxel of a volume is read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.ct.slabs import SLAB, same_order, slab_bytes, slabs
from unistore.converters.ct.source import State, Voxels
from unistore.schemas.ct.voxels import VoxelTest, inside, limit
from unistore.schemas.ct.windows import Window
from unistore.system.machine import usable_cores

THREADS = 4
"""Threads that read a volume, at most."""

FEW = 128
"""Different values that a label map has at most; most images in eight bits have more."""
# Voxels whose values are counted at a time: numpy makes eight bytes of each
_COUNTED = 1 << 16


class MaskComparison(NamedTuple):
    """A mask compared with a window: its ones, its voxels that are neither 0 nor 1, differing voxels."""

    ones: int = 0
    others: int = 0
    differing: int = 0


class VoxelCounts(NamedTuple):
    """Counts of an image.

    Attributes
    ----------
    counts
        Voxels inside each window in each plane, (D,), by name.
    nan
        Voxels that are not a number; they are in no window.
    masks
        Comparison of masks with the windows of the same names.
    labels
        Whether each of the values 0 to 255 occurs, (256,), if these are those of a mask or a label map: no
        others, and at most `FEW`. Else None.
    """

    counts: Mapping[str, NDArray[np.int64]]
    nan: int
    masks: Mapping[str, MaskComparison]
    labels: NDArray[np.bool_] | None = None


class Ones(NamedTuple):
    """What a mask holds: its ones in each plane, (D,), and how many voxels are neither 0 nor 1.

    Where it is `scaled`, of floats between 0 and 1, `counts` has the voxels above 0.
    """

    counts: NDArray[np.int64]
    others: int
    scaled: bool = False


def count_voxels(image: Voxels, tests: Mapping[str, VoxelTest], masks: Mapping[str, Voxels]) -> VoxelCounts:
    """Look at every voxel of an image, and at the same voxels of masks, once; `THREADS` at a time.

    Nothing is read where nothing can be found: no windows, and a dtype without NaN.

    Parameters
    ----------
    tests
        Windows to count, by name.
    masks
        Files that should hold 1 inside some of the windows and 0 elsewhere, of the image's shape.
    """
    if not tests and image.dtype.kind != "f":
        return VoxelCounts({}, 0, {name: MaskComparison() for name in masks})
    shares = min(max(1, int(usable_cores())), max_threads([image, *masks.values()]))
    with ThreadPoolExecutor(shares, "unistore-counting") as pool:
        parts = list(pool.map(lambda share: _count_share(image, tests, masks, share, shares), range(shares)))
    counts = {name: np.sum([part.counts[name] for part in parts], axis=0) for name in tests}
    sums = {name: np.sum([part.masks[name] for part in parts], axis=0) for name in masks}
    agreed = {name: MaskComparison(*sums_of_mask.tolist()) for name, sums_of_mask in sums.items()}
    labels: NDArray[np.bool_] | None = np.zeros(256, np.bool_)
    for part in parts:
        labels = _joined(labels, part.labels)
    return VoxelCounts(counts, sum(part.nan for part in parts), agreed, labels)


def max_threads(files: Sequence[Voxels]) -> int:
    """Threads that `count_voxels` may use: one if slabs are large, orders differ, or a file is one stream."""
    small = max(map(slab_bytes, files), default=0) <= 2 * SLAB
    is_stream = any(file.forward_only for file in files)
    return THREADS if small and same_order(files) and not is_stream else 1


def _count_share(
    image: Voxels, tests: Mapping[str, VoxelTest], masks: Mapping[str, Voxels], share: int, of: int
) -> VoxelCounts:
    counts = {name: np.zeros(image.shape[0], np.int64) for name in tests}
    agreed = {name: np.zeros(3, np.int64) for name in masks}
    labels: NDArray[np.bool_] | None = np.zeros(256, np.bool_)
    floats = image.dtype.kind == "f"
    nan = 0
    for box, (values, *masks_values) in slabs([image, *masks.values()], share=share, of=of):
        if labels is not None:
            labels = _joined(labels, _label_values(values))
        if floats:
            nan += int(np.count_nonzero(np.isnan(values)))
        values_by_mask = dict(zip(masks, masks_values, strict=True))
        for name, test in tests.items():
            inside_window = test(values)
            counts[name][box[0]] += _per_plane(inside_window)
            if name in values_by_mask:
                agreed[name] += _differences(inside_window, values_by_mask[name])
    for name, result in agreed.items():
        result[0] += counts[name].sum()
    compared = {name: MaskComparison(*compared_mask.tolist()) for name, compared_mask in agreed.items()}
    return VoxelCounts(counts, nan, compared, labels)


def _joined(one: NDArray[np.bool_] | None, two: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    """Return which values occur in either of two parts of an image, as `VoxelCounts.labels`."""
    if one is None or two is None:
        return None
    either = one | two
    return either if np.count_nonzero(either) <= FEW else None


def _label_values(values: NDArray[Any]) -> NDArray[np.bool_] | None:
    """Return which of the values 0 to 255 occur, (256,); None if there are others."""
    with np.errstate(invalid="ignore"):
        is_small = values.min() >= 0 and values.max() <= 255
    if not is_small:  # nor is NaN
        return None
    small = values.astype(np.uint8, copy=False)
    if values.dtype.kind == "f" and not np.array_equal(small, values):
        return None
    flat = small.ravel(order="K")
    occurring = np.zeros(256, np.bool_)
    for first in range(0, len(flat), _COUNTED):
        occurring |= np.bincount(flat[first : first + _COUNTED], minlength=256) > 0
    return occurring


def ones_of(mask: Voxels) -> Ones:
    """Look at every voxel of a mask once."""
    counts, above = np.zeros((2, mask.shape[0]), np.int64)
    neither = outside = 0
    for box, (values,) in slabs([mask]):
        counts[box[0]] += _per_plane(values == 1)
        neither += _others(values)
        if mask.dtype.kind == "f":
            above[box[0]] += _per_plane(values > 0)
            outside += values.size - int(np.count_nonzero((values >= 0) & (values <= 1)))
    scaled = mask.dtype.kind == "f" and neither > 0 and not outside
    return Ones(above if scaled else counts, neither, scaled)


def scaled_differences(image: Voxels, given: Voxels, window: Window) -> int:
    """Voxels of a file that are not those of an image, limited to a window and scaled to 0…1.

    They may differ by a few roundings of float32, or of the file's dtype if that is coarser; where the image
    is NaN, any value will do.
    """
    tolerance = scaled_tolerance(given.dtype)
    differing = 0
    for _, (values, scaled) in slabs([image, given]):
        expected = limit(values, window.low, window.high, scale=True)
        close = np.abs(expected - scaled) <= tolerance
        differing += int(np.count_nonzero(~(close | np.isnan(expected))))
    return differing


def scaled_tolerance(dtype: np.dtype[Any]) -> float:
    """How far a scaled value of a dtype may lie from its exact one."""
    return 4 * max(float(np.finfo(dtype).eps), float(np.finfo(np.float32).eps))


# Results are cached for the shards of the same volume; with `state` in the key, changed files are read again.


@lru_cache(maxsize=512)
def cached_counts(
    image: Voxels,
    masks: tuple[tuple[str, Voxels], ...],
    windows: tuple[tuple[str, Window], ...],
    state: State,  # noqa: ARG001
) -> VoxelCounts:
    """`count_voxels` of an image, kept; `state` is that of its file and those of the masks."""
    tests = {name: inside(window, image.dtype) for name, window in windows}
    return count_voxels(image, tests, dict(masks))


@lru_cache(maxsize=512)
def cached_ones(mask: Voxels, state: State) -> Ones:  # noqa: ARG001
    """`ones_of` a mask, kept."""
    return ones_of(mask)


def _differences(found: NDArray[np.bool_], given: NDArray[Any]) -> tuple[int, int, int]:
    """How many more ones a mask has than voxels were found, its voxels other than 0 and 1, and differing."""
    if np.array_equal(found.view(np.uint8), given.view(np.uint8) if given.itemsize == 1 else given):
        return 0, 0, 0
    ones = given == 1
    more = int(np.count_nonzero(ones)) - int(np.count_nonzero(found))
    return more, _others(given), int(np.count_nonzero(found != ones))


def _others(values: NDArray[Any]) -> int:
    """How many voxels are neither 0 nor 1."""
    if values.itemsize == 1 and int(values.view(np.uint8).max(initial=0)) <= 1:
        return 0
    return int(np.count_nonzero((values != 0) & (values != 1)))


def _per_plane(found: NDArray[np.bool_]) -> NDArray[np.int64]:
    if found.flags.c_contiguous:
        return np.array([np.count_nonzero(plane) for plane in found], np.int64)
    counts: NDArray[np.int64] = found.view(np.uint8).sum(axis=(1, 2), dtype=np.int64)
    return counts
