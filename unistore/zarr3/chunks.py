"""Read chunks of one array by number: find them in their shard, read, check, decode."""

# Plans are Python lists: for the tens of chunks of a batch they are faster than numpy, above all in
# training, where other work evicts numpy's code from the CPU caches between batches

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from unistore.errors import CorruptionError, StoreError, without_fix
from unistore.system.types import AnyArray, Dtype, Shape
from unistore.zarr3.codecs import CRC_BYTES, Blosc, FrameError, check_chunk, decoder, max_encoded_size
from unistore.zarr3.metadata import ArrayMetadata, decode_index, index_bytes, shard_key
from unistore.zarr3.storage import LocalStorage, Storage, SupportsReadEnds

RowRange: TypeAlias = tuple[int, int, int]  # first row, end, place in the output


class SharedChunks(Protocol):
    """Decoded chunks of one array, in a cache that several processes share."""

    @property
    def full(self) -> bool:
        """Return whether no chunk can be added."""

    def get(self, number: int, shape: Shape, dtype: Dtype) -> AnyArray | None:
        """Return a chunk that must not be written to, or None."""

    def add(self, number: int, chunk: AnyArray) -> None:
        """Keep a chunk, if there is room."""


_MAX_CACHED_KEYS = 65536
# Memory of the shard indexes of one array; at least one is kept.
INDEX_BYTES = 64 << 20
_INDEX_OVERHEAD = 400
_tokens = itertools.count()


class ChunkLocations(NamedTuple):
    """Chunks of an array and where they are stored: four parallel lists, one entry per chunk."""

    # chunk numbers: the number of the shard times its count of chunks, plus the number in it
    numbers: list[int]
    keys: list[str]  # keys of the shards
    # bytes in the shard; `EMPTY` where the chunk is absent and reads as fill
    offsets: list[int]
    sizes: list[int]

    def select(self, positions: Sequence[int]) -> ChunkLocations:
        return ChunkLocations(
            [self.numbers[position] for position in positions],
            [self.keys[position] for position in positions],
            [self.offsets[position] for position in positions],
            [self.sizes[position] for position in positions],
        )


class FoundShard(NamedTuple):
    """A shard, and where its chunks are."""

    # numbers of its chunks
    first: int
    end: int
    key: str
    entries: memoryview  # offset and size of every chunk, one behind the other


class ChunkReader:
    """Reads chunks of one array, of which all shards must exist."""

    def __init__(self, storage: Storage, path: str, metadata: ArrayMetadata) -> None:
        self.storage = storage
        self.metadata = metadata
        self.token = next(_tokens)  # unique number of this reader in the process, for cache keys
        self._path = path
        self._prefix = f"{path}/" if path else ""
        self._shards = metadata.shards
        self._per_shard = metadata.chunks_per_shard
        self.per_shard = math.prod(self._per_shard)
        self.count = math.prod(self._shards) * self.per_shard  # numbers of chunks are below it
        self.shared: SharedChunks | None = None  # cache that is shared with other processes
        self._index_bytes = index_bytes(self.per_shard)
        self.max_encoded = max_encoded_size(metadata.chunk_bytes)
        # where a chunk is one whole row: number of the chunk over that of the row
        self.row_stride = math.prod(self._per_shard[1:])
        self._strides = [  # along each axis: numbers from a shard to the next, and from a chunk to the next
            (math.prod(self._shards[axis:]) * self.per_shard, math.prod(self._per_shard[axis:]))
            for axis in range(1, len(self._shards) + 1)
        ]
        self._decode = decoder(metadata.compressor, metadata.chunk_bytes)
        self.uncompressed = metadata.compressor is None
        # reads uncompressed chunks straight into their targets, their checksums apart
        self._read_into = storage if self.uncompressed and isinstance(storage, LocalStorage) else None
        self._keys: dict[int, str] = {}
        # by shard: offset and size of every chunk, one behind the other, as 64-bit integers
        self._indexes: dict[int, memoryview] = {}
        self.most_indexes = max(1, INDEX_BYTES // (self._index_bytes + _INDEX_OVERHEAD))
        self._ends = storage if isinstance(storage, SupportsReadEnds) else None
        # whether the kernel can read them
        self.is_compiled = self.uncompressed or isinstance(metadata.compressor, Blosc)

    def numbers(self, axes: Sequence[Sequence[int]]) -> list[int]:
        """Return chunk numbers of the outer product of chunk coordinates along every axis, in C order."""
        numbers = [0]
        for coordinates, per_shard, (outer, inner) in zip(axes, self._per_shard, self._strides, strict=True):
            steps = [index // per_shard * outer + index % per_shard * inner for index in coordinates]
            numbers = [number + step for number in numbers for step in steps]
        return numbers

    def locate(self, numbers: list[int]) -> ChunkLocations:
        """Find chunks, of which those of one shard should stand together."""
        if self._ends is not None:
            self._load_indexes(self._ends, numbers)
        keys: list[str] = []
        offsets: list[int] = []
        sizes: list[int] = []
        first = end = 0  # chunk numbers of the shard at hand
        for number in numbers:
            if not first <= number < end:
                first, end, key, index = self.find_shard(number)
            entry = 2 * (number - first)
            keys.append(key)
            offsets.append(index[entry])
            sizes.append(index[entry + 1])
        return ChunkLocations(numbers, keys, offsets, sizes)

    def find_shard(self, number: int) -> FoundShard:
        """Return the shard of a chunk."""
        shard = number // self.per_shard
        first = shard * self.per_shard
        index = self._indexes.get(shard) or self._load_index(shard)
        return FoundShard(first, first + self.per_shard, self._key(shard), index)

    def decode(
        self,
        located: ChunkLocations,  # the chunks; all are asked for at once
        # for each, a C-contiguous array of the chunk's size to decode into, or None: what is yielded is the
        # chunk, not to be written to
        targets: Sequence[AnyArray | None],
    ) -> Iterator[AnyArray]:
        """Decode present chunks, one by one."""
        if self.shared is None:
            return self._decode_stored(located, targets)
        return self._decode_shared(self.shared, located, targets)

    def _decode_shared(
        self, shared: SharedChunks, located: ChunkLocations, targets: Sequence[AnyArray | None]
    ) -> Iterator[AnyArray]:
        form = self.metadata.chunk_shape, self.metadata.dtype
        cached = [shared.get(number, *form) for number in located.numbers]
        missing = [position for position, chunk in enumerate(cached) if chunk is None]
        stored = self._decode_stored(located.select(missing), [targets[position] for position in missing])
        for number, chunk, target in zip(located.numbers, cached, targets, strict=True):
            if chunk is None:
                decoded = next(stored)
                shared.add(number, decoded)
                yield decoded
            elif target is None:
                yield chunk
            else:
                target.reshape(-1)[:] = chunk.reshape(-1)
                yield target

    def _decode_stored(
        self, located: ChunkLocations, targets: Sequence[AnyArray | None]
    ) -> Iterator[AnyArray]:
        keys = located.keys
        offsets = located.offsets
        outs = [target for target in targets if target is not None]
        done = 0
        try:
            if self._read_into is not None and len(outs) == len(targets) and self._are_whole(located.sizes):
                checksums = self._read_into.read_many_into(keys, offsets, outs, CRC_BYTES)
                for out, checksum in zip(outs, checksums, strict=True):
                    check_chunk(out, checksum)
                    yield out
                    done += 1
                return
            raws = iter(self.storage.read_many(keys, offsets, located.sizes))
            for number, target in zip(located.numbers, targets, strict=True):
                yield self._decode_chunk(number, next(raws), target)
                done += 1
        except (FrameError, StoreError) as error:
            raise self._chunk_error(located, done, error) from error

    def _decode_chunk(self, number: int, raw: bytes, target: AnyArray | None) -> AnyArray:  # noqa: ARG002
        if target is None:
            return np.ndarray(self.metadata.chunk_shape, self.metadata.dtype, self._decode(raw, None))
        self._decode(raw, target)
        return target

    def _are_whole(self, sizes: Sequence[int]) -> bool:
        stored_bytes = self.metadata.chunk_bytes + CRC_BYTES
        return all(size == stored_bytes for size in sizes)

    def _key(self, shard: int) -> str:
        key = self._keys.get(shard)
        if key is None:
            key = self._keep_key(shard, self._prefix + shard_key(_coordinates(shard, self._shards)))
        return key

    def _keep_key(self, shard: int, key: str) -> str:
        if len(self._keys) >= _MAX_CACHED_KEYS:
            self._keys.clear()
        self._keys[shard] = key
        return key

    def _load_indexes(self, storage: SupportsReadEnds, numbers: Sequence[int]) -> None:
        shards = dict.fromkeys(number // self.per_shard for number in numbers)
        missing = [shard for shard in shards if shard not in self._indexes]
        keys = [self._key(shard) for shard in missing]
        ends = storage.read_ends(keys, self._index_bytes) if keys else ()
        for shard, key, end in zip(missing, keys, ends, strict=True):
            size, raw = (None, b"") if end is None else end
            self._keep_index(shard, self._decode_index(key, self._check_shard(key, size), raw))

    def _load_index(self, shard: int) -> memoryview:
        key = self._key(shard)
        size = self._check_shard(key, self.storage.size(key))
        (raw,) = self.storage.read_many([key], [size - self._index_bytes], [self._index_bytes])
        return self._keep_index(shard, self._decode_index(key, size, raw))

    def _keep_index(self, shard: int, index: memoryview) -> memoryview:
        surplus = len(self._indexes) + 1 - self.most_indexes
        for oldest in list(self._indexes)[: max(0, surplus)]:
            self._indexes.pop(oldest, None)
        self._indexes[shard] = index
        return index

    def _check_shard(self, key: str, size: int | None) -> int:
        if size is None:
            missing = f"{key} of {self.storage} is missing, although the store is sealed"
            msg = f"array {self._path!r}: {missing}. {self._fix()}"
            raise CorruptionError(msg)
        if size < self._index_bytes:
            raise self._index_error(
                key, f"it has {size:,} bytes, fewer than its index of {self._index_bytes:,}"
            )
        return size

    def _decode_index(self, key: str, size: int, raw: bytes) -> memoryview:
        try:
            return decode_index(raw, size, self.max_encoded).reshape(-1).data
        except FrameError as error:
            raise self._index_error(key, str(error)) from error

    def _index_error(self, key: str, what: str) -> CorruptionError:
        where = f"array {self._path!r}: shard {key} of {self.storage}"
        return CorruptionError(f"{where}: {what}. {self._fix()}")

    def _chunk_error(self, located: ChunkLocations, position: int, error: Exception) -> StoreError:
        coordinates = self._coordinates_of(located.numbers[position])
        where = f"shard {located.keys[position]} of {self.storage}"
        place = f"array {self._path!r}: {where}, chunk {coordinates}"
        if isinstance(error, FrameError | CorruptionError):
            return CorruptionError(f"{place}: {without_fix(error)}. {self._fix()}")
        return StoreError(f"{place}: {error}")

    def _fix(self) -> str:
        # a part of a versioned store is repaired with the others: STORE/parts/NAME
        path = str(self.storage)
        above, parts, _ = path.rpartition("/parts/")
        store = shlex.quote(above if parts else path)
        return f"Fix: unistore verify {store} --repair SOURCES, or restore the file from a copy"

    def _coordinates_of(self, number: int) -> Shape:
        shard, chunk = divmod(number, self.per_shard)
        outer = _coordinates(shard, self._shards)
        inner = _coordinates(chunk, self._per_shard)
        return tuple(a * count + b for a, b, count in zip(outer, inner, self._per_shard, strict=True))


def _coordinates(number: int, counts: Shape) -> Shape:
    coordinates = []
    for count in reversed(counts):
        number, coordinate = divmod(number, count)
        coordinates.append(coordinate)
    return tuple(reversed(coordinates))
