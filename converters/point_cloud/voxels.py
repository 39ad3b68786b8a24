"""Voxel grids of segments: ``floor((xyz - origin) / size)`` in float64, unique, lexicographic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Voxels", "cells_of", "largest_cell", "unique_tuples", "voxelise"]

_INT32 = np.iinfo(np.int32)


class Voxels(NamedTuple):
    """Voxel grid of some segments.

    Attributes
    ----------
    coords
        (V, 3) i4, cell of each voxel counted from its segment's origin; lexicographic in each segment.
    counts
        (V,) u4, points in each.
    lengths
        (S,) i8, voxels of each segment.
    point_voxel
        (N,) i4, voxel of each point, counted inside its segment.
    """

    coords: NDArray[np.int32]
    counts: NDArray[np.uint32]
    lengths: NDArray[np.int64]
    point_voxel: NDArray[np.int32]


def largest_cell(bounds: NDArray[np.float64], size: float) -> float:
    """Largest cell number of any segment; what is above 2³¹ − 1 cannot be stored.

    Parameters
    ----------
    bounds
        (S, 2, 3) minimum and maximum of each segment.
    size
        Edge of a voxel.
    """
    return float(np.floor((bounds[:, 1] - bounds[:, 0]).max(initial=0.0) / size))


def voxelise(
    axes: Sequence[NDArray[Any]], lengths: NDArray[np.int64], origin: NDArray[np.float64], size: float
) -> Voxels:
    """Voxel grid of segments whose points stand one segment after the other.

    Parameters
    ----------
    axes
        x, y, z (N,).
    lengths
        Points of each segment, (S,), adding up to N.
    origin
        (S, 3) minimum of each segment.
    size
        Edge of a voxel.
    """
    segment = np.repeat(np.arange(len(lengths)), lengths)
    cells = [cells_of(axis, origin[segment, number], size) for number, axis in enumerate(axes)]
    first, voxel, counts = unique_tuples([segment, *cells])
    voxels = np.bincount(segment[first], minlength=len(lengths)).astype(np.int64)
    start = np.cumsum(voxels) - voxels
    return Voxels(
        coords=np.stack([cell[first] for cell in cells], axis=1).astype(np.int32),
        counts=counts.astype(np.uint32),
        lengths=voxels,
        point_voxel=(voxel - start[segment]).astype(np.int32),
    )


def cells_of(axis: NDArray[Any], origin: NDArray[np.float64] | float, size: float) -> NDArray[np.int64]:
    """Cell of each coordinate of an axis."""
    return np.floor((np.asarray(axis, np.float64) - origin) / size).astype(np.int64)


def unique_tuples(
    keys: Sequence[NDArray[np.int64]],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Distinct tuples of non-negative integers in lexicographic order, the first key most significant.

    Returns
    -------
    first, inverse, counts
        A row that holds each distinct tuple; the tuple of each row; rows of each tuple.
    """
    extents = [int(key.max(initial=0)) + 1 for key in keys]
    packed = _pack(keys, extents)
    order, in_order = _sorted(keys, packed)
    begins = np.ones(len(order), bool)
    if in_order is None:
        begins[1:] = np.any([key[order[1:]] != key[order[:-1]] for key in keys], axis=0)
    else:
        begins[1:] = in_order[1:] != in_order[:-1]
    starts = np.flatnonzero(begins)
    inverse = np.empty(len(order), np.int64)
    inverse[order] = np.cumsum(begins) - 1
    return order[starts], inverse, np.diff(starts, append=len(order))


def _sorted(
    keys: Sequence[NDArray[np.int64]], packed: NDArray[np.int64] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Rows in the order of their keys, and the packed keys in that order."""
    if packed is None:
        return np.lexsort(keys[::-1]), None
    bits = len(packed).bit_length()
    if int(packed.max(initial=0)).bit_length() + bits > 63:
        order = np.argsort(packed)
        return order, packed[order]
    both = np.sort(packed << bits | np.arange(len(packed)))  # several times faster than argsort
    return both & ((1 << bits) - 1), both >> bits


def _pack(keys: Sequence[NDArray[np.int64]], extents: Sequence[int]) -> NDArray[np.int64] | None:
    """All keys as the digits of one int64, which sorts several times faster; None where they do not fit."""
    capacity = 1
    for extent in extents:
        capacity *= extent
    if capacity >= 1 << 63:
        return None
    packed = np.zeros(len(keys[0]), np.int64)
    for key, extent in zip(keys, extents, strict=True):
        packed *= extent
        packed += key
    return packed
