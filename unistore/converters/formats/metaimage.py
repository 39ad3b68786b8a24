"""Open MetaImage volumes, ``.mha``, and ``.mhd`` with its voxels in another file."""

# https://itk.org/Wiki/MetaIO/Documentation. The array has the axes of the file in reverse, the slowest first;
# places are LPS, as ITK writes them.

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from unistore.converters.array import Array
from unistore.converters.common.faults import COPY_AGAIN, WRITE_AGAIN
from unistore.converters.files.unpacked import inflated
from unistore.converters.formats.volumes import (
    MOST_DEFLATE,
    Planes,
    VolumeFormat,
    detached,
    open_raw,
    stated,
)
from unistore.converters.opened import OpenFile, SourceFile
from unistore.system.types import JsonObject, Shape

_TYPES = {
    "MET_CHAR": "i1",
    "MET_UCHAR": "u1",
    "MET_SHORT": "i2",
    "MET_USHORT": "u2",
    "MET_INT": "i4",
    "MET_UINT": "u4",
    "MET_LONG": "i4",  # on every platform
    "MET_ULONG": "u4",
    "MET_LONG_LONG": "i8",
    "MET_ULONG_LONG": "u8",
    "MET_FLOAT": "f4",
    "MET_DOUBLE": "f8",
}
_LONGEST_HEADER = 1 << 16


class MetaImage(VolumeFormat):
    """One array, called ``image``."""

    name = "metaimage"
    suffixes = (".mha", ".mhd")
    twins = (".mha", ".mhd")

    def begins(self, file: SourceFile) -> bool:
        return b"ElementDataFile" in file.head(_LONGEST_HEADER)

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        """Read the header. Voxels are read when they are sliced."""
        header, end = _header(file)
        shape = _shape(file, header["DimSize"])
        kind = header["ElementType"]
        channels = header.get("ElementNumberOfChannels", "1")
        if channels != "1" or kind not in _TYPES:
            stated_form = f"the ElementType {kind}"
            if channels != "1":
                stated_form = f"{channels} channels of {stated_form}"
            raise file.problem(
                f"has {stated_form}, and only one channel of numbers is supported",
                "write one channel of numbers",
                "dtype",
            )
        if not _is_true(header.get("BinaryData", "True")):
            raise file.problem("contains its voxels as text, which is not supported", "write them in binary")
        is_big = _is_true(header.get("BinaryDataByteOrderMSB", header.get("ElementByteOrderMSB", "False")))
        dtype = np.dtype(_TYPES[kind]).newbyteorder(">" if is_big else "<")
        name = header["ElementDataFile"]
        is_local = name.upper() == "LOCAL"
        voxels = file if is_local else file.beside(name)
        sizes = _numbers(file, header, "HeaderSize")
        start = int(sizes[0]) if len(sizes) else 0
        if is_local:
            start = end
        metadata = _place(file, header)
        if not _is_true(header.get("CompressedData", "False")):
            with open_raw(file, voxels, (shape, dtype), metadata, {}, start=0, skip=start) as opened:
                yield opened
            return
        if start < 0:
            message = f"has the HeaderSize {start}, so it is unknown where the compressed voxels begin"
            raise file.problem(message, "write it again in one file", "damaged")
        with voxels.path.open("rb") as raw:
            stream: Any = inflated(raw, start)
            planes = Planes(file, stream, 0, shape, dtype, is_all=True)
            file.check_packed(planes.nbytes, max(0, voxels.size - start), MOST_DEFLATE)
            further = () if is_local else (voxels,)
            shows = detached(file, voxels, start, None)
            yield OpenFile({"image": Array(planes)}, metadata, further, forward_only=True, shows=shows)


def _shape(file: SourceFile, extents: str) -> Shape:
    try:
        shape = tuple([int(extent) for extent in extents.split()])[::-1]
    except ValueError:
        shape = ()
    if min(shape, default=-1) < 0:
        message = f"has the DimSize {extents!r}, but whole numbers from 0 are expected"
        raise file.problem(message, WRITE_AGAIN, "damaged")
    return shape


def _is_true(flag: str) -> bool:
    """Return what a flag says, by its first letter, as MetaIO reads it."""
    return flag[:1] in ("T", "t", "1")


def _header(file: SourceFile) -> tuple[dict[str, str], int]:
    header: dict[str, str] = {}
    with file.path.open("rb") as raw:
        while "ElementDataFile" not in header:
            line = raw.readline(_LONGEST_HEADER)
            if not line:
                raise file.problem("is truncated: it ends inside its header", COPY_AGAIN, "truncated")
            text = line.decode("latin-1").rstrip("\r\n")
            key, sign, value = text.partition("=")
            if text and not (sign and key.replace("\t", " ").isprintable()):
                raise file.problem(
                    f"has the line {text[:80]!r} in its header, but KEY = VALUE is expected",
                    COPY_AGAIN,
                    "damaged",
                )
            header[key.strip()] = value.strip()
        end = raw.tell()
    missing = [key for key in ("DimSize", "ElementType") if key not in header]
    if missing or header["ElementDataFile"].startswith("LIST") or "%" in header["ElementDataFile"]:
        what = "has its voxels in a list of files, which is not supported"
        if missing:
            what = f"does not state {missing[0]} in its header"
        raise file.problem(what, "write it again in one file: SimpleITK.WriteImage(image, 'a.mha')")
    return header, end


def _place(file: SourceFile, said: dict[str, str]) -> JsonObject:
    spacing = _numbers(file, said, "ElementSpacing", "ElementSize")
    origin = _numbers(file, said, "Offset", "Position", "Origin")
    matrix = _numbers(file, said, "TransformMatrix", "Rotation", "Orientation")
    if len(spacing) != 3:
        return {}
    if len(origin) != 3 or len(matrix) != 9:
        return {"spacing": spacing[::-1].tolist()}
    steps = matrix.reshape(3, 3).T * spacing  # a row of the file is an axis
    return stated(steps[:, ::-1], origin)


def _numbers(file: SourceFile, said: dict[str, str], *keys: str) -> Any:
    """Return the numbers of the first of these keys that the header has, of shape (0,) if it has none."""
    key = next((key for key in keys if key in said), "")
    text = said.get(key, "")
    try:
        numbers = np.array([float(number) for number in text.split()])
        if not np.isfinite(numbers).all():
            raise ValueError("not finite")
        return numbers
    except ValueError as error:
        message = f"has the {key} {text[:80]!r} in its header, but numbers such as 0.5 are expected"
        raise file.problem(message, "correct the header", "header") from error
