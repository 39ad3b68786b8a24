"""Voxel grids made from a store's own points, as a conversion with ``--voxel-size`` makes them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.point_cloud.derive import blocks_of
from unistore.converters.point_cloud.grids import voxelise
from unistore.converters.point_cloud.scratch import Workspace
from unistore.converters.point_cloud.tables import typical_length
from unistore.converters.protocol import Emit, Finalized
from unistore.schemas.indices import StoreView, whole
from unistore.schemas.point_cloud.fields import (
    NO_SEGMENT,
    POINTS,
    SEGMENTS,
    quantum,
    voxel_fields,
    voxel_group,
    voxel_offsets_field,
)
from unistore.schemas.tables import Table, offsets_of


def voxels(store: StoreView, size: float, emit: Emit, folder: Path) -> Finalized:
    """Emit the voxels of all segments, and return tables and offsets."""
    group = voxel_group(size)
    numbers = whole(store, f"{SEGMENTS}/number")
    lengths = np.diff(whole(store, f"{SEGMENTS}/offsets"))
    source = whole(store, f"{SEGMENTS}/source")
    grid = _VoxelGrid(store, size, emit, Workspace(folder))
    counts = np.zeros(len(numbers), np.int64)
    emit(group, "coords", np.empty((0, 3), np.int32))
    emit(group, "counts", np.empty(0, np.uint32))
    emit(POINTS, f"{group}/point_voxel", np.empty(0, np.int32))
    # Segments of one source at a time: those of no sample stand behind the others
    for run in np.split(np.arange(len(numbers)), np.flatnonzero(np.diff(source)) + 1):
        is_real = numbers[run] != NO_SEGMENT
        real = run[is_real]
        for first, last in blocks_of(lengths[real], grid.work.step):
            counts[real[first:last]] = grid.emit_segments(real[first:last], int(source[run[0]]))
        for outside in run[~is_real]:
            grid.emit_outside(int(lengths[outside]))
    unit = store.attributes["fields"][f"{POINTS}/xyz"].get("unit")
    real = numbers != NO_SEGMENT
    coords, points, point_voxel = voxel_fields(
        size, typical_length(counts[real]), typical_length(lengths[real]), unit
    )
    return Finalized(
        arrays=[(voxel_offsets_field(size), offsets_of(counts))],
        spilled=(
            Table(name=group, fields=(coords, points), spilled=True),
            Table(name=POINTS, fields=(point_voxel,), spilled=True),
        ),
        samples=store.sample_count,
        sample_source=np.empty(0, np.int64),
    )


class _VoxelGrid:
    def __init__(self, store: StoreView, size: float, emit: Emit, work: Workspace) -> None:
        self.work = work
        self._xyz = store.array(f"{POINTS}/xyz")
        self._quantum = quantum(store)
        self._offsets = whole(store, f"{SEGMENTS}/offsets")
        self._bounds = whole(store, f"{SEGMENTS}/bounds")
        self._size = size
        self._emit = emit

    def emit_segments(self, segments: NDArray[np.int64], source: int) -> NDArray[np.int64]:
        """Emit voxels of consecutive segments of one source, and return their numbers."""
        begin = int(self._offsets[segments[0]])
        end = int(self._offsets[segments[-1] + 1])
        if begin == end:
            return np.zeros(len(segments), np.int64)
        dtype = "<f8" if self._quantum is not None else self._xyz.dtype.str
        read = partial(self._read, source, begin)
        xyz = self.work.fill(dtype, end - begin, read, row_shape=(3,))
        lengths = np.diff(self._offsets[segments[0] : segments[-1] + 2])
        return voxelise(xyz, lengths, self._bounds[segments], self._size, self.work, self._emit_column)

    def emit_outside(self, points: int) -> None:
        """Emit that points of no segment are in no voxel."""
        for lo, hi in self.work.steps(0, points):
            self._emit_column("point_voxel", np.full(hi - lo, -1, np.int32))

    def _read(self, source: int, begin: int, lo: int, hi: int) -> NDArray[Any]:
        stored = self._xyz.read(begin + lo, begin + hi)
        return stored if self._quantum is None else self._quantum.restored(stored, source)

    def _emit_column(self, column: str, rows: NDArray[Any]) -> None:
        group = voxel_group(self._size)
        if column == "point_voxel":
            self._emit(POINTS, f"{group}/{column}", rows)
        else:
            self._emit(group, column, rows)
