"""URLs as text for people and files: without user, password, query and fragment."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["shown_url", "without_secrets"]

_URL = re.compile(r"""[a-zA-Z][a-zA-Z0-9+.-]+:/+[^\s'"<>]*[^\s'"<>.,:;)]""")
"""A URL inside a text; one slash is left where ``pathlib`` took the other one."""
_PLACE = re.compile(r"\[[^\]]*\](:[0-9]*)?|[^:@]*(:[0-9]*)?")
"""Host, bucket or address, with its port."""


def shown_url(url: str) -> str:
    """A URL as messages show it: what may be secret is replaced by ``…``.

    A password may hold any character, unescaped ones too. Where it cannot be told from the host for
    certain, more is left out than need be.
    """
    scheme, colon, rest = url.partition(":")
    address = rest.lstrip("/")
    slashes = rest[: len(rest) - len(address)]
    place = re.split("[?#]", address, maxsplit=1)[0]
    mark = address[len(place) : len(place) + 1]
    if "@" in place.partition("/")[0] or ":" in place.rpartition("@")[0]:
        place = f"…@{place.rpartition('@')[2]}"
    if not _PLACE.fullmatch(place.partition("/")[0].removeprefix("…@")):
        place = "…"
    return f"{scheme}{colon}{slashes}{place}{mark}{'…' if mark else ''}"


def without_secrets(value: Any) -> Any:
    """A text, or the texts in a JSON value, with every URL as `shown_url` gives it."""
    if isinstance(value, str):
        return _URL.sub(lambda url: shown_url(url[0]), value) if ":/" in value else value
    if isinstance(value, dict):
        return {without_secrets(key): without_secrets(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_secrets(each) for each in value]
    return value
