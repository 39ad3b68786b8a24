"""Read chunks by the kernel, compressed by blosc or not at all, from files in the page cache."""

# Where something is not as expected, a function returns False, and leaves anything in the output. Python then
# reads, and says what is wrong. No decoded chunk is kept

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numcodecs import blosc  # type: ignore[attr-defined]

from unistore.errors import StoreError
from unistore.system.kernel import kernel
from unistore.system.types import AnyArray
from unistore.zarr3.chunks import ChunkLocations, ChunkReader, RowRange
from unistore.zarr3.storage import MAX_OPEN_FILES, LocalStorage

# More are read by Python: the kernel looks at every range that overlaps a chunk
_MOST_RANGES = 4096


@cache
def compiled_functions() -> tuple[int, int] | None:
    """Return addresses of blosc's decoder and of crc32c in their libraries, None where these hide them."""
    try:
        from google_crc32c import _crc32c

        functions = (
            ctypes.CDLL(blosc.__file__).blosc_decompress_ctx,
            ctypes.CDLL(_crc32c.__file__).crc32c_value,
        )
    except (ImportError, OSError, AttributeError):
        return None
    decompress, checksum = (ctypes.cast(function, ctypes.c_void_p).value for function in functions)
    return (decompress, checksum) if decompress and checksum else None


def can_read(reader: ChunkReader) -> bool:
    """Return whether the kernel can read chunks now. From a disk, Python prefetches them."""
    storage = reader.storage
    return (
        reader.is_compiled
        and reader.shared is None
        and isinstance(storage, LocalStorage)
        and not storage.reads_disk
        and kernel() is not None
        and compiled_functions() is not None
    )


def read_ranges(reader: ChunkReader, ranges: Sequence[RowRange], out: AnyArray) -> bool:
    """Read ranges (first row, end, place in the output), which are longer than chunks of whole rows."""
    metadata = reader.metadata
    step = metadata.chunk_shape[0]
    # parts of chunks that are read again and again are in the cache of the process
    if len(ranges) > _MOST_RANGES or len(out) < len(ranges) * step or not can_read(reader):
        return False
    # chunks are whole rows, and numbered as these are
    if metadata.chunk_shape[1:] != metadata.shape[1:] or reader.row_stride != 1:
        return False
    storage = reader.storage
    assert isinstance(storage, LocalStorage)
    rows = sorted(triple for triple in ranges if triple[0] < triple[1])
    shards = []
    in_use: list[Any] = []
    end = 0
    try:
        for start, stop, _ in rows:
            chunk = max(end, start // step)
            while chunk * step < stop:
                shard = reader.find_shard(chunk)
                file = storage.file(shard.key)
                entries = np.frombuffer(shard.entries, np.int64)
                in_use.append((file, entries))
                shards.append((shard.first, shard.end, file.fd, entries.ctypes.data, len(entries)))
                chunk = end = shard.end
                if len(shards) > MAX_OPEN_FILES:
                    return False
    except StoreError:
        return False
    row_table = np.array(rows, np.int64)
    shard_table = np.array(shards, np.int64)
    tables = row_table.ctypes.data, len(rows), shard_table.ctypes.data, len(shards)
    form = step, metadata.chunk_bytes // step
    return _call("unistore_read_ranges", reader, *tables, *form, out.ctypes.data, len(out))


def read_boxes(
    reader: ChunkReader,
    located: ChunkLocations,
    selections: Sequence[Sequence[Any]],  # of each chunk: pairs of its slices and those of the output
    out: AnyArray,
) -> bool:
    """Read parts of chunks."""
    storage = reader.storage
    assert isinstance(storage, LocalStorage)
    files = []
    key: str | None = None
    boxes: list[int] = []
    try:
        for position, places in enumerate(selections):
            if located.keys[position] != key:
                key = located.keys[position]
                files.append(storage.file(key))
                if len(files) > MAX_OPEN_FILES:
                    return False
            frame = files[-1].fd, located.offsets[position], located.sizes[position]
            for source, place in places:
                boxes += frame
                for inner, outer in zip(source, place, strict=True):
                    start = inner.start
                    boxes += start, outer.start, inner.stop - start
    except StoreError:
        return False
    axes = len(selections[0][0][0])
    chunk_shape = reader.metadata.chunk_shape[:axes]
    table = np.array(boxes, np.int64)
    shapes = np.array([chunk_shape, out.shape[:axes]], np.int64)
    itemsize = reader.metadata.chunk_bytes // math.prod(chunk_shape)
    form = axes, shapes.ctypes.data, itemsize
    return _call(
        "unistore_read_boxes", reader, table.ctypes.data, len(boxes) // (3 + 3 * axes), *form, out.ctypes.data
    )


def _call(function: str, reader: ChunkReader, *arguments: int) -> bool:
    library = kernel()
    functions = compiled_functions()
    assert library is not None
    assert functions is not None
    decompress, checksum = functions
    frame = np.empty(reader.max_encoded, np.uint8)
    chunk = np.empty(reader.metadata.chunk_bytes, np.uint8)
    memory = frame.ctypes.data, len(frame), chunk.ctypes.data
    failed: int = getattr(library, function)(
        *arguments, *memory, None if reader.metadata.compressor is None else decompress, checksum
    )
    return not failed
