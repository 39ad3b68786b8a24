"""Options of ``unistore convert``: common ones, and those that families declare."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import click

from unistore.converters.options import Option, Options, declared

F = TypeVar("F", bound=Callable[..., Any])


class SharedOption(click.Option):
    """An option that every conversion has."""


def _click_option(option: Option, cls: type[click.Option] = click.Option) -> Callable[[F], F]:
    """Decorator that adds a declared option to a command."""
    names, help_text = [option.flag], option.help
    settings: dict[str, Any] = {"cls": cls, "default": option.default, "metavar": option.metavar}
    if option.form in ("several", "mapping"):
        settings["multiple"] = True
        help_text = f"{help_text.removesuffix('.')} (several allowed)."
    if option.form == "mapping":
        settings |= {"default": (), "callback": _parse_mapping}
    elif option.kind is bool:
        names = [f"{option.flag}/{option.negative}"]
    else:
        settings |= {"type": click.Choice(option.choices) if option.choices else option.kind}
        settings |= {"nargs": option.length} if option.form == "fixed" else {}
    shown = option.default not in (None, (), {})
    return click.option(*names, help=help_text, show_default=shown, **settings)


def _parse_mapping(_: click.Context, option: click.Parameter, pairs: tuple[str, ...]) -> dict[str, str]:
    wrong = [pair for pair in pairs if "=" not in pair]
    if wrong:
        msg = f"{option.opts[0]} {wrong[0]}: expected {option.metavar}"
        raise click.UsageError(msg)
    return dict(pair.split("=", 1) for pair in pairs)


def add_family_options(options: type[Options], command: F) -> F:
    """Add the options of a family to a command, without those that every family has."""
    shared = declared(Options)
    for option in reversed([each for each in declared(options) if each not in shared]):
        command = _click_option(option)(command)
    return command


_shared = partial(click.option, cls=SharedOption)

_COMMON = (
    _shared("--dry-run", is_flag=True, help="Show what was found and what would be written, and stop."),
    _shared(
        "--codec",
        type=click.Choice(["auto", "fast", "balanced", "small", "none"]),
        default="auto",
        show_default=True,
        help="auto: chosen for each column by trial. fast: blosc-lz4. small: blosc-zstd, smallest.",
    ),
    _shared(
        "--split", metavar="SHARES", help="Assign whole sources to splits: train=0.8,val=0.2 (of samples)."
    ),
    _shared(
        "--split-by",
        metavar="WHAT",
        default="source",
        show_default=True,
        help="Deal out single samples instead: episode, segment, volume; masks of the files win.",
    ),
    _shared("--overwrite", is_flag=True, help="Replace a finished store, once the new one is sealed."),
    _shared("--restart", is_flag=True, help="Discard an unfinished conversion instead of resuming it."),
    _shared(
        "--work",
        type=click.Path(file_okay=False),
        metavar="DIR",
        help="If DST is in a bucket: local folder for the journal and spilled rows of the conversion.",
    ),
    _shared(
        "--workers",
        type=click.IntRange(min=0),
        default=0,
        help="Worker processes; 0 (default): this process, on threads.",
    ),
    _shared(
        "--memory",
        metavar="SIZE",
        help="Memory limit of all processes together: 4GB. May reduce the workers; the store is the same.",
    ),
    _shared(
        "--scheduler",
        metavar="TCP",
        help="Use an existing dask cluster: tcp://host:8786, or its scheduler file (….json).",
    ),
    _shared(
        "--on-error",
        type=click.Choice(["fail", "skip"]),
        default="fail",
        show_default=True,
        help="skip: leave out files and episodes with problems, list them, finish with exit code 3.",
    ),
    *(_click_option(each, SharedOption) for each in declared(Options)),
    _shared("--json", "as_json", is_flag=True, help="Print the result as one JSON object."),
)


def add_common_options(command: F) -> F:
    """Add SRC…, DST and the common options to a command."""
    for option in reversed(_COMMON):
        command = option(command)
    command = click.argument("destination", metavar="DST", type=click.Path())(command)
    return click.argument("sources", metavar="SRC...", nargs=-1, required=True, type=click.Path())(command)
