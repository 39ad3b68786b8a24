"""``zstd`` and ``gzip``."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numcodecs import zstd

from unistore.errors import StoreError
from unistore.zarr3.documents import shown
from unistore.zarr3.frames import Buffers, Bytes, FrameError, check_options, integer_option, joined

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_BLOCK = 128 << 10  # decoded bytes of a block, at most
_REPEATED, _COMPRESSED = 1, 2  # kinds of blocks
_GZIP_WINDOW = 31  # zlib's window bits for a gzip header
_MOST_MEMBERS = 64
"""Of one gzip stream: zlib copies what follows each of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Zstd:
    """``zstd``.

    Attributes
    ----------
    level
        -131072 to 22; 0 is zstd's default.
    checksum
        Whether the frame carries zstd's own checksum.
    """

    level: int = 0
    checksum: bool = False

    @classmethod
    def from_json(cls, configuration: dict[str, Any], where: str) -> Zstd:
        """Parse the configuration."""
        check_options(configuration, ("level", "checksum"), "zstd", where)
        level = integer_option(configuration, "level", 0, (-131072, 22), where)
        checksum = configuration.get("checksum", False)
        if not isinstance(checksum, bool):
            msg = f"{where}: codec option 'checksum' must be true or false, found {shown(checksum)}"
            raise StoreError(msg)
        return cls(level=level, checksum=checksum)

    def to_json(self) -> dict[str, Any]:
        """The codec as listed in ``codecs``."""
        return {"name": "zstd", "configuration": {"level": self.level, "checksum": self.checksum}}

    def encode(self, buffers: Buffers) -> Buffers:
        """Compress into one frame that records its content's size."""
        frame: bytes = zstd.compress(joined(buffers), self.level, self.checksum)
        return [frame]

    def decode(self, raw: Bytes, nbytes: int | None, limit: int) -> Bytes:
        """Check the frame's content size and decompress."""
        size = _zstd_content_size(raw)
        if size is None:
            size = nbytes
        elif size > limit if nbytes is None else size != nbytes:
            msg = f"zstd frame of {size} bytes, expected {limit if nbytes is None else nbytes}"
            raise FrameError(msg)
        try:
            if size is None:
                _check_blocks(raw, limit)
                found = np.frombuffer(zstd.decompress(raw), np.uint8)
                if len(found) > limit:
                    msg = f"zstd frame of {len(found)} bytes, expected {limit}"
                    raise FrameError(msg)
                return found
            out = np.empty(size, np.uint8)
            zstd.decompress(raw, out)
        except (RuntimeError, ValueError) as error:
            raise FrameError(str(error)) from error
        return out

    def encoded_size(self, nbytes: int | None) -> int | None:  # noqa: ARG002 - a ByteCodec
        """Depends on the data."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gzip:
    """``gzip``; written without name and time, so that equal data give equal bytes.

    Attributes
    ----------
    level
        0 to 9.
    """

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
        stream = zlib.compressobj(self.level, zlib.DEFLATED, _GZIP_WINDOW)
        return [stream.compress(joined(buffers)) + stream.flush()]

    def decode(self, raw: Bytes, nbytes: int | None, limit: int) -> Bytes:
        """Decompress all members, never past the expected size."""
        most = limit if nbytes is None else nbytes
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
        if not whole or size > most or (nbytes is not None and size != nbytes):
            held = f"more than {most}" if size > most else size
            msg = f"gzip stream of {held} bytes, expected {most}"
            raise FrameError(msg)
        return np.frombuffer(b"".join(parts), np.uint8)

    def encoded_size(self, nbytes: int | None) -> int | None:  # noqa: ARG002 - a ByteCodec
        """Depends on the data."""
        return None


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
