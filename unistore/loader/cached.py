"""Reading through the cache: chunks of stores, and samples of which nothing is random."""

from __future__ import annotations

import json
import mmap
import struct
import weakref
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from unistore.data.packed import Allocate, Batch, Packed
from unistore.data.parts import join_parts
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
    """Return the name, dtype and shape of the values of each key, and the other fields of its `Packed`."""
    keys = []
    for key, dtype, stored, is_ragged, group, box in json.loads(description):
        shape = stored if is_ragged else [1, *stored]
        offsets = np.array([0, shape[0]]) if is_ragged else None
        shapes = None if box is None else np.array([box])
        keys.append((key, np.dtype(dtype), tuple(shape), offsets, group, shapes))
    return keys


# Version of the layout of chunks in the file; part of its name
_VERSION = 4


def check_cacheable(dataset: Any) -> None:
    """Raise an InputError if a dataset has no chunks to cache."""
    if hasattr(dataset, "parts") and hasattr(dataset, "arrays"):
        return
    message = f"keeps what a unistore.Dataset decodes, and this dataset is a {type(dataset).__name__}"
    cure = "leave cache out, or convert the files; a part of a unistore.Dataset is subset=… of the Loader"
    raise InputError(Problem("cache", message, cure, "option"))


def cache_file(dataset: Any, fetch: Fetch, capacity: int) -> CacheFile:
    """Make or open the cache file of a dataset's chunks or samples.

    Loaders share one by its name, which stands for the stores that the dataset was opened from, by the same
    paths in the same folder, for the capacity, and, where samples are kept, for which they are.
    """
    stores = [(part.store.path, part.store.attributes["seal"]) for part in dataset.parts]
    identity = [_VERSION, str(Path.cwd()), stores, capacity]
    if _keeps_samples(dataset, fetch):
        identity += [dataset.digest, dataset.fields, dataset.names]
        return CacheFile(len(dataset), capacity, _digest(identity))
    counts, offsets = _layout(dataset.arrays())
    return CacheFile(counts[-1], capacity, _digest(identity), offsets[-1])


def _digest(identity: Any) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(identity, sort_keys=True).encode())


def _layout(arrays: Sequence[Any]) -> tuple[list[int], list[int]]:
    """Return the first chunk number and first byte of each array, which starts on a page; last, the totals.

    The chunks of an array are contiguous; if they are of whole rows, so are the rows.
    """
    counts = [0]
    offsets = [0]
    for array in arrays:
        counts.append(counts[-1] + array.chunk_count)
        nbytes = array.chunk_count * array.metadata.chunk_bytes
        offsets.append(offsets[-1] + -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)
    return counts, offsets


def cached(dataset: Any, fetch: Fetch, region: CacheRegion) -> Fetch:
    """Return a `Fetch` of the same batches that reads through the cache."""
    if _keeps_samples(dataset, fetch):
        return CachedBatches(fetch, region)
    return CachedChunks(fetch, dataset, region)


# What comes after decoding is kept, too, where it is the same every time: points of a mask take twenty times
# as long from cached chunks as from cached samples, segments and volumes about twice as long.
def _keeps_samples(dataset: Any, fetch: Fetch) -> bool:
    return isinstance(fetch, BatchFetch) and bool(dataset.repeats)


class CachedBatches:
    """A cache of the samples of a dataset that reads packed batches."""

    packed = on_any_thread = True

    def __init__(
        self,
        fetch: Fetch,  # reads samples that are not cached
        region: CacheRegion,
    ) -> None:
        self._fetch = fetch
        self._region = region
        self.hits = self.misses = 0

    def __call__(self, indices: Int64s, epoch: int, allocate: Allocate) -> Batch:
        """See `Fetch`."""
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
        group_offsets: dict[str, Int64s] = {}
        return {
            key: join_parts([part[key] for part in parts], positions, group_offsets, allocate)
            for key in parts[0]
        }

    def _read(self, indices: Int64s, epoch: int, allocate: Allocate) -> Batch:
        batch: Batch = self._fetch(indices, epoch, allocate)
        for number, index in enumerate(indices.tolist()):
            if self._region.full:
                break
            self._region.add(index, dump_sample(batch, number))
        return batch


class CachedChunks:
    """A cache of the decoded chunks that a dataset reads; random crops are drawn anew from them."""

    def __init__(
        self,
        fetch: Fetch,  # reads batches of `dataset`
        dataset: Any,  # its arrays read through the cache from now on
        region: CacheRegion,
    ) -> None:
        self._fetch = fetch
        self.packed = fetch.packed
        self.on_any_thread = fetch.on_any_thread
        arrays = dataset.arrays()
        starts = zip(arrays, *_layout(arrays), strict=False)
        self._chunks = [_ArrayChunks(region, array, first, offset) for array, first, offset in starts]
        for array, chunks in zip(arrays, self._chunks, strict=True):
            array.share(chunks)
        weakref.finalize(self, _stop_sharing, arrays)

    @property
    def hits(self) -> int:
        """Reads of chunks, rows and ranges that the cache had."""
        return sum(chunks.hits for chunks in self._chunks)

    @property
    def misses(self) -> int:
        """Chunks that were decoded."""
        return sum(chunks.misses for chunks in self._chunks)

    def __call__(self, indices: Int64s, epoch: int, allocate: Allocate) -> Any:
        """See `Fetch`."""
        return self._fetch(indices, epoch, allocate)


def _stop_sharing(arrays: Sequence[Any]) -> None:
    for array in arrays:
        array.share(None)


class _ArrayChunks:
    """The chunks of one array: numbers from `first` on, bytes from `offset` on. See `SharedChunks`."""

    def __init__(self, region: CacheRegion, array: Any, first: int, offset: int) -> None:
        self._region = region
        self._first = first
        self._offset = offset
        count = array.chunk_count
        nbytes = array.metadata.chunk_bytes
        self.chunks = region.array(region.start + offset, (count, nbytes), np.dtype(np.uint8))
        self.there = region.find(slice(first, first + count))
        self.hits = self.misses = 0

    def add(self, number: int, chunk: AnyArray) -> None:
        self.misses += 1
        data = np.ascontiguousarray(chunk).reshape(-1).view(np.uint8)
        self._region.add_at(self._first + number, data, self._offset + number * len(data))
