"""Headers and values of ``.npy`` and ``.npz`` files, read without numpy's pickle path.

Format: numpy's "NPY format" (``numpy.lib.format``), versions 1.0, 2.0 and 3.0. Object arrays are refused
before a single value is looked at. A file shorter or longer than its header says is refused, with both sizes.
"""

from __future__ import annotations

import ast
import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from unistore.errors import InputError, Problem

__all__ = [
    "NpyHeader",
    "NpzMember",
    "npz_members",
    "open_flat",
    "open_member",
    "open_npy",
    "read_flat",
    "read_header",
]

_MAGIC = b"\x93NUMPY"
_HEADER_LIMIT = 1 << 16  # a literal longer than this is no header of an array
_PY2_LONG = re.compile(r"(?<=\d)L\b")  # Python 2 wrote shapes as (3L, 4L)
_LOOKALIKES = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "run `git lfs pull`"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", "give it the ending .h5"),
    (b"PK\x03\x04", "a zip archive", "give it the ending .npz"),
    (b"\x80", "a Python pickle, which is never opened", "load it where it was made and save with np.save"),
)


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """What stands before the values of an array.

    Attributes
    ----------
    shape
        Shape of the array, in the order of its axes.
    dtype
        As stored: big-endian arrays keep their byte order here.
    fortran_order
        True: axis 0 varies fastest in the file.
    offset
        Byte where the values begin: in the file, or, for a compressed ``.npz`` member, in its content.
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


@dataclass(frozen=True, slots=True)
class NpzMember:
    """One array of an ``.npz`` file; `open_member` reads it.

    Attributes
    ----------
    name
        As ``np.load`` names it (without ``.npy``).
    header
        Its shape, dtype and place.
    compressed
        True: ``header.offset`` counts in the decompressed content. False: in the ``.npz`` file.
    """

    name: str
    header: NpyHeader
    compressed: bool


def read_header(path: Path, location: str | None = None) -> NpyHeader:
    """Read the header of a ``.npy`` file and check the file's size against it.

    Parameters
    ----------
    path
        The file.
    location
        What an error calls the file; its path by default.

    Raises
    ------
    InputError
        Unreadable, not ``.npy``, object dtype, truncated or too long.
    """
    where = location or str(path)
    try:
        with path.open("rb") as file:
            header = _parse(file, where)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise InputError(_unreadable(where, error)) from error
    _check_size(header, size, where)
    return header


def open_npy(path: Path, location: str | None = None) -> NDArray[Any]:
    """Map a ``.npy`` file into memory, read-only, in its own dtype, byte order and axis order.

    Raises
    ------
    InputError
        As `read_header`.
    """
    return _map(path, read_header(path, location), location or str(path))


def read_flat(
    path: Path, header: NpyHeader, start: int, out: NDArray[Any], location: str | None = None
) -> None:
    """Read ``out.size`` values from number ``start`` on, in the order of the file, into ``out``.

    See `open_flat`, for which this is one call.
    """
    with open_flat(path, header, location) as read:
        read(start, out)


@contextmanager
def open_flat(
    path: Path, header: NpyHeader, location: str | None = None
) -> Iterator[Callable[[int, NDArray[Any]], None]]:
    """Open a file for reading runs of values in the order of the file: ``read(start, out)``.

    ``out`` is filled with values from number ``start`` on: C-contiguous, writeable, of ``header.dtype``; any
    shape. No mapping is involved: memory holds ``out`` alone. Fortran-ordered files yield axis 0 fastest.

    Parameters
    ----------
    path, header
        The file and its `read_header` (or an uncompressed member's header).
    location
        What an error calls the file; its path by default.

    Raises
    ------
    InputError
        The file ends before ``out`` is full (it was cut after its header was read).
    """
    where = location or str(path)

    def read(start: int, out: NDArray[Any]) -> None:
        if out.dtype != header.dtype or not out.flags.c_contiguous:
            message = f"out must be C-contiguous {header.dtype}, got {out.dtype} with strides {out.strides}"
            raise ValueError(message)
        view = out.reshape(-1).view(np.uint8).data
        try:
            file.seek(header.offset + start * header.dtype.itemsize)
            missing = len(view) - _fill(file, view)
        except OSError as error:
            raise InputError(_unreadable(where, error)) from error
        if missing:
            message = f"ended {missing} bytes early while it was read"
            cure = "it changed during the conversion: run again when it is complete"
            raise InputError(Problem(where, message, cure, "truncated"))

    try:
        file = path.open("rb", buffering=0)
    except OSError as error:
        raise InputError(_unreadable(where, error)) from error
    with file:
        yield read


def npz_members(path: Path, location: str | None = None) -> dict[str, NpzMember]:
    """Headers of every array in an ``.npz`` file, in the file's order.

    Members that are not ``.npy`` are left out.

    Raises
    ------
    InputError
        Not a complete zip file, or with the problems of every member.
    """
    where = location or str(path)
    members: dict[str, NpzMember] = {}
    problems: list[Problem] = []
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                if not info.filename.endswith(".npy"):
                    continue
                name = info.filename[: -len(".npy")]
                try:
                    if name in members:
                        raise InputError(
                            Problem(f"{where}: {name}", "is there twice", "save it again", "invalid")
                        )
                    members[name] = _member(file, archive, info, f"{where}: {name}")
                except InputError as error:
                    problems += error.problems
    except OSError as error:
        raise InputError(_unreadable(where, error)) from error
    except zipfile.BadZipFile as error:
        raise InputError(_bad_zip(path, where, error)) from error
    if problems:
        raise InputError(problems)
    return members


def open_member(path: Path, member: NpzMember, location: str | None = None) -> NDArray[Any]:
    """Values of one ``.npz`` member, read-only: mapped where stored, decompressed into memory otherwise.

    Raises
    ------
    InputError
        The compressed content is damaged.
    """
    where = f"{location or path}: {member.name}"
    header = member.header
    if not member.compressed:
        return _map(path, header, where)
    flat = np.empty(header.count, header.dtype)
    view = flat.view(np.uint8).data
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{member.name}.npy") as content:
            _exactly(content, header.offset, where)
            missing = len(view) - _fill(content, view)
    except OSError as error:
        raise InputError(_unreadable(where, error)) from error
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise InputError(
            Problem(where, f"is damaged: {error}", "copy or make it again", "corrupt")
        ) from error
    if missing:
        expected = header.offset + len(view)
        raise InputError(_truncated(where, expected - missing, expected))
    flat.flags.writeable = False
    return flat.reshape(header.shape, order="F" if header.fortran_order else "C")


def _map(path: Path, header: NpyHeader, where: str) -> NDArray[Any]:
    order: Literal["F", "C"] = "F" if header.fortran_order else "C"
    if header.nbytes == 0:
        empty: NDArray[Any] = np.empty(header.shape, header.dtype, order)
        empty.flags.writeable = False
        return empty
    try:
        mapped: NDArray[Any] = np.memmap(path, header.dtype, "r", header.offset, header.shape, order)
    except (OSError, ValueError) as error:
        raise InputError(_unreadable(where, error)) from error
    return mapped


def _member(file: IO[bytes], archive: zipfile.ZipFile, info: zipfile.ZipInfo, where: str) -> NpzMember:
    if info.flag_bits & 0x1:
        raise InputError(Problem(where, "is encrypted", "unpack it and save it with np.savez", "encrypted"))
    name = info.filename[: -len(".npy")]
    try:
        with archive.open(info) as content:
            header = _parse(content, where)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise InputError(
            Problem(where, f"is damaged: {error}", "copy or make it again", "corrupt")
        ) from error
    _check_size(header, info.file_size, where)
    if info.compress_type != zipfile.ZIP_STORED:
        return NpzMember(name, header, compressed=True)
    # Local file header (PKWARE APPNOTE 4.3.7): 30 fixed bytes, the last four hold two lengths.
    file.seek(info.header_offset)
    name_bytes, extra_bytes = struct.unpack("<HH", _exactly(file, 30, where)[26:])
    start = info.header_offset + 30 + name_bytes + extra_bytes
    placed = NpyHeader(header.shape, header.dtype, header.fortran_order, start + header.offset)
    return NpzMember(name, placed, compressed=False)


def _parse(file: IO[bytes], where: str) -> NpyHeader:
    magic = file.read(8)
    if not magic:
        raise InputError(Problem(where, "is empty (0 bytes)", "copy or make it again", "empty"))
    if not magic.startswith(_MAGIC):
        raise InputError(_not_npy(where, magic + file.read(32)))
    if len(magic) < 8:
        raise InputError(
            Problem(where, f"ends inside its header: {len(magic)} bytes", "copy it again", "truncated")
        )
    version = (magic[6], magic[7])
    if version not in ((1, 0), (2, 0), (3, 0)):
        message = f"has npy version {version[0]}.{version[1]}, expected 1.0, 2.0 or 3.0"
        raise InputError(Problem(where, message, "save it again with np.save", "version"))
    layout = "<H" if version == (1, 0) else "<I"
    width = struct.calcsize(layout)
    (length,) = struct.unpack(layout, _exactly(file, width, where))
    if length > _HEADER_LIMIT:
        message = f"has a header of {length} bytes, expected at most {_HEADER_LIMIT}"
        raise InputError(Problem(where, message, "save it again with np.save", "header"))
    text = _exactly(file, length, where).decode("utf-8" if version == (3, 0) else "latin-1", "replace")
    shape, dtype, fortran_order = _literal(text, where)
    return NpyHeader(shape, dtype, fortran_order, len(magic) + width + length)


def _literal(text: str, where: str) -> tuple[tuple[int, ...], np.dtype[Any], bool]:
    try:
        try:
            found = ast.literal_eval(text.strip())
        except SyntaxError:
            found = ast.literal_eval(_PY2_LONG.sub("", text).strip())
        shape, fortran_order = found["shape"], found["fortran_order"]
        dtype = np.lib.format.descr_to_dtype(found["descr"])
    except (SyntaxError, ValueError, TypeError, KeyError, RecursionError, MemoryError) as error:
        message = f"has a damaged header: {text.strip()[:80]!r}"
        raise InputError(Problem(where, message, "save it again with np.save", "header")) from error
    sizes_fit = isinstance(shape, tuple) and all(type(extent) is int and extent >= 0 for extent in shape)
    if not sizes_fit or not isinstance(fortran_order, bool):
        message = f"has shape {shape!r} and fortran_order {fortran_order!r} in its header"
        raise InputError(Problem(where, message, "save it again with np.save", "header"))
    if dtype.hasobject:
        message = "is an array of Python objects (a pickle), which is never opened"
        cure = "load it where it was made and save numbers: np.save(path, np.stack(list(array)))"
        raise InputError(Problem(where, message, cure, "object"))
    if dtype.itemsize == 0:
        raise InputError(Problem(where, f"has dtype {dtype}, which has no bytes", "save it as text", "dtype"))
    return shape, dtype, fortran_order


def _check_size(header: NpyHeader, size: int, where: str) -> None:
    expected = header.offset + header.nbytes
    if size < expected:
        raise InputError(_truncated(where, size, expected))
    if size > expected:
        message = (
            f"holds {size} bytes, {size - expected} more than its header {header.shape} {header.dtype} says"
        )
        cure = "several arrays in one file? save each with np.save, or all with np.savez"
        raise InputError(Problem(where, message, cure, "trailing"))


def _fill(file: FileIO | IO[bytes], view: memoryview) -> int:
    done = 0
    while done < len(view):
        got = file.readinto(view[done:])  # type: ignore[union-attr]  # every binary file has it
        if not got:
            break
        done += got
    return done


def _exactly(file: IO[bytes], count: int, where: str) -> bytes:
    data = file.read(count)
    if len(data) < count:
        raise InputError(Problem(where, "ends inside its header", "copy or make it again", "truncated"))
    return data


def _truncated(where: str, size: int, expected: int) -> Problem:
    return Problem(
        where, f"is truncated: holds {size} of {expected} bytes", "copy or make it again", "truncated"
    )


def _unreadable(where: str, error: Exception) -> Problem:
    reason = getattr(error, "strerror", None) or str(error)
    return Problem(where, f"cannot be read: {reason}", "", "unreadable")


def _not_npy(where: str, head: bytes) -> Problem:
    for start, what, cure in _LOOKALIKES:
        if head.startswith(start):
            return Problem(where, f"is {what}", cure, "format")
    return Problem(where, f"is no .npy file: it begins with {head[:8]!r}", "save it with np.save", "format")


def _bad_zip(path: Path, where: str, error: Exception) -> Problem:
    with path.open("rb") as file:
        head = file.read(32)
    if not head:
        return Problem(where, "is empty (0 bytes)", "copy or make it again", "empty")
    if head.startswith(b"PK"):
        return Problem(where, f"is truncated or damaged: {error}", "copy or make it again", "truncated")
    if head.startswith(_MAGIC):
        return Problem(where, "is a .npy file", "give it the ending .npy", "format")
    for start, what, cure in _LOOKALIKES[:2]:
        if head.startswith(start):
            return Problem(where, f"is {what}", cure, "format")
    return Problem(where, f"is no .npz file: it begins with {head[:8]!r}", "save it with np.savez", "format")
