"""Removes user, password, query and fragment from URLs that are printed or stored."""

from __future__ import annotations

import re
from typing import Any

_URL = re.compile(r"""[a-zA-Z][a-zA-Z0-9+.-]+:/+[^\s'"<>]*[^\s'"<>.,:;)]""")
"""A URL inside a text; with one slash only if ``pathlib`` removed the other."""
_HOST = re.compile(r"\[[^\]]*\](:[0-9]*)?|[^:@]*(:[0-9]*)?")
"""Host, bucket or address, with an optional port."""


def redact_url(url: str) -> str:
    """A URL for messages, with ``…`` in place of anything that may be secret.

    A password may hold any character, unescaped ones too. Where host and password cannot be separated for
    certain, both are removed.
    """
    scheme, colon, rest = url.partition(":")
    address = rest.lstrip("/")
    slashes = rest[: len(rest) - len(address)]
    path = re.split("[?#]", address, maxsplit=1)[0]
    mark = address[len(path) : len(path) + 1]
    if "@" in path.partition("/")[0] or ":" in path.rpartition("@")[0]:
        path = f"…@{path.rpartition('@')[2]}"
    if not _HOST.fullmatch(path.partition("/")[0].removeprefix("…@")):
        path = "…"
    return f"{scheme}{colon}{slashes}{path}{mark}{'…' if mark else ''}"


def redact_urls(value: Any) -> Any:
    """A text, or a JSON value, with every URL redacted."""
    if isinstance(value, str):
        return _URL.sub(lambda url: redact_url(url[0]), value) if ":/" in value else value
    if isinstance(value, dict):
        return {redact_urls(key): redact_urls(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact_urls(each) for each in value]
    return value
