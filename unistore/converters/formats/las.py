"""LAS, LAZ and COPC: points of laser scanners (ASPRS LAS 1.4 R15)."""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import SEEK_END, BytesIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np

from unistore.converters.array import Array, NamedArrays
from unistore.converters.claims import Claim, sure
from unistore.converters.common.faults import COPY_AGAIN, WRITE_AGAIN
from unistore.converters.formats.lazy import LazyRows
from unistore.converters.opened import Format, Metadata, OpenFile, SourceFile
from unistore.system.types import AnyArray, Float64s

_AXES = ("X", "Y", "Z")
_SHORTEST = 227  # bytes of a header of version 1.0
# Bytes of points that are decoded once; of larger files, the rows that were read last are kept.
_HELD = 64 << 20
_MOST = 16 << 20  # bytes beside the points that are kept: those of waveforms may be more than memory holds
_RECORD = 54  # bytes of the header of a record
_RECORD_BEHIND = 60  # and of one behind the points
_STEP = 1 << 19  # points that are compressed at a time
_PIPED = (1 << 64) - 1  # place of the table in a file that was piped, whose last bytes say it
_INSTEAD = "read the store instead"
# Place in a header of version 1.3 or later of the byte at which waveforms begin: 0 without waveforms
_WAVEFORMS = 227
_WITH_WAVEFORMS = 3
_COUNT_FIX = "correct the number of points in its header, as lasinfo -repair_counters does"
_FIRST_EVLR = 235  # where a header says at which byte the records behind the points begin
_WKT = ("LASF_Projection", 2112)
_EPSG_KEYS = (3072, 2048, 4096)  # GeoTIFF keys of the projected, the geographic and the vertical system


class Las(Format):
    """Coordinates ``x``, ``y``, ``z``, dimensions by name, and the bytes around the points as metadata."""

    name = "las"
    suffixes = (".las",)
    twins = (".las", ".laz")

    def recognise(self, file: SourceFile) -> Claim:
        if file.head(4) == b"LASF":
            return sure("begins with LASF")
        raise file.wrong_beginning("with LASF")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        laspy = file.library("laspy", "lidar")
        logging.getLogger("laspy").setLevel(logging.CRITICAL)  # which prints what it raises
        _check_header(file)
        with laspy.open(file.path, laz_backend=laspy.LazBackend.Lazrs, read_evlrs=False) as reader:
            header = reader.header
            end = self._end_of_points(file, header)
            file.check_size(end)
            metadata = {
                "version": str(header.version),
                "point_format": header.point_format.id,
                "scale": header.scales.tolist(),
                "offset": header.offsets.tolist(),
                "gps_time_type": header.global_encoding.gps_time_type.name.lower(),
            }
            notes = {}
            more = self._points_beyond(file, header, end)
            if more and not header.point_count:
                message = f"its header states 0 points, but the bytes behind it are those of {more:,}"
                raise file.problem(message, _COUNT_FIX, "damaged")
            if more:
                stated = f"the header states {header.point_count:,} points, so the bytes behind them"
                notes["x"] = f"{file.name}: {stated} are not read as points, of which they could be {more:,}"
            left_out = {}
            behind = b""
            if file.size - end > _MOST:
                left_out["records behind the points"] = f"because they have {file.size - end:,} bytes"
            else:
                behind = file.bytes()[end:].tobytes()
                if header.number_of_evlrs:
                    header.evlrs = _records_behind(file, header, behind)
                if header.offset_to_point_data <= _MOST:
                    metadata["before"] = b64encode(file.head(header.offset_to_point_data)).decode()
                    metadata["behind"] = b64encode(behind).decode()
            metadata["crs"] = _crs(header)
            yield OpenFile(_arrays(file, reader), metadata, memory=_HELD, left_out=left_out, notes=notes)

    def _end_of_points(self, file: SourceFile, header: Any) -> int:
        if header.are_points_compressed:
            raise file.problem("contains compressed points, as only .laz files do", "rename it to .laz")
        end: int = header.offset_to_point_data + header.point_count * header.point_format.size
        return end

    def _points_beyond(self, file: SourceFile, header: Any, end: int) -> int:
        """Return how many points fit behind the stated ones, before anything else in the file."""
        follows = [file.size]
        if header.number_of_evlrs:
            follows.append(header.start_of_first_evlr)
        if header.version.minor >= _WITH_WAVEFORMS:
            follows.append(_number(file, _WAVEFORMS, 8) or file.size)
        beyond: int = max(0, min(follows) - end) // header.point_format.size
        return beyond

    def write(self, path: Path, arrays: NamedArrays, metadata: Metadata) -> None:
        """Write the bytes around the points as they were, and the points."""
        file = SourceFile(path, path.name)
        laspy = file.library("laspy", "lidar")
        if "before" not in metadata:
            message = "cannot be restored, because the header of the source was too large to be stored"
            raise file.problem(message, _INSTEAD, "option")
        before = b64decode(metadata["before"])
        header = laspy.LasHeader.read_from(BytesIO(before))
        with TemporaryFile(dir=path.parent) as scratch, path.open("xb+") as out:
            out.write(before)
            self._write_points(out, header, _records(file, header, arrays, scratch))
            out.write(b64decode(metadata["behind"]))

    def _write_points(self, out: IO[bytes], header: Any, records: AnyArray) -> None:
        records.tofile(out)


class Laz(Las):
    """The same, compressed. COPC is LAZ."""

    name = "laz"
    suffixes = (".laz",)
    library = "lazrs"

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        file.library("lazrs", "lidar")
        with super().open(file) as opened:
            yield opened

    def _end_of_points(self, file: SourceFile, header: Any) -> int:
        if not header.are_points_compressed:
            raise file.problem("contains points that are not compressed", "rename it to .las")
        table = _number(file, header.offset_to_point_data, 8)  # of chunks, behind the points
        if table == _PIPED:
            table = _number(file, file.size - 8, 8)
        file.check_size(table)
        return header.start_of_first_evlr if header.number_of_evlrs else file.size

    def _points_beyond(self, file: SourceFile, header: Any, end: int) -> int:
        """Return 0: a LAZ file does not state how many points its chunks have."""
        return 0

    def _write_points(self, out: IO[bytes], header: Any, records: AnyArray) -> None:
        file = SourceFile(Path(out.name), Path(out.name).name)
        if header.vlrs.get_by_id("copc"):
            message = "cannot be restored, because the source was COPC, whose octree is not written"
            raise file.problem(message, _INSTEAD, "option")
        lazrs = file.library("lazrs", "lidar")
        (settings,) = header.vlrs.get("LasZipVlr")
        compressor = lazrs.LasZipCompressor(out, lazrs.LazVlr(settings.record_data_bytes()))
        for lo in range(0, len(records), _STEP):
            compressor.compress_many(records[lo : lo + _STEP].view(np.uint8))
        compressor.done()
        end = out.seek(0, SEEK_END)
        if header.number_of_evlrs:
            out.seek(_FIRST_EVLR)
            out.write(end.to_bytes(8, "little"))
            out.seek(end)


def _number(file: SourceFile, at: int, size: int) -> int:
    """Read a number of a file. What is missing counts as 0."""
    return int.from_bytes(file.bytes()[at : at + size].tobytes(), "little")


def _check_header(file: SourceFile) -> None:
    """Refuse a file that ends before its points begin."""
    if file.size < _SHORTEST:
        message = f"is truncated: it ends inside its header, after {file.size} bytes"
        raise file.problem(message, COPY_AGAIN, "truncated")
    start = _number(file, 96, 4)
    records = _number(file, 100, 4)
    if start < _SHORTEST + _RECORD * records:
        raise file.problem(
            f"its header states that points begin at byte {start:,}, which leaves no room for {records:,} "
            "records before them",
            WRITE_AGAIN,
            "damaged",
        )
    file.check_size(start)


def _records_behind(file: SourceFile, header: Any, behind: bytes) -> Any:
    """Parse the records behind the points, which must all be there."""
    from laspy.vlrs.vlrlist import VLRList

    end = 0
    for _ in range(header.number_of_evlrs):
        end += _RECORD_BEHIND + int.from_bytes(behind[end + 20 : end + 28], "little")
        if end > len(behind):
            file.check_size(file.size - len(behind) + end)
    return VLRList.read_from(BytesIO(behind), header.number_of_evlrs, extended=True)


def _crs(header: Any) -> str:
    """Return the coordinate system: WKT, else numbers of GeoTIFF keys, as ``EPSG:26910+5703``."""
    codes: list[int] = []
    for record in (*header.vlrs, *(header.evlrs or ())):
        if (record.user_id, record.record_id) == _WKT:
            return str(record.record_data_bytes().rstrip(b"\0"), "utf-8", "backslashreplace")
        keys = {key.id: key.value_offset for key in getattr(record, "geo_keys", ())}
        codes += [keys[key] for key in _EPSG_KEYS if key in keys]
    return f"EPSG:{'+'.join(map(str, codes))}" if codes else ""


class _LasPoints:
    """Points of an open file, of which all dimensions are decoded together."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.count: int = reader.header.point_count
        self._is_held = self.count * reader.header.point_format.size <= _HELD
        self._range = 0, 0
        self._records = reader.read_points(0)

    def values(self, name: str, lo: int, hi: int) -> AnyArray:
        first, last = self._range
        if not first <= lo <= hi <= last:
            first, last = (0, self.count) if self._is_held else (lo, hi)
            self._reader.seek(first)
            self._records = self._reader.read_points(last - first)
            self._range = first, last
        return np.asarray(self._records[lo - first : hi - first][name])

    def coordinates(self, name: str, scale: float, offset: float, lo: int, hi: int) -> Float64s:
        """Return rows ``lo:hi`` of integers by scale and offset, as the format defines them."""
        return self.values(name, lo, hi) * scale + offset


def _arrays(file: SourceFile, reader: Any) -> dict[str, Array]:
    """Coordinates, and the other dimensions by their names."""
    header = reader.header
    points = _LasPoints(reader)
    arrays = {}
    for number, axis in enumerate(_AXES):
        read = partial(points.coordinates, axis, header.scales[number], header.offsets[number])
        arrays[axis.lower()] = Array(LazyRows((points.count,), np.dtype(np.float64), read))
    for name in header.point_format.dimension_names:
        if name in arrays:
            message = f"has extra bytes named {name!r}, the name of a coordinate"
            raise file.problem(message, "rename the extra bytes", "name")
        if name not in _AXES:
            empty = points.values(name, 0, 0)
            shape = (points.count, *empty.shape[1:])
            arrays[name] = Array(LazyRows(shape, empty.dtype, partial(points.values, name)))
    return arrays


def _records(file: SourceFile, header: Any, arrays: NamedArrays, scratch: IO[bytes]) -> AnyArray:
    """Pack the points as a file holds them, one dimension after the other."""
    from laspy.point.record import PackedPointRecord

    names = {*arrays, *(axis for axis in _AXES if axis.lower() in arrays)}
    lacking = [name for name in header.point_format.dimension_names if name not in names]
    if lacking:
        message = f"cannot be restored, because the store does not contain {', '.join(lacking)}"
        raise file.problem(message, _INSTEAD, "option")
    dtype = header.point_format.dtype()
    records = np.memmap(scratch, dtype, "w+", shape=(len(arrays["x"]),))
    points = PackedPointRecord(records, header.point_format)
    for name, array in arrays.items():
        axis = "xyz".find(name)
        for lo, rows in array.blocks():
            target = points[lo : lo + len(rows)]
            if axis < 0:
                target[name][:] = rows
                written = np.asarray(target[name])
            else:
                scale = header.scales[axis]
                offset = header.offsets[axis]
                target[name.upper()][:] = np.rint((rows - offset) / scale)
                written = target[name.upper()] * scale + offset
            if not np.array_equal(written, rows, equal_nan=rows.dtype.kind == "f"):
                message = f"cannot be restored, because this format cannot store {name} exactly"
                raise file.problem(message, _INSTEAD)
    return records
