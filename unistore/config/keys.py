"""Configuration files as flat dotted keys."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from unistore.converters.config_keys import Keys
from unistore.errors import InputError, Problem

_JSON_PARTS = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
"""Strings and comments of JSON; strings, so that ``//`` inside one is not taken for a comment."""


def read_keys(path: Path) -> Keys:
    """Read a YAML or JSON file as dotted keys.

    JSON may have comments (``//``, ``/* */``) and lack its outer braces. A repeated key with different values
    is a Problem.

    Raises `InputError` if the file cannot be read or parsed, or has no keys.
    """
    location = str(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"is not UTF-8 text ({error})"
        raise InputError(Problem(location, f"cannot be read: {reason}", kind="unreadable")) from error
    is_json = path.suffix.lower() == ".json" or (path.suffix == "" and text.lstrip()[:1] in ("{", '"'))
    duplicates: list[str] = []
    try:
        parsed = (_parse_json if is_json else _parse_yaml)(text, duplicates)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:  # 2026-99-99, {[1]: 2}, [[[[…
        message = f"is not valid {'JSON' if is_json else 'YAML'}: {' '.join(str(error).split())}"
        raise InputError(Problem(location, message, kind="format")) from error
    if not isinstance(parsed, dict) or not parsed:
        found = "nothing" if parsed is None else type(parsed).__name__
        raise InputError(Problem(location, f"holds {found}, expected keys and values", kind="format"))
    keys = Keys(_flatten(parsed), location)
    for key in duplicates:
        keys.refuse(key, "is given twice with different values", cure="keep one")
    return keys


def _flatten(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        nested = isinstance(value, dict) and value
        flat |= _flatten(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return flat


def _parse_json(text: str, duplicates: list[str]) -> Any:
    plain = _JSON_PARTS.sub(lambda part: part[0] if part[0].startswith('"') else " ", text).strip()
    if plain.startswith('"'):
        plain = f"{{{plain.rstrip(',')}}}"
    return json.loads(plain, object_pairs_hook=lambda pairs: _as_dict(pairs, duplicates))


def _parse_yaml(text: str, duplicates: list[str]) -> Any:
    class Loader(yaml.SafeLoader):
        """`yaml.SafeLoader` that reports repeated keys."""

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Hashable, Any]:
        loader.flatten_mapping(node)
        pairs = [
            (loader.construct_object(key, deep=True), loader.construct_object(value, deep=True))
            for key, value in node.value
        ]
        return _as_dict(pairs, duplicates)

    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    return yaml.load(text, Loader)  # noqa: S506  a SafeLoader


def _as_dict(pairs: list[tuple[Any, Any]], duplicates: list[str]) -> dict[Any, Any]:
    values: dict[Any, Any] = {}
    for key, value in pairs:
        if key in values and values[key] != value:
            duplicates.append(str(key))
        values[key] = value
    return values
