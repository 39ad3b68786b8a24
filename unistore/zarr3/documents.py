"""Untrusted JSON: strict parsing, short one-line reprs, and comparison with what is expected."""

from __future__ import annotations

import json
import math
import reprlib
from typing import Any, NoReturn, TypeGuard

from unistore.errors import StoreError, UnsupportedError
from unistore.system.types import JsonObject

# Levels of objects and lists in one document.
DEEPEST = 64
_LONGEST_INTEGER = 20  # digits of 2**64 - 1; the sign of a negative one, which has 19

# In an expected document: any value.
ANY: Any = ...

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 120


class DocumentError(ValueError):
    """A text is not a JSON document, or not of the kind that was expected."""


def parse_json(raw: bytes) -> Any:
    """Read a JSON text, or raise a `DocumentError` that names the broken rule.

    Stricter than ``json.loads``: UTF-8, no NaN or Infinity, no integer beyond 64 bits, no float beyond
    float64, no name twice in one object, at most `DEEPEST` levels.
    """
    try:
        document = _DECODER.decode(raw.decode())
    except DocumentError:
        raise
    except (ValueError, RecursionError) as error:
        why = f"more than {DEEPEST} levels" if isinstance(error, RecursionError) else error
        msg = f"it is not valid JSON: {why}"
        raise DocumentError(msg) from error
    if raw.count(b"[") + raw.count(b"{") > DEEPEST:
        _check_depth(document)
    return document


def parse_document(raw: bytes) -> JsonObject:
    """Read a JSON text that is an object. Raises `DocumentError` if it is something else."""
    document = parse_json(raw)
    if not isinstance(document, dict):
        msg = f"it contains {shown(document)}, expected a JSON object"
        raise DocumentError(msg)
    return document


def shown(value: object) -> str:
    """Return a short repr for an error message, on one line."""
    return _short.repr(value)


def must_be(where: str, what: str, rule: str, value: object) -> StoreError:
    """Return the error for a value that is not valid. `where` names store and array."""
    return StoreError(f"{where}: {what} must be {rule}, found {shown(value)}")


def is_list_of(value: object, kind: type) -> TypeGuard[list[Any]]:
    """Return whether a value is a list of one kind. A bool is not an int."""
    return isinstance(value, list) and all(type(item) is kind for item in value)


def check_equal(value: object, expected: object, what: str, where: str) -> None:
    """Raise `UnsupportedError`, which names the first difference, unless a value is as expected."""
    if expected is ANY:
        return
    if isinstance(value, dict) and isinstance(expected, dict):
        for name in expected:
            if name not in value:
                raise unsupported(where, f"{what} has no {name!r}")
            check_equal(value[name], expected[name], f"{what}.{name}", where)
        for name in sorted(value.keys() - expected.keys()):
            raise unsupported(where, f"{what} has {shown(name)}")
    elif isinstance(value, list) and isinstance(expected, list) and len(value) == len(expected):
        for number, item in enumerate(value):
            check_equal(item, expected[number], f"{what}[{number}]", where)
    elif value != expected:
        raise unsupported(where, f"{what} is {shown(value)}, expected {shown(expected)}")


def unsupported(where: str, what: str) -> UnsupportedError:
    """Return the error for an array that is not as unistore writes arrays."""
    fix = "open arrays that unistore did not write with unistore.open_zarr"
    return UnsupportedError(f"{where}: {what}. Fix: {fix}")


def _check_depth(value: object, levels: int = DEEPEST) -> None:
    children = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(children, list):
        return
    if not levels:
        msg = f"more than {DEEPEST} levels of objects and lists"
        raise DocumentError(msg)
    for child in children:
        if isinstance(child, dict | list):
            _check_depth(child, levels - 1)


def _unique(pairs: list[tuple[str, Any]]) -> JsonObject:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        msg = f"an object has the name {shown(twice)} twice"
        raise DocumentError(msg)
    return members


def _integer(text: str) -> int:
    if len(text) > _LONGEST_INTEGER:
        msg = f"an integer has {len(text):,} digits, more than 64 bits allow"
        raise DocumentError(msg)
    return int(text)


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        msg = f"the number {shown(text)} is too large for float64"
        raise DocumentError(msg)
    return number


def _constant(text: str) -> NoReturn:
    msg = f"{text} is not JSON"
    raise DocumentError(msg)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=_float, parse_constant=_constant
)
