"""Repair one wrong byte of a root document: try values until the document has the digest that it carries.

No other file has the options of a store, so that the root cannot be made again from the sources alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import xxhash

from unistore.store.manifest import root_head, root_is_intact
from unistore.zarr3.documents import DocumentError

_SIGNATURE = re.compile(rb'"root": "([0-9a-f]{32})"')
_AFTER_HEAD = b' "attributes": {'
_ZEROS = b"0" * 32
_TAIL = 80
"""The signature is within so many bytes of the end."""
_MAX_HASHED = 2 * 10**11
"""Bytes to hash at most: about ten seconds."""

Candidates = Callable[[int], list[int]]
"""Gives the values that a byte may have had."""


def repaired_root(document: bytes, documents: Mapping[str, bytes]) -> bytes | None:
    """The root document as it was signed, if only one byte was changed; otherwise None.

    The part of it that repeats other documents is taken from `documents`, which are by key.
    """
    head = _head(document, documents)
    document = head + document[len(head) :]
    if root_is_intact(document):
        return document
    repaired = _repaired_before(document, len(head), _one_bit) or _repaired_signature(document)
    return repaired or _repaired_before(document, len(head), _any_value)


def _head(document: bytes, documents: Mapping[str, bytes]) -> bytes:
    """First part of the root, made from `documents`; empty if it does not fit what follows it."""
    try:
        head = root_head(documents)
    except DocumentError:
        return b""
    follows = document[len(head) :][: len(_AFTER_HEAD)]
    return head if sum(a != b for a, b in zip(follows, _AFTER_HEAD, strict=False)) <= 1 else b""


def _repaired_before(document: bytes, first: int, candidates: Candidates) -> bytes | None:
    """Change one byte from `first` on, outside the signature, so that the digest is that of the signature."""
    found = list(_SIGNATURE.finditer(document, first))
    if not found or (len(document) - first) ** 2 * len(candidates(0)) > _MAX_HASHED:
        return None
    lo, hi = found[-1].span(1)
    unsigned = bytearray(document[first:lo] + _ZEROS + document[hi:])
    wanted = bytes.fromhex(document[lo:hi].decode())
    head = xxhash.xxh3_128(document[:first])
    for at, value in enumerate(unsigned):
        for other in candidates(value):
            unsigned[at] = other
            digest = head.copy()
            digest.update(unsigned)
            if digest.digest() == wanted:
                whole = document[:first] + unsigned
                return whole[:lo] + document[lo:hi] + whole[hi:]
        unsigned[at] = value
    return None


def _repaired_signature(document: bytes) -> bytes | None:
    """Change one byte of the signature itself, near the end of the document."""
    for at in range(max(0, len(document) - _TAIL), len(document)):
        for value in range(256):
            changed = document[:at] + bytes([value]) + document[at + 1 :]
            if root_is_intact(changed):
                return changed
    return None


def _one_bit(value: int) -> list[int]:
    return [value ^ (1 << bit) for bit in range(8)]


def _any_value(value: int) -> list[int]:
    return [other for other in range(256) if other != value]
