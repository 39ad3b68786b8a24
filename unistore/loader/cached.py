"""Reading through the cache: chunks of stores, and samples of which nothing is random."""

from __future__ import annotations

import json
import struct
import weakref
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from unistore.data.packed import Allocate, Batch, Packed
from unistore.data.parts import join_batches
from unistore.errors import InputError, Problem
from unistore.loader.cache import ALIGNMENT, CacheFile, CacheRegion, aligned
from unistore.loader.fetch import BatchFetch, Fetch
from unistore.system.hints import AnyArray, Int64s

# Format of a sample in the cache: a description, and one buffer for each key.

_LENGTH = struct.Struct("<Q")


def dump_sample(batch: Batch, number: int) -> list[bytes]:
    """Return the buffers of a sample: length of its description, description, and values by key."""
    descriptions = []
    buffers = []
    for key, packed in batch.items():
        if packed.offsets is None:
            values = packed.values[number, ...]
        else:
            values = packed.values[packed.offsets[number] : packed.offsets[number + 1]]
        box = None if packed.shapes is None else packed.shapes[number].tolist()
        is_ragged = packed.offsets is not None
        descriptions.append((key, values.dtype.str, values.shape, is_ragged, packed.group, box))
        buffers.append(values.tobytes())
    description = json.dumps(descriptions).encode()
    return [_LENGTH.pack(len(description)), description, *buffers]


def load_sample(region: CacheRegion, offset: int) -> Batch:
    """Return the batch of one sample: views of the cache."""
    (size,) = _LENGTH.unpack(region.view(offset, _LENGTH.size))
    description = bytes(region.view(offset + ALIGNMENT, size))
    offset += ALIGNMENT + aligned(size)
    batch: Batch = {}
    for key, dtype, shape, offsets, group, shapes in _parse_description(description):
        values = region.array(offset, shape, dtype)
        offset += aligned(values.nbytes)
        batch[key] = Packed(values, offsets, group, shapes)
    return batch


@lru_cache(4096)
def _parse_description(description: bytes) -> list[tuple[Any, ...]]:
    keys = []
    for key, dtype, stored, is_ragged, group, box in json.loads(description):
        shape = stored if is_ragged else [1, *stored]
        offsets = np.array([0, shape[0]]) if is_ragged else None
        shapes = None if box is None else np.array([box])
        keys.append((key, np.dtype(dtype), tuple(shape), offsets, group, shapes))
    return keys


def check_cacheable(dataset: Any) -> None:
    """Raise an InputError if a dataset has no chunks to cache."""
    if hasattr(dataset, "parts") and hasattr(dataset, "arrays"):
        return
    message = f"keeps what a unistore.Dataset decodes, and this dataset is a {type(dataset).__name__}"
    cure = "leave cache out, or convert the files; a part of a unistore.Dataset is subset=… of the Loader"
    raise InputError(Problem("cache", message, cure, "option"))


def cache_file(dataset: Any, fetch: Fetch, capacity: int) -> CacheFile:
    """Make the cache file of a dataset's chunks or samples."""
    if keeps_samples(dataset, fetch):
        return CacheFile(len(dataset), capacity)
    return CacheFile(sum(array.chunk_count for array in dataset.arrays()), capacity)


def cached(dataset: Any, fetch: Fetch, region: CacheRegion) -> Fetch:
    """Return a `Fetch` of the same batches that reads through the cache."""
    if keeps_samples(dataset, fetch):
        return CachedBatches(fetch, region)
    return CachedChunks(fetch, dataset, region)


# What comes after decoding is kept, too, where it is the same every time: points of a mask take twenty times
# as long from cached chunks as from cached samples, segments and volumes about twice as long.
def keeps_samples(dataset: Any, fetch: Fetch) -> bool:
    """Return whether whole samples are kept, not chunks."""
    return isinstance(fetch, BatchFetch) and bool(dataset.repeats)


class CachedBatches:
    """A cache of the samples of a dataset that reads packed batches."""

    packed = True

    def __init__(
        self,
        fetch: Fetch,  # reads samples that are not cached
        region: CacheRegion,
    ) -> None:
        self._fetch = fetch
        self._region = region
        self.hits = self.misses = 0

    def __call__(self, indices: Int64s, epoch: int, allocate: Allocate) -> Batch:
        """Return the batch of some samples, (B,)."""
        offsets = self._region.find(indices)
        missing = np.flatnonzero(offsets == 0)
        kept = np.flatnonzero(offsets)
        self.hits += len(kept)
        self.misses += len(missing)
        if not len(kept):
            return self._read(indices, epoch, allocate)
        parts = [load_sample(self._region, offset) for offset in offsets[kept].tolist()]
        positions = [kept[number : number + 1] for number in range(len(kept))]
        if len(missing):
            parts.append(self._read(indices[missing], epoch, np.empty))
            positions.append(missing)
        return join_batches(parts, positions, allocate)

    def _read(self, indices: Int64s, epoch: int, allocate: Allocate) -> Batch:
        batch: Batch = self._fetch(indices, epoch, allocate)
        for number, index in enumerate(indices.tolist()):
            if self._region.full:
                break
            self._region.add(index, dump_sample(batch, number))
        return batch


class CachedChunks:
    """A cache of the decoded chunks that a dataset reads. Random crops are drawn anew from them."""

    def __init__(
        self,
        fetch: Fetch,  # reads batches of `dataset`
        dataset: Any,  # its arrays read through the cache from now on
        region: CacheRegion,
    ) -> None:
        self._fetch = fetch
        self.packed = fetch.packed
        self._region = region
        self.hits = self.misses = 0
        arrays = dataset.arrays()
        first = 0
        for array in arrays:
            array.share(_ArrayChunks(self, region, array.metadata, first))
            first += array.chunk_count
        weakref.finalize(self, _stop_sharing, arrays)

    def __call__(self, indices: Int64s, epoch: int, allocate: Allocate) -> Any:
        """Return the batch of some samples, (B,)."""
        return self._fetch(indices, epoch, allocate)


def _stop_sharing(arrays: Sequence[Any]) -> None:
    for array in arrays:
        array.share(None)


class _ArrayChunks:
    def __init__(self, counters: CachedChunks, region: CacheRegion, metadata: Any, first: int) -> None:
        self._counters: Any = weakref.proxy(counters)
        self._region = region
        self._shape = metadata.chunk_shape
        self._dtype = metadata.dtype
        self._first = first

    def get(self, number: int) -> AnyArray | None:
        offset = self._region.find(self._first + number)
        if not offset:
            self._counters.misses += 1
            return None
        self._counters.hits += 1
        return self._region.array(int(offset), self._shape, self._dtype)

    def add(self, number: int, chunk: AnyArray) -> None:
        if not self._region.full:
            self._region.add(self._first + number, [chunk.tobytes()])
