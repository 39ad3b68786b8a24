"""What zarr-python writes as unistore does, the engine reads bit for bit; other arrays it refuses."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec

import unistore
from unistore.errors import StoreError, UnsupportedError
from unistore.zarr3 import LocalStorage, StoredArray
from unistore.zarr3.metadata import DTYPE_NAMES
from unistore.zarr3.writer import array_metadata

FILLS = [0, 1, -0.0, 2.5, float("nan"), float("inf"), float("-inf")]


@st.composite
def compressors(draw: st.DrawFn, itemsize: int) -> list[Any]:
    """The codecs of a store behind ``bytes``."""
    blosc = st.builds(
        BloscCodec,
        typesize=st.sampled_from([1, itemsize, 3 * itemsize]),
        cname=st.sampled_from(["lz4", "zstd"]),
        clevel=st.integers(0, 9),
        shuffle=st.sampled_from(["noshuffle", "shuffle", "bitshuffle"]),
    )
    return [*draw(st.lists(blosc, max_size=1)), Crc32cCodec()]


@st.composite
def arrays(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of ``zarr.create_array``, and how the array is filled."""
    ndim = draw(st.integers(1, 4))
    largest = (0, 40, 9, 5, 4)[ndim]
    shape = tuple(draw(st.integers(0, largest)) if draw(st.booleans()) else largest for _ in range(ndim))
    chunks = tuple(draw(st.integers(1, extent + 2)) for extent in shape)
    dtype = np.dtype(draw(st.sampled_from(DTYPE_NAMES)))
    fill = np.array(draw(st.sampled_from(FILLS if dtype.kind == "f" else [0, 1]))).astype(dtype)[()]
    arguments: dict[str, Any] = {
        "shape": shape,
        "dtype": dtype,
        "chunks": chunks,
        "shards": tuple(step * draw(st.integers(1, 4)) for step in chunks),
        "fill_value": fill,
        "compressors": draw(compressors(dtype.itemsize)),
        # a store has all of its shards
        "config": {"write_empty_chunks": True},
    }
    return {"create": arguments, "seed": draw(st.integers(0, 999))}


def random_bits(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Any bit patterns, NaN payloads included."""
    count = int(np.prod(shape, dtype=np.int64))
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    return np.frombuffer(rng.bytes(count * dtype.itemsize), dtype).reshape(shape)


@settings(max_examples=20, deadline=None)
@given(case=arrays(), data=st.data())
def test_any_array_of_zarr_python_is_read_bit_for_bit(
    case: dict[str, Any], data: st.DataObject, same_bits: Any
) -> None:
    create, rng = case["create"], np.random.default_rng(case["seed"])
    shape, dtype = create["shape"], create["dtype"]
    with tempfile.TemporaryDirectory() as folder:
        written = zarr.create_array(folder, name="g/x", **create)
        values = random_bits(rng, shape, dtype)
        if values.size:
            written[...] = values
        expected = np.asarray(zarr.open_array(folder, path="g/x", mode="r")[...])
        np.testing.assert_array_equal(expected, values)
        array = StoredArray.open(LocalStorage(folder), "g/x")
        assert (array.shape, array.dtype) == (shape, dtype)
        same_bits(array.read_box([0] * len(shape), shape), expected)
        lo = [data.draw(st.integers(0, extent)) for extent in shape]
        hi = [data.draw(st.integers(low, extent)) for low, extent in zip(lo, shape, strict=True)]
        same_bits(array.read_box(lo, hi), expected[tuple(map(slice, lo, hi))])
        if not shape[0]:
            return
        row = st.integers(0, shape[0] - 1)
        rows = data.draw(st.lists(row, max_size=12))
        same_bits(array.read_rows(rows), expected[np.array(rows, int)])
        starts = data.draw(st.lists(row, max_size=5))
        ends = [data.draw(st.integers(start, shape[0])) for start in starts]
        ranges = [expected[a:b] for a, b in zip(starts, ends, strict=True)]
        same_bits(array.read_ranges(starts, ends), np.concatenate([expected[:0], *ranges]))
        out = np.empty((len(rows), *shape[1:]), dtype)
        assert array.read_rows(rows, out) is out
        same_bits(out, expected[np.array(rows, int)])


VALUES = np.arange(5 * 8, dtype="i4").reshape(5, 8)
OURS = [BloscCodec(cname="lz4", clevel=5, shuffle="shuffle", typesize=4), Crc32cCodec()]
FOREIGN: dict[str, tuple[dict[str, Any], str]] = {
    "gzip": ({"compressors": [GzipCodec(), Crc32cCodec()]}, "name is 'gzip', expected 'blosc'"),
    "zstd": ({"compressors": ZstdCodec()}, "'zstd'"),
    "no checksum": ({"compressors": OURS[0]}, "codecs of a chunk is"),
    "another compressor of blosc": (
        {"compressors": [BloscCodec(cname="zlib", clevel=5, shuffle="shuffle", typesize=4), Crc32cCodec()]},
        "codec 'blosc' has the options",
    ),
    "big endian": ({"serializer": BytesCodec(endian="big")}, "endian is 'big', expected 'little'"),
    "transpose": ({"filters": [TransposeCodec(order=(1, 0))]}, "'transpose'"),
    "complex": ({"dtype": "c8"}, "data type is 'complex64'"),
    "index at the start": (
        {"shards": {"shape": (4, 8), "index_location": "start"}},
        "index_location is 'start', expected 'end'",
    ),
    "not sharded": ({"shards": None}, "codecs is"),
    "keys of v2": (
        {"shards": None, "chunk_key_encoding": {"name": "v2", "separator": "."}},
        "chunk_key_encoding.name is 'v2'",
    ),
    "v2": ({"shards": None, "zarr_format": 2, "compressors": "auto"}, "no such file"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_an_unsupported_array_is_an_error_that_names_open_zarr(tmp_path: Path, name: str) -> None:
    changes, message = FOREIGN[name]
    ours: dict[str, Any] = {"chunks": (2, 8), "shards": (4, 8), "dtype": "i4", "compressors": OURS}
    zarr.create_group(tmp_path, zarr_format=changes.get("zarr_format", 3))
    options = ours | changes
    foreign = zarr.create_array(tmp_path, name="x", shape=VALUES.shape, **options)
    foreign[...] = VALUES.astype(options["dtype"])
    with pytest.raises((UnsupportedError, StoreError)) as raised:
        StoredArray.open(LocalStorage(tmp_path), "x")
    (line,) = str(raised.value).splitlines()
    assert message in line
    assert "unistore.open_zarr" in line
    np.testing.assert_array_equal(unistore.open_zarr(tmp_path)["x"][...], VALUES)


@pytest.mark.parametrize(
    ("dtype", "fill", "bits"),
    [
        ("float64", "-Infinity", "fff0000000000000"),
        ("float32", "Infinity", "7f800000"),
        ("float16", "NaN", "7e00"),
        ("float32", "NaN", "7fc00000"),
        ("float32", -0.0, "80000000"),
        ("float64", 0.1, "3fb999999999999a"),
        ("uint64", 2**64 - 1, "ffffffffffffffff"),
        ("int8", -128, "80"),
        ("bool", True, "01"),
    ],
)
def test_fill_values_have_the_bits_of_the_specification(
    tmp_path: Path, write: Any, dtype: str, fill: Any, bits: str
) -> None:
    """The bits are those of the specification; zarr-python agrees."""
    values = np.full(3, float(fill) if isinstance(fill, str) else fill, dtype)
    array = write(tmp_path, values, (1,), (3,), fill=values[0])
    assert json.loads((tmp_path / "a" / "zarr.json").read_text())["fill_value"] == fill
    assert (tmp_path / "a" / "c" / "0").stat().st_size == 3 * 16 + 4, "an index of empty entries"
    assert array.read().tobytes() == bytes.fromhex(bits)[::-1] * 3
    by_zarr_python = zarr.open_array(tmp_path, path="a", mode="r")[...]
    assert np.asarray(by_zarr_python).tobytes() == array.read().tobytes()


def test_arrays_written_by_tensorstore_are_read_bit_for_bit(tmp_path: Path, same_bits: Any) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    values = np.arange(5 * 7 * 3, dtype="<i2").reshape(5, 7, 3)
    blosc = {"typesize": 2, "cname": "zstd", "clevel": 3, "shuffle": "bitshuffle", "blocksize": 0}
    metadata = array_metadata(values.shape, "i2", (2, 3, 3), (4, 6, 3), "none").to_json()
    sharding = metadata["codecs"][0]["configuration"]
    for number, compressor in enumerate([[], [{"name": "blosc", "configuration": blosc}]]):
        folder = tmp_path / str(number)
        sharding["codecs"][1:-1] = compressor
        folder.mkdir()
        (folder / "zarr.json").write_text(json.dumps(metadata))
        spec = {
            "driver": "zarr3",
            "kvstore": {"driver": "file", "path": str(folder)},
            "store_data_equal_to_fill_value": True,
        }
        tensorstore.open(spec, open=True).result().write(values).result()
        same_bits(StoredArray.open(LocalStorage(tmp_path), str(number)).read(), values)
