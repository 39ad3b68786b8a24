"""Compare a store of plain arrays with its files, read by h5py or ``np.load``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import row_values, sources_of
from unistore.converters.common.originals import (
    Compared,
    blocks_difference,
    dataset_paths,
    names_without_numbers,
    open_with_h5py,
)
from unistore.converters.files.hdf5.attributes import attribute_texts
from unistore.converters.files.hdf5.original_attributes import attributes_left_out, compare_attributes
from unistore.converters.protocol import Scan
from unistore.errors import Location
from unistore.schemas.rows.fields import TABLE
from unistore.schemas.store_view import StoreView


class Originals:
    """Compares the sources of a rows store, one by one."""

    def __init__(self, store: StoreView, scan: Scan) -> None:
        self._store = store
        self._scan = scan
        self._sources = sources_of(store)
        self._attributes = attribute_texts(store, len(self._sources))
        self._reverse_axes = bool(scan.options.get("reverse_axes"))

    def compare(self, number: int) -> Iterator[Compared]:
        """Every stored array of a source, and every attribute of its HDF5 file."""
        source, rows = self._scan.sources[number], self._sources[number]
        for column, (file, array, inner, *_) in source.detail["columns"].items():
            path = source.files[file]
            values = row_values(self._store.array(f"{TABLE}/{column}"), rows.lo, rows.hi)
            with _opened(path, array) as opened:
                whole = opened
                if self._reverse_axes and path.suffix.lower() not in (".npy", ".npz"):
                    whole = opened[()].T
                found = blocks_difference(values, partial(_rows, whole, inner))
            yield Compared(Location(source.name, array), path, prod(values.shape), found)
        yield from compare_attributes(source.name, source.path, self._attributes[number])

    def left_out(self, number: int) -> list[str]:
        """Datasets and attributes of a source that are not in the store."""
        source = self._scan.sources[number]
        taken = {(file, array) for file, array, *_ in source.detail["columns"].values()}
        found = []
        for file, path in enumerate(source.files[: len(source.detail["files"])]):
            if not _is_hdf5(path):
                continue
            with open_with_h5py(path) as opened:
                arrays = {name for each, name in taken if each == file}
                found += [name for name in dataset_paths(opened) if name not in arrays]
                found += attributes_left_out(opened, self._attributes[number], arrays.__contains__)
        return names_without_numbers(found)


def _is_hdf5(path: Path) -> bool:
    return path.suffix.lower() not in (".npy", ".npz")


@contextmanager
def _opened(path: Path, array: str) -> Iterator[Any]:
    """One array of a file: an HDF5 dataset, a memory-mapped ``.npy``, or a member of an ``.npz``."""
    suffix = path.suffix.lower()
    if suffix == ".npy":
        yield np.load(path, mmap_mode="r", allow_pickle=False)
    elif suffix == ".npz":
        with np.load(path, allow_pickle=False) as members:
            yield members[array]
    else:
        with open_with_h5py(path) as file:
            yield file[array]


def _rows(opened: Any, inner: str | None, lo: int, hi: int) -> NDArray[Any]:
    rows: NDArray[Any] = opened[lo:hi]
    return rows if inner is None else rows[inner]
