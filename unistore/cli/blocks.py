"""Prints blocks of text with titles: in colour on a terminal, else as plain text."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from unistore.cli.output import OUTPUT, console, safe, say

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import RenderableType
    from rich.text import Text

    from unistore.report.blocks import Block


def show(blocks: Sequence[Block], *, show_all: bool = False) -> None:
    """Print blocks; collapsed ones as one line, unless `show_all`."""
    from unistore.report.blocks import to_text, visible_blocks

    if sys.stdout.isatty() or OUTPUT.color == "always":
        _show_on_terminal(visible_blocks(blocks, show_all=show_all))
    else:
        say(to_text(blocks, show_all=show_all))


def _show_on_terminal(blocks: Iterable[Block]) -> None:
    """Blocks on a terminal: aligned, wrapped to its width, in colour."""
    out = console()
    for number, block in enumerate(blocks):
        if number:
            out.print()
        for part in _renderables(block, out.width):
            out.print(part)
        if block.code:
            out.print(_highlighted("\n".join(map(safe, block.code.split("\n")))), soft_wrap=True)


def _renderables(block: Block, width: int) -> Iterable[RenderableType]:
    from rich.box import SIMPLE_HEAD
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    indent = (0, 0, 0, 2 if block.title else 0)
    if block.title:
        yield Text(block.title, style="bold cyan")
    if block.facts:
        facts = Table.grid(padding=(0, 2))
        facts.add_column(no_wrap=True)
        facts.add_column(overflow="fold")
        for name, value in block.facts:
            facts.add_row(Text(name, style="bold"), Text(safe(value)))
        yield Padding(facts, indent, expand=False)
    if block.rows:
        shown, hidden = _visible_columns(block, width)
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for number in shown:
            table.add_column(block.columns[number], overflow="fold")
        for row in block.rows:
            table.add_row(*(Text(safe(row[number])) for number in shown))
        yield table
        if hidden:
            yield Text(f"  hidden, as the terminal is narrow: {', '.join(hidden)}", style="dim")
    for line in (line for text in block.lines for line in text.split("\n")):
        yield Padding(Text(safe(line)), indent, expand=False)


def _highlighted(code: str) -> Text:
    from rich.syntax import Syntax

    language = "console" if code.startswith("unistore ") else "python"
    text = Syntax("", language, theme="ansi_dark", background_color="default").highlight(code)
    text.rstrip()
    return text


def _visible_columns(block: Block, width: int) -> tuple[list[int], list[str]]:
    """Numbers of the columns that fit into the width, and names of those that do not."""
    widths = [
        max(len(name), *(len(row[number]) for row in block.rows)) + 3
        for number, name in enumerate(block.columns)
    ]
    shown, hidden = list(range(len(widths))), []
    for name in block.optional_columns:
        if sum(widths[number] for number in shown) <= width:
            break
        shown.remove(block.columns.index(name))
        hidden.append(name)
    return shown, hidden
