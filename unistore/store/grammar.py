"""What the texts of a store may say: each member of root and manifest is parsed once, where it enters.

Every function gives the value in the type that the rest of unistore works with, or raises `GrammarError` with
the rule and what was found.
"""

from __future__ import annotations

import re
from typing import Any

from unistore.schemas.arrays import name_problem
from unistore.store.names import FORMAT_VERSION, MANIFEST, ROOT
from unistore.zarr3.documents import is_list_of, shown

__all__ = [
    "GrammarError",
    "parse_count",
    "parse_digest",
    "parse_key",
    "parse_object",
    "parse_path",
    "parse_root",
    "parse_rows",
    "parse_split_names",
]

_DIGEST = re.compile(r"[0-9a-f]{32}")
_FAMILY = re.compile(r"[a-z][a-z0-9_]*")
_DRIVE = re.compile(r"[A-Za-z]:")
_MOST = 2**63 - 1
_LONGEST_KEY = 4096
_MOST_SPLITS = 256
_LONGEST_FAMILY = 64
_SAMPLES = "samples"


class GrammarError(ValueError):
    """A member of a document is not what the format says."""


def parse_digest(value: object, what: str) -> str:
    """xxh3-128: 32 lower-case hexadecimal digits."""
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise _refused(what, value, "32 lower-case hexadecimal digits")
    return value


def parse_count(value: object, what: str) -> int:
    """A number of bytes, files, rows or samples."""
    if type(value) is not int or not 0 <= value <= _MOST:
        raise _refused(what, value, "an integer from 0 to 2**63 - 1")
    return value


def parse_rows(value: object, what: str) -> tuple[int, int]:
    """``[lo, hi]``: rows of axis 0, ``lo <= row < hi``."""
    pair = list(value) if isinstance(value, list | tuple) else None
    if not is_list_of(pair, int) or len(pair) != 2 or not 0 <= pair[0] <= pair[1] <= _MOST:
        raise _refused(what, value, "two integers, 0 <= lo <= hi < 2**63")
    return pair[0], pair[1]


def parse_path(value: object, what: str) -> str:
    """Path of an array or group: names of the format, joined by ``/``."""
    if not isinstance(value, str) or len(value) > _LONGEST_KEY or _DRIVE.match(value):
        raise _refused(what, value, f"a relative path of at most {_LONGEST_KEY} characters")
    reason = name_problem(value)
    if reason is not None:
        raise _refused(what, value, f"a path inside the store: {reason}")
    return value


def parse_key(value: object, what: str) -> str:
    """Path of a file of the store: a path as of an array, or of the metadata of one."""
    if not isinstance(value, str):
        raise _refused(what, value, "a path inside the store")
    parse_path(value.removesuffix(f"/{ROOT}"), what)
    if value == MANIFEST:
        raise _refused(what, value, "a file that the manifest lists; it does not list itself")
    return value


def parse_object(value: object, what: str) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise _refused(what, value, "an object")
    return value


def parse_split_names(value: object, what: str) -> list[str]:
    """Names of splits by their code, each once."""
    if not is_list_of(value, str) or len(value) > _MOST_SPLITS or len(set(value)) != len(value):
        raise _refused(what, value, f"at most {_MOST_SPLITS} different names")
    return value


def parse_root(attributes: dict[str, Any]) -> dict[str, Any]:
    """The root's ``unistore`` object of a sealed store of this format's version; further members pass."""
    if attributes.get("format_version") != FORMAT_VERSION:
        raise _refused("format_version", attributes.get("format_version"), str(FORMAT_VERSION))
    if missing := {"family", _SAMPLES, "fields", "seal"} - set(attributes):
        msg = f"attribute 'unistore' lacks {', '.join(sorted(missing))}"
        raise GrammarError(msg)
    _check_family(attributes["family"])
    samples = parse_object(attributes[_SAMPLES], "'samples'")
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


def _check_family(value: object) -> None:
    if not isinstance(value, str) or not _FAMILY.fullmatch(value) or len(value) > _LONGEST_FAMILY:
        rule = f"the name of a family: at most {_LONGEST_FAMILY} lower-case letters, digits and '_'"
        raise _refused("'family'", value, rule)


def _check_field(field: dict[str, Any], what: str) -> None:
    axes = field.get("axes", [])
    if not is_list_of(axes, str):
        raise _refused(what, axes, "a list of names as its axes")
    for name in ("unit", "description"):
        if not isinstance(field.get(name), str | None):
            raise _refused(what, field[name], f"a text as its {name}")


def _check_seal(seal: dict[str, Any]) -> None:
    if seal.get("manifest") != MANIFEST:
        raise _refused("seal manifest", seal.get("manifest"), MANIFEST)
    for name in ("digest", "content_digest", "root"):
        parse_digest(seal.get(name), f"seal {name}")
    for name in ("files", "bytes"):
        parse_count(seal.get(name), f"seal {name}")


def _refused(what: str, value: object, rule: str) -> GrammarError:
    return GrammarError(f"{what} is {shown(value)}, expected {rule}")
