"""Output of the commands: control characters are escaped, secrets in URLs removed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from unistore.errors import printable
from unistore.remote.url import redact_urls

if TYPE_CHECKING:
    from rich.console import Console

    from unistore.progress import ProgressBar

COLOURS = ("auto", "always", "never")


@dataclass(slots=True)
class OutputOptions:
    """How much is printed, and in which colours: set once by the options of every command."""

    quiet: bool = False
    verbose: bool = False
    color: str = "auto"


OUTPUT = OutputOptions()


def console(*, err: bool = False) -> Console:
    """A console in the colours that were asked for."""
    from rich.console import Console

    if OUTPUT.color == "always":
        return Console(stderr=err, color_system="standard")
    return Console(stderr=err, no_color=True if OUTPUT.color == "never" else None)


def progress_bar() -> ProgressBar:
    """Progress on standard error, as much of it as was asked for."""
    from unistore.progress import ProgressBar

    return ProgressBar(quiet=OUTPUT.quiet, verbose=OUTPUT.verbose, console=partial(console, err=True))


def safe(text: str) -> str:
    """Text on one line, without control characters and secrets of URLs."""
    return printable(redact_urls(text))


def say(text: str, *, err: bool = False) -> None:
    """Print text, line by line."""
    click.echo("\n".join(map(safe, text.split("\n"))), err=err)


def say_done(text: str, *, err: bool = False) -> None:
    """Print what was done; nothing with ``--quiet``."""
    if not OUTPUT.quiet:
        say(text, err=err)


def say_json(value: Any, indent: int | None = None) -> None:
    """Print a JSON value, in ASCII."""
    import json

    click.echo(json.dumps(redact_urls(value), indent=indent))
