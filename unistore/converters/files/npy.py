"""Read ``.npy`` files and members of ``.npz`` files in file order, after a check of their headers."""

# Nothing is unpickled. Files that are shorter or longer than their header says are refused before memory is
# taken for them.

from __future__ import annotations

import ast
import copy
import lzma
import math
import os
import re
import struct
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import numpy as np

from unistore.converters.common.faults import CHECK_DISK, COPY_AGAIN, UNREADABLE, as_problem, reason_of
from unistore.converters.files.formats import lfs_pointer_problem
from unistore.errors import InputError, Location, Problem, Where
from unistore.system.types import AnyArray, Dtype, Shape

# Name given to the array of a `.npy` file
NPY_NAME = "data"
_SIGNATURE = b"\x93NUMPY"
# Bytes of the header of most files
_HEAD = 128
_MAX_HEADER = 1 << 16
# Bytes decompressed at a time
_BLOCK = 1 << 20
# Bytes of rows of a compressed array in Fortran order that are kept, and how often it is decompressed at
# most while it is read from its first row to its last: a larger part of a larger one is kept
_KEPT = 256 << 20
_MOST_PASSES = 8
# Bytes that one byte of deflate (RFC 1951) can decode to at most: 258 by two codes of one bit each
_MAX_DEFLATE_RATIO = 1032

# A length as Python 2 wrote it
_LONG = re.compile(r"(?<=\d)L(?=[,)])")


class NpyHeader(NamedTuple):
    """Header of an array."""

    shape: Shape
    dtype: Dtype  # as stored, byte order included
    fortran_order: bool  # whether axis 0 varies fastest in the file
    offset: int  # of the values, in the file or in the content of a compressed member

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(path: Path, location: str | None = None) -> NpyHeader:
    """Read the header of a ``.npy`` file, which messages call `location`, and check the file's size."""
    where = location or str(path)
    try:
        # neither buffered nor a file object: many files are tiny
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            header = _header_from(lambda count: os.read(descriptor, count), where)
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
    except OSError as error:
        raise _unreadable(where, error) from error
    _check_size(header, size, where)
    return header


def _header_from(read: Callable[[int], bytes], where: Where) -> NpyHeader:
    """Read a header by ``read(count)``, which gives the next bytes. Its offset counts from the first."""
    head = read(_HEAD)
    size = _header_size(head)
    if len(head) < size <= _MAX_HEADER:
        head += read(size - len(head))
    try:
        return _parsed(head[:size])
    except InputError as error:
        # what is cached knows no file
        (problem,) = error.problems
        raise InputError.at(where, problem.message, problem.fix, problem.kind) from error


def _header_size(head: bytes) -> int:
    """Bytes of a header, by its first ones: a length of two bytes in version 1, of four in others."""
    start = _text_start(head)
    return start + int.from_bytes(head[8:start], "little")


def _text_start(head: bytes) -> int:
    return 10 if head[6:7] == b"\1" else 12


@lru_cache(64)
def _parsed(head: bytes) -> NpyHeader:
    """Parse a header. Many files have the same."""
    size = _header_size(head)
    if not head:
        raise _refused("empty", "is empty (0 bytes)", COPY_AGAIN)
    if not head.startswith(_SIGNATURE[: len(head)]):
        message = f"is not a .npy file: it begins with {head[:8]!r}"
        pointer_problem = lfs_pointer_problem(head, "")
        if pointer_problem is not None:
            raise InputError(pointer_problem)
        raise _refused("format", message, "save the array with np.save, or correct the file name")
    version = ".".join(map(str, head[6:8]))
    if len(head) >= 8 and version not in ("1.0", "2.0", "3.0"):
        raise _refused("version", f"is a .npy file of version {version}; versions 1.0, 2.0 and 3.0 are known")
    if size > _MAX_HEADER and len(head) >= 12:
        raise _refused("header", f"has a header of {size:,} bytes, but at most {_MAX_HEADER:,} are allowed")
    if len(head) < size or len(head) < 10:
        raise _refused("truncated", "is truncated: it ends inside its header", COPY_AGAIN)
    try:
        text = head[_text_start(head) :].decode("utf-8" if head[6] == 3 else "latin-1")
        fields = ast.literal_eval(_LONG.sub("", text))
        shape, is_fortran, descr = (fields.pop(key) for key in ("shape", "fortran_order", "descr"))
        dtype = np.lib.format.descr_to_dtype(descr)
        if fields or not (isinstance(shape, tuple) and isinstance(is_fortran, bool)):
            raise ValueError("other fields")
    except Exception as error:
        # the text is parsed as Python, and hostile text makes that raise nearly anything
        raise _refused("header", f"has a damaged header: {head[10:90]!r}") from error
    _check(shape, dtype)
    return NpyHeader(shape, dtype, is_fortran, size)


def _check(shape: Shape, dtype: Dtype) -> None:
    if any(type(extent) is not int or extent < 0 for extent in shape):
        raise _refused("header", f"its header states the shape {shape!r}, which no array has")
    if dtype.hasobject:
        raise _refused(
            "object",
            "contains pickled Python objects, which are never loaded, because that could run any program",
            "load it where it was written and save numbers: np.save(path, np.stack(list(array)))",
        )
    if dtype.itemsize == 0:
        raise _refused("dtype", f"has the dtype {dtype}, whose values have 0 bytes", "save numbers or texts")
    try:
        np.empty((0, *shape), dtype)  # allocates nothing, but checks the shape
    except (ValueError, OverflowError) as error:
        message = f"its header states the shape {shape!r}, which no array has: {error}"
        raise _refused("header", message) from error


def _refused(kind: str, message: str, fix: str = "save it again with np.save") -> InputError:
    return InputError(Problem("", message, fix, kind))


def _check_size(header: NpyHeader, size: int, where: Where) -> None:
    """Refuse a file, or the content of a member, if its `size` in bytes contradicts its header."""
    expected = header.offset + header.nbytes
    if size < expected:
        raise _truncated(where, size, expected)
    if size > expected:
        stated = f"its header states {expected:,}, for the shape {header.shape} and the dtype {header.dtype}"
        raise InputError.at(
            where,
            f"has {size:,} bytes, but {stated}",
            "save it again: each array in a file of its own with np.save, or several with np.savez",
            "trailing",
        )


def _truncated(where: Where, size: int, expected: int) -> InputError:
    message = f"is truncated: it has {size:,} of {expected:,} bytes"
    return InputError.at(where, message, COPY_AGAIN, "truncated")


def _unreadable(where: Where, error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or reason_of(error)
    return InputError.at(where, f"cannot be read: {reason}", CHECK_DISK, UNREADABLE)


class ArrayValues(ABC):
    """Values of an array in a file. Rows are read when they are sliced, in native byte order."""

    compressed = False  # whether values are read from the first on
    chunk_rows = 1  # rows that are read together at least; 0: all that are asked for

    def __init__(self, header: NpyHeader, where: Where) -> None:
        self.header = header
        self.where = where
        self.shape = header.shape
        self.dtype = header.dtype  # as in the file, byte order included
        self.fortran_order = header.fortran_order  # whether the last axis varies slowest in the file

    @property
    def T(self) -> Self:  # noqa: N802  as of an array
        """The same values with reversed axes."""
        transposed = copy.copy(self)
        transposed.shape = self.shape[::-1]
        transposed.fortran_order = not self.fortran_order
        return transposed

    @property
    def memory(self) -> int:
        """Bytes that reading takes beside the rows."""
        return 0

    def __getitem__(self, rows: slice) -> AnyArray:
        lo, hi, step = rows.indices(self.shape[0])
        return self.read_into(lo, max(lo, hi))[::step]

    def read_into(self, lo: int, hi: int, out: AnyArray | None = None) -> AnyArray:
        """Read rows ``lo:hi``, into `out` (C-contiguous, of that shape) if its dtype is that of the file."""
        # The file may end early although its header was checked: it was cut off after that.
        shape = (hi - lo, *self.shape[1:])
        width = math.prod(shape[1:])
        if self.fortran_order and len(shape) > 1:
            columns = self._columns(lo, hi)
            return _native(np.ascontiguousarray(columns.reshape(shape[:0:-1] + shape[:1]).T))
        rows = out
        if rows is None or rows.dtype != self.dtype:
            rows = np.empty(shape, self.dtype)
        if rows.size:
            self.fill(lo * width, rows)
        return _native(rows)

    def _columns(self, lo: int, hi: int) -> AnyArray:
        """Read rows ``lo:hi`` of an array in Fortran order, as (columns, rows): columns are runs."""
        columns = np.empty((math.prod(self.shape[1:]), hi - lo), self.dtype)
        if hi - lo == self.shape[0] and columns.size:
            self.fill(0, columns)
            return columns
        for number, column in enumerate(columns):
            self.fill(number * self.shape[0] + lo, column)
        return columns

    def whole(self) -> AnyArray:
        values = np.empty(math.prod(self.shape), self.dtype)
        if values.size:
            self.fill(0, values)
        return values.reshape(self.shape, order="F" if self.fortran_order else "C")

    @abstractmethod
    def fill(self, start: int, out: AnyArray) -> None:
        """Fill `out`, C-contiguous, of the file's dtype, with values in file order from number `start` on."""


class FileValues(ArrayValues):
    """Values that stand in a file as they are. It is opened for each reading."""

    def __init__(self, header: NpyHeader, where: Where, path: Path) -> None:
        super().__init__(header, where)
        self._path = path

    def fill(self, start: int, out: AnyArray) -> None:
        """Read them. The file is not mapped, since a disk that fails would end the process."""
        view = out.reshape(-1).view(np.uint8).data
        try:
            with open(self._path, "rb") as file:  # noqa: PTH123  half of the time of Path.open: many are tiny
                file.seek(self.header.offset + start * self.dtype.itemsize)
                missing = len(view) - file.readinto(view)
        except OSError as error:
            raise _unreadable(self.where, error) from error
        if missing:
            raise InputError.at(
                self.where,
                f"was shortened by {missing:,} bytes while it was read",
                "run the command again when the file is complete",
                "truncated",
            )


def bytes_of(path: Path, name: str) -> FileValues:
    """Return the bytes of a file as it stands, (n,) u1."""
    with as_problem(name):
        size = path.stat().st_size
    return FileValues(NpyHeader((size,), np.dtype(np.uint8), False, 0), name, path)


class _CompressedValues(ArrayValues):
    """Values of a compressed member: reading goes on where the reading before ended, or starts again."""

    compressed = True
    chunk_rows = 0

    def __init__(self, header: NpyHeader, where: Location, stream: IO[bytes]) -> None:
        super().__init__(header, where)
        self._stream = stream
        # Columns that were read last, and the first row of them: none or one pair, also that of `T`
        self._last: list[tuple[int, AnyArray]] = []

    @property
    def memory(self) -> int:
        """Bytes of rows that are kept of an array in Fortran order, whose columns are far apart.

        All values are decompressed for them, so that few rows would take long.
        """
        if not self.fortran_order:
            return 0
        row_bytes = self.header.nbytes // max(1, self.shape[0])
        return min(self.header.nbytes, max(_KEPT, self.header.nbytes // _MOST_PASSES, row_bytes))

    def fill(self, start: int, out: AnyArray) -> None:
        view = out.reshape(-1).view(np.uint8).data
        first = self.header.offset + start * self.dtype.itemsize
        filled = 0
        with _reading(self.where):
            self._stream.seek(first)
            # readinto of a compressed member makes a copy: read small parts
            for begin in range(0, len(view), _BLOCK):
                filled += self._stream.readinto(view[begin : begin + _BLOCK])  # type: ignore[attr-defined]
        if filled < len(view):
            raise _truncated(self.where, first + filled, first + len(view))

    def _columns(self, lo: int, hi: int) -> AnyArray:
        start, columns = self._last[0] if self._last else (0, np.empty((0, 0)))
        if not start <= lo <= hi <= start + columns.shape[1]:
            del columns
            self._last.clear()  # so that one is in memory
            rows = self.memory * self.shape[0] // max(1, self.header.nbytes)
            start = lo
            columns = super()._columns(lo, min(self.shape[0], max(hi, lo + rows)))
            self._last.append((start, columns))
        return columns[:, lo - start : hi - start]


@contextmanager
def open_npz(path: Path, location: str | None = None) -> Iterator[dict[str, ArrayValues]]:
    """Open the values of all arrays in an ``.npz`` file, as ``np.load`` names them.

    Headers are read now. Members other than arrays are ignored. Each damaged member is a problem.
    """
    where = location or str(path)
    arrays: dict[str, ArrayValues] = {}
    problems: list[Problem] = []
    with ExitStack() as opened:
        try:
            file = opened.enter_context(path.open("rb"))
            size = os.fstat(file.fileno()).st_size
            archive = opened.enter_context(zipfile.ZipFile(file))
            for info in archive.infolist():
                member = Location(where, info.filename.removesuffix(".npy"))
                try:
                    if not info.filename.endswith(".npy") and not _begins_as_npy(file, archive, info, member):
                        continue
                    if member.dataset in arrays:
                        fix = "save each array once, with np.savez"
                        raise InputError.at(member, "is in the file twice", fix, "invalid")
                    arrays[member.dataset] = _member(file, archive, info, member, path, size)
                except InputError as error:
                    problems += error.problems
            if not problems and sum(info.compress_size for info in archive.infolist()) > size:
                message = "its members overlap, as in a zip bomb"
                problems.append(Problem(where, message, COPY_AGAIN, "damaged"))
        except OSError as error:
            raise _unreadable(where, error) from error
        except zipfile.BadZipFile as error:
            if isinstance(error.__context__, OSError):
                raise _damaged(where, error) from error
            with as_problem(where):
                raise InputError(_bad_zip(path, where, error)) from error
        if problems:
            raise InputError(problems)
        yield arrays


def _begins_as_npy(file: IO[bytes], archive: zipfile.ZipFile, info: zipfile.ZipInfo, where: Location) -> bool:
    """Return whether a member is an array although its name lacks ``.npy``, as NumPy finds out, too."""
    if info.flag_bits & 0x1 or info.file_size < len(_SIGNATURE):
        return False
    with _reading(where):
        return open_member(file, archive, info).read(len(_SIGNATURE)) == _SIGNATURE


def _member(
    file: IO[bytes],
    archive: zipfile.ZipFile,
    info: zipfile.ZipInfo,
    where: Location,
    path: Path,
    size: int,
) -> ArrayValues:
    if info.flag_bits & 0x1:
        raise InputError.at(where, "is encrypted", "save it without a password, with np.savez", "encrypted")
    if not 0 <= info.header_offset < size:  # seeking there would look like a fault of the disk
        raise InputError.at(where, "is damaged: it begins outside of the file", COPY_AGAIN, "damaged")
    with _reading(where):
        stream = open_member(file, archive, info)
        header = _header_from(stream.read, where)
    _check_size(header, info.file_size, where)
    if info.compress_type != zipfile.ZIP_STORED:
        packed = min(info.compress_size, size)
        if info.compress_type == zipfile.ZIP_DEFLATED and info.file_size > _MAX_DEFLATE_RATIO * packed:
            message = f"states {info.file_size:,} bytes, but {packed:,} compressed bytes cannot contain them"
            raise InputError.at(where, message, COPY_AGAIN, "damaged")
        return _CompressedValues(header, where, stream)
    header = header._replace(offset=_start_of_member(file, info) + header.offset)
    if header.offset + header.nbytes > size:
        raise _truncated(where, size, header.offset + header.nbytes)
    return FileValues(header, where, path)


def open_member(file: IO[bytes], archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> IO[bytes]:
    """Open a member of an archive for reading. `file` is that of the archive."""
    stream = archive.open(info)  # which checks its header
    if info.compress_type not in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        return stream
    from unistore.converters.files.unpacked import decoded_bzip2, decoded_lzma  # few archives have it

    stream.close()
    start = _start_of_member(file, info)
    is_lzma = info.compress_type == zipfile.ZIP_LZMA
    unpacked: Any = (
        decoded_lzma(file, start, info.file_size, info.CRC) if is_lzma else decoded_bzip2(file, start)
    )
    opened: IO[bytes] = unpacked
    return opened


def _start_of_member(file: IO[bytes], info: zipfile.ZipInfo) -> int:
    """Return at which byte of an archive the content of a member begins."""
    # Local file header (PKWARE APPNOTE 4.3.7): 30 fixed bytes, with the two lengths at the end.
    file.seek(info.header_offset + 26)
    name_bytes, extra_bytes = struct.unpack("<HH", file.read(4))
    start: int = info.header_offset + 30 + name_bytes + extra_bytes
    return start


@contextmanager
def _reading(where: Where) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unreadable(where, error) from error
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError) as error:
        raise _damaged(where, error) from error


def _bad_zip(path: Path, where: str, error: Exception) -> Problem:
    with path.open("rb") as file:
        head = file.read(32)
    if not head:
        return Problem(where, "the file is empty (0 bytes)", COPY_AGAIN, "empty")
    if head.startswith(b"PK"):
        return Problem(where, f"is truncated or damaged: {error}", COPY_AGAIN, "truncated")
    return lfs_pointer_problem(head, where) or Problem(
        where,
        f"is not a .npz file: it begins with {head[:8]!r}",
        "save the arrays with np.savez, or correct the file name",
        "format",
    )


def _damaged(where: Where, error: Exception) -> InputError:
    """Return the error of a damaged archive, for which zipfile takes a failing disk, too."""
    if isinstance(error.__context__, OSError):
        return _unreadable(where, error.__context__)
    return InputError.at(where, f"is damaged: {error}", COPY_AGAIN, "damaged")


def _native(rows: AnyArray) -> AnyArray:
    return rows.astype(rows.dtype.newbyteorder("="), copy=False)
