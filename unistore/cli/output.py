"""What commands print and write: control characters are escaped, secrets in URLs removed."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unistore.cli.help import HelpOption
from unistore.errors import InputError, Problem
from unistore.remote.url import redact_urls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from unistore.progress import JsonLog, ProgressBar
    from unistore.report.text import Block

COLOURS = ("auto", "always", "never")


@dataclass(slots=True)
class OutputOptions:
    """How much is printed, and in which colours: set once by the options of every command."""

    quiet: bool = False
    verbose: bool = False
    color: str = "auto"


OUTPUT = OutputOptions()

store_argument = click.argument("store", metavar="STORE", type=click.Path())
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
workers_option = click.option(
    "--workers",
    cls=HelpOption,
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    show_default=True,
    help="Number of worker processes; 0 uses threads in this process.",
)
version_option = click.option(
    "--version", metavar="N|NAME", help="Number or name of the version to read.  [default: the newest]"
)


def console(*, err: bool = False) -> Console:
    """Return a console in the colours that were asked for."""
    from rich.console import Console

    if OUTPUT.color == "always":
        return Console(stderr=err, color_system="standard")
    return Console(stderr=err, no_color=True if OUTPUT.color == "never" else None)


def progress_bar() -> ProgressBar:
    """Return the progress on standard error, as much of it as was asked for."""
    from unistore.progress import ProgressBar

    return ProgressBar(quiet=OUTPUT.quiet, verbose=OUTPUT.verbose, console=partial(console, err=True))


def progress_log(log: str, store: str) -> ProgressBar | JsonLog:
    """Return the progress as text or as JSON."""
    from unistore.progress import JsonLog

    return JsonLog(store) if log == "json" else progress_bar()


def say(text: str, *, err: bool = False) -> None:
    """Print text, line by line."""
    from unistore.report.text import safe

    click.echo("\n".join(map(safe, text.split("\n"))), err=err)


def say_done(text: str, *, err: bool = False) -> None:
    """Print what was done, nothing with ``--quiet``."""
    if not OUTPUT.quiet:
        say(text, err=err)


def say_json(value: Any, indent: int | None = None) -> None:
    """Print a JSON value, in ASCII."""
    import json

    click.echo(json.dumps(redact_urls(value), indent=indent))


def show(blocks: Sequence[Block], *, show_all: bool = False) -> None:
    """Print blocks, collapsed ones as one line, unless `show_all`."""
    from unistore.report.text import to_text

    is_terminal = sys.stdout.isatty() or OUTPUT.color == "always"
    color = is_terminal and OUTPUT.color != "never" and not (OUTPUT.color == "auto" and _is_plain())
    click.echo(to_text(blocks, show_all=show_all, color=color), color=color)


def _is_plain() -> bool:
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def check_target(path: str, *, overwrite: bool = False) -> None:
    """Raise `InputError` if a report may not be written to a path.

    With `overwrite`, a report may replace a report. Nothing else is replaced, and nothing is written
    inside a store.
    """
    from unistore.html import MARK

    target = Path(path)
    if any((folder / "zarr.json").exists() for folder in target.absolute().parents):
        raise _target_error(path, "is inside a sealed store, which cannot change", "choose another folder")
    if not os.path.lexists(target):
        return
    if not target.is_file():
        raise _target_error(path, "exists and is not a plain file", "choose another name")
    with target.open("rb") as file:
        if MARK.encode() not in file.read(1024) and not overwrite:  # the mark is in the first bytes
            message = "exists and was not written by unistore"
            raise _target_error(path, message, "choose another name, or add --overwrite to replace it")


def write_report(path: str, data: bytes) -> None:
    """Write a report to a path that `check_target` allowed, replacing an older one."""
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("xb") as file:
            file.write(data)
        part.replace(target)
    except OSError as error:
        message = f"cannot be written ({error.strerror})"
        fix = "check that the folder exists and that you may write to it"
        raise _target_error(path, message, fix) from error
    finally:
        part.unlink(missing_ok=True)


def _target_error(path: str, message: str, fix: str) -> InputError:
    return InputError(Problem(path, message, fix, "target"))
