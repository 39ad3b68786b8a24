"""How often labels are, and whether some mean "no class"."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from unistore.remote.storage import local_path
from unistore.report.values import MIN_SHOWN, describe_values
from unistore.store.reader import Store

SHOWN_LABELS = 5
_UNLABELLED = {"classification": (0, 1), "label": (0,), "labels": (0,)}
"""Labels that may mean "no class", by column; in LAS files 0 (never classified) and 1 (unclassified)."""
_MIN_SHARE = 0.005
"""Share of unlabelled values from which on a remark is made."""


def label_lines(path: str | os.PathLike[str]) -> list[str]:
    """Shares of labels in each label column, from a bounded part of the values; none of an object store."""
    if local_path(path) is None:
        return []
    store, lines = Store(path), []
    for name in (each for each in store.paths() if _column(each) in _UNLABELLED):
        values = describe_values(store.array(name))
        if values is not None and (shares := label_shares(values)):
            lines.append("; ".join(filter(None, [f"{name}: {shares}", unlabelled_remark(name, values)])))
    return lines


def label_shares(values: dict[str, Any]) -> str:
    """Shares of the most frequent labels: ``"5: 16.9 %, 1: 16.8 %"``; empty for few values or one label."""
    labels = values["labels"] or ()
    if len(labels) < 2 or values["read"] < MIN_SHOWN:
        return ""
    shown = [f"{value}: {100 * count / values['read']:.3g} %" for value, count in labels[:SHOWN_LABELS]]
    more = len(labels) - len(shown)
    return ", ".join([*shown, *([f"and {more} more"] if more else [])])


def _column(path: str) -> str:
    return path.rpartition("/")[2].lower()


def unlabelled_remark(path: str, values: dict[str, Any]) -> str | None:
    """Share of labels that may mean "no class"; a column of zeros has a remark of its own."""
    unlabelled, counts = _UNLABELLED.get(_column(path)), dict(values["labels"] or ())
    found = [label for label in counts if unlabelled is not None and (label < 0 or label in unlabelled)]
    share = sum(counts[label] for label in found) / values["read"]
    if len(counts) < 2 or not found or share < _MIN_SHARE or _are_balanced_classes(counts):
        return None
    return f"{100 * share:.3g} % are {' or '.join(map(str, sorted(found)))}: unlabelled?"


def _are_balanced_classes(counts: Mapping[int, int]) -> bool:
    """Return whether labels are 0 to K - 1, and no class is more than twice as frequent as another."""
    # Where 0 stands for points without a class, it is as frequent as a class by chance alone.
    return set(counts) == set(range(len(counts))) and max(counts.values()) <= 2 * min(counts.values())
