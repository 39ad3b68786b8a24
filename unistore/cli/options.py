"""Options that every conversion shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["conversion"]

F = TypeVar("F", bound=Callable[..., Any])

_COMMON = (
    click.option("--dry-run", is_flag=True, help="Show what was found and what would be written, and stop."),
    click.option(
        "--codec",
        type=click.Choice(["fast", "balanced", "small", "none"]),
        default="fast",
        show_default=True,
        help="fast: blosc-lz4, decodes at memory speed. small: blosc-zstd, smallest.",
    ),
    click.option(
        "--split", metavar="SHARES", help="Deal whole sources out to splits: train=0.8,val=0.2 (of samples)."
    ),
    click.option("--overwrite", is_flag=True, help="Replace a finished store, once the new one is sealed."),
    click.option("--restart", is_flag=True, help="Forget an unfinished conversion instead of continuing it."),
    click.option(
        "--work",
        type=click.Path(file_okay=False),
        metavar="DIR",
        help="With DST in a bucket: folder for the journal and spilled rows of an unfinished conversion.",
    ),
    click.option(
        "--workers",
        type=click.IntRange(min=0),
        default=0,
        help="Worker processes; 0 (default): this process.",
    ),
    click.option(
        "--memory",
        metavar="SIZE",
        help="What all processes together may hold: 4GB. Fewer workers if need be; same bytes in the store.",
    ),
    click.option("--scheduler", metavar="TCP", help="Use an existing dask cluster: tcp://host:8786."),
    click.option(
        "--on-error",
        type=click.Choice(["fail", "skip"]),
        default="fail",
        show_default=True,
        help="skip: leave out files and episodes with problems, list them, finish with exit code 3.",
    ),
    click.option(
        "--exclude",
        multiple=True,
        metavar="NAME",
        help="Leave out a file, folder or episode, named as in messages (several allowed).",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object."),
)


def conversion(command: F) -> F:
    """Add SRC…, DST and the common options to a command."""
    for option in reversed(_COMMON):
        command = option(command)
    command = click.argument("destination", metavar="DST", type=click.Path())(command)
    return click.argument("sources", metavar="SRC...", nargs=-1, required=True, type=click.Path())(command)
