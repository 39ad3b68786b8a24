"""``sharding_indexed``: many chunks in one object, and behind them an index (Zarr v3 sharding codec).

The index has a pair (offset, size) of 64-bit numbers for each chunk, in C order, and a crc32c.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unistore.zarr3.codecs import CRC_BYTES, FrameError, check_chunk, crc32c

EMPTY = -1
"""Offset and size of an absent chunk: 2**64 - 1 as a signed number (sharding codec, "Empty chunks")."""
_ENTRY_BYTES = 16


def sharding_document(chunk_shape: Any, codecs: Any) -> dict[str, Any]:
    """Return the sharding codec as ``zarr.json`` lists it."""
    configuration = {
        "chunk_shape": chunk_shape,
        "codecs": codecs,
        "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        "index_location": "end",
    }
    return {"name": "sharding_indexed", "configuration": configuration}


def index_bytes(chunks: int) -> int:
    """Return the bytes of the index of a shard of `chunks` chunks."""
    return _ENTRY_BYTES * chunks + CRC_BYTES


def encode_index(entries: NDArray[np.int64]) -> bytes:
    """Encode (chunks, 2) offsets and sizes; `EMPTY` in both marks an absent chunk."""
    raw = entries.astype("<i8").tobytes()
    checksum: int = crc32c(raw)
    return raw + checksum.to_bytes(CRC_BYTES, "little")


def decode_index(raw: bytes, shard_bytes: int, most: int) -> NDArray[np.int64]:
    """Decode and check the index of a shard of `shard_bytes` bytes.

    Returns (chunks, 2): offset and size of every chunk, `EMPTY` in both where it is absent. Raises
    `FrameError` if the checksum differs, an entry lies outside, or a chunk has more than `most` bytes.
    """
    pairs = np.frombuffer(raw, "<i8", (len(raw) - CRC_BYTES) // 8)
    try:
        check_chunk(pairs, raw[-CRC_BYTES:])
    except FrameError as error:
        msg = f"shard index: {error}"
        raise FrameError(msg) from error
    entries = pairs.reshape(-1, 2)
    offset = entries[:, 0]
    size = entries[:, 1]
    absent = (offset == EMPTY) & (size == EMPTY)
    # written without a sum, which hostile entries would overflow
    inside = (offset >= 0) & (size >= 0) & (size <= shard_bytes) & (offset <= shard_bytes - size)
    outside = np.flatnonzero(~(absent | inside))
    if len(outside):
        first, count = entries[outside[0]].view(np.uint64).tolist()
        place = f"chunk {outside[0]} at {first}+{count}"
        msg = f"shard index puts {place}, outside the shard of {shard_bytes} bytes"
        raise FrameError(msg)
    if (size > most).any():
        msg = f"shard index puts a chunk at {size.max()} bytes, more than {most} encoded ones"
        raise FrameError(msg)
    return entries
