"""Formats of a sample in the cache: a description and one buffer for each key, or a pickle."""

from __future__ import annotations

import json
import pickle
import struct
from functools import lru_cache
from typing import Any

import numpy as np

from unistore.data.packed import Batch, Packed
from unistore.loader.cache import ALIGNMENT, CacheRegion

_LENGTH = struct.Struct("<Q")


def dump_sample(batch: Batch, number: int) -> list[bytes]:
    """Buffers of a sample: length of its description, description, and values in memory order."""
    described, buffers = {}, []
    for key, packed in batch.items():
        if packed.offsets is None:
            values = packed.values[number, ...]
        else:
            values = packed.values[packed.offsets[number] : packed.offsets[number + 1]]
        order = list(range(values.ndim))
        if not values.flags.c_contiguous:
            order.sort(key=lambda axis: -abs(values.strides[axis]))
            values = values.transpose(order)
        box = None if packed.shapes is None else packed.shapes[number].tolist()
        ragged = packed.offsets is not None
        described[key] = values.dtype.str, values.shape, order, ragged, packed.group, box
        buffers.append(values.tobytes())
    description = json.dumps(described).encode()
    return [_LENGTH.pack(len(description)), description, *buffers]


def load_sample(region: CacheRegion, offset: int) -> Batch:
    """The batch of one sample: views of the cache."""
    description = _first_buffer(region, offset)
    offset += ALIGNMENT + -(-len(description) // ALIGNMENT) * ALIGNMENT
    batch: Batch = {}
    for key, dtype, shape, axes, offsets, group, shapes in _parse_description(bytes(description)):
        values = region.array(offset, shape, dtype)
        offset += -(-values.nbytes // ALIGNMENT) * ALIGNMENT
        batch[key] = Packed(values if axes is None else values.transpose(axes), offsets, group, shapes)
    return batch


def dump_pickled(sample: Any) -> list[bytes]:
    """Buffers of any sample: length of its pickle, and the pickle."""
    pickled = pickle.dumps(sample, protocol=5)
    return [_LENGTH.pack(len(pickled)), pickled]


def load_pickled(region: CacheRegion, offset: int) -> Any:
    """A copy of the sample."""
    return pickle.loads(_first_buffer(region, offset))  # noqa: S301 - written by a worker of this loader


def _first_buffer(region: CacheRegion, offset: int) -> memoryview:
    (size,) = _LENGTH.unpack(region.view(offset, _LENGTH.size))
    return region.view(offset + ALIGNMENT, size)


@lru_cache(4096)
def _parse_description(description: bytes) -> list[tuple[Any, ...]]:
    """For each key: name; dtype, shape and axes of the stored values; the other fields of `Packed`."""
    found = []
    for key, (dtype, stored, moved, ragged, group, box) in json.loads(description).items():
        shape = stored if ragged else [1, *stored]
        order = moved if ragged else [0, *(1 + axis for axis in moved)]
        axes = None if order == sorted(order) else np.argsort(order)
        offsets = np.array([0, shape[0]]) if ragged else None
        shapes = None if box is None else np.array([box])
        found.append((key, np.dtype(dtype), tuple(shape), axes, offsets, group, shapes))
    return found
