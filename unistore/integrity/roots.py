"""A root document with one wrong byte, set right: it carries its own digest, which only one change restores.

The root is the only place that holds a store's options, so it is repaired from itself where that is possible.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import xxhash

from unistore.store.consolidated import root_head
from unistore.store.manifest import root_is_intact
from unistore.zarr3.documents import DocumentError

__all__ = ["repaired_root"]

_SIGNATURE = re.compile(rb'"root": "([0-9a-f]{32})"')
_NEXT = b' "attributes": {'
_ZEROS = b"0" * 32
_TAIL = 80
"""Bytes at the end among which the signature stands."""
_WORK = 2 * 10**11
"""Bytes to hash at most: some ten seconds."""

Candidates = Callable[[int], list[int]]
"""Gives the values that a byte may have had."""


def repaired_root(document: bytes, documents: Mapping[str, bytes]) -> bytes | None:
    """The document that was signed, if one byte is all that was changed; None if it is not.

    Parameters
    ----------
    document
        A damaged root document.
    documents
        Those that it repeats, by key: what is damaged there is taken from them if they are sound.
    """
    head = _head(document, documents)
    document = head + document[len(head) :]
    if root_is_intact(document):
        return document
    repaired = _repaired_before(document, len(head), _one_bit) or _repaired_signature(document)
    return repaired or _repaired_before(document, len(head), _any_value)


def _head(document: bytes, documents: Mapping[str, bytes]) -> bytes:
    """What the document began with; nothing where it does not go on after that as it should."""
    try:
        head = root_head(documents)
    except DocumentError:
        return b""
    follows = document[len(head) :][: len(_NEXT)]
    return head if sum(a != b for a, b in zip(follows, _NEXT, strict=False)) <= 1 else b""


def _repaired_before(document: bytes, first: int, candidates: Candidates) -> bytes | None:
    """Set a byte from `first` on, outside the signature, so that the digest is what the signature says."""
    found = list(_SIGNATURE.finditer(document, first))
    if not found or (len(document) - first) ** 2 * len(candidates(0)) > _WORK:
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
    """Set a byte of the signature itself, at the document's end, right."""
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
