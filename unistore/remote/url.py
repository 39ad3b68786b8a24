"""URLs of stores: parsed and checked, and redacted where they are printed or stored."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit

from unistore.errors import InputError
from unistore.system.machine import absolute

if TYPE_CHECKING:  # numpy takes a fifth of a second
    from unistore.system.types import PathLike

# Schemes of object stores that can be written to.
BUCKETS = ("s3", "gs", "az")
SCHEMES = (*BUCKETS, "hf", "https", "http", "file")

_URL_START = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_CREDENTIALS = "set the environment variables of the service, such as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL"
_REPOSITORIES = "write hf://datasets/ORG/NAME/path, or hf://ORG/NAME/path for a model; @REVISION follows NAME"
_COLLAPSED = re.compile(rf"({'|'.join(SCHEMES)}):/[^/]")

# A URL inside a text; with one slash only if ``pathlib`` removed the other
_URL = re.compile(r"""[a-zA-Z][a-zA-Z0-9+.-]+:/+[^\s'"<>]*[^\s'"<>.,:;)]""")
# Host, bucket or address, with an optional port
_HOST = re.compile(r"\[[^\]]*\](:[0-9]*)?|[^:@]*(:[0-9]*)?")


def redact_url(url: str) -> str:
    """Return a URL for messages, with ``…`` in place of anything that may be secret.

    If host and password cannot be separated for certain, both are removed.
    """
    # A password may hold any character, unescaped ones too
    scheme, colon, remainder = url.partition(":")
    address = remainder.lstrip("/")
    slashes = remainder[: len(remainder) - len(address)]
    path = re.split("[?#]", address, maxsplit=1)[0]
    mark = address[len(path) : len(path) + 1]
    if "@" in path.partition("/")[0] or ":" in path.rpartition("@")[0]:
        path = f"…@{path.rpartition('@')[2]}"
    if not _HOST.fullmatch(path.partition("/")[0].removeprefix("…@")):
        path = "…"
    return f"{scheme}{colon}{slashes}{path}{mark}{'…' if mark else ''}"


def redact_urls(value: Any) -> Any:
    """Return a text, or a JSON value, with every URL redacted."""
    if isinstance(value, str):
        return _URL.sub(lambda url: redact_url(url[0]), value) if ":/" in value else value
    if isinstance(value, dict):
        return {redact_urls(key): redact_urls(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact_urls(item) for item in value]
    return value


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """A prefix in an object store, a path in a repository of the Hub, or on a web server."""

    # ``"s3"``, ``"gs"``, ``"az"``, ``"hf"``, ``"https"`` or ``"http"``.
    scheme: str
    # Bucket, container or host; of the Hub ``"datasets/ORG/NAME@REV"``, or ``"ORG/NAME"`` for a model.
    bucket: str
    # Path below the bucket, without leading and trailing slashes.
    prefix: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def name(self) -> str:
        return self.prefix.rpartition("/")[2]

    def with_suffix(self, suffix: str) -> StoreLocation:
        return StoreLocation(self.scheme, self.bucket, self.prefix + suffix)


def is_url(path: PathLike) -> bool:
    """Return whether a path is a URL, or raise `InputError` if ``pathlib`` removed a slash from it."""
    text = os.fspath(path)
    if _COLLAPSED.match(text):
        raise _refused(text, "pathlib has removed a slash of this URL", "give it as text, not as a Path")
    return _URL_START.match(text) is not None


def require_local_path(path: PathLike, argument: str) -> str:
    """Return a path as text, or raise an `InputError` of the argument `argument` if it is a URL."""
    text = os.fspath(path)
    if _URL_START.match(text) or _COLLAPSED.match(text):
        raise _refused(text, f"{argument} must be on this machine", "give a path, not a URL")
    return text


def parse_url(url: str) -> StoreLocation:
    """Parse the URL of a store, or raise `InputError` unless it is a scheme, a bucket and a path alone."""
    parts = _split(url)
    scheme = parts.scheme.lower()
    if scheme not in SCHEMES:
        message = f"the scheme '{parts.scheme}' is not known"
        raise _refused(url, message, f"use one of {', '.join(SCHEMES)}")
    if not parts.netloc and scheme != "file":
        raise _refused(url, "the bucket is missing", f"write {scheme}://bucket/prefix")
    path = [part for part in parts.path.split("/") if part]
    if any(part in (".", "..") for part in path):
        message = "the URL of a store must not contain '.' or '..'"
        raise _refused(url, message, "write the URL without them")
    if scheme == "hf":
        from unistore.remote.hub import require_hub, split_uri

        require_hub(redact_url(url))
        try:
            return StoreLocation(scheme, *split_uri(f"hf://{parts.netloc}{parts.path}"))
        except ValueError as error:
            raise _refused(url, str(error), _REPOSITORIES) from error
    return StoreLocation(scheme, parts.netloc, "/".join(path))


def file_path(url: str) -> str | None:
    """Return the path of a ``file://`` URL of this machine, None for any other URL."""
    parts = _split(url)
    if parts.scheme.lower() != "file":
        return None
    if parts.netloc not in ("", "localhost"):
        raise _refused(url, "this file is on another machine", "write file:///folder, with three slashes")
    return unquote(parts.path)


def place_of(path: PathLike) -> str:
    """Return a path that leads to the same place wherever the process goes, and a URL as it is."""
    text = os.fspath(path)
    return text if is_url(text) else absolute(text)


def local_path(path: PathLike) -> Path | None:
    """Return the local path of a path or ``file://`` URL, None for that of an object store."""
    folder = local_folder(path)
    return None if folder is None else Path(folder)


def local_folder(path: PathLike) -> str | None:
    """Return the local path as text, which of thousands of parts is made in a tenth of the time."""
    text = os.fspath(path)
    return file_path(text) if is_url(text) else text


def _split(url: str) -> SplitResult:
    shown = redact_url(url)
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _refused(url, "is not a valid URL", "write scheme://bucket/prefix") from None
    is_secret = "…@" in shown or shown == f"{parts.scheme}://…"
    if is_secret and parts.scheme.lower() == "hf":  # a token, or a name without its organisation
        message = "two parts, ORG/NAME, are needed before '@', and a URL must not contain credentials"
        raise _refused(url, message, f"{_REPOSITORIES}. The token comes from hf auth login")
    if is_secret:
        raise _refused(url, "a URL must not contain credentials", _CREDENTIALS)
    if parts.scheme.lower() in BUCKETS and ":" in parts.netloc:
        place = f"{parts.scheme}://…"
        raise InputError.at(place, "a bucket has no port and no password", _CREDENTIALS, "option")
    if "?" in url or "#" in url:
        message = "the URL of a store has no query and no fragment"
        raise _refused(url, message, "remove the text from '?' or '#' on")
    return parts


def _refused(url: str, message: str, fix: str) -> InputError:
    return InputError.at(redact_url(url), message, fix, "option")
