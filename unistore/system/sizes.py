"""Sizes and counts as text: ``"4GB"``, ``"512 MiB"``, ``"1 file"``."""

from __future__ import annotations

import re

from unistore.system.arguments import wrong_argument

_UNITS = ("", "k", "m", "g", "t")
_SIZE = re.compile(r"([0-9_]*\.?[0-9]+)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


def parse_bytes(text: str | int, option: str) -> int:
    """Parse a size in powers of 1000 (``"4GB"``), of 1024 (``"4GiB"``), or in plain bytes."""
    match = _SIZE.fullmatch(str(text).strip())
    size = 0.0
    if match is not None:
        size = float(match[1]) * (1024 if match[3] else 1000) ** _UNITS.index(match[2].lower())
    if size < 1:
        raise wrong_argument(
            option, f"is {text!r}, which is not a size", "give for example 4GB, 800MB or 2GiB"
        )
    return int(size)


def size(count: float | None) -> str:
    """Return a number of bytes as text, in powers of 1000; ``"?"`` for None."""
    if count is None:
        return "?"
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def count_of(number: int, noun: str) -> str:
    """Return a number with a noun: ``"1 file"``, ``"1,200 files"``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
