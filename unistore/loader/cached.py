"""Reading through the cache: chunks of stores, and samples of which nothing is random."""

from __future__ import annotations

import json
import math
import struct
import weakref
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from unistore.data.packed import Allocate, Batch, Packed, offsets_from_lengths
from unistore.data.parts import join_batches
from unistore.errors import InputError, Problem
from unistore.loader.cache import ALIGNMENT, CacheFile, CacheRegion, aligned
from unistore.loader.fetch import BatchFetch, Fetch
from unistore.system.hints import AnyArray, Int64s, Shape

# Format of a sample in the cache: bytes of its forms; the forms of its keys, the same for most samples; the
# lengths of all axes in which samples differ; the values by key.

_LENGTH = struct.Struct("<q")


class _Form(NamedTuple):
    """Form of the values of one key."""

    key: str
    dtype: str
    row_shape: Shape
    axes: int  # axes before those of a row, whose lengths differ: 0 dense, 1 ragged, all of a box
    boxed: bool
    group: str


def dump_sample(batch: Batch, number: int) -> list[bytes]:
    """Return the buffers of a sample: bytes of its forms, forms, lengths, and values by key."""
    forms = []
    lengths: list[int] = []
    buffers = []
    for key, packed in batch.items():
        values = packed[number]
        boxed = packed.shapes is not None
        ragged_axes = 0 if packed.offsets is None else 1
        axes = values.ndim if boxed else ragged_axes
        lengths += values.shape[:axes]
        forms.append(_Form(key, values.dtype.str, values.shape[axes:], axes, boxed, packed.group))
        buffers.append(values.tobytes())
    described = json.dumps(forms).encode()
    return [_LENGTH.pack(len(described)), described, np.array(lengths, np.int64).tobytes(), *buffers]


@lru_cache(64)
def _parse_forms(described: bytes) -> list[_Form]:
    fields = [_Form(*values) for values in json.loads(described)]
    return [form._replace(row_shape=tuple(form.row_shape)) for form in fields]


def load_samples(region: CacheRegion, offsets: Int64s, described: bytes, allocate: Allocate) -> Batch:
    """Copy samples of the same forms, at their offsets (B,) in the cache."""
    forms = _parse_forms(described)
    count = sum(form.axes for form in forms)
    first = offsets + ALIGNMENT + aligned(len(described))
    lengths = region.numbers(first, count)
    starts = first + aligned(8 * count)
    group_offsets: dict[str, Int64s] = {}
    axis = 0
    batch: Batch = {}
    for form in forms:
        shapes = lengths[:, axis : axis + form.axes].copy()
        axis += form.axes
        dtype = np.dtype(form.dtype)
        rows = shapes.prod(axis=1)
        sizes = rows * (math.prod(form.row_shape) * dtype.itemsize)
        if form.axes:
            own = group_offsets.setdefault(form.group, offsets_from_lengths(rows))
            out = allocate((int(own[-1]), *form.row_shape), dtype)
            batch[form.key] = Packed(out, own, form.group, shapes if form.boxed else None)
        else:
            out = allocate((len(offsets), *form.row_shape), dtype)
            batch[form.key] = Packed(out)
        region.copy(starts, sizes, out)
        starts = starts + aligned(sizes)
    return batch


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
        self.hits += len(offsets) - len(missing)
        self.misses += len(missing)
        if len(missing) == len(offsets):
            return self._read(indices, epoch, allocate)
        of_forms: dict[bytes, list[int]] = {}
        for number, described in enumerate(self._described(offsets)):
            of_forms.setdefault(described, []).append(number)
        of_forms.pop(b"", None)
        if len(of_forms) == 1 and not len(missing):
            return load_samples(self._region, offsets, next(iter(of_forms)), allocate)
        positions = [np.array(numbers) for numbers in of_forms.values()]
        parts = [
            load_samples(self._region, offsets[numbers], described, np.empty)
            for described, numbers in zip(of_forms, positions, strict=True)
        ]
        if len(missing):
            parts.append(self._read(indices[missing], epoch, np.empty))
            positions.append(missing)
        return join_batches(parts, positions, allocate)

    def _described(self, offsets: Int64s) -> list[bytes]:
        """Return the forms of samples, b"" of those that are not cached."""
        # the header of the file stands at offset 0, where no sample is
        sizes = np.where(offsets > 0, self._region.numbers(offsets, 1)[:, 0], 0)
        places = zip(offsets.tolist(), sizes.tolist(), strict=True)
        return [bytes(self._region.view(offset + ALIGNMENT, size)) for offset, size in places]

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
            array.share(_SharedChunks(self, region, first))
            first += array.chunk_count
        weakref.finalize(self, _stop_sharing, arrays)

    def __call__(self, indices: Int64s, epoch: int, allocate: Allocate) -> Any:
        """Return the batch of some samples, (B,)."""
        return self._fetch(indices, epoch, allocate)


def _stop_sharing(arrays: Sequence[Any]) -> None:
    for array in arrays:
        array.share(None)


class _SharedChunks:
    def __init__(self, counters: CachedChunks, region: CacheRegion, first: int) -> None:
        self._counters: Any = weakref.proxy(counters)
        self._region = region
        self._first = first

    @property
    def full(self) -> bool:
        return self._region.full

    def get(self, number: int, shape: Shape, dtype: np.dtype[Any]) -> AnyArray | None:
        offset = self._region.find(self._first + number)
        if not offset:
            self._counters.misses += 1
            return None
        self._counters.hits += 1
        return self._region.array(int(offset), shape, dtype)

    def add(self, number: int, chunk: AnyArray) -> None:
        if not self._region.full:
            self._region.add(self._first + number, [chunk.tobytes()])
