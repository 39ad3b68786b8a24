"""`ObjectTarget`: files of a store as objects; the root object is written last."""

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
from unistore.zarr3.durable import WrittenFile, write_file


class ObjectTarget:
    """Writes files of a store as objects at their final keys, see `unistore.conversion.target.Target`.

    Each object is put in one request, so that it is complete or absent, and its size is checked. The root
    document is kept in a local folder until `commit`: it makes the prefix a store.

    Parameters
    ----------
    location
        Prefix of the objects.
    root_folder
        Local folder of the root document.
    """

    def __init__(self, location: Location, root_folder: Path) -> None:
        self.location = location
        self.root_folder = root_folder
        self.client = writing_client(location)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.location, self.root_folder)

    def put(self, key: str, buffers: Iterable[bytes | memoryview]) -> WrittenFile:
        """Write an object; see `unistore.conversion.target.Files.put`."""
        if key == ROOT:
            return write_file(self.root_folder, key, buffers)
        buffers = list(buffers)
        digest = xxhash.xxh3_128()
        for buffer in buffers:
            digest.update(buffer)
        self.client.put(key, buffers)
        return WrittenFile(key, sum(map(len, buffers)), digest.hexdigest())

    def together(self) -> AbstractContextManager[ObjectTarget]:
        """No-op: every object is durable once it is put; see `Target.together`."""
        return nullcontext(self)

    def sizes(self) -> Mapping[str, int]:
        """Keys and sizes; see `Target.sizes`."""
        found = self.client.list()
        found.pop(BUILD_MARK, None)
        return found

    def keep_only(self, keys: AbstractSet[str]) -> None:
        """Delete all other keys; see `Target.keep_only`."""
        self.client.delete([key for key in self.sizes() if key not in keys])


def writing_client(location: Location) -> ObjectClient:
    """Client that writes below a prefix and raises ConversionError."""
    return ObjectClient(location, writing=True, raises=ConversionError)


def commit(location: Location, root: bytes) -> None:
    """Put the root document, which makes the prefix a store."""
    writing_client(location).put(ROOT, [root])


def swap_in(staging: Location, location: Location, root: bytes, mark: bytes) -> None:
    """Replace the store at `location` by the one at `staging`, by copies inside the object store.

    The old root is deleted first and the new one written last: in between there is no store, never a mixture,
    and the mark says why. Idempotent.

    Raises
    ------
    ConversionError
        If an object was not copied completely.
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
