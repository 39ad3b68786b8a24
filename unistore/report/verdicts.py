"""Files by verdict, for people: one line, and a table of what is left out and refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unistore.converters.verdicts import LEFT_OUT, REFUSED, TAKEN
from unistore.report.blocks import Block

__all__ = ["verdict_blocks", "verdicts_line"]

_LINES = 8
_REASON = 47
_NAMES = 12


def verdicts_line(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """``"files: 12 taken, 3 left out"``."""
    counts = {
        verdict: sum(each["files"] for each in verdicts if each["verdict"] == verdict)
        for verdict in (TAKEN, LEFT_OUT, REFUSED)
    }
    shown = [f"{count:,} {verdict}" for verdict, count in counts.items() if count or verdict == TAKEN]
    return f"files: {', '.join(shown)}"


def verdict_blocks(verdicts: Sequence[Mapping[str, Any]]) -> list[Block]:
    """A table of the files that are not taken, the most frequent reasons first; none where all are."""
    found = sorted((each for each in verdicts if each["verdict"] != TAKEN), key=lambda each: -each["files"])
    rows = [
        (f"{each['files']:,}", each["verdict"], _short(each["why"], _REASON), _examples(each))
        for each in found[:_LINES]
    ]
    if len(found) > _LINES:
        rest = sum(each["files"] for each in found[_LINES:])
        rows.append((f"{rest:,}", "", f"for {len(found) - _LINES} further reasons", ""))
    columns = ("files", "verdict", "because", "such as")
    return [Block(title="files that are not taken", columns=columns, rows=rows)] if rows else []


def _examples(count: Mapping[str, Any]) -> str:
    first = _short(count["examples"][0], _NAMES)
    return f"{first}, …" if count["files"] > 1 else first


def _short(text: str, longest: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
