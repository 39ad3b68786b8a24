"""Read chunks of one array by number: find them in their shard, read, check, decode."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.errors import CorruptionError, StoreError
from unistore.zarr3.cache import IndexCache
from unistore.zarr3.frames import FrameError
from unistore.zarr3.metadata import ArrayMetadata
from unistore.zarr3.sharding import EMPTY
from unistore.zarr3.storage import Storage

__all__ = ["ChunkReader", "Located"]

_tokens = itertools.count()


class Located:
    """Chunks of an array and where they are stored.

    Attributes
    ----------
    shard, chunk
        (n,) number of the stored object, and of the chunk in it, both in C order.
    offset, size
        (n,) bytes in the object; `EMPTY` where the chunk is absent and reads as fill.
    """

    __slots__ = ("chunk", "offset", "shard", "size")

    def __init__(
        self, shard: NDArray[Any], chunk: NDArray[Any], offset: NDArray[Any], size: NDArray[Any]
    ) -> None:
        self.shard = shard
        self.chunk = chunk
        self.offset = offset
        self.size = size

    def __getitem__(self, pick: Any) -> Located:
        return Located(self.shard[pick], self.chunk[pick], self.offset[pick], self.size[pick])


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
    metadata
        Of the array.
    token
        Number of this reader, unlike that of any other reader of the process.
    """

    def __init__(self, storage: Storage, path: str, metadata: ArrayMetadata, *, sealed: bool) -> None:
        self.metadata = metadata
        self.token = next(_tokens)
        self._storage = storage
        self._path = path
        self._prefix = f"{path}/" if path else ""
        self._sealed = sealed
        self._objects = metadata.objects
        self._per_object = metadata.chunks_per_object
        self._chunks = int(np.prod(self._per_object, dtype=np.int64))
        self._decode = metadata.codecs.decoder(metadata.chunk_bytes)
        self._keys: dict[int, str] = {}
        self._indexes: IndexCache | None = None

    def locate_rows(self, chunks: NDArray[np.int64]) -> Located:
        """Find chunks by number along axis 0, where no other axis is cut."""
        shard, chunk = np.divmod(chunks, self._per_object[0])
        return self._located(shard, chunk * (self._chunks // self._per_object[0]))

    def locate(self, axes: Sequence[Sequence[int]]) -> Located:
        """Find the chunks of the outer product of chunk numbers along every axis, in C order."""
        shard = np.zeros(1, np.int64)
        chunk = np.zeros(1, np.int64)
        for numbers, per_object, objects in zip(axes, self._per_object, self._objects, strict=True):
            high, low = np.divmod(np.asarray(numbers, np.int64), per_object)
            shard = (shard[:, None] * objects + high).reshape(-1)
            chunk = (chunk[:, None] * per_object + low).reshape(-1)
        return self._located(shard, chunk)

    def decode_into(self, located: Located, targets: Sequence[NDArray[Any]]) -> None:
        """Decode present chunks, each straight into its target: a C-contiguous array of the chunk's shape."""
        decode, done = self._decode, 0
        try:
            for raw, target in zip(self._raw(located), targets, strict=True):
                decode(raw, target)
                done += 1
        except (FrameError, StoreError) as error:
            raise self._damaged(located, done, error) from error

    def decode_each(self, located: Located, *, fresh: bool) -> Iterator[NDArray[Any]]:
        """Decode present chunks one by one; unless `fresh`, each may be overwritten by the next."""
        metadata, done = self.metadata, 0
        flat: NDArray[Any] | None = None
        try:
            for raw in self._raw(located):
                if flat is None or fresh:
                    flat = np.empty(metadata.chunk_bytes // metadata.dtype.itemsize, metadata.dtype)
                self._decode(raw, flat)
                yield metadata.codecs.restore(flat, metadata.dtype, metadata.chunk_shape)
                done += 1
        except (FrameError, StoreError) as error:
            raise self._damaged(located, done, error) from error

    def _located(self, shard: NDArray[np.int64], chunk: NDArray[np.int64]) -> Located:
        if self.metadata.index is None:
            sizes = [self._object_size(number) for number in shard.tolist()]
            size = np.array([EMPTY if size is None else size for size in sizes], np.int64)
            return Located(shard, chunk, np.where(size == EMPTY, EMPTY, 0), size)
        if self._indexes is None:
            count = int(np.prod(self._objects, dtype=np.int64))
            self._indexes = IndexCache(count, self._chunks, self._load_index)
        entries = self._indexes.entries(shard, chunk)
        return Located(shard, chunk, entries[:, 0], entries[:, 1])

    def _raw(self, located: Located) -> Iterator[bytes]:
        keys = [self._key(number) for number in located.shard.tolist()]
        return self._storage.read_many(keys, located.offset.tolist(), located.size.tolist())

    def _key(self, shard: int) -> str:
        key = self._keys.get(shard)
        if key is None:
            coordinates = (
                tuple(int(at) for at in np.unravel_index(shard, self._objects)) if self._objects else ()
            )
            key = self._prefix + self.metadata.keys.key(coordinates)
            if len(self._keys) > 65536:
                self._keys.clear()
            self._keys[shard] = key
        return key

    def _object_size(self, shard: int) -> int | None:
        size = self._storage.size(self._key(shard))
        if size is None and self._sealed:
            missing = f"{self._key(shard)} of {self._storage!r} is missing"
            msg = f"array {self._path!r}: {missing}, but the store is sealed; restore it from a copy"
            raise CorruptionError(msg)
        return size

    def _load_index(self, shard: int) -> NDArray[np.int64]:
        index = self.metadata.index
        assert index is not None
        size = self._object_size(shard)
        if size is None:
            return np.full((self._chunks, 2), EMPTY, np.int64)
        key, nbytes = self._key(shard), index.nbytes(self._chunks)
        if size < nbytes:
            msg = f"array {self._path!r}: shard {key} has {size} bytes, less than its index of {nbytes}"
            raise CorruptionError(msg)
        raw = bytearray(nbytes)
        self._storage.read_into(key, 0 if index.location == "start" else size - nbytes, memoryview(raw))
        try:
            return index.decode(bytes(raw), self._chunks, size)
        except FrameError as error:
            msg = f"array {self._path!r}: shard {key} of {self._storage!r}: {error}"
            raise CorruptionError(msg) from error

    def _damaged(self, located: Located, at: int, error: Exception) -> StoreError:
        """The error of a chunk that could not be read, with everything that locates it."""
        shard, chunk = int(located.shard[at]), int(located.chunk[at])
        outer, inner = _coordinates(shard, self._objects), _coordinates(chunk, self._per_object)
        coordinates = tuple(a * count + b for a, b, count in zip(outer, inner, self._per_object, strict=True))
        what = "chunk" if self.metadata.index is None else "shard"
        where = f"{what} {self._key(shard)} of {self._storage!r}"
        msg = f"array {self._path!r}: {where}, chunk {coordinates}: {error}"
        return CorruptionError(msg) if isinstance(error, FrameError | CorruptionError) else StoreError(msg)


def _coordinates(number: int, counts: tuple[int, ...]) -> tuple[int, ...]:
    """Coordinates of a C-ordered number in a grid of `counts`."""
    return tuple(int(at) for at in np.unravel_index(number, counts)) if counts else ()
