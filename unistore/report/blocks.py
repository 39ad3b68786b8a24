"""What an inspection shows, as plain data: headed blocks of facts, tables, lines and code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from unistore.errors import printable


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A part of what is shown.

    Attributes
    ----------
    title
        Its heading; empty for the first block.
    facts
        Pairs of a name and a value.
    columns, rows
        A table: headings and cells.
    optional_columns
        Columns that are hidden on a narrow terminal, the first ones first.
    lines
        Sentences.
    code
        Commands or Python to copy.
    collapsed
        Shown as one line unless all blocks are asked for; on an HTML page a `<details>` element.
    """

    title: str = ""
    facts: Sequence[tuple[str, str]] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    optional_columns: Sequence[str] = ()
    lines: Sequence[str] = ()
    code: str = ""
    collapsed: bool = False


def format_shape(shape: Iterable[int] | None) -> str:
    """``"120 × 126 × 164"``, ``"scalar"``, or ``"-"`` for None."""
    if shape is None:
        return "-"
    return " × ".join(map(str, shape)) or "scalar"


def visible_blocks(blocks: Iterable[Block], *, show_all: bool) -> list[Block]:
    """Replace collapsed blocks by a line that names ``--all``, unless `show_all`."""
    return [
        Block(lines=[f"+ {block.title}: --all"]) if block.collapsed and not show_all else block
        for block in blocks
    ]


def to_text(blocks: Iterable[Block], *, show_all: bool = False) -> str:
    """Blocks as text without colours; control characters that came from files are escaped."""
    parts = []
    for block in visible_blocks(blocks, show_all=show_all):
        lines = [block.title] if block.title else []
        indent = "  " if block.title else ""
        width = max((len(name) for name, _ in block.facts), default=0)
        lines += [f"{indent}{name.ljust(width)}  {printable(value)}" for name, value in block.facts]
        lines += [f"{indent}{line}" for line in _table_lines(block)]
        lines += [f"{indent}{printable(line)}" for text in block.lines for line in text.split("\n")]
        lines += map(printable, block.code.splitlines())
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _table_lines(block: Block) -> list[str]:
    if not block.rows:
        return []
    lines = [list(block.columns), *([printable(cell) for cell in row] for row in block.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
