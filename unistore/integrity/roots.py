"""A root document with one wrong byte, set right: it carries its own digest, which only one change restores.

The root is the only place that holds a store's options, so it is repaired from itself where that is possible.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import xxhash

from unistore.store.manifest import root_is_intact

__all__ = ["repaired_root"]

_SIGNATURE = re.compile(rb'"root": "([0-9a-f]{32})"')
_ZEROS = b"0" * 32
_TAIL = 80
"""Bytes at the end among which the signature stands."""
_WORK = 2 * 10**11
"""Bytes to hash at most: some ten seconds."""

Candidates = Callable[[int], list[int]]
"""Gives the values that a byte may have had."""


def repaired_root(document: bytes) -> bytes | None:
    """The document that was signed, if one byte is all that was changed; None if it is not.

    Parameters
    ----------
    document
        A damaged root document.
    """
    repaired = _repaired_before(document, _one_bit) or _repaired_signature(document)
    return repaired or _repaired_before(document, _any_value)


def _repaired_before(document: bytes, candidates: Candidates) -> bytes | None:
    """Set a byte outside the signature right, so that the digest is the one that the signature says."""
    found = list(_SIGNATURE.finditer(document))
    if not found or len(document) ** 2 * len(candidates(0)) > _WORK:
        return None
    lo, hi = found[-1].span(1)
    unsigned = bytearray(document[:lo] + _ZEROS + document[hi:])
    wanted = bytes.fromhex(document[lo:hi].decode())
    digest = xxhash.xxh3_128_digest
    for at, value in enumerate(unsigned):
        for other in candidates(value):
            unsigned[at] = other
            if digest(unsigned) == wanted:
                return bytes(unsigned[:lo]) + document[lo:hi] + bytes(unsigned[hi:])
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
