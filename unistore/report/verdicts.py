"""Files by verdict, for people: one line, and a table of what is left out and refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unistore.converters.verdicts import LEFT_OUT, REFUSED, TAKEN
from unistore.report.blocks import Block

__all__ = ["verdict_blocks", "verdicts_line"]

_LINES = 8
_REASON, _CELLS = 47, 59
"""Characters of a reason, and of it and a name together: the table fits 80 columns."""


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
    reasons = [_short(each["why"], _REASON) for each in found[:_LINES]]
    left = _CELLS - max(map(len, reasons), default=0)
    rows = [
        (f"{each['files']:,}", each["verdict"], reason, _example(each, left))
        for each, reason in zip(found, reasons, strict=False)
    ]
    if len(found) > _LINES:
        rest = sum(each["files"] for each in found[_LINES:])
        rows.append((f"{rest:,}", "", f"for {len(found) - _LINES} further reasons", ""))
    columns = ("files", "verdict", "because", "such as")
    return [Block(title="files that are not taken", columns=columns, rows=rows)] if rows else []


def _example(count: Mapping[str, Any], longest: int) -> str:
    first = _short(count["examples"][0], longest)
    return f"{first}, …" if count["files"] > 1 else first


def _short(text: str, longest: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
