"""Format of a sample in the cache: a description, and one buffer for each key."""

from __future__ import annotations

import json
import struct
from functools import lru_cache
from typing import Any

import numpy as np

from unistore.data.packed import Batch, Packed
from unistore.loader.cache import ALIGNMENT, CacheRegion, aligned

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
    """Return name, dtype and shape of the values of each key, and the other fields of its `Packed`."""
    keys = []
    for key, dtype, stored, is_ragged, group, box in json.loads(description):
        shape = stored if is_ragged else [1, *stored]
        offsets = np.array([0, shape[0]]) if is_ragged else None
        shapes = None if box is None else np.array([box])
        keys.append((key, np.dtype(dtype), tuple(shape), offsets, group, shapes))
    return keys
