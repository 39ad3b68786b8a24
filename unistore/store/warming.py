"""`warm_cache`: copy the objects of a store to this machine before a training begins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from unistore.errors import CorruptionError, InputError, StoreError
from unistore.schemas.indices import sample_ranges
from unistore.store.manifest import Entry, parse_manifest
from unistore.store.names import MANIFEST
from unistore.store.reader import CACHE_LIMIT, Store
from unistore.store.shard_cache import CachedStorage
from unistore.store.versions import OpenedStores, open_stores
from unistore.system.progress import NO_PROGRESS, Progress
from unistore.system.sizes import parse_bytes, size
from unistore.system.types import PathLike, VersionLike


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheReport:
    """Objects of a store that are in the cache.

    Attributes
    ----------
    store : str
        URL of the store.
    files, bytes : int
        Number of objects, and their size.
    """

    store: str
    files: int
    bytes: int


def warm_cache(
    store: PathLike,
    cache_dir: PathLike,
    *,
    cache_limit: str | int = CACHE_LIMIT,
    split: str | None = None,
    version: VersionLike = None,
    progress: Progress = NO_PROGRESS,
) -> CacheReport:
    """Copy the objects of a store to the `cache_dir` of its datasets, with 16 requests at a time.

    Parameters
    ----------
    store : path or URL
        URL of a store, or a folder on a slow file system.
    cache_dir : path
        Local folder for copies; see `unistore.Dataset`.
    cache_limit : str or int, default "20GB"
        Limit for all copies in `cache_dir`, in bytes or as text.
    split : str, optional
        Only shards with samples of this split. None: all.
    version : int or str, optional
        Number or name of the version of a versioned store. None: the newest.
    progress : Progress, optional
        An object with ``begin``, ``advance`` and ``tell``.

    Returns
    -------
    CacheReport
        The objects in the cache.

    Raises
    ------
    InputError
        If the objects exceed the limit, or the store has no such split.
    StoreError
        If an object cannot be read or is damaged.

    Examples
    --------
    >>> unistore.warm_cache("s3://bucket/train.zarr", "/scratch/cache", split="train")  # doctest: +SKIP
    >>> dataset = unistore.Dataset("s3://bucket/train.zarr", cache_dir="/scratch/cache")  # doctest: +SKIP
    """
    opened = open_stores(os.fspath(store), version, cache_dir=cache_dir, cache_limit=cache_limit)
    if split is not None:
        _check_split(opened, split)
    entries_of = [_entries(part, split) for part in opened.stores]
    files = sum(map(len, entries_of))
    total = sum(entry.bytes for entries in entries_of for entry in entries.values())
    if total > parse_bytes(cache_limit, "cache_limit"):
        message = f"has {size(total)} to copy, but the limit of the cache is {cache_limit}"
        raise InputError.at(opened.path, message, "raise cache_limit (--limit)", "option")
    progress.begin("fetching", total)
    for part, entries in zip(opened.stores, entries_of, strict=True):
        _copy(part, entries, progress)
    return CacheReport(store=opened.path, files=files, bytes=total)


def _copy(store: Store, entries: Mapping[str, Entry], progress: Progress) -> None:
    storage = store.storage
    assert isinstance(storage, CachedStorage)
    for entry, is_intact in zip(entries.values(), storage.fetch(list(entries)), strict=True):
        if not is_intact:
            # raises where the folder of copies is at fault, or the object cannot be read
            with suppress(CorruptionError):
                for _ in storage.read_many([entry.key], [0], [min(1, entry.bytes)]):
                    pass
            msg = f"{store.path}: {entry.key} is missing or damaged. Fix: unistore verify {store.path}"
            raise StoreError(msg)
        progress.advance(entry.bytes)


def _check_split(opened: OpenedStores, split: str) -> None:
    names: dict[str, None] = {}
    for store in opened.stores:
        names |= dict.fromkeys(store.splits()[1])
    if split not in names:
        message = f"there is no split {split!r}"
        fix = f"use one of {', '.join(names)}" if names else "leave the split out: the store has no splits"
        raise InputError.at(opened.path, message, fix, "split")


def _entries(store: Store, split: str | None) -> dict[str, Entry]:
    # Shards of the main table are left out if none of their rows is of the split
    entries = {entry.key: entry for entry in parse_manifest(store.read(MANIFEST), store.path)}
    if split is None:
        return entries
    codes, names = store.splits()
    numbers = [number for number, name in enumerate(names) if name == split]
    samples = np.flatnonzero(np.isin(codes, numbers))
    main = store.root.main_table
    ranges = sample_ranges(store, main)
    if ranges is None:
        return entries
    starts, stops = (bounds[samples] for bounds in ranges)
    chosen = {}
    for key, entry in entries.items():
        lo, hi = entry.rows or (0, 0)
        is_shard = entry.rows is not None and key.startswith(f"{main}/")
        if not is_shard or np.any((starts < hi) & (stops > lo)):
            chosen[key] = entry
    return chosen
