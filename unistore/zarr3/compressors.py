"""``crc32c``, ``zstd`` and ``gzip``."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, ClassVar

import google_crc32c
import numpy as np
from numcodecs import zstd

from unistore.zarr3.documents import must_be
from unistore.zarr3.frames import (
    Buffers,
    Bytes,
    FrameError,
    check_options,
    check_size,
    integer_option,
    joined,
)

crc32c = google_crc32c.value
"""Checksum of bytes or a contiguous array (memoryviews are refused by google_crc32c)."""

RESIDUE = crc32c(crc32c(b"").to_bytes(4, "little"))
"""Checksum of any bytes followed by their own checksum: data and trailer are checked without being parted."""

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_BLOCK = 128 << 10  # decoded bytes of a block, at most
_REPEATED, _COMPRESSED = 1, 2  # kinds of blocks
_GZIP_WINDOW = 31  # zlib's window bits for a gzip header
_MOST_MEMBERS = 64
"""Of one gzip stream: zlib copies what follows each of them."""


def check_crc(raw: bytes | Bytes) -> None:
    """Check data that is followed by its checksum; raises `FrameError` with both checksums."""
    if len(raw) < 4:
        msg = f"{len(raw)} bytes, less than a crc32c"
        raise FrameError(msg)
    if crc32c(raw) != RESIDUE:
        data = np.frombuffer(raw, np.uint8)
        stored = int.from_bytes(data[-4:].tobytes(), "little")
        msg = f"crc32c is 0x{crc32c(data[:-4]):08x}, stored is 0x{stored:08x}"
        raise FrameError(msg)


@dataclass(frozen=True, slots=True)
class Crc32c:
    """``crc32c``: four little-endian bytes of checksum behind the data."""

    overhead: ClassVar[int | None] = 4

    @classmethod
    def from_json(cls, configuration: dict[str, Any], where: str) -> Crc32c:
        """Check that there are no options."""
        check_options(configuration, (), "crc32c", where)
        return cls()

    def to_json(self) -> dict[str, Any]:
        """The codec as listed in ``codecs``."""
        return {"name": "crc32c"}

    def encode(self, buffers: Buffers) -> Buffers:
        """Append the checksum as a buffer of its own."""
        crc = 0
        for buffer in buffers:
            readable = buffer if isinstance(buffer, bytes) else np.frombuffer(buffer, np.uint8)
            crc = google_crc32c.extend(crc, readable)
        return [*buffers, crc.to_bytes(4, "little")]

    def decode(self, raw: Bytes, sizes: range) -> Bytes:
        """Check and strip the checksum."""
        check_crc(raw)
        check_size(len(raw) - 4, sizes, "data before the crc32c")
        return raw[:-4]


@dataclass(frozen=True, slots=True, kw_only=True)
class Zstd:
    """``zstd``: level -131072 to 22 (0 is zstd's default); `checksum` adds zstd's own to the frame."""

    overhead: ClassVar[int | None] = None
    level: int = 0
    checksum: bool = False

    @classmethod
    def from_json(cls, configuration: dict[str, Any], where: str) -> Zstd:
        """Parse the configuration."""
        check_options(configuration, ("level", "checksum"), "zstd", where)
        level = integer_option(configuration, "level", 0, (-131072, 22), where)
        checksum = configuration.get("checksum", False)
        if not isinstance(checksum, bool):
            raise must_be(where, "codec option 'checksum'", "true or false", checksum)
        return cls(level=level, checksum=checksum)

    def to_json(self) -> dict[str, Any]:
        """The codec as listed in ``codecs``."""
        return {"name": "zstd", "configuration": {"level": self.level, "checksum": self.checksum}}

    def encode(self, buffers: Buffers) -> Buffers:
        """Compress into one frame that records its content's size."""
        return [zstd.compress(joined(buffers), self.level, self.checksum)]

    def decode(self, raw: Bytes, sizes: range) -> Bytes:
        """Check the frame's content size and decompress."""
        size = _zstd_content_size(raw)
        if size is None and len(sizes) > 1:
            _check_blocks(raw, sizes[-1])
        elif size is None:
            size = sizes[0]
        else:
            check_size(size, sizes, "zstd frame")
        try:
            out = None if size is None else np.empty(size, np.uint8)
            content = zstd.decompress(raw, out)
        except (RuntimeError, ValueError) as error:
            raise FrameError(str(error)) from error
        if out is None:
            out = np.frombuffer(content, np.uint8)
            check_size(len(out), sizes, "zstd frame")
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Gzip:
    """``gzip``, level 0 to 9; written without name and time, so that equal data give equal bytes."""

    overhead: ClassVar[int | None] = None
    level: int = 5

    @classmethod
    def from_json(cls, configuration: dict[str, Any], where: str) -> Gzip:
        """Parse the configuration."""
        check_options(configuration, ("level",), "gzip", where)
        return cls(level=integer_option(configuration, "level", 5, (0, 9), where))

    def to_json(self) -> dict[str, Any]:
        """The codec as listed in ``codecs``."""
        return {"name": "gzip", "configuration": {"level": self.level}}

    def encode(self, buffers: Buffers) -> Buffers:
        """Compress into one gzip member."""
        return [zlib.compress(joined(buffers), self.level, _GZIP_WINDOW)]

    def decode(self, raw: Bytes, sizes: range) -> Bytes:
        """Decompress all members, never past the expected size."""
        most = sizes[-1]
        parts: list[bytes] = []
        size, whole, rest = 0, False, raw.tobytes()
        try:
            while rest and size <= most and len(parts) < _MOST_MEMBERS:
                stream = zlib.decompressobj(_GZIP_WINDOW)
                parts.append(stream.decompress(rest, most - size + 1))
                size += len(parts[-1])
                whole, rest = stream.eof, stream.unused_data
                if not whole:
                    break
        except zlib.error as error:
            raise FrameError(str(error)) from error
        if rest and whole and size <= most:
            msg = f"gzip stream of more than {_MOST_MEMBERS} members"
            raise FrameError(msg)
        check_size(size, sizes, "gzip stream")
        if not whole:
            msg = f"gzip stream that ends after {size} bytes"
            raise FrameError(msg)
        return np.frombuffer(b"".join(parts), np.uint8)


def _zstd_content_size(raw: Bytes) -> int | None:
    """Content size in a zstd frame header (RFC 8878, 3.1.1.1), or None where the frame does not record it."""
    head = raw[:18].tobytes()
    if head[:4] != _ZSTD_MAGIC or len(head) < 6:
        raise FrameError("no zstd frame")
    descriptor = head[4]
    width = (descriptor >> 5 & 1, 2, 4, 8)[descriptor >> 6]
    if width == 0:
        return None
    start = _zstd_header_size(descriptor) - width
    size = int.from_bytes(head[start : start + width], "little")
    return size + 256 if width == 2 else size


def _zstd_header_size(descriptor: int) -> int:
    single = descriptor >> 5 & 1
    return 6 - single + (0, 1, 2, 4)[descriptor & 3] + (single, 2, 4, 8)[descriptor >> 6]


def _check_blocks(raw: Bytes, limit: int) -> None:
    """Refuse a frame, and what follows it, that may hold more than `limit` (RFC 8878, 3.1.1.2)."""
    at, most, last = _zstd_header_size(int(raw[4])), 0, False
    while not last and at + 3 <= len(raw):
        header = int.from_bytes(raw[at : at + 3].tobytes(), "little")
        last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        most += _ZSTD_BLOCK if kind == _COMPRESSED else size
        at += 3 + (1 if kind == _REPEATED else size)
    at += 4 * (int(raw[4]) >> 2 & 1)  # its checksum
    if not last or at != len(raw) or most > limit + _ZSTD_BLOCK:
        msg = f"zstd frame that does not record its size, of up to {most} bytes, expected {limit}"
        raise FrameError(msg)
