"""Encode whole shards."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from unistore.zarr3.codecs import Buffers, encoder
from unistore.zarr3.metadata import ArrayMetadata
from unistore.zarr3.sharding import EMPTY, encode_index
from unistore.zarr3.threads import OrderedMap, serial_map

RUN_BYTES = 1 << 20
"""Bytes of chunks (at least one chunk) per task of a thread, so that submitting costs little."""
MAX_PENDING_BYTES = 16 << 20
"""Bytes of chunks that may be encoded before they are written."""

Box: TypeAlias = tuple[slice, ...]


def encode_shard(metadata: ArrayMetadata, shard_coord: Sequence[int], block: NDArray[Any]) -> Buffers:
    """Encode one whole shard; see `iter_shard_buffers`."""
    return list(iter_shard_buffers(metadata, shard_coord, [block]))


def iter_shard_buffers(
    metadata: ArrayMetadata,
    shard_coord: Sequence[int],
    blocks: Iterable[NDArray[Any]],
    ordered_map: OrderedMap = serial_map,
) -> Iterator[bytes | memoryview]:
    """Encode one whole shard as an iterator of buffers, so that the encoded shard need not fit in memory.

    Chunks that equal the fill value bit for bit become empty entries of the index; a shard that holds only
    the fill value is just an index.

    Parameters
    ----------
    metadata, shard_coord
        The array, and coordinates of the shard.
    blocks
        Values of the shard, cut off at the end of the array: one block, or consecutive blocks. A block is
        either rows (n, …), n a multiple of the chunk's rows except in the last block; or, where a chunk holds
        one row, planes of one row (1, p, …), p a multiple of the chunk's extent except in the row's last.
        A block must not be changed until the iterator ends.
    ordered_map
        Runs the encoder, perhaps on threads; the bytes are the same. Blocks are taken on the calling thread.

    Raises
    ------
    ValueError
        If there is no such shard, or the blocks have another dtype or shape.
    """
    extent = _shard_extent(metadata, shard_coord)
    shard = _ShardEncoder(metadata)
    yield from shard.encode(_with_chunk_extents(metadata, shard_coord, extent, blocks), ordered_map)
    yield shard.index()


def _with_chunk_extents(
    metadata: ArrayMetadata, at: Sequence[int], extent: tuple[int, ...], blocks: Iterable[NDArray[Any]]
) -> Iterator[tuple[NDArray[Any], Sequence[int]]]:
    """Yield the blocks of a shard, each with its shape rounded up to whole chunks."""
    covered = 0
    for block in blocks:
        covered += block.size
        ends_row = covered % math.prod(extent[1:]) == 0
        whole = _chunk_extent(metadata, extent, block.shape, ends_row=ends_row)
        if block.dtype != metadata.dtype or whole is None:
            msg = f"shard {tuple(at)} takes {metadata.dtype} {extent}, found {block.dtype} {block.shape}"
            raise ValueError(msg)
        yield block, whole
    if covered != math.prod(extent):
        msg = f"shard {tuple(at)} takes {extent}, found blocks of {covered:,} values together"
        raise ValueError(msg)


def _chunk_extent(
    metadata: ArrayMetadata, extent: tuple[int, ...], shape: tuple[int, ...], *, ends_row: bool
) -> tuple[int, ...] | None:
    """Return the shape of a block rounded up to whole chunks; None if it does not fit the shard."""
    step = metadata.chunk_shape
    shard = metadata.shard_shape
    if len(shape) != len(extent):
        return None
    if shape[1:] == extent[1:]:
        return _round_up(shape[0], step[0]), *shard[1:]
    if shape[0] != 1 or step[0] != 1 or shape[2:] != extent[2:]:
        return None
    # planes of one row: the last ones are followed by the chunks beyond the array's end
    beyond = shard[1] - _round_up(extent[1], step[1]) if ends_row else 0
    return 1, _round_up(shape[1], step[1]) + beyond, *shard[2:]


def _round_up(extent: int, step: int) -> int:
    return -(-extent // step) * step


class _ShardEncoder:
    """Encodes the chunks of one shard, in C order, and collects the entries of its index."""

    def __init__(self, metadata: ArrayMetadata) -> None:
        self._metadata = metadata
        self._offset = 0
        self._entries: list[tuple[int, int]] = []
        self._fill_chunk = np.full(metadata.chunk_shape, metadata.fill_value, metadata.dtype)
        self._is_fill = _fill_test(self._fill_chunk)
        self._encode = encoder(metadata.compressor)

    def encode(
        self, blocks: Iterable[tuple[NDArray[Any], Sequence[int]]], ordered_map: OrderedMap
    ) -> Iterator[bytes | memoryview]:
        """Encode blocks, each with its shape rounded up to whole chunks."""
        nbytes = self._fill_chunk.nbytes
        chunks_per_run = max(1, RUN_BYTES // nbytes)
        runs = (
            (block, run)
            for block, extent in blocks
            for run in _batches(chunk_slices(extent, self._metadata.chunk_shape), chunks_per_run)
        )
        max_pending = max(1, MAX_PENDING_BYTES // (chunks_per_run * nbytes))
        for buffers, sizes in ordered_map(self._encode_run, runs, max_pending):
            for size in sizes:
                self._entries.append((EMPTY, EMPTY) if size is None else (self._offset, size))
                self._offset += size or 0
            yield from buffers

    def _encode_run(self, run: tuple[NDArray[Any], list[Box]]) -> tuple[Buffers, list[int | None]]:
        """Return buffers of chunks, and the encoded bytes of each; None: it holds only the fill value."""
        block, boxes = run
        buffers: Buffers = []
        sizes: list[int | None] = []
        for box in boxes:
            chunk = pad_chunk(block[box], self._fill_chunk)
            if self._is_fill(chunk):
                sizes.append(None)
                continue
            encoded = self._encode(chunk)
            buffers += encoded
            sizes.append(sum(map(len, encoded)))
        return buffers, sizes

    def index(self) -> bytes:
        """Encode the index."""
        # chunks that were not encoded lie beyond the array's end
        missing = math.prod(self._metadata.chunks_per_shard) - len(self._entries)
        return encode_index(np.array(self._entries + [(EMPTY, EMPTY)] * missing, np.int64))


def content_digest(block: NDArray[Any]) -> str:
    """Return xxh3-128 (hexadecimal) of the values of `block` in C order, little-endian."""
    return xxhash.xxh3_128_hexdigest(little_endian_bytes(block))


def little_endian_bytes(block: NDArray[Any]) -> memoryview:
    """Return values in C order, little-endian."""
    little = np.ascontiguousarray(block, block.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data


def _shard_extent(metadata: ArrayMetadata, coordinates: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the part of the array in a shard."""
    exists = len(coordinates) == len(metadata.shape) and all(
        0 <= index < count for index, count in zip(coordinates, metadata.shards, strict=True)
    )
    if not exists:
        msg = f"an array of {metadata.shards} shards has no shard {tuple(coordinates)}"
        raise ValueError(msg)
    return tuple(
        min(step, extent - index * step)
        for index, step, extent in zip(coordinates, metadata.shard_shape, metadata.shape, strict=True)
    )


def chunk_slices(extent: Sequence[int], chunk_shape: Sequence[int]) -> Iterator[Box]:
    """Return the slices of every chunk of an extent, in C order."""
    axes = [
        [slice(start, start + step) for start in range(0, end, step)]
        for end, step in zip(extent, chunk_shape, strict=True)
    ]
    return itertools.product(*axes)


def _batches(boxes: Iterator[Box], chunks_per_run: int) -> Iterator[list[Box]]:
    while run := list(itertools.islice(boxes, chunks_per_run)):
        yield run


def pad_chunk(part: NDArray[Any], fill_chunk: NDArray[Any]) -> NDArray[Any]:
    """Pad a part of a chunk with `fill_chunk` to a whole, C-contiguous chunk."""
    if part.shape == fill_chunk.shape:
        return part if part.flags.c_contiguous else np.ascontiguousarray(part)
    padded = fill_chunk.copy()
    padded[tuple(map(slice, part.shape))] = part
    return padded


def _fill_test(fill_chunk: NDArray[Any]) -> Callable[[NDArray[Any]], bool]:
    """Make a function that tells whether a chunk equals `fill_chunk` bit for bit.

    It compares the first element first, which is mostly enough.
    """
    content = fill_chunk.tobytes()
    first = fill_chunk.item(0)
    comparable = first == first  # False for NaN

    def is_fill(chunk: NDArray[Any]) -> bool:
        if comparable and chunk.item(0) != first:
            return False
        return bool(chunk.tobytes() == content)

    return is_fill
