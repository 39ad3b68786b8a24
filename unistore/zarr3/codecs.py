"""The bytes of one chunk: little-endian elements, compressed by blosc, zstd or not, then their crc32c."""

# blosc's own threads are switched off for the whole process when this module is imported: its default
# starts a pool in the main thread, which dies in a forked child and hangs the first decode there

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TypeAlias

import google_crc32c
import numpy as np
from numcodecs import blosc, zstd  # type: ignore[attr-defined]

from unistore.system.frames import BLOSC_HEADER, BLOSC_VERSION, zstd_size
from unistore.system.types import AnyArray, Buffer, JsonObject
from unistore.zarr3.documents import ANY, check_equal, is_list_of, shown, unsupported

if sys.byteorder != "little":
    raise ImportError("unistore needs a little-endian machine, because stores are little-endian")

blosc.use_threads = False

# Parts of one encoded chunk; their concatenation is stored.
Buffers = list[Buffer]
# ``encode(chunk)``: a C-contiguous chunk into buffers.
Encoder = Callable[[AnyArray], Buffers]
Decoded = bytes | AnyArray
# ``decode(raw, out)``: a stored chunk into `out`, C-contiguous and of the chunk's size. Where that is None,
# what is returned starts with the chunk, in memory of its own or in `raw`.
Decoder = Callable[[bytes, AnyArray | None], Decoded]

SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
_COMPRESSORS = ("lz4", "zstd")


def _checksum_in_python(content: bytes | AnyArray) -> int:
    return google_crc32c.value(bytes(content))  # type: ignore[no-any-return]


# Checksum of bytes or a contiguous array (memoryviews are refused by google_crc32c). Without its C extension,
# it would read each element of an array as one byte.
crc32c = google_crc32c.value if google_crc32c.implementation == "c" else _checksum_in_python
CRC_BYTES = 4
# Checksum of any bytes followed by their own checksum: both are checked without being parted.
RESIDUE = crc32c(crc32c(b"").to_bytes(CRC_BYTES, "little"))

_HEADER_SIZES = struct.Struct("<4xIII")  # decoded bytes, bytes of a block, bytes of the frame
_ZSTD_BLOCK = 1 << 17


class FrameError(Exception):
    """Stored bytes of one chunk contradict their checksum, their frame or the chunk's size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blosc:
    """Options of the codec ``blosc``, in the order in which ``zarr.json`` has them."""

    typesize: int  # bytes of one element, for shuffling: 1 to 255
    cname: str  # lz4 or zstd
    clevel: int  # 0 to 9
    shuffle: str  # one of SHUFFLES
    blocksize: int = 0  # chosen by blosc


@dataclass(frozen=True, slots=True, kw_only=True)
class Zstd:
    """Options of the codec ``zstd``, in the order in which ``zarr.json`` has them."""

    level: int  # -131072 to 22
    checksum: bool = False  # zstd's own, beside crc32c


Compressor: TypeAlias = Blosc | Zstd


def codecs_document(compressor: Compressor | None, itemsize: int) -> list[JsonObject]:
    """Return the codecs of a chunk as ``zarr.json`` lists them."""
    elements: JsonObject = {"name": "bytes"}
    if itemsize > 1:
        elements["configuration"] = {"endian": "little"}
    codecs = [elements, {"name": "crc32c"}]
    if compressor is not None:
        codecs.insert(1, {"name": type(compressor).__name__.lower(), "configuration": asdict(compressor)})
    return codecs


def parse_codecs(codecs: object, itemsize: int, where: str) -> Compressor | None:
    """Return the options of a chunk's compressor, or None where chunks are not compressed."""
    if codecs == codecs_document(None, itemsize):
        return None
    entries = codecs if isinstance(codecs, list) else []
    is_zstd = "zstd" in [codec.get("name") for codec in entries if isinstance(codec, dict)]
    any_options = Zstd(level=ANY, checksum=ANY) if is_zstd else _ANY_BLOSC
    check_equal(codecs, codecs_document(any_options, itemsize), "codecs of a chunk", where)
    options: JsonObject = entries[1]["configuration"]
    is_valid = _are_zstd_options if is_zstd else _are_blosc_options
    if not is_valid(options):
        raise unsupported(where, f"the codec {entries[1]['name']!r} has the options {shown(options)}")
    return type(any_options)(**options)


_ANY_BLOSC = Blosc(typesize=ANY, cname=ANY, clevel=ANY, shuffle=ANY)


def _are_zstd_options(options: JsonObject) -> bool:
    return type(options["level"]) is int and type(options["checksum"]) is bool


def _are_blosc_options(options: JsonObject) -> bool:
    return (
        options["cname"] in _COMPRESSORS
        and options["shuffle"] in SHUFFLES
        and is_list_of([options["clevel"], options["typesize"]], int)
        and 0 <= options["clevel"] <= 9
        and 1 <= options["typesize"] <= 255
    )


def max_encoded_size(nbytes: int) -> int:
    """Return the most stored bytes of a chunk of `nbytes`."""
    # What they cannot compress, blosc stores behind its header, and zstd in blocks of 128 KiB, each behind
    # three bytes, with at most 18 bytes around them (RFC 8878)
    zstd_bytes = 18 + 3 * (nbytes // _ZSTD_BLOCK + 1)
    return nbytes + max(BLOSC_HEADER.size, zstd_bytes) + CRC_BYTES


def encoder(compressor: Compressor | None) -> Encoder:
    """Make the function that encodes whole chunks."""
    if compressor is None:
        return _encode_uncompressed
    if isinstance(compressor, Zstd):
        return _zstd_encoder(compressor)
    compress = partial(
        blosc.compress,
        cname=compressor.cname.encode(),
        clevel=compressor.clevel,
        shuffle=SHUFFLES.index(compressor.shuffle),
        blocksize=compressor.blocksize,
    )
    typesize = compressor.typesize
    element = np.dtype(f"V{typesize}")

    def encode(chunk: AnyArray) -> Buffers:
        # blosc shuffles the items of the array's dtype: rows of a few numbers may be one item
        if chunk.itemsize != typesize and chunk.nbytes % typesize == 0:
            chunk = chunk.reshape(-1).view(element)
        frame = compress(chunk)
        return [frame, crc32c(frame).to_bytes(CRC_BYTES, "little")]

    return encode


def _zstd_encoder(options: Zstd) -> Encoder:
    def encode(chunk: AnyArray) -> Buffers:
        frame = zstd.compress(chunk.reshape(-1).view(np.uint8), options.level, options.checksum)
        return [frame, crc32c(frame).to_bytes(CRC_BYTES, "little")]

    return encode


def _encode_uncompressed(chunk: AnyArray) -> Buffers:
    content = chunk.reshape(-1).view(np.uint8)
    return [content.data, crc32c(content).to_bytes(CRC_BYTES, "little")]


def decoder(compressor: Compressor | None, nbytes: int) -> Decoder:
    """Make the function that decodes chunks of `nbytes` decoded bytes.

    If it raises `FrameError`, ``out`` may hold anything.
    """
    if compressor is None:
        return _uncompressed_decoder(nbytes)
    return _blosc_decoder(nbytes) if isinstance(compressor, Blosc) else _zstd_decoder(nbytes)


def check_chunk(chunk: AnyArray, stored: bytes | bytearray) -> None:
    """Check a chunk that was read apart from its stored checksum. Raises `FrameError`."""
    checksum = crc32c(chunk)
    if checksum != int.from_bytes(stored, "little"):
        raise _checksum_error(checksum, stored)


def _check_checksum(raw: bytes) -> None:
    if crc32c(raw) != RESIDUE:
        raise _checksum_error(crc32c(raw[:-CRC_BYTES]), raw[-CRC_BYTES:])


def _checksum_error(checksum: int, stored: bytes | bytearray) -> FrameError:
    number = int.from_bytes(stored, "little")
    return FrameError(f"its checksum (crc32c) is 0x{checksum:08x}, but 0x{number:08x} is stored")


def _uncompressed_decoder(nbytes: int) -> Decoder:
    def decode(raw: bytes, out: AnyArray | None) -> Decoded:
        if len(raw) != nbytes + CRC_BYTES:
            msg = f"the chunk has {len(raw):,} bytes, expected {nbytes + CRC_BYTES:,}"
            raise FrameError(msg)
        _check_checksum(raw)
        if out is None:
            return raw
        out.reshape(-1).view(np.uint8)[:] = np.frombuffer(raw, np.uint8, nbytes)
        return out

    return decode


def _blosc_decoder(nbytes: int) -> Decoder:
    # local names: this function runs for every chunk of every batch
    checksum = crc32c
    sizes_of = _HEADER_SIZES.unpack_from
    decompress = blosc.decompress
    least = BLOSC_HEADER.size + CRC_BYTES

    def decode(raw: bytes, out: AnyArray | None) -> Decoded:
        if checksum(raw) != RESIDUE:
            _check_checksum(raw)
        size = len(raw)
        if size < least:
            msg = f"it has {size - CRC_BYTES} bytes, fewer than a blosc header"
            raise FrameError(msg)
        decoded, block, encoded = sizes_of(raw)
        # blosc trusts its header: it would write `decoded` bytes into any `out`
        consistent = decoded == nbytes and encoded + CRC_BYTES == size and 0 < block <= decoded
        if not consistent or raw[0] != BLOSC_VERSION:
            raise _header_error(raw, nbytes)
        try:
            return decompress(raw, out)  # type: ignore[no-any-return]
        except (RuntimeError, ValueError) as error:
            raise FrameError(str(error)) from error

    return decode


def _zstd_decoder(nbytes: int) -> Decoder:
    def decode(raw: bytes, out: AnyArray | None) -> Decoded:
        _check_checksum(raw)
        frame = memoryview(raw)[:-CRC_BYTES]
        size = zstd_size(frame)
        # numcodecs leaves the end of a larger `out` as it was, and allocates what a header tells without one
        if size != nbytes:
            msg = f"the zstd frame has {size:,} decoded bytes, expected {nbytes:,}"
            raise FrameError(msg)
        destination = np.empty(nbytes, np.uint8) if out is None else out
        try:
            zstd.decompress(frame, destination)
        except (RuntimeError, ValueError) as error:
            raise FrameError(str(error)) from error
        return destination

    return decode


def _header_error(raw: bytes, nbytes: int) -> FrameError:
    version, _, _, typesize, decoded, block, encoded = BLOSC_HEADER.unpack_from(raw)
    return FrameError(
        f"the blosc header (version {version}, typesize {typesize}, {decoded:,} bytes in {encoded:,}, blocks "
        f"of {block:,}) does not fit a frame of {len(raw) - CRC_BYTES:,} bytes with {nbytes:,} decoded bytes"
    )
