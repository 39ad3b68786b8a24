"""Headers of ``.npy`` arrays, parsed without unpickling.

Format: numpy's "NPY format" (``numpy.lib.format``), versions 1.0, 2.0 and 3.0. Arrays of Python objects are
refused, and so are files that are shorter or longer than their header says.
"""

from __future__ import annotations

import ast
import math
import re
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import IO, Any

import numpy as np

from unistore.converters.common.faults import CHECK_DISK, UNREADABLE, reason_of
from unistore.converters.files.formats import NPY_SIGNATURE, lookalike_problem
from unistore.errors import InputError, Location, Problem

_MAX_HEADER = 1 << 16
_SPACE = " \t\r\n"
_PY2_LONG = re.compile(r"(?<=\d)L\b")  # Python 2 wrote shapes as (3L, 4L)


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


def parse_header(file: IO[bytes], where: Location | str) -> NpyHeader:
    """Read a header from the current position on; its ``offset`` is relative to that position.

    Raises
    ------
    InputError
        If it is not a valid header, or the array holds Python objects.
    """
    magic = file.read(8)
    if not magic:
        raise InputError(Problem.at(where, "is empty (0 bytes)", "copy or make it again", "empty"))
    if not magic.startswith(NPY_SIGNATURE[: len(magic)]):
        head = magic + file.read(32)
        message = f"is no .npy file: it begins with {head[:8]!r}"
        raise InputError(
            lookalike_problem(head, where) or Problem.at(where, message, "save it with np.save", "format")
        )
    if len(magic) < 8:
        raise InputError(_cut_short(where))
    version = (magic[6], magic[7])
    if version not in ((1, 0), (2, 0), (3, 0)):
        message = f"has npy version {version[0]}.{version[1]}, expected 1.0, 2.0 or 3.0"
        raise InputError(Problem.at(where, message, "save it again with np.save", "version"))
    layout = "<H" if version == (1, 0) else "<I"
    width = struct.calcsize(layout)
    (length,) = struct.unpack(layout, exactly(file, width, where))
    if length > _MAX_HEADER:
        raise _wrong(where, f"has a header of {length} bytes, expected at most {_MAX_HEADER}")
    text = exactly(file, length, where).decode("utf-8" if version == (3, 0) else "latin-1", "replace")
    try:
        shape, dtype, fortran_order = _cached_literal(text)
    except InputError:
        shape, dtype, fortran_order = _parse_literal(text, where)  # raises again, with the name
    return NpyHeader(shape, dtype, fortran_order, len(magic) + width + length)


@lru_cache(256)
def _cached_literal(text: str) -> tuple[tuple[int, ...], np.dtype[Any], bool]:
    """As `_parse_literal`: many files have equal headers."""
    return _parse_literal(text, "")


def _parse_literal(text: str, where: Location | str) -> tuple[tuple[int, ...], np.dtype[Any], bool]:
    try:
        try:
            found = ast.literal_eval(text.strip(_SPACE))
        except SyntaxError:
            found = ast.literal_eval(_PY2_LONG.sub("", text).strip(_SPACE))
        shape, fortran_order = found["shape"], found["fortran_order"]
        dtype = np.lib.format.descr_to_dtype(found["descr"])
    except (SyntaxError, ValueError, TypeError, KeyError, RecursionError, MemoryError) as error:
        raise _wrong(where, f"has a damaged header: {text.strip()[:80]!r}") from error
    sizes_fit = isinstance(shape, tuple) and all(type(extent) is int and extent >= 0 for extent in shape)
    if not sizes_fit or not isinstance(fortran_order, bool):
        raise _wrong(where, f"has shape {shape!r} and fortran_order {fortran_order!r} in its header")
    if dtype.hasobject:
        message = "is an array of Python objects (a pickle), which is never opened"
        cure = "load it where it was made and save numbers: np.save(path, np.stack(list(array)))"
        raise InputError(Problem.at(where, message, cure, "object"))
    if dtype.itemsize == 0:
        raise InputError(
            Problem.at(where, f"has dtype {dtype}, which has no bytes", "save it as text", "dtype")
        )
    try:
        np.empty((0, *shape), dtype)  # allocates nothing, but checks the shape
    except (ValueError, OverflowError) as error:
        raise _wrong(where, f"has a shape in its header that no array can have: {error}") from error
    return shape, dtype, fortran_order


def _wrong(where: Location | str, message: str) -> InputError:
    return InputError(Problem.at(where, message, "save it again with np.save", "header"))


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


def exactly(file: IO[bytes], count: int, where: Location | str) -> bytes:
    """Read exactly `count` bytes of a header."""
    data = file.read(count)
    if len(data) < count:
        raise InputError(_cut_short(where))
    return data


def _cut_short(where: Location | str) -> Problem:
    return Problem.at(where, "ends inside its header", "copy or make it again", "truncated")


def truncated(where: Location | str, size: int, expected: int) -> Problem:
    """Problem: the file has `size` bytes of `expected`."""
    return Problem.at(
        where, f"is truncated: holds {size} of {expected} bytes", "copy or make it again", "truncated"
    )


def unreadable(where: Location | str, error: Exception) -> Problem:
    """Problem: the operating system cannot read the file."""
    reason = getattr(error, "strerror", None) or reason_of(error)
    return Problem.at(where, f"cannot be read: {reason}", CHECK_DISK, UNREADABLE)
