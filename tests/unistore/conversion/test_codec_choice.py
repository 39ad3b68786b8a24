"""The rule of ``--codec auto``: bytes and fixed costs of decoding, columns read at random, and buckets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unistore
from tests.support.store_files import attributes_of
from unistore.conversion import codec_choice
from unistore.conversion.codec_choice import (
    BUCKET,
    DISK,
    Choice,
    choose_codec,
    index_codec,
    uncompressed_columns,
)
from unistore.conversion.plan import ArrayPlan
from unistore.schemas.tables import Field
from unistore.zarr3.writer import compressor_of


@pytest.mark.parametrize(
    ("sizes", "disk", "bucket"),
    [
        ({"lz4 shuffle 4": 960}, "none", "none"),
        ({"lz4 shuffle 4": 950}, "none", "lz4 shuffle 4"),
        ({"lz4 shuffle 4": 880}, "none", "lz4 shuffle 4"),
        ({"lz4 shuffle 4": 870}, "lz4 shuffle 4", "lz4 shuffle 4"),
        ({"lz4 shuffle 4": 870, "lz4 bitshuffle 4": 870}, "lz4 shuffle 4", "lz4 shuffle 4"),
        ({"lz4 shuffle 4": 870, "lz4 bitshuffle 4": 840}, "lz4 shuffle 4", "lz4 bitshuffle 4"),
        ({"lz4 shuffle 4": 870, "lz4 bitshuffle 4": 810}, "lz4 shuffle 4", "lz4 bitshuffle 4"),
        ({"lz4 shuffle 4": 870, "lz4 bitshuffle 4": 800}, "lz4 bitshuffle 4", "lz4 bitshuffle 4"),
        ({"lz4 shuffle 4": 800, "zstd shuffle 4": 670}, "lz4 shuffle 4", "lz4 shuffle 4"),
        ({"lz4 shuffle 4": 800, "zstd shuffle 4": 650}, "lz4 shuffle 4", "zstd shuffle 4"),
        ({"lz4 shuffle 4": 800, "zstd shuffle 4": 370}, "lz4 shuffle 4", "zstd shuffle 4"),
        ({"lz4 shuffle 4": 800, "zstd shuffle 4": 350}, "zstd shuffle 4", "zstd shuffle 4"),
        ({"lz4 noshuffle 4": 500, "zstd shuffle 4": 10}, "lz4 noshuffle 4", "lz4 noshuffle 4"),
        ({"zstd shuffle 4": 850}, "none", "none"),
        ({"zstd shuffle 4": 800}, "none", "zstd shuffle 4"),
    ],
)
def test_bytes_are_weighed_against_decoding(sizes: dict[str, int], disk: str, bucket: str) -> None:
    def size(codec: str) -> int:
        return sizes.get(codec, 1000)

    assert choose_codec(np.dtype("i4"), (4096,), size, DISK) == disk
    assert choose_codec(np.dtype("i4"), (4096,), size, BUCKET) == bucket


def choice(
    path: str, stored: float, uncompressed: float, *, tile: bool = True, rows: int = 8, codec: str = ""
) -> Choice:
    field = Field(
        path=path,
        dtype="uint8",
        row_shape=(64, 64),
        axes=("row", "y", "x"),
        tile=(32, 32) if tile else None,
        codec=codec,
    )
    array = ArrayPlan(
        field=field,
        column=path,
        shape=(64, 64, 64),
        chunk=(rows, 32, 32),
        shard=(64, 64, 64),
        amplification=1,
    )
    return Choice(array=array, codec="lz4 noshuffle 1", stored=stored, uncompressed=uncompressed)


@pytest.mark.parametrize(
    ("choices", "uncompressed"),
    [
        ([choice("large", 900, 900), choice("a", 100, 200)], ["a"]),
        ([choice("large", 890, 890), choice("a", 100, 200)], []),
        ([choice("large", 900, 900), choice("a", 100, 200, tile=False)], []),
        ([choice("large", 900, 900), choice("a", 100, 200, tile=False, rows=1)], ["a"]),
        ([choice("large", 900, 900), choice("a", 100, 200, codec="lz4 noshuffle 1")], []),
        ([choice("large", 990, 990), choice("a", 10, 41)], []),
        ([choice("large", 990, 990), choice("a", 10, 40)], ["a"]),
        # one for which there is no room does not keep others from it
        ([choice("large", 500, 700), choice("a", 100, 150), choice("b", 400, 900)], ["a"]),
        # what compression saves the least of comes first
        ([choice("large", 800, 800), choice("a", 100, 180), choice("b", 100, 170)], ["b"]),
        ([choice("only", 70, 100)], []),
        ([], []),
    ],
)
def test_columns_read_at_random_stay_uncompressed_for_a_tenth(
    choices: list[Choice], uncompressed: list[str]
) -> None:
    assert uncompressed_columns(choices) == dict.fromkeys(uncompressed, "none random")


def test_inspect_shows_the_chosen_codec_and_the_reason(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    few = rng.integers(0, 4, (20, 256, 256), dtype=np.uint8)
    values = {
        "noise": rng.integers(0, 256, (20, 800, 800), dtype=np.uint8),
        "few": few,
        "class": few[:, 0, 0],
        "ramp": np.arange(20 * 5000).reshape(20, 5000),
    }
    np.savez(tmp_path / "rows.npz", **values)
    unistore.convert(tmp_path / "rows.npz", tmp_path / "store.zarr", "rows")
    arrays = unistore.inspect(tmp_path / "store.zarr").to_json()["arrays"]
    why = {array["path"]: array["why"] for array in arrays}
    assert why["rows/noise"] == "none: not worth it"
    assert why["rows/few"] == "none: read at random"
    assert why["rows/class"] == "lz4: too few values to try"
    assert why["rows/ramp"].startswith("lz4: saves ")
    assert why["splits/code"] is None
    codecs = attributes_of(tmp_path / "store.zarr")["options"]["found"]["codecs"]
    assert codecs["rows/few"] == "none random"
    described = {array["path"]: array["codec"] for array in arrays}
    assert described["rows/few"] == described["rows/noise"] == "bytes, crc32c"
    read = unistore.Dataset(tmp_path / "store.zarr", unistore.Rows())[3]
    assert {name: np.asarray(read[name]).tobytes() for name in values} == {
        name: column[3].tobytes() for name, column in values.items()
    }
    unistore.convert(tmp_path / "rows.npz", tmp_path / "fast.zarr", "rows", codec="fast")
    assert {array["why"] for array in unistore.inspect(tmp_path / "fast.zarr").to_json()["arrays"]} == {None}


def test_a_store_with_uncompressed_columns_is_repaired(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    few = rng.integers(0, 4, (20, 256, 256), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", noise=rng.integers(0, 256, (20, 800, 800), dtype=np.uint8), few=few)
    store = tmp_path / "store.zarr"
    unistore.convert(tmp_path / "a.npz", store, "rows")
    assert attributes_of(store)["options"]["found"]["codecs"]["rows/few"] == "none random"
    shard = next(path for path in (store / "rows/few/c").rglob("*") if path.is_file())
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    assert unistore.repair(store, tmp_path / "a.npz").repaired == (str(shard.relative_to(store)),)
    assert shard.read_bytes() == content
    assert unistore.verify(store, against=tmp_path / "a.npz").ok


def test_each_codec_encodes_the_chunks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def compressor(codec: str, *arguments: Any) -> Any:
        tried.append(codec)
        return compressor_of(codec, *arguments)

    monkeypatch.setattr(codec_choice, "compressor_of", compressor)
    array = choice("a", 1, 1, tile=False, rows=64).array
    values = np.random.default_rng(0).integers(0, 5, array.shape, np.uint8)
    assert index_codec(array, values) == "lz4 bitshuffle 1"
    assert sorted(tried) == ["lz4 bitshuffle 1", "lz4 noshuffle 1", "none", "zstd bitshuffle 1"]
