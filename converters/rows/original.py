"""Compare a store of plain arrays with its files, read by h5py or ``np.load``."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.exported import row_values, sources_of
from unistore.converters.common.left_out import names_without_numbers
from unistore.converters.common.originals import Compared, blocks_difference, dataset_paths, open_with_h5py
from unistore.converters.files.arrays import NPY_NAME
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
        names: list[str] = []
        for file, path in enumerate(source.files[: len(source.detail["files"])]):
            fields: dict[str, set[str | None]] = {}
            for other, array, inner, *_ in source.detail["columns"].values():
                if other == file:
                    fields.setdefault(array, set()).add(inner)
            names += _names_left_out(path, fields)
            if _is_hdf5(path):
                with open_with_h5py(path) as opened:
                    names += attributes_left_out(opened, self._attributes[number], fields.__contains__)
        return names_without_numbers(names)


def _is_hdf5(path: Path) -> bool:
    return path.suffix.lower() not in (".npy", ".npz")


def _names_left_out(path: Path, stored: Mapping[str, Collection[str | None]]) -> list[str]:
    """Return arrays, and fields of records, that a file has besides the stored fields of its arrays."""
    with ExitStack() as stack:
        arrays: Any
        if _is_hdf5(path):
            arrays = stack.enter_context(open_with_h5py(path))
            names = dataset_paths(arrays)
        elif path.suffix.lower() == ".npz":
            arrays = stack.enter_context(np.load(path, allow_pickle=False))
            names = list(arrays.files)
        else:
            arrays = {NPY_NAME: np.load(path, mmap_mode="r", allow_pickle=False)}
            # The array of a file without names is called as the file is.
            names = [NPY_NAME if NPY_NAME in stored else path.stem]
        left_out = [name for name in names if name not in stored]
        for name, fields in stored.items():
            if None not in fields:
                left_out += [f"{name}/{field}" for field in arrays[name].dtype.names if field not in fields]
    return left_out


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
