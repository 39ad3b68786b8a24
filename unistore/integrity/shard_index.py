"""Check the index of a shard."""

from __future__ import annotations

import numpy as np

from unistore.zarr3.frames import FrameError, max_encoded_size
from unistore.zarr3.metadata import ArrayMetadata
from unistore.zarr3.sharding import EMPTY
from unistore.zarr3.storage import Storage


def index_problem(storage: Storage, key: str, array: ArrayMetadata, size: int) -> str | None:
    """What is wrong with the index of a shard, or None.

    Its checksum must be right; chunks must lie in the shard, not overlap, and leave no byte unused.

    Parameters
    ----------
    storage, key
        Where the shard is.
    array
        Metadata of its array, which is sharded.
    size
        Bytes of the shard.
    """
    assert array.index is not None
    chunks = int(np.prod(array.chunks_per_object, dtype=np.int64))
    nbytes = array.index.nbytes(chunks)
    if size < nbytes:
        return f"has {size} bytes, less than its index of {nbytes}"
    raw = bytearray(nbytes)
    at_end = array.index.location == "end"
    storage.read_into(key, size - nbytes if at_end else 0, memoryview(raw))
    try:
        index = array.index.decode(bytes(raw), chunks, size, max_encoded_size(array.chunk_bytes))
    except FrameError as error:
        return str(error)
    present = index[index[:, 0] != EMPTY]
    present = present[np.argsort(present[:, 0])]
    first = 0 if at_end else nbytes
    ends = np.concatenate([[first], present.sum(axis=1)])
    if (present[:, 0] != ends[:-1]).any() or ends[-1] != first + size - nbytes:
        return "its index leaves bytes unused, or chunks overlap"
    return None
