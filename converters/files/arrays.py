"""One interface to files of named arrays (HDF5, ``.npy``, ``.npz``): list the arrays, read row ranges.

Nothing is unpickled. Row ranges are read without reading the whole array, except from compressed ``.npz``
members, which are decompressed from the start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.hdf5 import file as hdf5
from unistore.converters.files.hdf5.attributes import Attributes, objects_of, read_attributes
from unistore.converters.files.hdf5.element_types import native
from unistore.converters.files.hdf5.tree import walk
from unistore.converters.files.npy.archive import NpzMember, member_runs, npz_members, open_member
from unistore.converters.files.npy.array import (
    flat_reader,
    map_values,
    open_flat,
    open_header,
    read_header,
)
from unistore.converters.files.npy.header import NpyHeader
from unistore.errors import InputError, Problem

SUFFIXES = (*hdf5.SUFFIXES, ".npy", ".npz")
NPY_NAME = "data"
"""Name given to the array of a ``.npy`` file."""

ReadRows = Callable[[str, int, int, NDArray[Any] | None], NDArray[Any]]
"""``read(array, lo, hi, out)``: rows of one array, in native byte order.

``out`` is C-contiguous, (hi - lo, …), or None. If it has the array's dtype, rows may be read into it; then it
is returned.
"""

Read = Callable[[int, NDArray[Any]], None]
"""See `open_flat`."""

_RECORD_BLOCK = 8 << 20
_NO_ATTRIBUTES = Attributes()
"""One for all files: those of many are packed as one."""


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """The arrays of a file.

    Attributes
    ----------
    arrays
        Shape and dtype by name, in the file's order; HDF5 datasets by their path.
    compressed
        Arrays that must be decompressed from the start to read any rows.
    files
        All files that are read.
    steps
        For arrays of records: rows to read at a time, since all their fields are read.
    reading
        Bytes of memory needed to read rows, besides the rows.
    problems
        What is wrong; the arrays concerned are not in `arrays`.
    unreadable, bookkeeping
        Names of these arrays, and of what only the library that wrote an HDF5 file needs.
    attributes
        Attributes of an HDF5 file, if they were asked for.
    """

    arrays: dict[str, tuple[tuple[int, ...], np.dtype[Any]]]
    files: tuple[Path, ...]
    compressed: tuple[str, ...] = ()
    steps: dict[str, int] = field(default_factory=dict)
    reading: int = 0
    problems: list[Problem] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    bookkeeping: Sequence[str] = ()
    attributes: Attributes = field(default_factory=lambda: _NO_ATTRIBUTES)


def with_reversed_axes(listed: ArrayFile) -> ArrayFile:
    """The same arrays, with the axes of HDF5 datasets reversed."""
    if format_of(listed.files[0]) != "hdf5":
        return listed
    return replace(
        listed, arrays={key: (shape[::-1], dtype) for key, (shape, dtype) in listed.arrays.items()}
    )


def format_of(path: Path) -> str:
    """Format of a file by its suffix: ``"npy"``, ``"npz"``, or ``"hdf5"`` for all others."""
    suffix = path.suffix.lower()
    return suffix[1:] if suffix in (".npy", ".npz") else "hdf5"


def list_arrays(
    path: Path, name: str, roots: Sequence[Path], attributes: Callable[[str], bool] | None = None
) -> ArrayFile:
    """List the arrays of a file without reading values.

    Parameters
    ----------
    path, name
        The file, and its name in messages.
    roots
        Folders that links inside HDF5 files may lead to.
    attributes
        Whether to read the attributes of an HDF5 dataset, given its path. Attributes of groups are read, too,
        unless this is None.

    Raises
    ------
    InputError
        If the file as a whole cannot be read.
    """
    kind = format_of(path)
    if kind == "npy":
        header = read_header(path, name)
        steps = _steps({NPY_NAME: (header.shape, header.dtype)})
        return ArrayFile({NPY_NAME: (header.shape, header.dtype)}, (path,), steps=steps)
    if kind == "npz":
        members = npz_members(path, name)
        compressed = tuple(member.name for member in members.values() if member.compressed)
        arrays = {member.name: (member.header.shape, member.header.dtype) for member in members.values()}
        in_place = {name: form for name, form in arrays.items() if name not in compressed}
        whole = [m.header.nbytes for m in members.values() if m.compressed and m.header.fortran_order]
        return ArrayFile(arrays, (path,), compressed, _steps(in_place), max(whole, default=0))
    with hdf5.open_hdf5(path, name) as file:
        tree = walk(file, name, roots)
        found = ArrayFile({}, (path, *sorted(tree.files)), problems=tree.problems)
        reading = 0
        for key, dataset in tree.datasets.items():
            if problems := hdf5.check_dataset(dataset, hdf5.location_of(name, key)):
                found.problems.extend(problems)
                found.unreadable.append(key)
                continue
            found.arrays[key] = (dataset.shape, dataset.dtype)
            reading = max(reading, hdf5.chunk_memory(dataset))
        for key, step in _steps(found.arrays).items():
            found.steps[key] = max(step, (tree.datasets[key].chunks or (1,))[0])
        kept = Attributes() if attributes is None else read_attributes(objects_of(file, tree, attributes))
        return replace(found, reading=reading, attributes=kept, bookkeeping=tuple(tree.bookkeeping))


def _steps(arrays: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> dict[str, int]:
    """Rows of about `_RECORD_BLOCK` bytes, for arrays of records."""
    return {
        name: max(1, _RECORD_BLOCK // max(1, math.prod(shape[1:]) * dtype.itemsize))
        for name, (shape, dtype) in arrays.items()
        if dtype.names is not None
    }


@contextmanager
def open_arrays(path: Path, name: str, *, reverse_axes: bool = False) -> Iterator[ReadRows]:
    """Open a file to read row ranges of its arrays.

    With `reverse_axes`, the rows of HDF5 datasets are on the last axis.

    Raises
    ------
    InputError
        If it cannot be opened or read.
    """
    kind = format_of(path)
    if kind == "npy":
        with open_header(path, name) as (header, npy):
            read = flat_reader(npy, header, name)

            def npy_rows(_: str, lo: int, hi: int, out: NDArray[Any] | None) -> NDArray[Any]:
                if header.fortran_order:
                    return _native(np.ascontiguousarray(map_values(path, header, name)[lo:hi]))
                return _in_place(header, read, lo, hi, out)

            yield npy_rows
    elif kind == "npz":
        members = npz_members(path, name)

        def npz_rows(key: str, lo: int, hi: int, out: NDArray[Any] | None) -> NDArray[Any]:
            member = members[key]
            if member.header.fortran_order:
                return _native(np.ascontiguousarray(open_member(path, member, name)[lo:hi]))
            if member.compressed:
                return _native(_streamed(path, member, name, lo, hi))
            with open_flat(path, member.header, hdf5.location_of(name, key)) as read:
                return _in_place(member.header, read, lo, hi, out)

        yield npz_rows
    else:
        with hdf5.open_hdf5(path, name) as file:

            def hdf5_rows(key: str, lo: int, hi: int, out: NDArray[Any] | None) -> NDArray[Any]:
                dataset, location = file[key], hdf5.location_of(name, key)
                if reverse_axes:
                    return hdf5.read_reversed(dataset, location, lo, hi)
                fits = out is not None and out.dtype == native(dataset.dtype)
                return hdf5.read_rows(dataset, location, lo, hi, out if fits else None)

            yield hdf5_rows


def _in_place(header: NpyHeader, read: Read, lo: int, hi: int, out: NDArray[Any] | None) -> NDArray[Any]:
    rows = out
    if rows is None or rows.dtype != header.dtype:
        rows = np.empty((hi - lo, *header.shape[1:]), header.dtype)
    if rows.size:
        read(lo * (rows.size // len(rows)), rows)
    return _native(rows)


def _streamed(path: Path, member: NpzMember, name: str, lo: int, hi: int) -> NDArray[Any]:
    shape = (hi - lo, *member.header.shape[1:])
    width = math.prod(shape[1:])
    runs = member_runs(path, member, lo * width, hi * width, max(1, (hi - lo) * width), name)
    try:
        rows = next(runs, np.empty(0, member.header.dtype))
    except InputError as error:
        where, wrong = hdf5.location_of(name, member.name), error.problems[0]
        message = f"rows {lo}:{hi} cannot be read: {wrong.message}"
        raise InputError(Problem.at(where, message, wrong.cure, wrong.kind)) from error
    return rows.reshape(shape)


def _native(rows: NDArray[Any]) -> NDArray[Any]:
    return rows.astype(rows.dtype.newbyteorder("="), copy=False)
