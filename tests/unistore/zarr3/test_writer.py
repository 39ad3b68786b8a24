"""Bytes of a shard do not depend on the blocks it is given in; wrong ones are refused; codecs go by size."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from unistore.zarr3.writer import array_metadata, encode_shard, iter_shard_buffers


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
