"""Remarks on what sources hold and a store does not."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod
from typing import Any

from unistore.errors import first_few

NOT_EVERYWHERE = "not in every source in one form (--columns intersection)"
NOT_MAPPED = "not named by --map"
NO_COLUMN = "being no column"
BOOKKEEPING = "bookkeeping of what wrote the file"
_LISTED = 20
OF_ROWS = "rows "  # begins what is left out of rows, which are named by their numbers
_NUMBER = re.compile(r"[0-9]+")


def names_without_numbers(names: Iterable[str]) -> list[str]:
    """Return names with ``N`` for each number, without duplicates: ``segments/segment_N/unique_labels``."""
    return list(dict.fromkeys(name if name.startswith(OF_ROWS) else _NUMBER.sub("N", name) for name in names))


def left_out_notes(left_out: Iterable[tuple[str, str]]) -> list[str]:
    """Return one remark per reason, given pairs of a name and the reason why it is left out."""
    names: dict[str, list[str]] = {}
    for name, reason in left_out:
        names.setdefault(reason, []).append(name)
    return [
        f"left out, {reason}: {first_few(names_without_numbers(left_out_names), _LISTED)}"
        for reason, left_out_names in names.items()
    ]


def has_values(array: Any) -> bool:
    """Return whether an array holds any value. Its shape is None where HDF5 has no dataspace."""
    return array.shape is not None and prod(array.shape) > 0
