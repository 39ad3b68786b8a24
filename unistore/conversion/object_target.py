"""`ObjectTarget`: a store that is being written into an object store; its root object comes last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import xxhash

from unistore.errors import ConversionError
from unistore.remote.client import ObjectClient
from unistore.remote.object_storage import map_concurrently
from unistore.remote.url import Location
from unistore.store.names import BUILD_MARK, ROOT
from unistore.zarr3.durable import WrittenFile, write_shard

__all__ = ["ObjectTarget", "commit", "swap_in", "writing_client"]


class ObjectTarget:
    """Takes the files of a store as objects in their final keys, see `unistore.conversion.target.Target`.

    Each is put in one request, so that it is there whole or not at all, and its size is looked at. The root
    document is kept back in a local folder: with it there, the prefix is a store.

    Parameters
    ----------
    location
        Prefix of the objects.
    kept
        Folder for the root document.
    """

    def __init__(self, location: Location, kept: Path) -> None:
        self.location = location
        self.kept = kept
        self.client = writing_client(location)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.location, self.kept)

    def put(self, key: str, buffers: Iterable[bytes | memoryview]) -> WrittenFile:
        """Write an object; see `unistore.conversion.target.Files.put`."""
        if key == ROOT:
            return write_shard(self.kept, key, buffers)
        buffers = list(buffers)
        digest = xxhash.xxh3_128()
        for buffer in buffers:
            digest.update(buffer)
        self.client.put(key, buffers)
        return WrittenFile(key, sum(map(len, buffers)), digest.hexdigest())

    def together(self) -> AbstractContextManager[ObjectTarget]:
        """Every object stays once it is put; see `Target.together`."""
        return nullcontext(self)

    def sizes(self) -> Mapping[str, int]:
        """Keys and sizes; see `Target.sizes`."""
        found = self.client.list()
        found.pop(BUILD_MARK, None)
        return found

    def keep_only(self, keys: AbstractSet[str]) -> None:
        """Delete what is none of `keys`; see `Target.keep_only`."""
        self.client.delete([key for key in self.sizes() if key not in keys])


def writing_client(location: Location) -> ObjectClient:
    """Operations of a conversion on the objects at a place."""
    return ObjectClient(location, writing=True, raises=ConversionError)


def commit(location: Location, root: bytes) -> None:
    """Put the root document: from now on this is a store."""
    writing_client(location).put(ROOT, [root])


def swap_in(staging: Location, location: Location, root: bytes, mark: bytes) -> None:
    """Replace the store at a place by the one whose objects lie at another, inside the object store.

    The old root goes first, the new one comes last: in between there is no store, never a mixture, and the
    mark says why. Doing it again from the start is harmless.

    Raises
    ------
    ConversionError
        If an object did not arrive as it was.
    """
    bucket = writing_client(Location(location.scheme, location.bucket, ""))
    old = writing_client(location)
    new = ObjectTarget(staging, Path()).sizes()
    old.put(BUILD_MARK, [mark])
    old.delete([ROOT])
    for _ in map_concurrently(
        lambda key: bucket.copy(f"{staging.prefix}/{key}", f"{location.prefix}/{key}"), new
    ):
        pass
    found = old.list()
    wrong = [key for key, size in new.items() if found.get(key) != size]
    if wrong:
        msg = f"{location}: {len(wrong)} objects were not copied whole, {wrong[0]} among them; run again"
        raise ConversionError(msg)
    old.delete([key for key in found if key not in new and key != BUILD_MARK])
    commit(location, root)
