"""Files of points: sparse windows and distance fields, checked before they are used as indices.

All functions raise an `InputError` if the file is damaged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import storable
from unistore.converters.plugin import Array, Format, Opened, SourceFile
from unistore.errors import InputError, Problem

SPARSE_MEMBERS = ("indices", "values")
SDF_MEMBERS = ("sparse_index", "sparse_sdf")

BLOCK = 1 << 17
"""Points read at a time."""

Arrays = Mapping[str, Array]


class Points(NamedTuple):
    """A file of points, as its header describes it.

    Attributes
    ----------
    file, format
        The file, and what opens it.
    members
        Names of its indices and values.
    length, dtype
        How many points, and the dtype of their values.
    resolution
        Edge of their cube, or 0.
    others
        Its other arrays, which are not stored.
    """

    file: SourceFile
    format: Format
    members: tuple[str, str]
    length: int
    dtype: np.dtype[Any]
    resolution: int
    others: tuple[str, ...]


def members_of(names: Collection[str]) -> tuple[str, str] | None:
    """Arrays of a file that are points, `SPARSE_MEMBERS` or `SDF_MEMBERS`, or None."""
    kinds = [members for members in (SPARSE_MEMBERS, SDF_MEMBERS) if set(members) <= set(names)]
    return kinds[0] if len(kinds) == 1 else None


def points_in(opened: Opened, file: SourceFile, format: Format) -> Points:
    """Describe an open file of points."""
    arrays = opened.arrays
    members = members_of(arrays)
    if members is None:
        expected = " or ".join(" and ".join(names) for names in (SPARSE_MEMBERS, SDF_MEMBERS))
        message = f"holds {', '.join(arrays) or 'no arrays'}; expected {expected}"
        raise file.problem(message, kind="layout")
    index = arrays[members[0]]
    values = arrays[members[1]]
    rows = index.shape[:1]
    message = ""
    if len(index.shape) != 2 or index.shape[1] != 3 or index.dtype.kind not in "iu":
        message = f"{members[0]} is {index.dtype} {index.shape}, expected integers (points, 3)"
    elif values.shape not in (rows, (*rows, 1)) or not storable(values.dtype):
        expected = f"({rows[0]},) or ({rows[0]}, 1)"
        message = f"{members[1]} is {values.dtype} {values.shape}, expected numbers {expected}"
    if message:
        raise file.problem(message, kind="shape")
    resolution = _resolution(arrays)
    stored = {*members, "resolution"} if resolution and members == SDF_MEMBERS else {*members}
    unread = tuple(name for name in arrays if name not in stored)
    return Points(replace(file, roots=()), format, members, rows[0], values.dtype, resolution, unread)


def _resolution(arrays: Arrays) -> int:
    """Edge of the cube that the points lie in; 0: the file does not say."""
    edge = arrays.get("resolution")
    if edge is None or edge.shape not in ((), (1,), (3,)) or edge.dtype.kind not in "iu":
        return 0
    return int(np.max(edge.read(0, 3 if edge.shape == (3,) else 1)))


def load_points(arrays: Arrays, members: tuple[str, str]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read indices (n, 3) and values (n,) of points, as stored, in the file's order."""
    index = arrays[members[0]]
    values = arrays[members[1]]
    return index[0 : len(index)], values[0 : len(values)].reshape(-1)


def point_blocks(
    arrays: Arrays, members: tuple[str, str], lo: int = 0, hi: int | None = None
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Points ``lo:hi`` as `load_points` gives them, `BLOCK` at a time."""
    index = arrays[members[0]]
    values = arrays[members[1]]
    end = len(index) if hi is None else hi
    for start in range(lo, end, BLOCK):
        stop = min(start + BLOCK, end)
        yield index[start:stop], values[start:stop].reshape(-1)


def check_range(blocks: Iterable[NDArray[Any]], extent: tuple[int, int, int] | None, location: str) -> None:
    """Check that indices lie in a volume; the error names the first outside, and says how many there are.

    Parameters
    ----------
    blocks
        Blocks of indices, (n, 3) integers each.
    extent
        D, H, W; None if it is not known: then indices must fit 32 bits.
    """
    limit = extent or (1 << 31,) * 3
    count = 0
    rows = 0
    first = ""
    for index in blocks:
        bad = np.zeros(len(index), np.bool_)
        for axis, size in enumerate(limit):
            column = index[:, axis]
            bad |= (column < 0) | (column > size - 1)
        if bad.any():
            row = int(np.argmax(bad))
            first = first or f"the first is row {rows + row}: {index[row].tolist()}"
            count += int(np.count_nonzero(bad))
        rows += len(index)
    if count:
        message = f"{count} points lie outside the volume {limit}; {first}"
        raise InputError(Problem(location, message, "make it again from this volume", "range"))


def sort_points(
    index: NDArray[Any], values: NDArray[Any], location: str
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Points in C order of their volume, as ``np.argwhere`` gives them; none may occur twice."""
    if len(index) == 0:
        return index, values
    flat = np.ravel_multi_index(tuple(index.T), tuple(largest + 1 for largest in index.max(axis=0).tolist()))
    if not (flat[1:] > flat[:-1]).all():
        order = np.argsort(flat, kind="stable")
        flat = flat[order]
        index = index[order]
        values = values[order]
        twice = np.flatnonzero(flat[1:] == flat[:-1])
        if len(twice):
            message = f"{len(twice)} voxels occur twice; the first is {index[twice[0]].tolist()}"
            raise InputError(Problem(location, message, "make it again from its volume", "duplicate"))
    return index, values
