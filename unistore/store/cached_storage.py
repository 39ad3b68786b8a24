"""`CachedStorage`: the storage of a sealed store with a cache of local copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any

import xxhash

from unistore.errors import CorruptionError
from unistore.remote.shard_cache import ShardCache
from unistore.store.manifest import MANIFEST_LIMIT, parse_manifest
from unistore.store.names import MANIFEST
from unistore.zarr3.storage import DOCUMENT_LIMIT, AbsentError, LocalStorage, Storage

MAX_ATTEMPTS = 5
"""Attempts to read a copy that other processes keep evicting; then the store is read instead."""


class CachedStorage:
    """Reads objects from local copies; an object is fetched whole and verified on first use.

    Sizes and checksums come from the store's manifest, which is read on first use and kept like them. Objects
    that do not fit into the cache are read from the store directly. `manifest` is the manifest's checksum,
    from the seal.
    """

    def __init__(self, inner: Storage, cache: ShardCache, manifest: str) -> None:
        self.fork_safe = inner.fork_safe
        self._inner = inner
        self._cache = cache
        self._manifest_checksum = manifest
        self._size_and_checksum: dict[str, tuple[int, str]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._inner, self._cache, self._manifest_checksum)

    def __repr__(self) -> str:
        return repr(self._inner)

    def get(self, key: str, limit: int = DOCUMENT_LIMIT) -> bytes:
        """Content of an object; see `Storage.get`."""
        size = self._listed_size(key)
        if size is None or size > limit:
            return self._inner.get(key, limit)
        return next(self.read_many([key], [0], [size]))

    def size(self, key: str) -> int | None:
        """Size of an object in bytes, or None; see `Storage.size`."""
        size = self._listed_size(key)
        return self._inner.size(key) if size is None else size

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        """Fill `out`; see `Storage.read_into`."""
        for raw in self.read_many([key], [offset], [len(out)]):
            out[:] = raw

    def read_many(self, keys: Sequence[str], offsets: Sequence[int], sizes: Sequence[int]) -> Iterator[bytes]:
        """Read many ranges; see `Storage.read_many`."""
        local = LocalStorage(self._cache.folder)  # for this call only: an open copy keeps its disk space
        for key, group in groupby(range(len(keys)), keys.__getitem__):
            positions = list(group)
            part = slice(positions[0], positions[-1] + 1)
            yield from self._read(local, key, offsets[part], sizes[part])

    def _read(
        self, local: LocalStorage, key: str, offsets: Sequence[int], sizes: Sequence[int]
    ) -> Iterator[bytes]:
        entry = self._entries().get(key)
        for _ in range(MAX_ATTEMPTS):
            if entry is None:
                break
            size, checksum = entry
            what = f"{self._inner!r}: {key}"
            if not self._cache.ensure(checksum, size, partial(self._fetch, key, size), what):
                break
            copies = local.read_many([self._cache.path(checksum)] * len(sizes), offsets, sizes)
            try:
                first = next(copies)
            except AbsentError:  # evicted by another process before it was opened
                self._cache.invalidate(checksum)
                continue
            yield first
            yield from copies
            return
        yield from self._inner.read_many([key] * len(sizes), offsets, sizes)

    def _fetch(self, key: str, size: int) -> Iterable[bytes]:
        """Content of an object in pieces of one request each."""
        from unistore.remote.object_storage import LIMIT

        starts = range(0, size, LIMIT)
        sizes = [min(LIMIT, size - start) for start in starts]
        return self._inner.read_many([key] * len(starts), starts, sizes)

    def _listed_size(self, key: str) -> int | None:
        entry = self._entries().get(key)
        return None if entry is None else entry[0]

    def _entries(self) -> dict[str, tuple[int, str]]:
        """Size and checksum of every object that the manifest lists."""
        if self._size_and_checksum is None:
            entries = parse_manifest(self._manifest(), repr(self._inner))
            self._size_and_checksum = {entry.key: (entry.bytes, entry.checksum) for entry in entries}
        return self._size_and_checksum

    def _manifest(self) -> bytes:
        """The manifest; fetched by one process of the machine, if there is room for a copy."""
        fetched: list[bytes] = []

        def fetch() -> list[bytes]:
            raw = self._inner.get(MANIFEST, MANIFEST_LIMIT)
            if xxhash.xxh3_128_hexdigest(raw) != self._manifest_checksum:
                msg = f"{self._inner!r}: {MANIFEST} is not the one that was sealed; run 'unistore verify'"
                raise CorruptionError(msg)
            fetched.append(raw)
            return fetched

        checksum = self._manifest_checksum
        if self._cache.ensure(checksum, None, fetch, MANIFEST) and not fetched:
            with suppress(AbsentError):  # evicted by another process before it was opened
                return LocalStorage(self._cache.folder).get(self._cache.path(checksum), MANIFEST_LIMIT)
        return (fetched or fetch())[0]
