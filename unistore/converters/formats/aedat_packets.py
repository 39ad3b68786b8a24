"""Sizes of the packets of AEDAT 4 files, by their headers: what decoding them takes."""

# A packet is the number of its stream, the bytes that follow (4 bytes each, little-endian), and a frame of
# LZ4 or zstd, or its content as it is. The headers of a frame's blocks tell at most what it decodes to.
# https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md, RFC 8878.

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import IO

from unistore.converters.opened import SourceFile

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
_AGAIN = "copy it again"


def largest_packet(file: SourceFile) -> int:
    """Return the most bytes that one decodes to, or refuse one that is cut off or too large."""
    largest = 0
    with file.path.open("rb") as content:
        (start, stop) = _packets(content, file.size)
        while start + 8 <= stop:
            content.seek(start + 4)
            (length,) = struct.unpack("<I", content.read(4))
            start += 8
            if start + length > stop:
                message = f"is truncated: a packet has {length:,} bytes, of which {stop - start:,} are there"
                raise file.problem(message, _AGAIN, "truncated")
            decoded = sum(_blocks(content, start, start + length))
            if decoded > _MOST:
                message = f"has a packet of {length:,} bytes that decodes to {decoded:,}, more than {_MOST:,}"
                raise file.problem(message, "write it again in packets of fewer events", "memory")
            largest = max(largest, decoded, length)
            start += length
    return largest


def _packets(content: IO[bytes], size: int) -> tuple[int, int]:
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
