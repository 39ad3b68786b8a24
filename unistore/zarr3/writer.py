"""Encode whole shards, and everything that is needed to write an array."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
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
    count = int(np.prod(metadata.chunks_per_object, dtype=np.int64))
    entries = np.full((count, 2), EMPTY, np.int64)
    at = metadata.index.nbytes(count) if metadata.index.location == "start" else 0
    buffers: Buffers = []
    blank = np.full(metadata.chunk_shape, metadata.fill_value, metadata.dtype)
    blank_bytes = blank.tobytes()
    for number, chunk in enumerate(_chunks(metadata, block, blank)):
        if chunk is None or _same_bytes(chunk, blank_bytes):
            continue
        encoded = metadata.codecs.encode(chunk)
        size = sum(map(len, encoded))
        entries[number] = at, size
        at += size
        buffers.extend(encoded)
    index = metadata.index.encode(entries)
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
    starts = (
        range(0, outer, step) for outer, step in zip(metadata.object_shape, metadata.chunk_shape, strict=True)
    )
    for low in itertools.product(*starts):
        part = block[tuple(slice(a, a + step) for a, step in zip(low, metadata.chunk_shape, strict=True))]
        if part.shape == metadata.chunk_shape:
            yield np.ascontiguousarray(part)
        elif part.size == 0:
            yield None
        else:
            padded = blank.copy()
            padded[tuple(map(slice, part.shape))] = part
            yield padded


def _same_bytes(chunk: NDArray[Any], blank: bytes) -> bool:
    view = chunk.reshape(-1).view(np.uint8)
    head = min(64, len(blank))
    return view[:head].tobytes() == blank[:head] and view.tobytes() == blank
