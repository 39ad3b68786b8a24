"""Voxel grids of the points of a store for ``unistore derive``, equal to those of a conversion."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from unistore.converters.point_cloud.derive import blocks_of
from unistore.converters.point_cloud.grids import Workspace, begin_voxels, emit_outside, voxelise
from unistore.converters.point_cloud.tables import typical_length
from unistore.plugin import Emit, Finalized, StoreView, Table, offsets_of, whole
from unistore.schemas.point_cloud.fields import (
    NO_SEGMENT,
    POINTS,
    SEGMENTS,
    quantum,
    voxel_fields,
    voxel_group,
    voxel_offsets_field,
)
from unistore.system.types import AnyArray


def voxels(
    store: StoreView,
    size: float,
    emit: Emit,
    folder: Path,
    progress: Any,
) -> Finalized:
    """Emit the voxels of all segments, and return tables and offsets.

    Parameters
    ----------
    size
        Edge of a voxel, in the unit of the coordinates.
    emit, folder, progress
        See `Family.derive_from`.
    """
    group = voxel_group(size)
    numbers = whole(store, f"{SEGMENTS}/number")
    offsets = whole(store, f"{SEGMENTS}/offsets")
    bounds = whole(store, f"{SEGMENTS}/bounds")
    source = whole(store, f"{SEGMENTS}/source")
    lengths = np.diff(offsets)
    xyz = store.array(f"{POINTS}/xyz")
    restoring = quantum(store)
    dtype = xyz.dtype.str if restoring is None else "<f8"
    work = Workspace(folder)
    counts = np.zeros(len(numbers), np.int64)
    real = numbers != NO_SEGMENT
    points_inside = int(lengths[real].sum())
    progress.begin("deriving", points_inside * 3 * np.dtype(dtype).itemsize)
    begin_voxels(size, emit)
    emit(POINTS, f"{group}/point_voxel", np.empty(0, np.int32))

    def read(number: int, begin: int, lo: int, hi: int) -> AnyArray:
        stored = xyz.read(begin + lo, begin + hi)
        return stored if restoring is None else restoring.restored(stored, number)

    # Segments of one source at a time: those of no sample stand behind the others
    starts = np.flatnonzero(np.diff(source)) + 1
    for run in np.split(np.arange(len(numbers)), starts):
        segments = run[real[run]]
        for first, last in blocks_of(lengths[segments], work.step):
            block = segments[first:last]
            points = int(lengths[block].sum())
            if points:
                own = partial(read, int(source[run[0]]), int(offsets[block[0]]))
                coordinates = work.fill(dtype, points, own, row_shape=(3,))
                counts[block] = voxelise(coordinates, lengths[block], bounds[block], size, work, emit)
                progress.advance(coordinates.nbytes)
        for outside in run[~real[run]]:
            emit_outside(int(lengths[outside]), size, work, emit)
    unit = store.root.fields[f"{POINTS}/xyz"].unit
    coords, point_counts, point_voxel = voxel_fields(
        size, typical_length(counts[real]), typical_length(lengths[real]), unit
    )
    return Finalized(
        arrays=[(voxel_offsets_field(size), offsets_of(counts))],
        spilled=(
            Table(name=group, fields=(coords, point_counts), spilled=True),
            Table(name=POINTS, fields=(point_voxel,), spilled=True),
        ),
        samples=store.sample_count,
        sample_source=np.empty(0, np.int64),
    )
