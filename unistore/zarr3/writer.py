"""Encode whole shards, and everything that is needed to write an array."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from unistore.zarr3.durable import PART_SUFFIX, WrittenFile, write_shard
from unistore.zarr3.frames import Buffers
from unistore.zarr3.metadata import ArrayMetadata
from unistore.zarr3.presets import CODECS, array_metadata, codec_chain
from unistore.zarr3.sharding import EMPTY

__all__ = [
    "CODECS",
    "PART_SUFFIX",
    "WrittenFile",
    "array_metadata",
    "codec_chain",
    "content_digest",
    "encode_shard",
    "write_shard",
]


def encode_shard(metadata: ArrayMetadata, shard_coord: Sequence[int], block: NDArray[Any]) -> Buffers:
    """Encode one whole shard.

    Chunks that hold nothing but fill, compared bit for bit, become empty entries of the index; a shard of
    nothing but fill is an index alone.

    Parameters
    ----------
    metadata
        Of a sharded array.
    shard_coord
        Coordinates of the shard.
    block
        What the array holds there: cut off at the array's end where the shard reaches beyond it.

    Returns
    -------
    list of bytes or memoryview
        Buffers whose concatenation is the shard. Memoryviews may look into `block`: write before changing it.

    Raises
    ------
    ValueError
        If there is no such shard, or the block has not the shape or dtype that belong there.
    """
    extent = _extent(metadata, shard_coord)
    if metadata.index is None or block.shape != extent or block.dtype != metadata.dtype:
        msg = f"shard {tuple(shard_coord)} takes {metadata.dtype} {extent}, found {block.dtype} {block.shape}"
        raise ValueError(msg)
    count = math.prod(metadata.chunks_per_object)
    at = metadata.index.nbytes(count) if metadata.index.location == "start" else 0
    entries: list[tuple[int, int]] = []
    buffers: Buffers = []
    blank = np.full(metadata.chunk_shape, metadata.fill_value, metadata.dtype)
    is_blank = _fill_test(blank)
    encode = metadata.codecs.encoder(metadata.dtype)
    for chunk in _chunks(metadata, block, blank):
        if chunk is None or is_blank(chunk):
            entries.append((EMPTY, EMPTY))
            continue
        encoded = encode(chunk)
        size = 0
        for buffer in encoded:
            size += len(buffer)
        entries.append((at, size))
        at += size
        buffers += encoded
    index = metadata.index.encode(np.array(entries, np.int64))
    return [index, *buffers] if metadata.index.location == "start" else [*buffers, index]


def content_digest(block: NDArray[Any]) -> str:
    """xxh3-128 (hexadecimal) of the values of `block` in C order, little-endian."""
    little = np.ascontiguousarray(block, block.dtype.newbyteorder("<"))
    return xxhash.xxh3_128_hexdigest(little.reshape(-1).view(np.uint8).data)


def _extent(metadata: ArrayMetadata, coordinates: Sequence[int]) -> tuple[int, ...]:
    """Shape of what a shard holds of the array."""
    if len(coordinates) != len(metadata.shape) or not all(
        0 <= at < count for at, count in zip(coordinates, metadata.objects, strict=True)
    ):
        msg = f"an array of {metadata.objects} shards has no shard {tuple(coordinates)}"
        raise ValueError(msg)
    return tuple(
        min(step, extent - at * step)
        for at, step, extent in zip(coordinates, metadata.object_shape, metadata.shape, strict=True)
    )


def _chunks(
    metadata: ArrayMetadata, block: NDArray[Any], blank: NDArray[Any]
) -> Iterator[NDArray[Any] | None]:
    """Whole, C-contiguous chunks of a shard in C order, padded with fill; None where one lies outside."""
    axes = [
        [slice(start, start + step) for start in range(0, extent, step)]
        for extent, step in zip(metadata.object_shape, metadata.chunk_shape, strict=True)
    ]
    for box in itertools.product(*axes):
        part = block[box]
        if part.shape == metadata.chunk_shape:
            yield part if part.flags.c_contiguous else np.ascontiguousarray(part)
        elif part.size == 0:
            yield None
        else:
            padded = blank.copy()
            padded[tuple(map(slice, part.shape))] = part
            yield padded


def _fill_test(blank: NDArray[Any]) -> Callable[[NDArray[Any]], bool]:
    """Make the test whether a chunk is `blank`, bit for bit; mostly, its first element tells."""
    content, first = blank.tobytes(), blank.item(0)
    telling = first == first  # a NaN differs from every NaN

    def is_blank(chunk: NDArray[Any]) -> bool:
        if telling and chunk.item(0) != first:
            return False
        return bool(chunk.tobytes() == content)

    return is_blank
