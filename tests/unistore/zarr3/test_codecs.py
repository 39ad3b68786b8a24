"""Frames that other writers make and zarr-python's do not."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numcodecs.blosc
import numpy as np
import pytest

from unistore.errors import UnsupportedError
from unistore.zarr3.blosc import Blosc
from unistore.zarr3.codecs import CodecChain
from unistore.zarr3.compressors import RESIDUE, Crc32c, Gzip, Zstd, crc32c
from unistore.zarr3.frames import FrameError

VALUES = np.arange(300, dtype="<i4")


def decoded(chain: CodecChain, raw: bytes) -> Any:
    out = np.empty_like(VALUES)
    chain.decoder(VALUES.nbytes)(raw, out)
    return out


def zstd_frame_without_content_size(content: bytes) -> bytes:
    """RFC 8878: magic, descriptor without size, window descriptor, one raw block that is the last."""
    block = (len(content) << 3 | 1).to_bytes(3, "little") + content
    return b"\x28\xb5\x2f\xfd" + b"\x00" + b"\x58" + block


def test_zstd_frames_that_do_not_tell_their_size() -> None:
    chain = CodecChain(byte_codecs=(Zstd(),))
    raw = zstd_frame_without_content_size(VALUES.tobytes())
    np.testing.assert_array_equal(decoded(chain, raw), VALUES)
    for content in (VALUES[:-1].tobytes(), VALUES.tobytes() + b"1234"):
        with pytest.raises(FrameError):
            decoded(chain, zstd_frame_without_content_size(content))
    between = CodecChain(byte_codecs=(Blosc(), Zstd()))
    inner = Blosc().encode([VALUES.tobytes()])[0]
    np.testing.assert_array_equal(decoded(between, zstd_frame_without_content_size(bytes(inner))), VALUES)


def test_gzip_streams_of_several_members() -> None:
    chain = CodecChain(byte_codecs=(Gzip(),))
    content = VALUES.tobytes()
    np.testing.assert_array_equal(
        decoded(chain, gzip.compress(content[:700]) + gzip.compress(content[700:])), VALUES
    )
    for raw in (gzip.compress(content[:700]), gzip.compress(content) * 2, gzip.compress(content)[:-9], b""):
        with pytest.raises(FrameError, match="gzip"):
            decoded(chain, raw)


def test_gzip_is_reproducible() -> None:
    assert Gzip().encode([b"abc" * 99]) == Gzip().encode([b"abc" * 33, b"abc" * 66])


def test_data_followed_by_its_checksum_has_the_same_checksum() -> None:
    for data in (b"", b"a", bytes(range(256)) * 9):
        raw = b"".join(Crc32c().encode([data[:3], memoryview(data)[3:]]))
        assert raw == data + crc32c(data).to_bytes(4, "little")
        assert crc32c(raw) == RESIDUE


@pytest.mark.parametrize("raw", [b"", b"123", b"1234567"])
@pytest.mark.parametrize(
    "codecs", [(Crc32c(),), (Blosc(),), (Blosc(), Crc32c()), (Zstd(),), (Zstd(), Crc32c()), ()]
)
def test_too_few_bytes(raw: bytes, codecs: Any) -> None:
    with pytest.raises(FrameError):
        decoded(CodecChain(byte_codecs=codecs), raw)


def test_blosc_frames_followed_by_other_bytes_are_refused() -> None:
    frame = bytes(Blosc(typesize=4).encode([VALUES.tobytes()])[0])
    chain = CodecChain(byte_codecs=(Blosc(typesize=4),))
    np.testing.assert_array_equal(decoded(chain, frame), VALUES)
    with pytest.raises(FrameError, match=f"does not fit a frame of {len(frame) + 1} bytes"):
        decoded(chain, frame + b"x")


def test_compressors_that_numcodecs_lacks(tmp_path: Path) -> None:
    if "snappy" in numcodecs.blosc.list_compressors():
        pytest.skip("numcodecs was built with snappy")
    with pytest.raises(UnsupportedError, match="cname 'snappy', as numcodecs was built here"):
        Blosc.from_json({"cname": "snappy"}, "x")


def test_chains_keep_their_json() -> None:
    items = [
        {"name": "transpose", "configuration": {"order": [1, 0]}},
        {"name": "transpose", "configuration": {"order": [1, 0]}},
        {"name": "transpose", "configuration": {"order": [1, 0]}},
        {"name": "bytes", "configuration": {"endian": "big"}},
        {"name": "zstd", "configuration": {"level": 3, "checksum": True}},
        {"name": "gzip", "configuration": {"level": 1}},
        {"name": "crc32c"},
    ]
    chain = CodecChain.from_json(items, np.dtype("i4"), 2, "x")
    assert chain.to_json() == items[2:], "three swaps are one"
