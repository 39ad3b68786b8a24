"""``crc32c``: four little-endian bytes of checksum behind the data (Zarr v3 crc32c codec)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np

from unistore.zarr3.frames import Buffers, Bytes, FrameError, check_options

crc32c = google_crc32c.value
"""Checksum of bytes or a contiguous array (memoryviews are refused by google_crc32c)."""

RESIDUE = crc32c(crc32c(b"").to_bytes(4, "little"))
"""Checksum of any bytes followed by their own checksum: data and trailer are checked without being parted."""


def check_crc(raw: bytes | Bytes) -> None:
    """Check data that is followed by its checksum.

    Raises
    ------
    FrameError
        With both checksums.
    """
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
    """The codec; it has no options."""

    @classmethod
    def from_json(cls, configuration: dict[str, Any], where: str) -> Crc32c:
        """Parse the (empty) configuration."""
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

    def decode(self, raw: Bytes, nbytes: int | None, limit: int) -> Bytes:
        """Check and strip the checksum."""
        check_crc(raw)
        size = len(raw) - 4
        if size > limit if nbytes is None else size != nbytes:
            msg = f"{size} bytes before the crc32c, expected {limit if nbytes is None else nbytes}"
            raise FrameError(msg)
        return raw[:-4]

    def encoded_size(self, nbytes: int | None) -> int | None:
        """Four bytes more."""
        return None if nbytes is None else nbytes + 4
