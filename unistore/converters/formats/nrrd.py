"""Open NRRD volumes, ``.nrrd``, and ``.nhdr`` with its voxels in another file."""

# https://teem.sourceforge.net/nrrd/format.html. The array has the axes of the file in reverse, the slowest
# first, as SimpleITK gives them.

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import numpy as np

from unistore.converters.common.faults import COPY_AGAIN
from unistore.converters.formats.volumes import MILLIMETRES, RAS_TO_LPS, VolumeFormat, open_raw, stated
from unistore.converters.opened import Metadata, OpenFile, SourceFile
from unistore.system.types import Dtype, JsonObject

_TYPES = {
    "i1": ("signed char", "int8", "int8_t"),
    "u1": ("uchar", "unsigned char", "uint8", "uint8_t"),
    "i2": ("short", "short int", "signed short", "signed short int", "int16", "int16_t"),
    "u2": ("ushort", "unsigned short", "unsigned short int", "uint16", "uint16_t"),
    "i4": ("int", "signed int", "int32", "int32_t"),
    "u4": ("uint", "unsigned int", "uint32", "uint32_t"),
    "i8": ("longlong", "long long", "long long int", "signed long long", "int64", "int64_t"),
    "u8": ("ulonglong", "unsigned long long", "unsigned long long int", "uint64", "uint64_t"),
    "f4": ("float",),
    "f8": ("double",),
}
# Spaces that lie in the patient, and what turns their points into LPS.
_FRAMES = {
    **dict.fromkeys(("left-posterior-superior", "lps"), np.eye(3)),
    **dict.fromkeys(("right-anterior-superior", "ras"), RAS_TO_LPS),
    **dict.fromkeys(("left-anterior-superior", "las"), np.diag([1.0, -1.0, 1.0])),
}
# Kinds of axes along which a volume extends; others hold colours, vectors or times.
_EXTENDED = ("domain", "space", "???", "none")
_UNPLACED = "its space is not the space of a patient, so its origin and direction are unknown"
_LONGEST_HEADER = 1 << 20
_FIX = "write it again in one file: nrrd.write('a.nrrd', voxels, header)"


class Nrrd(VolumeFormat):
    """One array, called ``image``."""

    name = "nrrd"
    suffixes = (".nrrd", ".nhdr")
    twins = (".nrrd", ".nhdr")

    def begins(self, file: SourceFile) -> bool:
        return file.head(4) == b"NRRD"

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        """Read the header by pynrrd. Voxels are read when they are sliced."""
        header, start, voxels = _header(file)
        dtype = _dtype(file, header)
        shape = tuple(header["sizes"][::-1].tolist())
        start += _bytes_of_lines(voxels, start, header.get("line skip", header.get("lineskip", 0)))
        metadata = _place(header)
        with open_raw(
            file,
            voxels,
            (shape, dtype),
            metadata,
            {"image": _UNPLACED} if "space directions" in header and "direction" not in metadata else {},
            start=start,
            skip=header.get("byte skip", header.get("byteskip", 0)),
            gzip=header["encoding"].lower() != "raw",
        ) as opened:
            yield opened


def _header(file: SourceFile) -> tuple[Metadata, int, SourceFile]:
    """Return what the header says, where the voxels begin, and in which file."""
    nrrd = file.library("nrrd", "medical")
    head = file.head(_LONGEST_HEADER)
    end = re.search(rb"\r?\n\r?\n", head)
    fields = list(_fields((head[: end.start()] if end else head).split(b"\n")))
    wrong = [line for line in fields[1:] if line.strip() and line[:1] != b"#" and b":" not in line]
    if end and wrong:
        message = (
            f"has the line {wrong[0].decode('latin-1')[:80]!r} in its header, but FIELD: TEXT is expected"
        )
        raise file.problem(message, COPY_AGAIN, "damaged")
    header: Metadata = nrrd.read_header(fields)
    name = header.get("data file", header.get("datafile"))
    missing = {"type", "encoding", "sizes"} - header.keys()
    if missing or (end is None and name is None):
        raise file.problem("is truncated: it ends inside its header", COPY_AGAIN, "truncated")
    if name is not None and (name.startswith("LIST") or "%" in name):
        raise file.problem("has its voxels in a list of files, which is not supported", _FIX)
    if header["encoding"].lower() not in ("raw", "gzip", "gz"):
        message = f"has the encoding '{header['encoding']}', and only raw and gzip are supported"
        raise file.problem(message, _FIX)
    dimension = header.get("dimension", len(header["sizes"]))
    if dimension != len(header["sizes"]):
        sizes = " ".join(map(str, header["sizes"]))
        raise file.problem(f"states the dimension {dimension}, but the sizes {sizes}", _FIX, "header")
    skip = header.get("byte skip", header.get("byteskip", 0))
    if skip < -1 or (skip < 0 and header["encoding"].lower() != "raw"):
        message = f"has the byte skip {skip}, so it is unknown where its {header['encoding']} voxels begin"
        raise file.problem(message, _FIX)
    kinds = [kind for kind in header.get("kinds", ()) if kind.lower() not in _EXTENDED]
    if kinds:
        raise file.problem(
            f"has an axis of the kind '{kinds[0]}', but each voxel of a volume must be a single number",
            "save each component as a separate volume",
            "shape",
        )
    if name is not None:
        return header, 0, file.beside(name)
    return header, end.end() if end else 0, file


def _fields(lines: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the lines that are fields, without keys of the user's, which pynrrd takes for fields."""
    for line in lines:
        if re.match(rb"(?:(?!: ).)*?:=", line):
            continue
        yield line
        if re.match(rb"data ?file: *LIST", line):  # what follows are names of files
            return


def _bytes_of_lines(file: SourceFile, start: int, count: int) -> int:
    with file.path.open("rb") as raw:
        raw.seek(start)
        return sum(map(len, islice(iter(raw.readline, b""), count)))


def _dtype(file: SourceFile, header: Metadata) -> Dtype:
    # Teem reads them in any case
    kind = next((code for code, names in _TYPES.items() if header["type"].lower() in names), None)
    endian = header.get("endian", "").lower()
    if kind is None or (endian not in ("little", "big") and kind[1] != "1"):
        raise file.problem(
            f"has the type '{header['type']}' and the byte order {endian!r}, which is not supported",
            "write numbers, and state their byte order",
            "dtype",
        )
    return np.dtype(kind).newbyteorder(">" if endian == "big" else "<")


def _place(header: Metadata) -> JsonObject:
    """Return where the voxels lie, as far as the header says it of three axes."""
    directions = header.get("space directions")
    units = header.get("space units", ("mm",) * 3)
    if directions is None:
        units = header.get("units", units)
    lengths = np.array([MILLIMETRES.get(unit.lower(), np.nan) for unit in units])
    if directions is None:
        spacing = np.asarray(header.get("spacings", ()), float)
        if len(spacing) != 3 or len(lengths) != 3:
            return {}
        spacing = spacing * lengths
        return {"spacing": spacing[::-1].tolist()} if np.isfinite(spacing).all() else {}
    if directions.shape != (3, 3) or not len(lengths):
        return {}
    length = lengths[0]
    if not (lengths == length).all():  # nor where a unit is no length
        return {}
    frame = _FRAMES.get(header.get("space", "").lower())
    steps = directions.T if frame is None else frame @ directions.T
    origin = header.get("space origin")
    placed = np.zeros(3) if frame is None or origin is None else frame @ origin
    metadata = stated(steps[:, ::-1] * length, placed * length)
    if frame is None:
        return {"spacing": metadata["spacing"]}
    if origin is None:
        del metadata["origin"]
    return metadata
