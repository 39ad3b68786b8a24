"""Where in a damaged shard the damage is."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import numpy as np

from unistore.errors import StoreError, UnsupportedError
from unistore.integrity.indexes import index_problem
from unistore.store.names import ROOT
from unistore.zarr3.array import Array
from unistore.zarr3.storage import Storage

__all__ = ["array_of", "where_damaged"]

_SHOWN = 3


def array_of(key: str, paths: Iterable[str]) -> str | None:
    """Path of the array that a shard or ``zarr.json`` belongs to; None if it belongs to none of `paths`."""
    owners = [path for path in paths if key.startswith(f"{path}/c/") or key == f"{path}/{ROOT}"]
    return max(owners, key=len, default=None)


def where_damaged(storage: Storage, path: str, key: str) -> str:
    """Say which chunks of a shard do not decode; ``""`` if that cannot be told.

    Parameters
    ----------
    storage
        Where the store lies.
    path
        Path of the array.
    key
        Key of the shard; its array's ``zarr.json`` must be sound.
    """
    try:
        array = Array.open(storage, path, sealed=True)
        shard = [int(part) for part in key.removeprefix(f"{path}/c/").split("/")]
    except (StoreError, UnsupportedError, ValueError):
        return ""
    if len(shard) != len(array.shape) or array.shard_shape is None:
        return ""
    size = storage.size(key)
    reason = None if size is None else index_problem(storage, key, array.metadata, size)
    if reason is not None:
        return f"none of its chunks can be found: {reason}"
    damaged = [chunk for chunk in _chunks(array, shard) if not _decodes(array, chunk)]
    if not damaged:
        return "all of its chunks decode"
    named = ", ".join(str(chunk) for chunk in damaged[:_SHOWN])
    more = f" and {len(damaged) - _SHOWN} more" if len(damaged) > _SHOWN else ""
    rows = array.chunk_shape[0]
    lo, hi = damaged[0][0] * rows, min(array.shape[0], (damaged[-1][0] + 1) * rows)
    return f"damaged: chunk {named}{more}, in rows {lo}:{hi}"


def _chunks(array: Array, shard: list[int]) -> Iterable[tuple[int, ...]]:
    """Coordinates of the chunks of a shard that lie in the array."""
    assert array.shard_shape is not None
    ranges = []
    for at, large, small, extent in zip(
        shard, array.shard_shape, array.chunk_shape, array.shape, strict=True
    ):
        ranges.append(range(at * large // small, -(-min(extent, (at + 1) * large) // small)))
    return product(*ranges)


def _decodes(array: Array, chunk: tuple[int, ...]) -> bool:
    lo = [at * step for at, step in zip(chunk, array.chunk_shape, strict=True)]
    try:
        _read(array, lo, array.chunk_shape)
    except StoreError:
        return False
    return True


def _read(array: Array, lo: list[int], extent: Iterable[int]) -> Any:
    hi = [min(a + e, whole) for a, e, whole in zip(lo, extent, array.shape, strict=True)]
    return array.read_box(lo, np.maximum(lo, hi).tolist())
