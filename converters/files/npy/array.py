"""``.npy`` files: headers as NumPy reads them, checked against the size; values, mapped or in file order.

Nothing is unpickled: arrays of Python objects are refused, and so are files that are shorter or longer than
their header says.
"""

from __future__ import annotations

import copy
import io
import math
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.faults import CHECK_DISK, UNREADABLE, reason_of
from unistore.converters.files.formats import NPY_SIGNATURE, lookalike_problem
from unistore.errors import InputError, Location, Problem

NPY_NAME = "data"
"""Name given to the array of a ``.npy`` file."""
# Bytes of the header of most files
_HEAD = 128
_MAX_HEADER = 1 << 16
MOST_COLUMNS = 16
"""Columns of an array in Fortran order that are read apart."""
_COPY_AGAIN = "copy or make it again"
_VERSIONS = ("1.0", "2.0", "3.0")


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """Header of an array.

    Attributes
    ----------
    dtype
        As stored, byte order included.
    fortran_order
        Whether axis 0 varies fastest in the file.
    offset
        Byte offset of the values: in the file, or, for a compressed ``.npz`` member, in its content.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran_order: bool
    offset: int

    @property
    def count(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return self.count * self.dtype.itemsize

    @property
    def order(self) -> Literal["F", "C"]:
        """As NumPy names it."""
        return "F" if self.fortran_order else "C"


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
        # neither buffered nor a file object: many files are tiny
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            header = header_from(lambda count: os.read(descriptor, count), where)
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InputError(unreadable(where, error)) from error
    check_size(header, size, where)
    return header


def header_from(read: Callable[[int], bytes], where: Location | str) -> NpyHeader:
    """Read a header by ``read(count)``, which gives the next bytes; `NpyHeader.offset` counts from the first.

    Raises
    ------
    InputError
        If it is not a valid header, or the array holds Python objects.
    """
    head = read(_HEAD)
    size = _header_size(head)
    if len(head) < size <= _MAX_HEADER:
        head += read(size - len(head))
    try:
        return _parsed(head[:size])
    except InputError as error:
        # what is cached knows no file
        (problem,) = error.problems
        raise InputError(Problem.at(where, problem.message, problem.cure, problem.kind)) from error


def _header_size(head: bytes) -> int:
    """Bytes of a header, by its first ones: a length of two bytes in version 1, of four in others."""
    start = 10 if head[6:7] == b"\1" else 12
    return start + int.from_bytes(head[8:start], "little")


@lru_cache(64)
def _parsed(head: bytes) -> NpyHeader:
    """Parse a header; many files have the same."""
    size = _header_size(head)
    if not head.startswith(NPY_SIGNATURE[: max(1, len(head))]):
        raise InputError(_no_npy(head))
    version = ".".join(map(str, head[6:8]))
    if version not in _VERSIONS and len(head) >= 8:
        raise _refused("version", f"has npy version {version}, expected {', '.join(_VERSIONS)}")
    if size > _MAX_HEADER and len(head) >= 12:
        raise _refused("header", f"has a header of {size} bytes, expected at most {_MAX_HEADER}")
    if len(head) < size:
        raise _refused("truncated", "ends inside its header", _COPY_AGAIN)
    try:
        shape, fortran_order, dtype = _read_by_numpy(io.BytesIO(head))
    except Exception as error:
        # NumPy parses the text as Python, and hostile text makes that raise nearly anything
        raise _refused("header", f"has a damaged header: {head[10:90]!r}") from error
    _check(shape, dtype)
    return NpyHeader(shape, dtype, fortran_order, size)


def _read_by_numpy(file: io.BytesIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    with warnings.catch_warnings():
        # of Python 2, which wrote shapes as (3L, 4L)
        warnings.simplefilter("ignore", UserWarning)
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(file, _MAX_HEADER)
        if version == (3, 0):
            # NumPy has no public function for version 3, which is version 2 with names in UTF-8: escape them
            text = file.read()[4:].decode().encode("ascii", "backslashreplace")
            file = io.BytesIO(len(text).to_bytes(4, "little") + text)
        return np.lib.format.read_array_header_2_0(file, _MAX_HEADER)


def _check(shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if any(type(extent) is not int or extent < 0 for extent in shape):
        raise _refused("header", f"has shape {shape!r} in its header")
    if dtype.hasobject:
        message = "is an array of Python objects (a pickle), which is never opened"
        cure = "load it where it was made and save numbers: np.save(path, np.stack(list(array)))"
        raise _refused("object", message, cure)
    if dtype.itemsize == 0:
        raise _refused("dtype", f"has dtype {dtype}, which has no bytes", "save it as text")
    try:
        np.empty((0, *shape), dtype)  # allocates nothing, but checks the shape
    except (ValueError, OverflowError) as error:
        raise _refused("header", f"has a shape in its header that no array can have: {error}") from error


def _no_npy(head: bytes) -> Problem:
    if not head:
        return Problem("", "is empty (0 bytes)", _COPY_AGAIN, "empty")
    message = f"is no .npy file: it begins with {head[:8]!r}"
    return lookalike_problem(head, "") or Problem("", message, "save it with np.save", "format")


def _refused(kind: str, message: str, cure: str = "save it again with np.save") -> InputError:
    return InputError(Problem("", message, cure, kind))


def check_size(header: NpyHeader, size: int, where: Location | str) -> None:
    """Refuse a file, or the content of a member, if its `size` in bytes contradicts its header."""
    expected = header.offset + header.nbytes
    if size < expected:
        raise InputError(truncated(where, size, expected))
    if size > expected:
        message = (
            f"holds {size} bytes, {size - expected} more than its header {header.shape} {header.dtype} says"
        )
        cure = "several arrays in one file? save each with np.save, or all with np.savez"
        raise InputError(Problem.at(where, message, cure, "trailing"))


def truncated(where: Location | str, size: int, expected: int) -> Problem:
    """Problem: the file has `size` bytes of `expected`."""
    message = f"is truncated: holds {size} of {expected} bytes"
    return Problem.at(where, message, _COPY_AGAIN, "truncated")


def unreadable(where: Location | str, error: Exception) -> Problem:
    """Problem: the operating system cannot read the file."""
    reason = getattr(error, "strerror", None) or reason_of(error)
    return Problem.at(where, f"cannot be read: {reason}", CHECK_DISK, UNREADABLE)


class ArrayValues(ABC):
    """Values of an array in a file; rows are read when they are sliced, in native byte order.

    Attributes
    ----------
    header
        Of the array.
    where
        What messages call it.
    compressed
        Whether values are read from the first on.
    """

    compressed: ClassVar[bool] = False

    def __init__(self, header: NpyHeader, where: Location | str) -> None:
        self.header = header
        self.where = where

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of every axis."""
        return self.header.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype as in the file, byte order included."""
        return self.header.dtype

    @property
    def fortran_order(self) -> bool:
        """Whether the last axis varies slowest in the file."""
        return self.header.fortran_order

    @property
    def memory(self) -> int:
        """Bytes that reading takes beside the rows."""
        return 0

    @property
    def chunk_rows(self) -> int:
        """Rows that are read together at least; 0: all that are asked for."""
        return 1

    @property
    def T(self) -> Self:  # noqa: N802  as of an array
        """The same values with reversed axes."""
        transposed = copy.copy(self)
        order = not self.header.fortran_order
        transposed.header = replace(self.header, shape=self.shape[::-1], fortran_order=order)
        return transposed

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        lo, hi, step = rows.indices(self.shape[0])
        return self.read_into(lo, max(lo, hi))[::step]

    def read_into(self, lo: int, hi: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read rows ``lo:hi``; in `out`, C-contiguous and of that shape, if its dtype is that of the file.

        Raises
        ------
        InputError
            If the file is damaged, or ends early: it was cut off after its header was read.
        """
        shape = (hi - lo, *self.shape[1:])
        width = math.prod(shape[1:])
        if self.header.fortran_order and len(shape) > 1:
            # Each column is a run in the file. Many of them would be many small reads.
            if not self._has_few_columns:
                return _native(np.ascontiguousarray(self.whole()[lo:hi]))
            columns = np.empty((width, hi - lo), self.dtype)
            for number, column in enumerate(columns):
                self.fill(number * self.shape[0] + lo, column)
            return _native(np.ascontiguousarray(columns.reshape(shape[:0:-1] + shape[:1]).T))
        rows = out if out is not None and out.dtype == self.dtype else np.empty(shape, self.dtype)
        if rows.size:
            self.fill(lo * width, rows)
        return _native(rows)

    @property
    def _has_few_columns(self) -> bool:
        return math.prod(self.shape[1:]) <= MOST_COLUMNS

    @abstractmethod
    def fill(self, start: int, out: NDArray[Any]) -> None:
        """Fill `out`, C-contiguous, of the file's dtype, with values in file order from number `start` on."""

    @abstractmethod
    def whole(self) -> NDArray[Any]:
        """Return all values, read-only, in the file's dtype; mapped if they can be."""


class FileValues(ArrayValues):
    """Values that stand in a file as they are; it is opened when the first of them are read.

    Parameters
    ----------
    header, where
        As in `ArrayValues`.
    path
        The file.
    """

    def __init__(self, header: NpyHeader, where: Location | str, path: Path) -> None:
        super().__init__(header, where)
        self._path = path
        self._files: list[BufferedReader] = []  # none or one, also that of `T`

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, if values were read."""
        while self._files:
            self._files.pop().close()

    def fill(self, start: int, out: NDArray[Any]) -> None:
        """Read them; the file is not mapped, since a disk that fails would end the process."""
        view = out.reshape(-1).view(np.uint8).data
        try:
            if not self._files:
                # half of the time of Path.open: many files are tiny
                self._files.append(open(self._path, "rb"))  # noqa: PTH123, SIM115
            (file,) = self._files
            file.seek(self.header.offset + start * self.dtype.itemsize)
            missing = len(view) - file.readinto(view)
        except OSError as error:
            raise InputError(unreadable(self.where, error)) from error
        if missing:
            message = f"ended {missing} bytes early while it was read"
            cure = "it changed during the conversion: run again when it is complete"
            raise InputError(Problem.at(self.where, message, cure, "truncated"))

    def whole(self) -> NDArray[Any]:
        """Map them."""
        header = self.header
        if header.nbytes == 0:
            empty: NDArray[Any] = np.empty(header.shape, header.dtype, header.order)
            empty.flags.writeable = False
            return empty
        try:
            mapped: NDArray[Any] = np.memmap(
                self._path, header.dtype, "r", header.offset, header.shape, header.order
            )
        except (OSError, ValueError) as error:
            raise InputError(unreadable(self.where, error)) from error
        return mapped


def open_npy(path: Path, location: str | None = None) -> FileValues:
    """Context of the values of a ``.npy`` file; the header is read now, as by `read_header`."""
    return FileValues(read_header(path, location), location or str(path), path)


def _native(rows: NDArray[Any]) -> NDArray[Any]:
    return rows.astype(rows.dtype.newbyteorder("="), copy=False)
