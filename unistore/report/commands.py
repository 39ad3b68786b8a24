"""The command that converts: sources, destination, and recorded options as the command line spells them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import click

from unistore.cli.convert import convert

__all__ = ["convert_command", "spelled_options"]


def convert_command(
    modality: str,
    sources: Sequence[str],
    destination: str,
    options: Mapping[str, Any] = MappingProxyType({}),
    more: Sequence[str] = (),
) -> str:
    """A line for the shell.

    Parameters
    ----------
    modality
        Family, as stores name it: ``"point_cloud"``.
    sources, destination
        As they are to be given.
    options
        Values by name, as journals and stores record them.
    more
        Further words.
    """
    paths = [f"./{path}" if path.startswith("-") else path for path in (*sources, destination)]
    words = ["unistore", "convert", modality.replace("_", "-"), *paths]
    return shlex.join([*words, *_words(modality, options), *more])


def spelled_options(modality: str, options: Mapping[str, Any]) -> str:
    """Recorded options as they are typed; those that a conversion has by itself are left out."""
    return shlex.join(_words(modality, options))


def _words(modality: str, options: Mapping[str, Any]) -> list[str]:
    command, words = convert.commands.get(modality.replace("_", "-")), []
    for parameter in () if command is None else command.params:
        value = options.get(str(parameter.name))
        if isinstance(parameter, click.Option) and value not in (None, [], {}, parameter.default):
            words += _spelled(parameter, value)
    return words


def _spelled(option: click.Option, value: Any) -> list[str]:
    if option.is_flag:
        return (option.opts if value else option.secondary_opts)[:1]
    if isinstance(value, Mapping):
        given = [f"{name}={each}" for name, each in value.items()]
    else:
        given = [str(each) for each in value] if isinstance(value, list) else [str(value)]
    if option.multiple:
        return [word for each in given for word in (option.opts[0], each)]
    return [option.opts[0], ",".join(given)]
