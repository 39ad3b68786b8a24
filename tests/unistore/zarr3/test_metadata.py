"""Metadata: parsed and written back byte for byte; what the engine does not know is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unistore.errors import StoreError, UnsupportedError
from unistore.zarr3 import Array, ArrayMetadata, LocalStorage
from unistore.zarr3.dtypes import DTYPE_NAMES
from unistore.zarr3.presets import array_metadata

BYTES = {"name": "bytes", "configuration": {"endian": "little"}}


def document(**changes: Any) -> dict[str, Any]:
    return array_metadata((10, 4), "f4", (2, 4), (4, 4), "fast").to_json() | changes


def sharding(**changes: Any) -> list[dict[str, Any]]:
    codec = document()["codecs"][0]
    return [{"name": "sharding_indexed", "configuration": codec["configuration"] | changes}]


UNSUPPORTED: dict[str, tuple[dict[str, Any], str]] = {
    "codec": (
        {"codecs": [BYTES, {"name": "numcodecs.delta", "configuration": {}}]},
        "codec 'numcodecs.delta'",
    ),
    "vlen": ({"codecs": [{"name": "vlen-utf8"}]}, "codec 'vlen-utf8'"),
    "inner codec": ({"codecs": sharding(codecs=[BYTES, {"name": "zfpy"}])}, "codec 'zfpy'"),
    "nested shards": (
        {"codecs": sharding(codecs=sharding())},
        "'sharding_indexed' inside 'sharding_indexed'",
    ),
    "around shards": ({"codecs": [*sharding(), {"name": "crc32c"}]}, "'sharding_indexed' among other codecs"),
    "index codec": ({"codecs": sharding(index_codecs=[BYTES, {"name": "gzip"}])}, "index codec 'gzip'"),
    "blosc cname": (
        {"codecs": [BYTES, {"name": "blosc", "configuration": {"cname": "quick"}}]},
        "codec 'blosc' with cname 'quick'",
    ),
    "codec option": (
        {"codecs": [BYTES, {"name": "gzip", "configuration": {"level": 1, "window": 3}}]},
        "option 'window' of codec 'gzip'",
    ),
    "dtype": ({"data_type": "string"}, "data type 'string'"),
    "dtype with options": (
        {"data_type": {"name": "numpy.datetime64", "configuration": {}}},
        "numpy.datetime64",
    ),
    "grid": ({"chunk_grid": {"name": "rectilinear", "configuration": {}}}, "chunk grid 'rectilinear'"),
    "keys": ({"chunk_key_encoding": {"name": "fanout"}}, "chunk key encoding 'fanout'"),
    "transformer": ({"storage_transformers": [{"name": "x"}]}, "an array with storage transformers"),
    "member": ({"virtual": {"must_understand": True}}, "metadata member 'virtual'"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_features_are_named(tmp_path: Path, name: str) -> None:
    changes, message = UNSUPPORTED[name]
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "zarr.json").write_text(json.dumps(document(**changes)))
    with pytest.raises(UnsupportedError, match=message) as raised:
        Array.open(LocalStorage(tmp_path), "x")
    assert "array 'x'" in str(raised.value)
    assert "use zarr: unistore.open_zarr" in str(raised.value)


INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "group": ({"node_type": "group"}, "not the metadata of a Zarr v3 array"),
    "v2": ({"zarr_format": 2}, "zarr_format 2"),
    "shape": ({"shape": [3, -1]}, r"shape must be up to 32 integers of at least 0, found \[3, -1\]"),
    "chunks": (
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}}},
        "chunk_shape must be 2 integers",
    ),
    "option of a grid": (
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4], "x": 1}}},
        "a chunk grid has no option 'x', only chunk_shape",
    ),
    "option of keys": (
        {"chunk_key_encoding": {"name": "default", "configuration": {"x": 1}}},
        "a chunk key encoding has no option 'x', only separator",
    ),
    "inner": (
        {"codecs": sharding(chunk_shape=[3, 4])},
        r"shards of \(4, 4\) are no multiple of their chunks of \(3, 4\)",
    ),
    "zero chunk": ({"codecs": sharding(chunk_shape=[0, 4])}, "integers of at least 1"),
    "location": ({"codecs": sharding(index_location="middle")}, "found 'middle'"),
    "no bytes": ({"codecs": [{"name": "crc32c"}]}, "wrong position"),
    "empty": ({"codecs": []}, "has no 'bytes'"),
    "endian": ({"codecs": [{"name": "bytes"}]}, "endian of codec 'bytes' for float32 must be"),
    "order": (
        {"codecs": [{"name": "transpose", "configuration": {"order": [0, 0]}}, BYTES]},
        "is no permutation of 2 axes",
    ),
    "level": (
        {"codecs": [BYTES, {"name": "gzip", "configuration": {"level": 11}}]},
        "'level' must be within 0…9, found 11",
    ),
    "fill": ({"fill_value": "zero"}, "'zero' is not a fill value of float32"),
    "short fill": ({"fill_value": "0x7f"}, "4 bytes of hexadecimal digits"),
    "names": ({"dimension_names": ["x"]}, "dimension_names must be 2 names"),
    "attributes": ({"attributes": []}, "attributes must be an object"),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_metadata_is_refused(name: str) -> None:
    changes, message = INVALID[name]
    with pytest.raises(StoreError, match=message):
        ArrayMetadata.from_json(document(**changes), "store: array 'x'")


@pytest.mark.parametrize(
    "member", ["shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs"]
)
def test_missing_members_are_named(member: str) -> None:
    incomplete = document()
    del incomplete[member]
    with pytest.raises(StoreError, match=f"zarr.json has no '{member}'"):
        ArrayMetadata.from_json(incomplete, "x")


@pytest.mark.parametrize(
    ("dtype", "fill"), [("uint8", -1), ("uint8", 256), ("int8", 1.5), ("bool", True), ("uint64", 2**64)]
)
def test_fill_values_out_of_range(dtype: str, fill: Any) -> None:
    changed = document(data_type=dtype, fill_value=fill)
    if dtype == "bool":
        assert ArrayMetadata.from_json(changed, "x").fill_value == np.True_
    else:
        with pytest.raises(StoreError, match=f"is not a fill value of {dtype}"):
            ArrayMetadata.from_json(changed, "x")


@pytest.mark.parametrize("dtype", DTYPE_NAMES)
@pytest.mark.parametrize("codec", ["fast", "balanced", "small", "none"])
def test_written_metadata_reads_back(dtype: str, codec: str) -> None:
    metadata = array_metadata((10, 4), dtype, (2, 4), (4, 8), codec, fill=1, attributes={"a": {"b": 1}})
    again = ArrayMetadata.from_json(json.loads(metadata.to_bytes()), "x")
    assert again == metadata
    assert again.to_bytes() == metadata.to_bytes()


def test_unknown_members_that_need_no_understanding_are_ignored() -> None:
    assert ArrayMetadata.from_json(document(hint={"must_understand": False}), "x").shape == (10, 4)


def test_bare_names_stand_for_codecs_without_options() -> None:
    assert ArrayMetadata.from_json(document(codecs=[BYTES, "crc32c"]), "x").codecs.byte_codecs


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: array_metadata((4,), "f4", (2,), (3,), "fast"), StoreError, "no multiple"),
        (
            lambda: array_metadata((4,), "f4", (2, 2), (4,), "fast"),
            StoreError,
            "chunk_shape must be 1 integers",
        ),
        (lambda: array_metadata((4, 4), "f4", (2,), (4,), "fast"), StoreError, "differ in axes"),
        (lambda: array_metadata((4,), "f4", (2,), (4,), "tiny"), ValueError, "fast, balanced, small, none"),
        (lambda: array_metadata((4,), "u1", (2,), (4,), "fast", fill=-1), ValueError, "uint8 cannot hold"),
        (lambda: array_metadata((4,), "i4", (2,), (4,), "fast", fill=0.5), ValueError, "int32 cannot hold"),
        (lambda: array_metadata((4,), "M8[s]", (2,), (4,), "fast"), UnsupportedError, "datetime64"),
        (lambda: array_metadata((4,), "S3", (2,), (4,), "fast"), UnsupportedError, "data type"),
    ],
)
def test_arrays_that_cannot_be_written(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_no_array_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"x/zarr.json: no such file"):
        Array.open(LocalStorage(tmp_path), "x")
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "zarr.json").write_text("{")
    with pytest.raises(StoreError, match="not readable as JSON"):
        Array.open(LocalStorage(tmp_path), "x")
    (tmp_path / "x" / "zarr.json").write_text("[1]")
    with pytest.raises(StoreError, match="expected a JSON object"):
        Array.open(LocalStorage(tmp_path), "x")
