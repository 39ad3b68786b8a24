"""Comparison of a store with its sources, which are read with h5py, NumPy and OpenCV alone.

Values are not read through a converter, so that its reading errors show. Only the scan of the converter is
used: it says which dataset of which file a column comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.columns import is_lossless
from unistore.converters.common.exported import Values


class Compared(NamedTuple):
    """One dataset of a source that was compared."""

    location: str
    """File and dataset, for messages."""
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


def dataset_paths(file: Any) -> list[str]:
    """Return the paths of all datasets with values in an open HDF5 file, without linked ones."""
    import h5py

    found: list[str] = []

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.size:
            found.append(name)

    file.visititems(visit)
    return found


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
