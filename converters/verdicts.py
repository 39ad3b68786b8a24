"""Numbers of files that are taken, left out and refused, with a few of their names."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from unistore.errors import printable

if TYPE_CHECKING:
    from unistore.converters.scan import Scan

TAKEN, LEFT_OUT, REFUSED = "taken", "left out", "refused"
EXCLUDED = "excluded"
"""Reason for files that the user, or a problem, excludes."""
_EXAMPLES = 3


class Count(NamedTuple):
    """Number of files (or folders that are not searched) with one verdict and reason."""

    verdict: str
    """``"taken"``, ``"left out"`` or ``"refused"``."""
    why: str
    """The family and layout, or the reason."""
    files: int
    """Number of files."""
    examples: tuple[str, ...]
    """Names of the first files."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**self._asdict(), "examples": list(self.examples)}


def counted(files: Iterable[tuple[str, str, str | Path]]) -> tuple[Count, ...]:
    """Count files by (verdict, reason); taken ones first, refused ones last."""
    counts, examples = Counter[tuple[str, str]](), defaultdict[tuple[str, str], list[str]](list)
    for verdict, why, path in files:
        key = verdict, why
        counts[key] += 1
        if counts[key] <= _EXAMPLES:
            examples[key].append(printable(Path(path).name))
    ordered = sorted(counts, key=lambda key: (TAKEN, LEFT_OUT, REFUSED).index(key[0]))
    return tuple(Count(*key, counts[key], tuple(examples[key])) for key in ordered)


def name_of(path: Path, names: Container[str], start: int = 1) -> str | None:
    """The source name, among `names`, of a file or a folder above it; None if there is none.

    The first `start` parts of the path are not part of names.
    """
    parts = path.parts
    spans = ((lo, hi) for hi in range(len(parts), start, -1) for lo in range(start, hi))
    return next((name for lo, hi in spans if (name := "/".join(parts[lo:hi])) in names), None)


def counted_scan(scan: Scan) -> tuple[Count, ...]:
    """Counts of a scan: files it takes, each once, and files it leaves out; skipped sources are refused."""
    family = scan.family.replace("_", " ")
    wrong = {entry["left_out"]: entry["reason"] for entry in reversed(scan.options.get("skipped", ()))}

    def left_out() -> Iterator[tuple[str, str, str | Path]]:
        for path, why in scan.left_out:
            name = name_of(path, wrong) if wrong and why == EXCLUDED else None
            yield (LEFT_OUT, why, path) if name is None else (REFUSED, wrong[name], path)

    return counted(chain(((TAKEN, family, path) for path in _each_once(scan)), left_out()))


def _each_once(scan: Scan) -> Iterator[str]:
    """Files of all sources, each once, told apart by their hashes, as there may be millions."""

    def files() -> Iterator[str]:
        return chain.from_iterable(scan.sources.files())

    hashes = np.fromiter(map(hash, files()), np.int64)
    first = np.zeros(len(hashes), np.bool_)
    first[np.unique(hashes, return_index=True)[1]] = True
    return compress(files(), first)


def verdict_counts(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """``"12 taken, 3 left out"``: numbers of files."""
    counts = Counter({TAKEN: 0})
    for each in verdicts:  # which are in order: taken, left out, refused
        counts[each["verdict"]] += each["files"]
    return ", ".join(f"{count:,} {verdict}" for verdict, count in counts.items())
