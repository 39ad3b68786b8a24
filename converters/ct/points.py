"""Files of points: sparse windows and distance fields, checked before they are used as indices."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import storable
from unistore.converters.ct.slabs import VolumeArray
from unistore.converters.plugin import Array, Opened, SourceFile
from unistore.errors import InputError, Problem

# Names of the indices and values in a file, by kind of points.
MEMBERS = {"sparse": ("indices", "values"), "sdf": ("sparse_index", "sparse_sdf")}
BLOCK = 1 << 17  # points read at a time

Points = tuple[NDArray[Any], NDArray[Any]]  # indices (n, 3) and values (n,)


def kind_of(names: Collection[str]) -> str:
    """Return which points the arrays of a file are: ``sparse`` or ``sdf`` (empty: none)."""
    kinds = [kind for kind, members in MEMBERS.items() if set(members) <= set(names)]
    return kinds[0] if len(kinds) == 1 else ""


def points_in(opened: Opened, file: SourceFile, format: str, name: str) -> VolumeArray:
    """Describe an open file of points called `name`."""
    arrays = opened.arrays
    kind = kind_of(arrays)
    if not kind:
        expected = " or ".join(" and ".join(names) for names in MEMBERS.values())
        message = f"holds {', '.join(arrays) or 'no arrays'}; expected {expected}"
        raise file.problem(message, kind="layout")
    index, values = (arrays[member] for member in MEMBERS[kind])
    rows = index.shape[:1]
    if len(index.shape) != 2 or index.shape[1] != 3 or index.dtype.kind not in "iu":
        message = f"{MEMBERS[kind][0]} is {index.dtype} {index.shape}, expected integers (points, 3)"
        raise file.problem(message, kind="shape")
    if values.shape not in (rows, (*rows, 1)) or not storable(values.dtype):
        expected = f"({rows[0]},) or ({rows[0]}, 1)"
        message = f"{MEMBERS[kind][1]} is {values.dtype} {values.shape}, expected numbers {expected}"
        raise file.problem(message, kind="shape")
    return VolumeArray(
        role=f"{kind}/{name}",
        name=file.name,
        path=str(file.path),
        format=format,
        dtype=values.dtype.str,
        shape=rows,
        resolution=_resolution(arrays),
    )


def _resolution(arrays: Mapping[str, Array]) -> int:
    """Return the edge of the cube that the points lie in (0: the file does not say)."""
    edge = arrays.get("resolution")
    if edge is None or edge.shape not in ((), (1,), (3,)) or edge.dtype.kind not in "iu":
        return 0
    return int(np.max(edge.read(0, 3 if edge.shape == (3,) else 1)))


def point_blocks(array: VolumeArray, lo: int = 0, hi: int | None = None, step: int = 0) -> Iterator[Points]:
    """Read points ``lo:hi`` in the file's order, some at a time."""
    hi = array.shape[0] if hi is None else hi
    step = step or BLOCK
    with array.open() as arrays:
        index, values = (arrays[member] for member in MEMBERS[array.role.partition("/")[0]])
        for first in range(lo, hi, step):
            stop = min(first + step, hi)
            yield index[first:stop], values[first:stop].reshape(-1)


def check_range(array: VolumeArray, extent: tuple[int, int, int] | None) -> None:
    """Check that points lie in a volume (None: it is not known, so that indices must fit 32 bits)."""
    limit = extent or (1 << 31,) * 3
    count = 0
    rows = 0
    first = ""
    for index, _ in point_blocks(array):
        is_outside = ((index < 0) | (index > np.array(limit) - 1)).any(axis=1)
        if is_outside.any():
            row = int(np.argmax(is_outside))
            first = first or f"the first is row {rows + row}: {index[row].tolist()}"
            count += int(np.count_nonzero(is_outside))
        rows += len(index)
    if count:
        message = f"{count} points lie outside the volume {limit}; {first}"
        raise InputError(Problem(array.name, message, "make it again from this volume", "range"))


def sorted_points(array: VolumeArray) -> Points:
    """Read all points in C order of their volume, as ``np.argwhere`` gives them. None may occur twice."""
    return _sorted_points(array, array.file.path.stat().st_mtime_ns)


@lru_cache(maxsize=1)  # kept for the next shard of the same volume
def _sorted_points(array: VolumeArray, time: int) -> Points:  # noqa: ARG001
    (index, values) = next(point_blocks(array, step=max(1, array.shape[0])), _no_points(array))
    if len(index) == 0:
        return index, values
    flat = np.ravel_multi_index(tuple(index.T), tuple(longest + 1 for longest in index.max(axis=0).tolist()))
    if (flat[1:] > flat[:-1]).all():
        return index, values
    order = np.argsort(flat, kind="stable")
    twice = np.flatnonzero(np.diff(flat[order]) == 0)
    if len(twice):
        message = f"{len(twice)} voxels occur twice; the first is {index[order[twice[0]]].tolist()}"
        raise InputError(Problem(array.name, message, "make it again from its volume", "duplicate"))
    return index[order], values[order]


def _no_points(array: VolumeArray) -> Points:
    return np.empty((0, 3), np.int32), np.empty(0, array.kind)
