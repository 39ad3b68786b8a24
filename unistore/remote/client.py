"""Operations on the objects under one URL, with retries; errors name the URL.

obstore's thread pool does not survive a fork: a forked child that used it would block forever. So the first
process that uses it is recorded, and use in any other process raises an error.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from unistore.errors import CorruptionError, StoreError, UnistoreError
from unistore.remote.faults import Fault, ShortRead, classify_error, lacks_conditional_put, redacted_error
from unistore.remote.url import Location, parse_url
from unistore.zarr3.storage import DOCUMENT_LIMIT

T = TypeVar("T")

RETRY_TIMEOUT = 60.0
"""Seconds of retries after which an operation fails."""
MAX_FIRST_ATTEMPTS = 3
"""Attempts while a bucket has never answered, so that a wrong endpoint fails early."""
FIRST_DELAY, MAX_DELAY = 0.1, 8.0
"""Seconds before the second attempt, and at most; doubles with every attempt, with random jitter."""
READ_TIMEOUT, WRITE_TIMEOUT = "60s", "300s"
"""Of one request, body included."""

_VARIABLE_PREFIXES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
_CLIENT_KEYS = (
    *("allow_http", "allow_invalid_certificates", "root_certificate"),
    *("connect_timeout", "read_timeout", "timeout"),
    *("proxy_url", "proxy_excludes", "proxy_ca_certificate"),
)
_owner_pid: int | None = None
_responsive_buckets: set[tuple[str, str]] = set()
"""(scheme, bucket) pairs that have answered this process."""


class ObjectClient:
    """Objects under a URL. Connects with the first operation; pickles as its arguments. Thread-safe.

    Writing gets a longer timeout. Errors are of the class `raises`; `retries` counts retried attempts.
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
        return partial(type(self), writing=self._writing, raises=self._raises), (self.location,)

    def __repr__(self) -> str:
        return f"ObjectClient({str(self.location)!r})"

    @property
    def handle(self) -> Any:
        """The obstore store."""
        return self._connect()[1]

    def get(self, key: str, limit: int = DOCUMENT_LIMIT) -> bytes | None:
        """Content of an object of at most `limit` bytes; None if there is no such object."""
        # A web server without ranges is refused with the first document, not with the first sample.
        plain_web = self.location.scheme in ("http", "https")
        options = {"range": (0, limit)} if plain_web else {}

        def read(obs: Any, handle: Any) -> bytes:
            found = obs.get(handle, key, options=options)
            size = int(found.meta["size"])
            if size > limit:
                raise self.error(key, Fault(f"{size:,} bytes, expected at most {limit:,}"))
            return bytes(found.bytes())

        return self._retry(read, key)

    def size(self, key: str) -> int | None:
        """Size of an object in bytes; None if there is no such object."""
        return self._retry(lambda obs, handle: int(obs.head(handle, key)["size"]), key)

    def get_range(self, key: str, start: int, size: int) -> bytes:
        """Exactly `size` bytes of an object, from offset `start`; `CorruptionError` if it ends before."""

        def read(obs: Any, handle: Any) -> bytes:
            raw = bytes(obs.get_range(handle, key, start=start, length=size))
            if len(raw) != size:
                msg = f"ends at byte {start + len(raw)}, inside a range of {size} bytes from {start}"
                raise ShortRead(msg)
            return raw

        return self._require(read, key) if size else b""

    def get_end(self, key: str, size: int) -> tuple[int, bytes] | None:
        """Size of an object and its last `size` bytes (or all it has); None if there is no such object."""

        def read(obs: Any, handle: Any) -> tuple[int, bytes]:
            found = obs.get(handle, key, options={"range": {"suffix": size}})
            total, raw = int(found.meta["size"]), bytes(found.bytes())
            if len(raw) != min(size, total):
                msg = f"{len(raw)} bytes arrived of its last {min(size, total)}"
                raise ShortRead(msg)
            return total, raw

        if self.location.scheme != "az":
            return self._retry(read, key)
        if (total := self.size(key)) is None:  # Azure has no suffix ranges
            return None
        return total, self.get_range(key, max(0, total - size), min(size, total))

    def put(self, key: str, buffers: Sequence[bytes | memoryview]) -> None:
        """Write an object atomically, in one request, and check the size it got."""
        body = [memoryview(buffer).cast("B") for buffer in buffers]  # not copied by obstore
        size = sum(map(len, body))

        def write(obs: Any, handle: Any) -> None:
            obs.put(handle, key, body, use_multipart=False)
            found = int(obs.head(handle, key)["size"])
            if found != size:
                msg = f"{found} bytes arrived of {size}"
                raise ShortRead(msg, "check the network and proxies between this machine and the bucket")

        self._require(write, key)

    def create(self, key: str, content: bytes) -> bytes:
        """Write an object unless it exists; return the content it has afterwards.

        Atomic, except on servers without conditional writes.
        """

        def write(obs: Any, handle: Any) -> bytes:
            try:
                obs.put(handle, key, content, mode="create", use_multipart=False)
            except obs.exceptions.AlreadyExistsError:
                return bytes(obs.get(handle, key).bytes())
            except (obs.exceptions.NotSupportedError, obs.exceptions.GenericError) as error:
                if not lacks_conditional_put(error):
                    raise
                with suppress(FileNotFoundError):
                    return bytes(obs.get(handle, key).bytes())
                obs.put(handle, key, content, use_multipart=False)
            return content

        return self._require(write, key)

    def copy(self, key: str, to: str) -> None:
        """Copy an object on the server."""
        self._require(lambda obs, handle: obs.copy(handle, key, to), key)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; absent ones are ignored."""
        if keys and self._retry(partial(_delete, keys=list(keys)), keys[0]) is None:
            for each in keys:  # some object stores reject the whole list if one object is absent
                self._retry(partial(_delete, keys=each), each)

    def list(self, limit: int | None = None) -> dict[str, int]:
        """Size in bytes of the objects under the URL, by key; stops after about `limit` of them."""

        def read(obs: Any, handle: Any) -> dict[str, int]:
            found: dict[str, int] = {}
            for objects in obs.list(handle, chunk_size=1000):
                found.update((each["path"], int(each["size"])) for each in objects)
                if limit is not None and len(found) >= limit:
                    break
            return found

        return self._require(read)

    def error(self, key: str, fault: Fault, attempts: str = "") -> UnistoreError:
        """The exception to raise for a fault."""
        location = f"{self.location}/{key}" if key else str(self.location)
        cures = [fault.cure] if fault.cure else []
        if self._writing:
            cures.append("the same command continues")
        cls = CorruptionError if fault.damaged and self._raises is StoreError else self._raises
        return cls("; ".join([f"{location}: {fault.message}{attempts}", *cures]))

    def _require(self, operation: Callable[[Any, Any], T], key: str = "") -> T:
        found = self._retry(lambda obs, handle: (operation(obs, handle),), key)
        if found is None:
            raise self.error(key, Fault("no such object"))
        return found[0]

    def _retry(self, operation: Callable[[Any, Any], T], key: str) -> T | None:
        """Run an operation with retries; None if there is no such object."""
        obs, handle = self._connect()
        bucket = self.location.scheme, self.location.bucket
        started, delay = time.monotonic(), FIRST_DELAY
        for attempt in itertools.count(1):
            try:
                result = operation(obs, handle)
            except (obs.exceptions.BaseError, FileNotFoundError, ShortRead) as error:
                fault = classify_error(error, *bucket)
                if fault.absent:
                    _responsive_buckets.add(bucket)
                    return None
                elapsed = time.monotonic() - started
                late, often = elapsed + delay > RETRY_TIMEOUT, attempt >= MAX_FIRST_ATTEMPTS
                if not fault.transient or (late if bucket in _responsive_buckets else often):
                    attempts = f" (tried {attempt} times in {elapsed:.1f} s)" if attempt > 1 else ""
                    raise self.error(key, fault, attempts) from redacted_error(error)
            else:
                _responsive_buckets.add(bucket)
                return result
            self.retries += 1
            time.sleep(delay * random.uniform(0.5, 1))  # noqa: S311 - spreads the retries of many workers
            delay = min(2 * delay, MAX_DELAY)
        raise AssertionError

    def _connect(self) -> tuple[Any, Any]:
        """The module obstore, and the store; credentials, region and endpoint come from the environment."""
        self.check_process()
        import obstore
        from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

        if self._handle is None:
            location, timeout = self.location, WRITE_TIMEOUT if self._writing else READ_TIMEOUT
            classes: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
            try:
                self._handle = classes.get(location.scheme, HTTPStore).from_url(
                    str(location),
                    client_options=_client_options(location, timeout),
                    retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},  # `_retry` does
                )
            except (obstore.exceptions.BaseError, ValueError) as error:
                fault = classify_error(error, location.scheme, location.bucket)
                raise self.error("", fault) from redacted_error(error)
        return obstore, self._handle

    def check_process(self) -> None:
        """Raise in a child forked from a process that has used obstore: it would block forever there."""
        global _owner_pid  # noqa: PLW0603 - obstore's thread pool is global, too
        pid = os.getpid()
        if _owner_pid is None:
            _owner_pid = pid
        if _owner_pid != pid:
            msg = (
                f"{self.location}: object stores cannot be used in a forked process: start workers with "
                "multiprocessing_context='spawn' (unistore.Loader does this by itself)"
            )
            raise self._raises(msg)


def _delete(obs: Any, handle: Any, keys: str | list[str]) -> bool:
    obs.delete(handle, keys)
    return True


def _client_options(location: Location, timeout: str) -> dict[str, Any]:
    """HTTP options from the environment variables of the object store (``AWS_PROXY_URL``)."""
    options: dict[str, Any] = {"timeout": timeout}
    prefix = _VARIABLE_PREFIXES.get(location.scheme)
    if prefix is None:
        return options | ({"allow_http": True} if location.scheme == "http" else {})
    found = {key: os.environ.get(f"{prefix}{key.upper()}") for key in _CLIENT_KEYS}
    return options | {key: value for key, value in found.items() if value}
