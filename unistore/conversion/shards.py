"""Shards of planned arrays: metadata, keys, and writing each as one file."""

from __future__ import annotations

import numpy as np

from unistore.conversion.columns import Column
from unistore.conversion.plan import ArrayPlan
from unistore.conversion.target import Files
from unistore.store.manifest import Entry
from unistore.zarr3.metadata import ArrayMetadata
from unistore.zarr3.presets import array_metadata
from unistore.zarr3.threads import OrderedMap, serial_map
from unistore.zarr3.writer import iter_shard_buffers


def metadata_of(array: ArrayPlan) -> ArrayMetadata:
    """Zarr metadata of a planned array."""
    return array_metadata(
        array.shape,
        np.dtype(array.field.dtype),
        array.chunk,
        array.shard,
        array.codec,
        fill=array.field.fill,
        attributes=array.field.described,
        dimension_names=array.field.axes,
    )


def shard_key(array: ArrayPlan, number: int) -> str:
    """Key of the shard that begins at row ``number * shard[0]``; shards span whole rows."""
    return "/".join([array.field.path, "c", str(number), *("0" for _ in array.shape[1:])])


def write_column(files: Files, number: int, column: Column, ordered_map: OrderedMap = serial_map) -> Entry:
    """Encode a column's rows block by block and write them as shard `number` of its array."""
    array = column.array
    metadata = metadata_of(array)
    at = (number, *(0 for _ in array.shape[1:]))
    blocks = (block for _, block in column)
    written = files.put(shard_key(array, number), iter_shard_buffers(metadata, at, blocks, ordered_map))
    return Entry(
        key=written.key,
        bytes=written.bytes,
        checksum=written.checksum,
        rows=column.rows,
        content=column.content,
    )
