"""What an inspection shows, as plain data: headed blocks of facts, tables, lines and code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from unistore.errors import printable

__all__ = ["Block", "dimensions", "plain", "unfolded"]


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
    spare
        Columns that a narrow terminal does without, the first ones first.
    lines
        Sentences.
    code
        Text to paste.
    folded
        Shown only where everything is asked for; in a page it can be opened.
    """

    title: str = ""
    facts: Sequence[tuple[str, str]] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    spare: Sequence[str] = ()
    lines: Sequence[str] = ()
    code: str = ""
    folded: bool = False


def dimensions(shape: Iterable[int]) -> str:
    """``"120 × 126 × 164"``."""
    return " × ".join(map(str, shape)) or "scalar"


def unfolded(blocks: Iterable[Block], *, every: bool) -> list[Block]:
    """Blocks with those that are folded, or with a line in place of them."""
    return [
        Block(lines=[f"+ {block.title}: --all"]) if block.folded and not every else block for block in blocks
    ]


def plain(blocks: Iterable[Block], *, every: bool = False) -> str:
    """Blocks as text without colours; whatever came from a file is made safe for a terminal."""
    parts = []
    for block in unfolded(blocks, every=every):
        lines = [block.title] if block.title else []
        indent = "  " if block.title else ""
        width = max((len(name) for name, _ in block.facts), default=0)
        lines += [f"{indent}{name.ljust(width)}  {printable(value)}" for name, value in block.facts]
        lines += [f"{indent}{line}" for line in _aligned(block)]
        lines += [f"{indent}{printable(line)}" for text in block.lines for line in text.split("\n")]
        lines += map(printable, block.code.splitlines())
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _aligned(block: Block) -> list[str]:
    if not block.rows:
        return []
    lines = [list(block.columns), *([printable(cell) for cell in row] for row in block.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
