"""The voxel grid of a segment too large for memory: the same voxels, by ranges of x."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.point_cloud_order import Read
from unistore.converters.point_cloud_scratch import BLOCK, Buckets, Scratch, cut
from unistore.converters.point_cloud_voxels import cells_of, unique_tuples

__all__ = ["LargeGrid"]

_BINS = 1 << 12


class LargeGrid:
    """Voxels in lexicographic order, a range of x after the other, then the voxel of each point.

    What is held is a block of points, and the voxels of one range: of about a block of points, or of a
    4096th of the segment's width where that has more.

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
        self._points, self._scratch = points, scratch
        last = int(np.floor((bounds[1, 0] - bounds[0, 0]) / size))
        width = last // _BINS + 1
        counts = np.zeros(_BINS, np.int64)
        for lo in range(0, points, BLOCK):
            x = cells_of(read(lo, min(lo + BLOCK, points))[:, 0], bounds[0, 0], size)
            counts += np.bincount(x // width, minlength=_BINS)
        bucket_of = (np.cumsum(counts) - counts) // BLOCK  # a bin belongs where its first point does
        sizes = np.bincount(bucket_of, counts).astype(np.int64)
        self._cells = Buckets(scratch, sizes, {"cell": ("<i4", (3,)), "at": ("<i8", ())})
        for lo in range(0, points, BLOCK):
            xyz = read(lo, min(lo + BLOCK, points))
            axes = [cells_of(xyz[:, axis], bounds[0, axis], size) for axis in range(3)]
            order, cuts = cut(bucket_of[axes[0] // width])
            cells = np.stack(axes, axis=1).astype(np.int32)
            at = np.arange(lo, lo + len(xyz))
            self._cells.put("cell", cells if order is None else cells[order], cuts)
            self._cells.put("at", at if order is None else at[order], cuts)
        self._voxels = Buckets(
            scratch, np.diff([*range(0, points, BLOCK), points]), {"at": ("<u4", ()), "voxel": ("<i4", ())}
        )

    def voxels(self) -> Iterator[tuple[NDArray[np.int32], NDArray[np.uint32]]]:
        """Cells (V, 3) and points in each (V,), in order."""
        found = 0
        for bucket in range(len(self._cells.bounds) - 1):
            table = np.empty((0, 3), np.int32)
            counts = np.empty(0, np.int64)
            for lo, hi in self._cells.pieces(bucket, BLOCK):
                table, counts, _ = _joined(table, counts, self._cells.columns["cell"].read(lo, hi))
            for lo, hi in self._cells.pieces(bucket, BLOCK):
                _, _, voxel = _joined(table, counts, self._cells.columns["cell"].read(lo, hi))
                at = self._cells.columns["at"].read(lo, hi)
                order, cuts = cut(at // BLOCK)
                inside, voxel = (at % BLOCK).astype(np.uint32), (voxel + found).astype(np.int32)
                self._voxels.put("at", inside if order is None else inside[order], cuts)
                self._voxels.put("voxel", voxel if order is None else voxel[order], cuts)
            found += len(table)
            yield table, counts.astype(np.uint32)

    def point_voxels(self) -> Iterator[NDArray[np.int32]]:
        """Voxel of each point, in the order of the points, a block after the other; after `voxels`."""
        for lo, hi in zip(self._voxels.bounds[:-1].tolist(), self._voxels.bounds[1:].tolist(), strict=True):
            voxel = np.empty(hi - lo, np.int32)
            voxel[self._voxels.columns["at"].read(lo, hi)] = self._voxels.columns["voxel"].read(lo, hi)
            yield voxel


def _joined(
    table: NDArray[np.int32], counts: NDArray[np.int64], cells: NDArray[Any]
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """A table of voxels with further points: voxels, points in each, and the voxel of each further point."""
    joined = np.concatenate((table, cells))
    first, voxel, _ = unique_tuples([joined[:, axis].astype(np.int64) for axis in range(3)])
    weights = np.concatenate((counts, np.ones(len(cells), np.int64)))
    return joined[first], np.bincount(voxel, weights).astype(np.int64), voxel[len(table) :]
