"""Comparison of a store with its sources, which are read with h5py, NumPy and OpenCV alone.

Values are not read through a converter, so that its reading errors show. Only the scan of the converter is
used: it says which dataset of which file a column comes from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class Compared:
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
    """Paths of all datasets in an open HDF5 file, without linked ones."""
    import h5py

    found: list[str] = []

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            found.append(name)

    file.visititems(visit)
    return found


def names_without_numbers(names: Iterable[str]) -> list[str]:
    """Names with ``N`` for each number, without duplicates: ``segments/segment_N/unique_labels``."""
    return list(dict.fromkeys(_NUMBER.sub("N", name) for name in names))
