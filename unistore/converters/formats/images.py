"""Read headers and pixels of PNG and JPEG images, and check that they are complete."""

# Some decoders return half an image without an error: PNG is checked by the checksum of every chunk, JPEG by
# its end marker. Sources: PNG specification, third edition, 5.2-5.6 and 11.2; ITU-T T.81 (JPEG), annex B.

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np

from unistore.converters.common.faults import is_out_of_memory
from unistore.converters.files.formats import lfs_pointer_problem
from unistore.errors import InputError, Problem, Where, missing_library
from unistore.system.extras import is_installed, require
from unistore.system.foreign import opening
from unistore.system.types import AnyArray, Dtype, Shape, UInt8s

SUFFIXES = (".png", ".jpg", ".jpeg")
LIBRARY = "OpenCV"

_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"\x00\x00\x00\x00IEND\xaeB`\x82"
_JPEG = b"\xff\xd8\xff"
_JPEG_END = b"\xff\xd9"
_TAIL = 1 << 16
_FRAME_TAIL = 64
# PNG colour types (11.2.1); 3 is a palette of RGB
_COLOURS = {0: "gray", 2: "rgb", 3: "rgb", 4: "gray and alpha", 6: "rgb and alpha"}
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_WITH_ALPHA = 4
# Bytes that one byte of a PNG can decode to at most (deflate, RFC 1951)
_MAX_DEFLATE_RATIO = 1032
# Pixels that one byte of a Huffman-coded JPEG can decode to, rounded up: a bit for the mean of each block of
# 64, with two of three channels at a sixteenth of the resolution, gives 455.
_MAX_JPEG_PIXELS_PER_BYTE = 1024
_MARK = 0xFF  # begins every marker of a JPEG, and fills space before one
# JPEG start-of-frame markers (table B.1): all but DHT, JPG and DAC
_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# First of the start-of-frame markers of arithmetic coding
_ARITHMETIC_CODING = 0xC9
_COMPONENTS = {1: "gray", 3: "rgb", 4: "cmyk"}
_FIX = "copy or export the image again"


class ImageHeader(NamedTuple):
    """What an image holds, as its header says: pixels as stored, before any EXIF rotation."""

    height: int
    width: int
    colour: str | None  # "rgb", "gray", "gray and alpha", "rgb and alpha", "cmyk"; None: unknown
    bits: int  # of a channel
    size: int  # bytes of the image
    least: float  # bytes that such an image takes at least
    channels: int | None  # of what `decode` gives exactly, 1 without an axis; None: decoding tells

    @property
    def plain(self) -> bool:
        """Whether it decodes to 8-bit RGB without changing a value."""
        return self.colour == "rgb" and self.bits <= 8

    @property
    def exact(self) -> bool:
        """Whether no value is lost where it becomes 8-bit RGB."""
        return self.colour in ("rgb", "gray") and self.bits <= 8

    @property
    def shape(self) -> Shape | None:
        """Shape of what `decode` gives exactly, or None where only decoding tells."""
        if self.channels is None:
            return None
        return (self.height, self.width) if self.channels == 1 else (self.height, self.width, self.channels)

    @property
    def dtype(self) -> Dtype:
        return np.dtype(np.uint16 if self.bits > 8 else np.uint8)


def opencv(where: Where) -> Any:
    """Import OpenCV, which decodes images.

    Raises
    ------
    InputError
        If it is not installed, for the image at `where`, of kind ``library``.
    """
    check_opencv(where)
    import cv2

    return cv2


def check_opencv(where: Where) -> None:
    """Check that OpenCV is installed, without importing it.

    Raises
    ------
    InputError
        If it is not, for the image at `where`, of kind ``library``.
    """
    if not is_installed("cv2"):
        fault, fix = missing_library("cv2", "images")
        raise InputError.at(where, f"is an image, and decoding it needs {fault}", fix, "library")


def encoding_of(image: UInt8s | bytes) -> Literal["png", "jpeg"] | None:
    """Return the encoding that the first bytes of an image show, or None."""
    head = bytes(image[: len(_PNG)])
    if head == _PNG:
        return "png"
    return "jpeg" if head.startswith(_JPEG) else None


def is_complete(frame: UInt8s) -> bool:
    """Return whether a frame has the beginning and the end of its encoding."""
    encoding = encoding_of(frame)
    if encoding is None:
        return False
    return (_PNG_END if encoding == "png" else _JPEG_END) in frame[-_FRAME_TAIL:].tobytes()


def read_header(path: Path, where: Where) -> ImageHeader:
    """Read the header of a PNG or JPEG file, and check that the file has its end."""
    with path.open("rb") as file:
        return header_of(file, where)


def header_of(file: IO[bytes], where: Where) -> ImageHeader:
    """Read the header of an image, and check that the end is there."""
    size = file.seek(0, 2)
    tail_at = file.seek(max(0, size - _TAIL))
    tail = file.read()
    file.seek(0)
    head = file.read(32)
    encoding = encoding_of(head)
    if encoding is None:
        raise InputError(_no_image(head, where))
    header = _png(file, tail, size) if encoding == "png" else _jpeg(file, tail_at, tail, size)
    if header is None:
        raise _truncated(where, size)
    extent = f"{header.width} x {header.height}"
    if not header.width or not header.height or header.colour is None:
        message = f"its header is damaged: it states {extent} pixels of an unknown colour type"
        if header.colour is not None:
            message = f"its header is damaged: it states {extent} pixels"
        raise InputError.at(where, message, _FIX, "damaged")
    if header.least > size:  # before memory is allocated
        raise InputError.at(
            where,
            f"is damaged: it has {size:,} bytes, too few for the {extent} pixels that its header states",
            _FIX,
            "damaged",
        )
    return header


def _no_image(head: bytes, where: Where) -> Problem:
    if not head:
        return Problem.at(where, "the image is empty (0 bytes)", _FIX, "empty")
    return lfs_pointer_problem(head, where) or Problem.at(
        where, f"is not a PNG or JPEG image: it begins with {head[:8]!r}", _FIX, "format"
    )


def _png(file: IO[bytes], tail: bytes, size: int) -> ImageHeader | None:
    file.seek(len(_PNG))
    header = file.read(25)
    if len(header) < 25 or header[4:8] != b"IHDR" or _PNG_END not in tail:
        return None
    width, height, bits, kind = struct.unpack(">IIBB", header[8:18])
    stored = _CHANNELS.get(kind, 1)
    least = height * (1 + width * stored * bits // 8) / _MAX_DEFLATE_RATIO
    # OpenCV gives gray and alpha as four channels, and transparent colours as alpha.
    channels = {0: 1, 4: _WITH_ALPHA, 6: _WITH_ALPHA}.get(kind, 3)
    if kind in {2, 3} and _is_transparent(file):
        channels = _WITH_ALPHA
    return ImageHeader(height, width, _COLOURS.get(kind), bits, size, least, channels)


def _is_transparent(file: IO[bytes]) -> bool:
    """Return whether a chunk before the pixels makes colours transparent."""
    while True:
        chunk = file.read(8)
        if chunk[4:] in (b"tRNS", b"IDAT", b"IEND", b""):
            return chunk[4:] == b"tRNS"
        file.seek(int.from_bytes(chunk[:4], "big") + 4, 1)


def _jpeg(file: IO[bytes], tail_at: int, tail: bytes, size: int) -> ImageHeader | None:
    position = 2
    rotated = False
    while True:
        file.seek(position)
        segment = file.read(10)
        if len(segment) < 10:
            return None
        mark, marker, length = struct.unpack(">BBH", segment[:4])
        if mark != _MARK or marker in {0xD9, 0xDA}:
            return None
        if marker in _START_OF_FRAME:
            break
        rotated = rotated or segment[4:] == b"Exif\0\0"
        position += 1 if marker == _MARK else 2 + length
    bits, height, width, components = struct.unpack(">BHHB", segment[4:10])
    end = tail.rfind(_JPEG_END)
    if end < 0 or tail_at + end <= position:
        return None
    huffman = marker < _ARITHMETIC_CODING
    least = height * width / _MAX_JPEG_PIXELS_PER_BYTE if huffman else 0
    channels = None if rotated else 3
    return ImageHeader(height, width, _COMPONENTS.get(components), bits, size, least, channels)


def read_file(path: Path, where: Where) -> bytes:
    """Read an image file, and check that it is whole."""
    data = path.read_bytes()
    if data.startswith(_PNG):
        _check_chunks(data, where)
    elif _JPEG_END not in data[-_TAIL:]:
        raise _truncated(where, len(data))
    return data


def _check_chunks(data: bytes, where: Where) -> None:
    """Check the chunks of a PNG: length, type, data, CRC-32 over type and data (5.3)."""
    view = memoryview(data)
    position = len(_PNG)
    kind = b""
    while kind != b"IEND":
        end = position + 8 + int.from_bytes(view[position : position + 4], "big")
        if end + 4 > len(data):
            raise _truncated(where, len(data))
        kind = bytes(view[position + 4 : position + 8])
        if zlib.crc32(view[position + 4 : end]) != int.from_bytes(view[end : end + 4], "big"):
            raise InputError.at(
                where,
                f"is damaged: the checksum of its chunk {kind!r} at byte {position:,} does not match",
                _FIX,
                "damaged",
            )
        position = end + 4


def decode(image: UInt8s | bytes, where: Where, *, exact: bool = False, swapped: bool = False) -> AnyArray:
    """Decode a PNG or JPEG as (H, W, 3) u1 RGB, or exactly: a PNG keeps its channels and depth.

    Not exact: gray is repeated, alpha is dropped, 16 bits are cut to the upper 8, and an EXIF rotation is
    not applied. Exact: the rotation is applied. `swapped` exchanges red and blue.
    """
    # OpenCV's encoder expects BGR, some recorders give it RGB, and no image says so.
    cv2 = opencv(where)
    flags = cv2.IMREAD_COLOR
    if not exact:
        flags |= cv2.IMREAD_IGNORE_ORIENTATION
    elif encoding_of(image) == "png":
        flags = cv2.IMREAD_UNCHANGED
    reason = ""
    pixels: AnyArray | None = None
    try:
        pixels = cv2.imdecode(np.frombuffer(image, np.uint8), flags)
    except cv2.error as error:
        if is_out_of_memory(error):
            raise
        reason = f": {error.err}"
    if pixels is None:
        raise InputError.at(where, f"cannot be decoded{reason}", _FIX, "damaged")
    if not swapped and pixels.ndim > 2:
        pixels = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB if pixels.shape[-1] == 3 else cv2.COLOR_BGRA2RGBA)
    return pixels


def decode_file(path: Path, where: Where, *, exact: bool) -> AnyArray:
    """Decode an image file in a worker process, see `decode`, after a check that it is whole."""
    content = read_file(path, where)
    with opening(path, where, LIBRARY):
        return decode(content, where, exact=exact)


def resize(images: UInt8s, out: UInt8s) -> None:
    """Resize images (n, H, W, 3) u1 into `out` (n, height, width, 3), with OpenCV's bilinear filter."""
    require("cv2", "resizing images needs", "images")
    import cv2

    height, width = out.shape[1:3]
    for image, target in zip(images, out, strict=True):
        cv2.resize(image, (width, height), dst=target, interpolation=cv2.INTER_LINEAR)


def _truncated(where: Where, size: int) -> InputError:
    message = f"is truncated: it has {size:,} bytes, without the end of the image"
    return InputError.at(where, message, _FIX, "truncated")
