"""Deriving one point cloud file: points in storage order, exact coordinates, voxel grids, index facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.columns import missing_value
from unistore.converters.hdf5 import place
from unistore.converters.point_cloud_coordinates import bounds_of, finite_problem, is_quantisable, quantise
from unistore.converters.point_cloud_reading import Points, open_points
from unistore.converters.point_cloud_segments import Partition, blocks
from unistore.converters.point_cloud_voxels import largest_cell, voxelise
from unistore.converters.protocol import Emit, Facts, Source
from unistore.errors import InputError, Problem
from unistore.schemas.point_cloud import NO_SEGMENT, POINTS, voxel_group
from unistore.schemas.tables import Field

__all__ = ["Cut", "derive_points", "is_label"]

_BLOCK = 1 << 20
"""Points worked on at a time, where whole segments allow it."""

Cut = Callable[[Sequence[NDArray[Any]]], Partition]
"""Cuts a cloud without segments, given x, y and z."""


def is_label(key: str) -> bool:
    """Whether a column holds classes, judged by its name."""
    return key.lower() in ("classification", "label", "labels")


def derive_points(
    source: Source,
    columns: Mapping[str, Field],
    segment_columns: Mapping[str, Field],
    voxel_sizes: Sequence[float],
    cut: Cut,
    emit: Emit,
) -> Facts:
    """Read one file, emit its points and voxels, and return what the index needs of it.

    Parameters
    ----------
    source
        The file, with `to_json` of its layout.
    columns, segment_columns
        Columns of the points and of the segments that the store has; those the file lacks are filled.
    voxel_sizes
        Edges of the voxel grids.
    cut
        Makes segments where the file has none.
    emit
        As of `Converter.derive`.

    Returns
    -------
    Facts
        ``lengths`` (S,), ``numbers`` (S,), ``bounds`` (S, 2, 3), ``quantised`` (), for each grid
        ``voxels/<size>`` (S,) voxels a segment, ``segments/<column>`` (S, …), ``labelled/<column>`` ().

    Raises
    ------
    InputError
        Naming coordinates that are not finite, indices that are wrong, values that cannot be read.
    """
    with open_points(source) as points:
        axes = _finite_axes(points, source)
        partition = points.partition(len(axes[0])) or cut(axes)
        axes = [partition.take(axis) for axis in axes]
        bounds = bounds_of(axes, partition.offsets)
        _check_voxel_sizes(bounds, voxel_sizes, source.name)
        quantised = _emit_coordinates(axes, source.detail, emit)
        facts: dict[str, NDArray[Any]] = {
            "lengths": partition.lengths,
            "numbers": partition.numbers,
            "bounds": bounds,
            "quantised": np.array(quantised),
        }
        for size in voxel_sizes:
            facts[voxel_group(size)] = _emit_voxels(axes, partition, bounds[:, 0], size, emit)
        total = len(axes[0])
        del axes
        rows = np.arange(total, dtype=np.int64) if partition.order is None else partition.order
        emit(POINTS, "source_row", rows)
        for key, field in columns.items():
            values = _column(points, key, field, partition, source.detail)
            emit(POINTS, key, values)
            if is_label(key):
                facts[f"labelled/{key}"] = np.array(bool(values.any()))
        for key, field in segment_columns.items():
            facts[f"segments/{key}"] = _segment_column(points, key, field, partition, source.detail)
        return facts


def _finite_axes(points: Points, source: Source) -> list[NDArray[Any]]:
    axes = points.axes()
    paths = source.detail["xyz"]
    places = [place(source.name, path) for path in (paths if len(paths) == 3 else paths * 3)]
    found = [finite_problem(axis, where) for axis, where in zip(axes, places, strict=True)]
    problems = [problem for problem in found if problem is not None]
    if not len(axes[0]):
        problems = [Problem(place(source.name), "holds no points", "leave the file out", "empty")]
    if problems:
        raise InputError(problems)
    return axes


def _check_voxel_sizes(bounds: NDArray[np.float64], sizes: Sequence[float], name: str) -> None:
    for size in sizes:
        cells = largest_cell(bounds, size)
        if cells >= 1 << 31:
            message = f"a segment is {cells:.3g} voxels of {size:g} wide, more than int32 can count"
            raise InputError(Problem(place(name), message, "give a larger voxel size", "voxel"))


def _emit_coordinates(axes: Sequence[NDArray[Any]], detail: Mapping[str, Any], emit: Emit) -> bool:
    """Emit xyz, quantised if that keeps every bit; returns whether it was."""
    scale, offset = detail["scale"], detail["offset"]
    quantised = scale is not None and offset is not None and is_quantisable(axes, scale, offset)
    for lo in range(0, len(axes[0]), _BLOCK):
        block = [axis[lo : lo + _BLOCK] for axis in axes]
        if quantised:
            integers = [quantise(part, scale[axis], offset[axis]) for axis, part in enumerate(block)]
            block = [part for part in integers if part is not None]
        emit(POINTS, "xyz", np.stack(block, axis=1))
    return quantised


def _emit_voxels(
    axes: Sequence[NDArray[Any]], partition: Partition, origin: NDArray[np.float64], size: float, emit: Emit
) -> NDArray[np.int64]:
    """Emit one voxel grid; returns the voxels of each segment (S,)."""
    group = voxel_group(size)
    real = partition.lengths[partition.numbers != NO_SEGMENT]
    offsets = partition.offsets
    voxels = np.zeros(len(partition.lengths), np.int64)
    emit(group, "coords", np.empty((0, 3), np.int32))
    emit(group, "counts", np.empty(0, np.uint32))
    for first, last in blocks(real, _BLOCK):
        block = [axis[offsets[first] : offsets[last]] for axis in axes]
        grid = voxelise(block, real[first:last], origin[first:last], size)
        voxels[first:last] = grid.lengths
        emit(group, "coords", grid.coords)
        emit(group, "counts", grid.counts)
        emit(POINTS, f"{group}/point_voxel", grid.point_voxel)
    rest = int(offsets[-1] - offsets[len(real)])
    emit(POINTS, f"{group}/point_voxel", np.full(rest, -1, np.int32))
    return voxels


def _column(
    points: Points, key: str, field: Field, partition: Partition, detail: Mapping[str, Any]
) -> NDArray[Any]:
    if key in detail["columns"]:
        return partition.take(points.column(key))
    shape = (int(partition.lengths.sum()), *field.row_shape)
    return np.full(shape, missing_value(field.dtype), field.dtype)


def _segment_column(
    points: Points, key: str, field: Field, partition: Partition, detail: Mapping[str, Any]
) -> NDArray[Any]:
    if key in detail["segment_columns"]:
        return points.segment_column(key)
    shape = (len(partition.lengths), *field.row_shape)
    return np.full(shape, missing_value(field.dtype), field.dtype)
