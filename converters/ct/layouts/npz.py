"""Points of ``.npz`` files: sparse windows and distance fields, checked before they are used as indices.

All functions raise an `InputError` if the file is damaged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import storable
from unistore.converters.files.npy.archive import open_npz
from unistore.converters.files.npy.array import ArrayValues
from unistore.errors import InputError, Problem

SPARSE_MEMBERS = ("indices", "values")
SDF_MEMBERS = ("sparse_index", "sparse_sdf")

BLOCK = 1 << 17
"""Points read at a time."""


@dataclass(frozen=True, slots=True)
class Points:
    """A file of points.

    Its arrays, how many points, dtype of their values, edge of their cube or 0, and its other arrays, which
    are not stored.
    """

    path: Path
    members: tuple[str, str]
    count: int
    dtype: str
    resolution: int
    others: tuple[str, ...]


def members_of(path: Path, location: str) -> tuple[str, str] | None:
    """Members of an ``.npz`` file that are points, `SPARSE_MEMBERS` or `SDF_MEMBERS`, or None."""
    with open_npz(path, location) as arrays:
        return _kind(arrays)


def _kind(found: Collection[str]) -> tuple[str, str] | None:
    kinds = [names for names in (SPARSE_MEMBERS, SDF_MEMBERS) if all(name in found for name in names)]
    return kinds[0] if len(kinds) == 1 else None


def read_points_header(path: Path, location: str) -> Points:
    """Return what an ``.npz`` file of points holds, from the headers of its members."""
    with open_npz(path, location) as found:
        members = _kind(found)
        if members is None:
            wanted = " or ".join(" and ".join(names) for names in (SPARSE_MEMBERS, SDF_MEMBERS))
            message = f"holds {', '.join(found) or 'no arrays'}; expected {wanted}"
            raise InputError(Problem(location, message, "", "layout"))
        index, values = (found[name] for name in members)
        rows, message = index.shape[:1], ""
        if len(index.shape) != 2 or index.shape[1] != 3 or index.dtype.kind not in "iu":
            message = f"{members[0]} is {index.dtype} {index.shape}, expected integers (points, 3)"
        elif values.shape not in (rows, (*rows, 1)) or not storable(values.dtype):
            expected = f"({rows[0]},) or ({rows[0]}, 1)"
            message = f"{members[1]} is {values.dtype} {values.shape}, expected numbers {expected}"
        if message:
            raise InputError(Problem(location, message, "", "shape"))
        resolution = _resolution(found)
    stored = {*members, *(["resolution"] if resolution and members == SDF_MEMBERS else [])}
    others = tuple(name for name in found if name not in stored)
    return Points(path, members, rows[0], values.dtype.str, resolution, others)


def _resolution(arrays: Mapping[str, ArrayValues]) -> int:
    """Edge of the cube that the points lie in; 0: the file does not say."""
    edge = arrays.get("resolution")
    if edge is None or edge.header.count not in (1, 3) or edge.dtype.kind not in "iu":
        return 0
    return int(np.max(edge.whole()))


def load_points(path: Path, members: tuple[str, str], location: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read indices (n, 3) and values (n,) of points, as stored, in the file's order."""
    with open_npz(path, location) as arrays:
        index, values = (arrays[name].whole() for name in members)
    return index, values.reshape(-1)


def point_blocks(
    path: Path, members: tuple[str, str], location: str, lo: int = 0, hi: int | None = None
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Points ``lo:hi`` as `load_points` gives them, `BLOCK` at a time."""
    with open_npz(path, location) as arrays:
        index, values = (arrays[name] for name in members)
        end = index.shape[0] if hi is None else hi
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
    count, rows, first = 0, 0, ""
    for index in blocks:
        bad = np.zeros(len(index), np.bool_)
        for axis, size in enumerate(limit):
            column = index[:, axis]
            bad |= (column < 0) | (column > size - 1)
        if bad.any():
            at = int(np.argmax(bad))
            first = first or f"the first is row {rows + at}: {index[at].tolist()}"
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
    flat = np.ravel_multi_index(tuple(index.T), tuple(each + 1 for each in index.max(axis=0).tolist()))
    if not (flat[1:] > flat[:-1]).all():
        order = np.argsort(flat, kind="stable")
        flat, index, values = flat[order], index[order], values[order]
        twice = np.flatnonzero(flat[1:] == flat[:-1])
        if len(twice):
            message = f"{len(twice)} voxels occur twice; the first is {index[twice[0]].tolist()}"
            raise InputError(Problem(location, message, "make it again from its volume", "duplicate"))
    return index, values
