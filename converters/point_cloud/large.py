"""The voxel grid of a segment too large for memory: the same voxels, by ranges of cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.point_cloud.order import Read
from unistore.converters.point_cloud.scratch import BLOCK, Buckets, Scratch, cut, grouped, position
from unistore.converters.point_cloud.voxels import cells_of, unique_tuples

__all__ = ["LargeGrid"]

_BINS = 1 << 12

Cells = Callable[[int, int, int], NDArray[Any]]
"""``cells(lo, hi, axis)``: cells of points on one axis, (hi - lo,) of integers."""


class LargeGrid:
    """Voxels in lexicographic order, a range of cells after the other, then the voxel of each point.

    What is held is a block of points. A range has no more points than that: x is cut into ranges, one that
    has more is cut finer, at last by y and by z; only one voxel is never cut.

    Parameters
    ----------
    read
        Reads rows of the segment's coordinates, (n, 3).
    points
        How many there are.
    bounds
        (2, 3) minimum and maximum.
    size
        Edge of a voxel.
    scratch
        Where cells are kept while they are sorted.
    """

    def __init__(
        self, read: Read, points: int, bounds: NDArray[np.float64], size: float, scratch: Scratch
    ) -> None:
        self._read, self._points, self._bounds, self._size = read, points, bounds, size
        self._scratch = scratch
        self._last: tuple[int, int, NDArray[Any]] | None = None
        sizes = np.diff([*range(0, points, BLOCK), points])
        self._voxels = Buckets(scratch, sizes, {"at": ("<u4", ()), "voxel": ("<i4", ())})

    def voxels(self) -> Iterator[tuple[NDArray[np.int32], NDArray[np.uint32]]]:
        """Cells (V, 3) and points in each (V,), in order."""
        found = 0
        last = np.floor((self._bounds[1] - self._bounds[0]) / self._size).astype(np.int64)
        extent = np.stack([np.zeros(3, np.int64), last])
        for cells, at, lo, hi in self._ranges(self._cells, np.arange, 0, self._points, extent):
            if hi - lo > BLOCK:  # of one voxel
                coords = np.array([[cells(lo, lo + 1, axis)[0] for axis in range(3)]], np.int32)
                counts = np.array([hi - lo])
                for first in range(lo, hi, BLOCK):
                    each = at(first, min(first + BLOCK, hi))
                    self._put(each, np.full(len(each), found, np.int32))
            else:
                axes = [cells(lo, hi, axis).astype(np.int64) for axis in range(3)]
                first_of, voxel, counts = unique_tuples(axes)
                coords = np.stack([axis[first_of] for axis in axes], axis=1).astype(np.int32)
                self._put(at(lo, hi), (voxel + found).astype(np.int32))
            found += len(coords)
            yield coords, counts.astype(np.uint32)

    def point_voxels(self) -> Iterator[NDArray[np.int32]]:
        """Voxel of each point, in the order of the points, a block after the other; after `voxels`."""
        for lo, hi in zip(self._voxels.bounds[:-1].tolist(), self._voxels.bounds[1:].tolist(), strict=True):
            voxel = np.empty(hi - lo, np.int32)
            voxel[self._voxels.columns["at"].read(lo, hi)] = self._voxels.columns["voxel"].read(lo, hi)
            yield voxel

    def _cells(self, lo: int, hi: int, axis: int) -> NDArray[np.int64]:
        if self._last is None or self._last[:2] != (lo, hi):
            self._last = lo, hi, self._read(lo, hi)
        return cells_of(self._last[2][:, axis], self._bounds[0, axis], self._size)

    def _put(self, at: NDArray[np.int64], voxel: NDArray[np.int32]) -> None:
        order, cuts = cut(at // BLOCK)
        inside = (at % BLOCK).astype(np.uint32)
        self._voxels.put("at", inside if order is None else inside[order], cuts)
        self._voxels.put("voxel", voxel if order is None else voxel[order], cuts)

    def _ranges(
        self, cells: Cells, at: Read, lo: int, hi: int, extent: NDArray[np.int64]
    ) -> Iterator[tuple[Cells, Read, int, int]]:
        """Cut points ``lo:hi`` into ranges of cells, in order; `extent` (2, 3): first and last cell."""
        uneven = np.flatnonzero(extent[1] - extent[0])
        if hi - lo <= BLOCK or not len(uneven):
            yield cells, at, lo, hi
            return
        axis = int(uneven[0])
        lowest, highest = extent[:, axis].tolist()
        width = (highest - lowest) // _BINS + 1
        steps = [(first, min(first + BLOCK, hi)) for first in range(lo, hi, BLOCK)]
        counts = np.zeros((highest - lowest) // width + 1, np.int64)
        for step in steps:
            counts += np.bincount((cells(*step, axis) - lowest) // width, minlength=len(counts))
        bucket_of = grouped(counts, BLOCK)
        sizes = np.bincount(bucket_of, counts).astype(np.int64)
        with self._scratch.another() as scratch:
            axes = {str(number): ("<i4", ()) for number in range(3)}
            points = Buckets(scratch, sizes, {**axes, "at": (position(self._points), ())})
            for step in steps:
                order, cuts = cut(bucket_of[(cells(*step, axis) - lowest) // width])
                for key in points.columns:
                    values = at(*step) if key == "at" else cells(*step, int(key)).astype(np.int32)
                    points.put(key, values if order is None else values[order], cuts)

            def read(first: int, last: int, number: int) -> NDArray[np.int32]:
                return points.columns[str(number)].read(first, last)

            for bucket in np.flatnonzero(sizes).tolist():
                first, last = points.bounds[bucket : bucket + 2].tolist()
                within = _extent(read, first, last)
                yield from self._ranges(read, points.columns["at"].read, first, last, within)


def _extent(cells: Cells, lo: int, hi: int) -> NDArray[np.int64]:
    """First and last cell of points ``lo:hi`` on each axis, (2, 3)."""
    ends = []
    for first in range(lo, hi, BLOCK):
        axes = [cells(first, min(first + BLOCK, hi), axis) for axis in range(3)]
        ends.append([[int(axis.min()) for axis in axes], [int(axis.max()) for axis in axes]])
    return np.stack([np.min(ends, axis=0)[0], np.max(ends, axis=0)[1]]).astype(np.int64)
