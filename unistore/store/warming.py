"""``warm_cache``: copy a store's objects to this machine before a training begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from unistore.errors import InputError, StoreError
from unistore.schemas.indices import sample_ranges
from unistore.store.manifest import Entry, parse_manifest
from unistore.store.names import MANIFEST
from unistore.store.reader import CACHE_LIMIT, Store
from unistore.store.shard_cache import CachedStorage
from unistore.system.hints import PathLike
from unistore.system.progress import NO_PROGRESS, Progress
from unistore.system.sizes import parse_bytes, size


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmed:
    """Objects of a store that are in the cache now, and their bytes."""

    store: str
    files: int
    bytes: int


def warm_cache(
    store: PathLike,
    cache_dir: PathLike,
    *,
    cache_limit: str | int = CACHE_LIMIT,
    split: str | None = None,
    progress: Progress = NO_PROGRESS,
) -> Warmed:
    """Copy the objects of a store into the `cache_dir` of its datasets, 16 requests at a time.

    Parameters
    ----------
    store
        URL of a store, or a folder on a slow file system.
    cache_dir, cache_limit
        As of `unistore.Dataset`.
    split
        Copy only shards with rows of the samples of this split. None: everything.
    progress
        An object with ``begin``, ``advance`` and ``tell``.

    Raises
    ------
    InputError
        If the objects exceed the limit, or the store has no such split.
    StoreError
        If an object cannot be read or is damaged.
    """
    opened = Store(store, cache_dir=cache_dir, cache_limit=cache_limit)
    storage = opened.storage
    assert isinstance(storage, CachedStorage)
    entries = {entry.key: entry for entry in parse_manifest(opened.read(MANIFEST), opened.path)}
    if split is not None:
        entries = _of_split(opened, entries, split)
    total = sum(entry.bytes for entry in entries.values())
    if total > parse_bytes(cache_limit, "cache_limit"):
        msg = f"{opened.path}: {size(total)} to copy, and the cache may hold {cache_limit}: raise cache_limit"
        raise InputError(msg)
    progress.begin("fetching", total)
    for entry, is_intact in zip(entries.values(), storage.fetch(list(entries)), strict=True):
        if not is_intact:
            msg = f"{opened.path}: {entry.key} is missing or damaged; run 'unistore verify {opened.path}'"
            raise StoreError(msg)
        progress.advance(entry.bytes)
    return Warmed(store=opened.path, files=len(entries), bytes=total)


def _of_split(store: Store, entries: Mapping[str, Entry], split: str) -> dict[str, Entry]:
    # Shards of the main table are left out if none of their rows is of the split
    codes, names = store.splits()
    if split not in names:
        msg = f"{store.path}: no split {split!r}; it has: {', '.join(names) or 'none'}"
        raise InputError(msg)
    samples = np.flatnonzero(codes == names.index(split))
    main = store.attributes.get("main_table", store.sample_table)
    ranges = sample_ranges(store, main)
    if ranges is None:
        return dict(entries)
    starts, stops = (bounds[samples] for bounds in ranges)
    chosen = {}
    for key, entry in entries.items():
        lo, hi = entry.rows or (0, 0)
        is_shard = entry.rows is not None and key.startswith(f"{main}/")
        if not is_shard or np.any((starts < hi) & (stops > lo)):
            chosen[key] = entry
    return chosen
