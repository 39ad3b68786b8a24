"""AEDAT 4 files of iniVation's event cameras, https://docs.inivation.com/software/software-advanced-usage/file-formats/aedat-4.0.html."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from unistore.converters.array import Array
from unistore.converters.claims import Claim, sure
from unistore.converters.common.faults import COPY_AGAIN
from unistore.converters.formats.lazy import ForwardRecords
from unistore.converters.opened import Format, OpenFile, SourceFile
from unistore.system.types import AnyArray

EVENTS = "events"  # name of the array of a recording
_EVENT = np.dtype([("t", "<u8"), ("x", "<u2"), ("y", "<u2"), ("on", "?")])
_MAGIC = b"#!AER-DAT4"
_VERSION = 14  # bytes that say the version

# What decoding takes is told by the headers of packets. A packet is the number of its stream, the bytes that
# follow (4 bytes each, little-endian), and a frame of LZ4 or zstd, or its content as it is. The headers of a
# frame's blocks tell at most what it decodes to.
# https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md, RFC 8878.
_START = 14  # of the header: its length, 4 bytes, and a FlatBuffer
_LZ4 = b"\x04\x22\x4d\x18"
_ZSTD = b"\x28\xb5\x2f\xfd"
_LZ4_EXPANSION = 255  # bytes that one of LZ4 decodes to at most
_LZ4_UNPACKED = 1 << 31  # flag of the length of a block that is stored as it is
_ZSTD_BLOCK = 1 << 17  # bytes that a block decodes to at most
_ZSTD_REPEATED = 1  # type of a block of one byte that is stored once
_MOST = (
    256 << 20
)  # bytes that a packet decodes to: 16 million events, of which cameras write a few milliseconds


class Aedat4(Format):
    """A stream of events. Frames and inertial measurements beside it are left out."""

    name = "aedat4"
    suffixes = (".aedat4", ".aedat")
    library = "aedat"

    def recognise(self, file: SourceFile) -> Claim:
        """Look at the first bytes: older versions have the same ones but for the number."""
        beginning = file.head(len(_MAGIC))
        if beginning == _MAGIC:
            return sure("begins with #!AER-DAT4")
        if beginning[:-1] == _MAGIC[:-1]:
            version = file.head(_VERSION)[len(_MAGIC) - 1 :].split()[:1]
            raise file.problem(
                f"is AEDAT {b''.join(version).decode('ascii', 'replace')}, which is not supported",
                "convert it to AEDAT 4 with iniVation's dv-processing, or to HDF5",
            )
        raise file.wrong_beginning("with #!AER-DAT4")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        """List the streams. Events are decoded from the first to the last."""
        streams = file.library("aedat", "events").Decoder(file.path).id_to_stream()
        cameras = [number for number, stream in streams.items() if stream["type"] == "events"]
        if len(cameras) != 1:
            raise file.problem(
                f"has {len(cameras)} event streams, but 1 is expected",
                "export the events of each camera to a separate file",
            )
        (camera,) = cameras
        metadata = {"width": streams[camera]["width"], "height": streams[camera]["height"]}
        other_streams = [
            f"{stream['type']} {number}" for number, stream in streams.items() if number != camera
        ]
        left_out = dict.fromkeys(other_streams, "because it is not a stream of events")
        # No header tells the number of events: the file is decoded to count them.
        packets = partial(_packets, file.path, camera)
        records = ForwardRecords(_EVENT, packets, lambda: sum(map(len, packets())))
        # The library grows what a packet decodes to by doubling, and makes an array of it
        memory = 4 * largest_packet(file)
        yield OpenFile(
            {EVENTS: Array(records)}, metadata, forward_only=True, memory=memory, left_out=left_out
        )


def _packets(path: Path, camera: int) -> Iterator[AnyArray]:
    from aedat import Decoder

    for packet in Decoder(path):
        if packet["stream_id"] == camera:
            yield packet["events"].astype(_EVENT)


def largest_packet(file: SourceFile) -> int:
    """Return the most bytes that one decodes to, or refuse one that is cut off or too large."""
    largest = 0
    with file.path.open("rb") as content:
        start, stop = _bounds_of_packets(content, file.size)
        while start + 8 <= stop:
            content.seek(start + 4)
            (length,) = struct.unpack("<I", content.read(4))
            start += 8
            if start + length > stop:
                present = f"the file has only {stop - start:,} of the {length:,} bytes of its last packet"
                raise file.problem(f"is truncated: {present}", COPY_AGAIN, "truncated")
            decoded = sum(_blocks(content, start, start + length))
            if decoded > _MOST:
                message = f"has a packet that decodes to {decoded:,} bytes, and at most {_MOST:,} are allowed"
                raise file.problem(message, "write the file again with smaller packets", "memory")
            largest = max(largest, decoded, length)
            start += length
    return largest


def _bounds_of_packets(content: IO[bytes], size: int) -> tuple[int, int]:
    """Return where the packets begin and end: at the table that lists them, if the header tells of one."""
    content.seek(_START)
    (length,) = struct.unpack("<I", content.read(4))
    header = content.read(min(length, size))
    try:
        (table,) = struct.unpack_from("<I", header)
        (back,) = struct.unpack_from("<i", header, table)
        fields = table - back
        (count,) = struct.unpack_from("<H", header, fields)
        place = struct.unpack_from("<H", header, fields + 6)[0] if count > 6 else 0
        end = struct.unpack_from("<q", header, table + place)[0] if place else -1
    except struct.error:  # the library tells what is wrong with it
        end = 0
    return _START + 4 + length, min(size, end) if end >= 0 else size


def _blocks(content: IO[bytes], start: int, stop: int) -> Iterator[int]:
    """Yield the most bytes that each block of a packet decodes to."""
    content.seek(start)
    magic = content.read(4)
    if magic == _LZ4:
        yield from _blocks_of_lz4(content, start, stop)
    elif magic == _ZSTD:
        yield from _blocks_of_zstd(content, start, stop)
    else:
        yield stop - start


def _blocks_of_lz4(content: IO[bytes], start: int, stop: int) -> Iterator[int]:
    flags, sizes = content.read(2)
    most = 1 << 2 * (sizes >> 4 & 7) + 8
    place = start + 7 + 8 * (flags >> 3 & 1) + 4 * (flags & 1)
    checksum = 4 * (flags >> 4 & 1)
    while place + 4 <= stop:
        content.seek(place)
        (length,) = struct.unpack("<I", content.read(4))
        if not length:
            return
        stored = length % _LZ4_UNPACKED
        yield stored if length >= _LZ4_UNPACKED else min(most, _LZ4_EXPANSION * stored)
        place += 4 + stored + checksum


def _blocks_of_zstd(content: IO[bytes], start: int, stop: int) -> Iterator[int]:
    (flags,) = content.read(1)
    has_window = not flags & 32
    sized = (0 if has_window else 1, 2, 4, 8)[flags >> 6]
    place = start + 5 + has_window + (0, 1, 2, 4)[flags & 3] + sized
    is_last = False
    while place + 3 <= stop and not is_last:
        content.seek(place)
        head = int.from_bytes(content.read(3), "little")
        is_last = bool(head & 1)
        length = head >> 3
        is_repeated = head >> 1 & 3 == _ZSTD_REPEATED
        yield length if is_repeated else _ZSTD_BLOCK
        place += 3 + (1 if is_repeated else length)
