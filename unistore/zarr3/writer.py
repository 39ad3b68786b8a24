"""Encode whole shards, and everything that is needed to write an array."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from unistore.zarr3.durable import PART_SUFFIX, WrittenFile, write_shard
from unistore.zarr3.frames import Buffers
from unistore.zarr3.metadata import ArrayMetadata
from unistore.zarr3.presets import CODECS, array_metadata, codec_chain
from unistore.zarr3.sharding import EMPTY
from unistore.zarr3.threads import Spread, in_turn

__all__ = [
    "CODECS",
    "PART_SUFFIX",
    "WrittenFile",
    "array_metadata",
    "codec_chain",
    "content_bytes",
    "content_digest",
    "encode_parts",
    "encode_rows",
    "encode_shard",
    "encoded_shard",
    "write_shard",
]

RUN = 1 << 20
"""Bytes of chunks (one at least) that a thread encodes at a time: less is lost in handing it over."""
AHEAD = 16 << 20
"""Bytes of chunks that may be encoded before they are wanted."""

Box: TypeAlias = tuple[slice, ...]


def encode_shard(metadata: ArrayMetadata, shard_coord: Sequence[int], block: NDArray[Any]) -> Buffers:
    """Encode one whole shard: all that `encoded_shard` yields, as a list."""
    return list(encoded_shard(metadata, shard_coord, block))


def encoded_shard(
    metadata: ArrayMetadata, shard_coord: Sequence[int], block: NDArray[Any], spread: Spread = in_turn
) -> Iterator[bytes | memoryview]:
    """Encode one whole shard, some chunks at a time: what is written as it comes is never held all at once.

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
    spread
        Spreads the work over threads; the bytes are the same.

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
    buffers = shard.encode([(block, metadata.object_shape)], spread)
    if metadata.index.location == "start":  # known only after the last chunk
        held = list(buffers)
        yield shard.index()
        yield from held
        return
    yield from buffers
    yield shard.index()


def encode_parts(
    metadata: ArrayMetadata, parts: Iterable[NDArray[Any]], spread: Spread = in_turn
) -> Iterator[bytes | memoryview]:
    """Encode a shard given in parts along axis 1, to the bytes `encode_shard` gives of it all.

    Parameters
    ----------
    metadata
        Of an array whose chunks hold one row, and whose shards end with their index.
    parts
        (1, p, …), one after the other, row after row: p is a multiple of the chunk's extent but in the
        last part of a row. A part must not be changed until the iterator ends. They are taken on the calling
        thread.
    spread
        Spreads encoding over threads; the bytes are the same.

    Yields
    ------
    bytes or memoryview
        Parts of the shard.
    """
    shard = _Shard(metadata)
    covered, (rows, whole, *rest) = 0, metadata.object_shape

    def extents() -> Iterator[tuple[NDArray[Any], Sequence[int]]]:
        nonlocal covered
        for part in parts:
            extent = -(-part.shape[1] // metadata.chunk_shape[1]) * metadata.chunk_shape[1]
            covered += extent
            yield part, (1, extent, *rest)
        beyond = rows - covered // whole  # rows after the array's end
        yield np.empty((0, whole, *rest), metadata.dtype), (beyond, whole, *rest)

    yield from shard.encode(extents(), spread)
    if covered % whole or not 0 < covered <= rows * whole:
        msg = f"parts cover {covered} on axis 1, which is no number of rows of {whole}, or not 1 to {rows}"
        raise ValueError(msg)
    yield shard.index()


def encode_rows(metadata: ArrayMetadata, blocks: Iterable[NDArray[Any]]) -> Iterator[bytes | memoryview]:
    """Encode a shard given in blocks of rows, to the bytes `encode_shard` gives of it all.

    Parameters
    ----------
    metadata
        Of an array whose shards end with their index.
    blocks
        (n, …), one after the other: n is a multiple of the chunk's rows but in the last block. A block must
        not be changed until the iterator ends.

    Yields
    ------
    bytes or memoryview
        Parts of the shard.
    """
    shard = _Shard(metadata)
    covered, (rows, *rest) = 0, metadata.object_shape
    step = metadata.chunk_shape[0]

    def extents() -> Iterator[tuple[NDArray[Any], Sequence[int]]]:
        nonlocal covered
        for block in blocks:
            extent = -(-len(block) // step) * step
            covered += extent
            yield block, (extent, *rest)
        yield np.empty((0, *metadata.shape[1:]), metadata.dtype), (rows - covered, *rest)

    yield from shard.encode(extents(), in_turn)
    if not 0 < covered <= rows:
        msg = f"blocks cover {covered} rows of a shard of {rows}"
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

    def encode(
        self, parts: Iterable[tuple[NDArray[Any], Sequence[int]]], spread: Spread
    ) -> Iterator[bytes | memoryview]:
        """Encode the chunks of the parts of the shard: what each holds, and its shape in whole chunks."""
        nbytes = max(1, self._blank.nbytes)
        together = max(1, RUN // nbytes)
        runs = (
            (block, run)
            for block, extent in parts
            for run in _runs(_boxes(extent, self._metadata.chunk_shape), together)
        )
        for buffers, sizes in spread(self._encode_run, runs, max(1, AHEAD // (together * nbytes))):
            for size in sizes:
                self._entries.append((EMPTY, EMPTY) if size is None else (self._at, size))
                self._at += size or 0
            yield from buffers

    def _encode_run(self, run: tuple[NDArray[Any], list[Box]]) -> tuple[Buffers, list[int | None]]:
        """Encode some chunks: their buffers, and the bytes of each; None: it holds nothing but fill."""
        block, boxes = run
        buffers: Buffers = []
        sizes: list[int | None] = []
        for box in boxes:
            chunk = _chunk(block[box], self._blank)
            if chunk is None or self._is_blank(chunk):
                sizes.append(None)
                continue
            encoded = self._encode(chunk)
            buffers += encoded
            sizes.append(sum(map(len, encoded)))
        return buffers, sizes

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


def _boxes(extent: Sequence[int], chunk_shape: Sequence[int]) -> Iterator[Box]:
    """Where the chunks of an extent lie, in C order."""
    axes = [
        [slice(start, start + step) for start in range(0, end, step)]
        for end, step in zip(extent, chunk_shape, strict=True)
    ]
    return itertools.product(*axes)


def _runs(boxes: Iterator[Box], together: int) -> Iterator[list[Box]]:
    while run := list(itertools.islice(boxes, together)):
        yield run


def _chunk(part: NDArray[Any], blank: NDArray[Any]) -> NDArray[Any] | None:
    """A whole, C-contiguous chunk, padded with fill; None where it lies outside."""
    if part.shape == blank.shape:
        return part if part.flags.c_contiguous else np.ascontiguousarray(part)
    if part.size == 0:
        return None
    padded = blank.copy()
    padded[tuple(map(slice, part.shape))] = part
    return padded


def _fill_test(blank: NDArray[Any]) -> Callable[[NDArray[Any]], bool]:
    """Make the test whether a chunk is `blank`, bit for bit; mostly, its first element tells."""
    content, first = blank.tobytes(), blank.item(0)
    telling = first == first  # a NaN differs from every NaN

    def is_blank(chunk: NDArray[Any]) -> bool:
        if telling and chunk.item(0) != first:
            return False
        return bool(chunk.tobytes() == content)

    return is_blank
