"""Shards of planned arrays: encoded, and written as one file each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from unistore.conversion.plan import ArrayPlan, ShardTask
from unistore.conversion.planes import Parts
from unistore.conversion.repeated import Repeated
from unistore.conversion.target import Files
from unistore.store.manifest import Entry
from unistore.zarr3.metadata import ArrayMetadata
from unistore.zarr3.threads import Spread, in_turn
from unistore.zarr3.writer import (
    array_metadata,
    content_bytes,
    content_digest,
    encode_parts,
    encode_rows,
    encoded_shard,
)

__all__ = [
    "BLOCK",
    "IndexValues",
    "index_content",
    "metadata_of",
    "shard_key",
    "write_array",
    "write_index",
    "write_parts",
]

BLOCK = 4 << 20
"""Bytes of an index array that are taken at a time, or one chunk where that is more."""

IndexValues: TypeAlias = NDArray[Any] | Repeated
"""Values of an index array, rows on axis 0."""


def metadata_of(array: ArrayPlan, codec: str) -> ArrayMetadata:
    """Zarr metadata of a planned array."""
    return array_metadata(
        array.shape,
        np.dtype(array.field.dtype),
        array.chunk,
        array.shard,
        codec,
        fill=array.field.fill,
        attributes=dict(array.field.attributes),
        dimension_names=array.field.axes,
    )


def shard_key(array: ArrayPlan, number: int) -> str:
    """Key of the shard that holds rows ``number * shard rows`` onwards (shards span whole rows)."""
    return "/".join([array.field.path, "c", str(number), *("0" for _ in array.shape[1:])])


def write_array(
    files: Files,
    array: ArrayPlan,
    codec: str,
    number: int,
    lo: int,
    block: NDArray[Any],
    content: str | None = None,
    spread: Spread = in_turn,
) -> Entry:
    """Encode rows from `lo` on as shard `number` of an array and write it.

    `content` is their digest, where it is known.
    """
    metadata = metadata_of(array, codec)
    key = shard_key(array, number)
    at = (number, *(0 for _ in array.shape[1:]))
    written = files.put(key, encoded_shard(metadata, at, block, spread))
    return Entry(
        key=key,
        bytes=written.bytes,
        checksum=written.checksum,
        rows=(lo, lo + len(block)),
        content=content or content_digest(block),
    )


def write_parts(files: Files, codec: str, task: ShardTask, parts: Parts, spread: Spread = in_turn) -> Entry:
    """Encode the rows of a task, given in parts, as a shard of their array and write it."""
    metadata = metadata_of(parts.array, codec)
    written = files.put(shard_key(parts.array, task.number), encode_parts(metadata, parts, spread))
    return Entry(
        key=written.key,
        bytes=written.bytes,
        checksum=written.checksum,
        rows=(task.lo, task.hi),
        content=parts.content,
    )


def write_index(files: Files, array: ArrayPlan, codec: str, number: int, values: IndexValues) -> Entry:
    """Encode shard `number` of an index array, given by all its values, and write it block by block."""
    digest = xxhash.xxh3_128()

    def blocks() -> Iterator[NDArray[Any]]:
        for block in _index_blocks(array, number, values):
            digest.update(content_bytes(block))
            yield block

    written = files.put(shard_key(array, number), encode_rows(metadata_of(array, codec), blocks()))
    lo = number * array.shard[0]
    return Entry(
        key=written.key,
        bytes=written.bytes,
        checksum=written.checksum,
        rows=(lo, min(lo + array.shard[0], len(values))),
        content=digest.hexdigest(),
    )


def index_content(array: ArrayPlan, number: int, values: IndexValues) -> str:
    """Content digest of shard `number` of an index array, given by all its values."""
    digest = xxhash.xxh3_128()
    for block in _index_blocks(array, number, values):
        digest.update(content_bytes(block))
    return digest.hexdigest()


def _index_blocks(array: ArrayPlan, number: int, values: IndexValues) -> Iterator[NDArray[Any]]:
    first = number * array.shard[0]
    last = min(first + array.shard[0], len(values))
    step = array.chunk[0] * max(1, BLOCK // (array.chunk[0] * max(1, array.field.row_bytes)))
    for lo in range(first, last, step):
        yield values[lo : min(lo + step, last)]
