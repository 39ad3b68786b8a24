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
    "boxes",
    "codec_chain",
    "content_bytes",
    "content_digest",
    "encode_shard",
    "encoded_shard",
    "padded_chunk",
    "write_shard",
]

RUN = 1 << 20
"""Bytes of chunks (one at least) that a thread encodes at a time: less is lost in handing it over."""
AHEAD = 16 << 20
"""Bytes of chunks that may be encoded before they are wanted."""

Box: TypeAlias = tuple[slice, ...]


def encode_shard(metadata: ArrayMetadata, shard_coord: Sequence[int], block: NDArray[Any]) -> Buffers:
    """Encode one whole shard: all that `encoded_shard` yields, as a list."""
    return list(encoded_shard(metadata, shard_coord, [block]))


def encoded_shard(
    metadata: ArrayMetadata,
    shard_coord: Sequence[int],
    blocks: Iterable[NDArray[Any]],
    spread: Spread = in_turn,
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
    blocks
        What the array holds there, cut off at the array's end where the shard reaches beyond it: all in one
        block, or in blocks one after the other. A block is some rows (n, …), n a multiple of the chunk's rows
        but in the last; or, where chunks hold one row, some planes of a row (1, p, …), p a multiple of the
        chunk's extent but in the row's last. A block must not be changed until the iterator ends.
    spread
        Spreads the work over threads; the bytes are the same. Blocks are taken on the calling thread.

    Yields
    ------
    bytes or memoryview
        Buffers whose concatenation is the shard.

    Raises
    ------
    ValueError
        There is no such shard, or the blocks are not what it takes.
    """
    extent = _extent(metadata, shard_coord)
    shard = _Shard(metadata)
    buffers = shard.encode(_in_chunks(metadata, shard_coord, extent, blocks), spread)
    if shard.index_first:  # known only after the last chunk
        held = list(buffers)
        yield shard.index()
        yield from held
        return
    yield from buffers
    yield shard.index()


def _in_chunks(
    metadata: ArrayMetadata, at: Sequence[int], extent: tuple[int, ...], blocks: Iterable[NDArray[Any]]
) -> Iterator[tuple[NDArray[Any], Sequence[int]]]:
    """Blocks of a shard, each with its shape in whole chunks; those beyond the array's end belong to it."""
    step, whole = metadata.chunk_shape, metadata.object_shape
    covered = 0
    for block in blocks:
        rows = block.shape[1:] == extent[1:]
        planes = not rows and step[:1] == (1,) == block.shape[:1] and block.shape[2:] == extent[2:]
        if block.dtype != metadata.dtype or not (rows or planes):
            break
        if rows:
            yield block, (*map(_up, block.shape[:1], step[:1]), *whole[1:])
        else:
            last = (covered + block.size) % math.prod(extent[1:]) == 0
            beyond = whole[1] - _up(extent[1], step[1]) if last else 0
            yield block, (1, _up(block.shape[1], step[1]) + beyond, *whole[2:])
        covered += block.size
    else:
        if covered == math.prod(extent):
            return
        msg = f"shard {tuple(at)} takes {extent}, found blocks of {covered:,} values together"
        raise ValueError(msg)
    msg = f"shard {tuple(at)} takes {metadata.dtype} {extent}, found {block.dtype} {block.shape}"
    raise ValueError(msg)


def _up(extent: int, step: int) -> int:
    return -(-extent // step) * step


class _Shard:
    """Encodes the chunks of one shard, in C order, and keeps their places."""

    def __init__(self, metadata: ArrayMetadata) -> None:
        if metadata.index is None:
            raise ValueError("the array is not sharded")
        self._metadata, self._index = metadata, metadata.index
        count = math.prod(metadata.chunks_per_object)
        self._at = self._index.nbytes(count) if self._index.location == "start" else 0
        self._entries: list[tuple[int, int]] = []
        self._blank = np.full(metadata.chunk_shape, metadata.fill_value, metadata.dtype)
        self._is_blank = _fill_test(self._blank)
        self._encode = metadata.codecs.encoder(metadata.dtype)

    def encode(
        self, blocks: Iterable[tuple[NDArray[Any], Sequence[int]]], spread: Spread
    ) -> Iterator[bytes | memoryview]:
        """Encode the chunks of the blocks of the shard: what each holds, and its shape in whole chunks."""
        nbytes = max(1, self._blank.nbytes)
        together = max(1, RUN // nbytes)
        runs = (
            (block, run)
            for block, extent in blocks
            for run in _runs(boxes(extent, self._metadata.chunk_shape), together)
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
            chunk = padded_chunk(block[box], self._blank)
            if self._is_blank(chunk):
                sizes.append(None)
                continue
            encoded = self._encode(chunk)
            buffers += encoded
            sizes.append(sum(map(len, encoded)))
        return buffers, sizes

    @property
    def index_first(self) -> bool:
        """Whether the shard begins with its index."""
        return self._index.location == "start"

    def index(self) -> bytes:
        """Encode the places of all chunks; those that were not encoded lie beyond the array's end."""
        missing = math.prod(self._metadata.chunks_per_object) - len(self._entries)
        return self._index.encode(np.array(self._entries + [(EMPTY, EMPTY)] * missing, np.int64))


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


def boxes(extent: Sequence[int], chunk_shape: Sequence[int]) -> Iterator[Box]:
    """Where the chunks of an extent lie, in C order."""
    axes = [
        [slice(start, start + step) for start in range(0, end, step)]
        for end, step in zip(extent, chunk_shape, strict=True)
    ]
    return itertools.product(*axes)


def _runs(boxes: Iterator[Box], together: int) -> Iterator[list[Box]]:
    while run := list(itertools.islice(boxes, together)):
        yield run


def padded_chunk(part: NDArray[Any], blank: NDArray[Any]) -> NDArray[Any]:
    """A whole, C-contiguous chunk, padded with fill."""
    if part.shape == blank.shape:
        return part if part.flags.c_contiguous else np.ascontiguousarray(part)
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
