"""Derive one point cloud file: points in storage order, exact coordinates, voxel grids, index facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import missing_value
from unistore.converters.point_cloud.coordinates import DecimalPlaces, bounds_of, quantise
from unistore.converters.point_cloud.layouts import format_named
from unistore.converters.point_cloud.names import is_label
from unistore.converters.point_cloud.order import blocks
from unistore.converters.point_cloud.sorting import reader
from unistore.converters.point_cloud.source import Layout, segment_values
from unistore.converters.point_cloud.stored import Segmenter, StoredPoints
from unistore.converters.point_cloud.voxels import VoxelGrid
from unistore.converters.point_cloud.workspace import STEP, Workspace
from unistore.converters.protocol import Emit, Facts, Source
from unistore.errors import InputError, Problem
from unistore.schemas.point_cloud.fields import NO_SEGMENT, POINTS, voxel_group
from unistore.schemas.tables import Field

_XYZ = "xyz"


def derive_points(
    source: Source,
    columns: Mapping[str, Field],
    segment_columns: Mapping[str, Field],
    voxel_sizes: Sequence[float],
    segmenter: Segmenter,
    emit: Emit,
    folder: Path | None,
) -> Facts:
    """Read one file, emit its points and voxels, and return what the index needs of it.

    Points are processed in steps. Coordinates are quantised if that is lossless.

    Parameters
    ----------
    source
        The file, with `to_json` of its layout.
    columns, segment_columns
        Columns of points and segments in the store; those that the file lacks are filled.
    folder
        For temporary columns of more than a step of points; None: all points are in memory.

    Returns
    -------
    Facts
        ``lengths`` (S,), ``numbers`` (S,), ``bounds`` (S, 2, 3), ``quantised`` (), ``places`` () as of
        `DecimalPlaces`, for each grid ``voxels/<size>`` (S,) voxels per segment, ``segments/<column>``
        (S, …), ``labelled/<column>`` ().

    Raises
    ------
    InputError
        Naming coordinates that are not finite, invalid indices, values that cannot be read.
    """
    opened = format_named(source.detail["layout"]).open_points(source)
    with opened as points, Workspace(folder) as work:
        if not points.rows:
            raise InputError(Problem(source.name, "holds no points", "leave the file out", "empty"))
        stored = StoredPoints(points, source, columns, segmenter, work)
        clouds = _Emitter(stored, source, voxel_sizes, emit, work)
        clouds.emit_all()
        facts = clouds.facts
        for lo, hi in stored.steps():
            emit(POINTS, "source_row", stored.source_rows(lo, hi))
        for key, field in columns.items():
            labelled = False
            for lo, hi in stored.steps():
                values = stored.column(key, field, lo, hi)
                labelled |= is_label(key) and bool(values.any())
                emit(POINTS, key, values)
            if is_label(key):
                facts[f"labelled/{key}"] = np.array(labelled)
        points.check()
        for key, field in segment_columns.items():
            if key in source.detail["segment_columns"]:
                values = segment_values(source.detail, key, points.segment_column)
            else:
                shape = (len(stored.partition.lengths), *field.row_shape)
                values = np.full(shape, missing_value(field.dtype), field.dtype)
            facts[f"segments/{key}"] = values
        return facts


class _Emitter:
    """Emits coordinates and voxels, some whole segments at a time, and collects facts."""

    def __init__(
        self, stored: StoredPoints, source: Source, sizes: Sequence[float], emit: Emit, work: Workspace
    ) -> None:
        self._stored, self._source, self._sizes = stored, source, sizes
        self._emit, self._work = emit, work
        self._scale, self._offset = source.detail["scale"], source.detail["offset"]
        self._quantised = self._scale is not None and self._offset is not None
        self._decimals = DecimalPlaces()
        partition = stored.partition
        self._bounds = np.zeros((len(partition.lengths), 2, 3))
        self._voxels = {size: np.zeros(len(partition.lengths), np.int64) for size in sizes}

    @property
    def facts(self) -> dict[str, NDArray[Any]]:
        """``lengths``, ``numbers``, ``bounds``, ``quantised``, ``places``, ``voxels/<size>``."""
        return {
            "lengths": self._stored.partition.lengths,
            "numbers": self._stored.partition.numbers,
            "bounds": self._bounds,
            "quantised": np.array(self._quantised),
            "places": np.array(self._decimals.places),
            **{voxel_group(size): voxels for size, voxels in self._voxels.items()},
        }

    def emit_all(self) -> None:
        """Emit coordinates and voxels of all points."""
        for size in self._sizes:
            self._emit(voxel_group(size), "coords", np.empty((0, 3), np.int32))
            self._emit(voxel_group(size), "counts", np.empty(0, np.uint32))
        _, lengths, numbers = self._stored.partition
        real = int(np.count_nonzero(numbers != NO_SEGMENT))
        for first, last in blocks(lengths[:real], self._work.step):
            self._emit_segments(first, last)
        if real < len(lengths):
            self._emit_segments(real, len(lengths), voxels=False)
        self._stored.check()

    def _emit_segments(self, first: int, last: int, *, voxels: bool = True) -> None:
        """Emit segments of at most a step of points together, or one segment."""
        offsets, step = self._stored.offsets[first : last + 1], self._work.step
        begin, end = int(offsets[0]), int(offsets[-1])
        sizes = self._sizes if voxels and end > begin else ()
        form = self._source.detail["xyz_dtype"], (3,)
        kept = self._work.column(form, end - begin) if sizes and end - begin > step else None
        for lo in range(begin, end, step):
            hi = min(lo + step, end)
            xyz = self._coordinates(lo, hi)
            if kept is not None:
                kept[lo - begin : hi - begin] = xyz
            for size in () if voxels else self._sizes:
                self._emit(POINTS, f"{voxel_group(size)}/point_voxel", np.full(hi - lo, -1, np.int32))
            if not self._stored.wrong:
                bounds = bounds_of(list(xyz.T), np.clip(offsets, lo, hi) - lo)
                if lo > begin:  # a segment of several steps
                    bounds[:, 0] = np.minimum(bounds[:, 0], self._bounds[first:last, 0])
                    bounds[:, 1] = np.maximum(bounds[:, 1], self._bounds[first:last, 1])
                self._bounds[first:last] = bounds
        for size in () if self._stored.wrong else sizes:
            read = reader(xyz if kept is None else kept)
            grid = VoxelGrid(read, np.diff(offsets), self._bounds[first:last], size, self._work)
            for coords, counts in grid.voxels():
                self._emit(voxel_group(size), "coords", coords)
                self._emit(voxel_group(size), "counts", counts)
            self._voxels[size][first:last] = grid.lengths
            for point_voxel in grid.point_voxels():
                self._emit(POINTS, f"{voxel_group(size)}/point_voxel", point_voxel)

    def _coordinates(self, lo: int, hi: int) -> NDArray[Any]:
        """Emit coordinates, and return them, (hi - lo, 3)."""
        xyz = self._stored.xyz(lo, hi)
        exact = quantise(xyz, self._scale, self._offset) if self._quantised else None
        self._quantised = exact is not None
        self._decimals.update(xyz)
        self._emit(POINTS, _XYZ, xyz if exact is None else exact)
        return xyz


_FIXED = 16 << 20
_POINT = 90
"""Coordinates, their cells or positions, order, a column."""
_VOXELS = 80
"""Points whose voxels are counted: cells, keys, order, inverse, voxels of another."""
_WINDOWS = 50
"""Points that are cut into windows: x, y, window, order, of up to two steps."""
_ORDER = 6
"""Rows in storage order: row, masks."""
_CELLS = 24
"""Points of a segment of more than a step: cells, positions, voxel."""


def derive_memory(layout: Layout, *, voxels: bool, windows: bool, parts: bool, in_core: bool) -> int:
    """Bytes that `derive_points` holds at its peak.

    Parameters
    ----------
    windows, parts
        Whether files without segments are divided into windows, and whether `max_points` halves these.
    in_core
        Whether all points are one block in memory; if not, the result is the same for larger files.
    """
    forms = [form for _, form in layout.columns.values()]
    widest = max((np.dtype(form.dtype).itemsize * prod(form.row_shape) for form in forms), default=0)
    axis = np.dtype(layout.xyz_dtype).itemsize
    in_windows = windows and layout.segmented is None
    step = _POINT + 3 * widest + (_VOXELS if voxels else 0) + (_WINDOWS if in_windows else 0)
    block = 3 * axis + _CELLS if voxels and layout.points > STEP else 0
    if in_windows:  # coordinates; row, window, x and y of each point, and of both halves of large windows
        row = 4 + 2 * axis
        block = 3 * axis + _ORDER + max(row + 8 + (2 * row if parts else 0), block, widest)
    elif layout.segmented == "indices":  # one column after the other
        block = _ORDER + max(3 * axis + block, widest)
    points = min(layout.points, STEP) * step + (layout.points * block if in_core else 0)
    return _FIXED + points + layout.memory
