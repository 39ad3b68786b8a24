"""Verdicts on files as text: one line of counts, and a table of files left out and refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unistore.converters.verdicts import LEFT_OUT, REFUSED, TAKEN
from unistore.report.blocks import Block

_MAX_REASONS = 8
_REASON_WIDTH, _ROW_WIDTH = 47, 59
"""Characters of a reason, and of reason and example together: the table fits 80 columns."""


def verdicts_line(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """``"files: 12 taken, 3 left out"``."""
    counts = {
        verdict: sum(each["files"] for each in verdicts if each["verdict"] == verdict)
        for verdict in (TAKEN, LEFT_OUT, REFUSED)
    }
    shown = [f"{count:,} {verdict}" for verdict, count in counts.items() if count or verdict == TAKEN]
    return f"files: {', '.join(shown)}"


def verdict_blocks(verdicts: Sequence[Mapping[str, Any]]) -> list[Block]:
    """A table of the files that are not taken, the most frequent reasons first; empty if all are taken."""
    found = sorted((each for each in verdicts if each["verdict"] != TAKEN), key=lambda each: -each["files"])
    reasons = [_truncate(each["why"], _REASON_WIDTH) for each in found[:_MAX_REASONS]]
    left = _ROW_WIDTH - max(map(len, reasons), default=0)
    rows = [
        (f"{each['files']:,}", each["verdict"], reason, _example(each, left))
        for each, reason in zip(found, reasons, strict=False)
    ]
    if len(found) > _MAX_REASONS:
        rest = sum(each["files"] for each in found[_MAX_REASONS:])
        rows.append((f"{rest:,}", "", f"for {len(found) - _MAX_REASONS} further reasons", ""))
    columns = ("files", "verdict", "because", "such as")
    return [Block(title="files that are not taken", columns=columns, rows=rows)] if rows else []


def _example(entry: Mapping[str, Any], width: int) -> str:
    first = _truncate(entry["examples"][0], width)
    return f"{first}, …" if entry["files"] > 1 else first


def _truncate(text: str, width: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"
