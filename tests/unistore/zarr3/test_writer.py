"""Bytes of a shard do not depend on the blocks it is given in; wrong ones are refused; codecs go by size."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from unistore.zarr3.writer import array_metadata, choose_codec, encode_shard, iter_shard_buffers


def joined(metadata: object, at: tuple[int, ...], blocks: list[NDArray[np.float32]]) -> bytes:
    return b"".join(map(bytes, iter_shard_buffers(metadata, at, blocks)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "chunk", "shard"),
    [
        ((10, 7, 5), (2, 3, 5), (6, 9, 5)),
        ((5, 7, 6), (1, 3, 4), (3, 9, 8)),
        ((5, 7, 6), (1, 2, 6), (2, 12, 6)),  # the shard reaches beyond axis 1 by more than a chunk
        ((4, 6), (1, 2), (4, 6)),
        ((9,), (2,), (6,)),
    ],
)
def test_rows_and_planes_give_the_bytes_of_the_whole(
    shape: tuple[int, ...], chunk: tuple[int, ...], shard: tuple[int, ...]
) -> None:
    values = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    values[1] = 0
    metadata = array_metadata(shape, values.dtype, chunk, shard, "fast")
    for number in range(-(-shape[0] // shard[0])):
        at = (number, *(0 for _ in shape[1:]))
        block = values[number * shard[0] :][: shard[0]]
        whole = b"".join(map(bytes, encode_shard(metadata, at, block)))
        rows = [block[lo : lo + chunk[0]] for lo in range(0, len(block), chunk[0])]
        assert joined(metadata, at, rows) == whole
        if chunk[0] == 1 and len(shape) > 1:
            step = chunk[1]
            planes = [row[:, lo : lo + step] for row in rows for lo in range(0, shape[1], step)]
            assert joined(metadata, at, planes) == whole


def test_blocks_that_do_not_fit_are_refused() -> None:
    metadata = array_metadata((5, 7), np.dtype("f4"), (1, 3), (3, 9), "none")
    ones = np.ones((3, 7), np.float32)
    for blocks, message in (
        ([ones[:2]], r"takes \(3, 7\), found blocks of 14 values together"),
        ([ones, ones], "found blocks of 42 values"),
        ([ones[:, :5]], r"found float32 \(3, 5\)"),
        ([ones.astype("f8")], r"found float64 \(3, 7\)"),
        ([], "found blocks of 0 values"),
    ):
        with pytest.raises(ValueError, match=message):
            joined(metadata, (0, 0), blocks)
    with pytest.raises(ValueError, match="has no shard"):
        joined(metadata, (2, 0), [ones])


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"lz4 shuffle 4": 880, "zstd shuffle 4": 640}, "none"),
        ({"lz4 shuffle 4": 876}, "none"),
        ({"lz4 shuffle 4": 875}, "lz4 shuffle 4"),
        ({"lz4 shuffle 4": 870, "zstd shuffle 4": 640}, "lz4 shuffle 4"),
        ({"lz4 shuffle 4": 870, "lz4 bitshuffle 4": 620}, "lz4 shuffle 4"),
        ({"lz4 shuffle 4": 870, "lz4 bitshuffle 4": 619}, "lz4 bitshuffle 4"),
        ({"lz4 shuffle 4": 800, "zstd shuffle 4": 200}, "lz4 shuffle 4"),
        ({"lz4 shuffle 4": 800, "zstd shuffle 4": 199}, "zstd shuffle 4"),
        ({"lz4 shuffle 4": 300, "zstd shuffle 4": 50}, "lz4 shuffle 4"),
        ({"lz4 shuffle 4": 300, "zstd shuffle 4": 49}, "zstd shuffle 4"),
        ({"lz4 shuffle 4": 870, "lz4 bitshuffle 4": 625, "zstd shuffle 4": 640}, "lz4 shuffle 4"),
        ({"lz4 shuffle 4": 870, "lz4 bitshuffle 4": 615, "zstd bitshuffle 4": 500}, "lz4 bitshuffle 4"),
        ({"lz4 shuffle 4": 980, "lz4 bitshuffle 4": 800, "zstd shuffle 4": 900}, "none"),
        ({"lz4 shuffle 4": 870, "lz4 noshuffle 4": 400, "zstd noshuffle 4": 99}, "zstd noshuffle 4"),
        ({"lz4 shuffle 4": 870, "lz4 noshuffle 4": 400, "zstd noshuffle 4": 101}, "lz4 noshuffle 4"),
        ({"lz4 shuffle 4": 130, "zstd shuffle 4": 6}, "lz4 shuffle 4"),
        ({"lz4 shuffle 4": 1000, "zstd shuffle 4": 200}, "zstd shuffle 4"),
    ],
)
def test_a_codec_is_chosen_by_bytes_alone(sizes: dict[str, int], expected: str) -> None:
    def size(codec: str) -> int:
        return sizes.get(codec, 1000)

    assert choose_codec(np.dtype("i4"), (4096,), size) == expected
