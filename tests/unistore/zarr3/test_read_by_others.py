"""What the engine writes, zarr-python and tensorstore read bit for bit."""

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

from unistore.zarr3.metadata import DTYPE_NAMES
from unistore.zarr3.writer import array_metadata

tensorstore = pytest.importorskip("tensorstore")


def read_by_zarr(folder: str | Path) -> Any:
    return zarr.open_array(folder, mode="r")[...]


def read_by_tensorstore(folder: str | Path) -> Any:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(folder)}}
    return tensorstore.open(spec, open=True, read=True).result().read().result()


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    ndim = draw(st.integers(1, 4))
    largest = (0, 40, 9, 5, 4)[ndim]
    shape = tuple(draw(st.integers(0, largest)) if draw(st.booleans()) else largest for _ in range(ndim))
    chunk = tuple(draw(st.integers(1, extent + 2)) for extent in shape)
    return {
        "shape": shape,
        "chunk": chunk,
        "shard": tuple(step * draw(st.integers(1, 4)) for step in chunk),
        "dtype": np.dtype(draw(st.sampled_from(DTYPE_NAMES))),
        "codec": draw(st.sampled_from(["fast", "balanced", "small", "zstd", "none"])),
        "fill": draw(st.sampled_from([0, 1, float("nan")])),
        "kind": draw(st.sampled_from(["bits", "smooth", "fill", "mixed"])),
    }


def values_of(case: dict[str, Any], fill: np.generic) -> Any:
    shape, dtype, rng = case["shape"], case["dtype"], np.random.default_rng(0)
    count = int(np.prod(shape, dtype=np.int64))
    if case["kind"] == "fill":
        return np.full(shape, fill, dtype)
    if case["kind"] == "bits" and dtype.kind != "b":
        return np.frombuffer(rng.bytes(count * dtype.itemsize), dtype).reshape(shape)
    values = (np.arange(count) // 3).reshape(shape).astype(dtype)
    if case["kind"] == "mixed":
        values[: len(values) // 2] = fill
    return values


@settings(max_examples=25, deadline=None)
@given(case=cases())
def test_any_array_of_the_engine_is_read_by_zarr_python_and_tensorstore(
    case: dict[str, Any], write: Any, same_bits: Any
) -> None:
    if case["dtype"].kind not in "fc" and case["fill"] != case["fill"]:
        case = case | {"fill": 1}
    options = {name: case[name] for name in ("shape", "dtype", "chunk", "shard", "codec", "fill")}
    names = [f"axis{number}" for number in range(len(case["shape"]))]
    metadata = array_metadata(**options, attributes={"unit": "m"}, dimension_names=names)
    values = values_of(case, metadata.fill_value)
    with tempfile.TemporaryDirectory() as folder:
        array = write(Path(folder), values, metadata=metadata)
        same_bits(read_by_zarr(Path(folder, "a")), values)
        found = read_by_tensorstore(Path(folder, "a"))
        same_bits(found.view(bool) if values.dtype == bool else found, values)
        same_bits(array.read_box([0] * values.ndim, values.shape), values)
        opened = zarr.open_array(Path(folder, "a"), mode="r")
        assert opened.metadata.dimension_names == tuple(names)
        assert dict(opened.attrs) == {"unit": "m"}


def test_negative_zero_is_not_fill(tmp_path: Path, write: Any, same_bits: Any) -> None:
    values = np.array([0.0, 0.0, -0.0, 0.0, 0.0, 0.0], "f8")
    array = write(tmp_path, values, (2,), (6,))
    same_bits(array.read_box([0], [6]), values)
    same_bits(read_by_zarr(tmp_path / "a"), values)
    same_bits(read_by_tensorstore(tmp_path / "a"), values)


def test_shards_of_nothing_but_fill_are_an_index(tmp_path: Path, write: Any, same_bits: Any) -> None:
    values = np.full((8, 3), 7, "i4")
    array = write(tmp_path, values, (2, 3), (4, 3), fill=7)
    sizes = [file.stat().st_size for file in sorted((tmp_path / "a" / "c").rglob("*")) if file.is_file()]
    assert sizes == [2 * 16 + 4] * 2
    same_bits(array.read_box([0, 0], [8, 3]), values)
    same_bits(read_by_zarr(tmp_path / "a"), values)
    same_bits(read_by_tensorstore(tmp_path / "a"), values)


def test_metadata_is_what_zarr_python_writes(tmp_path: Path) -> None:
    metadata = array_metadata(
        (100, 3), "f4", (10, 3), (50, 3), "fast", fill=float("nan"), attributes={"k": [1]}
    )
    blosc = zarr.codecs.BloscCodec(cname="lz4", clevel=5, shuffle="shuffle", typesize=4)
    zarr.create_array(
        tmp_path,
        shape=(100, 3),
        dtype="f4",
        chunks=(10, 3),
        shards=(50, 3),
        fill_value=float("nan"),
        attributes={"k": [1]},
        compressors=[blosc, zarr.codecs.Crc32cCodec()],
    )
    assert json.loads(metadata.to_bytes()) == json.loads((tmp_path / "zarr.json").read_text())
    assert metadata.to_bytes() == type(metadata).from_json(metadata.to_json(), "x").to_bytes()
