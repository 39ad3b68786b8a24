"""Reading the values of ``.npy`` files: memory-mapped, or in file order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.npy.header import NpyHeader, check_size, parse_header, unreadable
from unistore.converters.files.paths import file_version
from unistore.errors import InputError, Location, Problem

K = TypeVar("K")

_MOST_HEADERS = 64
_headers: dict[tuple[int, ...], NpyHeader] = {}
"""By the version of the file: families ask about the same one in turn."""
_HEAD = 128
"""Bytes of the header of most files."""
_heads: dict[bytes, NpyHeader] = {}
"""By the bytes of the header: many files have the same."""


def read_header(path: Path, location: str | None = None) -> NpyHeader:
    """Read the header of a ``.npy`` file and check the file's size against it.

    `location` is the name of the file in messages, by default its path, here and below.

    Raises
    ------
    InputError
        If it is unreadable, not ``.npy``, of object dtype, truncated or too long.
    """
    where = location or str(path)
    try:
        version = file_version(os.stat(path))  # noqa: PTH116  twice as fast as Path.stat
        if (found := _headers.get(version)) is not None:
            return found
        head, size = _head_and_size(path)
    except OSError as error:
        raise InputError(unreadable(where, error)) from error
    found = _heads.get(head)
    if found is None:
        with open_header(path, location) as (found, _):
            pass
    else:
        check_size(found, size, where)
    _keep(_headers, version, found)
    return found


def _head_and_size(path: Path) -> tuple[bytes, int]:
    """The first bytes of a file, and its size; not buffered: many files are tiny."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _HEAD), os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _keep(headers: dict[K, NpyHeader], key: K, header: NpyHeader) -> None:
    if len(headers) >= _MOST_HEADERS:
        headers.clear()
    headers[key] = header


@contextmanager
def open_header(path: Path, location: str | None = None) -> Iterator[tuple[NpyHeader, BufferedReader]]:
    """Context of the header, as from `read_header`, and the open file, for `flat_reader`."""
    where = location or str(path)
    with _opened(path, where) as file:
        try:
            head, size = file.peek(_HEAD)[:_HEAD], os.fstat(file.fileno()).st_size
            header = _heads.get(head) or parse_header(file, where)
        except OSError as error:
            raise InputError(unreadable(where, error)) from error
        check_size(header, size, where)
        if header.offset == len(head):
            _keep(_heads, head, header)
        yield header, file


def open_npy(path: Path, location: str | None = None) -> NDArray[Any]:
    """Memory-map a ``.npy`` file, read-only, in its own dtype, byte order and axis order."""
    return map_values(path, read_header(path, location), location or str(path))


@contextmanager
def open_flat(
    path: Path, header: NpyHeader, location: Location | str | None = None
) -> Iterator[Callable[[int, NDArray[Any]], None]]:
    """Open a file for reading values in file order: ``read(start, out)``.

    ``out`` is filled with values from index ``start`` on. It is C-contiguous, writeable, of ``header.dtype``
    and any shape. In Fortran-ordered files, axis 0 varies fastest. The file is not memory-mapped.

    `header` may be that of an uncompressed ``.npz`` member.

    Raises
    ------
    InputError
        If the file ends before ``out`` is full (it was truncated after its header was read).
    """
    where = location or str(path)
    with _opened(path, where) as file:
        yield flat_reader(file, header, where)


def _opened(path: Path, where: Location | str) -> BufferedReader:
    try:
        return open(path, "rb")  # noqa: PTH123  half of the time: many files are tiny
    except OSError as error:
        raise InputError(unreadable(where, error)) from error


def flat_reader(
    file: BufferedReader, header: NpyHeader, where: Location | str
) -> Callable[[int, NDArray[Any]], None]:
    """Function that reads values from an open file, as that of `open_flat`."""

    def read(start: int, out: NDArray[Any]) -> None:
        if out.dtype != header.dtype or not out.flags.c_contiguous:
            message = f"out must be C-contiguous {header.dtype}, got {out.dtype} with strides {out.strides}"
            raise ValueError(message)
        view = out.reshape(-1).view(np.uint8).data
        try:
            file.seek(header.offset + start * header.dtype.itemsize)
            missing = len(view) - file.readinto(view)
        except OSError as error:
            raise InputError(unreadable(where, error)) from error
        if missing:
            message = f"ended {missing} bytes early while it was read"
            cure = "it changed during the conversion: run again when it is complete"
            raise InputError(Problem.at(where, message, cure, "truncated"))

    return read


def map_values(path: Path, header: NpyHeader, where: Location | str) -> NDArray[Any]:
    """Memory-map the values that a header describes, read-only."""
    order: Literal["F", "C"] = "F" if header.fortran_order else "C"
    if header.nbytes == 0:
        empty: NDArray[Any] = np.empty(header.shape, header.dtype, order)
        empty.flags.writeable = False
        return empty
    try:
        mapped: NDArray[Any] = np.memmap(path, header.dtype, "r", header.offset, header.shape, order)
    except (OSError, ValueError) as error:
        raise InputError(unreadable(where, error)) from error
    return mapped
