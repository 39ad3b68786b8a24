"""How many files are taken, left out and refused, with a few of their names: for people and for JSON."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from unistore.converters.scan import Scan
from unistore.errors import printable

__all__ = ["EXCLUDED", "LEFT_OUT", "REFUSED", "TAKEN", "Count", "counted", "counted_scan", "name_of"]

TAKEN, LEFT_OUT, REFUSED = "taken", "left out", "refused"
EXCLUDED = "excluded"
"""Why files are left out that the user, or a problem, excludes."""
_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Count:
    """Files, or folders that are not looked into, of one verdict."""

    verdict: str
    """``"taken"``, ``"left out"`` or ``"refused"``."""
    why: str
    """The family and layout, or the reason."""
    files: int
    """How many."""
    examples: tuple[str, ...]
    """The names of the first."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "examples": list(self.examples)}


def counted(files: Iterable[tuple[str, str, Path]]) -> tuple[Count, ...]:
    """Count files, given with verdict and reason; taken ones come first, refused ones last."""
    counts, examples = Counter[tuple[str, str]](), defaultdict[tuple[str, str], list[str]](list)
    for verdict, why, path in files:
        key = verdict, why
        counts[key] += 1
        if counts[key] <= _EXAMPLES:
            examples[key].append(printable(path.name))
    ordered = sorted(counts, key=lambda key: (TAKEN, LEFT_OUT, REFUSED).index(key[0]))
    return tuple(Count(*key, counts[key], tuple(examples[key])) for key in ordered)


def name_of(path: Path, names: Container[str], start: int = 1) -> str | None:
    """Which of some names of sources a file, or a folder above it, has; None if it has none of them.

    Names do not begin with the first `start` parts of the path.
    """
    parts = path.parts
    spans = ((lo, hi) for hi in range(len(parts), start, -1) for lo in range(start, hi))
    return next((name for lo, hi in spans if (name := "/".join(parts[lo:hi])) in names), None)


def counted_scan(scan: Scan) -> tuple[Count, ...]:
    """What a scan takes, each file once, and what it leaves out; sources that are skipped are refused."""
    family = scan.family.replace("_", " ")
    wrong = {entry["left_out"]: entry["reason"] for entry in reversed(scan.options.get("skipped", ()))}

    def left_out() -> Iterator[tuple[str, str, Path]]:
        for path, why in scan.left_out:
            name = name_of(path, wrong) if wrong and why == EXCLUDED else None
            yield (LEFT_OUT, why, path) if name is None else (REFUSED, wrong[name], path)

    return counted(chain(((TAKEN, family, path) for path in _each_once(scan)), left_out()))


def _each_once(scan: Scan) -> Iterator[Path]:
    """Files of all sources."""
    seen: set[int] = set()  # hashes alone: there are millions
    for source in scan.sources:
        for path in source.files:
            if hash(path) not in seen:
                seen.add(hash(path))
                yield path
