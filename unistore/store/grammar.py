"""Parsers of the members of a store's root document and manifest; `GrammarError` names rule and value."""

from __future__ import annotations

import re
from typing import Any

from unistore.schemas.tables import name_problem
from unistore.store.names import FORMAT_VERSION, MANIFEST, ROOT
from unistore.zarr3.documents import is_list_of, shown

_DIGEST = re.compile(r"[0-9a-f]{32}")
_FAMILY = re.compile(r"[a-z][a-z0-9_]{0,63}")
_DRIVE = re.compile(r"[A-Za-z]:")
_MAX_COUNT = 2**63 - 1
_MAX_KEY_LENGTH = 4096
_MAX_SPLITS = 256


class GrammarError(ValueError):
    """A member of a document violates the store format."""


def parse_digest(value: object, what: str) -> str:
    """xxh3-128: 32 lower-case hexadecimal digits."""
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise _violation(what, value, "32 lower-case hexadecimal digits")
    return value


def parse_count(value: object, what: str) -> int:
    """A number of bytes, files, rows or samples."""
    if type(value) is not int or not 0 <= value <= _MAX_COUNT:
        raise _violation(what, value, "an integer from 0 to 2**63 - 1")
    return value


def parse_rows(value: object, what: str) -> tuple[int, int]:
    """``[lo, hi]``: rows of axis 0, ``lo <= row < hi``."""
    pair = list(value) if isinstance(value, list | tuple) else None
    if not is_list_of(pair, int) or len(pair) != 2 or not 0 <= pair[0] <= pair[1] <= _MAX_COUNT:
        raise _violation(what, value, "two integers, 0 <= lo <= hi < 2**63")
    return pair[0], pair[1]


def parse_path(value: object, what: str) -> str:
    """Path of an array or group: valid names joined by ``/``."""
    if not isinstance(value, str) or len(value) > _MAX_KEY_LENGTH or _DRIVE.match(value):
        raise _violation(what, value, f"a relative path of at most {_MAX_KEY_LENGTH} characters")
    if (reason := name_problem(value)) is not None:
        raise _violation(what, value, f"a path inside the store: {reason}")
    return value


def parse_key(value: object, what: str) -> str:
    """Path of a file of the store: a valid path, with or without ``/zarr.json``."""
    if not isinstance(value, str):
        raise _violation(what, value, "a path inside the store")
    parse_path(value.removesuffix(f"/{ROOT}"), what)
    if value == MANIFEST:
        raise _violation(what, value, "a file that the manifest lists; it does not list itself")
    return value


def parse_object(value: object, what: str) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise _violation(what, value, "an object")
    return value


def parse_split_names(value: object, what: str) -> list[str]:
    """Different names of splits, by code."""
    if not is_list_of(value, str) or len(value) > _MAX_SPLITS or len(set(value)) != len(value):
        raise _violation(what, value, f"at most {_MAX_SPLITS} different names")
    return value


def parse_root(attributes: dict[str, Any]) -> dict[str, Any]:
    """The ``unistore`` attribute of a sealed store's root; unknown members are allowed."""
    if attributes.get("format_version") != FORMAT_VERSION:
        raise _violation("format_version", attributes.get("format_version"), str(FORMAT_VERSION))
    if missing := {"family", "samples", "fields", "seal"} - set(attributes):
        msg = f"attribute 'unistore' lacks {', '.join(sorted(missing))}"
        raise GrammarError(msg)
    family = attributes["family"]
    if not isinstance(family, str) or not _FAMILY.fullmatch(family):
        rule = "the name of a family: at most 64 lower-case letters, digits and '_'"
        raise _violation("'family'", family, rule)
    samples = parse_object(attributes["samples"], "'samples'")
    parse_count(samples.get("count"), "'samples' count")
    parse_path(samples.get("table"), "'samples' table")
    for path, field in parse_object(attributes["fields"], "'fields'").items():
        parse_path(path, "a path in 'fields'")
        _check_field(parse_object(field, f"field {shown(path)}"), f"field {shown(path)}")
    for path, moments in parse_object(attributes.get("statistics", {}), "'statistics'").items():
        parse_object(moments, f"statistics of {shown(path)}")
    for name in ("options", "created_with"):
        parse_object(attributes.get(name, {}), repr(name))
    if "main_table" in attributes:
        parse_path(attributes["main_table"], "'main_table'")
    parse_count(attributes.get("skipped", 0), "'skipped'")
    _check_seal(parse_object(attributes["seal"], "'seal'"))
    return attributes


def _check_field(field: dict[str, Any], what: str) -> None:
    if not is_list_of(axes := field.get("axes", []), str):
        raise _violation(what, axes, "a list of names as its axes")
    for name in ("unit", "description"):
        if not isinstance(field.get(name), str | None):
            raise _violation(what, field[name], f"a text as its {name}")


def _check_seal(seal: dict[str, Any]) -> None:
    if seal.get("manifest") != MANIFEST:
        raise _violation("seal manifest", seal.get("manifest"), MANIFEST)
    for name in ("digest", "content_digest", "root"):
        parse_digest(seal.get(name), f"seal {name}")
    for name in ("files", "bytes"):
        parse_count(seal.get(name), f"seal {name}")


def _violation(what: str, value: object, rule: str) -> GrammarError:
    return GrammarError(f"{what} is {shown(value)}, expected {rule}")
