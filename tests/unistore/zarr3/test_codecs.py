"""Stored bytes of one chunk: by whom they are made, and what is refused."""

from __future__ import annotations

from typing import Any

import google_crc32c
import numpy as np
import pytest

from unistore.zarr3.codecs import Blosc, FrameError, decoder, encoder

VALUES = np.arange(300, dtype="<i4")
BLOSC = Blosc(typesize=4, cname="lz4", clevel=5, shuffle="shuffle")


def decoded(compressor: Blosc | None, raw: bytes) -> Any:
    out = np.empty_like(VALUES)
    decoder(compressor, VALUES.nbytes)(raw, out)
    return out


def with_checksum(data: bytes) -> bytes:
    """Data and their crc32c, by google_crc32c alone."""
    return data + google_crc32c.Checksum(data).digest()[::-1]


@pytest.mark.parametrize("raw", [b"", b"123", b"1234567", with_checksum(b""), with_checksum(b"123")])
@pytest.mark.parametrize("compressor", [None, BLOSC])
def test_too_few_bytes(raw: bytes, compressor: Blosc | None) -> None:
    with pytest.raises(FrameError):
        decoded(compressor, raw)


def test_blosc_frames_followed_by_other_bytes_are_refused() -> None:
    frame = encoder(BLOSC)(VALUES)[0]
    with pytest.raises(FrameError, match=f"does not fit a frame of {len(frame) + 1} bytes"):
        decoded(BLOSC, with_checksum(bytes(frame) + b"x"))


@pytest.mark.parametrize(
    ("position", "byte"), [(0, 1), (0, 3), (4, 7), (8, 0), (9, 255), (12, 1)], ids=lambda number: str(number)
)
def test_headers_that_contradict_the_frame_are_refused(position: int, byte: int) -> None:
    frame = bytearray(encoder(BLOSC)(VALUES)[0])
    frame[position] = byte
    if position == 8:
        frame[8:12] = bytes(4)  # blocks of no bytes
    with pytest.raises(FrameError, match="blosc header"):
        decoded(BLOSC, with_checksum(bytes(frame)))


@pytest.mark.parametrize("count", [99, 101, 10_000])
@pytest.mark.parametrize("compressor", [None, BLOSC])
def test_chunks_of_another_size_are_refused(compressor: Blosc | None, count: int) -> None:
    raw = b"".join(encoder(compressor)(np.arange(count, dtype="i4")))
    with pytest.raises(FrameError, match=r"(expected 404|for 400 decoded ones)$"):
        decoder(compressor, 400)(raw, np.empty(100, "i4"))
