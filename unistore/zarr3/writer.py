"""Write whole shards: the metadata of their arrays, encoding on threads or here."""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias, TypeVar

import numpy as np

from unistore.system.progress import advanced
from unistore.system.types import AnyArray, Attributes, Buffer, Dtype, Shape
from unistore.zarr3.codecs import SHUFFLES, Blosc, Buffers, Compressor, Zstd, encoder
from unistore.zarr3.metadata import EMPTY, ArrayMetadata, encode_index, parse_dtype

# Maps that yield results in the order of the items: on threads, or on the calling thread.
#
# Compressors, checksums and copies release the GIL, so that threads run in parallel.

T = TypeVar("T")
R = TypeVar("R")


# ``ordered_map(function, items, max_pending)``: like ``map``; at most `max_pending` results wait.
OrderedMap: TypeAlias = Callable[[Callable[[Any], Any], Iterable[Any], int], Iterator[Any]]


def serial_map(function: Callable[[T], R], items: Iterable[T], max_pending: int) -> Iterator[R]:  # noqa: ARG001
    """Map on the calling thread."""
    return map(function, items)


def ordered_map(
    pool: ThreadPoolExecutor, function: Callable[[T], R], items: Iterable[T], max_pending: int
) -> Iterator[R]:
    """Return an `OrderedMap` on the threads of a pool that iterates the items on the calling thread."""
    pending: deque[Future[R]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) > max_pending:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()


# The metadata of arrays as unistore writes them: codec presets, crc32c on every chunk and index.

# Named codecs: of blosc, from fastest to decode to smallest; zstd without blosc; uncompressed bytes.
PRESETS = ("fast", "balanced", "small", "zstd", "none")
# Values of the option ``codec``; ``auto`` chooses a codec for each column.
CODECS = ("auto", *PRESETS)
# What ``auto`` chose for a column that is uncompressed though compression saves bytes.
READ_AT_RANDOM = "none random"

# Longest row that is shuffled as one element: coordinates, colours.
MAX_VECTOR = 4


def compressor_of(codec: str, dtype: Dtype, chunk: Sequence[int] = ()) -> Compressor | None:
    """Return the compressor of a codec of `PRESETS`, or as ``auto`` chose: ``"lz4 bitshuffle 12"``."""
    if codec in ("none", READ_AT_RANDOM):
        return None
    if codec == "zstd":
        return Zstd(level=3)
    shuffle, typesize = usual_shuffle(dtype, chunk)
    match codec.split(" "):
        case ["fast"]:
            return Blosc(cname="lz4", clevel=5, shuffle=shuffle, typesize=typesize)
        case ["balanced"]:
            return Blosc(cname="zstd", clevel=3, shuffle=shuffle, typesize=typesize)
        case ["small"]:  # level 9 is zstd's 22, at 9 MB/s, and gains 1–2 % over level 7
            smallest = "bitshuffle" if dtype.kind in "biu" else shuffle
            return Blosc(cname="zstd", clevel=7, shuffle=smallest, typesize=typesize)
        case ["lz4" | "zstd" as cname, shuffle, size] if shuffle in SHUFFLES and size.isdecimal():
            level = 5 if cname == "lz4" else 3
            return Blosc(cname=cname, clevel=level, shuffle=shuffle, typesize=int(size))
    msg = f"codec must be one of {', '.join(PRESETS)}, got {codec!r}"
    raise ValueError(msg)


def usual_shuffle(dtype: Dtype, chunk: Sequence[int]) -> tuple[str, int]:
    """Return the shuffle of the presets for a column, and the bytes of an element."""
    # Measured on samples, with lz4: CT tiles (int16) with shuffled bits decode 1.2 times as fast as with
    # shuffled bytes, encode 5 times as fast and are 10 % smaller; coordinates (int32) as elements of three
    # numbers decode 1.2 times as fast and are 9 % smaller. Plain columns decode faster with shuffled bytes,
    # and bits of float64 are 10 % larger.
    size = dtype.itemsize
    if size == 1:
        return "noshuffle", 1
    if dtype.kind not in "iu" or len(chunk) < 2:
        return "shuffle", size
    if len(chunk) == 2 and chunk[-1] <= MAX_VECTOR:
        return "bitshuffle", size * chunk[-1]
    return "bitshuffle", size


def array_metadata(
    # of the array
    shape: Sequence[int],
    dtype: Dtype | str | type,
    # shapes of inner chunks and of shards; `shard` is a multiple of `chunk`
    chunk: Sequence[int],
    shard: Sequence[int],
    codec: str,  # see `compressor_of`
    fill: float | np.generic = 0,  # fill value
    # as in ``zarr.json``
    attributes: Attributes | None = None,
    dimension_names: Sequence[str | None] | None = None,
) -> ArrayMetadata:
    """Return the metadata of an array as unistore writes it."""
    where = "array to be written"
    native = parse_dtype(np.dtype(dtype).newbyteorder("=").name, where)
    fill_value: np.generic = np.atleast_1d(fill).astype(native)[0]
    if native.kind in "biu" and fill_value != fill:
        msg = f"{native} cannot hold the fill value {fill!r}"
        raise ValueError(msg)
    metadata = ArrayMetadata(
        shape=tuple(map(int, shape)),
        dtype=native,
        chunk_shape=tuple(map(int, chunk)),
        shard_shape=tuple(map(int, shard)),
        fill_value=fill_value,
        compressor=compressor_of(codec, native, tuple(map(int, chunk))),
        attributes=dict(attributes or {}),
        dimension_names=None if dimension_names is None else tuple(dimension_names),
    )
    # parsing holds what is written to the same rules as what is read
    return ArrayMetadata.from_json(metadata.to_json(), where)


# Bytes of chunks (at least one chunk) per task of a thread, so that submitting costs little.
RUN_BYTES = 1 << 20
# Bytes of chunks that may be encoded before they are written.
MAX_PENDING_BYTES = 16 << 20

Box: TypeAlias = tuple[slice, ...]


def encode_shard(metadata: ArrayMetadata, shard_coord: Sequence[int], block: AnyArray) -> Buffers:
    """Encode one whole shard."""
    return list(iter_shard_buffers(metadata, shard_coord, [block]))


def iter_shard_buffers(
    # the array, and coordinates of the shard
    metadata: ArrayMetadata,
    shard_coord: Sequence[int],
    # values of the shard, cut off at the end of the array: one block, or consecutive blocks. A block is
    # either rows (n, …), n a multiple of the chunk's rows except in the last block; or, where a chunk holds
    # one row, planes of one row (1, p, …), p a multiple of the chunk's extent except in the row's last. A
    # block must not be changed until the iterator ends
    blocks: Iterable[AnyArray],
    # runs the encoder, perhaps on threads; the bytes are the same. Blocks are taken on the calling thread
    ordered_map: OrderedMap = serial_map,
) -> Iterator[Buffer]:
    """Encode one whole shard as an iterator of buffers, so that the encoded shard need not fit in memory."""
    extent = _shard_extent(metadata, shard_coord)
    shard = _ShardEncoder(metadata)
    yield from shard.encode(_with_chunk_extents(metadata, shard_coord, extent, blocks), ordered_map)
    yield shard.index()


def _with_chunk_extents(
    metadata: ArrayMetadata, at: Sequence[int], extent: Shape, blocks: Iterable[AnyArray]
) -> Iterator[tuple[AnyArray, Sequence[int]]]:
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


def _chunk_extent(metadata: ArrayMetadata, extent: Shape, shape: Shape, *, ends_row: bool) -> Shape | None:
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
    def __init__(self, metadata: ArrayMetadata) -> None:
        self._metadata = metadata
        self._offset = 0
        self._entries: list[tuple[int, int]] = []
        self._fill_chunk = np.full(metadata.chunk_shape, metadata.fill_value, metadata.dtype)
        self._is_fill = _fill_test(self._fill_chunk)
        self._encode = encoder(metadata.compressor)

    def encode(
        self, blocks: Iterable[tuple[AnyArray, Sequence[int]]], ordered_map: OrderedMap
    ) -> Iterator[Buffer]:
        nbytes = self._fill_chunk.nbytes
        chunks_per_run = max(1, RUN_BYTES // nbytes)
        runs = self._runs(blocks, chunks_per_run)
        max_pending = max(1, MAX_PENDING_BYTES // (chunks_per_run * nbytes))
        for buffers, sizes in ordered_map(self._encode_run, runs, max_pending):
            for size in sizes:
                self._entries.append((EMPTY, EMPTY) if size is None else (self._offset, size))
                self._offset += size or 0
            yield from buffers
            advanced(len(sizes) * nbytes)

    def _runs(
        self, blocks: Iterable[tuple[AnyArray, Sequence[int]]], chunks_per_run: int
    ) -> Iterator[tuple[AnyArray, list[Box]]]:
        for block, extent in blocks:
            boxes = chunk_slices(extent, self._metadata.chunk_shape)
            while run := list(itertools.islice(boxes, chunks_per_run)):
                yield block, run

    def _encode_run(self, run: tuple[AnyArray, list[Box]]) -> tuple[Buffers, list[int | None]]:
        # None: the chunk holds only the fill value
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
        # chunks that were not encoded lie beyond the array's end
        missing = math.prod(self._metadata.chunks_per_shard) - len(self._entries)
        return encode_index(np.array(self._entries + [(EMPTY, EMPTY)] * missing, np.int64))


def little_endian_bytes(block: AnyArray) -> memoryview:
    """Return values in C order, little-endian."""
    little = np.ascontiguousarray(block, block.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data


def _shard_extent(metadata: ArrayMetadata, coordinates: Sequence[int]) -> Shape:
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


def pad_chunk(part: AnyArray, fill_chunk: AnyArray) -> AnyArray:
    """Pad a part of a chunk with `fill_chunk` to a whole, C-contiguous chunk."""
    if part.shape == fill_chunk.shape:
        return part if part.flags.c_contiguous else np.ascontiguousarray(part)
    padded = fill_chunk.copy()
    padded[tuple(map(slice, part.shape))] = part
    return padded


def _fill_test(fill_chunk: AnyArray) -> Callable[[AnyArray], bool]:
    # Bit for bit
    content = fill_chunk.tobytes()
    first = fill_chunk.item(0)
    comparable = first == first  # False for NaN; comparing the first element is mostly enough

    def is_fill(chunk: AnyArray) -> bool:
        if comparable and chunk.item(0) != first:
            return False
        return bool(chunk.tobytes() == content)

    return is_fill
