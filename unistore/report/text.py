"""Blocks of facts, tables, lines and code, and functions that render them as text."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple
from unicodedata import east_asian_width

from unistore.errors import printable
from unistore.remote.url import redact_urls

# Codes of ANSI escape sequences
_BOLD = "1"
_DIM = "2"
_TITLE = "1;36"
# Columns of a table are folded down to this width
_NARROWEST = 12


class Block(NamedTuple):
    """A part of the text that is shown.

    Attributes
    ----------
    title : str, default ""
        Heading. Empty for the first block.
    facts : sequence of (str, str)
        Names and values. Empty values are not shown.
    columns : sequence of str
        Headings of a table.
    rows : sequence of sequence of str
        Cells of the table.
    optional_columns : sequence of str
        Columns that are hidden on a narrow terminal, in this order.
    lines : sequence of str
        Sentences.
    code : str, default ""
        Commands or Python to copy.
    collapsed : bool, default False
        Whether the block is shown as one line unless all blocks are requested. On an HTML page, a
        `<details>` element.
    """

    title: str = ""
    facts: Sequence[tuple[str, str]] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    optional_columns: Sequence[str] = ()
    lines: Sequence[str] = ()
    code: str = ""
    collapsed: bool = False

    @property
    def has_content(self) -> bool:
        return any((self.facts, self.rows, self.lines, self.code))


def to_text(
    blocks: Iterable[Block],
    *,
    show_all: bool = False,
    width: int = 0,
    color: bool = False,
) -> str:
    """Return blocks as text, with control characters escaped and secrets in URLs removed.

    Parameters
    ----------
    blocks : iterable of Block
        The blocks.
    show_all : bool, default False
        Whether to show collapsed blocks, too.
    width : int, default 0
        Number of columns. 0: of the terminal, of ``COLUMNS``, or 80.
    color : bool, default False
        Whether to colour titles, names and code.
    """
    parts = []
    width = width or terminal_width()
    for block in blocks:
        collapsed = block.collapsed and not show_all
        lines = [f"+ {block.title}: --all"] if collapsed else _lines(block, width, color=color)
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _lines(block: Block, width: int, *, color: bool) -> Iterator[str]:
    indent = ""
    if block.title:
        yield _paint(block.title, _TITLE, color=color)
        indent = "  "
    room = width - len(indent)
    facts = [(name, safe(value)) for name, value in block.facts if value]
    longest = max((_cells(name) for name, _ in facts), default=0)
    for name, value in facts:
        first, *more = _fold(value, room - longest - 2)
        yield f"{indent}{_paint(_padded(name, longest), _BOLD, color=color)}  {first}"
        yield from (f"{indent}{' ' * longest}  {line}" for line in more)
    for line in _table(block, room, color=color) if block.rows else ():
        yield f"{indent}{line}"
    for line in "\n".join(block.lines).split("\n") if block.lines else ():
        yield from (f"{indent}{part}" for part in _fold(safe(line), room))
    if block.code:
        code = "\n".join(map(safe, block.code.rstrip("\n").split("\n")))
        yield _highlighted(code) if color else code


def _table(block: Block, room: int, *, color: bool) -> Iterator[str]:
    shown = list(range(len(block.columns)))
    hidden = []
    widths = _widths([block.columns, *block.rows])
    for name in block.optional_columns:
        if _total([widths[number] for number in shown]) > room:
            shown.remove(block.columns.index(name))
            hidden.append(name)
    table = [[row[number] for number in shown] for row in (block.columns, *block.rows)]
    heading, *lines = aligned(table, room)
    yield _paint(heading, _BOLD, color=color)
    yield "─" * max(map(_cells, (heading, *lines)))
    yield from lines
    if hidden:
        for line in _fold(f"hidden, as the terminal is narrow: {', '.join(hidden)}", room):
            yield _paint(line, _DIM, color=color)


def terminal_width() -> int:
    """Return the number of columns of the terminal, the value of ``COLUMNS``, or 80."""
    return shutil.get_terminal_size().columns


def aligned(rows: Sequence[Sequence[str]], room: int = 0) -> list[str]:
    """Return rows of a table as aligned lines. The widest column is folded to fit `room`, or the terminal."""
    cells = [list(map(safe, row)) for row in rows]
    widths = _widths(cells)
    room = room or terminal_width()
    if _total(widths) > room:
        widest = widths.index(max(widths))
        widths[widest] = max(_NARROWEST, widths[widest] - (_total(widths) - room))
    lines = []
    for row in cells:
        folded = map(_fold, row, widths)
        parts = zip_longest(*folded, fillvalue="")
        lines += ["  ".join(map(_padded, part, widths)).rstrip() for part in parts]
    return lines


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(_cells, column)) for column in zip(*rows, strict=True)]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _highlighted(code: str) -> str:
    from rich.console import Console
    from rich.syntax import Syntax

    language = "console" if code.startswith("unistore ") else "python"
    painter = Syntax("", language, theme="ansi_dark", background_color="default")
    console = Console(color_system="standard", force_terminal=True)
    with console.capture() as captured:
        console.print(painter.highlight(code), soft_wrap=True, end="")
    return captured.get().rstrip("\n")


def _paint(text: str, code: str, *, color: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if color else text


def _fold(text: str, width: int) -> list[str]:
    if _cells(text) <= width:
        return [text]
    return textwrap.wrap(text, max(1, width), break_on_hyphens=False)


def _cells(text: str) -> int:
    # Some letters are as wide as two others
    return len(text) if text.isascii() else sum(1 + (east_asian_width(letter) in "WF") for letter in text)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _cells(text))


def safe(text: str) -> str:
    """Return text on one line, without control characters and secrets of URLs."""
    return printable(redact_urls(text))


def shortened(text: str, width: int) -> str:
    """Return a text on one line of at most `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"
