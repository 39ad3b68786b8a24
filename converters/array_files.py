"""Files that hold named arrays (HDF5, ``.npy``, ``.npz``) behind one face: list them, read row ranges.

Nothing is unpickled, and no array is read whole where a row range can be had: ``.npy`` files and stored
``.npz`` members are read in place, compressed members are streamed past, HDF5 datasets are sliced.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from unistore.converters import hdf5
from unistore.converters.npy import (
    NpyHeader,
    NpzMember,
    npz_members,
    open_member,
    open_npy,
    read_flat,
    read_header,
)
from unistore.errors import InputError, Problem

__all__ = ["NPY_NAME", "SUFFIXES", "ArrayFile", "ReadRows", "format_of", "list_arrays", "open_arrays"]

SUFFIXES = (*hdf5.SUFFIXES, ".npy", ".npz")
NPY_NAME = "data"
"""Name of the one array of a ``.npy`` file, which has none of its own."""

ReadRows = Callable[[str, int, int], NDArray[Any]]
"""``read(array, lo, hi)``: rows of one array, in native byte order."""

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """What a file holds.

    Attributes
    ----------
    arrays
        Shape and dtype by name, in the file's order; names of HDF5 datasets hold slashes.
    compressed
        Arrays that can only be read by decompressing everything before the rows asked for.
    files
        Every file that is read for them.
    problems
        What is wrong; arrays named in problems are left out.
    """

    arrays: dict[str, tuple[tuple[int, ...], np.dtype[Any]]]
    files: tuple[Path, ...]
    compressed: tuple[str, ...] = ()
    problems: list[Problem] = field(default_factory=list)


def format_of(path: Path) -> str:
    """Name of a file's format by its ending: ``"npy"``, ``"npz"``, or ``"hdf5"`` for all others."""
    suffix = path.suffix.lower()
    return suffix[1:] if suffix in (".npy", ".npz") else "hdf5"


def list_arrays(path: Path, name: str, roots: Sequence[Path]) -> ArrayFile:
    """Look at a file without reading values.

    Parameters
    ----------
    path
        The file.
    name
        How messages call it.
    roots
        Where links inside HDF5 files may lead.

    Raises
    ------
    InputError
        When the file as a whole cannot be read.
    """
    kind = format_of(path)
    if kind == "npy":
        header = read_header(path, name)
        return ArrayFile({NPY_NAME: (header.shape, header.dtype)}, (path,))
    if kind == "npz":
        members = npz_members(path, name)
        compressed = tuple(member.name for member in members.values() if member.compressed)
        arrays = {member.name: (member.header.shape, member.header.dtype) for member in members.values()}
        return ArrayFile(arrays, (path,), compressed)
    with hdf5.open_hdf5(path, name) as file:
        tree = hdf5.walk(file, name, roots)
        found = ArrayFile({}, (path, *sorted(tree.files)), problems=tree.problems)
        for key, dataset in tree.datasets.items():
            problems = hdf5.check_dataset(dataset, hdf5.place(name, key))
            found.problems.extend(problems)
            if not problems:
                found.arrays[key] = (dataset.shape, dataset.dtype)
        return found


@contextmanager
def open_arrays(path: Path, name: str) -> Iterator[ReadRows]:
    """Open a file to read row ranges of its arrays; nothing stays open afterwards.

    Raises
    ------
    InputError
        On opening or on reading, naming file and array.
    """
    kind = format_of(path)
    if kind == "npy":
        header = read_header(path, name)
        yield lambda _, lo, hi: _npy_rows(path, header, name, lo, hi)
    elif kind == "npz":
        members = npz_members(path, name)
        yield lambda key, lo, hi: _npz_rows(path, members[key], name, lo, hi)
    else:
        with hdf5.open_hdf5(path, name) as file:
            yield lambda key, lo, hi: hdf5.read_rows(file[key], hdf5.place(name, key), lo, hi)


def _npy_rows(path: Path, header: NpyHeader, name: str, lo: int, hi: int) -> NDArray[Any]:
    if header.fortran_order:
        return _native(np.ascontiguousarray(open_npy(path, name)[lo:hi]))
    return _in_place(path, header, name, lo, hi)


def _npz_rows(path: Path, member: NpzMember, name: str, lo: int, hi: int) -> NDArray[Any]:
    if member.header.fortran_order:
        return _native(np.ascontiguousarray(open_member(path, member, name)[lo:hi]))
    if member.compressed:
        return _native(_streamed(path, member, hdf5.place(name, member.name), lo, hi))
    return _in_place(path, member.header, hdf5.place(name, member.name), lo, hi)


def _in_place(path: Path, header: NpyHeader, where: str, lo: int, hi: int) -> NDArray[Any]:
    rows = np.empty((hi - lo, *header.shape[1:]), header.dtype)
    if rows.size:
        read_flat(path, header, lo * (rows.size // len(rows)), rows, where)
    return _native(rows)


def _streamed(path: Path, member: NpzMember, where: str, lo: int, hi: int) -> NDArray[Any]:
    rows = np.empty((hi - lo, *member.header.shape[1:]), member.header.dtype)
    if not rows.size:
        return rows
    flat = rows.reshape(-1).view(np.uint8)
    skip = member.header.offset + lo * (rows.nbytes // len(rows))
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{member.name}.npy") as content:
            _skip(content, skip)
            done = 0
            while done < flat.size and (block := content.read(min(_BLOCK, flat.size - done))):
                flat[done : done + len(block)] = np.frombuffer(block, np.uint8)
                done += len(block)
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        problem = Problem(
            where, f"rows {lo}:{hi} cannot be read: {error}", "copy or make it again", "damaged"
        )
        raise InputError(problem) from error
    if done < flat.size:
        problem = Problem(where, f"ends {flat.size - done} bytes early", "copy or make it again", "truncated")
        raise InputError(problem)
    return rows


def _skip(content: IO[bytes], count: int) -> None:
    while count and (block := content.read(min(_BLOCK, count))):
        count -= len(block)


def _native(rows: NDArray[Any]) -> NDArray[Any]:
    return rows.astype(rows.dtype.newbyteorder("="), copy=False)
