"""Conversion to an object store: journal and spilled rows in a local folder, shards at their final keys."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from unistore.conversion.build import Build, FinishedStoreError, is_store
from unistore.conversion.parts import JobPart
from unistore.errors import ConversionError, InputError
from unistore.remote.client import ObjectClient
from unistore.remote.storage import map_concurrently
from unistore.remote.url import BUCKETS, StoreLocation, parse_url
from unistore.store.names import BUILD_MARK, FIRST_VERSION, ROOT, build_folder
from unistore.system.types import JsonObject
from unistore.zarr3.documents import parse_json
from unistore.zarr3.durable import WrittenFile, write_file

_PLACE = "place"  # Step of the journal

# `ObjectTarget`: files of a store as objects; the root object is written last.


class ObjectTarget:
    """Writes files of a store as objects at their final keys.

    Each object is one request, so it is complete or absent. The root document waits in a local folder for
    `commit`, because it makes the prefix a store.
    """

    def __init__(
        self,
        location: StoreLocation,  # prefix of the objects
        root_folder: Path,  # local folder of the root document
    ) -> None:
        self.location = location
        self.root_folder = root_folder
        self.client = writing_client(location)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.location, self.root_folder)

    def put(self, key: str, buffers: Iterable[bytes | memoryview]) -> WrittenFile:
        """Write an object."""
        if key == ROOT:
            return write_file(self.root_folder, key, buffers)
        buffers = list(buffers)
        digest = xxhash.xxh3_128()
        for buffer in buffers:
            digest.update(buffer)
        self.client.put(key, buffers)
        return WrittenFile(key, sum(map(len, buffers)), digest.hexdigest())

    def together(self) -> AbstractContextManager[ObjectTarget]:
        """Do nothing, as every object is durable once it is put."""
        return nullcontext(self)

    def sizes(self) -> Mapping[str, int]:
        """Return keys and sizes."""
        sizes = self.client.list()
        sizes.pop(BUILD_MARK, None)
        return sizes

    def keep_only(self, keys: AbstractSet[str]) -> None:
        """Delete all other keys."""
        self.client.delete([key for key in self.sizes() if key not in keys])


def writing_client(location: StoreLocation) -> ObjectClient:
    """Return a client that writes below a prefix and raises ConversionError."""
    return ObjectClient(location, writing=True, raises=ConversionError)


def commit(location: StoreLocation, root: Path) -> None:
    """Put the root document, a local file, which makes the prefix a store.

    The object gets the time of the seal by the clock of this machine, on which the sources are.
    """
    writing_client(location).put(ROOT, [root.read_bytes()], sealed=root.stat().st_mtime)


def copy_objects(source: StoreLocation, location: StoreLocation, sizes: Mapping[str, int]) -> dict[str, int]:
    """Copy objects inside a bucket, and return the sizes of all that are at `location` then."""
    bucket = writing_client(StoreLocation(location.scheme, location.bucket, ""))
    for _ in map_concurrently(
        lambda key: bucket.copy(f"{source.prefix}/{key}", f"{location.prefix}/{key}"), sizes
    ):
        pass
    copied = writing_client(location).list()
    wrong = [key for key, size in sizes.items() if copied.get(key) != size]
    if wrong:
        msg = (
            f"{location}: {len(wrong):,} objects were not copied completely, for example {wrong[0]}. "
            "Fix: run the same command again"
        )
        raise ConversionError(msg)
    return copied


def swap_in(staging: StoreLocation, location: StoreLocation, root: Path, mark: bytes) -> None:
    """Replace the store at `location` by the one at `staging`, by copies inside the object store.

    It may be repeated. The old root is deleted first and the new one is written last: in between there is
    no store, never a mixture, and the mark says why.
    """
    old = writing_client(location)
    new = ObjectTarget(staging, Path()).sizes()
    old.put(BUILD_MARK, [mark])
    old.delete([ROOT])
    copied = copy_objects(staging, location, new)
    old.delete([key for key in copied if key not in new and key != BUILD_MARK])
    commit(location, root)


def check_writable(location: StoreLocation) -> None:
    """Raise `InputError` if stores are only read there."""
    if location.scheme not in BUCKETS:
        places = ", ".join(f"{scheme}://" for scheme in BUCKETS)
        message = f"a store cannot be written to {location.scheme}://"
        fix = f"give a folder, or a URL with {places}"
        if location.scheme == "hf":
            fix = "give a folder, and publish the store: see docs/publish.md"
        raise InputError.at(str(location), message, fix, "option")


def bucket_location(url: str) -> StoreLocation:
    """Parse the URL of a store that is written to, or raise `InputError` if none can be there."""
    location = parse_url(url)
    check_writable(location)
    if not location.prefix:
        message = "is a bucket, but a store needs a name in it"
        raise InputError.at(str(location), message, f"write to {location}/name.zarr", "option")
    return location


def new_mark(token: str, folder: Path) -> bytes:
    """Return the content of the object that says who writes below a prefix."""
    return json.dumps({"token": token, "host": socket.gethostname(), "folder": str(folder)}).encode()


def place_of_owner(mark: bytes | None) -> str:
    """Return where the owner of a prefix is, by its mark."""
    owner = _Owner.from_mark(mark)
    return f"on {owner.host} in {owner.folder}"


class _Owner(NamedTuple):
    """Who writes below a prefix, as its mark says."""

    token: object
    host: object
    folder: object

    @classmethod
    def from_mark(cls, mark: bytes | None) -> _Owner:
        try:
            stated = parse_json(mark or b"{}")
        except ValueError:
            stated = {}
        members = stated if isinstance(stated, dict) else {}
        host = members.get("host", "another machine")
        return cls(members.get("token"), host, members.get("folder", "another folder"))


class PlaceRecord(NamedTuple):
    """The record of the journal that claims a destination.

    Attributes
    ----------
    staged : bool
        Whether a store is there that is to be replaced, so that the new one is written next to it.
    token : str
        Names this conversion in the mark.
    """

    staged: bool
    token: str


class ObjectBuild(Build):
    """Build folder of a conversion to a URL.

    Shards are written at their final keys. A store that is to be replaced stays: the new one is written
    next to it, then copied to its place. The object `BUILD_MARK` records which conversion owns a prefix,
    so that two machines never mix their stores.
    """

    in_bucket = True
    overlap_message = "the staging folder would be inside the source"
    overlap_fix = "choose another folder with --work"

    def __init__(
        self,
        url: str,  # URL of the store
        *,
        work: Path | None = None,  # folder that holds the build folder; None: the current one
        restart: bool = False,
        part: JobPart | None = None,
    ) -> None:
        location = bucket_location(url)
        self.location = location
        self._client = writing_client(location)
        self._claimed = False
        self._begun: PlaceRecord | None = None
        folder = build_folder((Path.cwd() if work is None else work.absolute()) / location.name)
        super().__init__(str(location), folder, local="root", restart=restart, part=part)
        self.output_path = folder

    @property
    def target(self) -> ObjectTarget:
        """Return where files are written, once `discard_on_input_error` has claimed the destination."""
        return ObjectTarget(self._written, self.local)

    def begin(
        self, identity: JsonObject, sources: Sequence[tuple[str, Any]], paths: Sequence[Path], scanned: int
    ) -> None:
        """Record or compare what is converted, and the destination."""
        self._begun = self._recorded_place()  # by another part meanwhile
        super().begin({**identity, "destination": str(self.location)}, sources, paths, scanned)

    def check(self, *, overwrite: bool) -> None:
        """Refuse a destination that exists already."""
        begun = self._begun
        if self._client.size(ROOT) is not None:
            if not is_store(str(self.location)):
                raise self._not_a_store()
            if begun is not None and not begun.staged:
                message = "another store was finished here meanwhile"
                fix = "add --restart --overwrite to replace it"
                raise InputError.at(str(self.location), message, fix, "exists")
            if not overwrite:
                raise FinishedStoreError(str(self.location), self.sources)
        elif begun is None and self._client.size(BUILD_MARK) is None and self._client.list(limit=1):
            if self._client.size(FIRST_VERSION) is not None:
                raise FinishedStoreError(str(self.location), self.sources, is_grown=True)
            raise self._not_a_store()

    def discard_on_input_error(self) -> None:
        """Claim the destination, before objects are written."""
        if self._begun is None:
            staged = self._client.size(ROOT) is not None
            self._begun = PlaceRecord(staged=staged, token=secrets.token_hex(16))
            self.journal.append({"step": _PLACE, **self._begun._asdict()})
        client = writing_client(self._written)
        if self._begun.staged and client.size(BUILD_MARK) is None and client.list(limit=1):
            message = "the new store would be written here, but other objects are here"
            raise InputError.at(str(self._written), message, "remove these objects", "target")
        owner = client.create(BUILD_MARK, self._mark()) or client.get(BUILD_MARK)
        if owner is None:  # where there is no conditional put, two may begin at once
            client.put(BUILD_MARK, [self._mark()])
        elif not self._is_mine(owner):
            if not self._restart:
                raise ConversionError(self._taken_message(owner))
            client.put(BUILD_MARK, [self._mark()])
            if not self._begun.staged:  # left by a replacement that was abandoned
                self._clear(self._staging)
        self._claimed = True
        super().discard_on_input_error()

    def move_into_place(self) -> None:
        """Write the root object last. An older store is replaced first."""
        assert self._begun is not None
        owner = writing_client(self._written).get(BUILD_MARK)
        if not self._is_mine(owner):
            raise ConversionError(self._taken_message(owner))
        root = self.local / ROOT
        if self._begun.staged:
            swap_in(self._written, self.location, root, self._mark())
        else:
            commit(self.location, root)

    def remove(self) -> None:
        """Remove the folder, and the objects that do not belong to a store."""
        if self._begun is not None and (
            self._claimed or self._is_mine(writing_client(self._written).get(BUILD_MARK))
        ):
            if self._client.size(ROOT) is None:
                self._clear(self.location)
            else:
                self._client.delete([BUILD_MARK])
            if self._begun.staged:
                self._clear(self._staging)
        super().remove()

    def _open(self) -> None:
        super()._open()
        self._begun = self._recorded_place()

    def _recorded_place(self) -> PlaceRecord | None:
        for record in self.journal.each(_PLACE):
            return PlaceRecord(record["staged"], record["token"])
        return None

    @property
    def _staging(self) -> StoreLocation:
        return self.location.with_suffix(".unistore-build")

    @property
    def _written(self) -> StoreLocation:
        assert self._begun is not None
        return self._staging if self._begun.staged else self.location

    def _mark(self) -> bytes:
        assert self._begun is not None
        return new_mark(self._begun.token, self.folder)

    def _is_mine(self, mark: bytes | None) -> bool:
        assert self._begun is not None
        return _Owner.from_mark(mark).token == self._begun.token

    def _taken_message(self, mark: bytes | None) -> str:
        return (
            f"{self.location}: another conversion to this place was started {place_of_owner(mark)}. "
            "Fix: continue it there, or add --restart to replace it"
        )

    def _not_a_store(self) -> InputError:
        message = "contains objects that are not a unistore store, so unistore does not touch them"
        return InputError.at(str(self.location), message, "choose another place", "target")

    def _clear(self, location: StoreLocation) -> None:
        # The mark goes last
        client = writing_client(location)
        if client.size(BUILD_MARK) is not None:
            client.delete([key for key in client.list() if key != BUILD_MARK])
            client.delete([BUILD_MARK])

    def _destination_digest(self) -> str | None:
        return None if self._client.size(ROOT) is None else super()._destination_digest()
