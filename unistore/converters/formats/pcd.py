"""PCD, version 0.7, of the Point Cloud Library (https://pointclouds.org, "The PCD file format")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np

from unistore.converters.array import Array
from unistore.converters.claims import Claim, sure
from unistore.converters.common.faults import COPY_AGAIN, WRITE_AGAIN
from unistore.converters.files.hdf5.filters import Filter, decode
from unistore.converters.formats.lazy import LazyRows, TextRows, lazy_fields, mapped_records
from unistore.converters.opened import HEAD_BYTES, Format, OpenFile, SourceFile
from unistore.system.foreign import opening
from unistore.system.types import AnyArray, Dtype, Shape, UInt8s

_MOST_HEADER = 1 << 16
_TITLE = b"# .PCD"
# Words before the names of the fields: the second is of version 0.5
_FIELD_NAMES = (b"FIELDS", b"COLUMNS")
_KINDS = {"I": "i", "U": "u", "F": "f"}
# Fields of four bytes, and which of these are red, green, blue and alpha.
_COLOURS = {"rgb": (2, 1, 0), "rgba": (2, 1, 0, 3)}
_PADDING = "_"
_LZF = 32000  # number of the filter of h5py for the compression of PCD files
_MOST_LZF = 88  # bytes that one of LZF decodes to at most: three repeat 264


class Pcd(Format):
    """Fields by their names. ``rgb`` (N, 3) and ``rgba`` (N, 4) uint8, which a file packs into one number."""

    name = "pcd"
    suffixes = (".pcd",)

    def recognise(self, file: SourceFile) -> Claim:
        head = file.head(HEAD_BYTES)
        if head.startswith(_TITLE) or any(name in head for name in _FIELD_NAMES):
            return sure("has a PCD header")
        raise file.wrong_beginning("with a PCD header")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        """Read the header, and values when they are sliced, compressed ones at once."""
        header, start, lines = _header(file)
        dtype, count = _form(file, header)
        (kind,) = header["DATA"]
        memory = 0
        columns: Mapping[str, Any]
        if kind == "binary":
            columns = mapped_records(file, dtype, start, count)
        elif kind == "ascii":
            rows = TextRows(file, dtype, lines, stated=count)
            rows.check_size()
            memory = rows.memory
            columns = rows.columns()
        elif kind == "binary_compressed":
            columns = _decompressed(file, dtype, start, count)
            memory = file.size + 2 * count * dtype.itemsize
        else:
            message = f"has the DATA {kind!r}, but ascii, binary or binary_compressed is expected"
            raise file.problem(message, WRITE_AGAIN)
        arrays = {}
        for name, values in columns.items():
            order = _COLOURS.get(name)
            if order is not None:
                bytes_of = partial(_colours, values, order)
                arrays[name] = Array(LazyRows((count, len(order)), np.dtype(np.uint8), bytes_of))
            elif not (name.startswith(_PADDING) and name[1:].isdigit()):
                arrays[name] = Array(values)
        metadata = {key.lower(): header[key] for key in ("WIDTH", "HEIGHT", "VIEWPOINT") if key in header}
        yield OpenFile(arrays, metadata, memory=memory)


def _colours(packed: Any, order: tuple[int, ...], lo: int, hi: int) -> UInt8s:
    """Return bytes of colours, red first, of the numbers that hold them."""
    numbers = np.ascontiguousarray(packed[lo:hi])
    return numbers.view(np.uint8).reshape(-1, 4)[:, list(order)]


def _header(file: SourceFile) -> tuple[dict[str, list[str]], int, int]:
    """Words by the first of their line, the byte after the header, and its lines."""
    header: dict[str, list[str]] = {}
    position = 0
    for number, line in enumerate(file.head(_MOST_HEADER).splitlines(keepends=True), 1):
        position += len(line)
        key, *words = line.decode("latin-1").split() or ["#"]
        header["FIELDS" if key == "COLUMNS" else key] = words
        if key == "DATA" and line.endswith(b"\n") and len(words) == 1:
            return header, position, number
    raise file.problem("is truncated: its header has no DATA line", COPY_AGAIN, "truncated")


def _form(file: SourceFile, header: Mapping[str, Sequence[str]]) -> tuple[Dtype, int]:
    names = list(header.get("FIELDS", ()))
    counts = header.get("COUNT", ["1"] * len(names))
    fields: list[tuple[str, str, Shape]] = []
    try:
        described = zip(names, header["TYPE"], header["SIZE"], counts, strict=True)
        for number, (name, kind, size, count) in enumerate(described):
            shape = () if count == "1" else (int(count),)
            if min(shape, default=1) < 0:
                raise ValueError(f"COUNT {count}")
            if shape == (0,):  # of padding that is not there
                continue
            own_name = f"_{number}" if name == _PADDING else name
            fields.append((own_name, f"<{_KINDS[kind.upper()]}{int(size)}", shape))
        dtype = np.dtype(fields)
        width, height = (int(header[key][0]) if key in header else None for key in ("WIDTH", "HEIGHT"))
        by_extent = None if width is None or height is None else width * height
        points = int(header["POINTS"][0]) if "POINTS" in header or by_extent is None else by_extent
        if points < 0 or not fields:
            raise ValueError(f"{points} points of {len(fields)} fields")
    except (KeyError, ValueError, IndexError, TypeError) as error:
        message = f"the lines of its header contradict each other: {error!r}"
        raise file.problem(message, WRITE_AGAIN, "damaged") from None
    if by_extent not in (None, points):
        message = f"states POINTS {points}, but WIDTH {width} and HEIGHT {height}"
        raise file.problem(message, f"{COPY_AGAIN}, or correct its header", "damaged")
    for name in _COLOURS:
        if name in (dtype.names or ()) and dtype[name].itemsize != 4:
            message = f"has {name!r} with the dtype {dtype[name]}, but 4 bytes are expected"
            raise file.problem(message, WRITE_AGAIN, "dtype")
    return dtype, points


def _decompressed(file: SourceFile, dtype: Dtype, start: int, count: int) -> dict[str, LazyRows]:
    """Fields one after the other, compressed together, which are decompressed when the first are wanted."""
    sizes = file.bytes()[start : start + 8].tobytes().ljust(8, b"\0")
    packed, size = np.frombuffer(sizes, "<u4").tolist()
    if size != count * dtype.itemsize:
        raise file.problem(
            f"has {size:,} bytes of points, but its header states {count * dtype.itemsize:,}",
            WRITE_AGAIN,
            "damaged",
        )
    first = start + 8
    file.check_size(first + packed)
    file.check_packed(size, packed, _MOST_LZF)

    @cache
    def records() -> AnyArray:
        content = file.bytes()[first : first + packed].tobytes()
        try:
            with opening(file.path, file.name):
                unpacked = decode(content, size, (Filter(_LZF, (4, 0x105, size)),))
        except ValueError as error:
            message = f"its points cannot be decompressed as LZF: {error}"
            raise file.problem(message, WRITE_AGAIN, "damaged") from None
        rows = np.empty(count, dtype)
        position = 0
        for name in dtype.names or ():
            rows[name] = np.frombuffer(unpacked, dtype[name], count, position)
            position += rows[name].nbytes
        return rows

    return lazy_fields(dtype, count, records)
