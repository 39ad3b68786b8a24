"""What zarr-python writes, the engine reads bit for bit."""

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

from unistore.zarr3 import Array, LocalStorage
from unistore.zarr3.dtypes import DTYPE_NAMES

FILLS = [0, 1, -0.0, 2.5, float("nan"), float("inf"), float("-inf")]


@st.composite
def compressors(draw: st.DrawFn) -> list[Any]:
    """Up to three codecs from bytes to bytes."""
    blosc = st.builds(
        BloscCodec,
        cname=st.sampled_from(["blosclz", "lz4", "lz4hc", "zlib", "zstd"]),
        clevel=st.integers(0, 9),
        shuffle=st.sampled_from(["noshuffle", "shuffle", "bitshuffle"]),
        blocksize=st.sampled_from([0, 0, 16, 256]),
    )
    one = st.one_of(
        blosc,
        blosc,
        st.builds(ZstdCodec, level=st.integers(-2, 9), checksum=st.booleans()),
        st.builds(GzipCodec, level=st.integers(0, 9)),
        st.just(Crc32cCodec()),
    )
    return draw(
        st.one_of(st.just([]), st.lists(one, max_size=3), st.tuples(blosc, st.just(Crc32cCodec())).map(list))
    )


@st.composite
def arrays(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of ``zarr.create_array``, and how the array is filled."""
    ndim = draw(st.integers(0, 4))
    largest = (0, 40, 9, 5, 4)[ndim]
    shape = tuple(draw(st.integers(0, largest)) if draw(st.booleans()) else largest for _ in range(ndim))
    chunks = tuple(draw(st.integers(1, extent + 2)) for extent in shape)
    dtype = np.dtype(draw(st.sampled_from(DTYPE_NAMES)))
    fill = np.array(draw(st.sampled_from(FILLS if dtype.kind in "fc" else [0, 1]))).astype(dtype)[()]
    arguments: dict[str, Any] = {
        "shape": shape,
        "dtype": dtype,
        "chunks": chunks,
        "fill_value": fill,
        "compressors": draw(compressors()),
        "serializer": BytesCodec(endian=draw(st.sampled_from(["little", "big"]))),
        # else zarr-python leaves out chunks of NaN with other bits than the fill, and warns of complex ones
        "config": {"write_empty_chunks": True},
    }
    if ndim and draw(st.booleans()):
        arguments["filters"] = [TransposeCodec(order=draw(st.permutations(range(ndim))))]
    if ndim and draw(st.integers(0, 2)):
        shard = tuple(step * draw(st.integers(1, 4)) for step in chunks)
        arguments["shards"] = {"shape": shard, "index_location": draw(st.sampled_from(["start", "end"]))}
    else:
        arguments["chunk_key_encoding"] = {
            "name": draw(st.sampled_from(["default", "v2"])),
            "separator": draw(st.sampled_from(["/", "."])),
        }
    return {
        "create": arguments,
        "seed": draw(st.integers(0, 999)),
        "filled": draw(st.sampled_from([0.0, 0.4, 1.0])),
    }


def random_bits(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Any bit patterns, NaN payloads included."""
    count = int(np.prod(shape, dtype=np.int64))
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    return np.frombuffer(rng.bytes(count * dtype.itemsize), dtype).reshape(shape)


@settings(max_examples=80, deadline=None)
@given(case=arrays(), data=st.data())
def test_any_array_of_zarr_python(case: dict[str, Any], data: st.DataObject, same_bits: Any) -> None:
    create, rng = case["create"], np.random.default_rng(case["seed"])
    shape, dtype = create["shape"], create["dtype"]
    with tempfile.TemporaryDirectory() as folder:
        written = zarr.create_array(folder, name="g/x", **create)
        box = tuple(slice(0, int(np.ceil(extent * case["filled"]))) for extent in shape)
        part = random_bits(rng, shape, dtype)[box]
        if case["filled"] and part.size:
            written[box] = part
        reopened = zarr.open_array(folder, path="g/x", mode="r")
        expected = np.asarray(reopened[...]) if shape else np.array(reopened[()], dtype)
        if case["filled"] == 1.0:  # zarr-python leaves out a chunk of NaNs of any bits where NaN is the fill
            np.testing.assert_array_equal(expected, part)
        array = Array.open(LocalStorage(folder), "g/x")
        assert (array.shape, array.dtype) == (shape, dtype)
        same_bits(array.read_box([0] * len(shape), shape), expected)
        if not shape:
            return
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


@pytest.mark.parametrize(
    ("dtype", "fill", "bits"),
    [
        ("float16", "0x7e01", "7e01"),
        ("float32", "0x7fc00001", "7fc00001"),
        ("float32", "0x7f800001", "7f800001"),
        ("float64", "0x7ff8000000000001", "7ff8000000000001"),
        ("float64", "0x3ff8000000000000", "3ff8000000000000"),
        ("float64", "-Infinity", "fff0000000000000"),
        ("float32", "NaN", "7fc00000"),
        ("float32", -0.0, "80000000"),
        ("complex64", [-0.0, "-Infinity"], "80000000ff800000"),
        ("complex128", [1.5, "0x7ff8000000000001"], "3ff80000000000007ff8000000000001"),
    ],
)
def test_fill_values_given_as_bits(tmp_path: Path, dtype: str, fill: Any, bits: str, same_bits: Any) -> None:
    """The bits are those of the specification; zarr-python, which drops the payload of a NaN, agrees else."""
    zarr.create_array(tmp_path, name="x", shape=(3,), chunks=(2,), dtype=dtype)
    file = tmp_path / "x" / "zarr.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"fill_value": fill}))
    array = Array.open(LocalStorage(tmp_path), "x")
    part = {"complex64": ">f4", "complex128": ">f8"}.get(dtype, array.dtype.newbyteorder(">"))
    bits_as_stored = np.frombuffer(bytes.fromhex(bits), part).byteswap().tobytes()
    found = array.read_box([0], [3])
    assert found.tobytes() == bits_as_stored * 3
    np.testing.assert_array_equal(found, zarr.open_array(tmp_path, path="x", mode="r")[...])
    again = array.metadata.from_json(json.loads(array.metadata.to_bytes()), "x")
    assert again.fill_value.tobytes() == bits_as_stored


def test_tensorstore_arrays(tmp_path: Path, same_bits: Any) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    values = np.arange(5 * 7 * 3, dtype="<i2").reshape(5, 7, 3)
    inner = [
        [
            {"name": "bytes", "configuration": {"endian": "little"}},
            {"name": "zstd", "configuration": {"level": 3}},
        ],
        [
            {"name": "bytes", "configuration": {"endian": "big"}},
            {"name": "gzip", "configuration": {"level": 3}},
        ],
        [
            {"name": "transpose", "configuration": {"order": [2, 0, 1]}},
            {"name": "bytes", "configuration": {"endian": "little"}},
            {"name": "blosc", "configuration": {"cname": "zstd", "clevel": 3, "shuffle": "bitshuffle"}},
            {"name": "crc32c"},
        ],
    ]
    for number, codecs in enumerate(inner):
        sharding = {
            "chunk_shape": [2, 3, 3],
            "codecs": codecs,
            "index_location": ["start", "end"][number % 2],
        }
        metadata = {
            "shape": values.shape,
            "data_type": "int16",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 6, 3]}},
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        }
        spec = {
            "driver": "zarr3",
            "kvstore": {"driver": "file", "path": str(tmp_path / str(number))},
            "metadata": metadata,
        }
        tensorstore.open(spec, create=True).result().write(values).result()
        array = Array.open(LocalStorage(tmp_path), str(number))
        same_bits(array.read_box([0, 0, 0], values.shape), values)
