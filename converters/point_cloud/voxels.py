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
from unistore.errors import InputError

_AXES = ("x", "y", "z")


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

    Raises
    ------
    InputError
        If a segment is 2^31 voxels wide or more.
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
        self._origin, self._size, self._work = bounds[:, 0], size, work
        self._points = int(points.sum())
        self._largest = np.floor((bounds[:, 1] - bounds[:, 0]).max(axis=0, initial=0) / size)
        if (most := self._largest.max()) >= 1 << 31:
            msg = f"voxel_size={size:g}: a segment is {most:.3g} voxels wide, more than int32 can count"
            raise InputError(msg)
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
        ends = {key: (0, int(last)) for key, last in zip(_AXES, self._largest, strict=True)}
        types = {**dict.fromkeys(_AXES, ("<i4", ())), "at": (index_dtype(self._points), ())}
        for points in key_ranges(Rows({**cells, "at": np.arange}, 0, self._points), ends, types, self._work):
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
        origin = self._origin[:, axis]
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
