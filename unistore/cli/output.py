"""What commands print and write: control characters are escaped, secrets in URLs removed."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unistore.errors import InputError, Problem, printable
from unistore.remote.url import redact_urls

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from unistore.progress import ProgressBar
    from unistore.report.blocks import Block

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


def show(blocks: Sequence[Block], *, show_all: bool = False) -> None:
    """Print blocks; collapsed ones as one line, unless `show_all`."""
    from unistore.report.blocks import to_text, visible_blocks

    if sys.stdout.isatty() or OUTPUT.color == "always":
        _show_on_terminal(visible_blocks(blocks, show_all=show_all))
    else:
        say(to_text(blocks, show_all=show_all))


def _show_on_terminal(blocks: Iterable[Block]) -> None:
    """Blocks on a terminal: aligned, wrapped to its width, in colour."""
    from rich.box import SIMPLE_HEAD
    from rich.padding import Padding
    from rich.syntax import Syntax
    from rich.table import Table
    from rich.text import Text

    out = console()
    for number, block in enumerate(blocks):
        indent = (0, 0, 0, 2 if block.title else 0)
        if number:
            out.print()
        if block.title:
            out.print(Text(block.title, style="bold cyan"))
        if block.facts:
            facts = Table.grid(padding=(0, 2))
            facts.add_column(no_wrap=True)
            facts.add_column(overflow="fold")
            for name, value in block.facts:
                facts.add_row(Text(name, style="bold"), Text(safe(value)))
            out.print(Padding(facts, indent, expand=False))
        if block.rows:
            shown, hidden = _visible_columns(block, out.width)
            table = Table(*(block.columns[at] for at in shown), box=SIMPLE_HEAD, pad_edge=False)
            for row in block.rows:
                table.add_row(*(Text(safe(row[at]), overflow="fold") for at in shown))
            out.print(table)
            if hidden:
                out.print(Text(f"  hidden, as the terminal is narrow: {', '.join(hidden)}", style="dim"))
        for line in "\n".join(block.lines).split("\n") if block.lines else ():
            out.print(Padding(Text(safe(line)), indent, expand=False))
        if block.code:
            language = "console" if block.code.startswith("unistore ") else "python"
            painter = Syntax("", language, theme="ansi_dark", background_color="default")
            code = painter.highlight("\n".join(map(safe, block.code.split("\n"))))
            code.rstrip()
            out.print(code, soft_wrap=True)


def _visible_columns(block: Block, width: int) -> tuple[list[int], list[str]]:
    """Numbers of the columns that fit into the width, and names of those that do not."""
    columns = zip(block.columns, *block.rows, strict=True)
    widths = [max(map(len, column)) + 3 for column in columns]
    shown, hidden = list(range(len(widths))), []
    for name in block.optional_columns:
        if sum(widths[number] for number in shown) > width:
            shown.remove(block.columns.index(name))
            hidden.append(name)
    return shown, hidden


def check_target(path: str, *, overwrite: bool = False) -> None:
    """Check that a report may be written to a path: a new file, or one in place of a report.

    Raises `InputError` if the path is a folder, a file that is not a report (unless `overwrite`), or inside a
    store.
    """
    from unistore.pictures import MARK

    target = Path(path)
    if any((folder / "zarr.json").exists() for folder in target.absolute().parents):
        raise _target_error(path, "is inside a store, which is sealed", "name a place outside")
    if not os.path.lexists(target):
        return
    if not target.is_file():
        raise _target_error(path, "is not a plain file", "name another place")
    with target.open("rb") as file:
        if MARK.encode() not in file.read(1024) and not overwrite:  # the mark is in the first bytes
            raise _target_error(path, "is there, and is not a report", "name another place, or --overwrite")


def write_report(path: str, data: bytes) -> None:
    """Write a report to a path that was checked by `check_target`; an older one is replaced.

    Raises `InputError` if it cannot be written.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("xb") as file:
            file.write(data)
        part.replace(target)
    except OSError as error:
        message, cure = f"cannot be written ({error.strerror})", "check the folder and its rights"
        raise _target_error(path, message, cure) from error
    finally:
        part.unlink(missing_ok=True)


def _target_error(path: str, message: str, cure: str) -> InputError:
    return InputError(Problem(path, message, cure, "target"))
