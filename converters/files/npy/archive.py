"""``.npz`` files: headers of their members, and values, decompressed as far as they are read."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.faults import as_problem
from unistore.converters.files.formats import lookalike_problem
from unistore.converters.files.npy.array import (
    MOST_COLUMNS,
    ArrayValues,
    FileValues,
    NpyHeader,
    check_size,
    header_from,
    truncated,
    unreadable,
)
from unistore.errors import InputError, Location, Problem

_NPY = ".npy"
# Bytes decompressed at a time
_BLOCK = 1 << 20
# Bytes that one byte of deflate (RFC 1951) can decode to at most: 258 by two codes of one bit each
_MAX_DEFLATE_RATIO = 1032
_CURE = "copy or make it again"


class _Member(NamedTuple):
    """One array; if it is compressed, the offset in its header is one in the decompressed content."""

    header: NpyHeader
    compressed: bool


@contextmanager
def open_npz(path: Path, location: str | None = None) -> Iterator[dict[str, ArrayValues]]:
    """Context of the values of all arrays in an ``.npz`` file, as ``np.load`` names them.

    Headers are read now, and the file is opened again when values are read. Other members are left out.

    Raises
    ------
    InputError
        If it is not a complete zip file, or members are damaged: one problem each.
    """
    where = location or str(path)
    arrays: dict[str, ArrayValues] = {}
    with ExitStack() as opened:

        @cache
        def archive() -> zipfile.ZipFile:
            return opened.enter_context(zipfile.ZipFile(path))

        for name, member in _members(path, where).items():
            place = Location(where, name)
            if member.compressed:
                arrays[name] = opened.enter_context(closing(_CompressedValues(member.header, place, archive)))
            else:
                arrays[name] = opened.enter_context(FileValues(member.header, place, path))
        yield arrays


def _members(path: Path, where: str) -> dict[str, _Member]:
    members: dict[str, _Member] = {}
    problems: list[Problem] = []
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                if not info.filename.endswith(_NPY):
                    continue
                name = info.filename.removesuffix(_NPY)
                member = Location(where, name)
                try:
                    if name in members:
                        raise InputError(Problem.at(member, "is there twice", "save it again", "invalid"))
                    members[name] = _member(file, archive, info, member)
                except InputError as error:
                    problems += error.problems
            packed = sum(info.compress_size for info in archive.infolist())
            if not problems and packed > os.fstat(file.fileno()).st_size:
                problems.append(Problem(where, "has members that overlap: a zip bomb", _CURE, "corrupt"))
    except OSError as error:
        raise InputError(unreadable(where, error)) from error
    except zipfile.BadZipFile as error:
        if _read_error_of(error) is not None:
            raise _damaged(where, error) from error
        with as_problem(where):
            raise InputError(_bad_zip(path, where, error)) from error
    if problems:
        raise InputError(problems)
    return members


class _CompressedValues(ArrayValues):
    """Values of a compressed member: reading goes on where an earlier reading ended."""

    compressed: ClassVar[bool] = True

    def __init__(self, header: NpyHeader, where: Location, archive: Callable[[], zipfile.ZipFile]) -> None:
        super().__init__(header, where)
        self._archive = archive
        self._name = f"{where.dataset}{_NPY}"
        # By number of the value that comes next; several for the columns of an array in Fortran order.
        self._streams: dict[int, zipfile.ZipExtFile] = {}
        self._values: NDArray[Any] | None = None

    @property
    def memory(self) -> int:
        """Bytes of all values, where they are decompressed together."""
        return self.header.nbytes if self.header.fortran_order and not self._has_few_columns else 0

    @property
    def chunk_rows(self) -> int:
        """All rows that are asked for are read together."""
        return 0

    def fill(self, start: int, out: NDArray[Any]) -> None:
        """As `ArrayValues.fill`; values before those that come next are decompressed for nothing."""
        view = out.reshape(-1).view(np.uint8).data
        end = start + out.size
        filled = 0
        with _reading(self.where):
            if start not in self._streams:
                self._open_at(start)
            stream = self._streams[start]
            # readinto of a compressed member makes a copy: read small parts
            for begin in range(0, len(view), _BLOCK):
                filled += stream.readinto(view[begin : begin + _BLOCK])
        if filled < len(view):
            expected = self.header.offset + end * self.dtype.itemsize
            raise InputError(truncated(self.where, expected - len(view) + filled, expected))
        del self._streams[start]
        if end in self._streams:
            stream.close()
        else:
            self._streams[end] = stream

    def _open_at(self, start: int) -> None:
        if len(self._streams) >= MOST_COLUMNS:
            oldest = next(iter(self._streams))
            self._streams.pop(oldest).close()
        stream = cast("zipfile.ZipExtFile", self._archive().open(self._name))
        self._streams[start] = stream
        stream.seek(self.header.offset + start * self.dtype.itemsize)

    def whole(self) -> NDArray[Any]:
        """Decompress all values, once."""
        if self._values is None:
            self._values = np.empty(self.header.count, self.dtype)
            self.fill(0, self._values)
            self._values.flags.writeable = False
        return self._values.reshape(self.shape, order=self.header.order)

    def close(self) -> None:
        """Close all streams."""
        for stream in self._streams.values():
            stream.close()


@contextmanager
def _reading(where: Location | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(unreadable(where, error)) from error
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise _damaged(where, error) from error


def _member(file: IO[bytes], archive: zipfile.ZipFile, info: zipfile.ZipInfo, where: Location) -> _Member:
    if info.flag_bits & 0x1:
        cure = "unpack it and save it with np.savez"
        raise InputError(Problem.at(where, "is encrypted", cure, "encrypted"))
    size = os.fstat(file.fileno()).st_size
    if not 0 <= info.header_offset < size:  # seeking there would look like a fault of the disk
        raise InputError(Problem.at(where, "is damaged: it begins outside of the file", _CURE, "corrupt"))
    try:
        with archive.open(info) as content:
            header = header_from(content.read, where)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise _damaged(where, error) from error
    check_size(header, info.file_size, where)
    if info.compress_type != zipfile.ZIP_STORED:
        packed = min(info.compress_size, size)
        if info.compress_type == zipfile.ZIP_DEFLATED and info.file_size > _MAX_DEFLATE_RATIO * packed:
            message = (
                f"says that it holds {info.file_size} bytes, which its {packed} compressed ones cannot give"
            )
            raise InputError(Problem.at(where, message, _CURE, "corrupt"))
        return _Member(header, compressed=True)
    # Local file header (PKWARE APPNOTE 4.3.7): 30 fixed bytes, with the two lengths at the end.
    file.seek(info.header_offset + 26)
    name_bytes, extra_bytes = struct.unpack("<HH", file.read(4))
    header = replace(header, offset=info.header_offset + 30 + name_bytes + extra_bytes + header.offset)
    if header.offset + header.nbytes > size:
        raise InputError(truncated(where, size, header.offset + header.nbytes))
    return _Member(header, compressed=False)


def _bad_zip(path: Path, where: str, error: Exception) -> Problem:
    with path.open("rb") as file:
        head = file.read(32)
    if not head:
        return Problem(where, "is empty (0 bytes)", _CURE, "empty")
    if head.startswith(b"PK"):
        return Problem(where, f"is truncated or damaged: {error}", _CURE, "truncated")
    message = f"is no .npz file: it begins with {head[:8]!r}"
    return lookalike_problem(head, where) or Problem(where, message, "save it with np.savez", "format")


def _read_error_of(error: Exception) -> OSError | None:
    """Return the read error that zipfile takes for a damaged file."""
    return error.__context__ if isinstance(error.__context__, OSError) else None


def _damaged(where: Location | str, error: Exception) -> InputError:
    read_error = _read_error_of(error)
    if read_error is not None:
        return InputError(unreadable(where, read_error))
    return InputError(Problem.at(where, f"is damaged: {error}", _CURE, "corrupt"))
