"""Headers of compressed frames, which their decoders trust: of blosc and of zstd."""

from __future__ import annotations

import struct

# The header of a frame of c-blosc 1: version, versionlz, flags, typesize, then the decoded bytes, those of a
# block, and those of the frame
BLOSC_HEADER = struct.Struct("<BBBBIII")
BLOSC_VERSION = 2

# The header of a zstd frame (RFC 8878, 3.1.1.1): magic number, a byte of flags, the window's byte unless the
# frame is a single segment, the decoded size.
_ZSTD_MAGIC = bytes.fromhex("28b52ffd")
_ZSTD_SINGLE_SEGMENT = 0x20
_ZSTD_DICTIONARY = 0x03
# Bytes of the decoded size, by the two highest flags; that of two bytes counts from 256.
_ZSTD_SIZE_BYTES = (1, 2, 4, 8)


def zstd_size(frame: bytes | memoryview) -> int:
    """Return how many bytes a zstd frame decodes to by its header, -1 if the header does not say."""
    if len(frame) < len(_ZSTD_MAGIC) + 1 or frame[:4] != _ZSTD_MAGIC:
        return -1
    flags = frame[4]
    is_single = flags & _ZSTD_SINGLE_SEGMENT
    number = flags >> 6
    if flags & _ZSTD_DICTIONARY or (number == 0 and not is_single):
        return -1
    start = 5 if is_single else 6
    stated = int.from_bytes(frame[start : start + _ZSTD_SIZE_BYTES[number]], "little")
    return stated + 256 if number == 1 else stated
