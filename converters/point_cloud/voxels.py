"""Voxel grids of segments: ``floor((xyz - origin) / size)`` in float64, unique, lexicographic."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from unistore.converters.point_cloud.sorting import (
    BucketOrder,
    Buckets,
    Read,
    Rows,
    index_dtype,
    key_ranges,
    unique_tuples,
)
from unistore.converters.point_cloud.workspace import Workspace

_AXES = ("x", "y", "z")


def largest_cell(bounds: NDArray[np.float64], size: float) -> float:
    """Largest cell index of any segment; above 2³¹ − 1 it cannot be stored.

    Parameters
    ----------
    bounds
        (S, 2, 3) minimum and maximum of each segment.
    """
    return float(np.floor((bounds[:, 1] - bounds[:, 0]).max(initial=0.0) / size))


class VoxelGrid:
    """Voxels of segments in lexicographic order, then the voxel of each point, a step of points at a time.

    Parameters
    ----------
    xyz
        Reads rows of the coordinates, (n, 3), segment by segment.
    points
        Points of each segment, (S,): one segment, or several with at most a step of points together.
    bounds
        (S, 2, 3) minimum and maximum of each segment.

    Attributes
    ----------
    lengths
        Voxels of each segment, (S,); complete after `voxels`.
    """

    def __init__(
        self,
        xyz: Read,
        points: NDArray[np.int64],
        bounds: NDArray[np.float64],
        size: float,
        work: Workspace,
    ) -> None:
        self._xyz = lru_cache(1)(xyz)  # read once for each axis
        self._bounds, self._size, self._work = bounds, size, work
        self._points = int(points.sum())
        self.lengths = np.zeros(len(points), np.int64)
        self._segment = np.repeat(np.arange(len(points)), points) if len(points) > 1 else None
        self._numbers: list[NDArray[np.int32]] | Buckets = []

    def voxels(self) -> Iterator[tuple[NDArray[np.int32], NDArray[np.uint32]]]:
        """Cells counted from the segment's origin, (V, 3), and the points in each, (V,), in parts."""
        step, found = self._work.step, 0
        if self._points > step:
            sizes = np.diff([*range(0, self._points, step), self._points])
            self._numbers = Buckets(self._work, sizes, {"inside": ("<u4", ()), "voxel": ("<i4", ())})
        cells = {key: partial(self._cells, axis) for axis, key in enumerate(_AXES)}
        everything = Rows({**cells, "at": np.arange}, 0, self._points)
        largest = np.floor((self._bounds[:, 1] - self._bounds[:, 0]).max(axis=0, initial=0) / self._size)
        ends = {key: (0, int(last)) for key, last in zip(_AXES, largest, strict=True)}
        types = {**dict.fromkeys(_AXES, ("<i4", ())), "at": (index_dtype(self._points), ())}
        for points in key_ranges(everything, ends, types, self._work):
            for part in points.steps(step):  # several steps only if all points are in one voxel
                axes = [part.read(key).astype(np.int64, copy=False) for key in _AXES]
                first, voxel, counts = unique_tuples(
                    axes if self._segment is None else [self._segment, *axes]
                )
                self._number(part, voxel + found, first)
            if len(points) > step:
                counts = np.array([len(points)])
            found += len(counts)
            yield np.stack([axis[first] for axis in axes], axis=1).astype(np.int32), counts.astype(np.uint32)
        if self._segment is None:
            self.lengths[:] = found

    def point_voxels(self) -> Iterator[NDArray[np.int32]]:
        """Voxel of each point, counted inside its segment, in their order; call `voxels` first."""
        for numbers in self._numbers:
            if isinstance(numbers, Rows):
                voxel = np.empty(len(numbers), np.int32)
                voxel[numbers.read("inside")] = numbers.read("voxel")
                yield voxel
            else:
                yield numbers

    def _cells(self, axis: int, lo: int, hi: int) -> NDArray[np.int64]:
        origin = self._bounds[:, 0, axis]
        if self._segment is not None:
            origin = origin.take(self._segment)
        values = np.asarray(self._xyz(lo, hi)[:, axis], np.float64)
        cells: NDArray[np.int64] = np.floor((values - origin) / self._size).astype(np.int64)
        return cells

    def _number(self, points: Rows, voxel: NDArray[np.int64], first: NDArray[np.int64]) -> None:
        """Keep the voxel of each point."""
        if isinstance(self._numbers, Buckets):
            at, step = points.read("at"), self._work.step
            self._numbers.put(BucketOrder(at // step), {"inside": at % step, "voxel": voxel})
            return
        if self._segment is not None:
            self.lengths += np.bincount(self._segment[first], minlength=len(self.lengths))
            voxel -= (np.cumsum(self.lengths) - self.lengths).take(self._segment)
        self._numbers.append(voxel.astype(np.int32))
