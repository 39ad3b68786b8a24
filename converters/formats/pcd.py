"""PCD, version 0.7, of the Point Cloud Library (https://pointclouds.org, "The PCD file format")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.formats import lzf
from unistore.converters.formats.extras import check_size
from unistore.converters.formats.lazy import LazyRows
from unistore.converters.formats.rows_of_text import TextRows, text_column
from unistore.converters.plugin import Array, Claim, Format, Opened, SourceFile, no, sure

_MOST_HEADER = 1 << 16
_KINDS = {"I": "i", "U": "u", "F": "f"}
_COLOURS = {"rgb": (2, 1, 0), "rgba": (2, 1, 0, 3)}
"""Fields of four bytes, and which of these are red, green, blue and alpha."""
_LINE = 80
"""Bytes of a line in memory, beside its text."""
_PADDING = "_"


class Pcd(Format):
    """Fields by their names; ``rgb`` (N, 3) and ``rgba`` (N, 4) uint8, which a file packs into one number."""

    name: ClassVar[str] = "pcd"
    suffixes: ClassVar[tuple[str, ...]] = (".pcd",)

    def recognise(self, file: SourceFile) -> Claim:
        """Take what has a line of fields near its beginning."""
        is_pcd = b"FIELDS" in file.head(1024)
        return sure("has a header of PCD") if is_pcd else no("has no header of PCD")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[Opened]:
        """Read the header; values when they are sliced, compressed ones at once."""
        header, start, lines = _header(file)
        dtype, count = _form(file, header)
        (kind,) = header["DATA"]
        facts = {key.lower(): header[key] for key in ("WIDTH", "HEIGHT", "VIEWPOINT") if key in header}
        if kind == "binary":
            check_size(file, start + count * dtype.itemsize)
        read = {"binary": _mapped, "binary_compressed": _decompressed, "ascii": _written_out}.get(kind)
        if read is None:
            message = f"has data {kind!r}, expected ascii, binary or binary_compressed"
            raise file.problem(message)
        arrays = {}
        for name, values in read(file, _Body(start, lines, dtype, count)).items():
            order = _COLOURS.get(name)
            if order is not None:
                bytes_of = partial(_colours, values, order)
                arrays[name] = Array(LazyRows((count, len(order)), np.dtype(np.uint8), bytes_of))
            elif not (name.startswith(_PADDING) and name[1:].isdigit()):
                arrays[name] = Array(values)
        memory = 0 if kind == "binary" else 2 * file.size + count * (_LINE + dtype.itemsize)
        yield Opened(arrays, facts, memory=memory)


class _Body(NamedTuple):
    """Where the points are: from which byte and line on, their form and number."""

    start: int
    line: int
    dtype: np.dtype[Any]
    points: int


def _colours(packed: Any, order: tuple[int, ...], lo: int, hi: int) -> NDArray[np.uint8]:
    """Return bytes of colours, red first, of the numbers that hold them."""
    numbers = np.ascontiguousarray(packed[lo:hi])
    return numbers.view(np.uint8).reshape(-1, 4)[:, list(order)]


def _header(file: SourceFile) -> tuple[dict[str, list[str]], int, int]:
    """Words by the first of their line, the byte after the header, and its lines."""
    header: dict[str, list[str]] = {}
    at = 0
    for number, line in enumerate(file.head(_MOST_HEADER).splitlines(keepends=True), 1):
        at += len(line)
        key, *words = line.decode("latin-1").split() or ["#"]
        header[key] = words
        if key == "DATA" and line.endswith(b"\n") and len(words) == 1:
            return header, at, number
    raise file.problem("has a header without DATA", "copy it again", "truncated")


def _form(file: SourceFile, header: Mapping[str, Sequence[str]]) -> tuple[np.dtype[Any], int]:
    """Return the form of a point, and the number of points."""
    names = list(header.get("FIELDS", ()))
    counts = header.get("COUNT", ["1"] * len(names))
    fields: list[tuple[str, str, tuple[int, ...]]] = []
    try:
        described = zip(names, header["TYPE"], header["SIZE"], counts, strict=True)
        for number, (name, kind, size, count) in enumerate(described):
            shape = () if count == "1" else (int(count),)
            fields.append((f"_{number}" if name == _PADDING else name, f"<{_KINDS[kind]}{int(size)}", shape))
        dtype = np.dtype(fields)
        points = (
            int(header["POINTS"][0])
            if "POINTS" in header
            else int(header["WIDTH"][0]) * int(header["HEIGHT"][0])
        )
    except (KeyError, ValueError, IndexError, TypeError) as error:
        message = f"has a header that does not fit together ({error!r})"
        raise file.problem(message, "write it again", "damaged") from None
    for name in _COLOURS:
        if name in names and dtype[name].itemsize != 4:
            message = f"has {name} of {dtype[name]}, expected 4 bytes"
            raise file.problem(message, "write it again", "dtype")
    return dtype, points


def _mapped(file: SourceFile, body: _Body) -> Mapping[str, Any]:
    if not body.points:
        return {name: np.empty(0, body.dtype[name]) for name in body.dtype.names or ()}
    records = np.memmap(file.path, body.dtype, "r", body.start, (body.points,))
    return {name: records[name] for name in body.dtype.names or ()}


def _written_out(file: SourceFile, body: _Body) -> Mapping[str, Any]:
    rows = TextRows(file, body.dtype, body.line, body.points)
    return {name: text_column(rows, name, body.points, body.dtype[name]) for name in body.dtype.names or ()}


def _decompressed(file: SourceFile, body: _Body) -> Mapping[str, Any]:
    """Fields one after the other, compressed together."""
    sizes = np.frombuffer(file.bytes()[body.start : body.start + 8].tobytes().ljust(8, b"\0"), "<u4")
    packed, size = sizes.tolist()
    if size != body.points * body.dtype.itemsize:
        message = f"holds {size} bytes of points, its header tells of {body.points * body.dtype.itemsize}"
        raise file.problem(message, "write it again", "damaged")
    first = body.start + 8
    check_size(file, first + packed)
    points = _Compressed(file, first, packed, size)
    fields = {}
    at = 0
    for name in body.dtype.names or ():
        dtype = body.dtype[name]
        read = partial(points.rows, at, dtype, body.points)
        fields[name] = LazyRows((body.points, *dtype.shape), dtype.base, read)
        at += body.points * dtype.itemsize
    return fields


class _Compressed:
    """Bytes that are decompressed when the first are wanted."""

    def __init__(self, file: SourceFile, first: int, packed: int, size: int) -> None:
        self._file, self._first, self._packed, self._size = file, first, packed, size

    @cached_property
    def bytes(self) -> bytes:
        """All of them."""
        packed = self._file.bytes()[self._first : self._first + self._packed].tobytes()
        try:
            found = lzf.decompress(packed, self._size)
        except (IndexError, ValueError) as error:
            message = f"holds no LZF data ({error})"
            raise self._file.problem(message, "write it again", "damaged") from None
        return found

    def rows(self, at: int, form: np.dtype[Any], count: int, lo: int, hi: int) -> NDArray[Any]:
        """Rows ``lo:hi`` of the field that begins at a byte."""
        return np.frombuffer(self.bytes, form, count, at)[lo:hi]
