"""Read chunks of one array by number: find them in their shard, read, check, decode.

Plans are Python lists: for the tens of chunks of a batch they are faster than numpy, above all in training,
where other work evicts numpy's code from the CPU caches between batches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unistore.errors import CorruptionError, StoreError
from unistore.zarr3.cache import IndexCache
from unistore.zarr3.frames import FrameError, max_encoded_size
from unistore.zarr3.metadata import ArrayMetadata
from unistore.zarr3.sharding import EMPTY
from unistore.zarr3.shared import SharedChunks
from unistore.zarr3.storage import Storage, SupportsReadEnds, SupportsReadInto

_MAX_CACHED_KEYS = 65536
_tokens = itertools.count()


class ChunkLocations(NamedTuple):
    """Chunks of an array and where they are stored, one a position of four equally long lists.

    Attributes
    ----------
    numbers
        Chunk numbers: the number of the stored object times its count of chunks, plus the number in it.
    keys
        Keys of the stored objects.
    offsets, sizes
        Bytes in the object; `EMPTY` where the chunk is absent and reads as fill.
    """

    numbers: list[int]
    keys: list[str]
    offsets: list[int]
    sizes: list[int]

    def select(self, positions: Sequence[int]) -> ChunkLocations:
        """Some of the chunks."""
        return ChunkLocations(
            [self.numbers[at] for at in positions],
            [self.keys[at] for at in positions],
            [self.offsets[at] for at in positions],
            [self.sizes[at] for at in positions],
        )


class ChunkReader:
    """Reads chunks of one array.

    Parameters
    ----------
    storage, path, metadata
        The array.
    sealed
        Whether an absent object is an error instead of fill.

    Attributes
    ----------
    storage, metadata
        Of the array.
    per_object
        Chunks of a stored object.
    token
        Unique number of this reader in the process, for cache keys.
    uncompressed
        Whether chunks are stored without compression.
    row_stride
        Chunk number of a row over the row, where a chunk is one whole row.
    count
        Chunks of the array; their numbers are below it.
    shared
        Cache of decoded chunks shared with other processes, or None.
    """

    def __init__(self, storage: Storage, path: str, metadata: ArrayMetadata, *, sealed: bool) -> None:
        self.metadata = metadata
        self.token = next(_tokens)
        self.storage = storage
        self._path = path
        self._prefix = f"{path}/" if path else ""
        self._sealed = sealed
        self._objects = metadata.objects
        self._per_object = metadata.chunks_per_object
        self.per_object = math.prod(self._per_object)
        self.count = math.prod(self._objects) * self.per_object
        self.shared: SharedChunks | None = None
        self._max_encoded = max_encoded_size(metadata.chunk_bytes)
        self.row_stride = math.prod(self._per_object[1:])
        self._strides = [  # along each axis: numbers from an object to the next, and from a chunk to the next
            (math.prod(self._objects[axis:]) * self.per_object, math.prod(self._per_object[axis:]))
            for axis in range(1, len(self._objects) + 1)
        ]
        self._decode = metadata.codecs.decoder(metadata.chunk_bytes)
        self._uncompressed = metadata.codecs.uncompressed(metadata.chunk_bytes)
        self.uncompressed = self._uncompressed is not None
        self._keys: dict[int, str] = {}
        self._indexes = IndexCache(self._load_index)
        at_end = metadata.index is not None and metadata.index.location == "end"
        self._ends = storage if at_end and isinstance(storage, SupportsReadEnds) else None

    def numbers(self, axes: Sequence[Sequence[int]]) -> list[int]:
        """Chunk numbers of the outer product of chunk coordinates along every axis, in C order."""
        numbers = [0]
        for coordinates, per_object, (outer, inner) in zip(
            axes, self._per_object, self._strides, strict=True
        ):
            steps = [at // per_object * outer + at % per_object * inner for at in coordinates]
            numbers = [number + step for number in numbers for step in steps]
        return numbers

    def locate(self, numbers: list[int]) -> ChunkLocations:
        """Find chunks; those of one shard should stand together."""
        if self._ends is not None:
            self._load_indexes(self._ends, numbers)
        keys: list[str] = []
        offsets: list[int] = []
        sizes: list[int] = []
        first = end = 0  # chunk numbers of the shard at hand
        for number in numbers:
            if not first <= number < end:
                shard = number // self.per_object
                first, end = shard * self.per_object, (shard + 1) * self.per_object
                key, index = self._key(shard), self._indexes.get(shard)
            at = 2 * (number - first)
            keys.append(key)
            offsets.append(index[at])
            sizes.append(index[at + 1])
        return ChunkLocations(numbers, keys, offsets, sizes)

    def decode(
        self, located: ChunkLocations, targets: Sequence[NDArray[Any] | None]
    ) -> Iterator[NDArray[Any]]:
        """Decode present chunks, one by one.

        Parameters
        ----------
        located
            The chunks; all are asked for at once.
        targets
            For each, a C-contiguous array of the chunk's size that gets its elements as they are stored, or
            None: what is yielded is the chunk, not to be written to.
        """
        if self.shared is None:
            return self._decode_stored(located, targets)
        return self._decode_shared(self.shared, located, targets)

    def _decode_shared(
        self, shared: SharedChunks, located: ChunkLocations, targets: Sequence[NDArray[Any] | None]
    ) -> Iterator[NDArray[Any]]:
        metadata = self.metadata
        there = shared.there[located.numbers].tolist()
        missing = [at for at, found in enumerate(there) if not found]
        shared.hits += len(there) - len(missing)
        stored = self._decode_stored(located.select(missing), [targets[at] for at in missing])
        for number, found, target in zip(located.numbers, there, targets, strict=True):
            if not found:
                chunk = next(stored)
                shared.add(number, chunk)
                yield chunk
            elif target is None:
                yield metadata.codecs.restore(shared.chunks[number], metadata.dtype, metadata.chunk_shape)
            else:
                target.reshape(-1).view(np.uint8)[:] = shared.chunks[number]
                yield target

    def _decode_stored(
        self, located: ChunkLocations, targets: Sequence[NDArray[Any] | None]
    ) -> Iterator[NDArray[Any]]:
        decode, metadata, done = self._decode, self.metadata, 0
        restore, dtype, shape = metadata.codecs.restore, metadata.dtype, metadata.chunk_shape
        try:
            raws = iter(self.storage.read_many(located.keys, located.offsets, located.sizes))
            for target in targets:
                if target is None:
                    yield restore(decode(next(raws), None), dtype, shape)
                else:
                    decode(next(raws), target)
                    yield target
                done += 1
        except (FrameError, StoreError) as error:
            raise self._chunk_error(located, done, error) from error

    def read_into(self, located: ChunkLocations, targets: Sequence[NDArray[Any]]) -> Iterator[NDArray[Any]]:
        """Decode present chunks one by one, each into its target: a C-contiguous array of its size."""
        uncompressed, storage, done = self._uncompressed, self.storage, 0
        shared = self.shared is not None
        if (
            shared
            or uncompressed is None
            or not isinstance(storage, SupportsReadInto)
            or not uncompressed.fits(located.sizes)
        ):
            yield from self.decode(located, targets)
            return
        try:
            tails = storage.read_many_into(located.keys, located.offsets, targets, uncompressed.trailer)
            for target, tail in zip(targets, tails, strict=True):
                uncompressed.check(target, tail)
                yield target
                done += 1
        except (FrameError, StoreError) as error:
            raise self._chunk_error(located, done, error) from error

    def _key(self, shard: int) -> str:
        key = self._keys.get(shard)
        if key is None:
            if len(self._keys) >= _MAX_CACHED_KEYS:
                self._keys.clear()
            key = self._prefix + self.metadata.keys.key(_coordinates(shard, self._objects))
            self._keys[shard] = key
        return key

    def _load_indexes(self, storage: SupportsReadEnds, numbers: Sequence[int]) -> None:
        """Read all indexes that these chunks need and that are not cached, in one request."""
        index = self.metadata.index
        assert index is not None
        shards = self._indexes.missing(dict.fromkeys(number // self.per_object for number in numbers))
        keys = [self._key(shard) for shard in shards]
        ends = storage.read_ends(keys, index.nbytes(self.per_object)) if keys else ()
        for shard, key, end in zip(shards, keys, ends, strict=True):
            size, raw = (None, b"") if end is None else end
            known = self._implied_index(key, size)
            self._indexes.put(shard, self._decode_index(key, size or 0, raw) if known is None else known)

    def _load_index(self, shard: int) -> memoryview:
        """Offset and size of every chunk of a stored object; unsharded, its one chunk is all of it."""
        key, index = self._key(shard), self.metadata.index
        size = self.storage.size(key)
        known = self._implied_index(key, size)
        if known is not None:
            return known
        assert size is not None
        assert index is not None
        raw = bytearray(index.nbytes(self.per_object))
        self.storage.read_into(key, 0 if index.location == "start" else size - len(raw), memoryview(raw))
        return self._decode_index(key, size, bytes(raw))

    def _implied_index(self, key: str, size: int | None) -> memoryview | None:
        """Index of an absent object, or of an unsharded one (its one chunk); None: it is stored."""
        if size is None:
            if self._sealed:
                missing = f"{key} of {self.storage} is missing"
                msg = f"array {self._path!r}: {missing}, but the store is sealed; restore it from a copy"
                raise CorruptionError(msg)
            return np.full(2 * self.per_object, EMPTY, np.int64).data
        if self.metadata.index is None:
            if size > self._max_encoded:
                raise self._index_error(key, f"{size} bytes, more than {self._max_encoded} encoded ones")
            return np.array([0, size], np.int64).data
        nbytes = self.metadata.index.nbytes(self.per_object)
        if size < nbytes:
            raise self._index_error(key, f"{size} bytes, less than its index of {nbytes}")
        return None

    def _decode_index(self, key: str, size: int, raw: bytes) -> memoryview:
        """Decode the stored index of a shard of `size` bytes."""
        assert self.metadata.index is not None
        try:
            return self.metadata.index.decode(raw, self.per_object, size, self._max_encoded).reshape(-1).data
        except FrameError as error:
            raise self._index_error(key, str(error)) from error

    def _index_error(self, key: str, what: str) -> CorruptionError:
        where = f"array {self._path!r}: shard {key} of {self.storage}"
        return CorruptionError(f"{where}: {what}; restore the file from a copy, or convert again")

    def _chunk_error(self, located: ChunkLocations, at: int, error: Exception) -> StoreError:
        """Error for a chunk that could not be read: names array, object, and chunk coordinates."""
        shard, chunk = divmod(located.numbers[at], self.per_object)
        outer, inner = _coordinates(shard, self._objects), _coordinates(chunk, self._per_object)
        coordinates = tuple(a * count + b for a, b, count in zip(outer, inner, self._per_object, strict=True))
        what = "chunk" if self.metadata.index is None else "shard"
        where = f"{what} {located.keys[at]} of {self.storage}"
        msg = f"array {self._path!r}: {where}, chunk {coordinates}: {error}"
        if isinstance(error, FrameError | CorruptionError):
            return CorruptionError(f"{msg}; restore the file from a copy, or convert again")
        return StoreError(msg)


def _coordinates(number: int, counts: tuple[int, ...]) -> tuple[int, ...]:
    """Coordinates of a C-ordered number in a grid of `counts`."""
    coordinates = []
    for count in reversed(counts):
        number, at = divmod(number, count)
        coordinates.append(at)
    return tuple(reversed(coordinates))
