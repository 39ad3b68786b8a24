"""One interface to files of named arrays (HDF5, ``.npy``, ``.npz``): list the arrays, read row ranges.

Nothing is unpickled. Row ranges are read without reading the whole array, except from compressed ``.npz``
members, which are decompressed from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.hdf5 import file as hdf5
from unistore.converters.files.hdf5.chunks import native
from unistore.converters.files.hdf5.tree import Tree, walk
from unistore.converters.files.npy.archive import open_npz
from unistore.converters.files.npy.array import open_npy, read_header
from unistore.errors import Problem

SUFFIXES = (*hdf5.SUFFIXES, ".npy", ".npz")
NPY_NAME = "data"
"""Name given to the array of a ``.npy`` file."""

ReadRows = Callable[[str, int, int, NDArray[Any] | None], NDArray[Any]]
"""``read(array, lo, hi, out)``: rows of one array, in native byte order.

``out`` is C-contiguous, (hi - lo, …), or None. If it has the array's dtype, rows may be read into it; then it
is returned.
"""


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """The arrays of a file.

    Attributes
    ----------
    arrays
        Shape and dtype by name, in the file's order; HDF5 datasets by their path.
    files
        All files that are read.
    reading
        Bytes of memory needed to read rows, besides the rows.
    problems
        What is wrong; the arrays concerned are not in `arrays`.
    bookkeeping
        Names of what only the library that wrote an HDF5 file needs.
    """

    arrays: dict[str, tuple[tuple[int, ...], np.dtype[Any]]]
    files: tuple[Path, ...]
    reading: int = 0
    problems: list[Problem] = field(default_factory=list)
    bookkeeping: Sequence[str] = ()


def format_of(path: Path) -> str:
    """Format of a file by its suffix: ``"npy"``, ``"npz"``, or ``"hdf5"`` for all others."""
    suffix = path.suffix.lower()
    return suffix[1:] if suffix in (".npy", ".npz") else "hdf5"


def list_arrays(path: Path, name: str, roots: Sequence[Path]) -> ArrayFile:
    """List the arrays of a file without reading values.

    Parameters
    ----------
    path, name
        The file, and its name in messages.
    roots
        Folders that links inside HDF5 files may lead to.

    Raises
    ------
    InputError
        If the file as a whole cannot be read.
    """
    kind = format_of(path)
    if kind == "npy":
        header = read_header(path, name)
        return ArrayFile({NPY_NAME: (header.shape, header.dtype)}, (path,))
    if kind == "npz":
        with open_npz(path, name) as members:
            arrays = {key: (values.shape, values.dtype) for key, values in members.items()}
            memory = max((values.memory for values in members.values()), default=0)
        return ArrayFile(arrays, (path,), memory)
    with hdf5.open_hdf5(path, name) as file:
        return list_datasets(walk(file, name, roots), path, name)


def list_datasets(tree: Tree, path: Path, name: str) -> ArrayFile:
    """List the arrays of an open HDF5 file; `path` and `name` as in `list_arrays`."""
    found = ArrayFile(
        {}, (path, *sorted(tree.files)), problems=tree.problems, bookkeeping=tuple(tree.bookkeeping)
    )
    reading = 0
    for key, dataset in tree.datasets.items():
        if problems := hdf5.check_dataset(dataset, hdf5.location_of(name, key)):
            found.problems.extend(problems)
            continue
        found.arrays[key] = (dataset.shape, dataset.dtype)
        reading = max(reading, hdf5.chunk_memory(dataset))
    return replace(found, reading=reading)


@contextmanager
def open_arrays(path: Path, name: str) -> Iterator[ReadRows]:
    """Open a file to read row ranges of its arrays.

    Raises
    ------
    InputError
        If it cannot be opened or read.
    """
    kind = format_of(path)
    if kind == "npy":
        with open_npy(path, name) as values:
            yield lambda _, lo, hi, out: values.read_into(lo, hi, out)
    elif kind == "npz":
        with open_npz(path, name) as members:
            yield lambda key, lo, hi, out: members[key].read_into(lo, hi, out)
    else:
        with hdf5.open_hdf5(path, name) as file:
            yield datasets_reader(file, name)


def datasets_reader(file: Any, name: str, *, reverse_axes: bool = False) -> ReadRows:
    """Return what reads rows of the datasets of an open HDF5 file, on their last axis if reversed."""

    def read(key: str, lo: int, hi: int, out: NDArray[Any] | None) -> NDArray[Any]:
        dataset, location = file[key], hdf5.location_of(name, key)
        if reverse_axes:
            return hdf5.read_reversed(dataset, location, lo, hi)
        fits = out is not None and out.dtype == native(dataset.dtype)
        return hdf5.read_rows(dataset, location, lo, hi, out if fits else None)

    return read
