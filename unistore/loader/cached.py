"""Fetching through the cache: what is there is copied, what is missing is read and kept."""

from __future__ import annotations

import json
import pickle
import struct
import warnings
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from unistore.data.packed import Allocate, Batch, Packed, offsets_from_lengths
from unistore.errors import InputError, Problem
from unistore.loader.cache import ALIGNMENT, CacheRegion
from unistore.loader.fetch import BatchFetch, Fetch, SampleFetch

__all__ = ["cached", "check_cacheable", "shared_name", "warn_of_random"]

_LENGTH = struct.Struct("<Q")
_LOOKED_AT = 16
"""Samples, spread over the dataset, by which it is told whether any can be cached."""
_VERSION = 1
"""Of how samples lie in the file."""


class _Value(NamedTuple):
    """One key of one sample: how it lies in memory, and where.

    ``axes`` leads from the order of memory back to the array's: ``stored.transpose(axes)``.
    """

    dtype: str
    shape: tuple[int, ...]
    axes: tuple[int, ...] | None
    ragged: bool
    group: str
    box: tuple[int, ...] | None


def cached(fetch: Fetch, region: CacheRegion) -> Fetch:
    """Return a fetch that looks into the cache first."""
    check_cacheable(fetch)
    if isinstance(fetch, BatchFetch):
        return CachedBatches(fetch, region)
    assert isinstance(fetch, SampleFetch)
    return CachedSamples(fetch, region)


def check_cacheable(fetch: Fetch) -> None:
    """Refuse what must not be kept.

    Raises
    ------
    InputError
        Samples are made by a transform of a dataset that reads batches, and may be random.
    """
    if isinstance(fetch, BatchFetch) or (isinstance(fetch, SampleFetch) and not fetch.carry_epoch):
        return
    message = "keeps samples as they are stored, and here a transform or collate_fn makes others of them"
    raise InputError(Problem("cache", message, kind="option"))


def warn_of_random(dataset: Any) -> None:
    """Warn that a cache stays empty where all samples are random; some are looked at, none is read."""
    drawn = getattr(dataset, "drawn", None)
    if drawn is None or not len(dataset):
        return
    some = np.unique(np.linspace(0, len(dataset) - 1, _LOOKED_AT).astype(np.int64))
    if drawn(some).all():
        kind = getattr(dataset, "samples", "samples")
        warnings.warn(
            f"cache: nothing will be kept: every sample of {kind} is random, another one the next epoch; "
            "leave cache out, or take samples that are not random (random=False, no max_points)",
            stacklevel=3,
        )


def shared_name(fetch: Fetch, dataset: Any, capacity: int) -> str | None:
    """Name of the cache that all loaders of a dataset's samples share; None: it is one loader's own.

    Equal names mean equal samples, and an equal file: a dataset that has a ``digest`` of its samples, opened
    in the same folder by the same path, with the same fields, and the same capacity. Files of pickled samples
    are not shared.
    """
    digest = getattr(dataset, "digest", None)
    if not isinstance(fetch, BatchFetch) or not isinstance(digest, str):
        return None
    said = [_VERSION, str(Path.cwd()), getattr(dataset, "path", ""), digest, getattr(dataset, "fields", None)]
    said += [len(dataset), capacity]
    return xxhash.xxh3_128_hexdigest(json.dumps(said).encode())


class CachedBatches:
    """A cache in front of a dataset that reads whole batches.

    Samples for which anything random was drawn are not kept: they are others the next epoch.

    Parameters
    ----------
    fetch
        Reads what is missing.
    region
        The cache.
    """

    packed = True

    def __init__(self, fetch: BatchFetch, region: CacheRegion) -> None:
        self._fetch = fetch
        self._region = region
        self.hits = self.misses = 0

    def __call__(self, indices: Sequence[int], epoch: int, allocate: Allocate) -> Batch:
        """See `Fetch`."""
        wanted = np.asarray(indices, np.int64)
        places = self._region.find(wanted)
        missing = np.flatnonzero(places == 0)
        self.hits += len(wanted) - len(missing)
        self.misses += len(missing)
        if len(missing) == len(wanted):
            return self._read(indices, epoch, allocate)
        read = self._read(wanted[missing].tolist(), epoch, np.empty) if len(missing) else {}
        return _assemble(self._region, places, missing, read, allocate)

    def _read(self, indices: Sequence[int], epoch: int, allocate: Allocate) -> Batch:
        batch, drawn = self._fetch.watched(indices, epoch, allocate)
        for number in np.flatnonzero(~drawn).tolist():
            if self._region.full:
                break
            self._region.add(indices[number], _parts(batch, number))
        return batch


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
        places = self._region.find(np.asarray(indices, np.int64)).tolist()
        missing = [index for index, place in zip(indices, places, strict=True) if not place]
        self.hits += len(indices) - len(missing)
        self.misses += len(missing)
        read = iter(self._fetch.samples(missing, epoch) if missing else ())
        samples = []
        for index, place in zip(indices, places, strict=True):
            if place:
                (size,) = _LENGTH.unpack(self._region.view(place, _LENGTH.size))
                kept = self._region.view(place + ALIGNMENT, size)
                samples.append(pickle.loads(kept))  # noqa: S301 - written by a worker of this loader
                continue
            sample = next(read)
            samples.append(sample)
            if not self._region.full:
                data = pickle.dumps(sample, protocol=5)
                self._region.add(index, [_LENGTH.pack(len(data)), data])
        return self._fetch.collated(samples, allocate)


def _parts(batch: Batch, number: int) -> list[Any]:
    """A sample of a packed batch as buffers: length of the description, description, one a key."""
    described: dict[str, _Value] = {}
    buffers: list[Any] = []
    for key, packed in batch.items():
        value = packed.values[number, ...] if packed.offsets is None else _ragged_part(packed, number)
        axes = None
        if not value.flags.c_contiguous:
            order = sorted(range(value.ndim), key=lambda axis: -abs(value.strides[axis]))
            value, axes = value.transpose(order), tuple(np.argsort(order).tolist())
        box = None if packed.shapes is None else tuple(packed.shapes[number].tolist())
        ragged = packed.offsets is not None
        described[key] = _Value(value.dtype.str, value.shape, axes, ragged, packed.group, box)
        buffers.append(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
    description = json.dumps(described).encode()
    return [_LENGTH.pack(len(description)), description, *buffers]


def _ragged_part(packed: Packed, number: int) -> NDArray[Any]:
    assert packed.offsets is not None
    return packed.values[packed.offsets[number] : packed.offsets[number + 1]]


def _stored(region: CacheRegion, place: int) -> dict[str, tuple[_Value, NDArray[Any]]]:
    """A cached sample: description and array, as it lies in memory, of every key."""
    (size,) = _LENGTH.unpack(region.view(place, _LENGTH.size))
    place += ALIGNMENT
    described = _described(bytes(region.view(place, size)))
    place += -(-size // ALIGNMENT) * ALIGNMENT
    found = {}
    for key, value in described.items():
        array = region.array(place, value.shape, np.dtype(value.dtype))
        found[key] = value, array
        place += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    return found


@lru_cache(1024)
def _described(description: bytes) -> dict[str, _Value]:
    """Keys of a sample; samples of equal shapes have equal descriptions."""
    return {
        key: _Value(dtype, tuple(shape), axes and tuple(axes), ragged, group, box and tuple(box))
        for key, (dtype, shape, axes, ragged, group, box) in json.loads(description).items()
    }


def _assemble(
    region: CacheRegion,
    places: NDArray[np.int64],
    missing: NDArray[np.int64],
    read: Batch,
    allocate: Allocate,
) -> Batch:
    """A batch of cached samples, and of those that were read beside them."""
    number_of = dict(zip(missing.tolist(), range(len(missing)), strict=True))
    samples = [_stored(region, place) if place else None for place in places.tolist()]
    first = next(sample for sample in samples if sample is not None)
    batch: Batch = {}
    for key, (value, _) in first.items():
        arrays: list[NDArray[Any]] = []
        boxes: list[tuple[int, ...]] = []
        for at, sample in enumerate(samples):
            if sample is not None:
                found, array = sample[key]
                arrays.append(array)
                boxes.append(found.box or ())
                continue
            packed, number = read[key], number_of[at]
            plain = packed.values[number, ...] if packed.offsets is None else _ragged_part(packed, number)
            arrays.append(plain if value.axes is None else plain.transpose(np.argsort(value.axes)))
            boxes.append(() if packed.shapes is None else tuple(packed.shapes[number].tolist()))
        batch[key] = _joined(value, arrays, boxes, allocate)
    return batch


def _joined(
    value: _Value, arrays: list[NDArray[Any]], boxes: list[tuple[int, ...]], allocate: Allocate
) -> Packed:
    dtype = np.result_type(*{array.dtype for array in arrays})
    if value.ragged:
        offsets = offsets_from_lengths(np.array([len(array) for array in arrays]))
        out = allocate((int(offsets[-1]), *arrays[0].shape[1:]), dtype)
        np.concatenate(arrays, out=out)
        shapes = None if value.box is None else np.array(boxes, np.int64)
        return Packed(out, offsets, value.group, shapes)
    out = allocate((len(arrays), *arrays[0].shape), dtype)
    np.stack(arrays, out=out)
    if value.axes is not None:
        out = out.transpose(0, *(axis + 1 for axis in value.axes))
    return Packed(out, None, value.group)
