"""``unistore inspect``: what is at a path, and what to do with it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from unistore.inspection.blocks import Block

__all__ = ["command"]

BAD_INPUT = 2

EXAMPLES = """\b
Examples:
  unistore inspect train.zarr            a store: what it holds, and a training snippet
  unistore inspect recordings/           sources: what they are, what is wrong, which command converts them
  unistore inspect train.zarr --json     the same for programs
"""


@click.command("inspect", epilog=EXAMPLES)
@click.argument("path", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(path: str, as_json: bool) -> int:
    """Say what PATH is: a store, an unfinished conversion, source files, or something else.

    Exits with 0, or with 2 where sources have problems or nothing known is there.
    """
    from unistore.inspect import inspect

    found = inspect(path)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=1))
    elif sys.stdout.isatty():
        _show(found.blocks)
    else:
        click.echo(str(found))
    return 0 if found.is_good else BAD_INPUT


def _show(blocks: Iterable[Block]) -> None:
    """Blocks on a terminal: aligned, wrapped to its width, in colour."""
    from rich.console import Console

    console = Console()
    for number, block in enumerate(blocks):
        if number:
            console.print()
        for part in _parts(block):
            console.print(part, soft_wrap=isinstance(part, str) or bool(block.code))


def _parts(block: Block) -> Iterable[RenderableType]:
    from rich.box import SIMPLE_HEAD
    from rich.syntax import Syntax
    from rich.table import Table
    from rich.text import Text

    from unistore.converters.paths import printable

    if block.title:
        yield Text(block.title, style="bold cyan")
    if block.facts:
        facts = Table.grid(padding=(0, 2))
        for name, value in block.facts:
            facts.add_row(Text(name, style="bold"), Text(printable(value)))
        yield facts
    if block.rows:
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for column in block.columns:
            table.add_column(column, overflow="fold")
        for row in block.rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        yield table
    for text in block.lines:
        for line in text.split("\n"):
            yield Text(f"  {printable(line)}")
    if block.code:
        yield Syntax("", "python" if "import " in block.code else "console").highlight(block.code)
