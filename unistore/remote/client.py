"""Operations on the objects under one URL: tried again while that may help, with errors that name the URL.

obstore runs a thread pool of its own, which a forked child does not have: used there, it waits for ever. So
the process that uses it first is remembered, and a use in a child of that process is an error at once.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from unistore.errors import CorruptionError, StoreError, UnistoreError
from unistore.remote.faults import Fault, ShortRead, cause, fault_of, lacks_conditions
from unistore.remote.url import Location, parse_url
from unistore.zarr3.storage import DOCUMENT_LIMIT

__all__ = ["ObjectClient"]

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds after which an operation that keeps failing is given up."""
FIRST_ATTEMPTS = 3
"""Attempts while a bucket has never answered: a wrong endpoint is told soon."""
PAUSE, LONGEST_PAUSE = 0.1, 8.0
"""Seconds before the second attempt, and at most; each pause is twice the one before, half to all of it."""
READ_TIMEOUT, WRITE_TIMEOUT = "60s", "300s"
"""Of one request with its whole body."""

_VARIABLES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
_CLIENT_KEYS = (
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "read_timeout",
    "root_certificate",
    "timeout",
)
_owner: int | None = None
_reached: set[tuple[str, str]] = set()
"""Buckets that have answered this process."""


class ObjectClient:
    """Objects under a URL. Connects with the first operation; pickles as its arguments. Safe with threads.

    Parameters
    ----------
    location
        Where.
    writing
        Whether objects are put: their requests may take longer.
    raises
        Class of the errors.

    Attributes
    ----------
    retries
        Operations that were tried again so far.
    """

    def __init__(
        self, location: Location | str, *, writing: bool = False, raises: type[UnistoreError] = StoreError
    ) -> None:
        self.location = parse_url(location) if isinstance(location, str) else location
        self.retries = 0
        self._writing = writing
        self._raises = raises
        self._handle: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.location, self._writing, self._raises)

    def __repr__(self) -> str:
        return f"ObjectClient({str(self.location)!r})"

    @property
    def handle(self) -> Any:
        """What obstore calls a store."""
        return self._connected()[1]

    def get(self, key: str, limit: int = DOCUMENT_LIMIT) -> bytes | None:
        """Whole object, of at most `limit` bytes; None where there is none."""

        def read(obs: Any, handle: Any) -> bytes:
            found = obs.get(handle, key)
            size = int(found.meta["size"])
            if size > limit:
                raise self.error(key, Fault(f"{size:,} bytes, expected at most {limit:,}"))
            return bytes(found.bytes())

        return self._try(read, key)

    def size(self, key: str) -> int | None:
        """Bytes of an object; None where there is none."""
        return self._try(lambda obs, handle: int(obs.head(handle, key)["size"]), key)

    def get_range(self, key: str, start: int, size: int) -> bytes:
        """Part of an object, whole.

        Raises
        ------
        StoreError
            If there is no such object.
        CorruptionError
            If it ends before the range does.
        """

        def read(obs: Any, handle: Any) -> bytes:
            raw = bytes(obs.get_range(handle, key, start=start, length=size))
            if len(raw) != size:
                msg = f"ends at byte {start + len(raw)}, inside a range of {size} bytes from {start}"
                raise ShortRead(msg)
            return raw

        raw = self._try(read, key) if size else b""
        if raw is None:
            raise self.error(key, Fault("no such object"))
        return raw

    def get_end(self, key: str, size: int) -> tuple[int, bytes] | None:
        """Bytes of an object, and its last `size` bytes (all where it has fewer); None if there is none."""

        def read(obs: Any, handle: Any) -> tuple[int, bytes]:
            found = obs.get(handle, key, options={"range": {"suffix": size}})
            total, raw = int(found.meta["size"]), bytes(found.bytes())
            if len(raw) != min(size, total):
                msg = f"{len(raw)} bytes arrived of its last {min(size, total)}"
                raise ShortRead(msg)
            return total, raw

        if self.location.scheme != "az":
            return self._try(read, key)
        total = self.size(key)  # Azure has no ranges that count from the end
        if total is None:
            return None
        part = min(size, total)
        return total, self.get_range(key, total - part, part)

    def put(self, key: str, buffers: Sequence[bytes | memoryview]) -> None:
        """Write an object in one request, so that it appears whole or not at all, and look at its size."""
        body = [memoryview(buffer).cast("B") for buffer in buffers]  # obstore copies none of them
        size = sum(map(len, body))

        def write(obs: Any, handle: Any) -> None:
            obs.put(handle, key, body, use_multipart=False)
            found = int(obs.head(handle, key)["size"])
            if found != size:
                msg = f"{found} bytes arrived of {size}"
                raise ShortRead(msg, "check what lies between here and the bucket")

        self._must(write, key)

    def create(self, key: str, content: bytes) -> bytes:
        """Write an object unless there is one; give what stands there in the end.

        Atomic, except on servers that cannot write on a condition.
        """

        def write(obs: Any, handle: Any) -> bytes:
            try:
                obs.put(handle, key, content, mode="create", use_multipart=False)
            except obs.exceptions.AlreadyExistsError:
                return bytes(obs.get(handle, key).bytes())
            except (obs.exceptions.NotSupportedError, obs.exceptions.GenericError) as error:
                if not lacks_conditions(error):
                    raise
                with suppress(FileNotFoundError):
                    return bytes(obs.get(handle, key).bytes())
                obs.put(handle, key, content, use_multipart=False)
            return content

        return self._must(write, key)

    def copy(self, key: str, to: str) -> None:
        """Copy an object inside the object store."""
        self._must(lambda obs, handle: obs.copy(handle, key, to), key)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are absent already are no error."""
        if keys and self._try(lambda obs, handle: (obs.delete(handle, list(keys)),), keys[0]) is None:
            for each in keys:  # some kinds of store refuse a whole list for one absent object
                self._try(partial(_delete, each), each)

    def list(self, limit: int | None = None) -> dict[str, int]:
        """Keys and sizes of the objects under the URL; at most about `limit` of them."""

        def read(obs: Any, handle: Any) -> dict[str, int]:
            found: dict[str, int] = {}
            for objects in obs.list(handle, chunk_size=1000):
                found.update((each["path"], int(each["size"])) for each in objects)
                if limit is not None and len(found) >= limit:
                    break
            return found

        return self._must(read)

    def error(self, key: str, fault: Fault, tried: str = "") -> UnistoreError:
        """The error to raise for a fault."""
        where = f"{self.location}/{key}" if key else str(self.location)
        cures = [fault.cure] if fault.cure else []
        if self._writing:
            cures.append("the same command continues")
        cls = CorruptionError if fault.damaged and self._raises is StoreError else self._raises
        return cls("; ".join([f"{where}: {fault.message}{tried}", *cures]))

    def _must(self, operation: Callable[[Any, Any], T], key: str = "") -> T:
        found = self._try(lambda obs, handle: (operation(obs, handle),), key)
        if found is None:
            raise self.error(key, Fault("no such object"))
        return found[0]

    def _try(self, operation: Callable[[Any, Any], T], key: str) -> T | None:
        """Run an operation, again while that may help; None where there is no such object."""
        obs, handle = self._connected()
        bucket = self.location.scheme, self.location.bucket
        started, pause = time.monotonic(), PAUSE
        for attempt in itertools.count(1):
            try:
                result = operation(obs, handle)
            except (obs.exceptions.BaseError, FileNotFoundError, ShortRead) as error:
                fault = fault_of(error, *bucket)
                if fault.absent:
                    _reached.add(bucket)
                    return None
                waited = time.monotonic() - started
                enough = waited + pause > PATIENCE if bucket in _reached else attempt >= FIRST_ATTEMPTS
                if not fault.transient or enough:
                    tried = f" (tried {attempt} times in {waited:.1f} s)" if attempt > 1 else ""
                    raise self.error(key, fault, tried) from cause(error)
            else:
                _reached.add(bucket)
                return result
            self.retries += 1
            time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - spreads the retries of many workers
            pause = min(2 * pause, LONGEST_PAUSE)
        raise AssertionError

    def _connected(self) -> tuple[Any, Any]:
        self.check_process()
        import obstore

        if self._handle is None:
            self._handle = _open(obstore, self.location, self._writing, self.error)
        return obstore, self._handle

    def check_process(self) -> None:
        """Raise where obstore would wait for ever: in a child forked from a process that has used it."""
        global _owner  # noqa: PLW0603 - obstore's thread pool is one a process, too
        pid = os.getpid()
        if _owner is None:
            _owner = pid
        if _owner != pid:
            msg = (
                f"{self.location}: object stores cannot be used in a forked process: start workers with "
                "multiprocessing_context='spawn' (unistore.Loader does by itself)"
            )
            raise self._raises(msg)


def _again(location: Location, writing: bool, raises: type[UnistoreError]) -> ObjectClient:
    return ObjectClient(location, writing=writing, raises=raises)


def _delete(key: str, obs: Any, handle: Any) -> None:
    obs.delete(handle, key)


def _open(
    obstore: Any, location: Location, writing: bool, error: Callable[[str, Fault], UnistoreError]
) -> Any:
    """Make obstore's client: credentials, region and endpoint from the environment, retries are ours."""
    from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

    classes: Mapping[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
    cls = classes.get(location.scheme, HTTPStore)
    try:
        return cls.from_url(
            str(location),
            client_options=_client_options(location, WRITE_TIMEOUT if writing else READ_TIMEOUT),
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
        )
    except (obstore.exceptions.BaseError, ValueError) as found:
        raise error("", fault_of(found, location.scheme, location.bucket)) from cause(found)


def _client_options(location: Location, timeout: str) -> dict[str, Any]:
    """Options of HTTP, from the variables of the object store's kind (``AWS_PROXY_URL``) or our own."""
    options: dict[str, Any] = {"timeout": timeout}
    start = _VARIABLES.get(location.scheme)
    if start is None:
        return options | ({"allow_http": True} if location.scheme == "http" else {})
    found = {key: os.environ.get(f"{start}{key.upper()}") for key in _CLIENT_KEYS}
    return options | {key: value for key, value in found.items() if value}
