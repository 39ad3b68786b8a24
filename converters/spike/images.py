"""PNG and JPEG files of blur and sharp frames: headers, completeness, pixels.

A scan reads only the header and the end of a file. When it is converted, PNG is checked by the checksum of
every chunk, JPEG by its end marker, since some decoders return half an image without an error. All functions
raise an `InputError` if a file is not whole, of another format or size, or cannot be decoded.
Sources: PNG specification, third edition, 5.2-5.6 and 11.2; ITU-T T.81 (JPEG), annex B.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.converters.files.formats import lfs_pointer_problem
from unistore.errors import InputError, Problem

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")

_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"\x00\x00\x00\x00IEND\xaeB`\x82"
_JPEG = b"\xff\xd8"
_JPEG_END = b"\xff\xd9"
_TAIL = 1 << 16
_COLOURS = {0: "gray", 2: "rgb", 3: "rgb", 4: "gray and alpha", 6: "rgb and alpha"}
"""PNG colour types (11.2.1); 3 is a palette of RGB."""
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_MAX_DEFLATE_RATIO = 1032
"""Bytes that one byte of a PNG can decode to at most (deflate, RFC 1951)."""
_MAX_JPEG_PIXELS_PER_BYTE = 1024
"""Pixels that one byte of a Huffman-coded JPEG can decode to, rounded up: a bit for the mean of each block of
64, with two of three channels at a sixteenth of the resolution, gives 455."""
_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""JPEG start-of-frame markers (table B.1): all but DHT, JPG and DAC."""
_ARITHMETIC_CODING = 0xC9
"""First of the start-of-frame markers of arithmetic coding."""
_COMPONENTS = {1: "gray", 3: "rgb", 4: "cmyk"}
_CURE = "copy or export it again"


class ImageHeader(NamedTuple):
    """Header of an image: pixels as stored (an EXIF rotation is not applied), bits a channel, file size."""

    height: int
    width: int
    colour: str
    """``"rgb"``, ``"gray"``, ``"gray and alpha"``, ``"rgb and alpha"`` or ``"cmyk"``."""
    bits: int
    size: int

    @property
    def plain(self) -> bool:
        """Whether it decodes to 8-bit RGB without changing a value."""
        return self.colour == "rgb" and self.bits <= 8

    @property
    def exact(self) -> bool:
        """Whether no value is lost where it becomes 8-bit RGB."""
        return self.colour in ("rgb", "gray") and self.bits <= 8


def read_image_header(path: Path, name: str) -> ImageHeader:
    """Read the header of a PNG or JPEG, and check that the file has its end."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL))
        tail = file.read()
        file.seek(0)
        head = file.read(32)
        if head.startswith((_PNG, _JPEG)):
            found = _png(file, tail) if head.startswith(_PNG) else _jpeg(file, size - len(tail), tail)
            if found is None:
                raise InputError(_truncated(name, size))
            height, width, colour, bits, least = found
            if not width or not height or colour is None:
                message = f"has a damaged header ({width} x {height}, unknown or no colour)"
                raise InputError(Problem(name, message, _CURE, "corrupt"))
            if least > size:  # before memory is allocated
                message = f"is damaged: {size} bytes cannot hold the {width} x {height} pixels of its header"
                raise InputError(Problem(name, message, _CURE, "corrupt"))
            return ImageHeader(height, width, colour, bits, size)
    if not size:
        raise InputError(Problem(name, "is empty (0 bytes)", _CURE, "empty"))
    if (pointer := lfs_pointer_problem(head, name)) is not None:
        raise InputError(pointer)
    raise InputError(Problem(name, f"is not a PNG or JPEG: it begins with {head[:8]!r}", _CURE, "format"))


_Header = tuple[int, int, str | None, int, float]
"""Height, width, colour, bits a channel, and the fewest bytes that such an image takes."""


def _png(file: IO[bytes], tail: bytes) -> _Header | None:
    file.seek(len(_PNG))
    header = file.read(25)
    if len(header) < 25 or header[4:8] != b"IHDR" or _PNG_END not in tail:
        return None
    width, height, bits, colour = struct.unpack(">IIBB", header[8:18])
    least = height * (1 + width * _CHANNELS.get(colour, 1) * bits // 8) / _MAX_DEFLATE_RATIO
    return height, width, _COLOURS.get(colour), bits, least


def _jpeg(file: IO[bytes], tail_at: int, tail: bytes) -> _Header | None:
    position = 2
    while True:
        file.seek(position)
        segment = file.read(10)
        if len(segment) < 10 or segment[0] != 0xFF or segment[1] in {0xD9, 0xDA}:
            return None
        if segment[1] in _START_OF_FRAME:
            break
        position += 1 if segment[1] == 0xFF else 2 + int.from_bytes(segment[2:4], "big")
    bits, height, width, components = struct.unpack(">BHHB", segment[4:10])
    end = tail.rfind(_JPEG_END)
    if end < 0 or tail_at + end <= position:
        return None
    huffman = segment[1] < _ARITHMETIC_CODING
    return (
        height,
        width,
        _COMPONENTS.get(components),
        bits,
        height * width / _MAX_JPEG_PIXELS_PER_BYTE if huffman else 0,
    )


def read_image(path: Path, name: str) -> bytes:
    """Read and check an image file."""
    data = path.read_bytes()
    if data.startswith(_PNG):
        _check_chunks(data, name)
    elif _JPEG_END not in data[-_TAIL:]:
        raise InputError(_truncated(name, len(data)))
    return data


def _check_chunks(data: bytes, name: str) -> None:
    """Check the chunks of a PNG: length, type, data, CRC-32 over type and data (5.3)."""
    view, position, kind = memoryview(data), len(_PNG), b""
    while kind != b"IEND":
        end = position + 8 + int.from_bytes(view[position : position + 4], "big")
        if end + 4 > len(data):
            raise InputError(_truncated(name, len(data)))
        kind = bytes(view[position + 4 : position + 8])
        if zlib.crc32(view[position + 4 : end]) != int.from_bytes(view[end : end + 4], "big"):
            message = f"is damaged: chunk {kind!r} at byte {position} contradicts its checksum"
            raise InputError(Problem(name, message, _CURE, "corrupt"))
        position = end + 4


def decode(data: bytes, name: str, out: NDArray[np.uint8]) -> None:
    """Decode a PNG or JPEG.

    Gray is repeated, alpha dropped, 16 bits are cut to the upper 8; an EXIF rotation is not applied.

    Parameters
    ----------
    data, name
        Bytes of the file, and what messages call it.
    out
        (H, W, 3) u1 RGB, may be a view of a larger array; overwritten.
    """
    import cv2

    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise InputError(Problem(name, f"cannot be decoded: {error.err}", _CURE, "corrupt")) from error
    if image is None:
        raise InputError(Problem(name, "cannot be decoded", _CURE, "corrupt"))
    if image.shape != out.shape:
        message = f"decodes to {image.shape[0]} x {image.shape[1]}, but its header says {out.shape[:2]}"
        raise InputError(Problem(name, message, _CURE, "shape"))
    for channel in range(3):  # BGR to RGB; OpenCV's own conversion would start a pool of threads
        out[..., channel] = image[..., 2 - channel]


def _truncated(name: str, size: int) -> Problem:
    return Problem(name, f"is truncated: {size} bytes, without its end", _CURE, "truncated")
