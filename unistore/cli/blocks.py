"""Headed blocks on standard output: in colour on a terminal, plain text when piped."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType

    from unistore.inspection.blocks import Block

__all__ = ["show"]


def show(blocks: Sequence[Block]) -> None:
    """Print blocks."""
    if sys.stdout.isatty():
        _show(blocks)
        return
    from unistore.inspection.blocks import plain

    click.echo(plain(blocks))


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
        yield Syntax("", "console" if block.code.startswith("unistore ") else "python").highlight(block.code)
