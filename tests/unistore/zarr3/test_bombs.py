"""Chunks that would inflate without bound, and metadata of wrong kinds: refused, within bounded memory."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import google_crc32c
import numcodecs
import numpy as np
import pytest
from hypothesis import given, settings
from numcodecs import zstd

from tests.support.programs import printed
from tests.support.strategies import changed
from unistore.errors import CorruptionError, StoreError, UnsupportedError
from unistore.zarr3 import LocalStorage, StoredArray
from unistore.zarr3.codecs import Blosc, Decoder, FrameError, Zstd, decoder, encoder, max_encoded_size
from unistore.zarr3.metadata import ArrayMetadata, encode_index
from unistore.zarr3.writer import array_metadata, compressor_of

NBYTES = 4096


@pytest.mark.parametrize("compressor", ["lz4", "zstd"])
def test_a_chunk_never_inflates_beyond_its_size(compressor: str) -> None:
    frame = numcodecs.Blosc(compressor, 9).encode(np.zeros(1 << 28, np.uint8))
    raw = with_checksum(frame)
    blosc = Blosc(typesize=1, cname=compressor, clevel=9, shuffle="noshuffle")
    check_refused(decoder(blosc, NBYTES), raw, "blosc header")


@pytest.mark.parametrize("size", [0, 200, 300, NBYTES - 1, NBYTES + 1, 70_000, 1 << 28])
def test_a_zstd_frame_of_another_size_is_an_error(size: int) -> None:
    check_refused(
        decoder(Zstd(level=3), NBYTES), with_checksum(zstd.compress(bytes(size))), f"has {size:,} decoded"
    )


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x28\xb5\x2f\xfd",
        bytes(40),
        zstd.compress(bytes(NBYTES))[:-1],
        zstd.compress(bytes(NBYTES)) + b"x",
        zstd.compress(bytes(NBYTES)) * 2,
    ],
)
def test_a_damaged_zstd_frame_is_an_error(frame: bytes) -> None:
    check_refused(decoder(Zstd(level=3), NBYTES), with_checksum(frame), None)


def with_checksum(frame: bytes) -> bytes:
    return frame + google_crc32c.Checksum(frame).digest()[::-1]


def check_refused(decode: Decoder, raw: bytes, message: str | None) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for out in (np.empty(NBYTES, np.uint8), None):
        with pytest.raises(FrameError, match=message):
            decode(raw, out)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 16 << 10, "kilobytes"


@pytest.mark.parametrize("codec", ["fast", "balanced", "small", "zstd", "none"])
@pytest.mark.parametrize("nbytes", [1, 100, 4096, 1 << 20])
def test_incompressible_chunks_stay_below_the_bound(codec: str, nbytes: int) -> None:
    values = np.random.default_rng(0).integers(0, 256, nbytes, np.uint8)
    encoded = b"".join(encoder(compressor_of(codec, values.dtype))(values))
    assert len(encoded) <= max_encoded_size(nbytes)


READ = """
import resource, sys
from unistore.errors import CorruptionError
from unistore.zarr3 import LocalStorage, StoredArray
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
try:
    StoredArray.open(LocalStorage(sys.argv[1]), "a").read()
except CorruptionError as error:
    print(error)
"""


def test_a_stored_chunk_of_a_terabyte_is_an_error_and_is_not_read(tmp_path: Path, write: Any) -> None:
    """It takes no room on disk; sizes of chunks bound what is read."""
    write(tmp_path, np.arange(60, dtype="i2"), metadata=array_metadata((60,), "i2", (60,), (60,), "fast"))
    with (tmp_path / "a" / "c" / "0").open("r+b") as file:
        file.truncate((1 << 40) - 20)
        file.seek(0, 2)
        file.write(encode_index(np.array([[0, (1 << 40) - 20]], np.int64)))
    output = printed("-c", READ, tmp_path)
    assert "array 'a': shard a/c/0" in output
    assert "are possible" in output


DOCUMENT = array_metadata((12, 30), "i2", (2, 30), (6, 30), "fast").to_json()


@settings(deadline=None, max_examples=80)
@given(changed(json.loads(json.dumps(DOCUMENT))))
def test_any_metadata_parses_or_is_refused(document: Any) -> None:
    if not isinstance(document, dict):
        return
    try:
        metadata = ArrayMetadata.from_json(document, "store: array 'x'")
    except (StoreError, UnsupportedError) as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017
        assert len(str(error)) < 1000  # noqa: PT017
        return
    assert ArrayMetadata.from_json(metadata.to_json(), "again").shape == metadata.shape
    assert metadata.chunk_bytes < 2**31


def test_the_error_of_a_document_names_store_and_array(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "zarr.json").write_bytes(b"[" * 10**6)
    with pytest.raises(
        CorruptionError, match=r"array 'x': zarr\.json is damaged: it is not valid JSON: .*levels"
    ):
        StoredArray.open(LocalStorage(tmp_path), "x")
