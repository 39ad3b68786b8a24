"""Points of ``.npz`` files: sparse windows and distance fields, checked before they are used as indices.

All functions raise an `InputError` if the file is damaged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import storable
from unistore.converters.files.npy.archive import member_runs, npz_members, open_member
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
    return _kind(npz_members(path, location))


def _kind(found: Collection[str]) -> tuple[str, str] | None:
    kinds = [names for names in (SPARSE_MEMBERS, SDF_MEMBERS) if all(name in found for name in names)]
    return kinds[0] if len(kinds) == 1 else None


def read_points_header(path: Path, location: str) -> Points:
    """Return what an ``.npz`` file of points holds, from the headers of its members."""
    found = npz_members(path, location)
    members = _kind(found)
    if members is None:
        wanted = " or ".join(" and ".join(names) for names in (SPARSE_MEMBERS, SDF_MEMBERS))
        message = f"holds {', '.join(found) or 'no arrays'}; expected {wanted}"
        raise InputError(Problem(location, message, "", "layout"))
    index, values = (found[name].header for name in members)
    rows, message = index.shape[:1], ""
    if len(index.shape) != 2 or index.shape[1] != 3 or index.dtype.kind not in "iu":
        message = f"{members[0]} is {index.dtype} {index.shape}, expected integers (points, 3)"
    elif values.shape not in (rows, (*rows, 1)) or not storable(values.dtype):
        expected = f"({rows[0]},) or ({rows[0]}, 1)"
        message = f"{members[1]} is {values.dtype} {values.shape}, expected numbers {expected}"
    if message:
        raise InputError(Problem(location, message, "", "shape"))
    edge = found.get("resolution")
    stated = edge is not None and edge.header.count in (1, 3) and edge.header.dtype.kind in "iu"
    resolution = int(np.max(open_member(path, edge, location))) if edge is not None and stated else 0
    stored = {*members, *(["resolution"] if resolution and members == SDF_MEMBERS else [])}
    others = tuple(name for name in found if name not in stored)
    return Points(path, members, rows[0], values.dtype.str, resolution, others)


def load_points(path: Path, members: tuple[str, str], location: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read indices (n, 3) and values (n,) of points, as stored, in the file's order."""
    found = npz_members(path, location)
    index = open_member(path, found[members[0]], location)
    values = open_member(path, found[members[1]], location)
    return index, values.reshape(-1)


def point_blocks(
    path: Path, members: tuple[str, str], location: str, lo: int = 0, hi: int | None = None
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Points ``lo:hi`` as `load_points` gives them, `BLOCK` at a time."""
    found = npz_members(path, location)
    index, values = (found[name] for name in members)
    rows = index.header.shape[0]
    hi = rows if hi is None else hi
    blocks: Iterator[NDArray[Any]]
    if index.header.fortran_order:  # as np.argwhere returns them
        starts = (axis * rows for axis in range(3))
        columns = [member_runs(path, index, at + lo, at + hi, BLOCK, location) for at in starts]
        blocks = (np.stack(column, axis=1) for column in zip(*columns, strict=True))
    else:
        runs = member_runs(path, index, 3 * lo, 3 * hi, 3 * BLOCK, location)
        blocks = (run.reshape(-1, 3) for run in runs)
    yield from zip(blocks, member_runs(path, values, lo, hi, BLOCK, location), strict=True)


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
