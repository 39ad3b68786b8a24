"""What inspect and doctor show, as plain data: headed blocks of facts, tables, lines and code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from unistore.converters.verdicts import TAKEN
from unistore.errors import printable
from unistore.system.sizes import count_of, size

_MAX_REASONS = 8
_REASON_WIDTH, _ROW_WIDTH = 47, 59
"""Characters of a reason, and of reason and example together: the table fits 80 columns."""


class Block(NamedTuple):
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
        lines += [f"{indent}{line}" for line in aligned([block.columns, *block.rows] if block.rows else [])]
        lines += [f"{indent}{printable(line)}" for text in block.lines for line in text.split("\n")]
        lines += map(printable, block.code.splitlines())
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of a table as lines whose columns are aligned."""
    shown = [list(map(printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in shown]


def shortened(text: str, width: int) -> str:
    """A text on one line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"


def sources_fact(sources: Mapping[str, Any], names: Sequence[str]) -> tuple[str, str]:
    """Number and bytes of all sources, and the names of the first ones."""
    more = sources["count"] - len(names)
    shown = f"{', '.join(names)} and {more:,} more" if more else ", ".join(names)
    return "sources", f"{count_of(sources['count'], 'source')}, {size(sources['bytes'])}: {shown}"


def verdict_blocks(verdicts: Sequence[Mapping[str, Any]]) -> list[Block]:
    """A table of the files that are not taken, the most frequent reasons first; empty if all are taken."""
    found = sorted((each for each in verdicts if each["verdict"] != TAKEN), key=lambda each: -each["files"])
    reasons = [shortened(each["why"], _REASON_WIDTH) for each in found[:_MAX_REASONS]]
    left = _ROW_WIDTH - max(map(len, reasons), default=0)
    rows = []
    for each, reason in zip(found, reasons, strict=False):
        example = shortened(each["examples"][0], left) + (", …" if each["files"] > 1 else "")
        rows.append((f"{each['files']:,}", each["verdict"], reason, example))
    if len(found) > _MAX_REASONS:
        rest = sum(each["files"] for each in found[_MAX_REASONS:])
        rows.append((f"{rest:,}", "", f"for {len(found) - _MAX_REASONS} further reasons", ""))
    columns = ("files", "verdict", "because", "such as")
    return [Block(title="files that are not taken", columns=columns, rows=rows)] if rows else []
