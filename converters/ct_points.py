"""Points of ``.npz`` files: sparse windows and distance fields, checked before they are used as indices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.npy import npz_members, open_member
from unistore.errors import InputError, Problem

__all__ = ["check_range", "in_order", "load_points"]


def load_points(path: Path, members: tuple[str, str], location: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read indices (n, 3) and values (n,) of points, as stored, in the file's order.

    Raises
    ------
    InputError
        The file is damaged.
    """
    found = npz_members(path, location)
    index = open_member(path, found[members[0]], location)
    values = open_member(path, found[members[1]], location)
    return index, values.reshape(-1)


def check_range(index: NDArray[Any], extent: tuple[int, int, int] | None, location: str) -> None:
    """Refuse indices outside a volume.

    Parameters
    ----------
    index
        (n, 3) integers.
    extent
        D, H, W; None where it is not known (indices must then still fit 32 bits).

    Raises
    ------
    InputError
        Naming the first point outside and how many there are.
    """
    limit = extent or (1 << 31,) * 3
    bad = np.zeros(len(index), np.bool_)
    for axis, size in enumerate(limit):
        column = index[:, axis]
        bad |= (column < 0) | (column > size - 1)
    count = int(np.count_nonzero(bad))
    if count:
        row = int(np.argmax(bad))
        message = (
            f"{count} points lie outside the volume {limit}; the first is row {row}: {index[row].tolist()}"
        )
        raise InputError(Problem(location, message, "make it again from this volume", "range"))


def in_order(index: NDArray[Any], values: NDArray[Any], location: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Points in C order of their volume, as ``np.argwhere`` gives them.

    Raises
    ------
    InputError
        A voxel occurs twice.
    """
    if len(index) == 0:
        return index, values
    _, height, width = (index.max(axis=0).astype(np.int64) + 1).tolist()
    flat = index[:, 0].astype(np.int64)
    flat *= height
    flat += index[:, 1]
    flat *= width
    flat += index[:, 2]
    if not (flat[1:] > flat[:-1]).all():
        order = np.argsort(flat, kind="stable")
        flat, index, values = flat[order], index[order], values[order]
        twice = np.flatnonzero(flat[1:] == flat[:-1])
        if len(twice):
            message = f"{len(twice)} voxels occur twice; the first is {index[twice[0]].tolist()}"
            raise InputError(Problem(location, message, "make it again from its volume", "duplicate"))
    return index, values
