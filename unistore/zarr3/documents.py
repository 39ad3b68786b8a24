"""Untrusted JSON: strict parsing, short one-line reprs, and the error for what the engine does not read."""

from __future__ import annotations

import json
import math
import reprlib
from typing import Any, NoReturn, TypeGuard

from unistore.errors import StoreError, UnsupportedError

DEEPEST = 64
"""Levels of objects and lists in one document."""
_LONGEST_INTEGER = 20  # digits of 2**64 - 1; the sign of a negative one, which has 19

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 120


class DocumentError(ValueError):
    """A text is not a JSON document, or not of the kind that was expected."""


def parse_json(raw: bytes) -> Any:
    """Read a JSON text.

    Stricter than ``json.loads``: UTF-8, no NaN or Infinity, no integer beyond 64 bits, no float beyond
    float64, no name twice in one object, at most `DEEPEST` levels.
    Raises `DocumentError`, which says the rule that it breaks.
    """
    try:
        found = _DECODER.decode(raw.decode())
    except DocumentError:
        raise
    except (ValueError, RecursionError) as error:
        why = f"more than {DEEPEST} levels" if isinstance(error, RecursionError) else error
        msg = f"not readable as JSON ({why})"
        raise DocumentError(msg) from error
    if raw.count(b"[") + raw.count(b"{") > DEEPEST:
        _check_depth(found)
    return found


def parse_document(raw: bytes) -> dict[str, Any]:
    """Read a JSON text that is an object; raises `DocumentError` if it is something else."""
    found = parse_json(raw)
    if not isinstance(found, dict):
        msg = f"holds {shown(found)}, expected a JSON object"
        raise DocumentError(msg)
    return found


def shown(value: object) -> str:
    """A value for an error message: on one line, and short."""
    return _short.repr(value)


def must_be(where: str, what: str, rule: str, found: object) -> StoreError:
    """Error for a value that is not what it must be; `where` names store and array."""
    return StoreError(f"{where}: {what} must be {rule}, found {shown(found)}")


def is_list_of(value: object, kind: type) -> TypeGuard[list[Any]]:
    """Whether a value is a list of one kind; a bool is not an int."""
    return isinstance(value, list) and all(type(item) is kind for item in value)


def parse_extension(item: object, where: str) -> tuple[str, dict[str, Any]]:
    """Name and configuration of an extension: ``{"name": …, "configuration": {…}}`` or a bare name."""
    if isinstance(item, str):
        return item, {}
    if isinstance(item, dict) and isinstance(item.get("name"), str):
        configuration = item.get("configuration", {})
        if isinstance(configuration, dict):
            return item["name"], configuration
    raise must_be(where, "extension", "an object with a name", item)


def _check_depth(document: object) -> None:
    level = [document]
    for _ in range(DEEPEST):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    msg = f"more than {DEEPEST} levels of objects and lists"
    raise DocumentError(msg)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        msg = f"the name {shown(twice)} stands twice in one object"
        raise DocumentError(msg)
    return found


def _integer(text: str) -> int:
    if len(text) > _LONGEST_INTEGER:
        msg = f"an integer of {len(text)} digits, expected one of 64 bits"
        raise DocumentError(msg)
    return int(text)


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        msg = f"the number {shown(text)} is beyond float64"
        raise DocumentError(msg)
    return number


def _constant(text: str) -> NoReturn:
    msg = f"{text} is not JSON"
    raise DocumentError(msg)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_integer, parse_float=_float, parse_constant=_constant
)


def unsupported(where: str, feature: str, known: str = "") -> UnsupportedError:
    """Error for a valid feature (``"codec 'zfpy'"``); `known` is what the engine implements instead."""
    instead = f" (it knows {known})" if known else ""
    return UnsupportedError(
        f"{where}: {feature} is not read by unistore's engine{instead}; use zarr: unistore.open_zarr"
    )
