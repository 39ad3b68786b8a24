"""Remarks on what sources hold and a store does not."""

from __future__ import annotations

from collections.abc import Iterable

from unistore.errors import first_few, names_without_numbers

NOT_EVERYWHERE = "not in every source in one form (--columns intersection)"
NOT_MAPPED = "not named by --map"
BOOKKEEPING = "bookkeeping of what wrote the file"
_LISTED = 20


def left_out_notes(left_out: Iterable[tuple[str, str]]) -> list[str]:
    """Return one remark per reason, given pairs of a name and the reason why it is left out.

    An empty reason: the column is not in every source, or in several forms.
    """
    names: dict[str, list[str]] = {}
    for name, reason in left_out:
        names.setdefault(reason or NOT_EVERYWHERE, []).append(name)
    return [
        f"left out, {reason}: {first_few(names_without_numbers(left_out_names), _LISTED)}"
        for reason, left_out_names in names.items()
    ]
