"""Reading ``.npz`` files: headers of their members, and values, whole or in file order."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.common.faults import as_problem
from unistore.converters.files.formats import lookalike_problem
from unistore.converters.files.npy.array import map_values, open_flat
from unistore.converters.files.npy.header import (
    NpyHeader,
    check_size,
    exactly,
    parse_header,
    truncated,
    unreadable,
)
from unistore.errors import InputError, Location, Problem

_BLOCK = 1 << 20
"""Bytes decompressed at a time."""
_MAX_DEFLATE_RATIO = 1032
"""Bytes that one byte of deflate (RFC 1951) can decode to at most: 258 by two codes of one bit each."""


class NpzMember(NamedTuple):
    """One array of an ``.npz`` file; `open_member` reads it.

    Attributes
    ----------
    name
        As ``np.load`` names it (without ``.npy``).
    compressed
        If true, ``header.offset`` is an offset in the decompressed content, else in the ``.npz`` file.
    """

    name: str
    header: NpyHeader
    compressed: bool


def npz_members(path: Path, location: str | None = None) -> dict[str, NpzMember]:
    """Headers of all arrays in an ``.npz`` file, in file order; other members are left out.

    Raises
    ------
    InputError
        If it is not a complete zip file, or members are damaged: one problem each.
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
                member = Location(where, name)
                try:
                    if name in members:
                        raise InputError(Problem.at(member, "is there twice", "save it again", "invalid"))
                    members[name] = _member(file, archive, info, member)
                except InputError as error:
                    problems += error.problems
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


def open_member(path: Path, member: NpzMember, location: str | None = None) -> NDArray[Any]:
    """Values of one ``.npz`` member, read-only: memory-mapped, or decompressed into memory.

    Raises
    ------
    InputError
        If the compressed content is damaged.
    """
    where = Location(location or str(path), member.name)
    header = member.header
    if not member.compressed:
        return map_values(path, header, where)
    runs = member_runs(path, member, 0, header.count, max(1, header.count), location)
    flat = next(runs, np.empty(0, header.dtype))
    flat.flags.writeable = False
    return flat.reshape(header.shape, order="F" if header.fortran_order else "C")


def member_runs(
    path: Path, member: NpzMember, start: int, stop: int, count: int, location: str | None = None
) -> Iterator[NDArray[Any]]:
    """Values ``start:stop`` of a member in file order, `count` at a time, in its own dtype.

    In a compressed member, the values before `start` are decompressed and discarded.

    Yields
    ------
    ndarray, (n,)
        A new array each time.

    Raises
    ------
    InputError
        If the file is damaged, or ends early.
    """
    where = Location(location or str(path), member.name)
    dtype = member.header.dtype
    if not member.compressed:
        with open_flat(path, member.header, where) as read:
            for first in range(start, stop, count):
                run = np.empty(min(count, stop - first), dtype)
                read(first, run)
                yield run
        return
    with _decompressed(path, member, where) as content:
        left = member.header.offset + start * dtype.itemsize
        while left and (skipped := content.read(min(left, _BLOCK))):
            left -= len(skipped)
        for first in range(start, stop, count):
            run = _allocate(min(count, stop - first), dtype, where)
            view = run.view(np.uint8).data
            # readinto of a compressed member makes a copy: read small parts
            parts = (view[at : at + _BLOCK] for at in range(0, len(view), _BLOCK))
            missing = len(view) - sum(map(content.readinto, parts))
            if missing:
                expected = member.header.offset + (first + len(run)) * dtype.itemsize
                raise InputError(truncated(where, expected - missing, expected))
            yield run


@contextmanager
def _decompressed(path: Path, member: NpzMember, where: Location | str) -> Iterator[Any]:
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{member.name}.npy") as content:
            yield content
    except OSError as error:
        raise InputError(unreadable(where, error)) from error
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise _damaged(where, error) from error


def _allocate(count: int, dtype: np.dtype[Any], where: Location | str) -> NDArray[Any]:
    """Memory for as many values as the file claims to have."""
    try:
        return np.empty(count, dtype)
    except MemoryError as error:
        message = f"says that it holds {count} values of {dtype}, more than there is memory for"
        raise InputError(
            Problem.at(where, message, "save it uncompressed, with np.savez", "memory")
        ) from error


def _member(
    file: IO[bytes], archive: zipfile.ZipFile, info: zipfile.ZipInfo, where: Location | str
) -> NpzMember:
    if info.flag_bits & 0x1:
        raise InputError(
            Problem.at(where, "is encrypted", "unpack it and save it with np.savez", "encrypted")
        )
    name = info.filename[: -len(".npy")]
    try:
        with archive.open(info) as content:
            header = parse_header(content, where)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise _damaged(where, error) from error
    check_size(header, info.file_size, where)
    size = os.fstat(file.fileno()).st_size
    if info.compress_type != zipfile.ZIP_STORED:
        packed = min(info.compress_size, size)
        if info.compress_type == zipfile.ZIP_DEFLATED and info.file_size > _MAX_DEFLATE_RATIO * packed:
            message = (
                f"says that it holds {info.file_size} bytes, which its {packed} compressed ones cannot give"
            )
            raise InputError(Problem.at(where, message, "copy or make it again", "corrupt"))
        return NpzMember(name, header, compressed=True)
    # Local file header (PKWARE APPNOTE 4.3.7): 30 fixed bytes, with the two lengths at the end.
    file.seek(info.header_offset)
    name_bytes, extra_bytes = struct.unpack("<HH", exactly(file, 30, where)[26:])
    start = info.header_offset + 30 + name_bytes + extra_bytes
    header = replace(header, offset=start + header.offset)
    if header.offset + header.nbytes > size:
        raise InputError(truncated(where, size, header.offset + header.nbytes))
    return NpzMember(name, header, compressed=False)


def _bad_zip(path: Path, where: Location | str, error: Exception) -> Problem:
    with path.open("rb") as file:
        head = file.read(32)
    if not head:
        return Problem.at(where, "is empty (0 bytes)", "copy or make it again", "empty")
    if head.startswith(b"PK"):
        return Problem.at(where, f"is truncated or damaged: {error}", "copy or make it again", "truncated")
    message = f"is no .npz file: it begins with {head[:8]!r}"
    return lookalike_problem(head, where) or Problem.at(where, message, "save it with np.savez", "format")


def _read_error_of(error: Exception) -> OSError | None:
    """Return the read error that zipfile takes for a damaged file."""
    return error.__context__ if isinstance(error.__context__, OSError) else None


def _damaged(where: Location | str, error: Exception) -> InputError:
    if (read_error := _read_error_of(error)) is not None:
        return InputError(unreadable(where, read_error))
    return InputError(Problem.at(where, f"is damaged: {error}", "copy or make it again", "corrupt"))
