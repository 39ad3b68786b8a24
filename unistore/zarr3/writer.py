"""Encode whole shards, and everything that is needed to write an array."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    "content_bytes",
    "content_digest",
    "encode_parts",
    "encode_shard",
    "encoded_shard",
    "write_shard",
]


def encode_shard(metadata: ArrayMetadata, shard_coord: Sequence[int], block: NDArray[Any]) -> Buffers:
    """Encode one whole shard: all that `encoded_shard` yields, as a list."""
    return list(encoded_shard(metadata, shard_coord, block))


def encoded_shard(
    metadata: ArrayMetadata, shard_coord: Sequence[int], block: NDArray[Any]
) -> Iterator[bytes | memoryview]:
    """Encode one whole shard, chunk by chunk: what is written as it comes is never held all at once.

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

    Yields
    ------
    bytes or memoryview
        Buffers whose concatenation is the shard. Memoryviews may look into `block`: write before changing it.

    Raises
    ------
    ValueError
        With the first buffer: there is no such shard, or the block has not its shape or dtype.
    """
    extent = _extent(metadata, shard_coord)
    if metadata.index is None or block.shape != extent or block.dtype != metadata.dtype:
        msg = f"shard {tuple(shard_coord)} takes {metadata.dtype} {extent}, found {block.dtype} {block.shape}"
        raise ValueError(msg)
    shard = _Shard(metadata)
    buffers = shard.encode(block, metadata.object_shape)
    if metadata.index.location == "start":  # known only after the last chunk
        held = list(buffers)
        yield shard.index()
        yield from held
        return
    yield from buffers
    yield shard.index()


def encode_parts(metadata: ArrayMetadata, parts: Iterable[NDArray[Any]]) -> Iterator[bytes | memoryview]:
    """Encode a shard of one row given in parts along axis 1, to the bytes `encode_shard` gives of it all.

    Parameters
    ----------
    metadata
        Of an array whose shards hold one row and end with their index.
    parts
        (1, p, …), one after the other: p is a multiple of the chunk's extent but in the last part. A part
        must not be changed until the iterator ends.

    Yields
    ------
    bytes or memoryview
        Parts of the shard.
    """
    shard = _Shard(metadata)
    rest = metadata.object_shape[1]
    for part in parts:
        extent = -(-part.shape[1] // metadata.chunk_shape[1]) * metadata.chunk_shape[1]
        yield from shard.encode(part, (1, extent, *metadata.object_shape[2:]))
        rest -= extent
    if rest:
        msg = f"parts cover {metadata.object_shape[1] - rest} of {metadata.object_shape[1]} on axis 1"
        raise ValueError(msg)
    yield shard.index()


class _Shard:
    """Encodes the chunks of one shard, in C order, and keeps their places."""

    def __init__(self, metadata: ArrayMetadata) -> None:
        assert metadata.index is not None
        self._metadata, self._index = metadata, metadata.index
        count = math.prod(metadata.chunks_per_object)
        self._at = self._index.nbytes(count) if self._index.location == "start" else 0
        self._entries: list[tuple[int, int]] = []
        self._blank = np.full(metadata.chunk_shape, metadata.fill_value, metadata.dtype)
        self._is_blank = _fill_test(self._blank)
        self._encode = metadata.codecs.encoder(metadata.dtype)

    def encode(self, block: NDArray[Any], extent: Sequence[int]) -> Iterator[bytes | memoryview]:
        """Encode the chunks of the next part of the shard: `extent` is its shape, in whole chunks."""
        for chunk in _chunks(extent, self._metadata.chunk_shape, block, self._blank):
            if chunk is None or self._is_blank(chunk):
                self._entries.append((EMPTY, EMPTY))
                continue
            encoded = self._encode(chunk)
            size = 0
            for buffer in encoded:
                size += len(buffer)
            self._entries.append((self._at, size))
            self._at += size
            yield from encoded

    def index(self) -> bytes:
        """Encode the places of all chunks."""
        return self._index.encode(np.array(self._entries, np.int64))


def content_digest(block: NDArray[Any]) -> str:
    """xxh3-128 (hexadecimal) of the values of `block` in C order, little-endian."""
    return xxhash.xxh3_128_hexdigest(content_bytes(block))


def content_bytes(block: NDArray[Any]) -> memoryview:
    """Values in C order, little-endian."""
    little = np.ascontiguousarray(block, block.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data


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
    extent: Sequence[int], chunk_shape: Sequence[int], block: NDArray[Any], blank: NDArray[Any]
) -> Iterator[NDArray[Any] | None]:
    """Whole, C-contiguous chunks of an extent in C order, padded with fill; None where one lies outside."""
    axes = [
        [slice(start, start + step) for start in range(0, end, step)]
        for end, step in zip(extent, chunk_shape, strict=True)
    ]
    for box in itertools.product(*axes):
        part = block[box]
        if part.shape == blank.shape:
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
