"""Options that every conversion shares."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import click

from unistore.cli.families import SharedOption

__all__ = ["conversion"]

F = TypeVar("F", bound=Callable[..., Any])

_shared = partial(click.option, cls=SharedOption)

_COMMON = (
    _shared("--dry-run", is_flag=True, help="Show what was found and what would be written, and stop."),
    _shared(
        "--codec",
        type=click.Choice(["fast", "balanced", "small", "none"]),
        default="fast",
        show_default=True,
        help="fast: blosc-lz4, decodes at memory speed. small: blosc-zstd, smallest.",
    ),
    _shared(
        "--split", metavar="SHARES", help="Deal whole sources out to splits: train=0.8,val=0.2 (of samples)."
    ),
    _shared("--overwrite", is_flag=True, help="Replace a finished store, once the new one is sealed."),
    _shared("--restart", is_flag=True, help="Forget an unfinished conversion instead of continuing it."),
    _shared(
        "--work",
        type=click.Path(file_okay=False),
        metavar="DIR",
        help="With DST in a bucket: folder for the journal and spilled rows of an unfinished conversion.",
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
        help="What all processes together may hold: 4GB. Fewer workers if need be; same bytes in the store.",
    ),
    _shared("--scheduler", metavar="TCP", help="Use an existing dask cluster: tcp://host:8786."),
    _shared(
        "--on-error",
        type=click.Choice(["fail", "skip"]),
        default="fail",
        show_default=True,
        help="skip: leave out files and episodes with problems, list them, finish with exit code 3.",
    ),
    _shared(
        "--exclude",
        multiple=True,
        metavar="NAME",
        help="Leave out a file, folder or episode, named as in messages (several allowed).",
    ),
    _shared("--json", "as_json", is_flag=True, help="Print the result as one JSON object."),
)


def conversion(command: F) -> F:
    """Add SRC…, DST and the common options to a command."""
    for option in reversed(_COMMON):
        command = option(command)
    command = click.argument("destination", metavar="DST", type=click.Path())(command)
    return click.argument("sources", metavar="SRC...", nargs=-1, required=True, type=click.Path())(command)
