"""Reading through the cache: chunks of stores, samples of other datasets."""

from __future__ import annotations

import json
import pickle
import struct
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from unistore.data.packed import Allocate
from unistore.errors import InputError, Problem
from unistore.loader.cache import ALIGNMENT, CacheFile, CacheRegion
from unistore.loader.fetch import Collate, Fetch, SampleFetch, choose_fetch

__all__ = ["cache_file", "cached", "check_cacheable"]

_LENGTH = struct.Struct("<Q")
_VERSION = 2
"""Of how chunks lie in the file."""


def check_cacheable(dataset: Any) -> None:
    """Refuse datasets that are neither of stores nor give samples one by one.

    Raises
    ------
    InputError
        If it is one.
    """
    if not _has_chunks(dataset) and hasattr(dataset, "read_batch"):
        message = "keeps chunks of a unistore.Dataset, or samples of a dataset without read_batch"
        raise InputError(Problem("cache", message, "leave cache out", "option"))


def cache_file(dataset: Any, capacity: int) -> CacheFile:
    """The file for a dataset's chunks or samples.

    Loaders share one by its name, which stands for the stores that the dataset was opened from, by the same
    paths in the same folder, and for the capacity. Samples of other datasets are kept by each loader alone.
    """
    if not _has_chunks(dataset):
        return CacheFile(len(dataset), capacity)
    stores = [(part.store.path, part.store.attributes["seal"]) for part in dataset.parts]
    said = json.dumps([_VERSION, str(Path.cwd()), stores, capacity], sort_keys=True)
    chunks = sum(array.chunk_count for array in dataset.arrays())
    return CacheFile(chunks, capacity, xxhash.xxh3_128_hexdigest(said.encode()))


def cached(dataset: Any, collate: Collate | None, region: CacheRegion) -> Fetch:
    """Return a fetch that looks into the cache first."""
    fetch = choose_fetch(dataset, collate)
    if _has_chunks(dataset):
        return CachedChunks(fetch, dataset, region)
    assert isinstance(fetch, SampleFetch)
    return CachedSamples(fetch, region)


def _has_chunks(dataset: Any) -> bool:
    return hasattr(dataset, "parts") and hasattr(dataset, "arrays")


class CachedChunks:
    """A cache of the decoded chunks that a dataset reads; what is random is drawn from them anew.

    Parameters
    ----------
    fetch
        Reads batches of `dataset`.
    dataset
        Its arrays use the cache from now on.
    region
        The cache.
    """

    def __init__(self, fetch: Fetch, dataset: Any, region: CacheRegion) -> None:
        self._fetch = fetch
        self._counts = _Counts()
        self.packed = fetch.packed
        first, arrays = 0, dataset.arrays()
        for array in arrays:
            array.share(_ArrayChunks(self._counts, region, first, array.metadata.chunk_bytes))
            first += array.chunk_count
        weakref.finalize(self, _forget, arrays)

    @property
    def hits(self) -> int:
        """Chunks that were found."""
        return self._counts.hits

    @property
    def misses(self) -> int:
        """Chunks that were decoded."""
        return self._counts.misses

    def __call__(self, indices: Sequence[int], epoch: int, allocate: Allocate) -> Any:
        """See `Fetch`."""
        return self._fetch(indices, epoch, allocate)


def _forget(arrays: Sequence[Any]) -> None:
    for array in arrays:
        array.share(None)


@dataclass(slots=True)
class _Counts:
    hits: int = 0
    misses: int = 0


class _ArrayChunks:
    """The chunks of one array, which have the numbers from `first` on in the cache."""

    def __init__(self, counts: _Counts, region: CacheRegion, first: int, nbytes: int) -> None:
        self._counts, self._region, self._first, self._nbytes = counts, region, first, nbytes

    def find(self, numbers: Sequence[int]) -> list[NDArray[np.uint8] | None]:
        offsets = self._region.find(self._first + np.asarray(numbers, np.int64)).tolist()
        self._counts.hits += len(offsets) - offsets.count(0)
        self._counts.misses += offsets.count(0)
        dtype = np.dtype(np.uint8)
        return [self._region.array(offset, (self._nbytes,), dtype) if offset else None for offset in offsets]

    def add(self, number: int, chunk: NDArray[Any]) -> None:
        self._region.add(self._first + number, [np.ascontiguousarray(chunk).reshape(-1).view(np.uint8)])


class CachedSamples:
    """A cache in front of any map-style dataset: samples are kept pickled, before they are collated.

    Parameters
    ----------
    fetch
        Reads and collates.
    region
        The cache.
    """

    packed = False

    def __init__(self, fetch: SampleFetch, region: CacheRegion) -> None:
        self._fetch = fetch
        self._region = region
        self.hits = self.misses = 0

    def __call__(self, indices: Sequence[int], epoch: int, allocate: Allocate) -> Any:
        """See `Fetch`."""
        offsets = self._region.find(np.asarray(indices, np.int64)).tolist()
        missing = [index for index, offset in zip(indices, offsets, strict=True) if not offset]
        self.hits += len(indices) - len(missing)
        self.misses += len(missing)
        read = iter(self._fetch.samples(missing, epoch) if missing else ())
        samples = []
        for index, offset in zip(indices, offsets, strict=True):
            if offset:
                (size,) = _LENGTH.unpack(self._region.view(offset, _LENGTH.size))
                kept = self._region.view(offset + ALIGNMENT, size)
                samples.append(pickle.loads(kept))  # noqa: S301 - written by a worker of this loader
                continue
            sample = next(read)
            samples.append(sample)
            if not self._region.full:
                data = pickle.dumps(sample, protocol=5)
                self._region.add(index, [_LENGTH.pack(len(data)), data])
        return self._fetch.collated(samples, allocate)
