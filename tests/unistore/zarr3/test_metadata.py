"""Metadata: parsed and written back byte for byte; what is not as unistore writes it is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unistore.errors import CorruptionError, StoreError, UnsupportedError
from unistore.zarr3 import ArrayMetadata, LocalStorage, StoredArray
from unistore.zarr3.metadata import DTYPE_NAMES, json_bytes
from unistore.zarr3.writer import array_metadata

BYTES = {"name": "bytes", "configuration": {"endian": "little"}}


def document(**changes: Any) -> dict[str, Any]:
    return array_metadata((10, 4), "f4", (2, 4), (4, 4), "fast").to_json() | changes


def sharding(**changes: Any) -> list[dict[str, Any]]:
    codec = document()["codecs"][0]
    return [{"name": "sharding_indexed", "configuration": codec["configuration"] | changes}]


def chunk_codecs(**options: Any) -> list[dict[str, Any]]:
    bytes_codec, blosc, checksum = document()["codecs"][0]["configuration"]["codecs"]
    return [bytes_codec, blosc | {"configuration": blosc["configuration"] | options}, checksum]


BLOSC = "codec 'blosc' has the options"
UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "codec": (
        {"codecs": sharding(codecs=[BYTES, {"name": "numcodecs.delta", "configuration": {}}])},
        "codecs of a chunk is .*'numcodecs.delta'",
    ),
    "vlen": ({"codecs": [{"name": "vlen-utf8"}]}, r"codecs\[0\].name is 'vlen-utf8'|has no 'configuration'"),
    "bare name": ({"codecs": sharding(codecs=[BYTES, "crc32c"])}, "codecs of a chunk is"),
    "no codecs": ({"codecs": []}, r"zarr.json.codecs is \[\], expected"),
    "no endian": (
        {"codecs": sharding(codecs=[{"name": "bytes"}, *chunk_codecs()[1:]])},
        r"codecs of a chunk\[0\] has no 'configuration'",
    ),
    "nested shards": ({"codecs": sharding(codecs=sharding())}, "codecs of a chunk is .*'sharding_indexed'"),
    "around shards": ({"codecs": [*sharding(), {"name": "crc32c"}]}, "codecs is .*'crc32c'"),
    "index codec": (
        {"codecs": sharding(index_codecs=[BYTES, {"name": "gzip"}])},
        r"index_codecs\[1\].name is 'gzip', expected 'crc32c'",
    ),
    "location": ({"codecs": sharding(index_location=[])}, r"index_location is \[\], expected 'end'"),
    "blosc cname": ({"codecs": sharding(codecs=chunk_codecs(cname="quick"))}, f"{BLOSC} .*'quick'"),
    "blosc shuffle": ({"codecs": sharding(codecs=chunk_codecs(shuffle=["x"]))}, BLOSC),
    "blosc level": ({"codecs": sharding(codecs=chunk_codecs(clevel=10))}, f"{BLOSC} .*'clevel': 10"),
    "blosc typesize": ({"codecs": sharding(codecs=chunk_codecs(typesize=0))}, BLOSC),
    "blosc blocks": ({"codecs": sharding(codecs=chunk_codecs(blocksize=16))}, "blocksize is 16, expected 0"),
    "codec option": ({"codecs": sharding(codecs=chunk_codecs(window=3))}, "configuration has 'window'"),
    "dtype": ({"data_type": "string"}, "data type is 'string'"),
    "grid": (
        {"chunk_grid": {"name": "rectilinear", "configuration": {"chunk_shape": [4, 4]}}},
        "chunk_grid.name is 'rectilinear', expected 'regular'",
    ),
    "keys": ({"chunk_key_encoding": {"name": "fanout"}}, "chunk_key_encoding.name is 'fanout'"),
    "transformer": ({"storage_transformers": [{"name": "x"}]}, "zarr.json.storage_transformers is"),
    "member": ({"virtual": {"must_understand": False}}, "zarr.json has 'virtual'"),
    "v2": ({"zarr_format": 2}, "zarr.json.zarr_format is 2, expected 3"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_features_are_named(tmp_path: Path, name: str) -> None:
    changes, message = UNSUPPORTED[name]
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "zarr.json").write_text(json.dumps(document(**changes)))
    with pytest.raises(UnsupportedError, match=message) as raised:
        StoredArray.open(LocalStorage(tmp_path), "x")
    assert "array 'x'" in str(raised.value)
    assert "unistore.open_zarr" in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "shape": ({"shape": [3, -1]}, r"shape must be 1 to 32 integers of at least 0, found \[3, -1\]"),
    "no axes": ({"shape": []}, "shape must be 1 to 32 integers"),
    "chunks": (
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}}},
        "chunk_shape must be 2 integers",
    ),
    "inner": (
        {"codecs": sharding(chunk_shape=[3, 4])},
        r"the shard shape \(4, 4\) is not a multiple of the chunk shape \(3, 4\)",
    ),
    "zero chunk": ({"codecs": sharding(chunk_shape=[0, 4])}, "integers of at least 1"),
    "fill": ({"fill_value": "zero"}, "fill_value must be a value of float32, found 'zero'"),
    "bits of a fill": ({"fill_value": "0x7fc00000"}, "found '0x7fc00000'"),
    "large fill": ({"fill_value": 1e300}, "found 1e\\+300"),
    "list as fill": ({"fill_value": [0.0]}, r"found \[0.0\]"),
    "names": ({"dimension_names": ["x"]}, "dimension_names must be 2 names"),
    "attributes": ({"attributes": []}, "attributes must be an object"),
    "large extent": ({"shape": [2**63, 1]}, "shape must be 1 to 32 integers"),
    "large array": ({"shape": [2**62, 2]}, "bytes of the array, but at most"),
    "large chunk": (
        {
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2**30, 1]}},
            "codecs": sharding(chunk_shape=[2**30, 1]),
        },
        "bytes of a chunk, but at most",
    ),
    "many chunks": (
        {
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2**25, 1]}},
            "codecs": sharding(chunk_shape=[1, 1]),
        },
        "chunks of a shard, but at most",
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_metadata_is_refused(name: str) -> None:
    changes, message = INVALID[name]
    with pytest.raises(StoreError, match=message):
        ArrayMetadata.from_json(document(**changes), "store: array 'x'")


@pytest.mark.parametrize("member", sorted(document().keys()))
def test_missing_members_are_named(member: str) -> None:
    incomplete = document()
    del incomplete[member]
    with pytest.raises(UnsupportedError, match=f"zarr.json has no '{member}'"):
        ArrayMetadata.from_json(incomplete, "x")


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [("uint8", -1), ("uint8", 256), ("int8", 1.5), ("bool", 2), ("uint64", 2**64), ("int32", "NaN")],
)
def test_a_fill_value_out_of_range_is_an_error(dtype: str, fill: Any) -> None:
    metadata = array_metadata((10, 4), dtype, (2, 4), (4, 4), "fast")
    with pytest.raises(StoreError, match=f"fill_value must be a value of {dtype}"):
        ArrayMetadata.from_json(metadata.to_json() | {"fill_value": fill}, "x")


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
@pytest.mark.parametrize("codec", ["fast", "balanced", "small", "zstd", "none"])
def test_written_metadata_reads_back(dtype: str, codec: str) -> None:
    metadata = array_metadata((10, 4), dtype, (2, 4), (4, 8), codec, fill=1, attributes={"a": {"b": 1}})
    again = ArrayMetadata.from_json(json.loads(metadata.to_bytes()), "x")
    assert again == metadata
    assert again.to_bytes() == metadata.to_bytes()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: array_metadata((4,), "f4", (2,), (3,), "fast"), StoreError, "is not a multiple"),
        (
            lambda: array_metadata((4,), "f4", (2, 2), (4,), "fast"),
            StoreError,
            "chunk_shape must be 1 integers",
        ),
        (
            lambda: array_metadata((4, 4), "f4", (2,), (4,), "fast"),
            StoreError,
            "chunk_shape must be 2 integers",
        ),
        (
            lambda: array_metadata((4,), "f4", (2,), (4,), "tiny"),
            ValueError,
            "fast, balanced, small, zstd",
        ),
        (lambda: array_metadata((4,), "u1", (2,), (4,), "fast", fill=-1), ValueError, "uint8 cannot hold"),
        (lambda: array_metadata((4,), "i4", (2,), (4,), "fast", fill=0.5), ValueError, "int32 cannot hold"),
        (lambda: array_metadata((4,), "M8[s]", (2,), (4,), "fast"), UnsupportedError, "datetime64"),
        (lambda: array_metadata((4,), "S3", (2,), (4,), "fast"), UnsupportedError, "data type"),
    ],
)
def test_metadata_of_an_array_that_cannot_be_written_is_an_error(
    call: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


def test_missing_or_malformed_metadata_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"x/zarr.json: no such file.*unistore.open_zarr"):
        StoredArray.open(LocalStorage(tmp_path), "x")
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "zarr.json").write_text("{")
    with pytest.raises(StoreError, match="it is not valid JSON"):
        StoredArray.open(LocalStorage(tmp_path), "x")
    (tmp_path / "x" / "zarr.json").write_text(json.dumps(document(shape=[])))
    with pytest.raises(CorruptionError, match=r"shape must be 1 to 32 integers.*Fix: unistore verify STORE"):
        StoredArray.open(LocalStorage(tmp_path), "x")
    (tmp_path / "x" / "zarr.json").write_text("[1]")
    with pytest.raises(StoreError, match="expected a JSON object"):
        StoredArray.open(LocalStorage(tmp_path), "x")


def test_a_document_has_fixed_bytes_and_only_valid_json() -> None:
    """Its layout is part of a store's bytes; what JSON does not know is refused."""
    assert json_bytes({"a": [1], "b": {}}) == b'{\n  "a": [\n    1\n  ],\n  "b": {}\n}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_bytes({"a": float("nan")})
