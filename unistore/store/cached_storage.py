"""`CachedStorage`: any storage of a sealed store, with local copies of the objects that were read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import xxhash

from unistore.errors import CorruptionError
from unistore.remote.ranges import LIMIT
from unistore.remote.shard_cache import ShardCache
from unistore.store.manifest import MANIFEST_LIMIT, parse_manifest
from unistore.store.names import MANIFEST
from unistore.zarr3.local import LocalStorage
from unistore.zarr3.storage import DOCUMENT_LIMIT, AbsentError, Storage

__all__ = ["CachedStorage"]

TRIES = 5
"""Times that a copy is fetched; after that, others evict it too fast for it to be of use."""


class CachedStorage:
    """Reads objects from local copies, whole objects fetched with their first use and checked.

    Sizes and checksums come from the store's manifest, which is read with the first use. An object for which
    there is no room in the cache is read from the store directly.

    Parameters
    ----------
    inner
        Where the store lies.
    cache
        Where copies lie.
    manifest
        Checksum of the manifest, from the store's seal.
    """

    def __init__(self, inner: Storage, cache: ShardCache, manifest: str) -> None:
        self.fork_safe = inner.fork_safe
        self._inner = inner
        self._cache = cache
        self._manifest = manifest
        self._known: dict[str, tuple[int, str]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._inner, self._cache, self._manifest)

    def __repr__(self) -> str:
        return repr(self._inner)

    def get(self, key: str, limit: int = DOCUMENT_LIMIT) -> bytes:
        """Whole object; see `Storage.get`."""
        found = self._entries().get(key)
        if found is None or found[0] > limit:
            return self._inner.get(key, limit)
        return next(self.read_many([key], [0], [found[0]]))

    def size(self, key: str) -> int | None:
        """Bytes of an object, or None; see `Storage.size`."""
        found = self._entries().get(key)
        return self._inner.size(key) if found is None else found[0]

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        """Fill `out`; see `Storage.read_into`."""
        for raw in self.read_many([key], [offset], [len(out)]):
            out[:] = raw

    def read_many(self, keys: Sequence[str], offsets: Sequence[int], sizes: Sequence[int]) -> Iterator[bytes]:
        """Read many ranges; see `Storage.read_many`."""
        local = LocalStorage(self._cache.folder)  # no copy stays open: a removed one gives its bytes back
        for key, together in groupby(range(len(keys)), keys.__getitem__):
            at = list(together)
            parts = slice(at[0], at[-1] + 1)
            yield from self._read(local, key, offsets[parts], sizes[parts])

    def _read(
        self, local: LocalStorage, key: str, offsets: Sequence[int], sizes: Sequence[int]
    ) -> Iterator[bytes]:
        found = self._entries().get(key)
        for _ in range(TRIES):
            if found is None or not self._ensure(key, *found):
                break
            copies = local.read_many([self._cache.name(found[1])] * len(sizes), offsets, sizes)
            try:
                first = next(copies)
            except AbsentError:  # evicted by another process before it was opened
                self._cache.forget(found[1])
                continue
            yield first
            yield from copies
            return
        yield from self._inner.read_many([key] * len(sizes), offsets, sizes)

    def _ensure(self, key: str, size: int, checksum: str) -> bool:
        what = f"{self._inner!r}: {key}"
        return self._cache.ensure(checksum, size, lambda: self._pieces(key, size), what)

    def _pieces(self, key: str, size: int) -> Iterable[bytes]:
        """Content of an object, piece by piece."""
        starts = range(0, size, LIMIT)
        return self._inner.read_many(
            [key] * len(starts), starts, [min(LIMIT, size - start) for start in starts]
        )

    def _entries(self) -> dict[str, tuple[int, str]]:
        """Size and checksum of every object that the manifest lists."""
        if self._known is None:
            raw = self._inner.get(MANIFEST, MANIFEST_LIMIT)
            where = repr(self._inner)
            if xxhash.xxh3_128_hexdigest(raw) != self._manifest:
                msg = f"{where}: {MANIFEST} is not the one that was sealed; run 'unistore verify'"
                raise CorruptionError(msg)
            self._known = {entry.key: (entry.bytes, entry.checksum) for entry in parse_manifest(raw, where)}
        return self._known
