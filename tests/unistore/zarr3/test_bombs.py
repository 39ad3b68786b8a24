"""Chunks that would inflate without bound, and metadata of wrong kinds: refused, within bounded memory."""

from __future__ import annotations

import copy
import dataclasses
import gzip
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
from hypothesis import given, settings

from tests.unistore.store.strategies import changed
from unistore.errors import CorruptionError, StoreError, UnsupportedError
from unistore.zarr3 import Array, LocalStorage
from unistore.zarr3.blosc import Blosc
from unistore.zarr3.codecs import CodecChain
from unistore.zarr3.compressors import Crc32c, Gzip, Zstd
from unistore.zarr3.frames import FrameError, max_encoded_size
from unistore.zarr3.metadata import ArrayMetadata
from unistore.zarr3.presets import array_metadata

NBYTES = 4096
ZEROS = 1 << 30


def unsized_zstd(size: int) -> bytes:
    """A frame that does not record the size of its content: zeros, in blocks of one repeated byte."""
    blocks = [min(1 << 17, size - at) for at in range(0, size, 1 << 17)]
    headers = [
        (length << 3 | 2 | (at == len(blocks) - 1)).to_bytes(3, "little") for at, length in enumerate(blocks)
    ]
    return b"\x28\xb5\x2f\xfd\x00\x58" + b"".join(header + b"\0" for header in headers)


def zstd(raw: bytes) -> bytes:
    frame: bytes = numcodecs.Zstd(level=1).encode(raw)
    return frame


def bombs() -> dict[str, tuple[tuple[Any, ...], bytes]]:
    """Chains, and stored chunks that are small."""
    unsized = unsized_zstd(ZEROS)
    zipped = gzip.compress(bytes(1 << 26), 9)
    blosc = numcodecs.Blosc("zstd", 9).encode(np.zeros(1 << 26, np.uint8))
    return {
        "zstd": ((Zstd(),), unsized),
        "zstd of zstd": ((Zstd(), Zstd()), zstd(unsized)),
        "outer zstd": ((Zstd(), Zstd()), unsized),
        "zstd of zstd, sized": ((Zstd(), Zstd()), zstd(zstd(bytes(1 << 26)))),
        "outer zstd, sized": ((Zstd(), Zstd()), zstd(bytes(1 << 26))),
        "zstd of gzip": ((Gzip(), Zstd()), zstd(zipped)),
        "gzip": ((Gzip(),), zipped),
        "outer gzip": ((Zstd(), Gzip()), zipped),
        "blosc": ((Blosc(),), blosc),
        "outer blosc": ((Zstd(), Blosc()), blosc),
        "crc32c below": ((Crc32c(), Zstd()), unsized),
        "crc32c between": ((Zstd(), Crc32c(), Zstd()), unsized),
    }


BOMBS = bombs()


@pytest.mark.parametrize("name", BOMBS)
def test_a_chunk_never_inflates_beyond_its_size(name: str) -> None:
    codecs, raw = BOMBS[name]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    out = np.empty(NBYTES, np.uint8)
    with pytest.raises(FrameError):
        CodecChain(byte_codecs=codecs).decoder(NBYTES)(raw, out)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 16 << 10, "kilobytes"


@pytest.mark.parametrize("codec", [Zstd(), Gzip(), Blosc()])
def test_honest_chains_of_several_compressors(codec: Any) -> None:
    values = np.random.default_rng(0).integers(0, 256, NBYTES, np.uint8)  # encoding makes them larger
    chain = CodecChain(byte_codecs=(codec, Zstd(), Crc32c(), codec, Gzip(level=0), Blosc(), Zstd()))
    encoded = b"".join(map(bytes, chain.encoder(np.dtype("u1"))(values)))
    out = np.empty_like(values)
    chain.decoder(NBYTES)(encoded, out)
    np.testing.assert_array_equal(out, values)
    assert len(encoded) < max_encoded_size(NBYTES)


@pytest.mark.timeout(20)
def test_a_gzip_stream_of_many_empty_members() -> None:
    """Each makes zlib copy all that follows."""
    raw = gzip.compress(b"") * 500_000
    started = time.monotonic()
    with pytest.raises(FrameError, match="more than 64 members"):
        CodecChain(byte_codecs=(Gzip(),)).decoder(NBYTES)(raw, np.empty(NBYTES, np.uint8))
    assert time.monotonic() - started < 5


def test_a_chain_is_short() -> None:
    codecs = [{"name": "bytes"}, *[{"name": "zstd", "configuration": {"level": 1}}] * 8]
    with pytest.raises(StoreError, match="codecs must be a list of at most 8"):
        CodecChain.from_json(codecs, np.dtype("u1"), 1, "x")
    CodecChain.from_json(codecs[:-1], np.dtype("u1"), 1, "x")


READ = """
import resource, sys
from unistore.errors import CorruptionError
from unistore.zarr3 import Array, LocalStorage
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
try:
    Array.open(LocalStorage(sys.argv[1]), "a").read()
except CorruptionError as error:
    print(error)
"""


@pytest.mark.parametrize("sharded", [True, False])
def test_a_stored_chunk_of_a_terabyte(tmp_path: Path, write: Any, sharded: bool) -> None:
    """It takes no room on disk; sizes of chunks bound what is read."""
    values = np.arange(60, dtype="i2")
    metadata = array_metadata((60,), "i2", (60,), (60,), "fast")
    if not sharded:
        metadata = dataclasses.replace(metadata, index=None, shard_shape=None)
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "zarr.json").write_bytes(metadata.to_bytes())
        (tmp_path / "a" / "c").mkdir()
        (tmp_path / "a" / "c" / "0").touch()
    else:
        write(tmp_path, values, metadata=metadata)
    with (tmp_path / "a" / "c" / "0").open("r+b") as file:
        if not sharded:
            file.truncate(1 << 40)
        else:
            assert metadata.index is not None
            file.truncate((1 << 40) - 20)
            file.seek(0, 2)
            file.write(metadata.index.encode(np.array([[0, (1 << 40) - 20]], np.int64)))
    done = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path)], capture_output=True, text=True, timeout=50, check=True
    )
    assert "array 'a': shard a/c/0" in done.stdout
    assert "encoded ones" in done.stdout


DOCUMENT = array_metadata((12, 30), "i2", (2, 30), (6, 30), "fast").to_json()
KINDS: list[tuple[str, Any]] = [
    ("location", []),
    ("index codecs", [{"name": "bytes", "configuration": []}]),
    ("index endian", [{"name": "bytes", "configuration": {"endian": []}}]),
]


@settings(deadline=None, max_examples=400)
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


@pytest.mark.parametrize(("what", "value"), KINDS)
def test_members_of_other_kinds(what: str, value: Any) -> None:
    document = copy.deepcopy(json.loads(json.dumps(DOCUMENT)))
    sharding = document["codecs"][0]["configuration"]
    sharding["index_location" if what == "location" else "index_codecs"] = value
    with pytest.raises(StoreError, match="store: array 'x'"):
        ArrayMetadata.from_json(document, "store: array 'x'")


@pytest.mark.parametrize(
    "codecs",
    [
        [{"name": "transpose", "configuration": {"order": [0, "a"]}}],
        [{"name": "transpose", "configuration": {"order": [False, True]}}],
        [{"name": "bytes", "configuration": {"endian": ["little"]}}],
        [
            {"name": "bytes", "configuration": {"endian": "little"}},
            {"name": "zstd", "configuration": {"checksum": 3}},
        ],
        [{"name": "bytes", "configuration": "little"}],
        [7],
        {"name": "bytes"},
    ],
)
def test_codecs_of_other_kinds(codecs: Any) -> None:
    with pytest.raises(StoreError, match=r"^here"):
        CodecChain.from_json(codecs, np.dtype("i2"), 2, "here")


def test_the_error_of_a_document_names_store_and_array(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "zarr.json").write_bytes(b"[" * 10**6)
    with pytest.raises(
        CorruptionError, match=r"array 'x': zarr\.json is damaged: not readable as JSON \(.*levels"
    ):
        Array.open(LocalStorage(tmp_path), "x")
