"""A store in a bucket that grows: parts are copied on the server, and a conditional put makes a version."""

from __future__ import annotations

import secrets
from pathlib import Path

import xxhash

from unistore.conversion.object_build import copy_objects, new_mark, place_of_owner, writing_client
from unistore.errors import ConversionError, InputError
from unistore.growing.folder import SECOND_VERSION, Place, other_store
from unistore.remote.client import ObjectClient
from unistore.remote.url import StoreLocation
from unistore.store.manifest import MANIFEST_LIMIT, parse_manifest
from unistore.store.names import (
    BUILD_MARK,
    FIRST_VERSION,
    GROWTH,
    MANIFEST,
    ROOT,
    SIDE_TABLES,
    SOURCES,
    STATISTICS,
    growth_folder,
    split_part_key,
)
from unistore.store.reader import Store
from unistore.store.versions import GrownStore
from unistore.zarr3.durable import write_file

_NEW_STORE = "new.zarr"
_OTHER_MARK = b"{}"
_FIX = "append to a local copy, and upload it with the parts first and the versions last"


class BucketPlace(Place):
    """A store in a bucket. The object `BUILD_MARK` in the prefix beside it says which process grows it.

    A store that never grew stays as it is until its second version is written and it was copied to its
    part. Then its root is deleted, and from that moment on the versioned store is read. Its other objects
    are deleted next, the manifest last, because it names these objects to the next command.
    """

    def __init__(self, location: StoreLocation, folder: Path) -> None:
        work = growth_folder(folder / location.name)
        growth = location.with_suffix(f".{GROWTH}")
        super().__init__(str(location), f"{growth}/{_NEW_STORE}", work)
        self.build_folder = work
        self._client = writing_client(location)
        self._growth = writing_client(growth)
        self._mark = b""

    def begin(self) -> None:
        path = self.work / BUILD_MARK
        if not path.exists():
            write_file(self.work, BUILD_MARK, [new_mark(secrets.token_hex(16), self.work)])
        self._mark = path.read_bytes()
        owner = self._growth.create(BUILD_MARK, self._mark)
        if owner == self._mark:
            # A server that ignores the condition puts this in its place
            owner = self._growth.create(BUILD_MARK, _OTHER_MARK)
        if owner != self._mark:
            path.unlink()
        if owner in (None, _OTHER_MARK):
            self._growth.delete([BUILD_MARK])
            message = "this server has no conditional put (If-None-Match), which an append needs"
            raise InputError.at(self.store, message, _FIX, "target")
        self._check_owner(owner)
        self._recover()

    def _check_owner(self, owner: bytes | None) -> None:
        if owner != self._mark:
            msg = (
                f"{self.store}: another process is writing the next version {place_of_owner(owner)}. "
                "Fix: wait for it, or run its command there again, or discard it with "
                f"unistore clean {self._growth.location} --remove"
            )
            raise ConversionError(msg)

    def _recover(self) -> None:
        if self._client.size(MANIFEST) is None:
            return
        if self._client.size(SECOND_VERSION) is not None:
            self.take_place()
            return
        side_tables = self._client.location.with_suffix(f".{SIDE_TABLES}")
        if writing_client(side_tables).list(limit=1):
            message = "added columns cannot be kept when a store in a bucket grows"
            raise InputError.at(str(side_tables), message, ("move them away", _FIX), "side")
        self._client.delete([FIRST_VERSION])

    def _part(self, key: str) -> ObjectClient:
        return writing_client(self._client.location.with_suffix(f"/{key}"))

    def move_in(self, key: str) -> None:
        new = writing_client(self._growth.location.with_suffix(f"/{_NEW_STORE}"))
        _copy_store(new, self._part(key), _sizes(new, key))

    def create(self, key: str, data: bytes) -> None:
        self._check_owner(self._growth.get(BUILD_MARK))
        if self._client.create(key, data) != data:
            msg = f"{self.store}/{key}: another process wrote it meanwhile. Fix: run the same command again"
            raise ConversionError(msg)

    def take_place(self) -> None:
        """Copy the plain store to its part, and delete it."""
        first = GrownStore(self.store).read(1).parts[0]
        sizes = _sizes(self._client, first.key)
        if self._client.size(ROOT) is not None:
            if Store(self.store).root.seal != first.seal:
                raise other_store(self.store, FIRST_VERSION)
            _copy_store(self._client, self._part(first.key), sizes)
            self._check_owner(self._growth.get(BUILD_MARK))
            self._client.delete([ROOT])
        self._client.delete([key for key in sizes if key != MANIFEST])
        self._client.delete([BUILD_MARK, MANIFEST])

    def clear(self) -> None:
        super().clear()
        if self._growth.get(BUILD_MARK) != self._mark:  # removed by `clean`: these are of another process
            return
        keys = [key for key in self._growth.list() if key != BUILD_MARK]
        # Last what says whose the other objects are
        owners = [key for key in keys if key.endswith((f"/{BUILD_MARK}", f"{_NEW_STORE}/{ROOT}"))]
        self._growth.delete([key for key in keys if key not in owners])
        self._growth.delete(owners)

    def release(self) -> None:
        owner = self._growth.get(BUILD_MARK)
        if owner == self._mark and [*self._growth.list()] == [BUILD_MARK]:
            self._growth.delete([BUILD_MARK])
            owner = None
        if owner is None:
            (self.work / BUILD_MARK).unlink(missing_ok=True)


def _sizes(store: ObjectClient, key: str) -> dict[str, int]:
    """Return keys and sizes of the objects of the sealed store of a part but for its root."""
    manifest = store.get(MANIFEST, MANIFEST_LIMIT) or b""
    if xxhash.xxh3_128_hexdigest(manifest) != split_part_key(f"{key}/")[0]:
        msg = (
            f"{store.location}/{MANIFEST}: differs from the manifest that was sealed. "
            "Fix: restore it from a copy, then run the same command"
        )
        raise ConversionError(msg)
    entries = parse_manifest(manifest, str(store.location))
    sizes = {entry.key: entry.bytes for entry in entries}
    for key in (STATISTICS, SOURCES):
        size = store.size(key)
        if size is not None:
            sizes[key] = size
    return {**sizes, MANIFEST: len(manifest)}


def _copy_store(store: ObjectClient, part: ObjectClient, sizes: dict[str, int]) -> None:
    """Copy a sealed store, its root last."""
    root = store.get(ROOT) or b""
    copy_objects(store.location, part.location, sizes)
    # Sources that were modified since are read again, so the time is that of the seal
    part.put(ROOT, [root], sealed=store.sealed(ROOT))
