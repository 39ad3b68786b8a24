"""Comparison of a store with its sources, which are read with h5py, NumPy and OpenCV alone.

Values are not read through a converter, so that its reading errors show. Only the scan of the converter is
used: it says which dataset of which file a column comes from.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import is_lossless
from unistore.converters.common.exported import Values
from unistore.errors import Location


class Compared(NamedTuple):
    """One dataset of a source that was compared."""

    location: Location
    """File and dataset."""
    file: Path
    values: int
    """How many were compared."""
    difference: str | None
    """Description of the first difference; None if there is none."""


@contextmanager
def open_with_h5py(path: Path) -> Iterator[Any]:
    """Open an HDF5 file with h5py and the codecs of hdf5plugin."""
    import h5py
    import hdf5plugin  # noqa: F401  registers the codecs

    with h5py.File(path, "r", locking="best-effort") as file:
        yield file


def objects_in(file: Any) -> Iterator[tuple[str, Any]]:
    """Yield path and object of all that is in an open HDF5 file, each object once, without linked ones.

    The object is None where it is damaged. h5py's ``visititems`` would raise, also for what nobody reads.
    """
    import h5py

    seen = {_address(file)}
    pending = [("", file)]
    while pending:
        prefix, group = pending.pop()
        for key in group:
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                continue
            path = f"{prefix}{os.fsdecode(key)}"
            try:
                item = group[key]
            except (KeyError, OSError, RuntimeError):
                yield path, None
                continue
            if _address(item) in seen:
                continue
            seen.add(_address(item))
            yield path, item
            if isinstance(item, h5py.Group):
                pending.append((f"{path}/", item))


def _address(item: Any) -> tuple[int, int]:
    import h5py

    info = h5py.h5o.get_info(item.id)
    return info.fileno, info.addr


def dataset_paths(file: Any) -> list[str]:
    """Return paths of unlinked datasets with values in an open HDF5 file, and of what is damaged."""
    import h5py

    return [
        path
        for path, item in objects_in(file)
        if item is None or (isinstance(item, h5py.Dataset) and item.size)
    ]


def difference(stored: NDArray[Any], other: NDArray[Any], first: int = 0) -> str | None:
    """Describe the first difference of two arrays with rows on axis 0; None if they are equal.

    Values of different dtypes are compared in a dtype that represents all values of both exactly. The message
    counts rows from `first`.
    """
    if stored.shape != other.shape:
        return f"shapes {stored.shape} and {other.shape}"
    common = np.promote_types(stored.dtype, other.dtype)
    if not (is_lossless(stored.dtype, common) and is_lossless(other.dtype, common)):
        return f"dtypes {stored.dtype} and {other.dtype}, which no dtype holds both"
    if not stored.size:
        return None
    one, two = _bits(stored, common), _bits(other, common)
    if np.array_equal(one, two):
        return None
    wrong = (one != two).reshape(len(stored), -1)
    row = int(np.flatnonzero(wrong.any(axis=1))[0])
    at = int(np.flatnonzero(wrong[row])[0])
    here, there = (values.reshape(len(values), -1)[row, at] for values in (stored, other))
    return f"row {first + row}: {here} and {there}, {np.count_nonzero(wrong)} of {wrong.size} values differ"


def blocks_difference(values: Values, read: Callable[[int, int], NDArray[Any]]) -> str | None:
    """Describe the first difference of values and those that ``read(lo, hi)`` returns; None if equal.

    Stops at the first block with a difference.
    """
    at = 0
    for block in values.blocks():
        found = difference(block, read(at, at + len(block)), at)
        if found is not None:
            return found
        at += len(block)
    return None


def _bits(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Values in a dtype, viewed as unsigned integers of native byte order."""
    plain = np.ascontiguousarray(values, dtype.newbyteorder("="))
    return plain.view(f"u{plain.itemsize}")
