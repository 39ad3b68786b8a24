"""Codecs from bytes to bytes: ``blosc``, ``zstd``, ``gzip``, ``crc32c``, and the decoder made of a chain of them.

blosc's own threads are switched off for the whole process when this module is imported: its default starts a
pool in the main thread, which dies in a forked child and hangs the first decode there.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import google_crc32c
import numcodecs.blosc
import numcodecs.zstd
import numpy as np
from numpy.typing import NDArray

from unistore.errors import StoreError, UnsupportedError

__all__ = [
    "BYTE_CODECS",
    "Blosc",
    "ByteCodec",
    "Crc32c",
    "FrameError",
    "Gzip",
    "IntoDecoder",
    "Zstd",
    "decoder",
]

numcodecs.blosc.use_threads = False

Buffers = list[bytes | memoryview]
Bytes = NDArray[np.uint8]

IntoDecoder = Callable[[bytes, NDArray[Any]], None]
"""``decode(raw, out)``: stored bytes of a chunk into a C-contiguous array of its decoded size."""

_crc32c = google_crc32c.value
_RESIDUE = _crc32c(_crc32c(b"").to_bytes(4, "little"))  # crc32c of any bytes followed by their own crc32c
_BLOSC_HEADER = struct.Struct("<BBBBIII")  # version, versionlz, flags, typesize, nbytes, blocksize, cbytes
_BLOSC_SIZES = struct.Struct("<4xIII")
_BLOSC_VERSION = 2
_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
_CNAMES = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class FrameError(Exception):
    """Stored bytes of one chunk contradict their checksum, their frame or the chunk's size."""


class ByteCodec(Protocol):
    """One codec from bytes to bytes."""

    @classmethod
    def from_json(cls, configuration: dict[str, Any], where: str) -> ByteCodec:
        """Parse the codec's ``configuration``."""

    def to_json(self) -> dict[str, Any]:
        """The codec as listed in ``codecs``."""

    def encode(self, buffers: Buffers) -> Buffers:
        """Encode the concatenation of `buffers`."""

    def decode(self, raw: Bytes, nbytes: int | None, limit: int) -> Bytes:
        """Decode to `nbytes` bytes, or, where None, to at most `limit`."""

    def encoded_size(self, nbytes: int | None) -> int | None:
        """Bytes that `nbytes` bytes are encoded to, where that does not depend on them."""


@dataclass(frozen=True, slots=True)
class Crc32c:
    """``crc32c``: four little-endian bytes of checksum behind the data (v3 codec specification)."""

    @classmethod
    def from_json(cls, configuration: dict[str, Any], where: str) -> Crc32c:
        """Parse; the codec has no options."""
        _only(configuration, (), "crc32c", where)
        return cls()

    def to_json(self) -> dict[str, Any]:
        """The codec as listed in ``codecs``."""
        return {"name": "crc32c"}

    def encode(self, buffers: Buffers) -> Buffers:
        """Append the checksum as a buffer of its own."""
        crc = 0
        for buffer in buffers:
            crc = google_crc32c.extend(
                crc, buffer if isinstance(buffer, bytes) else np.frombuffer(buffer, np.uint8)
            )
        return [*buffers, crc.to_bytes(4, "little")]

    def decode(self, raw: Bytes, nbytes: int | None, limit: int) -> Bytes:
        """Check and strip the checksum."""
        _check_crc(raw)
        size = len(raw) - 4
        if size != nbytes if nbytes is not None else size > limit:
            msg = f"{size} bytes before the crc32c, expected {limit if nbytes is None else nbytes}"
            raise FrameError(msg)
        return raw[:-4]

    def encoded_size(self, nbytes: int | None) -> int | None:
        """Four bytes more."""
        return None if nbytes is None else nbytes + 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Blosc:
    """``blosc`` (frames of c-blosc 1).

    Attributes
    ----------
    cname
        Compressor: blosclz, lz4, lz4hc, snappy, zlib, zstd (snappy only where numcodecs was built with it).
    clevel
        0 to 9.
    shuffle
        noshuffle, shuffle or bitshuffle.
    typesize
        Bytes of one element, for shuffling.
    blocksize
        Bytes of one block; 0: chosen by blosc.
    """

    cname: str = "lz4"
    clevel: int = 5
    shuffle: str = "shuffle"
    typesize: int = 1
    blocksize: int = 0

    @classmethod
    def from_json(cls, configuration: dict[str, Any], where: str) -> Blosc:
        """Parse; names and ranges are checked."""
        _only(configuration, ("cname", "clevel", "shuffle", "typesize", "blocksize"), "blosc", where)
        cname, shuffle = configuration.get("cname"), configuration.get("shuffle", "noshuffle")
        if cname not in _CNAMES or shuffle not in _SHUFFLES:
            msg = f"{where}: blosc with cname {cname!r} and shuffle {shuffle!r} is not read by unistore"
            raise UnsupportedError(msg)
        if cname not in numcodecs.blosc.list_compressors():
            msg = f"{where}: this build of numcodecs has no blosc cname {cname!r}; open the array with zarr"
            raise UnsupportedError(msg)
        return cls(
            cname=cname,
            clevel=_integer(configuration, "clevel", 5, (0, 9), "blosc", where),
            shuffle=shuffle,
            typesize=_integer(configuration, "typesize", 1, (1, 255), "blosc", where),
            blocksize=_integer(configuration, "blocksize", 0, (0, 2**31), "blosc", where),
        )

    def to_json(self) -> dict[str, Any]:
        """The codec as listed in ``codecs``."""
        names = ("typesize", "cname", "clevel", "shuffle", "blocksize")
        return {"name": "blosc", "configuration": {name: getattr(self, name) for name in names}}

    def encode(self, buffers: Buffers) -> Buffers:
        """Compress into one frame."""
        source = np.frombuffer(_joined(buffers), np.uint8)
        if self.typesize > 1 and len(source) % self.typesize == 0:
            source = source.view(f"V{self.typesize}")
        frame: bytes = numcodecs.blosc.compress(
            source, self.cname.encode(), self.clevel, _SHUFFLES.index(self.shuffle), self.blocksize
        )
        return [frame]

    def decode(self, raw: Bytes, nbytes: int | None, limit: int) -> Bytes:
        """Check the frame's sizes and decompress."""
        size = _check_blosc(raw, len(raw), nbytes, limit)
        out = np.empty(size, np.uint8)
        _blosc_into(raw, out)
        return out

    def encoded_size(self, nbytes: int | None) -> int | None:
        """Depends on the data."""
        return None


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
        """Parse."""
        _only(configuration, ("level", "checksum"), "zstd", where)
        return cls(
            level=_integer(configuration, "level", 0, (-131072, 22), "zstd", where),
            checksum=bool(configuration.get("checksum", False)),
        )

    def to_json(self) -> dict[str, Any]:
        """The codec as listed in ``codecs``."""
        return {"name": "zstd", "configuration": {"level": self.level, "checksum": self.checksum}}

    def encode(self, buffers: Buffers) -> Buffers:
        """Compress into one frame that records its content's size."""
        frame: bytes = numcodecs.zstd.compress(_joined(buffers), self.level, self.checksum)
        return [frame]

    def decode(self, raw: Bytes, nbytes: int | None, limit: int) -> Bytes:
        """Check the frame's content size and decompress."""
        size = _zstd_content_size(raw)
        if size is None:
            size = nbytes
        elif size != nbytes if nbytes is not None else size > limit:
            msg = f"zstd frame of {size} bytes, expected {limit if nbytes is None else nbytes}"
            raise FrameError(msg)
        try:
            if size is None:
                return np.frombuffer(numcodecs.zstd.decompress(raw), np.uint8)
            out = np.empty(size, np.uint8)
            numcodecs.zstd.decompress(raw, out)
        except (RuntimeError, ValueError) as error:
            raise FrameError(str(error)) from error
        return out

    def encoded_size(self, nbytes: int | None) -> int | None:
        """Depends on the data."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gzip:
    """``gzip``; written without name and time, so that equal data gives equal bytes.

    Attributes
    ----------
    level
        0 to 9.
    """

    level: int = 5

    @classmethod
    def from_json(cls, configuration: dict[str, Any], where: str) -> Gzip:
        """Parse."""
        _only(configuration, ("level",), "gzip", where)
        return cls(level=_integer(configuration, "level", 5, (0, 9), "gzip", where))

    def to_json(self) -> dict[str, Any]:
        """The codec as listed in ``codecs``."""
        return {"name": "gzip", "configuration": {"level": self.level}}

    def encode(self, buffers: Buffers) -> Buffers:
        """Compress into one gzip member."""
        stream = zlib.compressobj(self.level, zlib.DEFLATED, 31)
        return [stream.compress(_joined(buffers)) + stream.flush()]

    def decode(self, raw: Bytes, nbytes: int | None, limit: int) -> Bytes:
        """Decompress all members, never past the expected size."""
        most = limit if nbytes is None else nbytes
        parts: list[bytes] = []
        size = 0
        rest: Any = raw
        try:
            while len(rest):
                stream = zlib.decompressobj(31)
                parts.append(stream.decompress(rest, most - size + 1))
                size += len(parts[-1])
                if size > most or not stream.eof:
                    break
                rest = stream.unused_data
        except zlib.error as error:
            raise FrameError(str(error)) from error
        if size > most or not parts or not stream.eof or (nbytes is not None and size != nbytes):
            msg = f"gzip stream of {size} bytes or damaged, expected {most}"
            raise FrameError(msg)
        return np.frombuffer(b"".join(parts), np.uint8)

    def encoded_size(self, nbytes: int | None) -> int | None:
        """Depends on the data."""
        return None


BYTE_CODECS: dict[str, type[ByteCodec]] = {"blosc": Blosc, "zstd": Zstd, "gzip": Gzip, "crc32c": Crc32c}
"""Codecs from bytes to bytes by their name in ``codecs``."""


def decoder(codecs: Sequence[ByteCodec], nbytes: int) -> IntoDecoder:
    """Make ``decode(raw, out)`` for a chain of byte codecs and chunks of `nbytes` decoded bytes.

    The two chains that unistore writes, ``blosc, crc32c`` and ``crc32c``, have functions of their own; they
    leave the checksum behind the data instead of copying the data away from it.

    Raises
    ------
    FrameError
        From ``decode``, where checksum, frame and sizes contradict each other.
    """
    kinds = tuple(type(codec) for codec in codecs)
    if kinds in {(Blosc, Crc32c), (Blosc,)}:
        return _blosc_decoder(nbytes, checked=len(kinds) == 2)
    if kinds in {(Crc32c,), ()}:
        return _copy_decoder(nbytes, checked=len(kinds) == 1)
    sizes: list[int | None] = [nbytes]
    for codec in codecs:
        sizes.append(codec.encoded_size(sizes[-1]))
    steps = list(zip(codecs, sizes, strict=False))[::-1]
    limit = 2 * nbytes + 65536  # more than any of these codecs expands by, chained

    def decode(raw: bytes, out: NDArray[Any]) -> None:
        data = np.frombuffer(raw, np.uint8)
        for codec, size in steps:
            data = codec.decode(data, size, limit)
        out.reshape(-1).view(np.uint8)[:] = data

    return decode


def _blosc_decoder(nbytes: int, *, checked: bool) -> IntoDecoder:
    crc32c, residue, sizes, decompress = (
        _crc32c,
        _RESIDUE,
        _BLOSC_SIZES.unpack_from,
        numcodecs.blosc.decompress,
    )
    trailer = 4 if checked else 0
    least = 16 + trailer

    def decode(raw: bytes, out: NDArray[Any]) -> None:
        if checked and crc32c(raw) != residue:
            _check_crc(raw)
        size = len(raw)
        if size < least:
            msg = f"{size} bytes, less than a blosc header"
            raise FrameError(msg)
        decoded, block, encoded = sizes(raw)
        if decoded != nbytes or encoded + trailer != size or block > decoded or raw[0] != _BLOSC_VERSION:
            _check_blosc(raw, size - trailer, nbytes, nbytes)
        try:
            decompress(raw, out)
        except (RuntimeError, ValueError) as error:
            raise FrameError(str(error)) from error

    return decode


def _copy_decoder(nbytes: int, *, checked: bool) -> IntoDecoder:
    stored = nbytes + 4 if checked else nbytes

    def decode(raw: bytes, out: NDArray[Any]) -> None:
        if len(raw) != stored:
            msg = f"{len(raw)} bytes, expected {stored}"
            raise FrameError(msg)
        if checked and _crc32c(raw) != _RESIDUE:
            _check_crc(raw)
        out.reshape(-1).view(np.uint8)[:] = np.frombuffer(raw, np.uint8, nbytes)

    return decode


def _blosc_into(raw: Bytes, out: Bytes) -> None:
    try:
        numcodecs.blosc.decompress(raw, out)
    except (RuntimeError, ValueError) as error:
        raise FrameError(str(error)) from error


def _check_crc(raw: bytes | Bytes) -> None:
    if len(raw) < 4:
        msg = f"{len(raw)} bytes, less than a crc32c"
        raise FrameError(msg)
    if _crc32c(raw) != _RESIDUE:
        stored = int.from_bytes(bytes(raw[-4:]), "little")
        data = np.frombuffer(raw, np.uint8)[:-4]
        msg = f"crc32c is 0x{_crc32c(data):08x}, stored is 0x{stored:08x}"
        raise FrameError(msg)


def _check_blosc(raw: bytes | Bytes, size: int, nbytes: int | None, limit: int) -> int:
    """Check a blosc header against the frame's `size` and what it must decode to; give its decoded size."""
    if size < 16:
        msg = f"{size} bytes, less than a blosc header"
        raise FrameError(msg)
    version, _, _, typesize, decoded, block, encoded = _BLOSC_HEADER.unpack_from(raw)
    fits = decoded == nbytes if nbytes is not None else decoded <= limit
    if version != _BLOSC_VERSION or typesize == 0 or encoded != size or not fits or block > decoded:
        msg = (
            f"blosc header (version {version}, typesize {typesize}, {decoded} bytes in {encoded}, blocks of {block}) "
            f"does not fit a frame of {size} bytes that decodes to {limit if nbytes is None else nbytes}"
        )
        raise FrameError(msg)
    return int(decoded)


def _zstd_content_size(raw: Bytes) -> int | None:
    """Content size in a zstd frame header (RFC 8878, 3.1.1.1), or None where the frame does not record it."""
    head = raw[:18].tobytes()
    if head[:4] != _ZSTD_MAGIC or len(head) < 6:
        raise FrameError("no zstd frame")
    descriptor = head[4]
    single = descriptor >> 5 & 1
    flag = descriptor >> 6
    width = (single, 2, 4, 8)[flag]
    if width == 0:
        return None
    start = 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]
    size = int.from_bytes(head[start : start + width], "little")
    return size + 256 if width == 2 else size


def _joined(buffers: Buffers) -> bytes | memoryview:
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)


def _only(configuration: dict[str, Any], known: tuple[str, ...], codec: str, where: str) -> None:
    unknown = sorted(set(configuration) - set(known))
    if unknown:
        msg = f"{where}: option {unknown[0]!r} of codec {codec!r} is not read by unistore; open the array with zarr"
        raise UnsupportedError(msg)


def _integer(
    configuration: dict[str, Any], name: str, default: int, bounds: tuple[int, int], codec: str, where: str
) -> int:
    value = configuration.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not bounds[0] <= value <= bounds[1]:
        msg = f"{where}: option {name!r} of codec {codec!r} must be within {bounds[0]}…{bounds[1]}, found {value!r}"
        raise StoreError(msg)
    return value
