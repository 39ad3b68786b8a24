"""A connection to a bucket or web server, whose operations are repeated while a retry may help."""

# obstore's thread pool does not survive a fork: a forked child that used it would block forever. So the
# first process that uses it is recorded, and use in any other process raises an error

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, TypeVar

from unistore.errors import CorruptionError, StoreError, UnistoreError
from unistore.remote import hub
from unistore.remote.faults import PREFIXES, Fault, ShortRead, classify_error, redacted_error
from unistore.remote.url import StoreLocation, parse_url
from unistore.system.extras import require
from unistore.system.progress import COUNTS

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
_owner_pid: int | None = None
# (scheme, bucket) pairs for which a server has answered this process, be it that it is busy
_responsive_buckets: set[tuple[str, str]] = set()


class Connection:
    """A connection to the objects under a URL, thread-safe and pickled as its arguments.

    It connects with the first operation. Writing has a longer timeout than reading.

    Parameters
    ----------
    location : StoreLocation or str
        The URL. That of a branch on the Hub becomes the URL of its commit with the first operation.
    writing : bool, default False
        Whether objects are written.
    raises : UnistoreError class, default StoreError
        Class of the errors.
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
        require("obstore", f"{self.location} needs", "cloud")
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


def _client_options(
    location: StoreLocation, url: str, timeout: str, headers: Mapping[str, str]
) -> dict[str, Any]:
    options: dict[str, Any] = {"timeout": timeout}
    prefix = PREFIXES.get(location.scheme)
    if prefix is None:
        # Without it, a redirect from https:// to http:// is an error
        plain = {"allow_http": True} if url.startswith("http://") else {}
        # Headers stay at the host of the URL: the client drops them when a redirect leads to another one
        return options | plain | ({"default_headers": dict(headers)} if headers else {})
    settings = {key: os.environ.get(f"{prefix}{key.upper()}") for key in _CLIENT_KEYS}
    return options | {key: value for key, value in settings.items() if value}
