"""Which chunks of a damaged shard are damaged."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

from unistore.errors import StoreError, UnsupportedError
from unistore.integrity.shard_index import index_problem
from unistore.store.names import ROOT
from unistore.zarr3.array import Array
from unistore.zarr3.storage import Storage

_SHOWN = 3


def owning_array(key: str, paths: Iterable[str]) -> str | None:
    """Path of the array that a shard or ``zarr.json`` belongs to, or None."""
    owners = [path for path in paths if key.startswith(f"{path}/c/") or key == f"{path}/{ROOT}"]
    return max(owners, key=len, default=None)


def locate_damage(storage: Storage, path: str, key: str) -> str:
    """Which chunks of a shard do not decode, in words; ``""`` if that cannot be found out.

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
    """Coordinates of the chunks of a shard that begin inside the array."""
    assert array.shard_shape is not None
    ranges = []
    for at, large, small, extent in zip(
        shard, array.shard_shape, array.chunk_shape, array.shape, strict=True
    ):
        ranges.append(range(at * large // small, -(-min(extent, (at + 1) * large) // small)))
    return product(*ranges)


def _decodes(array: Array, chunk: tuple[int, ...]) -> bool:
    lo = [at * step for at, step in zip(chunk, array.chunk_shape, strict=True)]
    hi = [min(at + step, size) for at, step, size in zip(lo, array.chunk_shape, array.shape, strict=True)]
    try:
        array.read_box(lo, hi)
    except StoreError:
        return False
    return True
