"""Which paths are URLs, and what a URL of a store may look like."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from unistore.errors import InputError
from unistore.remote.redaction import shown_url

__all__ = ["BUCKETS", "Location", "file_path", "is_url", "local_only", "parse_url"]

BUCKETS = ("s3", "gs", "az")
"""Schemes of object stores that can be written to."""
SCHEMES = (*BUCKETS, "https", "http", "file")

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_COLLAPSED = re.compile(rf"({'|'.join(SCHEMES)}):/[^/]")


@dataclass(frozen=True, slots=True)
class Location:
    """A place in an object store.

    Attributes
    ----------
    scheme
        ``"s3"``, ``"gs"``, ``"az"``, ``"https"`` or ``"http"``.
    bucket
        Bucket, container or host.
    prefix
        Path in it, without slashes at its ends.
    """

    scheme: str
    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def name(self) -> str:
        """Last part of the prefix."""
        return self.prefix.rpartition("/")[2]

    def beside(self, suffix: str) -> Location:
        """The place whose name has a suffix more."""
        return Location(self.scheme, self.bucket, self.prefix + suffix)


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL instead of a place in the file system.

    Raises
    ------
    InputError
        If it was a URL until ``pathlib`` took one of its slashes.
    """
    text = os.fspath(path)
    if _COLLAPSED.match(text):
        msg = f"{shown_url(text)}: pathlib takes a slash of a URL away: give it as text, not as a Path"
        raise InputError(msg)
    return _URL.match(text) is not None


def local_only(path: str | os.PathLike[str], what: str) -> str:
    """A path of this machine as text.

    Raises
    ------
    InputError
        If it is a URL.
    """
    text = os.fspath(path)
    if _URL.match(text) or _COLLAPSED.match(text):
        msg = f"{shown_url(text)}: {what} must be on this machine: give a path, not a URL"
        raise InputError(msg)
    return text


def parse_url(url: str) -> Location:
    """Take a URL apart.

    Raises
    ------
    InputError
        If the scheme is none of `SCHEMES`, no bucket is named, or the URL carries more than a path.
    """
    parts = _parts(url)
    scheme, shown = parts.scheme.lower(), shown_url(url)
    if scheme not in SCHEMES:
        msg = f"{shown}: scheme {parts.scheme!r} is not known; one of: {', '.join(SCHEMES)}"
        raise InputError(msg)
    if not parts.netloc and scheme != "file":
        msg = f"{shown}: names no bucket; write {scheme}://bucket/prefix"
        raise InputError(msg)
    path = [part for part in parts.path.split("/") if part]
    if any(part in (".", "..") for part in path):
        msg = f"{shown}: '.' and '..' have no meaning in a URL of a store"
        raise InputError(msg)
    return Location(scheme, parts.netloc, "/".join(path))


def file_path(url: str) -> str | None:
    """Path in the file system that a ``file://`` URL stands for; None for any other URL.

    Raises
    ------
    InputError
        If it names another machine, or carries more than a path.
    """
    parts = _parts(url)
    if parts.scheme.lower() != "file":
        return None
    if parts.netloc not in ("", "localhost"):
        msg = f"{shown_url(url)}: a file on another machine; write file:///folder (three slashes)"
        raise InputError(msg)
    return unquote(parts.path)


def _parts(url: str) -> SplitResult:
    """Parts of a URL that carries nothing secret and nothing besides a path.

    Raises
    ------
    InputError
        If there is a user, a password, a query or a fragment, or it is no URL at all.
    """
    shown = shown_url(url)
    try:
        parts = urlsplit(url)
    except ValueError:
        msg = f"{shown}: is no valid URL; write scheme://bucket/prefix"
        raise InputError(msg) from None
    if "…@" in shown or shown == f"{parts.scheme}://…":
        msg = f"{shown}: credentials do not belong in a URL; see docs/remote.md"
        raise InputError(msg)
    if parts.scheme.lower() in BUCKETS and ":" in parts.netloc:
        msg = f"{parts.scheme}://…: a bucket has no port and no password; see docs/remote.md"
        raise InputError(msg)
    if "?" in url or "#" in url:
        msg = f"{shown}: a store's URL ends with its path: leave out what follows '?' or '#'"
        raise InputError(msg)
    return parts
