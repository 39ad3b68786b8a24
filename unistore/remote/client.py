"""Operations on the objects under one URL."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from unistore.errors import StoreError, UnistoreError
from unistore.remote import hub
from unistore.remote.connection import Connection
from unistore.remote.faults import Fault, ShortRead, lacks_conditional_put
from unistore.remote.url import StoreLocation
from unistore.system.types import Attributes, Buffer
from unistore.zarr3.storage import DOCUMENT_LIMIT, ROOT, replaced

# Attribute of an object: when it was written before it was copied to its key.
_SEALED = "sealed"


class RemoteObject(NamedTuple):
    """An object as its server describes it."""

    bytes: int
    modified: float  # seconds since 1970
    tag: str  # entity tag, empty where the server gives none

    @classmethod
    def of(cls, meta: Attributes) -> RemoteObject:
        return cls(int(meta["size"]), meta["last_modified"].timestamp(), meta["e_tag"] or "")


class ObjectClient(Connection):
    """Objects under a URL: reading, writing, listing.

    Parameters
    ----------
    location, writing, raises
        As in `Connection`.
    """

    def __init__(
        self,
        location: StoreLocation | str,
        *,
        writing: bool = False,
        raises: type[UnistoreError] = StoreError,
    ) -> None:
        super().__init__(location, writing=writing, raises=raises)
        self._tags: dict[str, str] = {}  # what each object was when it was read first
        self._confirmed = 0  # number of those that were read before the root was seen to stand

    def get(self, key: str, limit: int = DOCUMENT_LIMIT) -> bytes | None:
        """Return the content of an object of at most `limit` bytes, None if there is no such object.

        A web server without ranges is an error with the first document, not with the first sample.
        """
        plain_web = self.location.scheme in ("http", "https")
        options = {"range": (0, limit)} if plain_web else {}

        def read(obs: Any, handle: Any) -> bytes:
            answer = obs.get(handle, key, options=options)
            size = int(answer.meta["size"])
            if size > limit:
                raise self.error(key, Fault(f"has {size:,} bytes, but at most {limit:,} are allowed"))
            if key == ROOT:
                self._check_tag(key, answer.meta)
            return bytes(answer.bytes())

        return self._retry(read, key)

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, None if there is no such object."""
        return self._retry(lambda obs, handle: int(self._head(obs, handle, key)["size"]), key)

    def get_range(self, key: str, start: int, size: int) -> bytes:
        """Return exactly `size` bytes of an object, or raise `CorruptionError` if it ends before."""

        def read(obs: Any, handle: Any) -> bytes:
            answer = obs.get(handle, key, options={"range": (start, start + size)})
            self._check_tag(key, answer.meta)
            return whole_range(answer, start, size)

        return self._require(read, key) if size else b""

    def get_end(self, key: str, size: int) -> tuple[int, bytes] | None:
        """Return the size of an object and its last `size` bytes, or None if there is no such object."""

        def read(obs: Any, handle: Any) -> tuple[int, bytes]:
            answer = obs.get(handle, key, options={"range": {"suffix": size}})
            total = int(answer.meta["size"])
            raw = bytes(answer.bytes())
            self._check_tag(key, answer.meta)
            if len(raw) != min(size, total):
                msg = f"only {len(raw):,} of its last {min(size, total):,} bytes arrived"
                raise ShortRead(msg)
            return total, raw

        if self.location.scheme not in ("az", "hf"):
            return self._retry(read, key)
        if (total := self.size(key)) is None:  # without suffix ranges
            return None
        return total, self.get_range(key, max(0, total - size), min(size, total))

    def sealed(self, key: str) -> float:
        """Return when an object was put, or what `put` was told if that is earlier, in seconds since 1970."""

        def read(obs: Any, handle: Any) -> float:
            answer = obs.get(handle, key, options={"head": True})
            put: float = answer.meta["last_modified"].timestamp()
            with suppress(ValueError):
                return min(put, float(answer.attributes.get(_SEALED, put)))
            return put

        return self._require(read, key)

    def _check_tag(self, key: str, meta: Attributes) -> None:
        if self.location.scheme == "hf":  # of a commit, which never changes
            return
        # A replaced object is of another store
        tag = str(meta["e_tag"] or meta["last_modified"])
        if self._tags.setdefault(key, tag) != tag:
            raise replaced(str(self.location))

    @property
    def is_confirmed(self) -> bool:
        """Return whether the root is not known, or was seen to stand since an object was read first."""
        if self.location.scheme == "hf":
            return True  # a commit does not change
        return ROOT not in self._tags or self._confirmed == len(self._tags)

    def confirm(self) -> None:
        """Raise `StoreError` unless the root stands that a store was opened with.

        Who replaces a store deletes its root first, so everything that was read while the root stood is
        of the same store.
        """
        count = len(self._tags)

        def stands(obs: Any, handle: Any) -> bool:
            self._check_tag(ROOT, obs.head(handle, ROOT))
            return True

        if self._retry(stands, ROOT) is None:
            raise replaced(str(self.location))
        self._confirmed = max(self._confirmed, count)

    def put(self, key: str, buffers: Sequence[Buffer], sealed: float | None = None) -> None:
        """Write an object atomically, in one request, and check the size it got."""
        attributes = {} if sealed is None else {_SEALED: str(sealed)}
        body = [memoryview(buffer).cast("B") for buffer in buffers]  # not copied by obstore
        size = sum(map(len, body))

        def write(obs: Any, handle: Any) -> None:
            obs.put(handle, key, body, attributes=attributes, use_multipart=False)
            actual = int(obs.head(handle, key)["size"])
            if actual != size:
                msg = f"only {actual:,} of {size:,} bytes arrived"
                raise ShortRead(msg, "check the network and proxies between this machine and the bucket")

        self._require(write, key)

    def create(self, key: str, content: bytes) -> bytes | None:
        """Write an object unless it exists, and return the content it has afterwards.

        None: the server has no conditional put, and nothing was written.
        """

        def write(obs: Any, handle: Any) -> bytes | None:
            try:
                obs.put(handle, key, content, mode="create", use_multipart=False)
            except obs.exceptions.AlreadyExistsError:
                return bytes(obs.get(handle, key).bytes())
            except (obs.exceptions.NotSupportedError, obs.exceptions.GenericError) as error:
                if lacks_conditional_put(error):
                    return None
                raise
            return content

        return self._require(write, key)

    def copy(self, key: str, to: str) -> None:
        self._require(lambda obs, handle: obs.copy(handle, key, to), key)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects. Absent ones are ignored."""
        if keys and self._retry(partial(_delete, keys=list(keys)), keys[0]) is None:
            for key in keys:  # some object stores reject the whole list if one object is absent
                self._retry(partial(_delete, keys=key), key)

    def list(self, limit: int | None = None) -> dict[str, int]:
        """Return size in bytes of the objects under the URL, by key. Stops after about `limit` of them."""
        return {key: entry.bytes for key, entry in self.all_described(limit).items()}

    def all_described(self, limit: int | None = None) -> dict[str, RemoteObject]:
        """Return the objects under the URL by key. Stops after about `limit` of them."""

        def read(obs: Any, handle: Any) -> dict[str, RemoteObject]:
            objects: dict[str, RemoteObject] = {}
            for page in obs.list(handle, chunk_size=1000):
                objects.update((meta["path"], RemoteObject.of(meta)) for meta in page)
                if limit is not None and len(objects) >= limit:
                    break
            return objects

        return self._require(read)

    def described(self, key: str) -> RemoteObject:
        if self.location.scheme == "hf":
            return self._described_by_hub(key)
        return self._require(lambda obs, handle: RemoteObject.of(obs.head(handle, key)), key)

    def _described_by_hub(self, key: str) -> RemoteObject:
        # An empty file has no first byte, and only the API tells a folder from nothing
        path = f"{self.location.prefix}/{key}".strip("/")
        file = self._retry(lambda *_: hub.described(self.location.bucket, path), key)
        if file is None:
            raise self.error(key, Fault("no such object"))
        return RemoteObject(file.bytes, 0.0, file.tag)

    def _head(self, obs: Any, handle: Any, key: str) -> Attributes:
        if self.location.scheme == "hf":  # the link that the Hub redirects to is signed for GET
            return obs.get(handle, key, options={"range": (0, 1)}).meta  # type: ignore[no-any-return]
        return obs.head(handle, key)  # type: ignore[no-any-return]


def _delete(obs: Any, handle: Any, keys: str | list[str]) -> bool:
    obs.delete(handle, keys)
    return True


def whole_range(answer: Any, start: int, size: int) -> bytes:
    """Return the bytes of an answer to a request for a range, or raise `ShortRead` if some are missing."""
    raw = bytes(answer.bytes())
    if len(raw) != size:
        msg = f"ends at byte {start + len(raw):,}, but {size:,} bytes from byte {start:,} were requested"
        raise ShortRead(msg)
    return raw
