"""Stored bytes of one chunk: by whom they are made, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest

from tests.support.programs import printed
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


ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("raw", [b"", b"123", b"1234567", with_checksum(b""), with_checksum(b"123")])
@pytest.mark.parametrize("compressor", [None, BLOSC])
def test_a_chunk_of_too_few_bytes_is_an_error(raw: bytes, compressor: Blosc | None) -> None:
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
    with pytest.raises(FrameError, match=r"(expected 404|with 400 decoded bytes)$"):
        decoder(compressor, 400)(raw, np.empty(100, "i4"))


PURE = """
import sys, warnings
from pathlib import Path
import numpy as np

warnings.simplefilter("ignore")
sys.modules["google_crc32c._crc32c"] = None
import google_crc32c
from unistore.errors import CorruptionError
from unistore.zarr3 import LocalStorage, StoredArray
from unistore.zarr3.writer import encode_shard

assert google_crc32c.implementation == "python"
root = Path(sys.argv[1])
for folder in root.iterdir():
    array = StoredArray.open(LocalStorage(root), folder.name)
    values = np.load(sys.argv[2])
    assert array.read().tobytes() == values.tobytes()
    assert array.read_ranges([5], [70]).tobytes() == values[5:70].tobytes()
    shard = folder / "c/0/0"
    stored = shard.read_bytes()
    assert b"".join(encode_shard(array.metadata, (0, 0), values[:64])) == stored
    shard.write_bytes(stored[:40] + bytes([stored[40] ^ 1]) + stored[41:])
    try:
        StoredArray.open(LocalStorage(root), folder.name).read()
    except CorruptionError:
        print(folder.name)
"""


def test_checksums_work_without_the_extension_of_google_crc32c(tmp_path: Path, write: Any) -> None:
    """An installation without a compiler, on a platform that has no wheel of it."""
    values = np.random.default_rng(0).integers(-9, 9, (100, 3)).astype("i4")
    np.save(tmp_path / "values.npy", values)
    codecs = {"fast", "none", "zstd"}
    for codec in codecs:
        write(tmp_path / "store", values, (16, 3), (64, 3), codec, path=codec)
    said = printed("-c", PURE, tmp_path / "store", tmp_path / "values.npy", cwd=ROOT)
    assert set(said.split()) == codecs, "stores that were read, written alike, and whose damage was seen"
