"""The command that converts: sources, destination, and recorded options as the command line spells them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from unistore.converters.options import Option, declared
from unistore.converters.registry import find_family
from unistore.errors import InputError


def convert_command(
    family: str,
    sources: Sequence[str],
    destination: str,
    options: Mapping[str, Any] = MappingProxyType({}),
    more: Sequence[str] = (),
) -> str:
    """A quoted shell command.

    Parameters
    ----------
    family
        Name of the family in stores: ``"point_cloud"``.
    sources, destination
        Paths or URLs as they appear in the command.
    options
        Values by name, as journals and stores record them.
    more
        Further words of the command line, put last.
    """
    paths = [f"./{path}" if path.startswith("-") else path for path in (*sources, destination)]
    words = ["unistore", "convert", family.replace("_", "-"), *paths]
    return shlex.join([*words, *_words(family, options), *more])


def format_options(family: str, options: Mapping[str, Any]) -> str:
    """Recorded options as words of the command line; those with their default value are left out."""
    return shlex.join(_words(family, options))


def _words(family: str, options: Mapping[str, Any]) -> list[str]:
    """Words of the family's own options, and of ``--codec`` and ``--split``, which every store records."""
    words = []
    for each in _declared(family):
        value = options.get(each.name)
        if value not in (None, [], {}, each.plain(each.default)):
            words += _option_words(each, value)
    if options.get("codec") not in (None, "auto"):
        words += ["--codec", str(options["codec"])]
    if split := options.get("split"):
        words += ["--split", ",".join(_pairs(split)) if isinstance(split, Mapping) else str(split)]
    if split_by := options.get("split_by"):
        words += ["--split-by", str(split_by)]
    return words


def _declared(family: str) -> tuple[Option, ...]:
    found = find_family(family)
    try:
        return () if found is None else declared(found.part("options"))
    except InputError:
        return ()


def _option_words(option: Option, value: Any) -> list[str]:
    if option.kind is bool:
        return [option.flag if value else option.negative]
    given = _pairs(value) if isinstance(value, Mapping) else value if isinstance(value, list) else [value]
    if option.form == "fixed":
        return [option.flag, *map(str, given)]
    return [word for each in given for word in (option.flag, str(each))]


def _pairs(values: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in values.items()]
