"""Value rules of every store: offsets, text, sources, splits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from unistore.errors import Problem
from unistore.schemas.text import text_values
from unistore.verify.view import Rule, View, first_row

__all__ = ["CURE", "RULES", "broken", "offsets_problems"]

CURE = "convert the sources again; if it comes back, report it"
_BYTES = ("_jpeg", "_file")
"""Endings of groups whose ``data`` are bytes of images, not text."""


def broken(location: str, message: str) -> Problem:
    """A broken value rule."""
    return Problem(location, message, CURE, "values")


def offsets_problems(path: str, offsets: NDArray[np.int64], total: int, what: str) -> Iterator[Problem]:
    """Offsets begin at 0, never fall, and end at the length of what they cut.

    Parameters
    ----------
    path
        Of the offsets.
    offsets
        (n + 1,).
    total
        Rows that they cut.
    what
        What the rows are: ``"points"``.
    """
    if not len(offsets) or offsets[0] != 0:
        yield broken(path, f"begins with {offsets[0] if len(offsets) else 'nothing'}, expected 0")
        return
    falling = np.diff(offsets) < 0
    if falling.any():
        at = first_row(falling)
        yield broken(path, f"row {at + 1} is {offsets[at + 1]}, less than {offsets[at]} before it")
    if offsets[-1] != total:
        yield broken(path, f"ends with {offsets[-1]}, but there are {total} {what}")


def texts(view: View) -> Iterator[Problem]:
    """Text columns: offsets into their bytes, which are UTF-8."""
    for data in view.under(""):
        group = data.removesuffix("/data")
        if group == data or not view.has(f"{group}/offsets") or group.endswith(_BYTES):
            continue
        values, offsets = view.whole(data), view.whole(f"{group}/offsets")
        problems = list(offsets_problems(f"{group}/offsets", offsets, len(values), "bytes of text"))
        yield from problems
        if not problems:
            try:
                text_values(values, offsets)
            except UnicodeDecodeError as error:
                yield broken(data, f"is no UTF-8 ({error})")


def sources(view: View) -> Iterator[Problem]:
    """Sources: one row each, their rows back to back and together the main table."""
    rows, first = view.whole("sources/rows"), view.whole("sources/first_row")
    names = view.shape("sources/path/offsets")[0] - 1
    for path in ("sources/bytes", "sources/digest", "sources/rows", "sources/first_row"):
        if view.shape(path)[0] != names:
            yield broken(path, f"has {view.shape(path)[0]} rows, but there are {names} sources")
            return
    if (rows < 0).any():
        yield broken("sources/rows", f"source {first_row(rows < 0)} has {rows.min()} rows")
    wrong = first != np.cumsum(rows) - rows
    if wrong.any():
        at = first_row(wrong)
        yield broken("sources/first_row", f"source {at} begins at {first[at]}, not where others end")
    main = view.store.attributes.get("main_table", "")
    lengths = {view.shape(path)[0] for path in _columns(view, main)}
    if lengths and int(rows.sum()) not in lengths:
        found = min(lengths)
        yield broken("sources/rows", f"sums up to {int(rows.sum())}, but table {main} has {found} rows")


def _columns(view: View, table: str) -> list[str]:
    """Arrays that are columns of a table: those of them that are described by its row axis."""
    fields = view.store.attributes["fields"]
    paths = view.under(f"{table}/")
    axes = [fields[path]["axes"][0] for path in paths if fields[path].get("axes")]
    rows = [axis for axis in axes if not axis.endswith("_bound") and axis != "byte"]
    return [path for path in paths if rows and (fields[path].get("axes") or [None])[0] == rows[0]]


def splits(view: View) -> Iterator[Problem]:
    """Splits: one code a sample, each with a name."""
    names = view.store.group("splits").get("names", [])
    (count,) = view.shape("splits/code")
    if count != view.store.sample_count:
        yield broken("splits/code", f"has {count} rows, but there are {view.store.sample_count} samples")
    most = max((int(codes.max()) for _, codes in view.blocks("splits/code")), default=0)
    if most >= max(1, len(names)):
        yield broken("splits/code", f"holds code {most}, but there are {len(names)} names")


RULES: tuple[Rule, ...] = (texts, sources, splits)
