"""Operations on the objects under one URL, with retries, whose errors name the URL."""

# obstore's thread pool does not survive a fork: a forked child that used it would block forever. So the
# first process that uses it is recorded, and use in any other process raises an error

from __future__ import annotations

import itertools
import os
import random
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache, cached_property, lru_cache, partial
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

from unistore.errors import CorruptionError, StoreError, UnistoreError
from unistore.remote import hub
from unistore.remote.url import StoreLocation, parse_url, redact_urls
from unistore.system.extras import require
from unistore.system.progress import COUNTS
from unistore.system.types import Attributes, Buffer
from unistore.zarr3.storage import DOCUMENT_LIMIT, ROOT, AbsentError, replaced
from unistore.zarr3.writer import ordered_map

# Exceptions of obstore as one-line faults with a fix, and whether a retry may help.

# Of environment variables, by scheme.
_PREFIXES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_SKIP_SIGNATURE=true for a public bucket)",
    "gs": "GOOGLE_SERVICE_ACCOUNT (GOOGLE_SKIP_SIGNATURE=true for a public bucket)",
    "az": "AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN (AZURE_SKIP_SIGNATURE=true if public)",
}
_ENDPOINT = {"s3": "AWS_ENDPOINT_URL", "gs": "GOOGLE_BASE_URL", "az": "AZURE_STORAGE_ENDPOINT"}

_STATUS = re.compile(r"status(?: code)?: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_OTHER_COPY = "restore it from a copy"
_RANGES = "this server does not support HTTP ranges"
_NETWORK = "check the network and the endpoint"

# Exceptions of obstore: a pattern in their type and text, what happened, what to do, and fields of `Fault`
_RULES: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    (
        "<Code>(NoSuchBucket|ContainerNotFound)",
        "there is no bucket {bucket!r}",
        "check its name and {endpoint}",
        (),
    ),
    ("^FileNotFoundError", "no such object", "", ("absent", "answered")),
    # asked for credentials on cloud machines
    (r"169\.254\.169\.254|metadata\.google\.internal", "no credentials found", "set {credentials}", ()),
    ("MissingSecretAccessKey", "there is no secret key", "set AWS_SECRET_ACCESS_KEY too", ()),
    ("MissingAccessKeyId", "there is no access key", "set AWS_ACCESS_KEY_ID too", ()),
    ("^(PermissionDenied|Unauthenticated)Error", "access denied{code}", "check {credentials}", ()),
    ("status(?: code)?: 40[13]", "access denied{code}", "check {credentials}", ()),
    ("BareRedirect", "the bucket is in another region", "set AWS_REGION", ()),
    ("BadScheme", "the endpoint is not encrypted (http)", "set {prefix}ALLOW_HTTP=true to allow it", ()),
    ("MissingAccount", "there is no name of a storage account", "set AZURE_STORAGE_ACCOUNT_NAME", ()),
    (
        "NotPartial|Range request not supported",
        _RANGES,
        "use a server that does, not python -m http.server",
        (),
    ),
    ("status(?: code)?: 416", "ends before the requested range", _OTHER_COPY, ("damaged",)),
    (
        "status(?: code)?: (?!501)(5..|408|425|429)",
        "the server answers {status}{code}",
        "try again later",
        ("transient", "answered"),
    ),
    (_STATUS.pattern, "the server answers {status}{code}", "", ()),
    ("kind: Connect", "there is no connection to the server", _NETWORK, ("transient",)),
    ("kind: Timeout", "the server did not answer in time", _NETWORK, ("transient",)),
    ("kind: Interrupted", "the connection broke during a response", _NETWORK, ("transient",)),
    ("kind: Request", "the connection broke", _NETWORK, ("transient",)),
    ("kind: Decode", "the response cannot be decoded", _NETWORK, ("transient",)),
    ("", "{first_line}", "check the settings of {endpoint}", ()),
)


class ShortRead(Exception):  # noqa: N818 - becomes a CorruptionError if retries do not help
    """A response with fewer bytes than requested."""

    def __init__(self, message: str, fix: str = _OTHER_COPY) -> None:
        super().__init__(message)
        self.fix = fix


@dataclass(frozen=True, slots=True)
class Fault:
    """Why an operation failed, in one line, and what to do about it."""

    message: str
    fix: str = ""
    transient: bool = False  # a retry may help
    answered: bool = False  # a server has spoken
    absent: bool = False  # there is no such object
    damaged: bool = False  # it is too short


def classify_error(error: Exception, scheme: str, bucket: str) -> Fault:
    """Classify an exception of obstore, raised for a bucket of a URL."""
    # The text begins with a sentence, the debug form that follows has kind and status
    if isinstance(error, ShortRead):
        return Fault(str(error), error.fix, transient=True, answered=True, damaged=True)
    if isinstance(error, hub.HubError):
        return Fault(error.message, error.fix, transient=error.transient, answered=error.answered)
    text = str(error)
    named = f"{type(error).__name__} {text}"
    code = _CODE.search(text)
    facts = {
        "bucket": bucket,
        "status": _status(text),
        "code": f" ({code[1]})" if code else "",
        "endpoint": _ENDPOINT.get(scheme, "the host"),
        "credentials": _CREDENTIALS.get(scheme, "a server that lets everybody read"),
        "prefix": _PREFIXES.get(scheme, "AWS_"),
        "first_line": _first_line(text),
    }
    _, message, fix, fields = next(rule for rule in _RULES if re.search(rule[0], named))
    return Fault(message.format(**facts), fix.format(**facts), **dict.fromkeys(fields, True))


def lacks_conditional_put(error: Exception) -> bool:
    """Return whether a server rejected ``If-None-Match`` because it does not support it."""
    text = str(error)
    return type(error).__name__ == "NotSupportedError" or _status(text) == 501 or "NotImplemented" in text


def _status(text: str) -> int:
    return int(match[1]) if (match := _STATUS.search(text)) else 0


def redacted_error(error: Exception) -> Exception:
    """Return a library's exception as the cause of ours, without text that may hold secrets."""
    message = f"{type(error).__name__}: {_first_line(str(error))}"
    return RuntimeError(message).with_traceback(error.__traceback__)


def _first_line(text: str) -> str:
    first: str = redact_urls(text.partition("\n")[0].strip())
    return first if len(first) <= 200 else f"{first[:197]}…"


T = TypeVar("T")

# Seconds of retries after which an operation fails.
RETRY_TIMEOUT = 60.0
# Attempts while no server has answered, so that a wrong endpoint fails early.
MAX_FIRST_ATTEMPTS = 3
# Seconds before the second attempt, and at most; doubles with every attempt, with random jitter.
FIRST_DELAY = 0.1
MAX_DELAY = 8.0
# Of one request, body included.
READ_TIMEOUT = "60s"
WRITE_TIMEOUT = "300s"

_CLIENT_KEYS = (
    *("allow_http", "allow_invalid_certificates", "root_certificate"),
    *("connect_timeout", "read_timeout", "timeout"),
    *("proxy_url", "proxy_excludes", "proxy_ca_certificate"),
)
# Attribute of an object: when it was written before it was copied to its key.
_SEALED = "sealed"
_owner_pid: int | None = None
# (scheme, bucket) pairs for which a server has answered this process, be it that it is busy
_responsive_buckets: set[tuple[str, str]] = set()


class RemoteObject(NamedTuple):
    """An object as its server describes it."""

    bytes: int
    modified: float  # seconds since 1970
    tag: str  # entity tag, empty where the server gives none

    @classmethod
    def of(cls, meta: Attributes) -> RemoteObject:
        return cls(int(meta["size"]), meta["last_modified"].timestamp(), meta["e_tag"] or "")


class ObjectClient:
    """Objects under a URL, thread-safe and pickled as its arguments.

    It connects with the first operation. Writing has a longer timeout than reading.
    """

    def __init__(
        self,
        location: StoreLocation | str,
        *,
        writing: bool = False,
        raises: type[UnistoreError] = StoreError,
    ) -> None:
        self.location = parse_url(location) if isinstance(location, str) else location
        self.requests = 0
        self.documents_read = 0
        self._tags: dict[str, str] = {}  # what each object was when it was read first
        self._confirmed = 0  # number of those that were read before the root was seen to stand
        self._writing = writing
        self._raises = raises
        self._handle: Any = None
        self._headers: dict[str, str] = {}  # of its requests

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), writing=self._writing, raises=self._raises), (self.location,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.location)!r})"

    @property
    def place(self) -> str:
        """The URL; of a branch on the Hub that was read, the URL of the commit."""
        return str(self.location)

    @property
    def handle(self) -> Any:
        return self._connect()[1]

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
            return _whole_range(answer, start, size)

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

    def error(self, key: str, fault: Fault, attempts: str = "") -> UnistoreError:
        """Return the exception to raise for a fault."""
        location = f"{self.location}/{key}" if key else str(self.location)
        fix = fault.fix
        if self._writing:
            fix = f"{fix}, then run the same command" if fix else "run the same command again"
        cls = CorruptionError if fault.damaged and self._raises is StoreError else self._raises
        text = f"{location}: {fault.message}{attempts}"
        return cls(f"{text}. Fix: {fix}" if fix else text)

    def _require(self, operation: Callable[[Any, Any], T], key: str = "") -> T:
        results = self._retry(lambda obs, handle: (operation(obs, handle),), key)
        if results is None:
            raise self.error(key, Fault("no such object"))
        return results[0]

    def _retry(self, operation: Callable[[Any, Any], T], key: str) -> T | None:
        # Connected anew for each attempt: a token may have been renewed
        return self._attempts(lambda: operation(*self._connect()), key)

    def _attempts(self, operation: Callable[[], T], key: str) -> T | None:
        obs = self._library()
        bucket = self.location.scheme, self.location.bucket
        started = time.monotonic()
        delay = FIRST_DELAY
        for attempt in itertools.count(1):
            self.requests += 1
            try:
                result = operation()
            except (obs.exceptions.BaseError, FileNotFoundError, ShortRead, hub.HubError) as error:
                fault = self._fault(error)
                if fault.answered:
                    _responsive_buckets.add(bucket)
                if fault.absent:
                    return None
                elapsed = time.monotonic() - started
                late = elapsed + delay > RETRY_TIMEOUT
                exhausted = attempt >= MAX_FIRST_ATTEMPTS
                if not fault.transient or (late if bucket in _responsive_buckets else exhausted):
                    attempts = f" (tried {attempt} times in {elapsed:.1f} s)" if attempt > 1 else ""
                    raise self.error(key, fault, attempts) from redacted_error(error)
            else:
                _responsive_buckets.add(bucket)
                return result
            COUNTS["retries"] += 1
            time.sleep(delay * random.uniform(0.5, 1))  # noqa: S311 - spreads the retries of many workers
            delay = min(2 * delay, MAX_DELAY)
        raise AssertionError

    def _fault(self, error: Exception) -> Fault:
        if self.location.scheme == "hf":
            error = self._reason_of_hub(error) or error
        return classify_error(error, self.location.scheme, self.location.bucket)

    def _reason_of_hub(self, error: Exception) -> hub.HubError | None:
        """Return why the Hub answers so. None: the error says it, or there is no such file."""
        is_denied = type(error).__name__ in ("UnauthenticatedError", "PermissionDeniedError")
        if not is_denied and not isinstance(error, FileNotFoundError):
            return hub.meaning(str(error))
        if self._headers != hub.request_headers():
            self._handle = None
            return hub.HubError("the token was renewed", transient=True)
        return hub.why_denied(self.location.bucket) if is_denied else hub.why_absent(self.location.bucket)

    def _library(self) -> Any:
        self.check_process()
        require("obstore", f"{self.location} is read by obstore,", "cloud")
        import obstore

        return obstore

    def _connect(self) -> tuple[Any, Any]:
        # Credentials, region and endpoint come from the environment
        obstore = self._library()
        if self._handle is None:
            timeout = WRITE_TIMEOUT if self._writing else READ_TIMEOUT
            if self.location.scheme == "hf":
                self._pin()
                self._headers = hub.request_headers()
            location = self.location
            environment = hash(frozenset(os.environ.items()))
            try:
                self._handle = _open_handle(location, timeout, environment, *self._headers.items())
            except (obstore.exceptions.BaseError, ValueError) as error:
                fault = classify_error(error, location.scheme, location.bucket)
                raise self.error("", fault) from redacted_error(error)
        return obstore, self._handle

    def _pin(self) -> None:
        """Replace the revision of a repository by the commit that it has now."""
        location = self.location
        bucket = self._attempts(lambda: hub.pinned(location.bucket), "")
        assert bucket is not None
        self.location = replace(location, bucket=bucket)

    def check_process(self) -> None:
        """Raise in a child forked from a process that has used obstore: it would block forever there."""
        global _owner_pid  # noqa: PLW0603 - obstore's thread pool is global, too
        pid = os.getpid()
        if _owner_pid is None:
            _owner_pid = pid
        if _owner_pid != pid:
            msg = (
                f"{self.location}: a bucket cannot be read in a forked process. Fix: start workers with "
                "multiprocessing_context='spawn', as unistore.Loader does"
            )
            raise self._raises(msg)


@lru_cache(32)
def _open_handle(location: StoreLocation, timeout: str, _environment: int, *headers: tuple[str, str]) -> Any:
    # With its open connections, for all clients of a location. To make one takes 20 ms
    from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

    classes: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
    url = hub.base_url(location.bucket, location.prefix) if location.scheme == "hf" else str(location)
    return classes.get(location.scheme, HTTPStore).from_url(
        url,
        client_options=_client_options(location, url, timeout, dict(headers)),
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},  # `_retry` does
    )


def _delete(obs: Any, handle: Any, keys: str | list[str]) -> bool:
    obs.delete(handle, keys)
    return True


def _client_options(
    location: StoreLocation, url: str, timeout: str, headers: Mapping[str, str]
) -> dict[str, Any]:
    options: dict[str, Any] = {"timeout": timeout}
    prefix = _PREFIXES.get(location.scheme)
    if prefix is None:
        # Without it, a redirect from https:// to http:// is an error
        plain = {"allow_http": True} if url.startswith("http://") else {}
        # Headers stay at the host of the URL: the client drops them when a redirect leads to another one
        return options | plain | ({"default_headers": dict(headers)} if headers else {})
    settings = {key: os.environ.get(f"{prefix}{key.upper()}") for key in _CLIENT_KEYS}
    return options | {key: value for key, value in settings.items() if value}


U = TypeVar("U")

# Unwanted bytes between two ranges that are fetched along with them: they take a millisecond or two, another
# request takes tens.
GAP = 128 << 10
# Bytes of one request; larger reads are split into concurrent ones.
LIMIT = 4 << 20
# Bytes of one request for a part of an object that is read whole.
PART = 8 << 20
# Concurrent requests of one process.
CONCURRENCY = 16


class ObjectStorage(ObjectClient):
    """Objects under a URL, for reading.

    Ranges that are close together in one object are fetched by one request, up to `CONCURRENCY` requests
    at once. It is not fork-safe: a read in a forked process raises an error.
    """

    fork_safe = False

    @cached_property
    def documents(self) -> dict[str, bytes]:
        """Return documents that were read before, by key."""
        return {}

    @cached_property
    def shards(self) -> set[str]:
        """Return the keys of the objects whose ends were read."""
        return set()

    def get(self, key: str, limit: int = DOCUMENT_LIMIT) -> bytes:
        if key in self.documents:
            return self.documents[key]
        self.documents_read += 1
        document = super().get(key, limit)
        if document is None:
            msg = f"{self.location}/{key}: no such object"
            raise AbsentError(msg)
        return document

    def read_many(self, keys: Sequence[str], offsets: Sequence[int], sizes: Sequence[int]) -> Iterator[bytes]:
        self.check_process()  # our thread pool does not survive a fork, either
        confirming = None if self.is_confirmed else _thread_pool().submit(self.confirm)
        arriving = map_concurrently(self._fetch, coalesce(keys, offsets, sizes))
        received: dict[int, bytes] = {}
        for position in range(len(keys)):
            while position not in received:
                request, raw = next(arriving)
                for member in request.members:
                    low = offsets[member] - request.start
                    received[member] = raw[low : low + sizes[member]]  # all of it: not a copy
            if confirming is not None:
                confirming.result()
                confirming = None
            if not self.is_confirmed:
                self.confirm()
            yield received.pop(position)

    def read_ends(self, keys: Sequence[str], size: int) -> Iterator[tuple[int, bytes] | None]:
        self.check_process()
        self.shards.update(keys)
        return map_concurrently(lambda key: self.get_end(key, size), keys)

    def read_objects(self, sizes: Mapping[str, int]) -> Iterator[Iterator[bytes]]:
        """Yield the content of each object in parts, the next ones being read meanwhile."""
        self.check_process()
        parts: list[tuple[str, int, int]] = []
        for key, size in sizes.items():
            parts += [(key, size, start) for start in range(0, size, PART)]
        arriving = map_concurrently(self._part, parts)
        for size in sizes.values():
            of_object = islice(arriving, -(-size // PART))
            yield map(_raise_error, of_object)
            deque(of_object, 0)  # those that the caller left

    def _part(self, part: tuple[str, int, int]) -> bytes | StoreError:
        # Errors are returned, as they concern one object of many
        key, size, start = part
        stop = min(size, start + PART)

        def read(obs: Any, handle: Any) -> bytes:
            options = {} if stop - start == size else {"range": (start, stop)}
            answer = obs.get(handle, key, options=options)
            total = int(answer.meta["size"])
            if total != size:
                raise self.error(key, Fault(f"has {total:,} bytes, not {size:,}", damaged=True))
            return _whole_range(answer, start, stop - start)

        try:
            return self._require(read, key)
        except StoreError as error:
            return error

    def _fetch(self, request: RangeRequest) -> tuple[RangeRequest, bytes]:
        return request, self.get_range(request.key, request.start, request.stop - request.start)


def _whole_range(answer: Any, start: int, size: int) -> bytes:
    raw = bytes(answer.bytes())
    if len(raw) != size:
        msg = f"ends at byte {start + len(raw):,}, but {size:,} bytes from byte {start:,} were requested"
        raise ShortRead(msg)
    return raw


def _raise_error(part: bytes | StoreError) -> bytes:
    if isinstance(part, StoreError):
        raise part
    return part


@dataclass(slots=True)
class RangeRequest:
    """One request for the bytes ``start:stop`` of an object.

    `members` are the positions, in the requested list, of the ranges inside.
    """

    key: str
    start: int
    stop: int
    members: list[int]


def coalesce(
    keys: Sequence[str], offsets: Sequence[int], sizes: Sequence[int], *, gap: int = GAP, limit: int = LIMIT
) -> list[RangeRequest]:
    """Plan the requests for ranges ``offsets[i] : offsets[i] + sizes[i]`` of the objects ``keys[i]``.

    Ranges of one object that are at most `gap` bytes apart share a request, up to `limit` bytes. Requests
    are sorted by their first member.
    """
    # A consumer that goes in order then buffers little
    first: dict[str, int] = {}
    for position, key in enumerate(keys):
        first.setdefault(key, position)
    requests: list[RangeRequest] = []
    for position in sorted(range(len(keys)), key=lambda number: (first[keys[number]], offsets[number])):
        key = keys[position]
        begin = offsets[position]
        end = offsets[position] + sizes[position]
        last = requests[-1] if requests and requests[-1].key == key else None
        if last and begin - last.stop <= gap and max(last.stop, end) - last.start <= limit:
            last.stop = max(last.stop, end)
            last.members.append(position)
        else:
            requests.append(RangeRequest(key, begin, end, [position]))
    return sorted(requests, key=lambda request: min(request.members))


def map_concurrently(work: Callable[[T], U], items: Iterable[T]) -> Iterator[U]:
    """Return ``map(work, items)`` in order, on up to `CONCURRENCY` threads, for one item on this thread."""
    remaining = iter(items)
    first = list(islice(remaining, 2))
    if len(first) < 2:
        return map(work, first)
    return ordered_map(_thread_pool(), work, chain(first, remaining), CONCURRENCY)


@cache
def _thread_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(CONCURRENCY, thread_name_prefix="unistore-requests")
